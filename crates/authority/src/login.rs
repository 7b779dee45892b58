//! Logging in otherwise than by an account's password: with an identity provider (OpenID Connect), and as a machine.
//!
//! The authority is the provider's relying party: it holds the client secret and judges ID tokens. A session goes only to
//! whoever started the login and, where a browser was sent away, holds what the browser brought back to that machine.

mod claims;
mod config;
pub(crate) mod handlers;
mod http;
mod pending;
mod provider;
mod renewal;
pub(crate) mod service;

pub use claims::Identity;
pub use config::ProviderConfig;
pub(crate) use pending::Logins;
pub(crate) use provider::Provider;
pub(crate) use renewal::LOOK;
