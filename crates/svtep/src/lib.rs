//! The tunnel endpoint: puts its tenants into virtual networks in which receivers consent to senders (wire.md §8).
//!
//! IO around pure decisions: what is asked for and what waits is `engine::endpoint`'s, what travels is decided in the kernel,
//! which goes on when this process doesn't.
#![forbid(unsafe_code)]

pub mod cli;
mod control;
mod daemon;
mod directory;
mod kernel;
pub mod metrics;
mod outlets;
mod report;
mod session;
pub mod settings;
pub mod view;

/// The time, Unix seconds.
fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
