//! The agent: puts tokens into the first packets of logged-in people's flows.
//!
//! This crate only does IO. The state machine `engine::agent` decides which packets carry which tokens. The daemon
//! passes queued packets, authorities' answers and commands to the state machine, and carries out the state machine's
//! outputs. People's commands are calls to the daemon (see [`reach::protocol`]).
//!
//! ```no_run
//! use clap::Parser;
//!
//! #[derive(Parser)]
//! struct Arguments {
//!     #[command(subcommand)]
//!     command: agent::cli::AgentCommand,
//! }
//!
//! # async fn start() -> anyhow::Result<()> {
//! // This is what `vouchsafe agent run` does. It needs root.
//! let arguments = Arguments::parse_from(["vouchsafe agent", "run"]);
//! let code = agent::cli::run(arguments.command).await?;
//! # Ok(()) }
//! ```

pub mod cli;
mod control;
mod daemon;
mod inject;
mod kernel;
#[cfg(feature = "seal")]
mod key_export;
mod key_transfer;
#[cfg(feature = "seal")]
mod ladder_file;
pub mod metrics;
#[cfg(feature = "seal")]
mod network;
mod owners;
mod packet_queue;
#[cfg(feature = "seal")]
mod sealed;
mod sessions;
pub mod settings;
mod switches;
// Without sealed tunnels, settings are still read, and refused.
#[cfg_attr(not(feature = "seal"), allow(dead_code))]
mod wishes;

pub use daemon::run;

// The clock of `engine::agent` and the kernel program.
use shell::clock::since_boot as now;
use shell::clock::unix;
