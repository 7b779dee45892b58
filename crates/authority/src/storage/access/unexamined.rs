//! Holders of consents that have ended: people, groups and tags whose grants are not yet examined. The transaction that
//! ends a consent records the holder here. If the member of a cluster that ended the consent then fails, any other
//! member can finish the revocation.

use super::PIECE;
use crate::storage::Database;
use anyhow::Result;
use rusqlite::{OptionalExtension, Transaction, params};

/// A person, group or tag whose grants have to be examined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unexamined {
    /// The person, or `group:NAME` or `tag:NAME`.
    pub person: String,
    /// The number of the latest change that ended a consent of this holder.
    pub change: i64,
}

impl Database {
    /// Returns up to 500 people, groups and tags whose grants have to be examined, because their consent has ended.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn unexamined(&self) -> Result<Vec<Unexamined>> {
        let sql = format!("SELECT person, change FROM access_unexamined ORDER BY change, person LIMIT {PIECE}");
        let mut all = self.connection.prepare_cached(&sql)?;
        let rows = all.query_map([], |row| Ok(Unexamined { person: row.get(0)?, change: row.get(1)? }))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the entry about a person, or about `group:NAME` or `tag:NAME`; `None` if no grants have to be examined
    /// for this holder.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn unexamined_of(&self, person: &str) -> Result<Option<Unexamined>> {
        let mut find = self.connection.prepare_cached("SELECT change FROM access_unexamined WHERE person = ?1")?;
        let change = find.query_row([person], |row| row.get(0)).optional()?;
        Ok(change.map(|change| Unexamined { person: person.to_owned(), change }))
    }

    /// Records that the grants of a holder were examined. If another consent of the holder has ended since `of` was
    /// read, the grants have to be examined again.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn examined(&mut self, of: &Unexamined) -> Result<()> {
        self.write(|transaction| {
            let done = "DELETE FROM access_unexamined WHERE person = ?1 AND change <= ?2";
            transaction.prepare_cached(done)?.execute(params![of.person, of.change])?;
            Ok(())
        })
    }
}

/// Records a person, group or tag whose consent ends in this transaction. Must be called after the change is counted.
pub(super) fn note(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    let note = "INSERT INTO access_unexamined (person, change) SELECT ?1, made FROM consent_changes WHERE true
                ON CONFLICT (person) DO UPDATE SET change = excluded.change";
    transaction.prepare_cached(note)?.execute([person])?;
    Ok(())
}

/// Forgets a person whose account is removed: their grants end with their sessions.
pub(super) fn forget(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    transaction.prepare_cached("DELETE FROM access_unexamined WHERE person = ?1")?.execute([person])?;
    Ok(())
}
