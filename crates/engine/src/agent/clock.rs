//! Unix clocks, derived from the boot clock: one for this machine, and one for each authority, which is set from the
//! authority's answers. Tokens carry the authority's time, so a wrong clock on this machine does no harm.

use std::time::Duration;

/// The largest difference, in milliseconds, that does not change a clock: the resolution of the answers and the
/// network's delay explain it.
const NEGLIGIBLE: u64 = 1000;
/// Mean time, in milliseconds, between the whole second that an answer states and the answer itself.
const HALF_GRAIN: u64 = 500;

/// A clock that shows Unix time, stored as the offset of this time from the boot clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Unix time at boot, milliseconds.
    boot: u64,
}

impl Clock {
    /// Creates a clock that shows `unix` when the boot clock shows `now`.
    pub fn at(unix: Duration, now: Duration) -> Self {
        Self { boot: unix.saturating_sub(now).as_millis() as u64 }
    }

    /// Returns the Unix time, in seconds, at the time `now` of the boot clock.
    pub fn unix(&self, now: Duration) -> u64 {
        (self.boot + now.as_millis() as u64) / 1000
    }

    /// Returns the number of nanoseconds to add to the boot clock to get this clock's Unix time, as the kernel program
    /// does.
    pub fn boot_to_unix_nanos(&self) -> u64 {
        self.boot * 1_000_000
    }

    /// Returns a clock that is `skew` seconds ahead of this clock.
    pub fn shifted(&self, skew: i32) -> Self {
        Self { boot: self.boot.saturating_add_signed(i64::from(skew) * 1000) }
    }

    /// Returns the number of whole seconds by which this clock is ahead of `other`.
    pub fn skew(&self, other: &Self) -> i32 {
        let difference = i128::from(self.boot) - i128::from(other.boot);
        difference.div_euclid(1000).clamp(i32::MIN.into(), i32::MAX.into()) as i32
    }

    /// Sets the clock from an answer: the authority's time was `unix` at some moment between `requested` and
    /// `answered`. Returns whether the clock has changed.
    pub fn sync(&mut self, unix: u64, requested: Duration, answered: Duration) -> bool {
        let middle = (requested + answered).as_millis() as u64 / 2;
        let boot = (unix.min(u32::MAX.into()) * 1000 + HALF_GRAIN).saturating_sub(middle);
        let differs =
            boot.abs_diff(self.boot) >= NEGLIGIBLE + (answered.saturating_sub(requested)).as_millis() as u64 / 2;
        if differs {
            self.boot = boot;
        }
        differs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_differences_move_the_clock() {
        let (requested, answered) = (Duration::from_millis(10_000), Duration::from_millis(10_200));
        let mut clock = Clock::at(Duration::from_secs(1_800_000_000), Duration::from_secs(10));
        assert!(!clock.sync(1_800_000_000, requested, answered));
        let second = Duration::from_secs(1);
        assert!(!clock.sync(1_800_000_001, requested + second, answered + second));
        assert!(clock.sync(1_800_000_090, requested, answered));
        assert_eq!(clock.unix(answered), 1_800_000_090);
        assert_eq!(clock.boot_to_unix_nanos() / 1_000_000_000, 1_800_000_080);
    }
}
