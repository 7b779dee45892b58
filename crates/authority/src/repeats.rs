//! Counts what repeats, so that nobody fills the disk with it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

/// Written down of one subject in one minute.
const WRITTEN: u64 = 10;
/// Subjects counted at a time.
const MOST: usize = 16_384;

/// What is to be done about an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It is to be written down, with how many were not in an earlier minute.
    Written {
        /// How many.
        left_out: u64,
    },
    /// It is counted.
    Counted,
}

/// Events by subject: the minute, and how many in it.
pub struct Repeats<S>(Mutex<HashMap<S, (u64, u64)>>);

impl<S> Default for Repeats<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Eq + Hash> Repeats<S> {
    /// Notes an event.
    pub fn note(&self, subject: S, minute: u64) -> Repeat {
        let mut subjects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if subjects.len() >= MOST && !subjects.contains_key(&subject) {
            subjects.retain(|_, (at, _)| *at == minute);
            if subjects.len() >= MOST {
                return Repeat::Counted;
            }
        }
        let (at, count) = subjects.entry(subject).or_insert((minute, 0));
        let mut left_out = 0;
        if *at != minute {
            left_out = count.saturating_sub(WRITTEN);
            (*at, *count) = (minute, 0);
        }
        *count += 1;
        if *count > WRITTEN { Repeat::Counted } else { Repeat::Written { left_out } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_counted_and_told_later() {
        let repeats = Repeats::default();
        for _ in 0..WRITTEN {
            assert_eq!(repeats.note("alice", 1), Repeat::Written { left_out: 0 });
        }
        for _ in 0..5 {
            assert_eq!(repeats.note("alice", 1), Repeat::Counted);
        }
        assert_eq!(repeats.note("bob", 1), Repeat::Written { left_out: 0 });
        assert_eq!(repeats.note("alice", 2), Repeat::Written { left_out: 5 });
        assert_eq!(repeats.note("alice", 2), Repeat::Written { left_out: 0 });
    }

    #[test]
    fn memory_is_bounded() {
        let repeats = Repeats::default();
        for subject in 0..MOST + 10 {
            repeats.note(subject, 1);
        }
        assert_eq!(repeats.note(MOST + 10, 1), Repeat::Counted);
        assert_eq!(repeats.note(MOST + 10, 2), Repeat::Written { left_out: 0 });
    }
}
