//! Login of people, with a password or at an identity provider (OpenID Connect), and of machines, with the key of a
//! service account.
//!
//! The authority is the provider's relying party: it holds the client secret and verifies ID tokens. The provider sends
//! browsers back to the console. Only the caller who started a login receives the session. An agent gets a session only
//! after the person has approved the login, and only if the agent presents the code that the browser brought to the
//! agent's machine.

mod claims;
pub(crate) mod credentials;
pub(crate) mod handlers;
mod http;
mod passkey;
mod password;
mod pending;
mod provider;
mod renewal;
pub(crate) mod service;
mod session_manager;
mod sessions;
mod settings;

pub use claims::Identity;
pub(crate) use http::client as http_client;
pub(crate) use passkey::Passkeys;
pub(crate) use password::{Attempt, PasswordCheck};
pub(crate) use pending::agent::{Answered, Ending, PAGE, Proven, Question, shown};
pub(crate) use pending::{BROWSER_TIME, Brought, Logins, Started, Way};
pub(crate) use provider::Provider;
pub(crate) use renewal::{LOOK, Renewal};
pub(crate) use session_manager::SessionManager;
pub(crate) use sessions::Sessions;
pub use settings::ProviderSettings;
pub(crate) use settings::is_confidential;
