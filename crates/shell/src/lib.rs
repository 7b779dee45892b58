//! IO functions that the programs (authority, agent, verifier and others) share. They are about lists for users,
//! standard output, the daemons' folders, clocks, signals, control sockets, a page of metrics, HTTP and huge pages.
//!
//! The programs determine the contents of these lists, files, requests and pages.
#![deny(unsafe_code)]

pub mod clock;
pub mod control;
pub mod folder;
#[cfg(feature = "metrics")]
pub mod http;
pub mod lines;
#[cfg(target_os = "linux")]
pub mod memory;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod output;
pub mod signals;
pub mod table;
