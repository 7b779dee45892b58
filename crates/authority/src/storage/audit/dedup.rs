//! Counts repeated events instead of writing them all, so that an attacker cannot fill the disk with audit entries.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of events that are written per subject and minute.
const WRITTEN: u64 = 10;
/// Maximum number of counters in memory.
const MOST: usize = 16_384;

/// The numbers of events by subject and minute. A minute is given as the number of minutes since the Unix epoch.
pub struct AuditDedup<S>(Mutex<Counts<S>>);

struct Counts<S> {
    by_subject: HashMap<(S, u64), u64>,
    /// Number of events whose subjects have no counter of their own, because there are too many subjects.
    others: u64,
}

/// The numbers of events that were counted but not written.
#[derive(Debug, PartialEq, Eq)]
pub struct LeftOut<S> {
    /// Subject, minute, and number of events.
    pub by_subject: Vec<(S, u64, u64)>,
    /// Number of events of subjects for which there was no room.
    pub others: u64,
}

impl<S> Default for AuditDedup<S> {
    fn default() -> Self {
        Self(Mutex::new(Counts { by_subject: HashMap::new(), others: 0 }))
    }
}

impl<S: Eq + Hash> AuditDedup<S> {
    /// Counts an event of a subject in a minute. Returns true if the caller must write the event. This is so for the
    /// subject's first ten events in the minute, if there is room for the subject's counter.
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

    /// Returns how many events before `minute` were not written, and removes their counters, so that each count is
    /// reported once.
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
        let dedup = AuditDedup::default();
        for nth in 0..WRITTEN + 5 {
            assert_eq!(dedup.note("alice", 1), nth < WRITTEN);
        }
        assert!(dedup.note("bob", 1));
        assert_eq!(dedup.settle(1).by_subject, []);
        assert!(dedup.note("alice", 2), "another minute");
        assert_eq!(dedup.settle(2), LeftOut { by_subject: vec![("alice", 1, 5)], others: 0 });
        assert_eq!(dedup.settle(u64::MAX), LeftOut { by_subject: vec![], others: 0 }, "told once");
    }

    #[test]
    fn memory_is_bounded() {
        let dedup = AuditDedup::default();
        for subject in 0..MOST + 10 {
            dedup.note(subject, 1);
        }
        assert!(!dedup.note(MOST + 10, 1));
        assert!(dedup.lock().by_subject.len() <= MOST);
        assert_eq!(dedup.settle(1).others, 11, "counted all the same");
        assert!(dedup.note(MOST + 10, 2));
    }
}
