//! Copies of the database: creation while it is in use, and restoration.

use super::{AuditEvent, Database, sessions};
use anyhow::{Result, ensure};
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use std::path::Path;

impl Database {
    /// Copies a snapshot of the database with SQLite's backup API. Other processes may read and write meanwhile.
    pub fn copy_to(&self, path: &Path) -> Result<()> {
        let mut copy = Connection::open(path)?;
        // In one step: a backup in several steps would restart whenever another process writes.
        let done = Backup::new(&self.connection, &mut copy)?.step(-1)?;
        ensure!(done == StepResult::Done, "another process uses the database ({done:?}): try again");
        Ok(())
    }

    /// Returns an error if the file is damaged.
    pub fn is_sound(&self) -> Result<()> {
        let found: String = self.connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        ensure!(found == "ok", "its database is damaged: {found}");
        Ok(())
    }

    /// Prepares a restored copy for use: ends all sessions and grants, unless `keep_sessions` is set.
    pub fn restored(&mut self, event: &AuditEvent, keep_sessions: bool, now: u64) -> Result<()> {
        self.write(|transaction| {
            if !keep_sessions {
                sessions::end_all(transaction, now)?;
            }
            event.write(transaction, now)
        })
    }
}
