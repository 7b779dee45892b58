//! The events that are written to the audit trails, and the entries that are read from them.

pub(super) mod chain;
mod dedup;
pub(super) mod exported;
pub(super) mod log;

use super::Database;
use anyhow::Result;
use chain::Trail;
use rusqlite::{Transaction, params};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::num::NonZeroU32;

/// The author of a change: the local user who runs a command, or the person who makes the change at the console or in a
/// session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Operator(String);

impl Operator {
    pub(super) fn name(&self) -> &str {
        &self.0
    }

    /// Returns the operator for an administrator at the console.
    pub(crate) fn at_console(person: &str) -> Self {
        Self(format!("{person} (console)"))
    }

    /// Returns the operator for a person who makes a call in a session, not at the console.
    pub(crate) fn in_session(person: &str) -> Self {
        Self(person.to_owned())
    }

    /// Returns the operator of this process: its user, or the user who became root by sudo.
    pub fn current() -> Self {
        let uid = nix::unistd::getuid();
        let before: Option<u32> = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
        Self(match before.filter(|_| uid.is_root()) {
            Some(before) => format!("uid {before} (sudo)"),
            None => format!("uid {uid}"),
        })
    }
}

/// An event to be written to an audit trail.
#[derive(Clone, Debug, Default)]
pub struct AuditEvent {
    event: &'static str,
    person: Option<String>,
    device: Option<String>,
    source: Option<IpAddr>,
    receiver: Option<String>,
    rule: Option<String>,
    detail: String,
    operator: Option<Operator>,
}

impl AuditEvent {
    /// Creates an event with this name, such as `login` or `denied`. Names are stable.
    pub fn new(event: &'static str) -> Self {
        Self { event, ..Self::default() }
    }

    /// Sets the person that the event is about.
    pub fn person(self, person: &str) -> Self {
        Self { person: Some(person.into()), ..self }
    }

    /// Sets the device that the event is about.
    pub fn device(self, device: &str) -> Self {
        Self { device: Some(device.into()), ..self }
    }

    /// Sets the source address of the event.
    pub fn source(self, source: IpAddr) -> Self {
        Self { source: Some(source), ..self }
    }

    /// Sets the receiver that the event is about.
    pub fn receiver(self, receiver: &str) -> Self {
        Self { receiver: Some(receiver.into()), ..self }
    }

    /// Sets the rule of the policy that decided the request.
    pub fn rule(self, rule: &str) -> Self {
        Self { rule: Some(rule.into()), ..self }
    }

    /// Sets the details of the event.
    pub fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }

    /// Sets the operator who caused the event.
    pub fn by(self, operator: &Operator) -> Self {
        Self { operator: Some(operator.clone()), ..self }
    }

    /// Returns the key by which repeated events are counted: name, person and source.
    pub(crate) fn subject(&self) -> Subject {
        Subject { event: self.event, person: self.person.clone(), source: self.source }
    }

    /// Returns the person that the event is about, or an empty string.
    pub(crate) fn about(&self) -> &str {
        self.person.as_deref().unwrap_or_default()
    }

    pub(super) fn name(&self) -> &'static str {
        self.event
    }

    pub(super) fn write(&self, transaction: &Transaction<'_>, now: u64) -> Result<()> {
        chain::append(transaction, self, now)
    }

    pub(super) fn entry(&self, id: i64, trail: Trail, time: u64) -> AuditEntry {
        let Self { event, person, device, source, receiver, rule, detail, operator } = self.clone();
        AuditEntry {
            id,
            trail: trail.name().into(),
            time,
            event: event.into(),
            person,
            device,
            source: source.map(|source| source.to_string()),
            receiver,
            rule,
            detail,
            operator: operator.map(|Operator(operator)| operator),
            hash: String::new(),
        }
    }
}

/// The key by which repeated events are counted: name of the event, person and source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    event: &'static str,
    person: Option<String>,
    source: Option<IpAddr>,
}

impl Subject {
    /// Returns the event which reports that `count` more events with this key occurred in the minute that began at
    /// `time`, in Unix seconds.
    pub(crate) fn left_out(self, count: u64, time: u64) -> AuditEvent {
        let detail = format!("{count} more in the minute from {time} were not recorded individually");
        let Self { event, person, source } = self;
        AuditEvent { event, person, source, detail, ..AuditEvent::default() }
    }
}

/// An entry of an audit trail, as it is listed and exported.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditEntry {
    /// The entry's number. Numbers rise across both trails.
    pub id: i64,
    /// Name of the entry's trail.
    pub trail: String,
    /// Time of the event, in Unix seconds.
    pub time: u64,
    /// Name of the event.
    pub event: String,
    /// The person that the event is about.
    pub person: Option<String>,
    /// The device that the event is about.
    pub device: Option<String>,
    /// The source address of the event.
    pub source: Option<String>,
    /// The receiver that the event is about.
    pub receiver: Option<String>,
    /// The rule of the policy that decided the request.
    pub rule: Option<String>,
    /// Details of the event.
    pub detail: String,
    /// The operator who caused the event, such as `uid 1000 (sudo)` or `alice (console)`.
    pub operator: Option<String>,
    /// The SHA-256 over the previous hash of the trail and this entry, in hex. Through the previous hash, it covers all
    /// earlier entries of the trail.
    pub hash: String,
}

/// Search criteria for the audit trails; an absent field matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// Matches entries about this person, and entries that this person caused at the console.
    pub person: Option<String>,
    /// Matches entries with this event name.
    pub event: Option<String>,
    /// Matches entries from this time on, in Unix seconds.
    pub since: Option<u64>,
    /// Matches entries up to this time, in Unix seconds.
    pub until: Option<u64>,
    /// Matches entries whose number is smaller than this number.
    pub before: Option<i64>,
    /// Maximum number of entries that the search reads, matching or not. This limit keeps a search for rare matches
    /// from reading a whole trail at once.
    pub most: Option<NonZeroU32>,
}

impl Database {
    /// Writes an event to its audit trail.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn audit(&mut self, event: &AuditEvent, now: u64) -> Result<()> {
        self.write_local(|transaction| event.write(transaction, now))
    }

    /// Writes events to their audit trails, in one transaction.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn audit_all(&mut self, events: &[AuditEvent], now: u64) -> Result<()> {
        self.write_local(|transaction| events.iter().try_for_each(|event| event.write(transaction, now)))
    }

    /// Returns the last `count` entries, oldest first; with `person`, only entries about this person.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn audit_entries(&self, person: Option<&str>, count: u32) -> Result<Vec<AuditEntry>> {
        let mut statement = self.connection.prepare(
            "SELECT * FROM (
                SELECT id, trail, time, event, person, device, source, receiver, rule, detail, operator, hash
                FROM audit WHERE ?1 IS NULL OR person = ?1 ORDER BY id DESC LIMIT ?2)
             ORDER BY id",
        )?;
        let rows = statement.query_map(params![person, count], chain::read)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Passes the entries that match a query to `take`, newest first, until `take` returns false. Returns the number of
    /// the entry before which the search can continue, or `None` if the search has reached the oldest entry.
    ///
    /// # Errors
    /// Fails if the database cannot be read, or `take` failed.
    pub fn find_audit_entries(
        &self,
        query: &AuditQuery,
        mut take: impl FnMut(AuditEntry) -> Result<bool>,
    ) -> Result<Option<i64>> {
        let AuditQuery { person, event, since, until, before, most } = query;
        let (first, last): (Option<i64>, Option<i64>) = self.connection.query_row(
            "SELECT (SELECT min(id) FROM audit), (SELECT max(id) FROM audit)",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        let (Some(first), Some(last)) = (first, last) else { return Ok(None) };
        let before = before.map_or(last + 1, |before| before.min(last + 1));
        let down_to = most.map_or(first, |most| before.saturating_sub(most.get().into()));
        let time = |time: &Option<u64>| time.map(|time| i64::try_from(time).unwrap_or(i64::MAX));
        let by = person.as_deref().map(Operator::at_console);
        let mut statement = self.connection.prepare_cached(
            "SELECT id, trail, time, event, person, device, source, receiver, rule, detail, operator, hash FROM audit
             WHERE (?1 IS NULL OR person = ?1 OR operator = ?2) AND (?3 IS NULL OR event = ?3)
                 AND time >= ?4 AND time <= ?5 AND id < ?6 AND id >= ?7
             ORDER BY id DESC",
        )?;
        let (since, until) = (time(since).unwrap_or(0), time(until).unwrap_or(i64::MAX));
        let by = by.as_ref().map(Operator::name);
        let mut rows = statement.query(params![person, by, event, since, until, before, down_to])?;
        while let Some(row) = rows.next()? {
            let entry = chain::read(row)?;
            let id = entry.id;
            if !take(entry)? {
                return Ok(Some(id).filter(|id| *id > first));
            }
        }
        Ok(Some(down_to).filter(|down_to| *down_to > first))
    }

    /// Returns the event names that occur among the latest 10 000 entries, sorted.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn audit_events(&self) -> Result<Vec<String>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT DISTINCT event FROM (SELECT event FROM audit ORDER BY id DESC LIMIT 10000) ORDER BY event",
        )?;
        let rows = statement.query_map([], |row| row.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Passes all entries with a number greater than `after` to `take`, oldest first.
    ///
    /// # Errors
    /// Fails if the database cannot be read, or `take` failed.
    pub fn each_audit_entry(&self, after: i64, mut take: impl FnMut(AuditEntry) -> Result<()>) -> Result<()> {
        let mut statement = self.connection.prepare(
            "SELECT id, trail, time, event, person, device, source, receiver, rule, detail, operator, hash
             FROM audit WHERE id > ?1 ORDER BY id",
        )?;
        let mut rows = statement.query([after])?;
        while let Some(row) = rows.next()? {
            take(chain::read(row)?)?;
        }
        Ok(())
    }
}
