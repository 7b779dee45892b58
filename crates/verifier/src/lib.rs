//! The verifier: keeps the kernel programs supplied with keys, receivers and revocations, and says what they do.
//!
//! IO around pure decisions: what to write into which table is `plan`'s, whom to adopt `adoption`'s. The kernel decides
//! whether a packet passes, and goes on when this process doesn't; `engine::verifier` explains its decisions.
#![forbid(unsafe_code)]

pub mod addresses;
pub mod adoption;
pub mod cli;
mod confirm;
pub mod control;
mod daemon;
pub mod directory;
pub mod drops;
mod exposure;
mod gateway;
pub mod metrics;
pub mod owners;
pub mod peers;
pub mod plan;
mod protection;
mod proving;
mod recheck;
mod report;
mod sampler;
pub mod settings;
mod shared;
pub mod view;

/// The time, Unix seconds.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
