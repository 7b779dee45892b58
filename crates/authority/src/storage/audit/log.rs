//! The running server's access to the audit trails. Repeated refusals are counted instead of being written one by one.

use super::super::Storage;
use super::dedup::AuditDedup;
use super::{AuditEvent, Subject};
use crate::now;
use anyhow::Result;
use std::sync::Arc;

/// Writes audit events to the database for the running server.
pub struct AuditLog {
    storage: Arc<Storage>,
    dedup: AuditDedup<Subject>,
}

impl AuditLog {
    /// Creates a log that writes to `storage`.
    pub fn new(storage: Arc<Storage>) -> Self {
        Self { storage, dedup: AuditDedup::default() }
    }

    /// Writes an event in the authority's own queue.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub async fn write(&self, event: AuditEvent) -> Result<()> {
        self.storage.call(move |database| database.audit(&event, now())).await
    }

    /// Writes an event in the queue of the person that it is about.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub async fn write_in_turn(&self, event: AuditEvent) -> Result<()> {
        let person = event.about().to_owned();
        self.storage.call_for(&person, move |database| database.audit(&event, now())).await
    }

    /// Writes a refusal, and reports whether it was written. In each minute, only the first ten refusals with the same
    /// event, person and source are written. Later refusals are only counted, and [`Self::settle_refusals`] writes
    /// their number.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub async fn write_refusal(&self, event: AuditEvent) -> Result<bool> {
        let written = self.admits(&event);
        if written {
            self.write_in_turn(event).await?;
        }
        Ok(written)
    }

    /// Counts a refusal, and reports whether the caller must write it.
    pub fn admits(&self, event: &AuditEvent) -> bool {
        self.dedup.note(event.subject(), now() / 60)
    }

    /// Writes the numbers of refusals before `minute` that were counted but not written. `minute` is a number of
    /// minutes since the Unix epoch.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub async fn settle_refusals(&self, minute: u64) -> Result<()> {
        let left_out = self.dedup.settle(minute);
        for (subject, minute, count) in left_out.by_subject {
            self.write(subject.left_out(count, minute * 60)).await?;
        }
        match left_out.others {
            0 => Ok(()),
            others => {
                let detail = format!(
                    "{others} more refusals were not recorded individually, because too many persons and sources \
                     caused refusals"
                );
                self.write(AuditEvent::new("denied").detail(detail)).await
            }
        }
    }

    /// Writes the heads of the audit trails to the server's log, which is stored separately from the trails.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn log_heads(&self) -> Result<()> {
        for head in self.storage.call(|database| database.audit_heads()).await? {
            tracing::info!(%head, "audit");
        }
        Ok(())
    }
}
