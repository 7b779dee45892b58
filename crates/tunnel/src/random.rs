//! Randomness from the operating system.

use engine::tunnel::Chance;

/// Unpredictable bytes.
pub struct Random;

impl Chance for Random {
    fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        // Keys made of anything else would be worse than none.
        getrandom::fill(&mut bytes).expect("the operating system has random numbers");
        bytes
    }
}
