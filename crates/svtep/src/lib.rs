//! The tunnel endpoint: connects its tenants to virtual networks in which receivers consent to senders (wire.md §8).
//!
//! This crate does the IO. `engine::endpoint` decides which segments to request and which packets wait, and does no IO.
//! The kernel programs decide which packets enter or leave the tunnel. They keep running when this process ends.
//!
//! ```no_run
//! use clap::Parser;
//!
//! #[derive(Parser)]
//! struct Arguments {
//!     #[command(subcommand)]
//!     command: svtep::cli::SvtepCommand,
//! }
//!
//! # async fn start() -> anyhow::Result<()> {
//! // This is what `vouchsafe svtep run` does. It needs root.
//! let arguments = Arguments::parse_from(["vouchsafe svtep", "run"]);
//! let code = svtep::cli::run(arguments.command).await?;
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod check;
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

use shell::clock::now;
