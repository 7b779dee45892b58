//! Policies that are or were in force, as numbered versions. This module also stores refused requests, which a draft of
//! a policy can decide again.

use super::{AuditEvent, Database, Operator, devices, receivers, revocation};
use anyhow::{Context, Result, bail};
use engine::policy::Subject;
use ipnet::IpNet;
use rusqlite::{Connection, OptionalExtension, ToSql, Transaction, params};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use wire::{Destination, Handle};

pub(super) const SCHEMA: &str = "
CREATE TABLE policies (
    version INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, operator TEXT, note TEXT NOT NULL,
    sha256 TEXT NOT NULL, text TEXT NOT NULL
) STRICT;
CREATE TABLE refusals (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, person TEXT NOT NULL, device TEXT NOT NULL,
    source TEXT NOT NULL, address TEXT NOT NULL, protocol INTEGER NOT NULL, port INTEGER NOT NULL
) STRICT;
CREATE INDEX refusals_by_time ON refusals (time);
";

/// The reason for revocations in the audit trail.
const FORBIDDEN: &str = "the policy changed";
/// Maximum number of refusals that are kept.
const MOST_REFUSALS: u32 = 100_000;
/// Number of seconds for which refusals are kept.
const REFUSALS_KEPT: i64 = 7 * 86_400;

/// An entry of the list of versions: a policy that is or was in force.
#[derive(Debug, Serialize)]
pub struct PolicyVersion {
    /// The version number, counted from 1.
    pub version: i64,
    /// Time at which the version was put in force, in Unix seconds.
    pub time: u64,
    /// The operator who put the version in force, if known.
    pub operator: Option<String>,
    /// The origin of the version, such as `apply FILE`, `reload`, `rollback to N`, `console` or `found at start`.
    pub note: String,
    /// The SHA-256 of the policy's text, in hex.
    pub sha256: String,
}

/// A policy to be put in force.
pub struct PolicyChange {
    /// The policy's text.
    pub text: String,
    /// The origin of the change, for the list of versions.
    pub note: String,
    /// The operator who makes the change, if known.
    pub by: Option<Operator>,
    /// A summary of the policy, for the audit trail.
    pub summary: String,
    /// The version that must be in force, because the operator has compared the change with it. `None` if any version
    /// may be in force.
    pub after: Option<i64>,
}

/// Error: the version in force is not the one that the operator reviewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outdated {
    /// The number of the version that is in force.
    pub version: i64,
}

impl std::fmt::Display for Outdated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "version {} of the policy was put in force meanwhile; nothing was changed", self.version)
    }
}

impl std::error::Error for Outdated {}

/// A refused request. The policy that was in force at the time of the request refused it.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Time of the request, in Unix seconds.
    pub time: u64,
    /// The person who made the request.
    pub person: String,
    /// The device that the request came from.
    pub device: String,
    /// The source address of the request.
    pub source: IpAddr,
    /// The destination of the request.
    pub to: Destination,
    /// The current tags of the device.
    pub tags: Vec<String>,
}

impl Refusal {
    /// Returns the subject of the request.
    pub fn subject(&self) -> Subject<'_> {
        Subject { person: &self.person, tags: &self.tags, source: Some(self.source), ..Subject::default() }
    }
}

impl Database {
    /// Records a policy, revokes the grants in `forbidden`, and calls `put` to write the policy's file, all in one
    /// transaction: if one of these steps fails, nothing is recorded or revoked. This transaction revokes at most ten
    /// thousand grants. Later transactions revoke the rest; if one of these fails, the policy stays recorded.
    /// `addresses` returns the addresses of the receiver with a given name. Returns the version number. If the policy
    /// has the text of the current version, the number does not change.
    ///
    /// # Errors
    /// Fails if a version other than `after` is in force, if `put` fails, or if the database cannot be written.
    pub fn apply_policy(
        &mut self,
        change: &PolicyChange,
        forbidden: &[(Handle, String)],
        now: u64,
        addresses: &dyn Fn(&str) -> Option<Vec<IpNet>>,
        put: impl FnOnce() -> Result<()>,
    ) -> Result<i64> {
        let (first, rest) = forbidden.split_at(forbidden.len().min(revocation::REVOKED_AT_ONCE as usize));
        let version = self.write(|transaction| {
            let in_force = last(transaction)?.map_or(0, |(version, _)| version);
            if change.after.is_some_and(|after| after != in_force) {
                bail!(Outdated { version: in_force });
            }
            let version = record(transaction, change, addresses, now)?;
            revocation::revoke_forbidden(transaction, first, FORBIDDEN, now)?;
            put()?;
            Ok(version)
        })?;
        // From here on, nobody records a grant that an earlier version allowed. If this process ends now, the next
        // start of a server revokes the remaining grants.
        self.revoke_forbidden(rest, FORBIDDEN, now)?;
        Ok(version)
    }

    /// Records the policy with which a server starts, unless it is the version that was recorded last. `addresses`
    /// returns the addresses of the receiver with a given name.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn note_policy(
        &mut self,
        change: &PolicyChange,
        now: u64,
        addresses: &dyn Fn(&str) -> Option<Vec<IpNet>>,
    ) -> Result<()> {
        let same = last(&self.connection)?.is_some_and(|(_, sha256)| sha256 == digest(&change.text));
        if same { Ok(()) } else { self.write(|transaction| record(transaction, change, addresses, now).map(|_| ())) }
    }

    /// Returns all versions of the policy, newest first.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn policies(&self) -> Result<Vec<PolicyVersion>> {
        let mut statement = self
            .connection
            .prepare("SELECT version, time, operator, note, sha256 FROM policies ORDER BY version DESC")?;
        let rows = statement.query_map([], |row| {
            Ok(PolicyVersion {
                version: row.get(0)?,
                time: row.get::<_, i64>(1)?.cast_unsigned(),
                operator: row.get(2)?,
                note: row.get(3)?,
                sha256: row.get(4)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the number of the version in force.
    ///
    /// # Errors
    /// Fails if no version has been recorded, or the database cannot be read.
    pub fn policy_version(&self) -> Result<i64> {
        Ok(last(&self.connection)?.context("no policy has been in force yet")?.0)
    }

    /// Returns number and text of the version in force.
    ///
    /// # Errors
    /// Fails if no version has been recorded, or the database cannot be read.
    pub fn policy_in_force(&self) -> Result<(i64, String)> {
        let version = self.policy_version()?;
        Ok((version, self.policy_text(version)?))
    }

    /// Returns the text of a version of the policy.
    ///
    /// # Errors
    /// Fails if there is no such version, or the database cannot be read.
    pub fn policy_text(&self, version: i64) -> Result<String> {
        let read = "SELECT text FROM policies WHERE version = ?1";
        let text = self.connection.query_row(read, [version], |row| row.get(0)).optional()?;
        text.with_context(|| {
            format!("no version {version} of the policy: `vouchsafe authority policy history` lists the versions")
        })
    }

    /// Records a refused request. The tags of the device are not recorded.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn add_refusal(&mut self, refusal: &Refusal) -> Result<()> {
        let Refusal { time, person, device, source, to, .. } = refusal;
        self.write_local(|transaction| {
            transaction.execute(
                "INSERT INTO refusals (time, person, device, source, address, protocol, port)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    time.cast_signed(),
                    person,
                    device,
                    source.to_string(),
                    to.address.to_string(),
                    to.protocol,
                    to.port
                ],
            )?;
            Ok(())
        })
    }

    /// Returns the refused requests since `since`, in Unix seconds, oldest first.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn refusals(&self, since: u64) -> Result<Vec<Refusal>> {
        self.refusals_where("time >= ?1 ORDER BY id", params![since.cast_signed()])
    }

    /// Returns the latest refused requests of a person since `since`, in Unix seconds: up to `most` requests, newest
    /// first.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn refusals_of(&self, person: &str, since: u64, most: u32) -> Result<Vec<Refusal>> {
        let which = "person = ?1 AND time >= ?2 ORDER BY id DESC LIMIT ?3";
        self.refusals_where(which, params![person, since.cast_signed(), most])
    }

    /// Returns the refused requests that the SQL text `which` selects.
    fn refusals_where(&self, which: &str, values: &[&dyn ToSql]) -> Result<Vec<Refusal>> {
        let sql = format!("SELECT time, person, device, source, address, protocol, port FROM refusals WHERE {which}");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_and_then(values, |row| {
            let (person, device): (String, String) = (row.get(1)?, row.get(2)?);
            let (source, address): (String, String) = (row.get(3)?, row.get(4)?);
            let address = address.parse().context("the refusals table contains a malformed address")?;
            Ok(Refusal {
                time: row.get::<_, i64>(0)?.cast_unsigned(),
                tags: devices::tags_of(&self.connection, &person, &device)?,
                person,
                device,
                source: source.parse().context("the refusals table contains a malformed address")?,
                to: Destination { address, protocol: row.get(5)?, port: row.get(6)? },
            })
        })?;
        rows.collect()
    }
}

/// Deletes refusals that are too old, and the oldest ones if there are too many.
pub(super) fn prune(transaction: &Transaction<'_>, now: i64) -> Result<()> {
    transaction.execute("DELETE FROM refusals WHERE time <= ?1", [now - REFUSALS_KEPT])?;
    let surplus = "DELETE FROM refusals WHERE id <= (SELECT id FROM refusals ORDER BY id DESC LIMIT 1 OFFSET ?1)";
    transaction.execute(surplus, [MOST_REFUSALS])?;
    Ok(())
}

/// Returns the number of the version that was recorded last; 0 if there is none.
pub(super) fn version(connection: &Connection) -> Result<i64> {
    Ok(last(connection)?.map_or(0, |(version, _)| version))
}

fn record(
    transaction: &Transaction<'_>,
    change: &PolicyChange,
    addresses: &dyn Fn(&str) -> Option<Vec<IpNet>>,
    now: u64,
) -> Result<i64> {
    let sha256 = digest(&change.text);
    let version = match last(transaction)? {
        Some((version, before)) if before == sha256 => version,
        _ => {
            receivers::follow(transaction, addresses, true)?;
            let operator = change.by.as_ref().map(Operator::name);
            transaction.execute(
                "INSERT INTO policies (time, operator, note, sha256, text) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![now.cast_signed(), operator, change.note, sha256, change.text],
            )?;
            transaction.last_insert_rowid()
        }
    };
    let detail = format!("version {version} (sha256 {sha256}), {}: {}", change.note, change.summary);
    let event = AuditEvent::new("policy").detail(detail);
    let event = if let Some(by) = &change.by { event.by(by) } else { event };
    event.write(transaction, now)?;
    Ok(version)
}

fn last(connection: &Connection) -> Result<Option<(i64, String)>> {
    let read = "SELECT version, sha256 FROM policies ORDER BY version DESC LIMIT 1";
    Ok(connection.query_row(read, [], |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
}

fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}
