//! The policy in force, and the time at which its decisions next change by themselves.

use crate::convert;
use api::Receiver;
use engine::policy::{Compiled, Policy};
use std::sync::{Mutex, PoisonError};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The policy in force.
///
/// Never locked while waiting for an account's queue (see `storage/thread.rs`). A grant that was decided before a change
/// is not recorded after it ([`Storage::end_basis`](crate::storage::Storage::end_basis)); a segment is recorded under the
/// read lock. A task that changes an input of the policy takes the write lock and then revokes.
pub struct PolicyInForce {
    compiled: RwLock<Compiled>,
    evaluated: Mutex<Evaluated>,
}

/// When grants were last re-evaluated, and when the decisions next change with time.
#[derive(Clone, Copy, Default)]
struct Evaluated {
    at: u64,
    until: Option<u64>,
}

impl PolicyInForce {
    /// Puts a first policy in force.
    pub fn new(policy: Compiled) -> Self {
        Self { compiled: RwLock::new(policy), evaluated: Mutex::default() }
    }

    /// Takes the read lock.
    pub async fn read(&self) -> RwLockReadGuard<'_, Compiled> {
        self.compiled.read().await
    }

    /// Takes the read lock on a thread that runs no tasks.
    pub fn blocking_read(&self) -> RwLockReadGuard<'_, Compiled> {
        self.compiled.blocking_read()
    }

    /// Takes the write lock.
    pub async fn write(&self) -> RwLockWriteGuard<'_, Compiled> {
        self.compiled.write().await
    }

    /// Calls `look` with the policy.
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

    /// Reports whether a time window has opened or closed since grants were re-evaluated.
    pub fn evaluation_is_due(&self, now: u64) -> bool {
        let Evaluated { at, until } = *self.evaluated.lock().unwrap_or_else(PoisonError::into_inner);
        // After the clock was set back, the time may be before a change that was already applied.
        until.is_some_and(|until| until <= now || now < at)
    }
}
