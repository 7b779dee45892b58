//! A walk over memory: the yardstick for work that mostly waits for memory.

use std::hint::black_box;
use std::time::Instant;

/// Number of words that a walk reads in sequence.
const STEPS: u32 = 20_000;

/// Memory for a walk: the address of every read depends on the result of the previous read.
pub struct Walk {
    words: Vec<u64>,
    at: u64,
}

impl Walk {
    /// Allocates `bytes` of memory, rounded down to a power of two, and writes all of it.
    pub fn new(bytes: usize) -> Self {
        let count = 1_u64 << (bytes / 8).max(1).ilog2();
        let words = (0..count).map(mixed).collect();
        Self { words, at: 1 }
    }

    /// Returns the mean time of one read, in nanoseconds, over 20,000 reads.
    pub fn sample(&mut self) -> f64 {
        let mask = self.words.len() as u64 - 1;
        let begun = Instant::now();
        for step in 0..STEPS {
            self.at = mixed(self.words[(self.at & mask) as usize] ^ u64::from(step));
        }
        black_box(self.at);
        begun.elapsed().as_nanos() as f64 / f64::from(STEPS)
    }
}

/// The last steps of splitmix64: every bit of the input changes half of the output's bits.
const fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_takes_time_and_reads_all_over() {
        let mut walk = Walk::new(1 << 20);
        assert_eq!(walk.words.len(), 1 << 17);
        assert!(walk.sample() > 0.0);
        let before = walk.at;
        walk.sample();
        assert_ne!(walk.at, before);
    }
}
