//! Logging in at an authority, for the agent and for a user's own session. Starts and finishes a login with an identity
//! provider, and makes a session from the result.
//!
//! Only the caller that started a login with an identity provider can finish it. The callback from a browser is useless
//! to anyone else, because only this caller knows the code verifier.

use crate::kept::KeptSession;
use crate::protocol::{LoginStarted, LoginWay, Reply};
use api::{BrowserLogin, BrowserLoginStarted, DeviceLogin, DeviceLoginStarted, FinishLogin, LoginOutcome};
use client::{Authority, Error};
use engine::agent;
use nix::unistd::{Uid, User};
use sha2::{Digest, Sha256};
use shell::clock::since_boot;
use std::time::Duration;
use zeroize::Zeroizing;

/// Maximum length of a user's or machine's name that the authority accepts, in characters.
const MOST_CLAIM: usize = 64;

/// A login with an identity provider that has been started. Has no `Debug` because it contains a secret.
pub struct Pending {
    login: String,
    verifier: Zeroizing<String>,
}

/// A value, and the times since boot at which it was requested and arrived.
pub struct Timed<T> {
    /// The value that was requested.
    pub value: T,
    /// Time since boot at which the value was requested.
    pub requested: Duration,
    /// Time since boot at which the value arrived.
    pub answered: Duration,
}

impl<T, E> Timed<Result<T, E>> {
    /// Converts the value, unless it is an error.
    pub fn map_ok<U>(self, convert: impl FnOnce(T) -> U) -> Timed<Result<U, E>> {
        let Self { value, requested, answered } = self;
        Timed { value: value.map(convert), requested, answered }
    }
}

/// Runs `work`, and records when it began and ended.
pub async fn timed<T>(work: impl Future<Output = T>) -> Timed<T> {
    let requested = since_boot();
    let value = work.await;
    Timed { value, requested, answered: since_boot() }
}

/// A session that has just begun.
pub struct LoggedIn {
    /// The authority, with the session's token.
    pub authority: Authority,
    /// The session, in the form in which it is stored.
    pub kept: KeptSession,
    /// The authority's time, in Unix seconds, with the times at which this process asked for it and received it.
    pub time: Timed<u64>,
}

/// Starts a login with the identity provider of `authority` for the user `uid` of this machine.
///
/// # Errors
///
/// Fails if the authority refuses the login, or can't be reached.
pub async fn start(
    authority: &Authority,
    uid: u32,
    device: String,
    way: LoginWay,
) -> Result<(Pending, LoginStarted), Error> {
    let mut bytes = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *bytes).map_err(|error| Error::Other(error.to_string()))?;
    let verifier = Zeroizing::new(hex::encode(*bytes));
    let digest: [u8; 32] = Sha256::digest(verifier.as_bytes()).into();
    let challenge = hex::encode(digest);
    let (login, started) = match way {
        LoginWay::Browser { port } => {
            let (user, host) = tokio::task::spawn_blocking(move || requester(uid))
                .await
                .map_err(|error| Error::Other(error.to_string()))?;
            let wanted = BrowserLogin { device, challenge, port, user, host };
            let started = authority.start_browser_login(&wanted).await?;
            let BrowserLoginStarted { login, url, state, expires_in } = started;
            let comparison = api::comparison(&digest);
            (login, LoginStarted::Browser { url, state, comparison, expires_in })
        }
        LoginWay::DeviceCode => {
            let started = authority.start_device_login(&DeviceLogin { device, challenge }).await?;
            let DeviceLoginStarted { login, user_code, url, url_with_code, interval, expires_in } = started;
            (login, LoginStarted::DeviceCode { user_code, url, url_with_code, interval, expires_in })
        }
    };
    Ok((Pending { login, verifier }, started))
}

impl Pending {
    /// Returns the message that finishes the login. `callback` is the browser's answer. `callback` is `None` in a login
    /// with a device code, and in a message that only asks whether the person has answered yet.
    pub fn finish(&self, callback: Option<api::Callback>) -> FinishLogin {
        FinishLogin { login: self.login.clone(), verifier: self.verifier.to_string(), callback }
    }
}

/// Makes a session from the result of a login at the authority `url`. Also fetches the receivers, so that the session
/// has the protected destinations at once. Returns `None` if the person has not answered yet.
///
/// # Errors
///
/// Fails if the login failed, if the receivers can't be fetched, or if there are more receivers than a session may
/// have.
pub async fn enter(
    authority: &Authority,
    url: String,
    ca: Option<String>,
    outcome: impl Future<Output = Result<LoginOutcome, Error>>,
) -> Result<Option<LoggedIn>, Error> {
    let Timed { value, requested, answered } = timed(outcome).await;
    let LoginOutcome::LoggedIn(session) = value? else { return Ok(None) };
    let api::Session { token, person, device, expires, now } = session;
    let authority = authority.with_token(&token);
    let (receivers, sealed) = client::convert::reachable(&authority.destinations().await?);
    if let Err(error) = agent::check_receivers(&receivers) {
        tracing::error!(authority = url, "login refused: {error}");
        return Err(Error::Other(error.to_string()));
    }
    let authorities = authority.members().all;
    let kept =
        KeptSession { authority: url, authorities, ca, token, person, device, expires, receivers, sealed, skew: 0 };
    Ok(Some(LoggedIn { authority, kept, time: Timed { value: now, requested, answered } }))
}

/// Returns a negative reply with this kind and text.
pub fn refused(kind: &str, text: String) -> Reply {
    Reply::Refused { kind: kind.to_owned(), text }
}

/// Returns the negative reply for a failed call to the authority.
pub fn refused_by(error: &Error) -> Reply {
    let kind = match error {
        Error::Denied(problem) | Error::Refused(problem) => problem.r#type.as_str(),
        Error::NotLoggedIn => "not_logged_in",
        Error::Unreachable(_) => "unreachable",
        Error::Unusable(_) | Error::Other(_) => "other",
    };
    refused(kind, error.to_string())
}

/// Returns the names of the requesting user and of the machine; the page that asks the person for approval shows them.
fn requester(uid: u32) -> (String, String) {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
    let host = nix::sys::utsname::uname().ok().map(|name| name.nodename().to_string_lossy().into_owned());
    (claim(user, || format!("user {uid}")), claim(host, || "a machine without a name".to_owned()))
}

/// Shortens a name to what the authority accepts; uses `otherwise` if there is no name.
fn claim(name: Option<String>, otherwise: impl FnOnce() -> String) -> String {
    let name = name.unwrap_or_default();
    let taken: String = name.chars().filter(|letter| !letter.is_control()).take(MOST_CLAIM).collect();
    if taken.is_empty() { otherwise() } else { taken }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_such_as_the_authority_takes() {
        let own = Uid::current();
        let (user, host) = requester(own.as_raw());
        assert!(!user.is_empty() && !host.is_empty() && host.chars().count() <= MOST_CLAIM, "{user} on {host}");
        assert_eq!(requester(u32::MAX - 7).0, format!("user {}", u32::MAX - 7), "a user without a name");
        assert_eq!(claim(Some("a\u{7}b\n".into()), String::new), "ab");
        assert_eq!(claim(Some("é".repeat(100)), String::new).chars().count(), MOST_CLAIM);
    }
}
