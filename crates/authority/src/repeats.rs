//! Counts what repeats, so that nobody fills the disk with it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Written down of one subject in one minute.
const WRITTEN: u64 = 10;
/// Subjects counted at a time.
const MOST: usize = 16_384;

/// Events by subject and minute: how many.
pub struct Repeats<S>(Mutex<Counts<S>>);

struct Counts<S> {
    by_subject: HashMap<(S, u64), u64>,
    /// Of subjects for which there was no room.
    others: u64,
}

/// What was not written down one by one.
#[derive(Debug, PartialEq, Eq)]
pub struct LeftOut<S> {
    /// The subject, the minute, how many.
    pub by_subject: Vec<(S, u64, u64)>,
    /// How many of subjects for which there was no room.
    pub others: u64,
}

impl<S> Default for Repeats<S> {
    fn default() -> Self {
        Self(Mutex::new(Counts { by_subject: HashMap::new(), others: 0 }))
    }
}

impl<S: Eq + Hash> Repeats<S> {
    /// Notes an event; true if it is to be written down by itself.
    pub fn note(&self, subject: S, minute: u64) -> bool {
        let mut counts = self.lock();
        let Counts { by_subject, others } = &mut *counts;
        if by_subject.len() >= MOST {
            by_subject.retain(|(_, at), count| *at == minute || *count > WRITTEN);
        }
        let full = by_subject.len() >= MOST;
        let count = match by_subject.entry((subject, minute)) {
            Entry::Vacant(_) if full => {
                *others += 1;
                return false;
            }
            entry => entry.or_default(),
        };
        *count += 1;
        *count <= WRITTEN
    }

    /// What was left out before `minute`; each is told once.
    pub fn settle(&self, minute: u64) -> LeftOut<S> {
        let mut counts = self.lock();
        let past: Vec<_> = counts.by_subject.extract_if(|(_, at), _| *at < minute).collect();
        let past = past.into_iter().filter(|(_, count)| *count > WRITTEN);
        let by_subject = past.map(|((subject, at), count)| (subject, at, count - WRITTEN)).collect();
        LeftOut { by_subject, others: std::mem::take(&mut counts.others) }
    }

    fn lock(&self) -> MutexGuard<'_, Counts<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_written_down_is_told_when_its_minute_is_over() {
        let repeats = Repeats::default();
        for nth in 0..WRITTEN + 5 {
            assert_eq!(repeats.note("alice", 1), nth < WRITTEN);
        }
        assert!(repeats.note("bob", 1));
        assert_eq!(repeats.settle(1).by_subject, []);
        assert!(repeats.note("alice", 2), "another minute");
        assert_eq!(repeats.settle(2), LeftOut { by_subject: vec![("alice", 1, 5)], others: 0 });
        assert_eq!(repeats.settle(u64::MAX), LeftOut { by_subject: vec![], others: 0 }, "told once");
    }

    #[test]
    fn memory_is_bounded() {
        let repeats = Repeats::default();
        for subject in 0..MOST + 10 {
            repeats.note(subject, 1);
        }
        assert!(!repeats.note(MOST + 10, 1));
        assert!(repeats.lock().by_subject.len() <= MOST);
        assert_eq!(repeats.settle(1).others, 11, "counted all the same");
        assert!(repeats.note(MOST + 10, 2));
    }
}
