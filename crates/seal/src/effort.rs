//! Chooses the compression for which a thread has time beside its other work on packets.

use std::time::Duration;
use wire::seal::Compression;

/// Interval between decisions.
const WINDOW: Duration = Duration::from_millis(100);
/// Largest part of a window for which a thread may be busy. If it is busy for longer, it compresses less.
const BUSY: f64 = 0.9;
/// A thread compresses more only if it would then be busy for at most this part of a window.
const ROOM: f64 = 0.7;
/// The shortest and the longest time for which a thread that was too busy does not try to compress more.
const HOLD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));
/// Assumed cost of the compressions, in nanoseconds a byte, until it has been measured (decision 47).
const COST: [f64; Compression::ALL.len()] = [3.5, 7.5];
/// Minimum length in bytes of a block from which the cost of a byte is measured.
const TELLING: usize = 4096;
/// Weight of the latest block in the measured cost.
const WEIGHT: f64 = 1.0 / 16.0;

/// Chooses the compression of a thread's blocks. If the network path is slower than the thread, stronger compression
/// increases the throughput. If the path is faster, compression would slow the thread down and decrease the throughput.
///
/// All points in time are durations since one fixed moment, which the caller chooses.
#[derive(Debug)]
pub struct Effort {
    /// Number of methods in [`Compression::ALL`] for which the thread has time. The last of these methods is in use.
    level: usize,
    cost: [f64; Compression::ALL.len()],
    /// Time at which the window began, and the time in the window in which the thread had nothing to do.
    begun: Duration,
    idle: Duration,
    /// Bytes that could be compressed in this window.
    offered: usize,
    hold: Duration,
    until: Duration,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            level: Compression::ALL.len(),
            cost: COST,
            begun: Duration::ZERO,
            idle: Duration::ZERO,
            offered: 0,
            hold: HOLD.0,
            until: Duration::ZERO,
        }
    }
}

impl Effort {
    /// Creates the value for a thread that starts its work at the time `now`.
    pub fn new(now: Duration) -> Self {
        Self { begun: now, ..Self::default() }
    }

    /// Returns the compression that the thread should use now. Returns `None` if the thread has no time to compress.
    pub fn compression(&self) -> Option<Compression> {
        Compression::ALL.get(self.level.checked_sub(1)?).copied()
    }

    /// Records that the thread has a block of `bytes` bytes to send that could be compressed.
    pub fn offered(&mut self, bytes: usize) {
        self.offered += bytes;
    }

    /// Records that compressing a block of `bytes` bytes by the method `how` took the time `took`.
    pub fn compressed(&mut self, how: Compression, bytes: usize, took: Duration) {
        let place = Compression::ALL.iter().position(|compression| *compression == how);
        if let Some(cost) = place.and_then(|place| self.cost.get_mut(place)).filter(|_| bytes >= TELLING) {
            *cost += (took.as_nanos() as f64 / bytes as f64 - *cost) * WEIGHT;
        }
    }

    /// Records that the thread had nothing to do for the time `idle`, which ended at `now`. The thread should call this
    /// at least every 100 ms, even if `idle` is zero.
    pub fn waited(&mut self, now: Duration, idle: Duration) {
        self.idle += idle;
        let window = now.saturating_sub(self.begun);
        if window < WINDOW {
            return;
        }
        let busy = 1.0 - self.idle.as_secs_f64() / window.as_secs_f64();
        let rate = self.offered as f64 / window.as_nanos() as f64;
        (self.begun, self.idle, self.offered) = (now, Duration::ZERO, 0);
        let cost = |level: usize| level.checked_sub(1).map_or(Some(0.0), |place| self.cost.get(place).copied());
        if busy > BUSY && self.level > 0 {
            self.level -= 1;
            self.until = now + self.hold;
            self.hold = (self.hold * 2).min(HOLD.1);
        } else if now >= self.until
            && let (Some(here), Some(above)) = (cost(self.level), cost(self.level + 1))
            && busy + rate * (above - here) <= ROOM
        {
            self.level += 1;
        } else if now >= self.until + HOLD.1 {
            self.hold = HOLD.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that seals at most `path` bytes a nanosecond, for 2 ns a byte, of text that shrinks to 3/5 by LZ4 and
    /// to 2/5 by zstd. Returns what it does at the end of each window.
    fn run(effort: &mut Effort, begin: u64, windows: u64, path: f64) -> Vec<Option<Compression>> {
        let after = |window| {
            let how = effort.compression();
            let (shrinks, cost) = match how {
                None => (1.0, 0.0),
                Some(Compression::Lz4) => (0.6, 3.3),
                Some(Compression::Zstd) => (0.4, 7.5),
            };
            let each = 2.0 * shrinks + cost;
            let rate = (path / shrinks).min(1.0 / each);
            let nanos = WINDOW.as_nanos() as f64;
            for _ in 0..100 {
                effort.offered((rate * nanos / 100.0) as usize);
                if let Some(how) = how {
                    effort.compressed(how, 60_000, Duration::from_nanos((cost * 60_000.0) as u64));
                }
            }
            effort.waited(WINDOW * (begin + window) as u32, WINDOW.mul_f64((1.0 - rate * each).max(0.0)));
            effort.compression()
        };
        (1..=windows).map(after).collect()
    }

    #[test]
    fn a_slow_path_gets_the_strongest_and_a_fast_one_none() {
        let mbit = 1e6 / 8.0 / 1e9;
        for (path, expected) in [(100.0, Some(Compression::Zstd)), (500.0, Some(Compression::Lz4)), (20_000.0, None)] {
            let mut effort = Effort::default();
            let chosen = run(&mut effort, 0, 1000, path * mbit);
            let right = chosen[20..].iter().filter(|how| **how == expected).count();
            assert!(right >= 970, "{path} Mbit/s: {right} of 980 windows {expected:?}");
        }
    }

    #[test]
    fn time_before_the_thread_began_to_compress_does_not_count() {
        let mut effort = Effort::new(WINDOW * 100);
        effort.waited(WINDOW * 101, WINDOW);
        assert_eq!(effort.compression(), Some(Compression::Zstd));
        let mut busy = Effort::default();
        busy.waited(WINDOW * 101, WINDOW);
        assert_eq!(busy.compression(), Some(Compression::Lz4));
    }

    #[test]
    fn a_path_that_becomes_slow_gets_compression_again() {
        let mut effort = Effort::default();
        let mbit = 1e6 / 8.0 / 1e9;
        assert_eq!(run(&mut effort, 0, 100, 20_000.0 * mbit).last(), Some(&None));
        let again = run(&mut effort, 100, 1000, 100.0 * mbit);
        let first = again.iter().position(|how| *how == Some(Compression::Zstd));
        assert!(first.is_some_and(|window| window <= 700), "{first:?}");
        assert!(again[first.unwrap_or(0)..].iter().all(|how| *how == Some(Compression::Zstd)));
    }
}
