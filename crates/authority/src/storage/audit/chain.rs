//! The audit trails as hash chains: each entry's hash covers its fields and the previous hash, so that verification
//! detects changes, gaps and reorderings. An attacker who can write the file can also build a whole new chain. An
//! operator detects this by comparing the chain with heads that were noted elsewhere.
//!
//! Refusals have a separate trail: callers can cause any number of them, and must not displace the record of completed
//! actions. Entries are removed only from the beginning of a trail, so that the rest is still a chain.

use super::super::Database;
use super::{AuditEntry, AuditEvent};
use anyhow::{Context, Result, bail};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// Maximum number of entries in the trail of refusals: about 150 MB.
const MOST_REFUSALS: u32 = 500_000;
/// Maximum number of entries that one transaction cuts from a trail.
const PIECE: i64 = 5000;
/// The name of the event that records a cut.
pub(super) const CUT_EVENT: &str = "audit_cut";
/// Minimum number of hex digits of the hash in a noted head: as many as the metrics show.
const LEAST_HASH: usize = 12;

/// The tables, and triggers that reject all changes except appending entries at the end and cutting them at the
/// beginning.
pub(in crate::storage) const SCHEMA: &str = "
CREATE TABLE audit (
    id INTEGER PRIMARY KEY, trail TEXT NOT NULL, time INTEGER NOT NULL, event TEXT NOT NULL,
    person TEXT, device TEXT, source TEXT, receiver TEXT, rule TEXT, detail TEXT NOT NULL, operator TEXT,
    hash BLOB NOT NULL
) STRICT;
CREATE INDEX audit_of_trail ON audit (trail, id);
CREATE TABLE audit_trails (
    trail TEXT PRIMARY KEY, genesis BLOB NOT NULL, cut_id INTEGER NOT NULL, cut_hash BLOB NOT NULL,
    head_id INTEGER NOT NULL, head_hash BLOB NOT NULL
) STRICT;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'audit entries are not changed'); END;
CREATE TRIGGER audit_is_cut_from_its_beginning BEFORE DELETE ON audit
    WHEN OLD.id > (SELECT cut_id FROM audit_trails WHERE trail = OLD.trail)
    BEGIN SELECT RAISE(ABORT, 'audit entries are not deleted'); END;
CREATE TRIGGER audit_grows_at_its_end BEFORE INSERT ON audit
    WHEN NEW.id <= (SELECT max(head_id) FROM audit_trails)
    BEGIN SELECT RAISE(ABORT, 'audit entries are added at the end'); END;
CREATE TRIGGER audit_trails_stay BEFORE DELETE ON audit_trails
    BEGIN SELECT RAISE(ABORT, 'audit trails are not deleted'); END;
CREATE TRIGGER audit_trails_go_on BEFORE UPDATE ON audit_trails
    WHEN NEW.trail <> OLD.trail OR NEW.genesis <> OLD.genesis OR NEW.head_id < OLD.head_id
        OR NEW.cut_id < OLD.cut_id OR NEW.cut_id <> OLD.cut_id AND NOT EXISTS (
            SELECT 1 FROM audit WHERE id = NEW.cut_id AND trail = NEW.trail AND hash = NEW.cut_hash)
    BEGIN SELECT RAISE(ABORT, 'audit trails only go on'); END;
";

/// The hash of an entry: SHA-256 over the previous hash of its trail and the entry.
pub type AuditHash = [u8; 32];

/// The audit trail to which an entry belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trail {
    /// Completed actions.
    Acts,
    /// Refused actions and actions that were only started. Callers can cause any number of them.
    Refusals,
}

impl Trail {
    /// Both trails.
    pub const ALL: [Self; 2] = [Self::Acts, Self::Refusals];

    /// Returns the trail to which events with this name are written.
    pub fn of(event: &str) -> Self {
        match event {
            "denied" | "login_began" | "login_failed" | "enrolment_failed" => Self::Refusals,
            _ => Self::Acts,
        }
    }

    /// Returns the trail's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Acts => "acts",
            Self::Refusals => "refusals",
        }
    }
}

/// The head of a trail: its last entry. An operator can note a head elsewhere, and check later whether the trail still
/// contains this entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The trail whose head this is.
    pub trail: Trail,
    /// Number of the last entry.
    pub id: i64,
    /// Hash of the last entry.
    pub hash: AuditHash,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.trail.name(), self.id, hex::encode(self.hash))
    }
}

/// A head that an operator noted, such as `acts:123:9f86d081884c…`, with at least the first 12 digits of the hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedHead {
    pub(super) trail: Trail,
    pub(super) id: i64,
    pub(super) hash: String,
}

impl FromStr for NotedHead {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || format!("`{text}` is not a head: write TRAIL:ID:HASH, as `audit head` prints it");
        let mut parts = text.splitn(3, ':');
        let (trail, id, hash) = (parts.next(), parts.next(), parts.next());
        let trail = Trail::ALL.into_iter().find(|known| Some(known.name()) == trail).with_context(wrong)?;
        let id = id.and_then(|id| id.parse().ok()).with_context(wrong)?;
        let hash = hash.with_context(wrong)?.to_ascii_lowercase();
        if hash.len() < LEAST_HASH || hash.len() > 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            bail!("{}; the hash must have at least {LEAST_HASH} digits", wrong());
        }
        Ok(Self { trail, id, hash })
    }
}

/// The result of verifying the trails.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All entries are valid. Contains their number.
    Whole(u64),
    /// An entry is invalid or missing. The text names the trail, the entry and the reason.
    Broken(String),
}

/// Writes the start values of both trails for the authority with this `identity`, the DER form of its CA certificate.
pub(in crate::storage) fn begin(transaction: &Transaction<'_>, identity: &[u8]) -> Result<()> {
    for trail in Trail::ALL {
        let genesis = genesis(trail, identity);
        transaction.execute(
            "INSERT INTO audit_trails (trail, genesis, cut_id, cut_hash, head_id, head_hash) VALUES (?1, ?2, 0, ?2, 0, \
             ?2)",
            params![trail.name(), genesis],
        )?;
    }
    Ok(())
}

/// Appends an entry to its trail.
pub(in crate::storage) fn append(transaction: &Transaction<'_>, event: &AuditEvent, now: u64) -> Result<()> {
    let trail = Trail::of(event.name());
    append_entry(transaction, trail.name(), |id| event.entry(id, trail, now))
}

/// Appends the entry of a transaction that was recorded in the cluster's log but not committed here. `fields` are
/// person, device, source, receiver, rule, detail and operator.
pub(in crate::storage) fn append_again(
    transaction: &Transaction<'_>,
    trail: &str,
    time: u64,
    event: &str,
    fields: [Option<String>; 7],
) -> Result<()> {
    let [person, device, source, receiver, rule, detail, operator] = fields;
    let (trail, event, detail) = (trail.to_owned(), event.to_owned(), detail.unwrap_or_default());
    append_entry(transaction, &trail.clone(), |id| AuditEntry {
        id,
        trail,
        time,
        event,
        person,
        device,
        source,
        receiver,
        rule,
        detail,
        operator,
        hash: String::new(),
    })
}

/// Appends entries to the trail of actions. Many of them take less time together, because the head is written once.
pub(in crate::storage) fn append_acts(
    transaction: &Transaction<'_>,
    events: impl IntoIterator<Item = AuditEvent>,
    now: u64,
) -> Result<()> {
    let trail = Trail::Acts;
    append_entries(transaction, trail.name(), events.into_iter().map(|event| move |id| event.entry(id, trail, now)))
}

fn append_entry(transaction: &Transaction<'_>, trail: &str, entry: impl FnOnce(i64) -> AuditEntry) -> Result<()> {
    append_entries(transaction, trail, [entry])
}

fn append_entries(
    transaction: &Transaction<'_>,
    trail: &str,
    entries: impl IntoIterator<Item = impl FnOnce(i64) -> AuditEntry>,
) -> Result<()> {
    let mut heads = transaction
        .prepare_cached("SELECT max(head_id), max(head_hash) FILTER (WHERE trail = ?1) FROM audit_trails")?;
    let (mut last, mut before): (i64, AuditHash) =
        heads.query_row([trail], |row| Ok((row.get(0)?, row.get(1)?))).context("the audit trails are missing")?;
    let mut add = transaction.prepare_cached(
        "INSERT INTO audit (id, trail, time, event, person, device, source, receiver, rule, detail, operator, hash)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?;
    let mut is_longer = false;
    for entry in entries {
        let entry = entry(last + 1);
        let hash = link(&before, &entry);
        let AuditEntry { id, time, event, person, device, source, receiver, rule, detail, operator, .. } = &entry;
        let time = time.cast_signed();
        add.execute(params![id, trail, time, event, person, device, source, receiver, rule, detail, operator, hash])?;
        (last, before, is_longer) = (*id, hash, true);
    }
    // Without a new entry, `last` is possibly the number of an entry of the other trail.
    if is_longer {
        let mut head =
            transaction.prepare_cached("UPDATE audit_trails SET head_id = ?2, head_hash = ?3 WHERE trail = ?1")?;
        head.execute(params![trail, last, before])?;
    }
    Ok(())
}

/// Cuts up to [`PIECE`] entries of each trail that are older than `oldest`, in Unix seconds, and refusals beyond
/// [`MOST_REFUSALS`]. Writes an entry about the cut. Reports whether anything was cut.
pub(in crate::storage) fn cut(transaction: &Transaction<'_>, oldest: i64, now: u64) -> Result<bool> {
    let mut changed = false;
    for trail in Trail::ALL {
        let first: Option<i64> =
            transaction.query_row("SELECT min(id) FROM audit WHERE trail = ?1", [trail.name()], |row| row.get(0))?;
        let Some(first) = first else { continue };
        // Clocks can be set back, so times need not rise: the cut ends before the first entry that must stay.
        let first_kept: Option<i64> = transaction
            .query_row(
                "SELECT id FROM audit WHERE trail = ?1 AND id < ?3 AND time > ?2 ORDER BY id LIMIT 1",
                params![trail.name(), oldest, first + PIECE],
                |row| row.get(0),
            )
            .optional()?;
        let surplus: Option<i64> = match trail {
            Trail::Acts => None,
            Trail::Refusals => transaction
                .query_row(
                    "SELECT id FROM audit WHERE trail = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2",
                    params![trail.name(), MOST_REFUSALS],
                    |row| row.get(0),
                )
                .optional()?,
        };
        let last: Option<(i64, AuditHash)> = transaction
            .query_row(
                "SELECT id, hash FROM audit WHERE trail = ?1 AND id < ?4 AND (id < ?2 OR id <= ?3)
                 ORDER BY id DESC LIMIT 1",
                params![trail.name(), first_kept.unwrap_or(i64::MAX), surplus.unwrap_or(0), first + PIECE],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()?;
        let Some((id, hash)) = last else { continue };
        changed = true;
        transaction.execute(
            "UPDATE audit_trails SET cut_id = ?2, cut_hash = ?3 WHERE trail = ?1",
            params![trail.name(), id, hash],
        )?;
        transaction.execute("DELETE FROM audit WHERE trail = ?1 AND id <= ?2", params![trail.name(), id])?;
    }
    if changed {
        append(transaction, &AuditEvent::new(CUT_EVENT).detail(cuts(transaction)?), now)?;
    }
    Ok(changed)
}

impl Database {
    /// Returns the heads of both trails.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn audit_heads(&self) -> Result<Vec<Head>> {
        let head = |trail: Trail| Ok(state(&self.connection, trail)?.head);
        Trail::ALL.into_iter().map(head).collect()
    }

    /// Reports whether a trail contains a head that was noted earlier. Also returns true if the trail was cut beyond
    /// this head, because the head can then not be compared any more. Does not verify the entries.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn has_head(&self, noted: &NotedHead) -> Result<bool> {
        let cut = state(&self.connection, noted.trail)?.cut;
        if noted.id < cut.id {
            return Ok(true);
        }
        let mut find = self.connection.prepare_cached("SELECT hash FROM audit WHERE trail = ?1 AND id = ?2")?;
        let found = find.query_row(params![noted.trail.name(), noted.id], |row| row.get::<_, AuditHash>(0));
        let found = if noted.id == cut.id { Some(cut.hash) } else { found.optional()? };
        Ok(found.is_some_and(|hash| hex::encode(hash).starts_with(&noted.hash)))
    }

    /// Verifies all entries of both trails, and checks that they contain the heads in `noted`. The trails begin with
    /// `identity`, the DER form of the authority's CA certificate. Changes nothing.
    ///
    /// # Errors
    /// Fails if the database cannot be read, or a noted head is older than the last entry that was cut from its trail.
    pub fn verify_audit(&mut self, identity: &[u8], noted: &[NotedHead]) -> Result<Verdict> {
        // All reads are in one transaction, so that entries which a running server appends at the same time do not look
        // like a fault.
        let transaction = self.connection.transaction()?;
        let mut entries = 0;
        for trail in Trail::ALL {
            match verify(&transaction, trail, identity, noted)? {
                Verdict::Whole(count) => entries += count,
                broken @ Verdict::Broken(_) => return Ok(broken),
            }
        }
        let said: Option<String> = transaction
            .query_row("SELECT detail FROM audit WHERE event = ?1 ORDER BY id DESC LIMIT 1", [CUT_EVENT], |row| {
                row.get(0)
            })
            .optional()?;
        let cuts = cuts(&transaction)?;
        let was_cut = Trail::ALL.iter().map(|trail| Ok(state(&transaction, *trail)?.cut.id > 0));
        let was_cut = was_cut.collect::<Result<Vec<_>>>()?.contains(&true);
        if was_cut && said.as_ref() != Some(&cuts) {
            return Ok(Verdict::Broken(format!(
                "the beginning: entries were removed, and no entry records the removal ({cuts})"
            )));
        }
        Ok(Verdict::Whole(entries))
    }
}

struct State {
    genesis: AuditHash,
    cut: Head,
    head: Head,
}

fn state(connection: &Connection, trail: Trail) -> Result<State> {
    let read = |row: &Row<'_>| {
        Ok(State {
            genesis: row.get(0)?,
            cut: Head { trail, id: row.get(1)?, hash: row.get(2)? },
            head: Head { trail, id: row.get(3)?, hash: row.get(4)? },
        })
    };
    let mut statement = connection
        .prepare_cached("SELECT genesis, cut_id, cut_hash, head_id, head_hash FROM audit_trails WHERE trail = ?1")?;
    let state = statement.query_row([trail.name()], read).optional()?;
    state.with_context(|| format!("the audit trail {} is missing", trail.name()))
}

fn verify(connection: &Connection, trail: Trail, identity: &[u8], noted: &[NotedHead]) -> Result<Verdict> {
    let State { genesis: begun, cut, head } = state(connection, trail)?;
    let name = trail.name();
    let broken = |what: String| Ok(Verdict::Broken(format!("trail {name}, {what}")));
    let expected = genesis(trail, identity);
    if begun != expected || cut.id == 0 && cut.hash != expected {
        return broken("the beginning: it belongs to another authority (see ca.pem)".into());
    }
    let noted: Vec<_> = noted.iter().filter(|noted| noted.trail == trail).collect();
    if let Some(noted) = noted.iter().find(|noted| noted.id < cut.id) {
        bail!(
            "entry {} of {name} was removed after it was noted: only heads from {} on can be compared",
            noted.id,
            cut.id
        );
    }
    let differs = |id: i64, hash: &AuditHash| {
        noted.iter().any(|noted| noted.id == id && !hex::encode(hash).starts_with(&noted.hash))
    };
    if differs(cut.id, &cut.hash) {
        return broken(format!("entry {}: it differs from the noted one", cut.id));
    }
    let mut statement = connection.prepare(
        "SELECT id, trail, time, event, person, device, source, receiver, rule, detail, operator, hash FROM audit
         WHERE trail = ?1 ORDER BY id",
    )?;
    let mut rows = statement.query([name])?;
    let (mut last, mut count) = (cut, 0);
    let mut found: Vec<i64> = vec![cut.id];
    while let Some(row) = rows.next()? {
        let entry = read(row)?;
        let hash = link(&last.hash, &entry);
        if entry.id <= last.id || hex::encode(hash) != entry.hash {
            return broken(format!("entry {}: its hash does not follow from the entries before it", entry.id));
        }
        if differs(entry.id, &hash) {
            return broken(format!("entry {}: it differs from the noted one", entry.id));
        }
        if noted.iter().any(|noted| noted.id == entry.id) {
            found.push(entry.id);
        }
        (last, count) = (Head { trail, id: entry.id, hash }, count + 1);
    }
    if last != head {
        return broken(format!("the end: entries after {} are missing; the last entry was {}", last.id, head.id));
    }
    if let Some(missing) = noted.iter().find(|noted| !found.contains(&noted.id)) {
        return broken(format!("entry {}: it was noted but is missing", missing.id));
    }
    Ok(Verdict::Whole(count))
}

/// Describes the cuts of both trails, in the words of the entry that records them.
fn cuts(connection: &Connection) -> Result<String> {
    let cuts = Trail::ALL.into_iter().map(|trail| Ok(state(connection, trail)?.cut.to_string()));
    Ok(format!("up to {}", cuts.collect::<Result<Vec<_>>>()?.join(" and ")))
}

pub(in crate::storage) fn read(row: &Row<'_>) -> rusqlite::Result<AuditEntry> {
    Ok(AuditEntry {
        id: row.get(0)?,
        trail: row.get(1)?,
        time: row.get::<_, i64>(2)?.cast_unsigned(),
        event: row.get(3)?,
        person: row.get(4)?,
        device: row.get(5)?,
        source: row.get(6)?,
        receiver: row.get(7)?,
        rule: row.get(8)?,
        detail: row.get(9)?,
        operator: row.get(10)?,
        hash: hex::encode(row.get::<_, AuditHash>(11)?),
    })
}

pub(super) fn genesis(trail: Trail, identity: &[u8]) -> AuditHash {
    let mut hash = Sha256::new();
    for part in [&b"vouchsafe audit v1"[..], trail.name().as_bytes(), identity] {
        field(&mut hash, Some(part));
    }
    hash.finalize().into()
}

/// Returns the hash of an entry: SHA-256 of the previous hash and of every field, each with its length.
pub(super) fn link(before: &AuditHash, entry: &AuditEntry) -> AuditHash {
    let AuditEntry { id, trail, time, event, person, device, source, receiver, rule, detail, operator, hash: _ } =
        entry;
    let mut hash = Sha256::new();
    hash.update(before);
    hash.update(id.to_be_bytes());
    hash.update(time.to_be_bytes());
    let texts = [Some(trail), Some(event), person.as_ref(), device.as_ref(), source.as_ref(), receiver.as_ref()];
    for text in texts.into_iter().chain([rule.as_ref(), Some(detail), operator.as_ref()]) {
        field(&mut hash, text.map(String::as_bytes));
    }
    hash.finalize().into()
}

fn field(hash: &mut Sha256, bytes: Option<&[u8]>) {
    match bytes {
        None => hash.update([0]),
        Some(bytes) => {
            hash.update([1]);
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        }
    }
}
