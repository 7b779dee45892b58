//! Logging in with an identity provider, and as a machine: what agents and the authority say to each other.
//!
//! The authority is the provider's relying party; an agent starts a login and finishes it. Whoever finishes it must know
//! the verifier whose hash came with its start, so that an address or a code that somebody else gets hold of is worth
//! nothing.

use super::Session;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/login`, unauthenticated: the ways to log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginMethods {
    /// The identity provider, where the authority has one.
    pub provider: Option<IdentityProvider>,
}

/// An identity provider as agents need to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IdentityProvider {
    /// Its address.
    pub issuer: String,
    /// The port of 127.0.0.1 that it sends browsers back to, where it takes no other.
    pub redirect_port: Option<u16>,
}

/// `POST /v1/login/browser`, unauthenticated: start a login in a browser on the agent's machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BrowserLogin {
    /// What the person calls this device.
    #[schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")]
    pub device: String,
    /// The SHA-256 of the verifier, hex: 32 random bytes in hex that [`FinishLogin`] will tell.
    #[schema(pattern = "^[0-9a-fA-F]{64}$")]
    pub challenge: String,
    /// The port of 127.0.0.1 where the agent awaits the browser.
    #[schema(minimum = 1024, maximum = 65535)]
    #[serde(deserialize_with = "super::whole")]
    pub port: u16,
}

/// The answer to [`BrowserLogin`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BrowserLoginStarted {
    /// The login's name in [`FinishLogin`].
    pub login: String,
    /// The provider's address to open in the browser.
    pub url: String,
    /// What the browser must bring back as `state`.
    pub state: String,
    /// Seconds until the login is forgotten.
    pub expires_in: u64,
}

/// `POST /v1/login/device`, unauthenticated: start a login in a browser anywhere (RFC 8628).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceLogin {
    /// What the person calls this device.
    #[schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")]
    pub device: String,
    /// As in [`BrowserLogin`].
    #[schema(pattern = "^[0-9a-fA-F]{64}$")]
    pub challenge: String,
}

/// The answer to [`DeviceLogin`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceLoginStarted {
    /// The login's name in [`FinishLogin`].
    pub login: String,
    /// What the person types there.
    pub user_code: String,
    /// Where the person types it.
    pub url: String,
    /// The same with the code in it, where the provider gives one.
    pub url_with_code: Option<String>,
    /// Seconds to wait between two [`FinishLogin`].
    pub interval: u64,
    /// Seconds until the login is forgotten.
    pub expires_in: u64,
}

/// `POST /v1/login/finish`, unauthenticated but for the verifier.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishLogin {
    /// The login's name.
    pub login: String,
    /// What the challenge is the hash of. Secret.
    pub verifier: String,
    /// What the browser brought back; absent for a login by device code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Callback>,
}

/// What the provider told the browser to bring back.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Callback {
    /// The authorization code. Secret.
    pub code: String,
    /// The state.
    pub state: String,
    /// Who says so (RFC 9207), where the provider adds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iss: Option<String>,
}

/// The answer to [`FinishLogin`].
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum LoginOutcome {
    /// The person has not logged in at the provider yet: ask again after the interval.
    Pending,
    /// The person is logged in.
    LoggedIn(Session),
}

/// The answer to `POST /v1/logout` where the session was begun at an identity provider that can be logged out of, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoggedOut {
    /// The provider's address where a browser ends the provider's own session.
    pub provider: String,
}

/// `POST /v1/login/challenge`, unauthenticated: a machine wants to log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Challenge {
    /// What the assertion's `nonce` must be; good once, for a minute.
    pub nonce: String,
}

/// `POST /v1/login/service`, unauthenticated but for the assertion.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceLogin {
    /// The service account's name.
    pub service: String,
    /// What a [`Challenge`] said.
    pub nonce: String,
    /// A JWT signed with the service account's key: `iss` is `vouchsafe:NAME`, `sub` the name, `aud` what the authority
    /// calls itself in the key file, `nonce` the challenge's.
    pub assertion: String,
    /// What this device is called.
    #[schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")]
    pub device: String,
}

/// What `authority service add` writes for a machine: everything it needs to log in but the authority's address.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceKey {
    /// The service account's name.
    pub service: String,
    /// What the authority calls itself in assertions.
    pub audience: String,
    /// The certificates to trust, PEM: the key is shown to no other authority.
    pub ca: String,
    /// The Ed25519 key, PKCS#8 in PEM. Secret.
    pub key: String,
}
