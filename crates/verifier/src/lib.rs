//! The verifier's daemon: supplies the kernel programs with keys, receivers and revocations, and reports what they do.
//!
//! This crate does the IO. Its modules `plan` and `adoption` do none: `plan` decides what to write into which table,
//! and `adoption` decides which connections to adopt. The kernel programs decide whether a packet passes. They keep
//! running when this process ends. `engine::verifier` explains their decisions.
//!
//! ```no_run
//! use clap::Parser;
//!
//! #[derive(Parser)]
//! struct Arguments {
//!     #[command(subcommand)]
//!     command: verifier::cli::VerifierCommand,
//! }
//!
//! # async fn start() -> anyhow::Result<()> {
//! // This is what `vouchsafe verifier run` does. It needs root.
//! let arguments = Arguments::parse_from(["vouchsafe verifier", "run"]);
//! let code = verifier::cli::run(arguments.command).await?;
//! # Ok(()) }
//! ```
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
mod identity;
mod kernel;
pub mod lessees;
pub mod metrics;
pub mod organisations;
pub mod owners;
pub mod peers;
pub mod plan;
mod proving;
mod recheck;
mod relay;
mod report;
mod sampler;
#[cfg(feature = "seal")]
mod sealed;
pub mod settings;
mod shared;
mod unnamed;
pub mod view;

pub use shell::clock::now;
