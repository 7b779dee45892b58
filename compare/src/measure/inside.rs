//! Runs code in a namespace that is known by its path only. This code does not borrow the scene, which owns the
//! namespace, so the caller can change the scene at the same time.

use std::fs::File;
use std::path::PathBuf;

use lab::Namespace;
use nix::sched::{CloneFlags, setns};

/// The path of a namespace, by which a thread can enter it.
#[derive(Clone)]
pub struct Inside(PathBuf);

impl Inside {
    /// Returns the path of `namespace`.
    pub fn of(namespace: &Namespace) -> Self {
        Self(namespace.path())
    }

    /// Moves the calling thread into the namespace, for good.
    ///
    /// # Panics
    ///
    /// Panics if the namespace is gone.
    pub fn enter(&self) {
        let file = File::open(&self.0).expect("INVARIANT: the namespace lives as long as its measurements");
        setns(&file, CloneFlags::CLONE_NEWNET).expect("whoever made the namespace may enter it");
    }

    /// Runs `work` on a new thread in the namespace. Sockets opened there stay in it.
    ///
    /// # Panics
    /// Panics if `work` panics, or if the namespace is gone.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            self.enter();
            work()
        };
        std::thread::scope(|scope| scope.spawn(inside).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
