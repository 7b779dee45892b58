//! Runs code in a namespace that is known by its path, so that the scene itself can be changed meanwhile.

use std::fs::File;
use std::path::PathBuf;

use lab::Namespace;
use nix::sched::{CloneFlags, setns};

/// The way into a namespace.
#[derive(Clone)]
pub struct Inside(PathBuf);

impl Inside {
    /// Returns the way into a namespace.
    pub fn of(namespace: &Namespace) -> Self {
        Self(namespace.path())
    }

    /// Moves the calling thread into the namespace, for good.
    ///
    /// # Panics
    /// If the namespace is gone.
    pub fn enter(&self) {
        let file = File::open(&self.0).expect("INVARIANT: the namespace lives as long as its measurements");
        setns(&file, CloneFlags::CLONE_NEWNET).expect("whoever made the namespace may enter it");
    }
}
