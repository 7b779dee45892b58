//! Logins and logouts. One transaction verifies the evidence for a login and records the session that begins with it.

use super::holders::{self, Slot};
use super::identities::{self, SERVICE};
use super::{AuditEvent, Database, Session, TokenHash, access, devices, passkeys, persons, scores, sessions};
use crate::login::Identity;
use anyhow::Result;
use rusqlite::{OptionalExtension, Transaction, params};
use std::net::IpAddr;
use zeroize::Zeroizing;

/// Maximum number of a person's concurrent sessions with agents, and of the person's concurrent sessions at the
/// console. A new session ends the oldest session of its kind.
const MOST_PER_PERSON: i64 = 32;

/// The evidence for a login. Has no `Debug`, because it holds secrets.
pub enum Proof {
    /// A password; the text is the stored hash that it matched.
    Password(String),
    /// A statement of the identity provider.
    Provider {
        /// The identity that the provider asserts.
        identity: Identity,
        /// The refresh token for later renewals, if the provider issued one.
        refresh_token: Option<Zeroizing<String>>,
    },
    /// A session at the console, in which the person requested a session for their device.
    Console(TokenHash),
    /// The key of a service account; the text is the public key in hex.
    Service(String),
    /// A passkey of an account.
    Passkey {
        /// The passkey's id.
        id: Vec<u8>,
        /// The mutable state of the passkey when the login was verified.
        before: [u8; 7],
        /// The mutable state of the passkey after the login.
        after: [u8; 7],
    },
}

impl Proof {
    fn described(&self) -> String {
        match self {
            Self::Password(_) => String::new(),
            Self::Provider { identity, .. } => {
                format!(
                    "by the provider {} as {}; groups: {}",
                    identity.issuer,
                    identity.subject,
                    identity.groups.join(", ")
                )
            }
            Self::Service(key) => format!("by the service key {key}"),
            Self::Passkey { .. } => "by passkey".into(),
            Self::Console(_) => "from the console, through a switch".into(),
        }
    }
}

/// The result of recording a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// The login is recorded.
    Done {
        /// Whether older sessions of the person ended to make room.
        displaced: bool,
        /// The tags of the device.
        tags: Vec<String>,
        /// The person's groups, except groups that the policy defines.
        groups: Vec<String>,
        /// The holder that the handles of the session's grants contain.
        holder: wire::Holder,
    },
    /// The evidence for the login is no longer valid.
    Outdated,
    /// No slot of the account is free for another session. Some slots belong to ended sessions; these slots are free
    /// when the grants of the sessions have expired.
    TooMany {
        /// Number of seconds until a slot is free.
        seconds: u64,
    },
    /// The name belongs to another identity: an account, a service account, or another of the provider's persons.
    NameTaken,
}

impl Database {
    /// Records a login and its session. Records nothing and returns the reason in three cases: the evidence for the
    /// login is no longer valid, the name belongs to another identity, or all slots of the account are taken until the
    /// grants of an ended session expire.
    ///
    /// # Errors
    /// Fails if the database cannot be written, or live sessions use all slots of the account, so that none gets free
    /// by itself.
    pub fn add_session(
        &mut self,
        token: TokenHash,
        session: &Session,
        proof: &Proof,
        source: IpAddr,
        now: u64,
    ) -> Result<Login> {
        let Session { person, device, expires, ends, .. } = session;
        self.write(|transaction| {
            if let Some(refused) = check(transaction, person, proof, now)? {
                return Ok(refused);
            }
            let mut holder = wire::Holder::default();
            if ends.is_none() {
                holder = match holders::begin(transaction, &token, person, now)? {
                    Slot::Given(holder) => holder,
                    Slot::NoneFree { seconds } => return Ok(Login::TooMany { seconds }),
                };
            }
            transaction.execute(
                "INSERT INTO sessions (token, person, device, source, created, expires, ends)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    token,
                    person,
                    device,
                    source.to_string(),
                    now.cast_signed(),
                    expires.cast_signed(),
                    ends.map(u64::cast_signed)
                ],
            )?;
            if ends.is_none() {
                transaction.execute(
                    "INSERT INTO devices (person, device, first_login, last_login) VALUES (?1, ?2, ?3, ?3)
                     ON CONFLICT DO UPDATE SET last_login = ?3",
                    params![person, device, now.cast_signed()],
                )?;
                devices::forget_surplus(transaction, person, now)?;
            }
            attach(transaction, &token, proof, now)?;
            let mut surplus = transaction.prepare_cached(
                "SELECT token FROM sessions WHERE person = ?1 AND (ends IS NULL) = ?3
                 ORDER BY created DESC, rowid DESC LIMIT -1 OFFSET ?2",
            )?;
            let tokens = surplus.query_map(params![person, MOST_PER_PERSON, ends.is_none()], |row| row.get(0))?;
            let tokens = tokens.collect::<Result<Vec<TokenHash>, _>>()?;
            for token in &tokens {
                sessions::end(transaction, token, now)?;
            }
            let event = if ends.is_some() { "console_login" } else { "login" };
            let event = AuditEvent::new(event).person(person).device(device).source(source);
            event.detail(proof.described()).write(transaction, now)?;
            let tags = devices::tags_of(transaction, person, device)?;
            let groups = identities::groups_of(transaction, person)?;
            Ok(Login::Done { displaced: !tokens.is_empty(), tags, groups, holder })
        })
    }

    /// Ends a session with its grants, because its person logged out from `source`. If it is a session at the console,
    /// the sessions of devices that were logged in from it also end.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn end_session(&mut self, token: TokenHash, session: &Session, source: IpAddr, now: u64) -> Result<()> {
        self.write(|transaction| {
            sessions::end(transaction, &token, now)?;
            if session.ends.is_some() {
                sessions::end_login(transaction, &token, "logged out at the console", now)?;
            }
            let event = if session.ends.is_some() { "console_logout" } else { "logout" };
            let event = AuditEvent::new(event).person(&session.person).device(&session.device);
            event.source(source).write(transaction, now)
        })
    }
}

/// Verifies the evidence for a login. Returns the reason if the login is refused. Otherwise records the use of the
/// evidence, and the identity that the provider asserts.
fn check(transaction: &Transaction<'_>, person: &str, proof: &Proof, now: u64) -> Result<Option<Login>> {
    match proof {
        Proof::Password(hash) => {
            let mut statement =
                transaction.prepare_cached("SELECT 1 FROM accounts WHERE person = ?1 AND password = ?2")?;
            Ok(if statement.exists([person, hash])? { None } else { Some(Login::Outdated) })
        }
        Proof::Console(token) => {
            let mut live = transaction.prepare_cached(
                "SELECT 1 FROM sessions WHERE token = ?1 AND person = ?2 AND expires > ?3 AND ends IS NOT NULL",
            )?;
            Ok(if live.exists(params![token, person, now.cast_signed()])? { None } else { Some(Login::Outdated) })
        }
        Proof::Service(key) => {
            let changed = transaction.execute(
                "UPDATE identities SET last_login = ?4 WHERE person = ?1 AND issuer = ?2 AND subject = ?3",
                params![person, SERVICE, key, now.cast_signed()],
            )?;
            Ok(if changed == 1 { None } else { Some(Login::Outdated) })
        }
        Proof::Passkey { id, before, after } => {
            let holds = passkeys::used(transaction, person, id, before, after, now)?;
            Ok(if holds { None } else { Some(Login::Outdated) })
        }
        Proof::Provider { identity: Identity { issuer, subject, groups, .. }, .. } => {
            if identities::has_account(transaction, person)? {
                return Ok(Some(Login::NameTaken));
            }
            let owner: Option<(String, String)> = transaction
                .query_row("SELECT issuer, subject FROM identities WHERE person = ?1", [person], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .optional()?;
            if owner.is_some_and(|owner| owner != (issuer.clone(), subject.clone())) {
                return Ok(Some(Login::NameTaken));
            }
            let former: Option<String> = transaction
                .query_row(
                    "DELETE FROM identities WHERE issuer = ?1 AND subject = ?2 AND person <> ?3 RETURNING person",
                    [issuer, subject, person],
                    |row| row.get(0),
                )
                .optional()?;
            if let Some(former) = former {
                scores::rename(transaction, &former, person)?;
                access::rename(transaction, &former, person)?;
                persons::forget(transaction, &former)?;
                sessions::end_of_person(transaction, &former, now)?;
                holders::rename(transaction, &former, person)?;
                let event = AuditEvent::new("renamed").person(&former);
                event
                    .detail(format!("the identity provider changed this person's name to {person}"))
                    .write(transaction, now)?;
            }
            transaction.execute(
                "INSERT INTO identities (person, issuer, subject, groups, created, last_login)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?5) ON CONFLICT (person) DO UPDATE SET groups = ?4, last_login = ?5",
                params![person, issuer, subject, serde_json::to_string(groups)?, now.cast_signed()],
            )?;
            Ok(None)
        }
    }
}

/// Stores the provider's data about a session: subject, session identifier and refresh token.
fn attach(transaction: &Transaction<'_>, token: &TokenHash, proof: &Proof, now: u64) -> Result<()> {
    if let Proof::Provider { identity, refresh_token } = proof {
        transaction.execute(
            "INSERT INTO provider_sessions (token, subject, sid, refresh_token, renewed, login)
             VALUES (?1, ?2, ?3, ?4, ?5, ?1)",
            params![
                token,
                identity.subject,
                identity.sid,
                refresh_token.as_ref().map(|token| token.as_str()),
                now.cast_signed()
            ],
        )?;
    }
    // The device's session ends when the provider refuses the person of the console's session or logs that person out.
    if let Proof::Console(console) = proof {
        transaction.execute(
            "INSERT INTO provider_sessions (token, subject, sid, refresh_token, renewed, login)
             SELECT ?1, subject, sid, NULL, renewed, login FROM provider_sessions WHERE token = ?2",
            params![token, console],
        )?;
    }
    Ok(())
}
