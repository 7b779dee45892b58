//! Numbers that look random and follow from a seed, so that a run can be repeated.

/// A generator of such numbers (xorshift64*).
pub struct Chance(u64);

impl Chance {
    /// Begins with this seed.
    pub fn new(seed: u64) -> Self {
        // 0 would stay 0.
        let mut this = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        this.next();
        this
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 32) % limit
    }

    /// Returns one of these.
    pub fn one_of<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len() as u64) as usize]
    }
}
