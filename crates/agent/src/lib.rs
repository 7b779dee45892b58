//! The agent: puts tokens into the first packets of logged-in people's flows.
//!
//! IO only: whose packets carry which tokens is `engine::agent`'s to say. The daemon feeds it with held packets, answers
//! of authorities and commands, and does what it wants done; the command line speaks to the daemon (see [`protocol`]).

pub mod cli;
pub mod config;
mod daemon;
mod inject;
mod kernel;
mod key_transfer;
pub mod metrics;
pub mod protocol;
mod resolver;
mod sessions;
mod socket;
mod switches;

pub use daemon::run;

use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Time since boot: the clock that `engine::agent` and the kernel program count by.
fn now() -> Duration {
    // Reading a clock that every supported kernel has does not fail.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// Unix time by this machine's clock.
fn unix() -> Duration {
    clock_gettime(ClockId::CLOCK_REALTIME).map(Duration::from).unwrap_or_default()
}
