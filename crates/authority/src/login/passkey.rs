//! Passkeys (WebAuthn): the challenges for browsers, and the verification of their answers. A passkey replaces both
//! password and second factor, so the authenticator must verify its holder (by a finger, a face or a PIN).
//!
//! `webauthn_rp` implements the ceremonies (registrations and logins). This module limits their number and stores them
//! until the browser's answer arrives.

use crate::http::problems::Problem;
use crate::storage::{Passkey, PasskeyHandle};
use anyhow::{Context, Result, anyhow};
use openidconnect::url::{Host, Url};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};
use webauthn_rp::bin::{Decode, Encode};
use webauthn_rp::request::auth::AuthenticationVerificationOptions;
use webauthn_rp::request::register::{
    CredProtect, PublicKeyCredentialUserEntity, RegistrationVerificationOptions, USER_HANDLE_MAX_LEN, UserHandle64,
};
use webauthn_rp::request::{AsciiDomain, FixedCapHashSet, InsertResult, PublicKeyCredentialDescriptor, RpId};
use webauthn_rp::response::register::{CompressedPubKey, DynamicState, StaticState};
use webauthn_rp::response::{AuthTransports, CredentialId};
use webauthn_rp::{
    AuthenticatedCredential, DiscoverableAuthentication64, DiscoverableAuthenticationServerState,
    DiscoverableCredentialRequestOptions, PublicKeyCredentialCreationOptions, Registration, RegistrationServerState,
};

/// Maximum number of pending registrations, and of pending logins. Each lasts five minutes at most. The throttle's
/// charge for starting one keeps unauthenticated senders from reaching this number.
const MOST: usize = 8192;

type Key = CompressedPubKey<[u8; 32], [u8; 32], [u8; 48], Vec<u8>>;

/// Registers passkeys and verifies logins with them, for one origin. Contains the registrations and logins that wait
/// for the browser's answer.
pub struct Passkeys {
    id: RpId,
    origin: String,
    registrations: Mutex<FixedCapHashSet<RegistrationServerState<USER_HANDLE_MAX_LEN>>>,
    logins: Mutex<FixedCapHashSet<DiscoverableAuthenticationServerState>>,
}

impl Passkeys {
    /// Creates the passkey service for the console at `url`. Returns `None` if the URL has no host name, because
    /// passkeys are bound to a name.
    pub fn new(url: &str) -> Option<Self> {
        let parsed = Url::parse(url).ok()?;
        let Some(Host::Domain(name)) = parsed.host() else { return None };
        let id = RpId::Domain(AsciiDomain::try_from(name.to_owned()).ok()?);
        let (registrations, logins) = (FixedCapHashSet::new(MOST), FixedCapHashSet::new(MOST));
        Some(Self { id, origin: url.to_owned(), registrations: Mutex::new(registrations), logins: Mutex::new(logins) })
    }

    /// Returns the options with which a browser creates a passkey for `person`, who already has the passkeys in
    /// `known`.
    ///
    /// # Errors
    /// Fails if WebAuthn does not accept the person's name, a stored passkey is malformed, or too many registrations
    /// are pending.
    pub fn begin_registration(&self, person: &str, handle: PasskeyHandle, known: &[Passkey]) -> Result<Value> {
        let handle = UserHandle64::decode(handle)?;
        let user = PublicKeyCredentialUserEntity {
            name: person.try_into().map_err(|_| {
                anyhow!("cannot create a passkey for {person:?}: WebAuthn does not accept this user name (RFC 8265)")
            })?,
            id: &handle,
            display_name: None,
        };
        let known = known.iter().map(|known| {
            let id = CredentialId::<Vec<u8>>::decode(known.id.clone())
                .map_err(|_| anyhow!("the stored passkey {:?} of {person} is malformed", known.name))?;
            Ok(PublicKeyCredentialDescriptor {
                id,
                transports: AuthTransports::decode(0).map_err(|_| anyhow!("cannot encode the passkey's transports"))?,
            })
        });
        let mut options = PublicKeyCredentialCreationOptions::passkey(&self.id, user, known.collect::<Result<_>>()?);
        // `credProtect` is not required, because this would exclude authenticators that do not support it. The holder
        // is verified at every login anyway.
        options.extensions.cred_protect = CredProtect::None;
        let (server, client) = options.start_ceremony().map_err(|error| anyhow!("{error}"))?;
        let mut going = self.registrations.lock().unwrap_or_else(PoisonError::into_inner);
        room(going.insert_or_replace_all_expired(server))?;
        Ok(serde_json::to_value(client)?)
    }

    /// Verifies a browser's answer to [`Self::begin_registration`] and returns the new passkey. The answer must have
    /// been made for the account with this `handle`.
    ///
    /// # Errors
    /// Fails if the answer fails verification, or its registration is not pending.
    pub fn finish_registration(
        &self,
        answer: &str,
        handle: PasskeyHandle,
        name: &str,
        now: u64,
    ) -> Result<Passkey, Problem> {
        let wrong = |why: String| {
            tracing::info!("rejected a new passkey: {why}");
            Problem::WrongPasskey
        };
        let registration =
            Registration::from_json_relaxed(answer.as_bytes()).map_err(|error| wrong(error.to_string()))?;
        let challenge = registration.challenge_relaxed().map_err(|error| wrong(error.to_string()))?;
        let server = self.registrations.lock().unwrap_or_else(PoisonError::into_inner).take(&challenge);
        let server = server.ok_or(Problem::WrongLogin)?;
        let options = RegistrationVerificationOptions::<&str, &str> {
            allowed_origins: &[&self.origin],
            ..RegistrationVerificationOptions::default()
        };
        let made = server.verify(&self.id, &registration, &options).map_err(|error| wrong(error.to_string()))?;
        if made.user_id().as_ref() != handle {
            return Err(wrong("it belongs to another person".into()));
        }
        let broken = |_| anyhow!("cannot store a new passkey");
        Ok(Passkey {
            id: made.id().as_ref().to_vec(),
            fixed: made.static_state().encode().map_err(broken)?,
            state: made.dynamic_state().encode().map_err(broken)?,
            name: name.to_owned(),
            created: now,
            used: None,
        })
    }

    /// Returns the options with which a browser logs in with a passkey.
    ///
    /// # Errors
    /// Fails if too many logins are pending.
    pub fn begin_login(&self) -> Result<Value> {
        let options = DiscoverableCredentialRequestOptions::passkey(&self.id);
        let (server, client) = options.start_ceremony().map_err(|error| anyhow!("{error}"))?;
        let mut going = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        room(going.insert_or_replace_all_expired(server))?;
        Ok(serde_json::to_value(client)?)
    }

    /// Parses a browser's answer and finds the pending login to which it belongs. The login is then no longer pending,
    /// so only one answer to it is accepted.
    ///
    /// # Errors
    /// Fails if the answer is malformed, or its login is not pending.
    pub fn read_login(&self, answer: &str) -> Result<Answer, Problem> {
        let read =
            DiscoverableAuthentication64::from_json_relaxed(answer.as_bytes()).map_err(|_| Problem::WrongPasskey)?;
        let challenge = read.challenge_relaxed().map_err(|_| Problem::WrongPasskey)?;
        // The pending login is used up, whether the answer turns out to be valid or not.
        let server = self.logins.lock().unwrap_or_else(PoisonError::into_inner).take(&challenge);
        Ok(Answer { read, server: server.ok_or(Problem::WrongLogin)? })
    }

    /// Verifies an answer against the stored passkey that it names. Returns the passkey's new state.
    ///
    /// # Errors
    /// Fails if the answer fails verification, or the stored passkey is malformed.
    pub fn verify(&self, answer: Answer, handle: PasskeyHandle, known: &Passkey) -> Result<[u8; 7], Problem> {
        let broken = || anyhow!("the stored passkey {:?} is malformed", known.name);
        let handle = UserHandle64::decode(handle).map_err(anyhow::Error::from)?;
        let id = CredentialId::<&[u8]>::decode(&known.id).map_err(|_| broken())?;
        let fixed = StaticState::<Key>::decode(&known.fixed).map_err(|_| broken())?;
        let state = DynamicState::decode(known.state).map_err(|_| broken())?;
        let mut credential = AuthenticatedCredential::new(id, &handle, fixed, state).map_err(|_| broken())?;
        let options = AuthenticationVerificationOptions::<&str, &str> {
            allowed_origins: &[&self.origin],
            ..AuthenticationVerificationOptions::default()
        };
        let verified = answer.server.verify(&self.id, &answer.read, &mut credential, &options);
        verified.map_err(|error| {
            tracing::info!("a passkey failed verification: {error}");
            Problem::WrongPasskey
        })?;
        Ok(credential.dynamic_state().encode().context("cannot store a passkey's state")?)
    }
}

/// A browser's answer that belongs to a pending login.
pub struct Answer {
    read: DiscoverableAuthentication64,
    server: DiscoverableAuthenticationServerState,
}

impl Answer {
    /// Returns the id of the passkey that the answer names.
    pub fn id(&self) -> Vec<u8> {
        self.read.raw_id().as_ref().to_vec()
    }

    /// Returns the user handle that the answer claims.
    pub fn handle(&self) -> Vec<u8> {
        self.read.response().user_handle().as_ref().to_vec()
    }
}

fn room(inserted: InsertResult) -> Result<()> {
    match inserted {
        InsertResult::Success => Ok(()),
        InsertResult::CapacityFull | InsertResult::Duplicate => {
            Err(anyhow!("{MOST} requests for passkeys are pending: try again in some minutes"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passkeys_are_bound_to_a_name() {
        assert!(Passkeys::new("https://authority.example.org:8443").is_some());
        assert!(Passkeys::new("https://localhost").is_some());
        assert!(Passkeys::new("https://192.0.2.1:8443").is_none() && Passkeys::new("https://[::1]").is_none());
    }

    #[test]
    fn what_is_asked_names_us_and_wants_the_holder_verified() {
        let passkeys = Passkeys::new("https://authority.example.org:8443").unwrap();
        let options = passkeys.begin_login().unwrap();
        let text = options.to_string();
        assert!(text.contains("authority.example.org") && text.contains("\"userVerification\":\"required\""), "{text}");
        let options = passkeys.begin_registration("alice", [7; 64], &[]).unwrap().to_string();
        assert!(
            options.contains("\"userVerification\":\"required\"") && options.contains("\"residentKey\":\"required\""),
            "{options}"
        );
    }

    #[test]
    fn an_answer_that_nobody_asked_for_is_none() {
        let passkeys = Passkeys::new("https://authority.example.org:8443").unwrap();
        for text in ["", "{}", "null", "[1]", &"x".repeat(10_000)] {
            assert!(passkeys.read_login(text).is_err());
            assert!(passkeys.finish_registration(text, [7; 64], "x", 0).is_err());
        }
    }
}
