//! The formats of the members' databases. While the members of a cluster have different formats, all of them write
//! entries of the oldest one. A member with a newer format applies entries of older formats, and refuses changes for
//! which the oldest format has no room.

use super::Unavailable;
use super::capture::Table;
use super::entry::{Block, Kind, Value};
use crate::storage::{Database, SCHEMA_VERSION};
use anyhow::{Result, bail};
use rusqlite::Connection;
use serde::Deserialize;

/// The format of a member that has not recorded its format. It is the format of all releases that did not record it.
const UNRECORDED: i64 = 16;
/// Prefix of the names under which the table `shared` lists the members. `cluster/membership.rs` writes these values.
const MEMBERS: &str = "member:";

/// The formats that a program can read and write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Formats {
    /// The format of the program's own database.
    pub own: i64,
    /// The earliest format whose entries the program applies and writes.
    pub earliest: i64,
    /// The tables and columns that the formats after `earliest` have added.
    pub added: &'static [Added],
}

/// A table, or some of its columns, that a format has added. Such a column is NULL until a transaction sets it.
#[derive(Debug)]
pub(super) struct Added {
    /// The first format with this table or these columns.
    pub format: i64,
    pub table: &'static str,
    /// The columns; empty if the whole table is new.
    pub columns: &'static [&'static str],
}

/// The part of a member's record in the table `shared` that concerns formats.
#[derive(Deserialize)]
struct Recorded {
    format: Option<i64>,
}

impl Formats {
    /// The formats of this release. When you introduce a format, list its new tables and columns in `added`.
    pub const OF_THIS_RELEASE: Self = Self { own: SCHEMA_VERSION, earliest: UNRECORDED, added: &[] };

    /// Returns the format of the cluster, in which every member writes: the oldest format of a member, whether the
    /// member is running or not.
    ///
    /// # Errors
    /// Fails if the database cannot be read, or this program can't write the cluster's format.
    pub fn of_cluster(&self, connection: &Connection) -> Result<i64> {
        let mut find = connection.prepare_cached("SELECT value FROM shared WHERE substr(name, 1, length(?1)) = ?1")?;
        let mut format = self.own;
        for value in find.query_map([MEMBERS], |row| row.get::<_, Vec<u8>>(0))? {
            let recorded = serde_json::from_slice::<Recorded>(&value?).ok().and_then(|recorded| recorded.format);
            format = format.min(recorded.unwrap_or(UNRECORDED));
        }
        self.check(format, "a member of the cluster")?;
        Ok(format)
    }

    /// Checks that this program can read and write `format`. The error message calls the data with this format `what`.
    pub fn check(&self, format: i64, what: &str) -> Result<(), Unavailable> {
        let Self { own, earliest, .. } = *self;
        let way_out = if format > own {
            "upgrade this member"
        } else if format < earliest {
            "first upgrade all members to a release in between"
        } else {
            return Ok(());
        };
        Err(Unavailable::now(format!(
            "{what} has format {format} of the database, but this version works with formats {earliest} to {own}: \
             {way_out}"
        )))
    }

    /// Converts changes to the form in which a database of `format` stores them.
    ///
    /// # Errors
    /// Fails if a change needs a table or column that this format lacks.
    pub fn written(&self, blocks: Vec<Block>, format: i64) -> Result<Vec<Block>> {
        if format >= self.own {
            return Ok(blocks);
        }
        blocks.into_iter().map(|block| self.written_block(block, format)).collect()
    }

    fn written_block(&self, mut block: Block, format: i64) -> Result<Block> {
        let Some(kept) = self.kept(&block.table, &block.columns, format) else {
            bail!(self.no_room(&format!("the table {}", block.table), format));
        };
        if !kept.contains(&false) {
            return Ok(block);
        }
        // A column that a later format has added is NULL in every row. So a change of this column gives it a value, for
        // which `format` has no room.
        let is_lost = |row: &Vec<Value>| row.iter().zip(&kept).any(|(value, kept)| !kept && *value != Value::Null);
        if block.kind != Kind::Put || block.rows.iter().any(is_lost) {
            bail!(self.no_room(&format!("a column of the table {}", block.table), format));
        }
        keep(&mut block.columns, &kept);
        block.rows.iter_mut().for_each(|row| keep(row, &kept));
        Ok(block)
    }

    /// Returns the columns of a table that a database of `format` has, or `None` if it lacks the whole table.
    pub fn columns(&self, table: &Table, format: i64) -> Option<Vec<String>> {
        let kept = self.kept(&table.name, &table.columns, format)?;
        let mut columns = table.columns.clone();
        keep(&mut columns, &kept);
        Some(columns)
    }

    /// Returns which of these columns a database of `format` has, or `None` if it lacks the whole table.
    fn kept(&self, table: &str, columns: &[String], format: i64) -> Option<Vec<bool>> {
        let later = || self.added.iter().filter(|added| added.format > format && added.table == table);
        if later().any(|added| added.columns.is_empty()) {
            return None;
        }
        Some(columns.iter().map(|column| later().all(|added| !added.columns.contains(&column.as_str()))).collect())
    }

    fn no_room(&self, what: &str, format: i64) -> Unavailable {
        Unavailable::now(format!(
            "{what} can't be written before all members have been upgraded: this version has format {} of the \
             database, but a member has format {format}",
            self.own
        ))
    }
}

/// Removes the elements for which `kept` is false.
fn keep<T>(elements: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    elements.retain(|_| kept.next() == Some(&true));
}

impl Database {
    /// Returns the format in which the members of the cluster write: the oldest format of a member. An authority in no
    /// cluster writes the format of this version.
    ///
    /// # Errors
    /// Fails if the database cannot be read, or this version can't write the cluster's format.
    pub fn cluster_format(&self) -> Result<i64> {
        match &self.replica {
            Some(replica) => replica.log().formats().of_cluster(&self.connection),
            None => Ok(SCHEMA_VERSION),
        }
    }
}
