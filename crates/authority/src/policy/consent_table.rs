//! The table of consents in effect, in memory.

use engine::policy::delegation::Consents;
use std::sync::{Arc, Mutex, PoisonError};

/// The consents in effect. The database is authoritative.
pub struct ConsentTable(Mutex<Table>);

struct Table {
    /// How many times the consents had changed when they were read.
    made: i64,
    consents: Arc<Consents>,
}

impl Default for ConsentTable {
    fn default() -> Self {
        // No database has this number, so the first synchronisation reads the consents.
        Self(Mutex::new(Table { made: -1, consents: Arc::default() }))
    }
}

impl ConsentTable {
    /// Returns the consents.
    pub fn current(&self) -> Arc<Consents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).consents.clone()
    }

    /// Returns how many times the consents had changed when they were read.
    pub fn made(&self) -> i64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).made
    }

    /// Replaces the table by the consents that the database contains.
    pub fn replace(&self, made: i64, consents: Consents) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Table { made, consents: Arc::new(consents) };
    }
}
