//! One end's state of a phase of a tunnel (wire.md §9.6, §9.7, §9.10).

use super::{Dropped, FAILED_MAX, Millis, NotSealed, UNITS_MAX};
use seal::{Batch, Keys, Windows, units};
use wire::seal::record::LANES;
use wire::seal::{Content, Counter, Direction, Index, PhaseSecret, RecordHeader, Suite};

/// Keys and counters for the records of one phase.
pub(super) struct Phase {
    pub number: u32,
    /// This end's index in the phase, which the other end writes into its records.
    pub mine: Index,
    /// The other end's index in the phase, which this end writes into its records.
    pub theirs: Index,
    pub begun: Millis,
    pub secret: PhaseSecret,
    seals: Keys,
    opens: Keys,
    seen: Windows,
    /// The next record number of each lane.
    next: [u64; LANES as usize],
    sealed: u64,
    failed: u64,
}

impl Phase {
    /// Creates a phase in which this end's records go in direction `way`.
    pub fn new(number: u32, mine: Index, theirs: Index, secret: PhaseSecret, way: Direction, now: Millis) -> Self {
        Self {
            number,
            mine,
            theirs,
            begun: now,
            seals: Keys::new(secret.clone(), way),
            opens: Keys::new(secret.clone(), way.back()),
            secret,
            seen: Windows::default(),
            next: [0; LANES as usize],
            sealed: 0,
            failed: 0,
        }
    }

    /// Seals one record and appends it to `out`.
    ///
    /// # Errors
    ///
    /// Returns the reason why the record was not sealed.
    pub fn seal(
        &mut self,
        content: Content,
        suite: Suite,
        lane: u8,
        parts: &[&[u8]],
        out: &mut Batch,
    ) -> Result<(), NotSealed> {
        let cost = units(parts.iter().map(|part| part.len()).sum());
        if self.sealed + cost > UNITS_MAX {
            return Err(NotSealed::Over);
        }
        let next = self.next.get_mut(usize::from(lane)).ok_or(NotSealed::Impossible)?;
        let counter = Counter::new(lane, *next).ok_or(NotSealed::Over)?;
        let header = RecordHeader { content, suite, index: self.theirs, counter };
        // The number is used up even if sealing fails, so that no counter is used twice.
        *next += 1;
        self.sealed += cost;
        out.seal(&self.seals, &header, parts).ok_or(NotSealed::Impossible)
    }

    /// Opens a record in place. Returns its body, and whether the record's number is the highest of its lane so far.
    ///
    /// # Errors
    ///
    /// Returns why the record was dropped.
    pub fn open<'r>(&mut self, header: &RecordHeader, record: &'r mut [u8]) -> Result<(&'r mut [u8], bool), Dropped> {
        if !self.seen.is_new(header.counter) {
            return Err(Dropped::Replayed);
        }
        if self.failed >= FAILED_MAX {
            return Err(Dropped::Limit);
        }
        let Some(body) = self.opens.open(header, record) else {
            self.failed += 1;
            return Err(Dropped::BadTag);
        };
        let is_highest = self.seen.note(header.counter);
        Ok((body, is_highest))
    }

    /// Reports whether the next phase should begin. This is the case if at least `units` units were sealed in this
    /// phase, or if the number of records that failed to open has reached half of its limit.
    pub fn is_worn(&self, units: u64) -> bool {
        self.sealed >= units || self.failed >= FAILED_MAX / 2
    }

    /// Reports whether it is possible that this end sealed a record with this counter: the counter is one of the latest
    /// 65 536 counters of its lane.
    pub fn may_have_sealed(&self, counter: Counter) -> bool {
        let next = self.next.get(usize::from(counter.lane())).copied().unwrap_or(0);
        counter.number() < next && next - counter.number() <= 65_536
    }

    /// Discards keys that can be derived again.
    pub fn rest(&mut self) {
        self.seals.rest();
        self.opens.rest();
    }

    #[cfg(test)]
    pub fn wear(&mut self, sealed: u64, failed: u64) {
        (self.sealed, self.failed) = (sealed, failed);
    }
}
