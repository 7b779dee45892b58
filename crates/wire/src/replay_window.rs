//! The replay window: a ring of bits that records the latest numbers received. Lines use it (wire.md §8.13.7), and so
//! do the lanes of sealed tunnels (§9.7.1).

/// The numbers received. For each of the latest `64 * WORDS` numbers, one bit records whether it was received.
#[derive(Clone, Debug)]
pub struct ReplayWindow<const WORDS: usize> {
    /// The highest number received plus one.
    next: u64,
    /// One bit per recorded number, at the number modulo the window's width.
    bits: [u64; WORDS],
}

impl<const WORDS: usize> Default for ReplayWindow<WORDS> {
    fn default() -> Self {
        Self { next: 0, bits: [0; WORDS] }
    }
}

impl<const WORDS: usize> ReplayWindow<WORDS> {
    const WIDTH: u64 = WORDS as u64 * 64;

    /// Reports whether a number has certainly not been received yet. Returns `false` for a number that is `64 * WORDS`
    /// or more below the highest number, and for `u64::MAX`, which no sender reaches.
    pub fn is_new(&self, number: u64) -> bool {
        if number >= self.next {
            return number != u64::MAX;
        }
        self.next - number <= Self::WIDTH && !self.has(number)
    }

    /// Reports whether a number is higher than all numbers received before.
    pub fn is_highest(&self, number: u64) -> bool {
        number >= self.next
    }

    /// Records that `number` was received. The number must be new (see [`Self::is_new`]).
    pub fn note(&mut self, number: u64) {
        if number >= self.next {
            if number - self.next >= Self::WIDTH {
                self.bits = [0; WORDS];
            } else {
                self.forget(self.next, number);
            }
            self.next = number.saturating_add(1);
        }
        let (word, bit) = Self::place(number);
        self.bits[word] |= bit;
    }

    /// Clears the numbers from `first` up to, but not including, `end`. There must be fewer of them than the window's
    /// width.
    fn forget(&mut self, first: u64, end: u64) {
        let mut number = first;
        while number < end {
            let (word, bit) = Self::place(number);
            let next = end.min((number | 63).saturating_add(1));
            // The bits of the word for the numbers from `number` to before `next`.
            let passed = (u64::MAX >> (64 - (next - number))) * bit;
            self.bits[word] &= !passed;
            number = next;
        }
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        self.bits[word] & bit != 0
    }

    fn place(number: u64) -> (usize, u64) {
        ((number % Self::WIDTH / 64) as usize, 1 << (number % 64))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_number_is_new_once_and_never_when_it_is_too_old_to_tell() {
        let mut window = ReplayWindow::<16>::default();
        for number in [0, 1, 4, 3, 999, 1023] {
            assert!(window.is_new(number));
            window.note(number);
            assert!(!window.is_new(number));
        }
        assert!(window.is_new(2) && window.is_new(998));
        window.note(1025);
        assert!(window.is_new(2) && !window.is_new(1), "1024 behind");
        assert!(window.is_new(1024) && !window.is_highest(1024));
        window.note(u64::MAX - 1);
        assert!(!window.is_new(1024) && !window.is_new(u64::MAX - 1) && !window.is_new(u64::MAX));
        assert!(window.is_new(u64::MAX - 2));
    }

    proptest! {
        #[test]
        fn it_says_what_a_set_of_all_would(
            base in prop_oneof![Just(0), Just(u64::MAX - 8000)], numbers in proptest::collection::vec(0u64..6000, 1..300),
        ) {
            let (mut window, mut all) = (ReplayWindow::<16>::default(), BTreeSet::new());
            for number in numbers {
                let number = base + number;
                let is_old = all.last().is_some_and(|highest: &u64| *highest >= number + 1024);
                prop_assert_eq!(window.is_new(number), !is_old && !all.contains(&number));
                prop_assert_eq!(window.is_highest(number), all.last().is_none_or(|highest| *highest < number));
                if window.is_new(number) {
                    window.note(number);
                    all.insert(number);
                }
            }
        }
    }
}
