//! Messages between agents and the authority for logging in: with a password, at an identity provider, and as a service
//! account.
//!
//! The authority is the provider's relying party. An agent starts a login and finishes it. At the start, the agent
//! sends the hash of a secret; to finish the login, the agent must present this secret (`verifier`). So an attacker who
//! knows only the login's URL or its code can't finish the login. A provider can let a person pass without a question
//! if the person is already logged in there. Therefore the authority creates a code only after the person has approved
//! the login on one of the authority's pages.

use serde::{Deserialize, Serialize};

/// `POST /v1/login`, unauthenticated: logs in with the password of an account.
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

/// A new session: the answer to [`Login`] and to [`ServiceLogin`], and the content of [`LoginOutcome::LoggedIn`].
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Session {
    /// The bearer token for later calls. Secret.
    pub token: String,
    /// The person's name.
    pub person: String,
    /// The device's name.
    pub device: String,
    /// The time at which the session ends, in Unix seconds.
    pub expires: u64,
    /// The current time by the authority's clock, in Unix seconds.
    pub now: u64,
}

/// The answer to `GET /v1/login`, unauthenticated: the available ways to log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoginMethods {
    /// The identity provider, if the authority has one.
    pub provider: Option<IdentityProvider>,
}

/// The identity provider at which people log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct IdentityProvider {
    /// The provider's issuer identifier (OpenID Connect), a URL.
    pub issuer: String,
}

/// `POST /v1/login/browser`, unauthenticated: starts a login in a browser on the agent's machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BrowserLogin {
    /// The person's name for this device: 1 to 64 printable characters.
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")
    )]
    pub device: String,
    /// The SHA-256, in hex, of the `verifier`: 32 random bytes in hex, which [`FinishLogin`] reveals.
    #[cfg_attr(feature = "schema", schema(pattern = "^[0-9a-fA-F]{64}$"))]
    pub challenge: String,
    /// The port of 127.0.0.1 on which the agent waits for the browser to return.
    #[cfg_attr(feature = "schema", schema(minimum = 1024, maximum = 65535))]
    #[serde(deserialize_with = "crate::form::whole")]
    pub port: u16,
    /// The local user who started the login on the agent's machine. The authority cannot verify this name. The page on
    /// which the person approves the login says that the name is not verified.
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")
    )]
    pub user: String,
    /// The host name of the agent's machine, which the authority cannot verify either.
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")
    )]
    pub host: String,
}

/// Returns the first eight hex digits of the challenge, as `AABB-CCDD`. Both the agent's command and the page that asks
/// the person for approval show these digits, and the person compares them. If the page shows an attacker's login, the
/// digits differ, even if the attacker gave the same names of device, user and host. An attacker cannot choose the same
/// digits, because only the agent and the authority know the digits of the person's own login.
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
    /// The authority's URL that the agent opens in the browser. The login is bound to the first browser that opens this
    /// URL.
    pub url: String,
    /// The value of the parameter `state` with which the browser must return to the agent's port.
    pub state: String,
    /// Seconds until the login expires.
    pub expires_in: u64,
}

/// `POST /v1/login/device`, unauthenticated: starts a login by device code, in a browser on any machine (RFC 8628).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DeviceLogin {
    /// The person's name for this device: 1 to 64 printable characters.
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")
    )]
    pub device: String,
    /// The SHA-256, in hex, of the `verifier` that [`FinishLogin`] reveals, as in [`BrowserLogin`].
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
    /// The address `url` with the code in it, if the provider returns one.
    pub url_with_code: Option<String>,
    /// Seconds to wait between two calls with [`FinishLogin`].
    pub interval: u64,
    /// Seconds until the login expires.
    pub expires_in: u64,
}

/// `POST /v1/login/finish`, authenticated only by the `verifier`: requests the session of a login that the agent
/// started.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FinishLogin {
    /// The login's identifier.
    pub login: String,
    /// The secret whose SHA-256 is the `challenge`: 64 hex digits.
    pub verifier: String,
    /// The parameters with which the browser returned to the agent's port. A login in a browser finishes only with
    /// these parameters. They are absent for a login by device code, and when the agent only asks whether a login in a
    /// browser has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Callback>,
}

/// The parameters with which the authority redirects the browser to the agent's port, after the person has approved the
/// login.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Callback {
    /// The authority's code for this login; valid for one use within one minute. Secret.
    pub code: String,
    /// The login's parameter `state`, with which the browser returned.
    pub state: String,
}

/// The answer to [`FinishLogin`].
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum LoginOutcome {
    /// The person has not yet logged in at the provider, or has not yet approved the login. The agent asks again: after
    /// `interval` for a login by device code, after five seconds for a login in a browser.
    Pending,
    /// The person is logged in.
    LoggedIn(Session),
}

/// The answer to `POST /v1/logout`, if the session began at an identity provider that publishes a logout address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoggedOut {
    /// The address at the provider that a browser opens to end the provider's own session.
    pub provider: String,
}

/// The answer to `POST /v1/login/challenge`, unauthenticated: the nonce with which a service account logs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Challenge {
    /// The value of `nonce` in the service account's assertion; valid for one use within one minute.
    pub nonce: String,
}

/// `POST /v1/login/service`, authenticated only by the assertion: logs in as a service account.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ServiceLogin {
    /// The service account's name.
    pub service: String,
    /// The nonce from the [`Challenge`].
    pub nonce: String,
    /// A JWT that the service account's key signs. Its claims: `iss` is `vouchsafe:NAME`, `sub` is NAME, `aud` is the
    /// `audience` of the [`ServiceKey`], and `nonce` is the nonce of the [`Challenge`].
    pub assertion: String,
    /// The name of the machine that logs in: 1 to 64 printable characters.
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")
    )]
    pub device: String,
}

/// The file that `authority service add` writes for a machine. It contains everything that the machine needs to log in,
/// except the authority's address.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ServiceKey {
    /// The service account's name.
    pub service: String,
    /// The value of `aud` in assertions: the fingerprint of the authority's CA.
    pub audience: String,
    /// The authority's CA certificates, in PEM. The machine trusts no other certificates, so it never sends an
    /// assertion to another authority.
    pub ca: String,
    /// The Ed25519 key, PKCS#8 in PEM. Secret.
    pub key: String,
}
