//! Offsets from a kernel program's clock to Unix time.

use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

fn read(clock: ClockId) -> Duration {
    // Reading a clock that every supported kernel has does not fail.
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

/// Returns the nanoseconds from the coarse monotonic clock, which the verifier's program reads, to Unix time.
pub fn coarse_to_unix() -> u64 {
    (read(ClockId::CLOCK_REALTIME).saturating_sub(read(ClockId::CLOCK_MONOTONIC))).as_nanos() as u64
}

/// Returns the Unix time, in seconds, that the verifier's program reads with this offset.
pub fn coarse_to(offset: u64) -> u32 {
    ((read(ClockId::CLOCK_MONOTONIC_COARSE).as_nanos() as u64).wrapping_add(offset) / 1_000_000_000) as u32
}

/// Returns the nanoseconds from the boot clock, which the agent's program reads, to Unix time.
pub fn boot_to_unix() -> u64 {
    (read(ClockId::CLOCK_REALTIME).saturating_sub(read(ClockId::CLOCK_BOOTTIME))).as_nanos() as u64
}

/// Returns the nanoseconds to add to the coarse monotonic clock so that the kernel program reads `unix` seconds; for
/// tests.
pub fn coarse_reading(unix: u64) -> u64 {
    (unix * 1_000_000_000).wrapping_sub(read(ClockId::CLOCK_MONOTONIC).as_nanos() as u64)
}

/// Returns the nanoseconds to add to the boot clock so that the kernel program reads `unix` seconds; for tests.
pub fn boot_reading(unix: u64) -> u64 {
    (unix * 1_000_000_000).wrapping_sub(read(ClockId::CLOCK_BOOTTIME).as_nanos() as u64)
}
