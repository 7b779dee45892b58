//! Copies of the database: made while it is in use, and taken up again.

use super::{AuditEvent, Database, sessions};
use anyhow::{Result, ensure};
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use std::path::Path;

impl Database {
    /// Copies the database as it is at one moment, by SQLite's own means. Others may read and write meanwhile.
    pub fn copy_to(&self, path: &Path) -> Result<()> {
        let mut copy = Connection::open(path)?;
        // In one step: one that was interrupted would begin anew whenever somebody writes.
        let done = Backup::new(&self.connection, &mut copy)?.step(-1)?;
        ensure!(done == StepResult::Done, "the database is busy: {done:?}");
        Ok(())
    }

    /// Fails if the file is damaged.
    pub fn is_sound(&self) -> Result<()> {
        let found: String = self.connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        ensure!(found == "ok", "its database is damaged: {found}");
        Ok(())
    }

    /// Takes up a copy that was put back: unless they are kept, all sessions and grants end.
    pub fn restored(&mut self, event: &AuditEvent, keep_sessions: bool, now: u64) -> Result<()> {
        self.write(|transaction| {
            if !keep_sessions {
                sessions::end_all(transaction, now)?;
            }
            event.write(transaction, now)
        })
    }
}
