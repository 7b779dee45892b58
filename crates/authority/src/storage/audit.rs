//! The audit trail: what happened, when, to whom.

use super::Database;
use anyhow::Result;
use rusqlite::{Transaction, params};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The local user who gives a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Operator(String);

impl Operator {
    /// Who runs this process: its user, or who became root by sudo.
    pub fn current() -> Self {
        let uid = nix::unistd::getuid();
        let before: Option<u32> = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
        Self(match before.filter(|_| uid.is_root()) {
            Some(before) => format!("uid {before} (sudo)"),
            None => format!("uid {uid}"),
        })
    }
}

/// Entries of refusals that are kept: some 100 MB.
const MOST_REFUSALS: u32 = 500_000;

/// Something to be written down.
#[derive(Clone, Debug, Default)]
pub struct AuditEvent {
    event: &'static str,
    person: Option<String>,
    device: Option<String>,
    source: Option<IpAddr>,
    detail: String,
    operator: Option<Operator>,
}

impl AuditEvent {
    /// An event of a stable name, such as `login` or `denied`.
    pub fn new(event: &'static str) -> Self {
        Self { event, ..Self::default() }
    }

    /// The person it is about.
    pub fn person(self, person: &str) -> Self {
        Self { person: Some(person.into()), ..self }
    }

    /// The device it is about.
    pub fn device(self, device: &str) -> Self {
        Self { device: Some(device.into()), ..self }
    }

    /// The address it came from.
    pub fn source(self, source: IpAddr) -> Self {
        Self { source: Some(source), ..self }
    }

    /// Particulars.
    pub fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }

    /// The local user whose command it was.
    pub fn by(self, operator: &Operator) -> Self {
        Self { operator: Some(operator.clone()), ..self }
    }

    /// Notes how many like it were not written down before it.
    pub(crate) fn and_left_out(self, count: u64) -> Self {
        Self { detail: format!("{} ({count} more before were not written down)", self.detail), ..self }
    }

    /// What it is counted by when it repeats.
    pub(crate) fn subject(&self) -> (&'static str, Option<String>, Option<IpAddr>) {
        (self.event, self.person.clone(), self.source)
    }

    pub(super) fn write(&self, transaction: &Transaction<'_>, now: u64) -> Result<()> {
        let mut statement = transaction.prepare_cached(
            "INSERT INTO audit (time, event, person, device, source, detail, operator)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        let source = self.source.map(|source| source.to_string());
        let operator = self.operator.as_ref().map(|Operator(operator)| operator);
        let Self { event, person, device, detail, .. } = self;
        statement.execute(params![now.cast_signed(), event, person, device, source, detail, operator])?;
        Ok(())
    }
}

/// Drops the oldest entries that strangers can cause at will, if there are more than [`MOST_REFUSALS`].
pub(super) fn prune_refusals(transaction: &Transaction<'_>) -> Result<()> {
    transaction.execute(
        "DELETE FROM audit WHERE event IN ('denied', 'login_failed', 'enrolment_failed') AND id <= (
            SELECT id FROM audit WHERE event IN ('denied', 'login_failed', 'enrolment_failed')
            ORDER BY id DESC LIMIT 1 OFFSET ?1)",
        [MOST_REFUSALS],
    )?;
    Ok(())
}

/// An entry as it is listed.
#[derive(Debug, Serialize)]
pub struct AuditEntry {
    /// Unix seconds.
    pub time: u64,
    /// The event's name.
    pub event: String,
    /// The person it is about.
    pub person: Option<String>,
    /// The device it is about.
    pub device: Option<String>,
    /// The address it came from.
    pub source: Option<String>,
    /// Particulars.
    pub detail: String,
    /// The local user whose command it was, such as `uid 1000 (sudo)`.
    pub operator: Option<String>,
}

impl Database {
    /// Writes an event down.
    pub fn audit(&mut self, event: &AuditEvent, now: u64) -> Result<()> {
        self.write_soon(|transaction| event.write(transaction, now))
    }

    /// The last `count` entries, oldest first; of one person if given.
    pub fn audit_entries(&self, person: Option<&str>, count: u32) -> Result<Vec<AuditEntry>> {
        let mut statement = self.connection.prepare(
            "SELECT time, event, person, device, source, detail, operator FROM audit WHERE ?1 IS NULL OR person = ?1
             ORDER BY id DESC LIMIT ?2",
        )?;
        let rows = statement.query_map(params![person, count], |row| {
            Ok(AuditEntry {
                time: row.get::<_, i64>(0)?.cast_unsigned(),
                event: row.get(1)?,
                person: row.get(2)?,
                device: row.get(3)?,
                source: row.get(4)?,
                detail: row.get(5)?,
                operator: row.get(6)?,
            })
        })?;
        let mut entries: Vec<_> = rows.collect::<Result<_, _>>()?;
        entries.reverse();
        Ok(entries)
    }
}
