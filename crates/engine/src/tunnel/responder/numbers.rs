//! The numbers by which a responder finds its tunnels: indices, which are random, and ids, which are counted.

use super::{Chance, Index, TunnelId};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Factor of the hash: odd, and without a pattern (2^64 divided by the golden ratio).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hasher of tables whose keys are numbers that the responder has chosen. Nobody else can choose keys that collide,
/// so the hash needs no secret.
pub(super) type OwnNumbers = BuildHasherDefault<OwnNumber>;

/// The hash of a number.
#[derive(Default)]
pub(super) struct OwnNumber(u64);

impl Hasher for OwnNumber {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(FACTOR);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A source of indices that no phase of this responder uses.
pub(super) struct UnusedIndices<'c> {
    pub chance: &'c mut dyn Chance,
    pub taken: &'c HashMap<Index, TunnelId, OwnNumbers>,
}

impl Chance for UnusedIndices<'_> {
    fn bytes(&mut self) -> [u8; 32] {
        self.chance.bytes()
    }

    fn index(&mut self) -> Index {
        loop {
            let index = self.chance.index();
            if !self.taken.contains_key(&index) {
                return index;
            }
        }
    }
}
