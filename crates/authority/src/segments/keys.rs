//! Cache of the verifiers' proof keys, one epoch long: deriving a key takes longer than issuing a segment.

use anyhow::Result;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use wire::{Epoch, ProofKey};

/// Maximum number of cached epochs and authority addresses: those of segments being issued, and of segments being
/// answered.
const EPOCHS: usize = 3;

/// The keys, by epoch and the authority's address, then by the verifiers of a path. Has no `Debug`.
#[derive(Default)]
pub struct Keys(RwLock<HashMap<Of, OfPaths>>);

type Of = (u64, IpAddr);
type OfPaths = HashMap<Vec<String>, Arc<[ProofKey]>>;

impl Keys {
    /// Returns the keys of these verifiers; derives them if they are not cached.
    pub fn of(
        &self,
        verifiers: &[String],
        authority: IpAddr,
        epoch: Epoch,
        make: impl Fn(&str) -> Result<ProofKey>,
    ) -> Result<Arc<[ProofKey]>> {
        let of = (epoch.0, authority);
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = kept.get(&of).and_then(|keys| keys.get(verifiers)) {
            return Ok(keys.clone());
        }
        drop(kept);
        // Derived under the lock, so that a concurrent `forget` also removes keys that are being derived.
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let made: Arc<[_]> = verifiers.iter().map(|verifier| make(verifier)).collect::<Result<_>>()?;
        if keys.len() >= EPOCHS && !keys.contains_key(&of) {
            let oldest = keys.keys().min().copied();
            oldest.map(|oldest| keys.remove(&oldest));
        }
        keys.entry(of).or_default().insert(verifiers.to_owned(), made.clone());
        Ok(made)
    }

    /// Empties the cache, because other keys are in force.
    pub fn forget(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
