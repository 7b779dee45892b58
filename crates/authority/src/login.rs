//! Logging in: with the password of an account, with an identity provider (OpenID Connect), and as a machine.
//!
//! The authority is the provider's relying party: it holds the client secret and judges ID tokens. A session goes only to
//! whoever started the login and, where a browser was sent away, holds what the browser brought back to that machine.

mod claims;
mod config;
pub(crate) mod handlers;
mod http;
mod passkey;
mod password;
mod pending;
mod provider;
mod renewal;
pub(crate) mod service;

pub use claims::Identity;
pub use config::ProviderConfig;
pub(crate) use passkey::Passkeys;
pub(crate) use password::{Attempt, PasswordSlots};
pub(crate) use pending::{BROWSER_TIME, Finish, Logins, Purpose, Rest, Started, Way};
pub(crate) use provider::Provider;
pub(crate) use renewal::LOOK;
