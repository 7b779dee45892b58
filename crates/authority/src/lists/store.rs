//! The file of lists, `lists.db`: an SQLite database beside the authority's own.
//!
//! A row has the entries of one address or network, in about four bytes each. An import writes its rows under a new
//! generation, in many transactions; the last transaction makes this generation the list. So a list is replaced as a
//! whole or not at all, whenever the import is interrupted. Changes are rows of their own, which the server later
//! merges into the rows of their addresses ([`Store::fold`]).
//!
//! One process at a time changes lists ([`Store::lock`]). The transaction of a change also notes the change in the
//! file. Afterwards, [`Store::settle_audit`] writes it to the audit trail. So no change can lack its audit entry, and
//! an interruption can at most write an entry twice.

use super::entry::{Group, Terms, key, net};
use crate::Directory;
use crate::storage::{AuditEvent, Database, Operator};
use anyhow::{Context, Result, bail, ensure};
use ipnet::IpNet;
use nix::fcntl::OFlag;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior, params};
use serde::Serialize;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const VERSION: i64 = 2;
const SCHEMA: &str = "
CREATE TABLE lists (list TEXT PRIMARY KEY, generation INTEGER NOT NULL UNIQUE) STRICT;
CREATE TABLE names (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE texts (number INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE receivers (generation INTEGER NOT NULL, receiver BLOB NOT NULL, entries BLOB NOT NULL) STRICT;
CREATE UNIQUE INDEX receivers_by_key ON receivers (generation, receiver);
CREATE TABLE changes (
    revision INTEGER PRIMARY KEY, generation INTEGER NOT NULL, receiver BLOB NOT NULL, sender INTEGER NOT NULL,
    terms BLOB
) STRICT;
CREATE TABLE ends (generation INTEGER NOT NULL, hours INTEGER NOT NULL, PRIMARY KEY (generation, hours)) STRICT;
CREATE INDEX changes_by_key ON changes (generation, receiver);
CREATE TABLE counters (only INTEGER PRIMARY KEY CHECK (only = 0), revision INTEGER NOT NULL, generation INTEGER NOT NULL)
    STRICT;
INSERT INTO counters VALUES (0, 0, 0);
CREATE TABLE unaudited (number INTEGER PRIMARY KEY, time INTEGER NOT NULL, operator TEXT NOT NULL, detail TEXT NOT NULL)
    STRICT;
";
/// From format 2 of the file on: `count` is the number of sweeps (see `sweep.rs`), `name` and `text` are the highest
/// numbers of a name and a text at the last sweep, and `kept` is how many names and texts it has kept.
const FORMAT_2: &str = "
CREATE TABLE sweeps (
    only INTEGER PRIMARY KEY CHECK (only = 0), count INTEGER NOT NULL, name INTEGER NOT NULL, text INTEGER NOT NULL,
    kept INTEGER NOT NULL
) STRICT;
INSERT INTO sweeps VALUES (0, 0, 0, 0, 0);
";

/// Name of the file.
const FILE: &str = "lists.db";
/// Name of the lock that a process holds while it changes lists.
const LOCK: &str = "lists.lock";
/// Time for which a command waits for others that change lists, and the time between two attempts to take the lock.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
/// Number of rows that one transaction deletes or merges.
const PIECE: usize = 256;

/// The file that contains the entries of all lists.
pub struct Store {
    pub(super) connection: Connection,
}

/// The effect of a change on one entry: the terms of the new entry, or `None` if the entry is removed.
pub(super) struct Change {
    pub(super) generation: i64,
    pub(super) receiver: IpNet,
    pub(super) sender: u32,
    pub(super) terms: Option<Terms>,
}

/// A list, without its entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListSummary {
    /// Name of the list.
    pub list: String,
    /// Number of addresses and networks that have entries from the last import, or from changes that were merged.
    pub receivers: u64,
    /// Number of changes that are not merged yet.
    pub changes: u64,
}

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListEntry {
    /// Name of the list.
    pub list: String,
    /// The address or network.
    pub to: IpNet,
    /// The sender, such as `person:alice`.
    pub who: String,
    /// Whether the entry denies.
    pub deny: bool,
    /// Priority of the entry.
    pub priority: u16,
    /// The time at which the entry ends, in Unix seconds; `None` if it does not end.
    pub until: Option<u64>,
    /// The note of the entry.
    pub note: String,
    /// The operator who made the entry.
    pub author: String,
    /// When the entry was made, in Unix seconds.
    pub time: u64,
    /// Number of the change that made the entry.
    pub revision: u64,
}

impl Store {
    /// Opens the file; `None` if nobody has imported a list yet.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if this version of Vouchsafe does not read its format.
    pub fn open(directory: &Directory) -> Result<Option<Self>> {
        let path = path(directory);
        if !path.exists() {
            return Ok(None);
        }
        let mut connection = connect(&path)?;
        match version(&connection)? {
            // Its creation was interrupted.
            0 => Ok(None),
            1 => {
                upgrade(&mut connection)?;
                Ok(Some(Self { connection }))
            }
            VERSION => Ok(Some(Self { connection })),
            other => bail!(
                "{} has format {other}, but this version of Vouchsafe reads formats 1 to {VERSION} only: use the \
                 version that wrote it",
                path.display()
            ),
        }
    }

    /// Opens the file, and creates it first if it does not exist. The caller must hold the [lock](Self::lock).
    ///
    /// # Errors
    /// Fails if the file cannot be created, or for the reasons of [`Self::open`].
    pub fn create(directory: &Directory) -> Result<Self> {
        if let Some(store) = Self::open(directory)? {
            return Ok(store);
        }
        let path = path(directory);
        drop(open_file(directory, &path)?);
        let mut connection = connect(&path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(SCHEMA)?;
        transaction.execute_batch(FORMAT_2)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()?;
        Ok(Self { connection })
    }

    /// Takes the lock that a process holds while it changes lists. The holder must not wait for anybody's input.
    ///
    /// # Errors
    /// Fails if another process holds the lock, or the lock file cannot be opened.
    pub fn lock(directory: &Directory) -> Result<File> {
        let path = directory.path().join(LOCK);
        let file = open_file(directory, &path)?;
        match file.try_lock() {
            Ok(()) => {
                let id = std::process::id().to_string();
                // For messages only, so it does not matter if the disk is full.
                let _ = file.set_len(0).and_then(|()| (&file).write_all(id.as_bytes()));
                Ok(file)
            }
            Err(TryLockError::WouldBlock) => {
                let mut id = String::new();
                let is_read = (&file).take(20).read_to_string(&mut id).is_ok();
                let holder = id.parse::<u32>().ok().filter(|_| is_read);
                let holder = holder.map(|id| format!(" (process {id})")).unwrap_or_default();
                bail!("another command changes lists{holder}: wait until it has ended, then try again")
            }
            Err(TryLockError::Error(error)) => bail!("cannot lock {}: {error}", path.display()),
        }
    }

    /// Takes the lock as [`Self::lock`] does. If another process holds it, tries again for some seconds.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Self::lock`].
    pub async fn lock_soon(directory: &Directory) -> Result<File> {
        let end = Instant::now() + PATIENCE;
        loop {
            match Self::lock(directory) {
                Err(_) if Instant::now() < end => tokio::time::sleep(PAUSE).await,
                done => return done,
            }
        }
    }

    /// Returns a number that changes when another process has written to the file.
    pub(super) fn version(&self) -> Result<i64> {
        Ok(self.connection.pragma_query_value(None, "data_version", |row| row.get(0))?)
    }

    /// Returns the lists, sorted by name.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn summaries(&self) -> Result<Vec<ListSummary>> {
        let mut statement = self.connection.prepare(
            "SELECT list, (SELECT count(*) FROM receivers WHERE generation = lists.generation),
                 (SELECT count(*) FROM changes WHERE generation = lists.generation)
             FROM lists ORDER BY list",
        )?;
        let rows = statement.query_map([], |row| {
            let [receivers, changes] = [row.get::<_, i64>(1)?, row.get::<_, i64>(2)?].map(i64::cast_unsigned);
            Ok(ListSummary { list: row.get(0)?, receivers, changes })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the generation of each list.
    pub(super) fn generations(&self) -> Result<Vec<(String, i64)>> {
        let mut statement = self.connection.prepare_cached("SELECT list, generation FROM lists")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the generation of a list.
    pub(super) fn generation(&self, list: &str) -> Result<Option<i64>> {
        let mut statement = self.connection.prepare_cached("SELECT generation FROM lists WHERE list = ?1")?;
        Ok(statement.query_row([list], |row| row.get(0)).optional()?)
    }

    /// Calls `each` with every name whose number is above `after`.
    pub(super) fn names(&self, after: u32, mut each: impl FnMut(u32, &str)) -> Result<()> {
        let mut statement = self.connection.prepare_cached("SELECT number, name FROM names WHERE number > ?1")?;
        let mut rows = statement.query([after])?;
        while let Some(row) = rows.next()? {
            each(row.get(0)?, row.get_ref(1)?.as_str()?);
        }
        Ok(())
    }

    /// Returns a name by its number.
    pub(super) fn name(&self, number: u32) -> Result<String> {
        if number == 0 {
            return Ok("everyone".into());
        }
        let mut statement = self.connection.prepare_cached("SELECT name FROM names WHERE number = ?1")?;
        Ok(statement.query_row([number], |row| row.get(0))?)
    }

    fn text(&self, number: u32) -> Result<String> {
        let mut statement = self.connection.prepare_cached("SELECT text FROM texts WHERE number = ?1")?;
        Ok(statement.query_row([number], |row| row.get(0)).optional()?.unwrap_or_default())
    }

    /// Returns the entries of an address or network, with the changes up to a revision.
    pub(super) fn groups(&self, generation: i64, receiver: &[u8], through: i64) -> Result<Vec<Group>> {
        let mut statement =
            self.connection.prepare_cached("SELECT entries FROM receivers WHERE generation = ?1 AND receiver = ?2")?;
        let entries = statement.query_row(params![generation, receiver], |row| row.get::<_, Vec<u8>>(0)).optional()?;
        self.with_changes(generation, receiver, through, &entries.unwrap_or_default())
    }

    fn with_changes(&self, generation: i64, receiver: &[u8], through: i64, entries: &[u8]) -> Result<Vec<Group>> {
        let mut groups = Group::decode(entries)?;
        let mut statement = self.connection.prepare_cached(
            "SELECT sender, terms FROM changes WHERE generation = ?1 AND receiver = ?2 AND revision <= ?3
             ORDER BY revision",
        )?;
        let mut rows = statement.query(params![generation, receiver, through])?;
        while let Some(row) = rows.next()? {
            let terms = row.get_ref(1)?.as_blob_or_null()?;
            Group::apply(&mut groups, row.get(0)?, terms.map(|mut terms| Terms::decode(&mut terms)).transpose()?);
        }
        Ok(groups)
    }

    /// Calls `each` with the entries of every address and network of a generation.
    pub(super) fn all(&self, generation: i64, mut each: impl FnMut(IpNet, Vec<Group>) -> Result<()>) -> Result<()> {
        let mut statement = self.connection.prepare("SELECT receiver, entries FROM receivers WHERE generation = ?1")?;
        let mut rows = statement.query([generation])?;
        while let Some(row) = rows.next()? {
            let (receiver, entries) = (row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?);
            each(net(receiver)?, self.with_changes(generation, receiver, i64::MAX, entries)?)?;
        }
        let mut statement = self.connection.prepare(
            "SELECT DISTINCT receiver FROM changes WHERE generation = ?1 AND NOT EXISTS
             (SELECT 1 FROM receivers WHERE generation = ?1 AND receiver = changes.receiver)",
        )?;
        let mut rows = statement.query([generation])?;
        while let Some(row) = rows.next()? {
            let receiver = row.get_ref(0)?.as_blob()?;
            each(net(receiver)?, self.with_changes(generation, receiver, i64::MAX, &[])?)?;
        }
        Ok(())
    }

    /// Returns the number of the last change.
    pub(super) fn revision(&self) -> Result<i64> {
        Ok(self.connection.query_row("SELECT revision FROM counters", [], |row| row.get(0))?)
    }

    /// Calls `each` with every change after a revision, in their order.
    pub(super) fn changes(&self, after: i64, mut each: impl FnMut(Change) -> Result<()>) -> Result<()> {
        let mut statement = self.connection.prepare_cached(
            "SELECT generation, receiver, sender, terms FROM changes WHERE revision > ?1 ORDER BY revision",
        )?;
        let mut rows = statement.query([after])?;
        while let Some(row) = rows.next()? {
            let terms = row.get_ref(3)?.as_blob_or_null()?;
            each(Change {
                generation: row.get(0)?,
                receiver: net(row.get_ref(1)?.as_blob()?)?,
                sender: row.get(2)?,
                terms: terms.map(|mut terms| Terms::decode(&mut terms)).transpose()?,
            })?;
        }
        Ok(())
    }

    /// Returns the entries of a list for exactly this address or network.
    ///
    /// # Errors
    /// Fails if there is no such list, or the file cannot be read.
    pub fn entries(&self, list: &str, to: IpNet) -> Result<Vec<ListEntry>> {
        let generation = self.generation(list)?.with_context(|| no_list(list))?;
        let mut entries = Vec::new();
        for Group { terms, senders } in self.groups(generation, &key(to), i64::MAX)? {
            let Terms { revision, deny, priority, note, author, time, .. } = terms;
            let (until, note, author) = (terms.until(), self.text(note)?, self.text(author)?);
            for sender in senders {
                let (list, note, author) = (list.to_owned(), note.clone(), author.clone());
                let who = self.name(sender)?;
                entries.push(ListEntry { list, to, who, deny, priority, until, note, author, time, revision });
            }
        }
        entries.sort_by(|one, other| one.who.cmp(&other.who));
        Ok(entries)
    }

    /// Finds the prefixes that contain an address and have entries in a list. Returns each prefix with the list's name
    /// and generation.
    pub(super) fn around(&self, address: IpAddr) -> Result<Vec<(String, i64, IpNet)>> {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let mut found = Vec::new();
        for (list, generation) in self.generations()? {
            for length in 0..=longest {
                let net = IpNet::new(address, length)?.trunc();
                if !self.groups(generation, &key(net), i64::MAX)?.is_empty() {
                    found.push((list.clone(), generation, net));
                }
            }
        }
        Ok(found)
    }

    /// Adds to the audit trail the missing entries about changes of lists. The caller must hold the [lock](Self::lock).
    ///
    /// # Errors
    /// Fails if a database cannot be read or written.
    pub fn settle_audit(&self, database: &mut Database) -> Result<()> {
        let mut statement =
            self.connection.prepare("SELECT number, time, operator, detail FROM unaudited ORDER BY number")?;
        let rows = statement.query_map([], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?, row.get::<_, String>(3)?))
        })?;
        for (number, time, operator, detail) in rows.collect::<Result<Vec<_>, _>>()? {
            let by: Operator = serde_json::from_str(&operator)?;
            let event = AuditEvent::new("list_changed").detail(detail).by(&by);
            database.audit(&event, u64::try_from(time)?)?;
            self.connection.execute("DELETE FROM unaudited WHERE number = ?1", [number])?;
        }
        Ok(())
    }

    /// Reports whether changes wait for [`Self::settle_audit`].
    pub(super) fn is_unaudited(&self) -> Result<bool> {
        Ok(self.connection.query_row("SELECT EXISTS (SELECT 1 FROM unaudited)", [], |row| row.get(0))?)
    }

    /// If there are many changes, merges those up to a revision into the rows of their addresses. Stops at the time
    /// `until`. The server calls this for changes that it has followed.
    pub(super) fn fold(&mut self, through: i64, until: Instant) -> Result<()> {
        let span = "SELECT coalesce(max(revision) - min(revision), 0) FROM changes";
        let changes: i64 = self.connection.query_row(span, [], |row| row.get(0))?;
        let rows: i64 =
            self.connection.query_row("SELECT coalesce(max(rowid), 0) FROM receivers", [], |row| row.get(0))?;
        // A row costs as much to write as a hundred changes, so each row gets several changes at once.
        if changes < (16 * rows).max(1 << 16) {
            return Ok(());
        }
        while Instant::now() < until && self.fold_piece(through)? > 0 {}
        Ok(())
    }

    /// Merges the changes of some addresses. Returns their number.
    pub(super) fn fold_piece(&mut self, through: i64) -> Result<usize> {
        self.in_transaction(|store| {
            let mut statement = store.connection.prepare_cached(
                "SELECT DISTINCT generation, receiver FROM changes WHERE revision <= ?1
                 ORDER BY generation, receiver LIMIT ?2",
            )?;
            let rows = statement.query_map(params![through, PIECE as i64], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let rows: Vec<(i64, Vec<u8>)> = rows.collect::<Result<_, _>>()?;
            for (generation, receiver) in &rows {
                let groups = store.groups(*generation, receiver, through)?;
                store.write_groups(*generation, receiver, &groups)?;
                store.connection.execute(
                    "DELETE FROM changes WHERE generation = ?1 AND receiver = ?2 AND revision <= ?3",
                    params![generation, receiver, through],
                )?;
            }
            Ok(rows.len())
        })
    }

    /// Writes the entries of an address or network.
    pub(super) fn write_groups(&self, generation: i64, receiver: &[u8], groups: &[Group]) -> Result<()> {
        let mut statement = self.connection.prepare_cached(
            "INSERT INTO receivers (generation, receiver, entries) VALUES (?1, ?2, ?3)
             ON CONFLICT (generation, receiver) DO UPDATE SET entries = excluded.entries",
        )?;
        statement.execute(params![generation, receiver, Group::encode(groups)])?;
        Ok(())
    }

    /// Deletes the rows of generations that belong to no list any more: those of replaced lists and of interrupted
    /// imports. The caller must hold the [lock](Self::lock).
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn purge(&mut self) -> Result<()> {
        let mut from = i64::MIN;
        loop {
            let next = "SELECT min(generation) FROM receivers WHERE generation > ?1";
            let next: Option<i64> = self.connection.query_row(next, [from], |row| row.get(0))?;
            let Some(generation) = next else { break };
            from = generation;
            let is_list = "SELECT EXISTS (SELECT 1 FROM lists WHERE generation = ?1)";
            if self.connection.query_row(is_list, [generation], |row| row.get::<_, bool>(0))? {
                continue;
            }
            let piece = "DELETE FROM receivers WHERE rowid IN
                (SELECT rowid FROM receivers WHERE generation = ?1 LIMIT ?2)";
            while self.connection.execute(piece, params![generation, PIECE as i64])? == PIECE {}
        }
        Ok(())
    }

    /// Calls `work` in a transaction.
    pub(super) fn in_transaction<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        match work(self) {
            Ok(done) => {
                self.connection.execute_batch("COMMIT")?;
                Ok(done)
            }
            Err(error) => {
                // If this fails, the connection is closed soon, which also undoes the transaction.
                let _ = self.connection.execute_batch("ROLLBACK");
                Err(error)
            }
        }
    }

    /// Copies the file for a backup, consistently.
    ///
    /// # Errors
    /// Fails if a file cannot be read or written.
    pub fn copy_to(&self, path: &Path) -> Result<()> {
        self.connection.execute("VACUUM INTO ?1", [path.to_str().context("the path is not UTF-8")?])?;
        Ok(())
    }
}

/// Returns the message that there is no list with this name.
pub(super) fn no_list(list: &str) -> String {
    let list = list.escape_debug();
    format!("there is no list `{list}`: `vouchsafe authority lists import {list} FILE` makes it")
}

fn path(directory: &Directory) -> PathBuf {
    directory.path().join(FILE)
}

fn version(connection: &Connection) -> Result<i64> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

/// Brings a file of format 1 to format 2.
fn upgrade(connection: &mut Connection) -> Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have done it.
    if version(&transaction)? == 1 {
        transaction.execute_batch(FORMAT_2)?;
        transaction.pragma_update(None, "user_version", 2)?;
    }
    Ok(transaction.commit()?)
}

fn connect(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection =
        Connection::open_with_flags(path, flags).with_context(|| format!("cannot open {}", path.display()))?;
    connection.busy_timeout(Duration::from_secs(20))?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// Opens a file of the directory, and creates it if it does not exist. A new file belongs to the directory's owner,
/// even if root runs the command.
///
/// The directory's owner may be less privileged than the caller, and must not make the caller open or give away another
/// file. So the function follows no links, and does not change the owner of an existing file.
fn open_file(directory: &Directory, path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
    let fault = || format!("cannot open {}: it has to be a file, and not a link", path.display());
    let file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let file = options.create_new(true).open(path).with_context(fault)?;
            let owner = fs::metadata(directory.path())?;
            fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
            file
        }
        opened => opened.with_context(fault)?,
    };
    let metadata = file.metadata()?;
    ensure!(metadata.is_file() && metadata.nlink() == 1, "{} has to be a file with a single hard link", path.display());
    Ok(file)
}
