//! Clocks over the boot clock: this machine's, and each authority's, learnt from its answers. Tokens carry the
//! authority's time, so that a wrong clock here does no harm.

use std::time::Duration;

/// Differences below this are the coarse grain of the answers and of the network.
const NEGLIGIBLE: u64 = 1000;
/// An answer tells whole seconds: on average half of one has passed, milliseconds.
const HALF_GRAIN: u64 = 500;

/// What to add to the boot clock for Unix time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Unix time at boot, milliseconds.
    boot: u64,
}

impl Clock {
    /// A clock that says `unix` when the boot clock says `now`.
    pub fn at(unix: Duration, now: Duration) -> Self {
        Self { boot: unix.saturating_sub(now).as_millis() as u64 }
    }

    /// Unix seconds.
    pub fn unix(&self, now: Duration) -> u64 {
        (self.boot + now.as_millis() as u64) / 1000
    }

    /// As the kernel program adds it.
    pub fn boot_to_unix_nanos(&self) -> u64 {
        self.boot * 1_000_000
    }

    /// A clock that is so many seconds ahead of this one.
    pub fn shifted(&self, skew: i32) -> Self {
        Self { boot: self.boot.saturating_add_signed(i64::from(skew) * 1000) }
    }

    /// How many whole seconds this clock is ahead of `other`.
    pub fn skew(&self, other: &Self) -> i32 {
        let difference = i128::from(self.boot) - i128::from(other.boot);
        difference.div_euclid(1000).clamp(i32::MIN.into(), i32::MAX.into()) as i32
    }

    /// The authority said that it was `unix`, some time between `asked` and `answered`. Says whether that changed
    /// anything.
    pub fn told(&mut self, unix: u64, asked: Duration, answered: Duration) -> bool {
        let middle = (asked + answered).as_millis() as u64 / 2;
        let boot = (unix.min(u32::MAX.into()) * 1000 + HALF_GRAIN).saturating_sub(middle);
        let differs = boot.abs_diff(self.boot) >= NEGLIGIBLE + (answered.saturating_sub(asked)).as_millis() as u64 / 2;
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
        let (asked, answered) = (Duration::from_millis(10_000), Duration::from_millis(10_200));
        let mut clock = Clock::at(Duration::from_secs(1_800_000_000), Duration::from_secs(10));
        assert!(!clock.told(1_800_000_000, asked, answered));
        let second = Duration::from_secs(1);
        assert!(!clock.told(1_800_000_001, asked + second, answered + second));
        assert!(clock.told(1_800_000_090, asked, answered));
        assert_eq!(clock.unix(answered), 1_800_000_090);
        assert_eq!(clock.boot_to_unix_nanos() / 1_000_000_000, 1_800_000_080);
    }
}
