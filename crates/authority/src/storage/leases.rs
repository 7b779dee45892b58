//! Grants that can be renewed without another record: their numbers, and the look-up of such a grant by any of its
//! handles.
//!
//! The table `grants` contains such a grant under its first handle. Handles of later epochs are not recorded: the
//! authority computes the number of their grant with the key in the table `numbering`. This key never changes, because
//! the audit trails name a grant by its first handle only, and are kept longer than the grants.

use super::Database;
use crate::login::credentials;
use anyhow::Result;
use api::RevokedGrant;
use engine::issuing::lease::{HandleKey, NUMBERS};
use rusqlite::{Connection, OptionalExtension, Row, Transaction};
use wire::Handle;

/// Length of the free range of numbers that a member of a cluster looks for. The member tries at most [`DRAWS`] ranges.
const FREE: u32 = NUMBERS / 256;
const DRAWS: usize = 256;

/// The table with the key of the grants' handles and the next number. It has one row.
const SCHEMA: &str = "
CREATE TABLE numbering (key BLOB NOT NULL, next INTEGER NOT NULL) STRICT;
CREATE UNIQUE INDEX grants_by_number ON grants (number) WHERE number IS NOT NULL;
";

/// The data that makes a grant renewable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// The grant's number, which determines its handles.
    pub number: u32,
    /// Time of issue, in Unix seconds.
    pub issued: u64,
    /// Maximum length of a lease, in seconds.
    pub lease: u32,
}

/// A grant, with the data for messages about it to verifiers and sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The grant with its first handle.
    pub grant: RevokedGrant,
    /// If the grant can be renewed, the data from which its later handles are computed.
    pub renewable: Option<LeaseTerms>,
    /// The time by which every member of the cluster knows of the grant's revocation, in Unix seconds. No member renews
    /// the grant later. `None` if the grant itself was not revoked.
    pub learned: Option<u64>,
}

/// Number of seconds, in SQL, after which each authority that renews grants has learned of the end of a grant that
/// another process recorded. For an authority in no cluster, 30 are enough. A member that has lost contact with the
/// cluster may learn of the end later, so the cluster sets the value `late`.
macro_rules! learned_within {
    () => {
        "coalesce((SELECT CAST(CAST(value AS TEXT) AS INTEGER) FROM shared WHERE name = 'late'), 30)"
    };
}
pub(super) use learned_within;

/// The columns for the fields `renewable` and `learned` of [`Announced`].
pub(super) const RENEWABLE: &str = concat!("number, issued, lease, revoked + ", learned_within!());

/// Creates the tables, with a new key.
pub(super) fn begin(transaction: &Transaction<'_>) -> Result<()> {
    transaction.execute_batch(SCHEMA)?;
    let key: [u8; 16] = credentials::random()?;
    transaction.execute("INSERT INTO numbering (key, next) VALUES (?1, 0)", [key])?;
    Ok(())
}

/// Reports whether a grant has this number.
pub(super) fn is_taken(transaction: &Transaction<'_>, number: u32) -> Result<bool> {
    Ok(transaction.prepare_cached("SELECT 1 FROM grants WHERE number = ?1")?.exists([number])?)
}

/// Records that a number is used.
pub(super) fn take(transaction: &Transaction<'_>, number: u32) -> Result<()> {
    // Requests are not recorded in the order in which they took their numbers.
    let mut note = transaction.prepare_cached("UPDATE numbering SET next = ?1 WHERE ?1 > next OR next - ?1 > ?2")?;
    note.execute([(number + 1) % NUMBERS, NUMBERS / 2])?;
    Ok(())
}

/// Returns the first handle of the grant that has this handle. Returns `handle` itself if there is no such grant. A
/// handle that was not computed from a number is recorded as it is, and is indistinguishable from a computed one. So
/// the function first looks up `handle` itself.
pub(super) fn first(connection: &Connection, handle: Handle) -> Result<Handle> {
    let mut recorded = connection.prepare_cached("SELECT 1 FROM grants WHERE handle = ?1")?;
    if recorded.exists([handle.0.cast_signed()])? {
        return Ok(handle);
    }
    let number = key(connection)?.decrypt(handle).number;
    let mut find = connection.prepare_cached("SELECT handle FROM grants WHERE number = ?1")?;
    let found = find.query_row([number], |row| row.get::<_, i64>(0)).optional()?;
    Ok(found.map_or(handle, |first| Handle(first.cast_unsigned())))
}

fn key(connection: &Connection) -> Result<HandleKey> {
    let mut key = connection.prepare_cached("SELECT key FROM numbering")?;
    Ok(HandleKey::new(key.query_row([], |row| row.get(0))?))
}

/// Reads the columns [`RENEWABLE`] from `column` on.
pub(super) fn announced(row: &Row<'_>, grant: RevokedGrant, column: usize) -> rusqlite::Result<Announced> {
    Ok(Announced {
        grant,
        renewable: renewable(row, column)?,
        learned: row.get::<_, Option<i64>>(column + 3)?.map(i64::cast_unsigned),
    })
}

/// Reads number, time of issue and lease from `column` on.
pub(super) fn renewable(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<LeaseTerms>> {
    let (number, lease): (Option<u32>, Option<u32>) = (row.get(column)?, row.get(column + 2)?);
    let issued = row.get::<_, i64>(column + 1)?.cast_unsigned();
    Ok(number.zip(lease).map(|(number, lease)| LeaseTerms { number, issued, lease }))
}

impl Database {
    /// Returns the key of the grants' handles, and the number for the next grant. In a cluster, each member gets a
    /// random number with many unused numbers after it, so that different members use different numbers.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn numbering(&self) -> Result<(HandleKey, u32)> {
        let next = if self.is_member() {
            self.free_number()?
        } else {
            self.connection.query_row("SELECT next FROM numbering", [], |row| row.get(0))?
        };
        Ok((key(&self.connection)?, next))
    }

    fn free_number(&self) -> Result<u32> {
        let mut used = self.connection.prepare("SELECT 1 FROM grants WHERE number >= ?1 AND number < ?2")?;
        let mut start = 0;
        for _ in 0..DRAWS {
            start = u32::from_be_bytes(credentials::random()?) % (NUMBERS - FREE);
            if !used.exists([start, start + FREE])? {
                break;
            }
        }
        // If no range is free, single free numbers are found by trying.
        Ok(start)
    }

    /// Returns the first handle of the grant that has this handle. The grant is listed under its first handle. Returns
    /// `handle` itself if there is no such grant.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn first_handle(&self, handle: Handle) -> Result<Handle> {
        first(&self.connection, handle)
    }

    /// Returns the lease terms of the grant that has this handle. Returns `None` if there is no such grant, or if it
    /// cannot be renewed.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn lease_terms(&self, handle: Handle) -> Result<Option<LeaseTerms>> {
        let first = self.first_handle(handle)?;
        let mut terms = self.connection.prepare_cached("SELECT number, issued, lease FROM grants WHERE handle = ?1")?;
        let terms = terms.query_row([first.0.cast_signed()], |row| renewable(row, 0)).optional()?;
        Ok(terms.flatten())
    }
}
