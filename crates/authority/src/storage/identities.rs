//! Identities other than password accounts: persons of the identity provider, and service accounts. A name belongs
//! permanently to one identity, so that renaming an account elsewhere does not impersonate another person.

use super::{AuditEvent, Database, Operator, TokenHash, devices, holders, names, persons, sessions};
use crate::login::Identity;
use anyhow::{Result, bail};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::Serialize;
use zeroize::Zeroizing;

/// Issuer of service accounts: empty. Their subject is their public key.
pub(super) const SERVICE: &str = "";

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

/// A service account to be created.
#[derive(Clone, Copy)]
pub struct NewService<'s> {
    /// Name of the service account.
    pub name: &'s str,
    /// Public key of the service account, in hex.
    pub key: &'s str,
    /// Groups of the service account.
    pub groups: &'s [String],
    /// Tags of the service account.
    pub tags: &'s [String],
}

/// Groups and tags of a person or service account, logged in or not.
#[derive(Debug)]
pub struct PersonFacts {
    /// Groups, except those of the policy.
    pub groups: Vec<String>,
    /// Tags of the device in question, and of a service account.
    pub tags: Vec<String>,
}

/// A service account as it is listed.
#[derive(Debug, Serialize)]
pub struct ServiceEntry {
    /// Name of the service account.
    pub service: String,
    /// Public key of the service account, in hex.
    pub key: String,
    /// Groups of the service account.
    pub groups: Vec<String>,
    /// Tags of the service account, on any machine.
    pub tags: Vec<String>,
    /// Time of creation, in Unix seconds.
    pub created: u64,
    /// Time of the last login, in Unix seconds.
    pub last_login: Option<u64>,
}

/// A session begun at the identity provider. No `Debug`: it holds a secret.
pub struct ProviderSession {
    /// The token for requests to the provider, if the provider issued one.
    pub refresh_token: Option<Zeroizing<String>>,
}

/// A session that can be renewed with the identity provider. No `Debug`: it holds a secret.
pub struct Renewable {
    /// The hash of the session's token.
    pub token: TokenHash,
    /// The person whose session it is.
    pub person: String,
    /// The provider's subject identifier for the person.
    pub subject: String,
    /// The token for renewing the session.
    pub refresh_token: Zeroizing<String>,
}

/// Result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// Nothing changed.
    Same,
    /// The person's groups.
    Groups,
    /// The session ended meanwhile, or it ends now because the provider changed the person's name.
    Ended,
}

impl Database {
    /// Adds a service account.
    pub fn add_service(&mut self, service: &NewService<'_>, by: &Operator, now: u64) -> Result<()> {
        let NewService { name, key, groups, tags } = *service;
        self.write(|transaction| {
            if is_known(transaction, name)? || has_account(transaction, name)? {
                bail!("the name {name} is already in use: `user list` and `service list` show whose it is");
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

    /// Replaces the groups of a service account.
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

    /// Replaces the tags of a service account.
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

    /// Removes a service account, and ends its sessions and grants.
    pub fn remove_service(&mut self, name: &str, by: &Operator, now: u64) -> Result<()> {
        self.write(|transaction| {
            let removed = "DELETE FROM identities WHERE person = ?1 AND issuer = ?2";
            if transaction.execute(removed, [name, SERVICE])? == 0 {
                bail!("no service account {name}: `service list` shows them");
            }
            persons::forget(transaction, name)?;
            holders::forget(transaction, name)?;
            sessions::end_of_person(transaction, name, now)?;
            AuditEvent::new("service_removed").person(name).by(by).write(transaction, now)
        })
    }

    /// Returns the public key of a service account, in hex.
    pub fn service_key(&self, name: &str) -> Result<Option<String>> {
        let mut statement =
            self.connection.prepare_cached("SELECT subject FROM identities WHERE person = ?1 AND issuer = ?2")?;
        Ok(statement.query_row([name, SERVICE], |row| row.get(0)).optional()?)
    }

    /// Returns all service accounts, by name.
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

    /// Returns a person's groups, except those of the policy, and the tags of one of the person's devices or, without a
    /// device, the tags that apply on every device.
    pub fn facts_about(&self, person: &str, device: Option<&str>) -> Result<PersonFacts> {
        Ok(PersonFacts {
            groups: groups_of(&self.connection, person)?,
            tags: devices::tags_of(&self.connection, person, device.unwrap_or_default())?,
        })
    }

    /// Returns live sessions that were last renewed at or before `before`, of all persons or of one.
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

    /// Records the provider's latest statement about a session's person; the groups apply to all of the person's
    /// sessions.
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
                let why = format!("the identity provider now names this person {}", identity.person);
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

    /// Ends the sessions of persons from identity providers other than `issuer`.
    pub fn end_of_other_issuers(&mut self, issuer: Option<&str>, now: u64) -> Result<()> {
        self.write(|transaction| {
            let mut statement = transaction.prepare(
                "SELECT token, person FROM sessions JOIN identities USING (person)
                 WHERE issuer <> ?1 AND (?2 IS NULL OR issuer <> ?2)",
            )?;
            let rows = statement.query_map(params![SERVICE, issuer], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let rows: Vec<(TokenHash, String)> = rows.collect::<Result<_, _>>()?;
            for (token, person) in &rows {
                end_one(transaction, token, person, "the authority no longer uses this identity provider", now)?;
            }
            Ok(())
        })
    }

    /// Ends a session, with its grants, at the provider's request.
    pub fn end_by_provider(&mut self, session: &Renewable, why: &str, now: u64) -> Result<()> {
        self.write(|transaction| end_one(transaction, &session.token, &session.person, why, now))
    }

    /// Ends the sessions that a logout at the provider names, and returns their number.
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

    /// Returns the provider's data for a session that was begun at the provider.
    pub fn provider_session(&self, token: &TokenHash) -> Result<Option<ProviderSession>> {
        let mut statement =
            self.connection.prepare_cached("SELECT refresh_token FROM provider_sessions WHERE token = ?1")?;
        let found: Option<Option<String>> = statement.query_row([token], |row| row.get(0)).optional()?;
        Ok(found.map(|refresh_token| ProviderSession { refresh_token: refresh_token.map(Zeroizing::new) }))
    }
}

/// Reports whether a person of the identity provider or a service account has this name.
pub(super) fn is_known(transaction: &Transaction<'_>, person: &str) -> Result<bool> {
    Ok(transaction.prepare_cached("SELECT 1 FROM identities WHERE person = ?1")?.exists([person])?)
}

/// Returns a person's groups, except those of the policy.
pub(super) fn groups_of(connection: &Connection, person: &str) -> Result<Vec<String>> {
    let mut statement = connection.prepare_cached("SELECT groups FROM identities WHERE person = ?1")?;
    Ok(names(statement.query_row([person], |row| row.get(0)).optional()?))
}

/// Reports whether a password account has this name.
pub(super) fn has_account(transaction: &Transaction<'_>, person: &str) -> Result<bool> {
    Ok(transaction.prepare_cached("SELECT 1 FROM accounts WHERE person = ?1")?.exists([person])?)
}

fn end_one(transaction: &Transaction<'_>, token: &TokenHash, person: &str, why: &str, now: u64) -> Result<()> {
    sessions::end(transaction, token, now)?;
    AuditEvent::new("logout").person(person).detail(why).write(transaction, now)
}
