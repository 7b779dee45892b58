//! The authority: logs people in, evaluates policy, issues grants, hands out keys.
//!
//! IO only: what is allowed is `engine::policy`'s to say, what a grant looks like `engine::issue`'s. Everything lives in
//! one [`Directory`]; commands write its database and then tell the server over its control socket.
#![forbid(unsafe_code)]

pub mod admin;
pub mod backup;
pub mod cli;
pub mod config;
mod confirmations;
pub mod console;
pub mod control;
mod credentials;
mod descriptors;
pub mod directory;
pub mod dns;
mod extract;
mod handlers;
mod key_transfer;
mod keys;
mod listener;
pub mod login;
pub mod metrics;
pub mod openapi;
mod peer;
mod policies;
mod preferences;
mod problem;
mod push;
mod repeats;
pub mod replay;
mod reports;
mod seats;
mod segments;
pub mod server;
mod sessions;
mod state;
pub mod storage;
mod throttle;
pub mod tls;
mod together;
mod turns;

pub use config::Config;
pub use directory::Directory;
pub use segments::batch;
pub use server::Server;

/// The time, Unix seconds.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
