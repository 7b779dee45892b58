//! The tunnel endpoint: connects its tenants to virtual networks in which receivers consent to senders (wire.md §8).
//!
//! This crate does the IO. `engine::endpoint` decides which segments to request and which packets wait, and does no IO.
//! The kernel programs decide which packets enter or leave the tunnel. They keep running when this process ends.
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
