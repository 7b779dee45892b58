//! Randomness from the operating system.

use engine::tunnel::Chance;

/// A source of unpredictable bytes.
pub struct Random;

impl Chance for Random {
    fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        // A weaker source must never take its place, because keys are made from these bytes.
        getrandom::fill(&mut bytes).expect("the operating system has random numbers");
        bytes
    }
}
