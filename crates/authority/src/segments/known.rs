//! The virtual networks and the segments issued in them.

use super::book::Book;
use super::keys::Keys;
use super::unknown_names;
use engine::policy::Compiled;
use engine::policy::networks::Networks;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The virtual networks and the segments issued in them.
#[derive(Default)]
pub struct Segments {
    networks: RwLock<Arc<Networks>>,
    pub(super) keys: Keys,
    book: Mutex<Book>,
    /// Number of withdrawal statements issued so far.
    pub(super) withdrawn: AtomicU64,
}

impl Segments {
    /// Returns the networks of the current configuration.
    pub(crate) fn networks(&self) -> Arc<Networks> {
        self.networks.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the networks.
    pub(crate) fn describe(&self, networks: Networks, policy: &Compiled) {
        unknown_names(&networks, policy.policy()).iter().for_each(|slip| tracing::warn!("{slip}"));
        *self.networks.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(networks);
        self.keys.forget();
    }

    /// Empties the key cache after the master keys changed.
    pub(crate) fn forget_keys(&self) {
        self.keys.forget();
    }

    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
