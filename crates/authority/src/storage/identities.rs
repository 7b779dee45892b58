//! Who is known otherwise than by an account's password: the identity provider's people, and service accounts. Each name
//! belongs to one of these for good, so that nobody becomes somebody else by renaming themselves elsewhere.

use super::sessions::{self, Login};
use super::{AuditEvent, Database, Operator, TokenHash, devices, holders, passkeys};
use crate::login::Identity;
use anyhow::{Result, bail};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::Serialize;
use zeroize::Zeroizing;

/// Service accounts have no issuer; their subject is their public key.
const SERVICE: &str = "";

pub(super) const SCHEMA: &str = "
CREATE TABLE identities (
    person TEXT PRIMARY KEY, issuer TEXT NOT NULL, subject TEXT NOT NULL, groups TEXT NOT NULL,
    tags TEXT NOT NULL DEFAULT '[]', created INTEGER NOT NULL, last_login INTEGER, UNIQUE (issuer, subject)
) STRICT;
CREATE TABLE provider_sessions (
    token BLOB PRIMARY KEY, subject TEXT NOT NULL, sid TEXT, refresh_token TEXT, renewed INTEGER NOT NULL
) STRICT;
CREATE INDEX provider_sessions_of_subject ON provider_sessions (subject);
CREATE TRIGGER provider_sessions_end AFTER DELETE ON sessions BEGIN
    DELETE FROM provider_sessions WHERE token = OLD.token;
END;
";

/// What a login rests on. No `Debug`: it holds secrets.
pub enum Proof {
    /// A password, as the hash that it matched.
    Password(String),
    /// The identity provider's word.
    Provider {
        /// Whom it speaks of.
        identity: Identity,
        /// What it is asked again with.
        refresh_token: Option<Zeroizing<String>>,
    },
    /// A service account's key, as its public key in hex.
    Service(String),
    /// An account's passkey.
    Passkey {
        /// Its id.
        id: Vec<u8>,
        /// What of it a login changes, as it was when the login was judged.
        before: [u8; 7],
        /// The same after it.
        after: [u8; 7],
    },
}

impl Proof {
    pub(super) fn described(&self) -> String {
        match self {
            Self::Password(_) => String::new(),
            Self::Provider { identity, .. } => {
                format!("by {} as {}; groups: {}", identity.issuer, identity.subject, identity.groups.join(", "))
            }
            Self::Service(key) => format!("by the service key {key}"),
            Self::Passkey { .. } => "by passkey".into(),
        }
    }
}

/// A service account that is to be.
#[derive(Clone, Copy)]
pub struct NewService<'s> {
    /// Its name.
    pub name: &'s str,
    /// Its public key, in hex.
    pub key: &'s str,
    /// Its groups.
    pub groups: &'s [String],
    /// Its tags.
    pub tags: &'s [String],
}

/// What the authority knows of somebody who need not be logged in.
#[derive(Debug)]
pub struct Known {
    /// Groups besides those of the policy.
    pub groups: Vec<String>,
    /// Tags of the device that was asked about, and of a service account.
    pub tags: Vec<String>,
    /// Whether they are a service account.
    pub is_service: bool,
    /// Whether the device that was asked about has ever logged in.
    pub has_device: Option<bool>,
}

/// A service account as it is listed.
#[derive(Debug, Serialize)]
pub struct ServiceEntry {
    /// Its name.
    pub service: String,
    /// Its public key, in hex.
    pub key: String,
    /// Its groups.
    pub groups: Vec<String>,
    /// Its tags, on whichever machine.
    pub tags: Vec<String>,
    /// When it was made, Unix seconds.
    pub created: u64,
    /// When it logged in last, Unix seconds.
    pub last_login: Option<u64>,
}

/// A session that was begun at the identity provider. No `Debug`: it holds a secret.
pub struct ProviderSession {
    /// What the provider is asked again with, where it gave something.
    pub refresh_token: Option<Zeroizing<String>>,
}

/// A session that the identity provider can be asked about again. No `Debug`: it holds a secret.
pub struct Renewable {
    /// The session.
    pub token: TokenHash,
    /// Whose it is.
    pub person: String,
    /// The provider's own name for the person.
    pub subject: String,
    /// What the provider is asked with.
    pub refresh_token: Zeroizing<String>,
}

/// What a renewal changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// Nothing.
    Same,
    /// The person's groups.
    Groups,
    /// The session ended meanwhile, or the person has another name at the provider now: it ends.
    Ended,
}

impl Database {
    /// Adds a service account.
    pub fn add_service(&mut self, service: &NewService<'_>, by: &Operator, now: u64) -> Result<()> {
        let NewService { name, key, groups, tags } = *service;
        self.write(|transaction| {
            if is_known(transaction, name)? || has_account(transaction, name)? {
                bail!("the name {name} is taken: `user list` and `service list` show whose it is");
            }
            transaction.execute(
                "INSERT INTO identities (person, issuer, subject, groups, tags, created) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![
                    name,
                    SERVICE,
                    key,
                    serde_json::to_string(groups)?,
                    serde_json::to_string(tags)?,
                    now.cast_signed()
                ],
            )?;
            let event = AuditEvent::new("service_added").person(name).by(by);
            let detail = format!("key {key}; groups: {}; tags: {}", groups.join(", "), tags.join(", "));
            event.detail(detail).write(transaction, now)
        })
    }

    /// Puts a service account into these groups and no others.
    pub fn set_service_groups(&mut self, name: &str, groups: &[String], by: &Operator, now: u64) -> Result<()> {
        self.write(|transaction| {
            let changed = transaction.execute(
                "UPDATE identities SET groups = ?2 WHERE person = ?1 AND issuer = ?3",
                params![name, serde_json::to_string(groups)?, SERVICE],
            )?;
            if changed == 0 {
                bail!("no service account {name}: `service list` shows them");
            }
            let event = AuditEvent::new("groups_changed").person(name).by(by);
            event.detail(format!("groups: {}", groups.join(", "))).write(transaction, now)
        })
    }

    /// Gives a service account these tags and no others.
    pub fn set_service_tags(&mut self, name: &str, tags: &[String], by: &Operator, now: u64) -> Result<()> {
        self.write(|transaction| {
            let changed = transaction.execute(
                "UPDATE identities SET tags = ?2 WHERE person = ?1 AND issuer = ?3",
                params![name, serde_json::to_string(tags)?, SERVICE],
            )?;
            if changed == 0 {
                bail!("no service account {name}: `service list` shows them");
            }
            let event = AuditEvent::new("service_tagged").person(name).by(by);
            event.detail(format!("tags: {}", tags.join(", "))).write(transaction, now)
        })
    }

    /// Removes a service account, ends its sessions and grants.
    pub fn remove_service(&mut self, name: &str, by: &Operator, now: u64) -> Result<()> {
        self.write(|transaction| {
            let removed = "DELETE FROM identities WHERE person = ?1 AND issuer = ?2";
            if transaction.execute(removed, [name, SERVICE])? == 0 {
                bail!("no service account {name}: `service list` shows them");
            }
            devices::forget(transaction, name)?;
            holders::forget(transaction, name)?;
            sessions::end_of_person(transaction, name, now)?;
            AuditEvent::new("service_removed").person(name).by(by).write(transaction, now)
        })
    }

    /// The public key of a service account, in hex.
    pub fn service_key(&self, name: &str) -> Result<Option<String>> {
        let mut statement =
            self.connection.prepare_cached("SELECT subject FROM identities WHERE person = ?1 AND issuer = ?2")?;
        Ok(statement.query_row([name, SERVICE], |row| row.get(0)).optional()?)
    }

    /// Service accounts, by name.
    pub fn services(&self) -> Result<Vec<ServiceEntry>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT person, subject, groups, tags, created, last_login FROM identities WHERE issuer = ?1 ORDER BY person",
        )?;
        let rows = statement.query_map([SERVICE], |row| {
            Ok(ServiceEntry {
                service: row.get(0)?,
                key: row.get(1)?,
                groups: names(row.get(2)?),
                tags: names(row.get(3)?),
                created: row.get::<_, i64>(4)?.cast_unsigned(),
                last_login: row.get::<_, Option<i64>>(5)?.map(i64::cast_unsigned),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// What is known of one person's groups besides those of the policy, and of the tags of a device of theirs or, without
    /// one, of them on every device.
    pub fn known_of(&self, person: &str, device: Option<&str>) -> Result<Known> {
        Ok(Known {
            groups: groups_of(&self.connection, person)?,
            tags: devices::tags_of(&self.connection, person, device.unwrap_or_default())?,
            is_service: self.service_key(person)?.is_some(),
            has_device: device.map(|device| devices::is_known(&self.connection, person, device)).transpose()?,
        })
    }

    /// Live sessions whose last word from the provider is older than `before`, of one person if given.
    pub fn renewable(&self, person: Option<&str>, before: u64, now: u64) -> Result<Vec<Renewable>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT token, person, provider_sessions.subject, refresh_token
             FROM provider_sessions JOIN sessions USING (token)
             WHERE refresh_token IS NOT NULL AND renewed <= ?1 AND expires > ?2 AND (?3 IS NULL OR person = ?3)
             ORDER BY renewed",
        )?;
        let rows = statement.query_map(params![before.cast_signed(), now.cast_signed(), person], |row| {
            let refresh_token = Zeroizing::new(row.get(3)?);
            Ok(Renewable { token: row.get(0)?, person: row.get(1)?, subject: row.get(2)?, refresh_token })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Records the provider's newest word about a session's person, which counts for all sessions of theirs.
    pub fn renew(
        &mut self,
        session: &Renewable,
        identity: &Identity,
        refresh_token: &str,
        now: u64,
    ) -> Result<Renewed> {
        self.write(|transaction| {
            let kept = transaction.execute(
                "UPDATE provider_sessions SET refresh_token = ?2, renewed = ?3, sid = coalesce(?4, sid)
                 WHERE token = ?1",
                params![session.token, refresh_token, now.cast_signed(), identity.sid],
            )?;
            if kept == 0 {
                return Ok(Renewed::Ended);
            }
            if identity.person != session.person {
                let why = format!("the identity provider calls them {} now", identity.person);
                end_one(transaction, &session.token, &session.person, &why, now)?;
                return Ok(Renewed::Ended);
            }
            let groups = serde_json::to_string(&identity.groups)?;
            let changed = transaction.execute(
                "UPDATE identities SET groups = ?2 WHERE person = ?1 AND groups <> ?2",
                [&session.person, &groups],
            )?;
            if changed == 0 {
                return Ok(Renewed::Same);
            }
            let event = AuditEvent::new("groups_changed").person(&session.person);
            event.detail(format!("groups: {}", identity.groups.join(", "))).write(transaction, now)?;
            Ok(Renewed::Groups)
        })
    }

    /// Ends the sessions of people whom another identity provider than this one vouched for.
    pub fn end_of_other_issuers(&mut self, issuer: Option<&str>, now: u64) -> Result<()> {
        self.write(|transaction| {
            let mut statement = transaction.prepare(
                "SELECT token, person FROM sessions JOIN identities USING (person)
                 WHERE issuer <> ?1 AND (?2 IS NULL OR issuer <> ?2)",
            )?;
            let rows = statement.query_map(params![SERVICE, issuer], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let rows: Vec<(TokenHash, String)> = rows.collect::<Result<_, _>>()?;
            for (token, person) in &rows {
                end_one(transaction, token, person, "the identity provider is not the authority's any more", now)?;
            }
            Ok(())
        })
    }

    /// Ends a session because the provider wants it; its grants with it.
    pub fn end_by_provider(&mut self, session: &Renewable, why: &str, now: u64) -> Result<()> {
        self.write(|transaction| end_one(transaction, &session.token, &session.person, why, now))
    }

    /// Ends the sessions of a provider's logout; gives how many.
    pub fn end_by_logout(&mut self, subject: &str, sid: Option<&str>, now: u64) -> Result<usize> {
        self.write(|transaction| {
            let mut statement = transaction.prepare(
                "SELECT token, person FROM provider_sessions JOIN sessions USING (token)
                 WHERE subject = ?1 AND (?2 IS NULL OR sid = ?2)",
            )?;
            let rows = statement.query_map(params![subject, sid], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let rows: Vec<(TokenHash, String)> = rows.collect::<Result<_, _>>()?;
            for (token, person) in &rows {
                end_one(transaction, token, person, "logged out at the identity provider", now)?;
            }
            Ok(rows.len())
        })
    }

    /// What is known of a session that was begun at the provider and is about to end.
    pub fn provider_session(&self, token: &TokenHash) -> Result<Option<ProviderSession>> {
        let mut statement =
            self.connection.prepare_cached("SELECT refresh_token FROM provider_sessions WHERE token = ?1")?;
        let found: Option<Option<String>> = statement.query_row([token], |row| row.get(0)).optional()?;
        Ok(found.map(|refresh_token| ProviderSession { refresh_token: refresh_token.map(Zeroizing::new) }))
    }
}

/// Why a login is refused, if what it rests on does not hold; else records what the provider said.
pub(super) fn check(transaction: &Transaction<'_>, person: &str, proof: &Proof, now: u64) -> Result<Option<Login>> {
    match proof {
        Proof::Password(hash) => {
            let mut statement =
                transaction.prepare_cached("SELECT 1 FROM accounts WHERE person = ?1 AND password = ?2")?;
            Ok(if statement.exists([person, hash])? { None } else { Some(Login::Outdated) })
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
            if has_account(transaction, person)? {
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
                devices::forget(transaction, &former)?;
                sessions::end_of_person(transaction, &former, now)?;
                holders::rename(transaction, &former, person)?;
                let event = AuditEvent::new("renamed").person(&former);
                event.detail(format!("the identity provider calls them {person} now")).write(transaction, now)?;
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

/// Notes with a session what the provider can be asked with.
pub(super) fn attach(transaction: &Transaction<'_>, token: &TokenHash, proof: &Proof, now: u64) -> Result<()> {
    if let Proof::Provider { identity, refresh_token } = proof {
        transaction.execute(
            "INSERT INTO provider_sessions (token, subject, sid, refresh_token, renewed) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                token,
                identity.subject,
                identity.sid,
                refresh_token.as_ref().map(|token| token.as_str()),
                now.cast_signed()
            ],
        )?;
    }
    Ok(())
}

pub(super) fn is_known(transaction: &Transaction<'_>, person: &str) -> Result<bool> {
    Ok(transaction.prepare_cached("SELECT 1 FROM identities WHERE person = ?1")?.exists([person])?)
}

/// The groups of one person besides those of the policy.
pub(super) fn groups_of(connection: &Connection, person: &str) -> Result<Vec<String>> {
    let mut statement = connection.prepare_cached("SELECT groups FROM identities WHERE person = ?1")?;
    Ok(names(statement.query_row([person], |row| row.get(0)).optional()?))
}

/// A list of names as it is stored.
pub(super) fn names(json: Option<String>) -> Vec<String> {
    json.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default()
}

fn has_account(transaction: &Transaction<'_>, person: &str) -> Result<bool> {
    Ok(transaction.prepare_cached("SELECT 1 FROM accounts WHERE person = ?1")?.exists([person])?)
}

fn end_one(transaction: &Transaction<'_>, token: &TokenHash, person: &str, why: &str, now: u64) -> Result<()> {
    sessions::end(transaction, token, now)?;
    AuditEvent::new("logout").person(person).detail(why).write(transaction, now)
}
