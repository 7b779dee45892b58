//! Logging in with an identity provider, and as a machine: what agents and the authority say to each other.
//!
//! The authority is the provider's relying party; an agent starts a login and finishes it. Whoever finishes it must know
//! the verifier whose hash came with its start, so that an address or a code that somebody else gets hold of is worth
//! nothing. In a browser, the person has to approve of it on a page of the authority's before there is a code: a provider
//! that knows the person already asks nothing.

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
    /// The user who started it on the agent's machine. The page that asks the person shows it as a claim.
    #[schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")]
    pub user: String,
    /// What the agent's machine calls itself. A claim, too.
    #[schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")]
    pub host: String,
}

/// What a person compares between the command and the page that asks them: eight hex digits of the challenge, which only
/// the agent and the authority know. Another's login has others, whatever names it comes with.
pub fn comparison(challenge: &[u8; 32]) -> String {
    let [a, b, c, d, ..] = challenge;
    format!("{a:02X}{b:02X}-{c:02X}{d:02X}")
}

/// The answer to [`BrowserLogin`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BrowserLoginStarted {
    /// The login's name in [`FinishLogin`].
    pub login: String,
    /// The authority's address to open in the browser. The first browser that opens it has it for itself.
    pub url: String,
    /// What the browser must bring to the port as `state`.
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
    /// What the browser brought to the port. Absent for a login by device code, and to ask whether a login in a browser has
    /// come to nothing: without it, that is never finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Callback>,
}

/// What the authority had the browser bring to the agent's port, once the person had approved.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Callback {
    /// The authority's own code, good once and for a minute. Secret.
    pub code: String,
    /// The state.
    pub state: String,
}

/// The answer to [`FinishLogin`].
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum LoginOutcome {
    /// The person has not logged in at the provider yet, or not approved: ask again after the interval, in a browser after
    /// five seconds.
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
