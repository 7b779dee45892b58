//! Keys of verifiers for proofs, kept for as long as an epoch lasts: to derive one takes longer than to give a segment.

use anyhow::Result;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};
use wire::{Epoch, ProofKey};

/// Epochs whose keys are kept: of what is given, and of what is answered.
const EPOCHS: usize = 3;

/// The keys, by epoch and authority's address, and by verifier. Has no `Debug`.
#[derive(Default)]
pub struct Keys(RwLock<HashMap<Of, HashMap<String, ProofKey>>>);

type Of = (u64, IpAddr);

impl Keys {
    /// The keys of these verifiers; those that are not there are made.
    pub fn of(
        &self,
        verifiers: &[String],
        authority: IpAddr,
        epoch: Epoch,
        make: impl Fn(&str) -> Result<ProofKey>,
    ) -> Result<Vec<ProofKey>> {
        let of = (epoch.0, authority);
        let kept = |keys: &HashMap<Of, HashMap<String, ProofKey>>| {
            let keys = keys.get(&of)?;
            verifiers.iter().map(|verifier| keys.get(verifier).cloned()).collect::<Option<Vec<_>>>()
        };
        if let Some(keys) = kept(&self.0.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(keys);
        }
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= EPOCHS && !keys.contains_key(&of) {
            let oldest = keys.keys().min().copied();
            oldest.map(|oldest| keys.remove(&oldest));
        }
        let of_epoch = keys.entry(of).or_default();
        let mut found = Vec::with_capacity(verifiers.len());
        for verifier in verifiers {
            if !of_epoch.contains_key(verifier) {
                of_epoch.insert(verifier.clone(), make(verifier)?);
            }
            found.extend(of_epoch.get(verifier).cloned());
        }
        Ok(found)
    }

    /// Other keys are in force.
    pub fn forget(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
