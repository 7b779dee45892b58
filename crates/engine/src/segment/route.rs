//! Segments with a fixed path (wire.md §8.12): each proof closed by the verifier before it.

use super::{GiveError, Given, Giver, Place};
use std::net::{IpAddr, Ipv6Addr};
use wire::{Hops, Proof, ProofKey, Routed, Segment, SegmentFlags};

impl Given {
    /// The same along these hops: one per verifier, the last of them the receiving endpoint. `giver` is who gave it.
    pub fn along(&self, giver: &Giver<'_>, hops: &[Ipv6Addr]) -> Result<Self, GiveError> {
        let leads = hops.last().is_some_and(|last| IpAddr::V6(*last) == self.ends.receiving);
        if !leads || hops.len() != giver.path.len() || hops.len() != usize::from(self.segment.count) {
            return Err(GiveError::Path);
        }
        let hops = Hops::new(hops).ok_or(GiveError::Path)?;
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
        Ok(Self { segment, proofs, ..self.clone() })
    }

    /// As [`Given::answer`], of one that was given along these hops. The answer's own path is not fixed.
    pub fn answer_along(
        &self,
        giver: &Giver<'_>,
        first: &ProofKey,
        back: Place,
        hops: &[Ipv6Addr],
    ) -> Result<Self, GiveError> {
        let hops = Hops::new(hops).ok_or(GiveError::Forged)?;
        self.answered(giver, back, |proof: &Proof, segment| {
            let routed = Routed { segment, vni: self.vni, ends: &self.ends, hops: &hops };
            segment.flags.has(SegmentFlags::ROUTED) && routed.is_proved(proof, first)
        })
    }
}

#[cfg(test)]
mod tests;
