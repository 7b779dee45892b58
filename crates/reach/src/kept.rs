//! A session in the form in which the agent, or a user's own commands, store it.

use client::{Authority, Error};
use engine::model::Receiver;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A stored session. Has no `Debug` because it contains a secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct KeptSession {
    /// The authority's address.
    pub authority: String,
    /// The addresses of all authorities in the cluster of `authority`, from the latest answer; empty if `authority` is
    /// in no cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<String>,
    /// The certificates to trust, PEM; `None` for the system's.
    pub ca: Option<String>,
    /// The bearer token, which is secret. In the session's file, this is empty if the token is in the user's keyring.
    pub token: String,
    /// The person's name.
    pub person: String,
    /// The device's name.
    pub device: String,
    /// End of the session, Unix seconds.
    pub expires: u64,
    /// The receivers that the person may reach, from the authority's latest answer.
    #[serde(default)]
    pub receivers: Vec<Receiver>,
    /// Names of the receivers to which packets may travel only in a sealed tunnel.
    #[serde(default)]
    pub sealed: BTreeSet<String>,
    /// Number of seconds by which the authority's clock was ahead of this machine's clock.
    #[serde(default)]
    pub skew: i32,
}

impl KeptSession {
    /// Returns a client of the session's authority, or of its cluster. The client sends the session's token.
    ///
    /// # Errors
    ///
    /// Fails if the address or a certificate is malformed, or if there are no certificates to trust.
    pub fn caller(&self) -> Result<Authority, Error> {
        Ok(self.knowing(Authority::new(&self.authority, self.ca.as_deref().map(str::as_bytes))?))
    }

    /// Returns the client `authority` with the session's token and the list of the cluster's authorities.
    pub fn knowing(&self, authority: Authority) -> Authority {
        authority.learn(&self.authorities);
        authority.with_token(&self.token)
    }
}
