//! The authority: logs people in, evaluates the policy, issues grants, and distributes keys to verifiers.
//!
//! This crate does the I/O; `engine::policy` decides requests and `engine::issuing` constructs grants. All state is in
//! one [`Directory`]. Commands write the database in this directory and then notify the server over the control socket
//! there.
//!
//! ```no_run
//! use authority::{Directory, Server};
//!
//! # async fn start() -> anyhow::Result<()> {
//! // `vouchsafe authority init` has made the directory.
//! let mut server = Server::start(Directory::at("/var/lib/vouchsafe/authority"), None).await?;
//! println!("listening at {}", server.address());
//! let error = server.failed().await;
//! server.stop().await;
//! # Err(error) }
//! ```
#![forbid(unsafe_code)]

pub mod admin;
pub mod cluster;
pub mod console;
mod convert;
pub mod directory;
pub mod dns;
mod grants;
mod http;
pub mod keys;
pub mod leases;
pub mod lists;
pub mod login;
pub mod metrics;
pub mod policy;
mod push;
mod segments;
pub mod settings;
mod single_flight;
mod state;
pub mod storage;
mod sync;
pub mod tls;
pub mod webhook;

pub use directory::Directory;
pub use http::server::Server;
pub use segments::batch;
pub use settings::Settings;

/// Returns the current time in Unix seconds.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
