//! The policy in force, and the time at which its decisions change next because a time window opens or closes.

use crate::convert;
use api::Receiver;
use engine::policy::{Compiled, Policy};
use std::sync::{Mutex, PoisonError};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The policy in force.
///
/// A task must not hold a lock of the policy while it waits for an account's queue (see `storage/thread.rs`). After a
/// change of the policy, the storage does not record grants that were decided before the change
/// ([`Storage::end_basis`](crate::storage::Storage::end_basis)). A segment is decided and recorded under one read lock.
/// A task that changes an input of the policy takes the write lock and then revokes the grants that are no longer
/// allowed.
pub struct PolicyInForce {
    compiled: RwLock<Compiled>,
    evaluated: Mutex<Evaluated>,
}

/// The time at which grants were last re-evaluated, and the time at which decisions change next.
#[derive(Clone, Copy, Default)]
struct Evaluated {
    at: u64,
    until: Option<u64>,
}

impl PolicyInForce {
    /// Creates the value when the server starts, with `policy` in force.
    pub fn new(policy: Compiled) -> Self {
        Self { compiled: RwLock::new(policy), evaluated: Mutex::default() }
    }

    /// Takes the read lock.
    pub async fn read(&self) -> RwLockReadGuard<'_, Compiled> {
        self.compiled.read().await
    }

    /// Takes the read lock. Blocks the thread, so it must not be called from an asynchronous task.
    pub fn blocking_read(&self) -> RwLockReadGuard<'_, Compiled> {
        self.compiled.blocking_read()
    }

    /// Takes the write lock.
    pub async fn write(&self) -> RwLockWriteGuard<'_, Compiled> {
        self.compiled.write().await
    }

    /// Calls `look` with the policy, under the read lock.
    pub async fn with<T>(&self, look: impl FnOnce(&Policy) -> T) -> T {
        look(self.read().await.policy())
    }

    /// Returns the receivers that a verifier protects.
    pub async fn receivers_of(&self, verifier: &str) -> Vec<Receiver> {
        let receivers = |policy: &Policy| {
            let own = policy.receivers().iter().filter(|receiver| receiver.verifier == verifier);
            convert::receivers(own.flat_map(|receiver| receiver.entries()))
        };
        self.with(receivers).await
    }

    /// Records that grants were re-evaluated by `policy` at `now`.
    pub fn note_evaluation(&self, policy: &Policy, now: u64) {
        *self.evaluated.lock().unwrap_or_else(PoisonError::into_inner) =
            Evaluated { at: now, until: policy.next_change(now) };
    }

    /// Reports whether a time window has opened or closed since grants were last re-evaluated.
    pub fn evaluation_is_due(&self, now: u64) -> bool {
        let Evaluated { at, until } = *self.evaluated.lock().unwrap_or_else(PoisonError::into_inner);
        // If the clock was set back, the new time may be before a change that was already applied.
        until.is_some_and(|until| until <= now || now < at)
    }
}
