//! Login by identity provider, and login of machines: the messages between agents and the authority.
//!
//! The authority is the provider's relying party; an agent starts a login and finishes it. To finish it, the agent must
//! present the secret (`verifier`) whose hash it sent at the start, so an address or a code is useless to an attacker
//! who obtains it. In a browser, the person first has to approve the login on a page of the authority before the
//! authority creates a code, because a provider that already knows the person asks nothing.

use serde::{Deserialize, Serialize};

/// `POST /v1/login`, unauthenticated.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The account's name.
    pub person: String,
    /// The account's password.
    pub password: String,
    /// The six digits of the account's second factor, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totp: Option<String>,
    /// The person's name for this device: 1 to 64 printable characters.
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")
    )]
    pub device: String,
}

/// The answer to [`Login`].
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Session {
    /// The bearer token for later calls. Secret.
    pub token: String,
    /// The person's name.
    pub person: String,
    /// The device's name.
    pub device: String,
    /// End of the session.
    pub expires: u64,
    /// The authority's clock.
    pub now: u64,
}

/// `GET /v1/login`, unauthenticated: the available ways to log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoginMethods {
    /// The identity provider, if the authority has one.
    pub provider: Option<IdentityProvider>,
}

/// The agent's view of an identity provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct IdentityProvider {
    /// Address of the provider.
    pub issuer: String,
}

/// `POST /v1/login/browser`, unauthenticated: start a login in a browser on the agent's machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BrowserLogin {
    /// The person's name for this device.
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")
    )]
    pub device: String,
    /// The SHA-256, in hex, of the `verifier`: 32 random bytes in hex, which [`FinishLogin`] reveals.
    #[cfg_attr(feature = "schema", schema(pattern = "^[0-9a-fA-F]{64}$"))]
    pub challenge: String,
    /// The port of 127.0.0.1 on which the agent waits for the browser.
    #[cfg_attr(feature = "schema", schema(minimum = 1024, maximum = 65535))]
    #[serde(deserialize_with = "crate::form::whole")]
    pub port: u16,
    /// The user who started the login on the agent's machine. An unverified claim, shown as such on the page that asks
    /// the person.
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")
    )]
    pub user: String,
    /// The host name of the agent's machine. An unverified claim.
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")
    )]
    pub host: String,
}

/// Returns the eight hex digits of the challenge that a person compares between the command and the page that asks
/// them. Only the agent and the authority know them. An attacker's login has other digits, whatever names it claims.
pub fn comparison(challenge: &[u8; 32]) -> String {
    let [a, b, c, d, ..] = challenge;
    format!("{a:02X}{b:02X}-{c:02X}{d:02X}")
}

/// The answer to [`BrowserLogin`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BrowserLoginStarted {
    /// The login's identifier in [`FinishLogin`].
    pub login: String,
    /// The authority's address to open in the browser. Bound to the first browser that opens it.
    pub url: String,
    /// The `state` that the browser must bring to the port.
    pub state: String,
    /// Seconds until the login expires.
    pub expires_in: u64,
}

/// `POST /v1/login/device`, unauthenticated: start a login in a browser anywhere (RFC 8628).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DeviceLogin {
    /// The person's name for this device.
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")
    )]
    pub device: String,
    /// The SHA-256, in hex, of the `verifier`, as in [`BrowserLogin`].
    #[cfg_attr(feature = "schema", schema(pattern = "^[0-9a-fA-F]{64}$"))]
    pub challenge: String,
}

/// The answer to [`DeviceLogin`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeviceLoginStarted {
    /// The login's identifier in [`FinishLogin`].
    pub login: String,
    /// The code that the person enters at `url`.
    pub user_code: String,
    /// The address where the person enters the code.
    pub url: String,
    /// The address with the code in it, if the provider returns one.
    pub url_with_code: Option<String>,
    /// Seconds to wait between two [`FinishLogin`].
    pub interval: u64,
    /// Seconds until the login expires.
    pub expires_in: u64,
}

/// `POST /v1/login/finish`, authenticated only by the `verifier`.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FinishLogin {
    /// The login's identifier.
    pub login: String,
    /// The secret whose hash is the challenge. Secret.
    pub verifier: String,
    /// Parameters that the browser brought to the port. Absent for a login by device code, and when the agent asks
    /// whether a login in a browser has failed; a login in a browser never finishes without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Callback>,
}

/// Parameters that the browser brings from the authority to the agent's port after the person has approved.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Callback {
    /// The authority's own code, valid once and for one minute. Secret.
    pub code: String,
    /// The `state` of the login.
    pub state: String,
}

/// The answer to [`FinishLogin`].
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum LoginOutcome {
    /// The person has not yet logged in at the provider, or not yet approved: ask again after the interval, or for a
    /// login in a browser after five seconds.
    Pending,
    /// The person is logged in.
    LoggedIn(Session),
}

/// The answer to `POST /v1/logout` of a session that began at an identity provider with a logout of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoggedOut {
    /// The provider's address where a browser ends the provider's own session.
    pub provider: String,
}

/// `POST /v1/login/challenge`, unauthenticated: a machine asks for a nonce to log in with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Challenge {
    /// The `nonce` for the assertion; valid once, for one minute.
    pub nonce: String,
}

/// `POST /v1/login/service`, authenticated only by the assertion.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ServiceLogin {
    /// The service account's name.
    pub service: String,
    /// The nonce of the [`Challenge`].
    pub nonce: String,
    /// A JWT signed with the service account's key: `iss` is `vouchsafe:NAME`, `sub` the name, `aud` the authority's
    /// name from the key file, `nonce` the challenge's.
    pub assertion: String,
    /// Name of this device.
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")
    )]
    pub device: String,
}

/// The file that `authority service add` writes for a machine: everything it needs to log in except the authority's
/// address.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ServiceKey {
    /// The service account's name.
    pub service: String,
    /// The authority's name in assertions.
    pub audience: String,
    /// The certificates to trust, PEM: the machine uses the key with no other authority.
    pub ca: String,
    /// The Ed25519 key, PKCS#8 in PEM. Secret.
    pub key: String,
}
