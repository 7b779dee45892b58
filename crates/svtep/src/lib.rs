//! The tunnel endpoint: connects its tenants to virtual networks in which receivers consent to senders (wire.md §8).
//!
//! This crate does the IO around pure decisions: `engine::endpoint` decides which segments to request and which packets
//! wait, and the kernel programs decide what travels. They keep running when this process ends.
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
