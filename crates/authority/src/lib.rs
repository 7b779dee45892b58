//! The authority: logs people in, evaluates policy, issues grants and hands verifiers their keys.
//!
//! This crate does I/O only: `engine::policy` decides requests and `engine::issuing` constructs grants. All state lives
//! in one [`Directory`]; commands write its database and then notify the server over its control socket.
#![forbid(unsafe_code)]

pub mod admin;
pub mod console;
mod convert;
pub mod directory;
pub mod dns;
mod grants;
mod http;
mod keys;
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

pub use directory::Directory;
pub use http::server::Server;
pub use segments::batch;
pub use settings::Settings;

/// Returns the current time in Unix seconds.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
