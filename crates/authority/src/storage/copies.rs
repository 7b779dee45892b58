//! Copies of the database for backups: their creation while the database is in use, and their preparation after a
//! restore.

use super::{AuditEvent, Database, sessions};
use anyhow::{Result, ensure};
use engine::issuing::lease::NUMBERS;
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use std::path::Path;

impl Database {
    /// Copies a snapshot of the database to `path` with SQLite's backup API. Other processes may read and write at the
    /// same time. The copy of a member's database belongs to no cluster, because it lacks the cluster's later changes.
    /// A restored copy is an authority in no cluster, which an operator can join to a cluster again.
    ///
    /// # Errors
    /// Fails if the copy cannot be written, or another process locks the database.
    pub fn copy_to(&self, path: &Path) -> Result<()> {
        let mut copy = Connection::open(path)?;
        // The copy is made in one step, because a backup in several steps restarts whenever another process writes.
        let done = Backup::new(&self.connection, &mut copy)?.step(-1)?;
        ensure!(done == StepResult::Done, "another process uses the database ({done:?}): try again");
        copy.execute("DELETE FROM replica", [])?;
        Ok(())
    }

    /// Checks the integrity of the database file.
    ///
    /// # Errors
    /// Fails if the file is damaged or cannot be read.
    pub fn is_sound(&self) -> Result<()> {
        let found: String = self.connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        ensure!(found == "ok", "the authority's database is damaged: {found}");
        Ok(())
    }

    /// Prepares a restored copy for use: ends all sessions and their grants unless `keep_sessions` is set, and writes
    /// `event` to the audit trail.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn restored(&mut self, event: &AuditEvent, keep_sessions: bool, now: u64) -> Result<()> {
        self.write(|transaction| {
            if !keep_sessions {
                sessions::end_all(transaction, now)?;
            }
            // The handles of grants that were issued after the copy was made must not be mistaken for those of new
            // grants.
            transaction.execute("UPDATE numbering SET next = (next + ?1) % ?2", [NUMBERS / 16, NUMBERS])?;
            event.write(transaction, now)
        })
    }
}
