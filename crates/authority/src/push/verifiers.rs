//! The table of enrolled verifiers by the hash of their token, in memory.

use crate::storage::TokenHash;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

/// The enrolled verifiers. The database is authoritative.
#[derive(Default)]
pub struct Verifiers(RwLock<HashMap<TokenHash, Arc<str>>>);

impl Verifiers {
    /// Returns the id of the verifier with this token, if one is enrolled.
    pub fn id(&self, token: &TokenHash) -> Option<Arc<str>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(token).cloned()
    }

    /// Returns the ids of all verifiers.
    pub fn ids(&self) -> HashSet<Arc<str>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Returns the number of verifiers.
    pub fn count(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Replaces the table by the verifiers that the database contains.
    pub fn replace(&self, verifiers: HashMap<TokenHash, Arc<str>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = verifiers;
    }
}
