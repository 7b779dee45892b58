//! The verifier's daemon: supplies the kernel programs with keys, receivers and revocations, and reports what they do.
//!
//! This crate does IO around pure decisions: `plan` decides what to write into which table, `adoption` which
//! connections to adopt. The kernel programs decide whether a packet passes, and keep running when this process ends;
//! `engine::verifier` explains their decisions.
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
mod kernel;
pub mod metrics;
pub mod owners;
pub mod peers;
pub mod plan;
mod proving;
mod recheck;
mod report;
mod sampler;
pub mod settings;
mod shared;
pub mod view;

pub use shell::clock::now;
