//! The agent: puts tokens into the first packets of logged-in people's flows.
//!
//! This crate does IO only: `engine::agent` decides which packets carry which tokens. The daemon feeds that state
//! machine with queued packets, answers of authorities and commands, and carries out its outputs. People's commands talk
//! to the daemon (see [`reach::protocol`]).

pub mod cli;
mod control;
mod daemon;
mod inject;
mod kernel;
mod key_transfer;
pub mod metrics;
mod packet_queue;
mod sessions;
pub mod settings;
mod switches;

pub use daemon::run;

// The clock of `engine::agent` and the kernel program.
use shell::clock::since_boot as now;
use shell::clock::unix;
