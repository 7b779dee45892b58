//! The table of persons' choices about where their identity may go, in memory.

use engine::policy::preference::Preferences;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The choices of all persons who have made a choice. The database is authoritative.
#[derive(Default)]
pub struct PreferenceTable(RwLock<HashMap<String, Arc<Preferences>>>);

impl PreferenceTable {
    /// Returns a person's choices. They are empty if the person has made none.
    pub fn of(&self, person: &str) -> Arc<Preferences> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(person).cloned().unwrap_or_default()
    }

    /// Replaces the table by the choices that the database contains, and returns the previous table.
    pub fn replace(&self, preferences: HashMap<String, Arc<Preferences>>) -> HashMap<String, Arc<Preferences>> {
        std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), preferences)
    }
}
