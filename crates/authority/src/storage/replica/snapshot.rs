//! Snapshots of the replicated tables in etcd. A member begins with a snapshot if it is new, or if the log no longer
//! contains everything that it missed.

use super::capture::{self, Table};
use super::entry::{self, Block, EntryId, Kind, Value};
use super::log::{Head, Log, unavailable};
use super::{Position, Unavailable, apply};
use crate::login::credentials;
use crate::storage::Database;
use anyhow::{Context, Result, bail, ensure};
use etcd::{Compare, KeyValue, Op};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, TransactionBehavior};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Number of entries after which a member uploads a snapshot.
pub(super) const EVERY: u64 = 2000;
/// Number of entries before the snapshot that stay in the log, so that a member that is only slow need not read the
/// snapshot.
pub(super) const KEPT: u64 = 1000;
/// Approximate size in bytes of the rows of one piece, before it is compressed.
const PIECE: usize = 768 << 10;
/// Maximum number of attempts to read a snapshot. An attempt fails if another snapshot replaces this one meanwhile.
const ATTEMPTS: usize = 3;

/// Describes the current snapshot. The key `snapshot` in etcd contains this description in encrypted form.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    /// Number of the last entry that the snapshot contains.
    number: u64,
    id: String,
    decisive: u64,
    schema: i64,
    /// The name of the pieces. It contains the number and a random part, so that the pieces of two uploads cannot be
    /// mixed.
    name: String,
    pieces: u64,
}

impl Header {
    fn position(&self) -> Result<Position> {
        Ok(Position { applied: self.number, last: hex::decode(&self.id)?, decisive: self.decisive })
    }
}

impl Log {
    /// Creates the cluster in etcd. Its state is the state of this database, which becomes the database of the first
    /// member. No other process may have the database open.
    ///
    /// # Errors
    /// Fails if the database belongs to a cluster already or cannot be written, or etcd has no majority.
    pub fn create(&self, database: &mut Database) -> Result<()> {
        let id: EntryId = credentials::random()?;
        let head = Head { number: 0, id: id.to_vec() };
        create(self, &mut database.connection, &head)
    }

    /// Writes the state of the cluster to the database at `path`, which `Database::create` made. The database then
    /// belongs to this member.
    ///
    /// # Errors
    /// Fails if the cluster's snapshot cannot be read, or the database cannot be written.
    pub fn fetch_snapshot(&self, path: &Path) -> Result<()> {
        fetch(self, path)
    }

    /// Uploads a snapshot of a member's database unless there is a recent one. Then deletes the entries that no member
    /// needs any more.
    ///
    /// # Errors
    /// Fails if the database cannot be read, or etcd has no majority.
    pub fn upload_snapshot(&self, database: &Database) -> Result<()> {
        upload(self, &database.connection, EVERY)?;
        self.trim()
    }

    /// Deletes entries and snapshots that no member needs any more.
    ///
    /// # Errors
    /// Fails if etcd has no majority.
    pub fn trim(&self) -> Result<()> {
        trim(self, KEPT)
    }
}

/// A snapshot that was read completely.
pub(super) struct Fetched {
    header: Header,
    /// The pieces, decrypted and still compressed.
    pieces: Vec<Vec<u8>>,
}

impl Fetched {
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// Replaces the replicated tables by the snapshot. The tables that are not replicated stay.
    pub fn put(&self, log: &Log, connection: &mut Connection) -> Result<()> {
        let tables = capture::tables(connection)?;
        let replacement = apply::Replacement::begin(connection, tables)?;
        for piece in &self.pieces {
            replacement.add(&entry::decode::<Vec<Block>>(piece)?)?;
        }
        replacement.finish(&self.header.position()?, &log.cluster().to_string(), log.member())
    }
}

fn piece_key(log: &Log, name: &str, piece: u64) -> String {
    log.key(&format!("pieces/{name}/{piece:08}"))
}

fn piece_context(name: &str, piece: u64) -> String {
    format!("piece {name} {piece}")
}

fn header(log: &Log) -> Result<Option<(Header, KeyValue)>> {
    let Some(found) = log.get(&log.key("snapshot"))? else { return Ok(None) };
    let header: Header = serde_json::from_slice(&log.open("snapshot", &found.value)?)?;
    log.note_snapshot(header.number);
    Ok(Some((header, found)))
}

/// Reads the current snapshot.
pub(super) fn read(log: &Log) -> Result<Fetched> {
    for _ in 0..ATTEMPTS {
        let (header, _) = header(log)?
            .ok_or_else(|| Unavailable::now(format!("etcd has no snapshot of the cluster {}", log.cluster())))?;
        log.formats().check(header.schema, "the cluster's snapshot")?;
        let mut pieces = Vec::new();
        for piece in 0..header.pieces {
            let Some(found) = log.get(&piece_key(log, &header.name, piece))? else { break };
            pieces.push(log.open(&piece_context(&header.name, piece), &found.value)?);
        }
        if pieces.len() as u64 == header.pieces {
            return Ok(Fetched { header, pieces });
        }
    }
    bail!(Unavailable::now("the cluster's snapshot in etcd is incomplete".into()))
}

pub(super) fn fetch(log: &Log, path: &Path) -> Result<()> {
    let fetched = read(log)?;
    let mut connection = Connection::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let members: i64 = connection.query_row("SELECT count(*) FROM replica", [], |row| row.get(0))?;
    ensure!(members == 0, "{} belongs to a cluster already", path.display());
    fetched.put(log, &mut connection)?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(())
}

pub(super) fn create(log: &Log, connection: &mut Connection, head: &Head) -> Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let members: i64 = transaction.query_row("SELECT count(*) FROM replica", [], |row| row.get(0))?;
    ensure!(members == 0, "this authority belongs to a cluster already: `vouchsafe authority cluster status` shows it");
    transaction.execute(
        "INSERT INTO replica (one, cluster, member, applied, last, decisive) VALUES (1, ?1, ?2, 0, ?3, 0)",
        rusqlite::params![log.cluster().to_string(), log.member(), head.id],
    )?;
    let position = Position { applied: head.number, last: head.id.clone(), decisive: 0 };
    publish(log, &transaction, &position, None)?;
    let key = log.key("head");
    let put = Op::Put { key: key.clone(), value: head.text().into_bytes(), lease: None };
    let begun = log.txn(vec![Compare::CreateRevisionIs(key, 0)], vec![put], Vec::new()).map_err(unavailable)?;
    ensure!(begun.succeeded, "etcd contains the cluster {} already", log.cluster());
    transaction.commit()?;
    Ok(())
}

pub(super) fn upload(log: &Log, connection: &Connection, every: u64) -> Result<()> {
    // The copy must not change while it is read.
    let unchanged = connection.unchecked_transaction()?;
    let position = Position::read(&unchanged)?;
    let before = header(log)?;
    if before.as_ref().is_some_and(|(header, _)| header.number + every > position.applied) {
        return Ok(());
    }
    if publish(log, &unchanged, &position, before.map(|(_, found)| found))? {
        tracing::info!(number = position.applied, "uploaded a snapshot for the cluster");
    }
    Ok(())
}

/// Uploads the replicated tables as the current snapshot, unless another snapshot has been published since `before`.
fn publish(log: &Log, connection: &Connection, position: &Position, before: Option<KeyValue>) -> Result<bool> {
    let random: [u8; 8] = credentials::random()?;
    let name = format!("{:020}-{}", position.applied, hex::encode(random));
    let (mut pieces, schema) = (0, log.formats().of_cluster(connection)?);
    let columns = |table: &Table| log.formats().columns(table, schema);
    each_piece(connection, columns, |blocks| {
        let sealed = log.seal(&piece_context(&name, pieces), &entry::encode(&blocks)?)?;
        ensure!(sealed.len() <= super::log::ENTRY_MAX, "a row is too large for the cluster's snapshot");
        let put = Op::Put { key: piece_key(log, &name, pieces), value: sealed, lease: None };
        log.txn(Vec::new(), vec![put], Vec::new()).map_err(unavailable)?;
        pieces += 1;
        Ok(())
    })?;
    let id = hex::encode(&position.last);
    let header = Header { number: position.applied, id, decisive: position.decisive, schema, name, pieces };
    let key = log.key("snapshot");
    let compare = match before {
        Some(before) => Compare::ModRevisionIs(key.clone(), before.mod_revision),
        None => Compare::CreateRevisionIs(key.clone(), 0),
    };
    let value = log.seal("snapshot", &serde_json::to_vec(&header)?)?;
    let reply = log.txn(vec![compare], vec![Op::Put { key, value, lease: None }], Vec::new()).map_err(unavailable)?;
    if reply.succeeded {
        log.note_snapshot(header.number);
    } else {
        let prefix = log.key(&format!("pieces/{}", header.name));
        delete(log, format!("{prefix}/"), format!("{prefix}0"))?;
    }
    Ok(reply.succeeded)
}

/// Passes the rows of all replicated tables to `take`, in pieces of limited size. `columns` returns the columns of a
/// table to pass, or `None` to leave the table out.
fn each_piece(
    connection: &Connection,
    columns: impl Fn(&Table) -> Option<Vec<String>>,
    mut take: impl FnMut(Vec<Block>) -> Result<()>,
) -> Result<()> {
    let (mut blocks, mut size) = (Vec::new(), 0);
    for table in capture::tables(connection)? {
        let Some(columns) = columns(&table) else { continue };
        let quoted = columns.iter().map(|column| format!("\"{column}\"")).collect::<Vec<_>>().join(", ");
        let mut statement = connection.prepare(&format!("SELECT {quoted} FROM main.\"{}\"", table.name))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let mut values: Vec<Value> = Vec::with_capacity(columns.len());
            for at in 0..columns.len() {
                let value = row.get_ref(at)?;
                size += match value {
                    ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len() + 8,
                    _ => 16,
                };
                values.push(value.into());
            }
            entry::push(&mut blocks, &table.name, Kind::Put, columns.clone(), values);
            if size >= PIECE {
                take(std::mem::take(&mut blocks))?;
                size = 0;
            }
        }
    }
    if blocks.is_empty() { Ok(()) } else { take(blocks) }
}

/// Deletes the entries that the snapshot contains, except the last `kept` of them, and the pieces of earlier snapshots.
pub(super) fn trim(log: &Log, kept: u64) -> Result<()> {
    let Some((header, _)) = header(log)? else { return Ok(()) };
    delete(log, log.entry_key(0), log.entry_key((header.number + 1).saturating_sub(kept)))?;
    // These are the pieces of earlier snapshots, and of uploads that were given up. Pieces with later names stay,
    // because an upload may be under way.
    delete(log, log.key("pieces/"), log.key(&format!("pieces/{}/", header.name)))
}

/// Deletes the keys from `key` on up to `end`, without `end`.
fn delete(log: &Log, key: String, end: String) -> Result<()> {
    log.txn(Vec::new(), vec![Op::DeleteRange { key, end }], Vec::new()).map_err(unavailable)?;
    Ok(())
}

/// Reports whether a member that has applied `applied` entries should upload a snapshot. `later` is the number of
/// entries for which this member waits longer than others.
pub(super) fn is_due(log: &Log, applied: u64, later: u64) -> bool {
    applied >= log.known_snapshot() + EVERY + later
}

impl Database {
    /// Reports whether the cluster's snapshot is so old that this member should upload a new one. Members reach this
    /// state at different times, so that usually only one of them uploads.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn snapshot_is_due(&self) -> Result<bool> {
        let Some(replica) = &self.replica else { return Ok(false) };
        let applied = Position::read(&self.connection)?.applied;
        Ok(is_due(replica.log(), applied, replica.patience()))
    }
}
