//! The ladder's memory of each path.

use super::super::Subject;
use super::{Path, Rung, State};
use std::collections::BTreeMap;
use std::time::Duration;

/// Number of unanswered first packets after which a rung is bad, if another rung was answered.
pub const FAILURES_MAX: u32 = 2;
/// Time for which a rung is bad at first. It doubles each time.
const BACKOFF: Duration = Duration::from_secs(3600);
/// How often the time doubles: to 64 hours.
const DOUBLINGS_MAX: u32 = 6;
/// Longest time for which a rung is bad.
pub const BACKOFF_MAX: Duration = Duration::from_secs(3600 << DOUBLINGS_MAX);
/// A rung that became bad more often in a row is treated like one that became bad as often as this.
pub const TIMES_MAX: u32 = DOUBLINGS_MAX + 1;
/// Maximum number of paths that are remembered for a subject. The one that was used least recently makes room.
pub const PATHS_MAX: usize = 128;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// First packets in a row that were not answered while another rung's were.
    pub failures: u32,
    /// Until when the rung is bad.
    pub until: Duration,
    /// How many times in a row the rung became bad.
    pub times: u32,
    /// Whether the latest first packet was answered; `None` if there was none.
    pub works: Option<bool>,
}

impl Record {
    fn turn_bad(&mut self, now: Duration) {
        self.works = Some(false);
        self.until = now + BACKOFF * (1 << self.times.min(DOUBLINGS_MAX));
        self.times = (self.times + 1).min(TIMES_MAX);
        self.failures = 0;
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    pub rungs: [Record; Rung::ALL.len()],
    pub round_trip: Option<Duration>,
    /// The rung with which the next connection begins, because it is unclear which one works.
    pub unclear: Option<Rung>,
    pub used: Duration,
}

/// The records of all paths.
#[derive(Default)]
pub struct Memory {
    paths: BTreeMap<Path, Known>,
    /// Whether a rung's record has changed since the memory was last stored.
    pub changed: bool,
}

impl Memory {
    /// Reports whether connections begin with another rung.
    pub fn is_bad(&self, now: Duration, path: &Path, rung: Rung) -> bool {
        self.record(path, rung).until > now
    }

    pub fn state(&self, now: Duration, path: &Path, rung: Rung) -> State {
        let record = self.record(path, rung);
        match record.works {
            None => State::NotTried,
            Some(true) => State::Works,
            Some(false) => State::Blocked(record.until.saturating_sub(now)),
        }
    }

    pub fn round_trip(&self, path: &Path) -> Option<Duration> {
        self.paths.get(path)?.round_trip
    }

    pub fn note_round_trip(&mut self, now: Duration, path: &Path, time: Duration) {
        self.known(now, path).round_trip = Some(time);
    }

    /// Records that a rung's first packet was answered: it is no longer bad.
    pub fn worked(&mut self, now: Duration, path: &Path, rung: Rung) {
        let works = Record { works: Some(true), ..Record::default() };
        let before = std::mem::replace(&mut self.known(now, path).rungs[rung as usize], works);
        self.changed |= before != works;
    }

    /// Returns the rung with which the next connection begins to find out whether it works.
    pub fn unclear(&self, path: &Path) -> Option<Rung> {
        self.paths.get(path)?.unclear
    }

    /// Records that a connection has begun with a rung.
    pub fn began(&mut self, path: &Path, rung: Rung) {
        if let Some(known) = self.paths.get_mut(path).filter(|known| known.unclear == Some(rung)) {
            known.unclear = None;
        }
    }

    /// Records that a rung's first packet was not answered in its time, and that an answer came after `other` had been
    /// tried too, of which it can't be told which one it was for. The rung has failed only if `other` was answered alone
    /// before; otherwise, the next connection begins with `other`.
    pub fn doubted(&mut self, now: Duration, path: &Path, rung: Rung, other: Rung) {
        let works = self.record(path, other).works == Some(true);
        let known = self.known(now, path);
        known.unclear = Some(other).filter(|_| !works);
        let record = &mut known.rungs[rung as usize];
        if record.until > now {
            return;
        }
        let before = *record;
        record.failures = (record.failures + 1).min(FAILURES_MAX);
        if works && record.failures >= FAILURES_MAX {
            record.turn_bad(now);
        }
        let differs = *record != before;
        self.changed |= differs;
    }

    /// Records that a rung's first packet was not answered, although another rung's was.
    pub fn failed(&mut self, now: Duration, path: &Path, rung: Rung) {
        let record = &mut self.known(now, path).rungs[rung as usize];
        let before = *record;
        record.works = Some(false);
        // A connection that tries a bad rung again does not extend the time.
        if record.until <= now {
            record.failures += 1;
            if record.failures >= FAILURES_MAX {
                record.turn_bad(now);
            }
        }
        let differs = *record != before;
        self.changed |= differs;
    }

    /// Makes no rung bad any more.
    pub fn forgive(&mut self) {
        for known in self.paths.values_mut() {
            known.unclear = None;
        }
        for record in self.paths.values_mut().flat_map(|known| &mut known.rungs) {
            let forgiven = Record { works: record.works, ..Record::default() };
            self.changed |= std::mem::replace(record, forgiven) != forgiven;
        }
    }

    pub fn forget(&mut self, subject: Subject) {
        let before = self.paths.len();
        self.paths.retain(|path, _| path.subject != subject);
        self.changed |= self.paths.len() != before;
    }

    /// Returns what is known of each path.
    pub fn paths(&self) -> impl Iterator<Item = (&Path, &Known)> {
        self.paths.iter()
    }

    /// Sets what is known of a path.
    pub fn put(&mut self, path: Path, known: Known) {
        self.paths.insert(path, known);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    fn record(&self, path: &Path, rung: Rung) -> Record {
        self.paths.get(path).map(|known| known.rungs[rung as usize]).unwrap_or_default()
    }

    fn known(&mut self, now: Duration, path: &Path) -> &mut Known {
        if !self.paths.contains_key(path) {
            let of_subject = self.paths.iter().filter(|(other, _)| other.subject == path.subject);
            let oldest = of_subject.clone().min_by_key(|(_, known)| known.used).map(|(other, _)| *other);
            if of_subject.count() >= PATHS_MAX
                && let Some(oldest) = oldest
            {
                self.paths.remove(&oldest);
            }
        }
        let known = self.paths.entry(*path).or_default();
        known.used = now;
        known
    }
}
