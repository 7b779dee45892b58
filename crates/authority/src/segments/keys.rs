//! A cache of the verifiers' proof keys, because deriving a key takes longer than issuing a segment.

use anyhow::Result;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use wire::{Epoch, ProofKey};

/// Maximum number of cached combinations of epoch and authority address. Segments that are being issued and segments
/// that are being answered may belong to different epochs.
const EPOCHS: usize = 3;

/// The cached keys. The first index is epoch and authority address, the second is the list of a path's verifiers. Has
/// no `Debug`, because keys are secret.
#[derive(Default)]
pub struct Keys(RwLock<BTreeMap<Of, OfPaths>>);

type Of = (u64, IpAddr);
/// There are few paths, so that comparing names is faster than hashing them.
type OfPaths = BTreeMap<Vec<String>, Arc<[ProofKey]>>;

impl Keys {
    /// Returns the keys of these verifiers, in the same order. Calls `make` to derive them if they are not cached.
    ///
    /// # Errors
    /// Fails if `make` failed.
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
            keys.pop_first();
        }
        keys.entry(of).or_default().insert(verifiers.to_owned(), made.clone());
        Ok(made)
    }

    /// Empties the cache. Must be called when new master keys come into force.
    pub fn forget(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
