//! The table of consents in effect, in memory.

use crate::storage::Database;
use engine::policy::delegation::Consents;
use std::sync::{Arc, Mutex, PoisonError};

/// A number of changes that no database contains. With it, the next synchronisation certainly reads the consents.
const UNREAD: i64 = -1;

/// The consents in effect. The database is authoritative.
pub struct ConsentTable(Mutex<Table>);

struct Table {
    /// How many times the consents had changed when they were read.
    made: i64,
    consents: Arc<Consents>,
}

impl Default for ConsentTable {
    fn default() -> Self {
        Self(Mutex::new(Table { made: UNREAD, consents: Arc::default() }))
    }
}

impl ConsentTable {
    /// Returns the consents.
    pub fn current(&self) -> Arc<Consents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).consents.clone()
    }

    /// Returns how many times the consents had changed when the table was read from the database. The number is -1 if
    /// the last reading failed, or if there was none.
    pub fn made(&self) -> i64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).made
    }

    /// Reads the consents from the database if they have changed. If that fails, no consent counts until the next
    /// synchronisation.
    pub fn follow(&self, database: &Database) {
        let read = |made| if made == self.made() { Ok(None) } else { database.consents().map(|all| Some((made, all))) };
        match database.consent_changes().and_then(read) {
            Ok(None) => {}
            Ok(Some((made, consents))) => self.replace(made, consents),
            Err(error) => {
                tracing::error!("cannot read the consents: {error:#}");
                self.replace(UNREAD, Consents::default());
            }
        }
    }

    /// Replaces the table by the consents that the database contains.
    pub fn replace(&self, made: i64, consents: Consents) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Table { made, consents: Arc::new(consents) };
    }
}
