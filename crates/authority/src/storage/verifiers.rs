//! Verifiers, and their enrolment with one-time codes.

use super::{AuditEvent, Database, Operator, TokenHash, revocation};
use anyhow::{Result, bail};
use rusqlite::{OptionalExtension, params};
use serde::Serialize;
use std::net::IpAddr;

/// An entry of the list of verifiers.
#[derive(Debug, Serialize)]
pub struct VerifierEntry {
    /// The verifier's id.
    pub verifier: String,
    /// Time of creation, in Unix seconds.
    pub created: u64,
    /// Time of the last enrolment, in Unix seconds; `None` if the verifier has not enrolled yet.
    pub enrolled: Option<u64>,
    /// Time at which the pending enrolment code expires, in Unix seconds; `None` if no code is pending.
    pub code_expires: Option<u64>,
}

impl Database {
    /// Adds a verifier with a one-time code. With `renew`, gives an existing verifier a new code; its token remains
    /// valid until the code is used.
    ///
    /// # Errors
    /// Fails if the verifier exists already (without `renew`) or does not exist (with `renew`), or the database cannot
    /// be written.
    pub fn add_verifier(
        &mut self,
        id: &str,
        code: TokenHash,
        code_expires: u64,
        renew: bool,
        by: &Operator,
        now: u64,
    ) -> Result<()> {
        self.write(|transaction| {
            let statement = if renew {
                "UPDATE verifiers SET code = ?2, code_expires = ?3 WHERE verifier = ?1 AND ?4 = ?4"
            } else {
                "INSERT OR IGNORE INTO verifiers (verifier, code, code_expires, created) VALUES (?1, ?2, ?3, ?4)"
            };
            let values = params![id, code, code_expires.cast_signed(), now.cast_signed()];
            match (transaction.execute(statement, values)?, renew) {
                (0, true) => bail!("no verifier {id}: `vouchsafe authority verifier list` lists the verifiers"),
                (0, false) => {
                    bail!("verifier {id} already exists: `vouchsafe authority verifier add {id} --renew` prints a new code")
                }
                _ => AuditEvent::new("verifier_added").detail(id).by(by).write(transaction, now),
            }
        })
    }

    /// Removes a verifier and revokes the grants for it.
    ///
    /// # Errors
    /// Fails if there is no such verifier, or the database cannot be written.
    pub fn remove_verifier(&mut self, id: &str, by: &Operator, now: u64) -> Result<()> {
        let mut is_full = self.write(|transaction| {
            if transaction.execute("DELETE FROM verifiers WHERE verifier = ?1", [id])? == 0 {
                bail!("no verifier {id}: `vouchsafe authority verifier list` lists the verifiers");
            }
            AuditEvent::new("verifier_removed").detail(id).by(by).write(transaction, now)?;
            revocation::revoke_of_verifier(transaction, id, now)
        })?;
        while is_full {
            is_full = self.write(|transaction| revocation::revoke_of_verifier(transaction, id, now))?;
        }
        Ok(())
    }

    /// Removes a one-time code, and makes `token` the token of the code's verifier. Returns the verifier's id, or
    /// `None` if no such code is pending at `now`.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn enrol(&mut self, code: TokenHash, token: TokenHash, source: IpAddr, now: u64) -> Result<Option<String>> {
        let failed = AuditEvent::new("enrolment_failed").source(source);
        // Anybody can send wrong codes. The cluster's log is for those that are right.
        let pending = "SELECT EXISTS (SELECT 1 FROM verifiers WHERE code = ?1 AND code_expires > ?2)";
        if !self.connection.query_row(pending, params![code, now.cast_signed()], |row| row.get::<_, bool>(0))? {
            self.write_local(|transaction| failed.write(transaction, now))?;
            return Ok(None);
        }
        self.write(|transaction| {
            let id: Option<String> = transaction
                .query_row(
                    "UPDATE verifiers SET code = NULL, code_expires = NULL, token = ?2, enrolled = ?3
                     WHERE code = ?1 AND code_expires > ?3 RETURNING verifier",
                    params![code, token, now.cast_signed()],
                    |row| row.get(0),
                )
                .optional()?;
            match &id {
                Some(id) => AuditEvent::new("enrolled").source(source).detail(id).write(transaction, now)?,
                None => failed.write(transaction, now)?,
            }
            Ok(id)
        })
    }

    /// Returns the ids of the enrolled verifiers, with the hashes of their tokens.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn verifier_tokens(&self) -> Result<Vec<(TokenHash, String)>> {
        let mut statement =
            self.connection.prepare_cached("SELECT token, verifier FROM verifiers WHERE token IS NOT NULL")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns all verifiers, enrolled or not, sorted by id.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn verifiers(&self) -> Result<Vec<VerifierEntry>> {
        let mut statement = self
            .connection
            .prepare("SELECT verifier, created, enrolled, code_expires FROM verifiers ORDER BY verifier")?;
        let rows = statement.query_map([], |row| {
            Ok(VerifierEntry {
                verifier: row.get(0)?,
                created: row.get::<_, i64>(1)?.cast_unsigned(),
                enrolled: row.get::<_, Option<i64>>(2)?.map(i64::cast_unsigned),
                code_expires: row.get::<_, Option<i64>>(3)?.map(i64::cast_unsigned),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}
