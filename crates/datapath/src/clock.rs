//! Offsets from a kernel program's clock to Unix time.

use crate::table::Table;
use anyhow::Result;
use nix::time::{ClockId, clock_getres, clock_gettime};
use std::time::Duration;

/// If two offsets differ by less than this, in nanoseconds, the clock was not set in between.
pub(crate) const STEP_MIN: u64 = 10_000_000;

fn read(clock: ClockId) -> Duration {
    // Reading a clock that every supported kernel has does not fail.
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

/// Returns the offset from the coarse monotonic clock to Unix time, in nanoseconds. The verifier's program reads this
/// clock.
pub fn coarse_to_unix() -> u64 {
    (read(ClockId::CLOCK_REALTIME).saturating_sub(read(ClockId::CLOCK_MONOTONIC))).as_nanos() as u64
}

/// Returns the time that the verifier's program computes if it adds `offset` to its clock, in Unix seconds.
pub fn coarse_to(offset: u64) -> u32 {
    ((read(ClockId::CLOCK_MONOTONIC_COARSE).as_nanos() as u64).wrapping_add(offset) / 1_000_000_000) as u32
}

/// Sets the offset from the coarse monotonic clock to Unix time. Returns whether the clock was set since the last call.
/// If so, the caller has to call [`wait_for_tick`], because each core's program reads the offset only once in a tick.
pub(crate) fn put(clock: &Table<u32, u64>, offset: u64) -> Result<bool> {
    let before = clock.get(&0)?.unwrap_or_default();
    clock.set(&0, &offset)?;
    Ok(before.abs_diff(offset) >= STEP_MIN)
}

/// Waits until every core's program has read the offset again. This takes two ticks, because a core may have read the
/// old offset at the beginning of the first tick.
pub(crate) fn wait_for_tick() {
    let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map(Duration::from).unwrap_or_default();
    let end = read(ClockId::CLOCK_MONOTONIC_COARSE) + 2 * tick;
    while read(ClockId::CLOCK_MONOTONIC_COARSE) < end {
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Returns the offset from the boot clock to Unix time, in nanoseconds. The agent's program reads this clock.
pub fn boot_to_unix() -> u64 {
    (read(ClockId::CLOCK_REALTIME).saturating_sub(read(ClockId::CLOCK_BOOTTIME))).as_nanos() as u64
}

/// Returns the offset with which a program that reads the coarse monotonic clock computes the time `unix` (seconds).
/// The offset is in nanoseconds. For tests.
pub fn coarse_reading(unix: u64) -> u64 {
    (unix * 1_000_000_000).wrapping_sub(read(ClockId::CLOCK_MONOTONIC).as_nanos() as u64)
}

/// Returns the offset with which a program that reads the boot clock computes the time `unix` (seconds). The offset is
/// in nanoseconds. For tests.
pub fn boot_reading(unix: u64) -> u64 {
    (unix * 1_000_000_000).wrapping_sub(read(ClockId::CLOCK_BOOTTIME).as_nanos() as u64)
}
