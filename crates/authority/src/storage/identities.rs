//! Identities other than password accounts: persons of the identity provider, and service accounts. A name belongs to
//! one identity until this identity is removed, so that a person who is renamed at the provider cannot take over
//! another person's name.

pub(super) use super::groups::groups_of;

use super::{AuditEvent, Database, Operator, PIECE, TokenHash, devices, holders, names, persons, sessions};
use crate::login::Identity;
use anyhow::{Result, bail};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::Serialize;
use zeroize::Zeroizing;

/// The issuer of service accounts in the table: an empty text. The subject of a service account is its public key.
pub(super) const SERVICE: &str = "";

/// `login` in `provider_sessions` is the hash of the token of the session that began at the provider. This is the
/// session itself or, for a device's session, the console session from which the device was logged in. Only one session
/// of a login has the refresh token.
pub(super) const SCHEMA: &str = "
CREATE TABLE identities (
    person TEXT PRIMARY KEY, issuer TEXT NOT NULL, subject TEXT NOT NULL, groups TEXT NOT NULL,
    tags TEXT NOT NULL DEFAULT '[]', created INTEGER NOT NULL, last_login INTEGER, UNIQUE (issuer, subject)
) STRICT;
CREATE TABLE provider_sessions (
    token BLOB PRIMARY KEY, subject TEXT NOT NULL, sid TEXT, refresh_token TEXT, renewed INTEGER NOT NULL, login BLOB
) STRICT;
CREATE INDEX provider_sessions_of_subject ON provider_sessions (subject);
";

/// When a session ends, another session of the same login gets the refresh token. So the authority can ask the provider
/// about the person as long as the login has a live session.
pub(super) const LOGINS: &str = "
CREATE INDEX provider_sessions_of_login ON provider_sessions (login);
CREATE TRIGGER provider_sessions_end AFTER DELETE ON sessions BEGIN
    UPDATE provider_sessions
        SET refresh_token = (SELECT refresh_token FROM provider_sessions WHERE token = OLD.token)
        WHERE token = (
            SELECT heir.token FROM provider_sessions AS own JOIN provider_sessions AS heir USING (login)
            WHERE own.token = OLD.token AND own.refresh_token IS NOT NULL AND heir.token <> OLD.token LIMIT 1);
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

/// The groups and tags of a person or service account, logged in or not.
#[derive(Debug)]
pub struct PersonFacts {
    /// Groups, except groups that the policy defines.
    pub groups: Vec<String>,
    /// Tags of the person's device or devices, or of the service account.
    pub tags: Vec<String>,
}

/// An entry of the list of service accounts.
#[derive(Debug, Serialize)]
pub struct ServiceEntry {
    /// Name of the service account.
    pub service: String,
    /// Public key of the service account, in hex.
    pub key: String,
    /// Groups of the service account.
    pub groups: Vec<String>,
    /// Tags of the service account; they apply on any machine.
    pub tags: Vec<String>,
    /// Time of creation, in Unix seconds.
    pub created: u64,
    /// Time of the last login, in Unix seconds; `None` if there was none.
    pub last_login: Option<u64>,
}

/// The provider's data for a session that began at the identity provider. Has no `Debug`, because it holds a secret.
pub struct ProviderSession {
    /// The refresh token, if the provider issued one.
    pub refresh_token: Option<Zeroizing<String>>,
}

/// A login whose sessions can be renewed with the identity provider. Has no `Debug`, because it holds a secret.
pub struct Renewable {
    /// The hash of the token of the session that the person opened at the provider. The person may have logged devices
    /// in from this session. If the session has ended, the sessions of these devices continue.
    pub login: TokenHash,
    /// The person whose login it is.
    pub person: String,
    /// The provider's subject identifier for the person.
    pub subject: String,
    /// The refresh token for the renewal.
    pub refresh_token: Zeroizing<String>,
}

/// The result of [`Database::renew`]: what the provider's latest statement about a person has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The identity is as before.
    Same,
    /// The person's groups changed.
    Groups,
    /// The provider changed the person's name, so this many sessions of the login have ended. The number is 0 if all of
    /// them had ended before.
    Ended(usize),
}

impl Database {
    /// Adds a service account.
    ///
    /// # Errors
    /// Fails if the name is in use, or the database cannot be written.
    pub fn add_service(&mut self, service: &NewService<'_>, by: &Operator, now: u64) -> Result<()> {
        let NewService { name, key, groups, tags } = *service;
        self.write(|transaction| {
            if is_known(transaction, name)? || has_account(transaction, name)? {
                bail!("the name {name} is in use: `vouchsafe authority user list` and `service list` show whose it is");
            }
            transaction.execute(
                "INSERT INTO identities (person, issuer, subject, groups, tags, created) VALUES (?1, ?2, ?3, ?4, ?5, \
                 ?6)",
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
    ///
    /// # Errors
    /// Fails if there is no such service account, or the database cannot be written.
    pub fn set_service_groups(&mut self, name: &str, groups: &[String], by: &Operator, now: u64) -> Result<()> {
        self.write(|transaction| {
            let changed = transaction.execute(
                "UPDATE identities SET groups = ?2 WHERE person = ?1 AND issuer = ?3",
                params![name, serde_json::to_string(groups)?, SERVICE],
            )?;
            if changed == 0 {
                bail!("no service account {name}: `vouchsafe authority service list` lists the service accounts");
            }
            let event = AuditEvent::new("groups_changed").person(name).by(by);
            event.detail(format!("groups: {}", groups.join(", "))).write(transaction, now)
        })
    }

    /// Replaces the tags of a service account.
    ///
    /// # Errors
    /// Fails if there is no such service account, or the database cannot be written.
    pub fn set_service_tags(&mut self, name: &str, tags: &[String], by: &Operator, now: u64) -> Result<()> {
        self.write(|transaction| {
            let changed = transaction.execute(
                "UPDATE identities SET tags = ?2 WHERE person = ?1 AND issuer = ?3",
                params![name, serde_json::to_string(tags)?, SERVICE],
            )?;
            if changed == 0 {
                bail!("no service account {name}: `vouchsafe authority service list` lists the service accounts");
            }
            let event = AuditEvent::new("service_tagged").person(name).by(by);
            event.detail(format!("tags: {}", tags.join(", "))).write(transaction, now)
        })
    }

    /// Removes a service account, and ends its sessions and grants.
    ///
    /// # Errors
    /// Fails if there is no such service account, or the database cannot be written.
    pub fn remove_service(&mut self, name: &str, by: &Operator, now: u64) -> Result<()> {
        self.write(|transaction| {
            let removed = "DELETE FROM identities WHERE person = ?1 AND issuer = ?2";
            if transaction.execute(removed, [name, SERVICE])? == 0 {
                bail!("no service account {name}: `vouchsafe authority service list` lists the service accounts");
            }
            persons::forget(transaction, name)?;
            holders::forget(transaction, name)?;
            sessions::end_of_person(transaction, name, now)?;
            AuditEvent::new("service_removed").person(name).by(by).write(transaction, now)
        })
    }

    /// Returns the public key of a service account in hex, or `None` if there is no such account.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn service_key(&self, name: &str) -> Result<Option<String>> {
        let mut statement =
            self.connection.prepare_cached("SELECT subject FROM identities WHERE person = ?1 AND issuer = ?2")?;
        Ok(statement.query_row([name, SERVICE], |row| row.get(0)).optional()?)
    }

    /// Returns all service accounts, sorted by name.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn services(&self) -> Result<Vec<ServiceEntry>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT person, subject, groups, tags, created, last_login FROM identities WHERE issuer = ?1 ORDER BY \
             person",
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

    /// Returns a person's groups, except groups that the policy defines, and the tags of the person's device with the
    /// name `device`. For a service account, returns the account's tags and ignores `device`.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn facts_about(&self, person: &str, device: Option<&str>) -> Result<PersonFacts> {
        Ok(PersonFacts {
            groups: groups_of(&self.connection, person)?,
            tags: devices::tags_of(&self.connection, person, device.unwrap_or_default())?,
        })
    }

    /// Returns the groups of a person or service account, and the tags that any of its devices has.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn facts_of_person(&self, person: &str) -> Result<PersonFacts> {
        let groups = groups_of(&self.connection, person)?;
        Ok(PersonFacts { groups, tags: devices::tags_of_person(&self.connection, person)? })
    }

    /// Returns the logins that have a refresh token and a session that is live at `now`, and were last renewed at or
    /// before `before`. If `person` is given, returns only logins of this person.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn renewable(&self, person: Option<&str>, before: u64, now: u64) -> Result<Vec<Renewable>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT login, person, provider_sessions.subject, refresh_token
             FROM provider_sessions JOIN sessions USING (token)
             WHERE refresh_token IS NOT NULL AND renewed <= ?1 AND expires > ?2 AND (?3 IS NULL OR person = ?3)
             ORDER BY renewed",
        )?;
        let rows = statement.query_map(params![before.cast_signed(), now.cast_signed(), person], |row| {
            let refresh_token = Zeroizing::new(row.get(3)?);
            Ok(Renewable { login: row.get(0)?, person: row.get(1)?, subject: row.get(2)?, refresh_token })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Records the provider's latest statement about the person of a login. The groups apply to all sessions of the
    /// person. If the provider changed the person's name, ends the sessions of the login.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn renew(
        &mut self,
        renewed: &Renewable,
        identity: &Identity,
        refresh_token: &str,
        now: u64,
    ) -> Result<Renewed> {
        self.write(|transaction| {
            let kept = transaction.execute(
                "UPDATE provider_sessions SET refresh_token = ?2 WHERE login = ?1 AND refresh_token IS NOT NULL",
                params![renewed.login, refresh_token],
            )?;
            if kept == 0 {
                return Ok(Renewed::Ended(0));
            }
            transaction.execute(
                "UPDATE provider_sessions SET renewed = ?2, sid = coalesce(?3, sid) WHERE login = ?1",
                params![renewed.login, now.cast_signed(), identity.sid],
            )?;
            if identity.person != renewed.person {
                let why = format!("the identity provider changed this person's name to {}", identity.person);
                return sessions::end_login(transaction, &renewed.login, &why, now).map(Renewed::Ended);
            }
            let groups = serde_json::to_string(&identity.groups)?;
            let changed = transaction.execute(
                "UPDATE identities SET groups = ?2 WHERE person = ?1 AND groups <> ?2",
                [&renewed.person, &groups],
            )?;
            if changed == 0 {
                return Ok(Renewed::Same);
            }
            let event = AuditEvent::new("groups_changed").person(&renewed.person);
            event.detail(format!("groups: {}", identity.groups.join(", "))).write(transaction, now)?;
            Ok(Renewed::Groups)
        })
    }

    /// Ends the sessions of persons from identity providers other than `issuer`. If `issuer` is `None`, ends the
    /// sessions of all identity providers.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn end_of_other_issuers(&mut self, issuer: Option<&str>, now: u64) -> Result<()> {
        let why = "the authority no longer uses this identity provider";
        while !of_other_issuers(&self.connection, issuer)?.is_empty() {
            self.write(|transaction| {
                let some = of_other_issuers(transaction, issuer)?;
                some.iter().try_for_each(|(token, person)| sessions::end_one(transaction, token, person, why, now))
            })?;
        }
        Ok(())
    }

    /// Ends the sessions of a login with their grants, because the provider no longer vouches for the person. The audit
    /// trail contains the reason `why`. Returns the number of ended sessions. If the login has got another refresh
    /// token meanwhile, ends no session: the provider refused the old token because another authority had used it.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn end_by_provider(&mut self, refused: &Renewable, why: &str, now: u64) -> Result<usize> {
        self.write(|transaction| {
            let stored = "SELECT refresh_token FROM provider_sessions WHERE login = ?1 AND refresh_token IS NOT NULL";
            let stored: Option<String> =
                transaction.query_row(stored, [&refused.login], |row| row.get(0)).optional()?;
            if stored.is_some_and(|stored| stored != *refused.refresh_token) {
                return Ok(0);
            }
            sessions::end_login(transaction, &refused.login, why, now)
        })
    }

    /// Ends the sessions that a logout at the provider names: the sessions of `subject` with this `sid` or, without
    /// `sid`, all sessions of `subject`. Returns the number of ended sessions.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn end_by_logout(&mut self, subject: &str, sid: Option<&str>, now: u64) -> Result<usize> {
        self.write(|transaction| {
            let mut statement = transaction.prepare(
                "SELECT token, person FROM provider_sessions JOIN sessions USING (token)
                 WHERE subject = ?1 AND (?2 IS NULL OR sid = ?2)",
            )?;
            let rows = statement.query_map(params![subject, sid], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let rows: Vec<(TokenHash, String)> = rows.collect::<Result<_, _>>()?;
            for (token, person) in &rows {
                sessions::end_one(transaction, token, person, "logged out at the identity provider", now)?;
            }
            Ok(rows.len())
        })
    }

    /// Returns the provider's data for a session, or `None` if the session did not begin at the provider.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn provider_session(&self, token: &TokenHash) -> Result<Option<ProviderSession>> {
        let mut statement =
            self.connection.prepare_cached("SELECT refresh_token FROM provider_sessions WHERE token = ?1")?;
        let found: Option<Option<String>> = statement.query_row([token], |row| row.get(0)).optional()?;
        Ok(found.map(|refresh_token| ProviderSession { refresh_token: refresh_token.map(Zeroizing::new) }))
    }
}

/// Returns up to [`PIECE`] sessions of persons from identity providers other than `issuer`.
fn of_other_issuers(connection: &Connection, issuer: Option<&str>) -> Result<Vec<(TokenHash, String)>> {
    let mut statement = connection.prepare_cached(
        "SELECT token, person FROM sessions JOIN identities USING (person)
         WHERE issuer <> ?1 AND (?2 IS NULL OR issuer <> ?2) LIMIT ?3",
    )?;
    let rows = statement.query_map(params![SERVICE, issuer, PIECE], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Reports whether a person of the identity provider or a service account has this name.
pub(super) fn is_known(transaction: &Transaction<'_>, person: &str) -> Result<bool> {
    Ok(transaction.prepare_cached("SELECT 1 FROM identities WHERE person = ?1")?.exists([person])?)
}

/// Reports whether a password account has this name.
pub(super) fn has_account(transaction: &Transaction<'_>, person: &str) -> Result<bool> {
    Ok(transaction.prepare_cached("SELECT 1 FROM accounts WHERE person = ?1")?.exists([person])?)
}
