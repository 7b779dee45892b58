//! Second factors and passkeys of accounts.

use super::{AuditEvent, Database, Operator};
use anyhow::Result;
use rusqlite::{OptionalExtension, Row, Transaction, params};

/// Maximum number of passkeys per account.
const MOST_PER_PERSON: i64 = 16;

pub(super) const SCHEMA: &str = "
CREATE TABLE passkeys (
    id BLOB PRIMARY KEY, person TEXT NOT NULL, fixed BLOB NOT NULL, state BLOB NOT NULL, name TEXT NOT NULL,
    created INTEGER NOT NULL, used INTEGER
) STRICT;
CREATE INDEX passkeys_of_person ON passkeys (person);
CREATE TABLE passkey_handles (person TEXT PRIMARY KEY, handle BLOB NOT NULL UNIQUE) STRICT;
CREATE TRIGGER passkeys_end AFTER DELETE ON accounts BEGIN
    DELETE FROM passkeys WHERE person = OLD.person;
    DELETE FROM passkey_handles WHERE person = OLD.person;
END;
";

/// The user handle by which authenticators identify an account. It is random, so that it reveals nothing else.
pub type PasskeyHandle = [u8; 64];

/// A registered passkey. It contains no secret, only public keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passkey {
    /// The passkey's id.
    pub id: Vec<u8>,
    /// The immutable part of the passkey, including its public key.
    pub fixed: Vec<u8>,
    /// The mutable part of the passkey, which a login changes.
    pub state: [u8; 7],
    /// The name that the person gave the passkey.
    pub name: String,
    /// Time of creation, in Unix seconds.
    pub created: u64,
    /// Time of the last login with the passkey, in Unix seconds; `None` if there was none.
    pub used: Option<u64>,
}

impl Database {
    /// Adds a second factor to an account, after the person has proved possession of this factor with the code of time
    /// step `step`. Returns false if the account already has one, or does not exist.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn add_totp(&mut self, person: &str, secret: &[u8], step: u64, by: &Operator, now: u64) -> Result<bool> {
        self.write(|transaction| {
            let added = transaction.execute(
                "UPDATE accounts SET totp = ?2, totp_step = ?3 WHERE person = ?1 AND totp IS NULL",
                params![person, secret, step.cast_signed()],
            )?;
            if added == 1 {
                AuditEvent::new("second_factor_added").person(person).by(by).write(transaction, now)?;
            }
            Ok(added == 1)
        })
    }

    /// Removes an account's second factor.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn remove_totp(&mut self, person: &str, by: &Operator, now: u64) -> Result<()> {
        self.write(|transaction| {
            transaction.execute("UPDATE accounts SET totp = NULL WHERE person = ?1", [person])?;
            AuditEvent::new("second_factor_removed").person(person).by(by).write(transaction, now)
        })
    }

    /// Returns the user handle of an account. If the account has none yet, it gets the handle `fresh`.
    ///
    /// # Errors
    /// Fails if there is no such account, or the database cannot be written.
    pub fn passkey_handle(&mut self, person: &str, fresh: PasskeyHandle) -> Result<PasskeyHandle> {
        self.write(|transaction| {
            let add = "INSERT OR IGNORE INTO passkey_handles (person, handle)
                 SELECT person, ?2 FROM accounts WHERE person = ?1";
            transaction.execute(add, params![person, fresh])?;
            let find = "SELECT handle FROM passkey_handles WHERE person = ?1";
            Ok(transaction.query_row(find, [person], |row| row.get(0))?)
        })
    }

    /// Returns a person's passkeys, oldest first.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn passkeys(&self, person: &str) -> Result<Vec<Passkey>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT id, fixed, state, name, created, used FROM passkeys WHERE person = ?1 ORDER BY created, rowid",
        )?;
        let rows = statement.query_map([person], passkey)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the passkey with this id, its owner and the owner's handle; `None` if there is none.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn passkey(&self, id: &[u8]) -> Result<Option<(Passkey, String, PasskeyHandle)>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT id, fixed, state, name, created, used, person, handle FROM passkeys JOIN passkey_handles USING (person)
             WHERE id = ?1",
        )?;
        Ok(statement.query_row([id], |row| Ok((passkey(row)?, row.get(6)?, row.get(7)?))).optional()?)
    }

    /// Adds a passkey to an account. Returns false if the account does not exist, if it has the maximum number of
    /// passkeys, or if a passkey with this id exists.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn add_passkey(&mut self, person: &str, passkey: &Passkey, by: &Operator, now: u64) -> Result<bool> {
        self.write(|transaction| {
            let added = transaction.execute(
                "INSERT OR IGNORE INTO passkeys (id, person, fixed, state, name, created)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE (SELECT count(*) FROM passkeys WHERE person = ?2) < ?7
                    AND EXISTS (SELECT 1 FROM accounts WHERE person = ?2)",
                params![
                    passkey.id,
                    person,
                    passkey.fixed,
                    passkey.state,
                    passkey.name,
                    now.cast_signed(),
                    MOST_PER_PERSON
                ],
            )?;
            if added == 1 {
                let event = AuditEvent::new("passkey_added").person(person).by(by);
                event.detail(&passkey.name).write(transaction, now)?;
            }
            Ok(added == 1)
        })
    }

    /// Removes a person's passkey. Returns false if the person has no passkey with this id.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn remove_passkey(&mut self, person: &str, id: &[u8], by: &Operator, now: u64) -> Result<bool> {
        self.write(|transaction| {
            let remove = "DELETE FROM passkeys WHERE person = ?1 AND id = ?2 RETURNING name";
            let removed: Option<String> =
                transaction.query_row(remove, params![person, id], |row| row.get(0)).optional()?;
            let Some(name) = removed else { return Ok(false) };
            AuditEvent::new("passkey_removed").person(person).by(by).detail(name).write(transaction, now)?;
            Ok(true)
        })
    }
}

/// Records the use of a passkey in a login. Returns false if the passkey no longer exists, or if its state is no longer
/// `before` because another login has used it.
pub(super) fn used(
    transaction: &Transaction<'_>,
    person: &str,
    id: &[u8],
    before: &[u8; 7],
    after: &[u8; 7],
    now: u64,
) -> Result<bool> {
    let changed = transaction.execute(
        // A passkey that was used meanwhile has another state: if two assertions have the same counter, one comes from
        // a copy.
        "UPDATE passkeys SET state = ?4, used = ?5 WHERE id = ?1 AND person = ?2 AND state = ?3",
        params![id, person, before, after, now.cast_signed()],
    )?;
    Ok(changed == 1)
}

fn passkey(row: &Row<'_>) -> rusqlite::Result<Passkey> {
    Ok(Passkey {
        id: row.get(0)?,
        fixed: row.get(1)?,
        state: row.get(2)?,
        name: row.get(3)?,
        created: row.get::<_, i64>(4)?.cast_unsigned(),
        used: row.get::<_, Option<i64>>(5)?.map(i64::cast_unsigned),
    })
}
