//! A member of a cluster of authorities. Each member has a whole copy of the database, and the members replicate
//! committed transactions through a log in etcd ([`Log`]). Only one member at a time has the *turn*: the right to
//! append an entry to the log. A transaction that changes replicated tables takes the turn, applies the entries that
//! this member lacks, runs, appends the changed rows as the next entry, and commits. So all transactions have one
//! order, and the log contains every committed transaction. A process always takes the turn first and SQLite's lock
//! second.

mod apply;
mod capture;
pub(super) mod clock;
mod entry;
mod format;
mod log;
mod seal;
mod snapshot;
#[cfg(test)]
mod tests;
mod unavailable;

pub use log::Log;
pub use seal::{ClusterId, ClusterKey};
pub use unavailable::Unavailable;

use super::Database;
use crate::login::credentials;
use crate::now;
use anyhow::{Context, Result, bail, ensure};
use capture::{Captured, Recorder};
use entry::{Block, Entry, EntryId, Kind, Value};
use log::{Appended, Head, Taken, Turn};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use std::time::{Duration, Instant};
use wire::Handle;

/// The tables of a member, from format 14 on. `replica` has one row if the authority is a member of a cluster. It
/// contains the last applied entry with its id, and the last entry that changed what decisions depend on. `applying` is
/// 1 while entries of other members are applied: these entries already contain the effects of triggers. `shared` has
/// the files and settings that all members share.
///
/// `unannounced`, `untold` and `rechecks` contain what this authority has to announce to its own listeners. Triggers
/// fill them, whichever member made the change. The counters in `recheck_marks` exist for the trigger.
pub(super) const SCHEMA: &str = "
CREATE TABLE replica (
    one INTEGER PRIMARY KEY CHECK (one = 1), cluster TEXT NOT NULL, member TEXT NOT NULL, applied INTEGER NOT NULL,
    last BLOB NOT NULL, decisive INTEGER NOT NULL, applying INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE shared (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;

CREATE TABLE numbering_14 (one INTEGER PRIMARY KEY CHECK (one = 1), key BLOB NOT NULL, next INTEGER NOT NULL) STRICT;
INSERT INTO numbering_14 (one, key, next) SELECT 1, key, next FROM numbering;
DROP TABLE numbering;
ALTER TABLE numbering_14 RENAME TO numbering;
CREATE TABLE score_changes_14 (
    one INTEGER PRIMARY KEY CHECK (one = 1), made INTEGER NOT NULL, evaluated INTEGER NOT NULL
) STRICT;
INSERT INTO score_changes_14 (one, made, evaluated) SELECT 1, made, evaluated FROM score_changes;
DROP TABLE score_changes;
ALTER TABLE score_changes_14 RENAME TO score_changes;

CREATE TABLE unannounced (handle INTEGER PRIMARY KEY) STRICT;
INSERT INTO unannounced (handle) SELECT handle FROM grants WHERE announced = 0;
DROP INDEX grants_to_announce;
CREATE TRIGGER grants_are_announced AFTER UPDATE OF announced ON grants
    WHEN NEW.announced = 0 AND OLD.announced IS NOT 0
    BEGIN INSERT OR IGNORE INTO unannounced (handle) VALUES (NEW.handle); END;

CREATE TABLE untold (session BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;
INSERT INTO untold (session) SELECT session FROM session_slots WHERE told = 0;
DROP INDEX ends_to_tell;
CREATE TRIGGER ends_are_told AFTER UPDATE OF told ON session_slots WHEN NEW.told = 0 AND OLD.told IS NOT 0
    BEGIN INSERT OR IGNORE INTO untold (session) VALUES (NEW.session); END;

CREATE TABLE recheck_marks (verifier TEXT PRIMARY KEY, mark INTEGER NOT NULL) STRICT;
CREATE TRIGGER rechecks_begin AFTER INSERT ON recheck_marks
    BEGIN INSERT OR IGNORE INTO rechecks (verifier) VALUES (NEW.verifier); END;
CREATE TRIGGER rechecks_go_on AFTER UPDATE OF mark ON recheck_marks
    BEGIN INSERT OR IGNORE INTO rechecks (verifier) VALUES (NEW.verifier); END;

DROP TRIGGER passkeys_end;
CREATE TRIGGER passkeys_end AFTER DELETE ON accounts
    WHEN NOT EXISTS (SELECT 1 FROM replica WHERE applying = 1)
BEGIN
    DELETE FROM passkeys WHERE person = OLD.person;
    DELETE FROM passkey_handles WHERE person = OLD.person;
END;
DROP TRIGGER provider_sessions_end;
CREATE TRIGGER provider_sessions_end AFTER DELETE ON sessions
    WHEN NOT EXISTS (SELECT 1 FROM replica WHERE applying = 1)
BEGIN
    UPDATE provider_sessions
        SET refresh_token = (SELECT refresh_token FROM provider_sessions WHERE token = OLD.token)
        WHERE token = (
            SELECT heir.token FROM provider_sessions AS own JOIN provider_sessions AS heir USING (login)
            WHERE own.token = OLD.token AND own.refresh_token IS NOT NULL AND heir.token <> OLD.token LIMIT 1);
    DELETE FROM provider_sessions WHERE token = OLD.token;
END;
";

/// Triggers of a member's connection for rows that arrive revoked or ended. An authority alone has no such rows.
const ARRIVING: &str = "
CREATE TEMP TRIGGER grants_arrive AFTER INSERT ON main.grants WHEN NEW.announced = 0
    BEGIN INSERT OR IGNORE INTO unannounced (handle) VALUES (NEW.handle); END;
CREATE TEMP TRIGGER ends_arrive AFTER INSERT ON main.session_slots WHEN NEW.told = 0
    BEGIN INSERT OR IGNORE INTO untold (session) VALUES (NEW.session); END;
";

/// Number of seconds after which the turn of a member that was stopped ends.
const LEASE: u32 = 2;
/// Time since the last renewal of a lease after which the member renews the lease before it uses the lease again.
const LEASE_RENEWED: Duration = Duration::from_millis(500);
/// Maximum time for which a transaction waits for the turn.
const WAIT: Duration = Duration::from_secs(4);
/// Time after which a waiting member ends the turn of another member, if that member has had the same turn all the
/// time. After an election in etcd, the lease of a stopped member lives for its whole length again. To wait for the end
/// of that lease would take too long.
const STALE: Duration = Duration::from_millis(1500);
/// Maximum time to wait for each answer of etcd to a request for the turn. If a request gets no answer, nobody knows
/// whether etcd recorded it, but the next request finds out. The first waits are short, because the server of etcd may
/// be cut off, and another member that was cut off with it may have the turn for [`STALE`]. When the member makes the
/// later requests, etcd has probably elected another leader.
const TURN_TIMES: [Duration; 3] = [Duration::from_millis(800), Duration::from_millis(900), Duration::from_millis(1500)];
/// The shortest and the longest pause before a waiting member checks again whether the turn is free.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// The changes in a member's database that this process did not make. Other members or other processes on this host
/// made them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The number of the last entry of the cluster's log that these changes include; 0 if there are no changes.
    pub to: u64,
    /// Whether everything may have changed, because a snapshot was applied.
    pub whole: bool,
    /// Whether a change ended a grant or session, or changed what decisions depend on.
    pub urgent: bool,
    /// Whether a change concerns what decisions depend on.
    pub decisive: bool,
    /// Whether another policy is in force.
    pub policy: bool,
    /// Whether the table `shared` changed, which contains the files and settings that all members share.
    pub shared: bool,
    /// Whether a change concerns data that the server keeps in memory or must announce.
    pub sessions: bool,
    /// The first handles of new grants.
    pub grants: Vec<Handle>,
}

impl Changes {
    /// Reports whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.to == 0
    }

    fn add(&mut self, number: u64, entry: &Entry) {
        self.to = number;
        self.urgent |= entry.urgent;
        self.decisive |= entry.decisive;
        for block in &entry.blocks {
            self.policy |= block.table == "policies";
            self.shared |= block.table == "shared";
            self.sessions |= is_in_memory(block);
            if block.table == "grants" && block.kind == Kind::Put {
                let at = block.columns.iter().position(|column| column == "handle");
                let handles = block.rows.iter().filter_map(|row| match at.and_then(|at| row.get(at)) {
                    Some(Value::Integer(handle)) => Some(Handle(handle.cast_unsigned())),
                    _ => None,
                });
                self.grants.extend(handles);
            }
        }
    }
}

/// Reports whether a change concerns data that the server keeps in memory or must announce.
fn is_in_memory(block: &Block) -> bool {
    let sets = |column: &str| block.columns.iter().any(|name| name == column);
    match block.table.as_str() {
        "sessions" | "verifiers" | "preferences" | "identities" | "device_tags" | "scores" | "recheck_marks" => true,
        "session_slots" => block.kind == Kind::Set && (sets("ended") || sets("told")),
        "consent_changes" => true,
        _ => is_revocation(block),
    }
}

fn is_revocation(block: &Block) -> bool {
    block.table == "grants" && block.kind == Kind::Set && block.columns.iter().any(|name| name == "revoked")
}

/// Reports whether other members must act on a change at once.
fn is_urgent(captured: &Captured) -> bool {
    captured.decisive
        || captured.blocks.iter().any(|block| {
            is_revocation(block)
                || matches!(block.table.as_str(), "recheck_marks" | "shared")
                || block.table == "sessions" && block.kind == Kind::Delete
        })
}

/// A member's position in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Position {
    /// The number of the last entry that the database contains.
    applied: u64,
    /// The id of this entry.
    last: Vec<u8>,
    /// The number of the last entry that changed what decisions depend on.
    decisive: u64,
}

impl Position {
    fn read(connection: &Connection) -> Result<Self> {
        let mut find = connection.prepare_cached("SELECT applied, last, decisive FROM replica")?;
        let found = find.query_row([], |row| {
            let [applied, decisive] = [row.get::<_, i64>(0)?, row.get(2)?].map(i64::cast_unsigned);
            Ok(Self { applied, last: row.get(1)?, decisive })
        });
        found.optional()?.context("this authority is not a member of a cluster any more")
    }

    /// Writes the position, and ends the application of entries.
    fn write(&self, transaction: &Transaction<'_>) -> Result<()> {
        let Self { applied, last, decisive } = self;
        let mut write =
            transaction.prepare_cached("UPDATE replica SET applied = ?1, last = ?2, decisive = ?3, applying = 0")?;
        write.execute(params![applied.cast_signed(), last, decisive.cast_signed()])?;
        Ok(())
    }
}

/// The part of an open database that exists only at a member of a cluster.
pub(super) struct Replica {
    log: Log,
    recorder: Recorder,
    /// Identifies this open database in the key `turn`.
    holder: String,
    lease: Option<(i64, Instant)>,
    /// Number of turns that this process has wanted.
    wanted: u64,
    /// The number of the last entry whose changes this process knows.
    seen: u64,
    changes: Changes,
    /// Number of entries for which this process waits longer than others before it uploads a snapshot.
    patience: u64,
}

impl Replica {
    fn attach(connection: &Connection, log: Log) -> Result<Self> {
        let recorder = Recorder::attach(connection)?;
        connection.execute_batch(ARRIVING)?;
        connection.set_prepared_statement_cache_capacity(256);
        // A power failure may take the latest transactions away, but never a part of one. The log has them, with their
        // audit entries, and the row in `replica` then also has its earlier state.
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        let random: [u8; 8] = credentials::random()?;
        let holder = format!("{} {}", log.member(), hex::encode(random));
        let seen = Position::read(connection)?.applied;
        let patience = u64::from(random[0]) * 2;
        Ok(Self { log, recorder, holder, lease: None, wanted: 0, seen, changes: Changes::default(), patience })
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    pub fn patience(&self) -> u64 {
        self.patience
    }

    /// Runs a transaction that may change replicated tables.
    pub fn write<T>(
        &mut self,
        connection: &mut Connection,
        work: impl FnOnce(&Transaction<'_>) -> Result<T>,
    ) -> Result<T> {
        let turn = self.take_turn()?;
        let (mut done, mut has_turn) = (None, true);
        let result = self.write_in_turn(connection, &turn, work, &mut done, &mut has_turn);
        if has_turn {
            self.log.give_back(&turn);
        }
        result?;
        done.context("a transaction was committed without a result")
    }

    /// Runs a transaction with the turn. Sets `has_turn` to false if the turn was given back with the entry.
    fn write_in_turn<T>(
        &mut self,
        connection: &mut Connection,
        turn: &Turn,
        work: impl FnOnce(&Transaction<'_>) -> Result<T>,
        done: &mut Option<T>,
        has_turn: &mut bool,
    ) -> Result<()> {
        self.follow(connection, &turn.head)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let position = Position::read(&transaction)?;
        ensure!(position.applied == turn.head.number, Unavailable::now("this member lost its turn to write".into()));
        let schema = self.log.formats().of_cluster(&transaction)?;
        self.recorder.begin();
        let worked = work(&transaction);
        let captured = self.recorder.end();
        *done = Some(worked?);
        if captured.blocks.is_empty() {
            transaction.commit()?;
            return Ok(());
        }
        let urgent = is_urgent(&captured);
        let blocks = self.log.formats().written(captured.blocks, schema)?;
        let id: EntryId = credentials::random()?;
        let next = Head { number: position.applied + 1, id: id.to_vec() };
        let decisive = if captured.decisive { next.number } else { position.decisive };
        Position { applied: next.number, last: next.id.clone(), decisive }.write(&transaction)?;
        let entry = Entry {
            id: next.id.clone(),
            before: position.last,
            member: self.log.member().into(),
            time: now(),
            schema,
            urgent,
            decisive: captured.decisive,
            blocks,
            audit: captured.audit,
        };
        let sealed = self.log.sealed(next.number, &entry)?;
        match self.log.append(turn, sealed, &next)? {
            Appended::Done => {
                *has_turn = false;
                // If this fails, the next transaction applies the entry like an entry of another member.
                transaction.commit().map_err(|error| Unavailable { why: error.to_string(), maybe_done: true })?;
                self.seen = next.number;
            }
            Appended::Lost => {
                *has_turn = false;
                bail!(Unavailable::now(format!(
                    "the transaction lost its turn to write to the cluster's log: it took longer than {LEASE} s, or \
                     another member could not wait any longer"
                )));
            }
            Appended::Unknown(why) => {
                // The rollback is right in both cases: if the log has the entry, this member applies it like an entry
                // of another member.
                drop(transaction);
                tracing::debug!("etcd did not answer whether it recorded an entry: {why}");
                let is_recorded = self.log.settle(turn, &next);
                *has_turn = is_recorded.is_err();
                if !is_recorded? {
                    bail!(Unavailable::now(why));
                }
                let followed = self.follow(connection, &next);
                followed.map_err(|error| Unavailable { why: format!("{error:#}"), maybe_done: true })?;
            }
        }
        Ok(())
    }

    /// Runs a transaction that changes only tables that are not replicated. So the transaction works without etcd, and
    /// does not wait for its turn to write to the cluster's log.
    pub fn write_local<T>(
        &self,
        connection: &mut Connection,
        work: impl FnOnce(&Transaction<'_>) -> Result<T>,
    ) -> Result<T> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        self.recorder.begin();
        let done = work(&transaction);
        let captured = self.recorder.end();
        let done = done?;
        if let Some(block) = captured.blocks.first() {
            bail!("a transaction of this member alone changed the table {}, which is replicated", block.table);
        }
        transaction.commit()?;
        Ok(done)
    }

    /// Applies the entries that other members have recorded.
    pub fn catch_up(&mut self, connection: &mut Connection) -> Result<()> {
        let head = self.log.read_head()?;
        self.follow(connection, &head)
    }

    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Waits for the turn and takes it.
    fn take_turn(&mut self) -> Result<Turn> {
        self.log.check_rest()?;
        let deadline = Instant::now() + WAIT;
        self.wanted += 1;
        let (mut pause, mut times) = (PAUSES.0, TURN_TIMES.iter());
        let mut patience = times.next().copied().unwrap_or(WAIT);
        // The turn that somebody else has, and the time at which this member saw it first.
        let mut seen: Option<(i64, Instant)> = None;
        loop {
            let lease = self.lease()?;
            let mut held = match self.log.take_turn(lease, (&self.holder, self.wanted), patience)? {
                Taken::Turn(turn) => return Ok(turn),
                Taken::Held(revision) => Some(revision),
                Taken::NoLease => {
                    self.lease = None;
                    None
                }
                Taken::Again => None,
                // If etcd has recorded the turn, the next attempt finds it.
                Taken::Unknown(why) => match times.next() {
                    Some(next) => {
                        patience = *next;
                        None
                    }
                    None => bail!(Unavailable::now(why)),
                },
            };
            // Each request for the turn is a write for etcd, even if another member has the turn. So this loop only
            // reads.
            while let Some(revision) = held.filter(|_| Instant::now() < deadline) {
                let (_, first) = *seen.insert(
                    seen.filter(|(before, _)| *before == revision).unwrap_or_else(|| (revision, Instant::now())),
                );
                if first.elapsed() >= STALE {
                    self.log.delete_turn(revision)?;
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSES.1);
                held = self.log.held_turn()?;
            }
            if Instant::now() >= deadline {
                bail!(Unavailable::now(
                    "this member did not get its turn to write to the cluster's log in time: other members were \
                     writing, or etcd answered late"
                        .into()
                ));
            }
        }
    }

    /// Returns a lease that lives for [`LEASE`] seconds after its last renewal. That renewal was less than
    /// [`LEASE_RENEWED`] ago.
    fn lease(&mut self) -> Result<i64> {
        let begun = Instant::now();
        let usable = self.lease.filter(|(_, renewed)| renewed.elapsed() < Duration::from_secs(LEASE.into()));
        if let Some((lease, renewed)) = usable
            && renewed.elapsed() < LEASE_RENEWED
        {
            return Ok(lease);
        }
        let lease = self.log.lease(usable.map(|(lease, _)| lease), LEASE)?;
        self.lease = Some((lease, begun));
        Ok(lease)
    }

    /// Applies the entries up to `head`, and notes the changes of the entries that this process does not know yet.
    fn follow(&mut self, connection: &mut Connection, head: &Head) -> Result<()> {
        let mut head = head.clone();
        loop {
            let position = Position::read(connection)?;
            if position.applied > head.number {
                // Another process of this host may have recorded an entry since the head was read.
                head = self.log.read_head()?;
            }
            if position.applied > head.number || position.applied == head.number && position.last != head.id {
                bail!(Unavailable::now(format!(
                    "etcd's log ends with entry {}, but this member has entry {}: etcd was restored from an old backup. \
                     docs/cluster.md says how to make a new cluster of the member that has the most entries; never \
                     join an older state",
                    head.number, position.applied
                )));
            }
            // This process also reads entries that another process of this host has applied, because it needs their
            // changes.
            let from = self.seen.min(position.applied) + 1;
            if from > head.number {
                return Ok(());
            }
            let read = self.log.entries(from, head.number)?;
            let present: Vec<_> = read.into_iter().map_while(|(number, entry)| Some((number, entry?))).collect();
            let Some((last, _)) = present.last() else {
                self.take_snapshot(connection, &position, from)?;
                continue;
            };
            let last = *last;
            if last > position.applied {
                apply::entries(connection, self.recorder.tables(), &present, &self.log)?;
            }
            for (number, entry) in &present {
                self.changes.add(*number, entry);
            }
            self.seen = last;
        }
    }

    /// Takes over the cluster's snapshot, because etcd no longer has entry `missing`.
    fn take_snapshot(&mut self, connection: &mut Connection, position: &Position, missing: u64) -> Result<()> {
        let mut applied = position.applied;
        if missing > applied {
            let fetched = snapshot::read(&self.log)?;
            ensure!(
                fetched.number() > applied,
                Unavailable::now(format!("etcd lacks entry {missing} of the cluster's log"))
            );
            fetched.put(&self.log, connection)?;
            applied = fetched.number();
            tracing::info!(number = applied, "took over the cluster's snapshot");
        }
        (self.changes.whole, self.changes.urgent, self.changes.to) = (true, true, applied);
        self.seen = applied;
        Ok(())
    }
}

impl Database {
    /// Opens the database of a member of a cluster, as [`Self::open`] does. Does not wait for etcd.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, or does not belong to this member of this cluster.
    pub fn open_member(path: &std::path::Path, log: Log) -> Result<Self> {
        let mut database = Self::open_file(path)?;
        let found = membership(&database.connection)?;
        let (cluster, member) = (log.cluster().to_string(), log.member());
        let is_own = found.as_ref().is_some_and(|found| (found.0.as_str(), found.1.as_str()) == (&cluster, member));
        ensure!(
            is_own,
            "{} is not the database of member {member} of the cluster {cluster}: `vouchsafe authority cluster join` \
             creates this database",
            path.display()
        );
        database.replica = Some(Replica::attach(&database.connection, log)?);
        database.syncs = false;
        Ok(database)
    }

    /// Reports whether this database is open as the database of a cluster's member.
    pub fn is_member(&self) -> bool {
        self.replica.is_some()
    }

    /// Applies the entries that other members have recorded. Returns the changes since the last call of this function
    /// or of [`Self::take_changes`].
    ///
    /// # Errors
    /// Fails if etcd has no majority, or the database cannot be written.
    pub fn catch_up(&mut self) -> Result<Changes> {
        if let Some(replica) = &mut self.replica {
            replica.catch_up(&mut self.connection)?;
        }
        Ok(self.take_changes())
    }

    /// Returns the changes by others that this process has applied since the last call.
    pub fn take_changes(&mut self) -> Changes {
        self.replica.as_mut().map(Replica::take_changes).unwrap_or_default()
    }

    /// Reports whether [`Self::take_changes`] would return any changes.
    pub(super) fn has_changes(&self) -> bool {
        self.replica.as_ref().is_some_and(Replica::has_changes)
    }

    /// Returns the number of the last entry of the cluster's log that the database contains; 0 if the authority is not
    /// a member of a cluster.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn applied(&self) -> Result<u64> {
        let mut find = self.connection.prepare_cached("SELECT applied FROM replica")?;
        Ok(find.query_row([], |row| row.get::<_, i64>(0)).optional()?.unwrap_or(0).cast_unsigned())
    }

    /// Turns the database into the database of an authority in no cluster. The state stays as this member has it.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn forget_cluster(&mut self) -> Result<()> {
        let (_, next) = self.numbering()?;
        self.replica = None;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute("UPDATE numbering SET next = ?1", [next])?;
        transaction.execute("DELETE FROM replica", [])?;
        transaction.commit()?;
        Ok(())
    }
}

/// Returns the names of cluster and member if the database belongs to a cluster.
pub(super) fn membership(connection: &Connection) -> Result<Option<(String, String)>> {
    let find = "SELECT cluster, member FROM replica";
    Ok(connection.query_row(find, [], |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
}

/// Returns the number of the last entry that changed what decisions depend on; 0 if the authority is in no cluster.
pub(super) fn decisive(transaction: &Transaction<'_>) -> Result<u64> {
    let mut find = transaction.prepare_cached("SELECT decisive FROM replica")?;
    Ok(find.query_row([], |row| row.get::<_, i64>(0)).optional()?.unwrap_or(0).cast_unsigned())
}
