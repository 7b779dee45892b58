//! The agent: puts tokens into the first packets of logged-in people's flows.
//!
//! This crate does IO only: `engine::agent` decides which packets carry which tokens. The daemon feeds that state
//! machine with held packets, answers of authorities and commands, and carries out its outputs; the command line talks
//! to the daemon (see [`protocol`]).

pub mod cli;
pub mod config;
mod daemon;
mod held;
mod inject;
mod kernel;
mod key_transfer;
pub mod metrics;
pub mod protocol;
mod resolver;
#[cfg(feature = "seal")]
mod sealed;
mod sessions;
mod socket;
mod switches;

pub use daemon::run;

// The clock of `engine::agent` and the kernel program.
use shell::clock::since_boot as now;
use shell::clock::unix;
