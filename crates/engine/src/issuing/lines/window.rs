//! Replay window: which of the latest 1024 counters were seen, in a ring of bits (wire.md §8.13.7).

const WORDS: usize = 16;
const WIDTH: u64 = WORDS as u64 * 64;

/// The counters that were seen. Counters begin at 1, so 0 means none.
#[derive(Clone, Default)]
pub struct Window {
    highest: u64,
    /// Seen counters: the bit of a counter is at its remainder modulo [`WIDTH`].
    bits: [u64; WORDS],
}

impl Window {
    /// Reports whether a counter is new. One too old to tell counts as seen.
    pub fn is_new(&self, counter: u64) -> bool {
        if counter > self.highest {
            return true;
        }
        counter != 0 && self.highest - counter < WIDTH && !self.has(counter)
    }

    /// Records a counter that is new.
    pub fn note(&mut self, counter: u64) {
        if counter > self.highest {
            if counter - self.highest >= WIDTH {
                self.bits = [0; WORDS];
            } else {
                self.forget(self.highest + 1, counter);
            }
            self.highest = counter;
        }
        self.set(counter, true);
    }

    /// Clears the bits of the counters from `first` to before `end`: fewer than [`WIDTH`].
    fn forget(&mut self, first: u64, end: u64) {
        let mut counter = first;
        while counter < end {
            let (word, bit) = place(counter);
            let next = end.min((counter | 63).saturating_add(1));
            // All bits of the word from `counter` to before `next`.
            let passed = (u64::MAX >> (64 - (next - counter))) * bit;
            self.bits[word] &= !passed;
            counter = next;
        }
    }

    fn has(&self, counter: u64) -> bool {
        let (word, bit) = place(counter);
        self.bits[word] & bit != 0
    }

    fn set(&mut self, counter: u64, seen: bool) {
        let (word, bit) = place(counter);
        if seen {
            self.bits[word] |= bit;
        } else {
            self.bits[word] &= !bit;
        }
    }
}

fn place(counter: u64) -> (usize, u64) {
    ((counter % WIDTH / 64) as usize, 1 << (counter % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_counter_is_new_once_and_never_when_it_is_too_old_to_tell() {
        let mut window = Window::default();
        assert!(!window.is_new(0), "counters begin at 1");
        for counter in [1, 2, 5, 4, 1000, 1024] {
            assert!(window.is_new(counter));
            window.note(counter);
            assert!(!window.is_new(counter));
        }
        assert!(window.is_new(3) && window.is_new(999));
        window.note(1026);
        assert!(window.is_new(3) && !window.is_new(2), "1024 behind");
        window.note(u64::MAX);
        assert!(!window.is_new(1025) && !window.is_new(u64::MAX) && window.is_new(u64::MAX - 1));
    }

    proptest! {
        #[test]
        fn it_says_what_a_set_of_all_would(
            base in prop_oneof![Just(0), Just(u64::MAX - 8000)], counters in proptest::collection::vec(1u64..6000, 1..300),
        ) {
            let (mut window, mut all) = (Window::default(), BTreeSet::new());
            for counter in counters {
                let counter = base + counter;
                let is_old = all.last().is_some_and(|highest: &u64| *highest >= counter + WIDTH);
                prop_assert_eq!(window.is_new(counter), !is_old && !all.contains(&counter));
                if window.is_new(counter) {
                    window.note(counter);
                    all.insert(counter);
                }
            }
        }
    }
}
