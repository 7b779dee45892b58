//! IO that the roles have in common: lists for users, standard output, the daemons' folders, clocks, signals and control
//! sockets, a page of metrics, huge pages.
//!
//! This crate knows nothing of the contents, which belong to the roles.
#![deny(unsafe_code)]

pub mod clock;
pub mod control;
pub mod folder;
pub mod lines;
#[cfg(target_os = "linux")]
pub mod memory;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod output;
pub mod signals;
pub mod table;
