//! The ladder's results for each path.

use super::super::Subject;
use super::{Path, Rung, State};
use std::collections::BTreeMap;
use std::time::Duration;

/// Number of unanswered first packets after which a rung is bad, if another rung's packet was answered.
pub const FAILURES_MAX: u32 = 2;
/// Time for which a rung is bad at first. The time doubles whenever the rung becomes bad again.
const BACKOFF: Duration = Duration::from_secs(3600);
/// Maximum number of times that [`BACKOFF`] doubles: to 64 hours.
const DOUBLINGS_MAX: u32 = 6;
/// Longest time for which a rung is bad.
pub const BACKOFF_MAX: Duration = Duration::from_secs(3600 << DOUBLINGS_MAX);
/// Maximum count of the times in a row that a rung became bad. Further times are not counted.
pub const TIMES_MAX: u32 = DOUBLINGS_MAX + 1;
/// Maximum number of paths for which a subject's results are kept. A new path replaces the path that was used least
/// recently.
pub const PATHS_MAX: usize = 128;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Number of first packets in a row that were sent by this rung and not answered, although another rung's packet
    /// was.
    pub failures: u32,
    /// Time until which the rung is bad.
    pub until: Duration,
    /// Number of times in a row that the rung became bad.
    pub times: u32,
    /// Whether the latest first packet by this rung was answered; `None` if there was none.
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
pub struct Results {
    pub rungs: [Record; Rung::ALL.len()],
    pub round_trip: Option<Duration>,
    /// The rung with which the next connection begins, if it is unclear which rung works.
    pub unclear: Option<Rung>,
    pub used: Duration,
    /// For each rung, the time of the latest answer that has shown that the rung works.
    pub answered: [Duration; Rung::ALL.len()],
}

/// The results for all paths.
#[derive(Default)]
pub struct Memory {
    paths: BTreeMap<Path, Results>,
    /// Whether a rung's results have changed since they were last stored.
    pub changed: bool,
}

impl Memory {
    /// Reports whether a rung is bad, so that connections begin with another rung.
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
        self.results(now, path).round_trip = Some(time);
    }

    /// Records that a rung's first packet was answered at the time `at`, so that the rung is no longer bad.
    pub fn worked(&mut self, now: Duration, path: &Path, rung: Rung, at: Duration) {
        let works = Record { works: Some(true), ..Record::default() };
        let results = self.results(now, path);
        let answered = &mut results.answered[rung as usize];
        *answered = at.max(*answered);
        // Whether a rung further down works need not be found out now.
        results.unclear = results.unclear.filter(|unclear| *unclear < rung);
        let before = std::mem::replace(&mut results.rungs[rung as usize], works);
        self.changed |= before != works;
    }

    /// Returns the rung with which the next connection begins if it is unclear whether this rung works.
    pub fn unclear(&self, path: &Path) -> Option<Rung> {
        self.paths.get(path)?.unclear
    }

    /// Records that a connection has begun with a rung.
    pub fn began(&mut self, path: &Path, rung: Rung) {
        if let Some(results) = self.paths.get_mut(path).filter(|results| results.unclear == Some(rung)) {
            results.unclear = None;
        }
    }

    /// Records that `rung` has possibly failed. Its first packet was not answered in time, so the agent also sent the
    /// packet by `other`. The answer that then arrived does not show which of the two packets it answers. If an earlier
    /// answer has shown that `other` works, `rung` counts as failed. Otherwise, the next connection begins with
    /// `other`. The agent sent the packet by `rung` at the time `sent`. If another packet by `rung` was answered since,
    /// nothing is in doubt.
    pub fn doubted(&mut self, now: Duration, path: &Path, (rung, sent): (Rung, Duration), other: Rung) {
        let works = self.record(path, other).works == Some(true);
        let results = self.results(now, path);
        if sent <= results.answered[rung as usize] {
            return;
        }
        results.unclear = Some(other).filter(|_| !works);
        let record = &mut results.rungs[rung as usize];
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

    /// Records that a first packet by `rung` was not answered, although the same packet by another rung was. The agent
    /// sent the packet by `rung` at the time `sent`. If a packet of another connection by `rung` was answered since,
    /// nothing changes, because the rung works by now.
    pub fn failed(&mut self, now: Duration, path: &Path, rung: Rung, sent: Duration) {
        let results = self.results(now, path);
        if sent <= results.answered[rung as usize] {
            return;
        }
        let record = &mut results.rungs[rung as usize];
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

    /// Ends the bad state of every rung.
    pub fn forgive(&mut self) {
        for results in self.paths.values_mut() {
            results.unclear = None;
        }
        for record in self.paths.values_mut().flat_map(|results| &mut results.rungs) {
            let forgiven = Record { works: record.works, ..Record::default() };
            self.changed |= std::mem::replace(record, forgiven) != forgiven;
        }
    }

    pub fn forget(&mut self, subject: Subject) {
        let before = self.paths.len();
        self.paths.retain(|path, _| path.subject != subject);
        self.changed |= self.paths.len() != before;
    }

    /// Returns the results for each path.
    pub fn paths(&self) -> impl Iterator<Item = (&Path, &Results)> {
        self.paths.iter()
    }

    /// Sets the results for a path.
    pub fn put(&mut self, path: Path, results: Results) {
        self.paths.insert(path, results);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    fn record(&self, path: &Path, rung: Rung) -> Record {
        self.paths.get(path).map(|results| results.rungs[rung as usize]).unwrap_or_default()
    }

    fn results(&mut self, now: Duration, path: &Path) -> &mut Results {
        if !self.paths.contains_key(path) {
            let of_subject = self.paths.iter().filter(|(other, _)| other.subject == path.subject);
            let oldest = of_subject.clone().min_by_key(|(_, results)| results.used).map(|(other, _)| *other);
            if of_subject.count() >= PATHS_MAX
                && let Some(oldest) = oldest
            {
                self.paths.remove(&oldest);
            }
        }
        let results = self.paths.entry(*path).or_default();
        results.used = now;
        results
    }
}
