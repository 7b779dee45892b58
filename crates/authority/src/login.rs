//! Logging in: with the password of an account, with an identity provider (OpenID Connect), and as a machine.
//!
//! The authority is the provider's relying party: it holds the client secret and judges ID tokens. Browsers come back to the
//! console. A session goes only to the caller who started the login; for an agent, after the person has approved, and
//! with what the browser brought to the agent's machine.

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
pub(crate) use pending::agent::{Answered, Ending, PAGE, Proven, Question, shown};
pub(crate) use pending::{BROWSER_TIME, Brought, Logins, Started, Way};
pub(crate) use provider::Provider;
pub(crate) use renewal::LOOK;
