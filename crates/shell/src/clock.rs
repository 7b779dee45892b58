//! The clocks that daemons read.

use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The clock of [`since_boot`]. On Linux, it also advances while the machine is suspended; on other systems, it does
/// not.
#[cfg(target_os = "linux")]
const BOOT: ClockId = ClockId::CLOCK_BOOTTIME;
#[cfg(not(target_os = "linux"))]
const BOOT: ClockId = ClockId::CLOCK_MONOTONIC;

/// Returns Unix time in whole seconds.
pub fn now() -> u64 {
    unix().as_secs()
}

/// Returns the time since the beginning of 1970 (Unix time).
pub fn unix() -> Duration {
    read(ClockId::CLOCK_REALTIME)
}

/// Returns the time since boot. On Linux, this includes the time in which the machine was suspended.
pub fn since_boot() -> Duration {
    read(BOOT)
}

fn read(clock: ClockId) -> Duration {
    // Every supported kernel has these clocks, so reading them does not fail.
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}
