//! The time for which a thread looks for packets before it sleeps.
//!
//! To wake a thread that sleeps takes 10 to 20 us, and much longer on some virtual machines. A round trip through a
//! tunnel wakes four threads of the tunnel's two ends. While two programs converse, the answer to a packet usually
//! comes sooner than a thread wakes. So a thread that was woken soon after it fell asleep looks for packets for a short
//! while before it sleeps again. Meanwhile it gives its processor to every other task that wants it.
//!
//! Three limits hold the cost down. A thread that moves bulk data, or that waits long for each packet, sleeps at once.
//! All others may look for a quarter of the time, in the long run.

use nix::poll::{PollFd, PollTimeout, poll};
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// Maximum time for which a thread looks for packets before it sleeps.
const LONGEST: Duration = Duration::from_micros(80);
/// Maximum wait for a packet after which the next packet is expected soon.
const SOON: Duration = Duration::from_micros(150);
/// Number of bytes that count as bulk data if a thread moves them, or more, without a wait.
const BULK: usize = 16_384;
/// Time without bulk data after which a thread may look again.
const CALM: Duration = Duration::from_millis(2);
/// Maximum time that a thread can save up for looking.
const SAVED_MAX: Duration = Duration::from_millis(100);
/// The part of the time that a thread may look in the long run is one divided by this number.
const SHARE: u32 = 4;

/// Decides for one thread how long it looks for packets before it sleeps.
pub struct Spin {
    /// Whether the latest packet came soon.
    is_soon: bool,
    /// Number of bytes that were moved since the latest wait.
    moved: usize,
    /// Time at which bulk data was last moved.
    bulk: Option<Instant>,
    saved: Duration,
    /// Time up to which `saved` has grown.
    grown: Instant,
}

impl Spin {
    /// Creates a value for a thread that has not waited yet.
    pub fn new(now: Instant) -> Self {
        Self { is_soon: false, moved: 0, bulk: None, saved: SAVED_MAX, grown: now }
    }

    /// Waits until one of the files is ready, or for `patience`. Returns what `poll` returned last.
    pub fn wait(&mut self, files: &mut [PollFd<'_>], patience: PollTimeout) -> nix::Result<i32> {
        let begun = Instant::now();
        let (longest, mut looked, mut ready) = (self.longest(begun), Duration::ZERO, Ok(0));
        while ready == Ok(0) && looked < longest {
            yield_now();
            ready = poll(files, PollTimeout::ZERO);
            looked = begun.elapsed();
        }
        if ready == Ok(0) {
            ready = poll(files, patience);
        }
        self.waited(begun.elapsed(), looked);
        ready
    }

    /// Adds to the number of bytes that the thread has moved since its latest wait.
    pub fn moved(&mut self, bytes: usize) {
        self.moved += bytes;
    }

    /// Returns how long the thread may look for packets from `now` on. The time is zero if it should sleep at once.
    fn longest(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.grown);
        (self.saved, self.grown) = ((self.saved + passed / SHARE).min(SAVED_MAX), now);
        if std::mem::take(&mut self.moved) >= BULK {
            self.bulk = Some(now);
        }
        let is_calm = self.bulk.is_none_or(|bulk| now.saturating_duration_since(bulk) >= CALM);
        if self.is_soon && is_calm && self.saved >= LONGEST { LONGEST } else { Duration::ZERO }
    }

    /// Records that the thread waited for `wait`, and that it looked for packets during `looked` of this time.
    fn waited(&mut self, wait: Duration, looked: Duration) {
        self.saved = self.saved.saturating_sub(looked);
        self.is_soon = wait < SOON;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    /// Waits `count` times for a packet that comes after `wait`. Returns how long the thread looked in all.
    fn look(spin: &mut Spin, now: &mut Instant, count: u32, wait: Duration, bytes: usize) -> Duration {
        let mut all = Duration::ZERO;
        for _ in 0..count {
            let looked = spin.longest(*now).min(wait);
            *now += wait;
            spin.waited(wait, looked);
            spin.moved(bytes);
            all += looked;
        }
        all
    }

    #[test]
    fn a_thread_looks_only_while_packets_come_soon_and_are_few() {
        let mut now = Instant::now();
        let mut spin = Spin::new(now);
        assert_eq!(spin.longest(now), Duration::ZERO, "nothing came yet");
        // Answers within 30 us: all waits but the first one are spent looking.
        assert_eq!(look(&mut spin, &mut now, 100, 30 * MICROSECOND, 100), 99 * 30 * MICROSECOND);
        // One packet each millisecond: only the wait after a short one is spent looking.
        assert_eq!(look(&mut spin, &mut now, 100, 1000 * MICROSECOND, 100), LONGEST);
        // Bulk data: nothing until two milliseconds after it.
        look(&mut spin, &mut now, 1, 30 * MICROSECOND, BULK);
        assert_eq!(look(&mut spin, &mut now, 60, 30 * MICROSECOND, 100), Duration::ZERO);
        assert!(look(&mut spin, &mut now, 60, 30 * MICROSECOND, 100) > Duration::ZERO);
    }

    #[test]
    fn nobody_can_make_a_thread_look_all_the_time() {
        for wait in [10, 79, 81, 149] {
            let mut now = Instant::now();
            let mut spin = Spin::new(now);
            let count = 10_000_000 / wait;
            let looked = look(&mut spin, &mut now, count, wait * MICROSECOND, 100);
            let all = count * wait * MICROSECOND;
            assert!(looked <= all / SHARE + SAVED_MAX, "{looked:?} of {all:?} with waits of {wait} us");
        }
    }
}
