//! Segments with a fixed path (wire.md §8.12). Every proof except that of the first verifier is locked; the preceding
//! verifier on the path unlocks the proof.

use super::{GiveError, Giver};
use crate::model::Given;
use std::net::{IpAddr, Ipv6Addr};
use wire::{Hops, Proof, ProofKey, Routed, Segment, SegmentFlags};

impl Given {
    /// Returns a copy of the segment for a fixed path. `path` contains the path's hops: one for each verifier, of which
    /// the last is the address of the receiving endpoint. `giver` contains the settings and keys with which the
    /// authority issued the segment.
    ///
    /// # Errors
    ///
    /// Fails if the hops do not match the path's verifiers, or the last hop is not the receiving endpoint.
    pub fn along(&self, giver: &Giver<'_>, path: &[Ipv6Addr]) -> Result<Self, GiveError> {
        let leads = path.last().is_some_and(|last| IpAddr::V6(*last) == self.ends.receiving);
        if !leads || path.len() != giver.path.len() || path.len() != usize::from(self.segment.count) {
            return Err(GiveError::Path);
        }
        let hops = Hops::new(path).ok_or(GiveError::Path)?;
        let segment = Segment { flags: self.segment.flags.with(SegmentFlags::ROUTED, true), ..self.segment };
        let at = |pointer| Segment { pointer, ..segment };
        let mut proofs = Vec::new();
        let mut lock = None;
        for (place, key) in (0..).zip(giver.path) {
            let segment = at(place);
            let routed = Routed { segment: &segment, vni: self.vni, ends: &self.ends, hops: &hops };
            let mut proof = routed.proof(key).0;
            if let Some(lock) = lock.replace(routed.lock(key)) {
                lock.turn(&mut proof);
            }
            proofs.push(proof);
        }
        Ok(Self { segment, proofs, hops: path.to_vec(), ..self.clone() })
    }

    /// Reports whether the authority issued this segment for the path with these hops, whose verifiers have these
    /// `keys` in the epoch of the segment. `hops` is empty if the path is not fixed. On a fixed path, the first proof
    /// is sufficient, because it covers the hops.
    pub fn takes(&self, keys: &[ProofKey], hops: &[Ipv6Addr]) -> bool {
        let checked = if hops.is_empty() { keys.len() } else { 1 };
        let mut proofs = (0..).zip(self.proofs.iter().zip(keys)).take(checked);
        let is_proved = |(pointer, (proof, key)): (u8, (&[u8; 16], &ProofKey))| {
            self.is_proved(&Proof(*proof), &Segment { pointer, ..self.segment }, key)
        };
        self.hops == hops && self.proofs.len() == keys.len() && proofs.all(is_proved)
    }

    /// Reports whether `proof` is the proof that the key of the first verifier yields for the segment `shown`. If the
    /// segment has hops, the proof covers them, too.
    pub(super) fn is_proved(&self, proof: &Proof, shown: &Segment, first: &ProofKey) -> bool {
        if !shown.flags.has(SegmentFlags::ROUTED) {
            return self.hops.is_empty() && proof.proves(first, shown, self.vni, &self.ends);
        }
        Hops::new(&self.hops).is_some_and(|hops| {
            let routed = Routed { segment: shown, vni: self.vni, ends: &self.ends, hops: &hops };
            routed.is_proved(proof, first)
        })
    }
}

#[cfg(test)]
mod tests;
