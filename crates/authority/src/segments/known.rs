//! What the authority knows of virtual networks, and what it gave there.

use super::book::Book;
use super::keys::Keys;
use super::unknown_names;
use engine::networks::Networks;
use engine::policy::Compiled;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What is known of virtual networks, and what was given there.
#[derive(Default)]
pub struct Segments {
    networks: RwLock<Arc<Networks>>,
    pub(super) keys: Keys,
    book: Mutex<Book>,
    /// How many statements of withdrawn consent there were.
    pub(super) withdrawn: AtomicU64,
}

impl Segments {
    /// The networks as they are described.
    pub(crate) fn networks(&self) -> Arc<Networks> {
        self.networks.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// They are described otherwise.
    pub(crate) fn describe(&self, networks: Networks, policy: &Compiled) {
        unknown_names(&networks, policy.policy()).iter().for_each(|slip| tracing::warn!("{slip}"));
        *self.networks.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(networks);
        self.keys.forget();
    }

    /// The master keys changed.
    pub(crate) fn forget_keys(&self) {
        self.keys.forget();
    }

    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
