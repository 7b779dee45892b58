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
    /// The addresses of all authorities of its cluster, from the latest answer; empty if it is alone.
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
    /// When the session ends, Unix seconds.
    pub expires: u64,
    /// The receivers that the person may reach, from the authority's latest answer.
    #[serde(default)]
    pub receivers: Vec<Receiver>,
    /// Names of the receivers to which packets are allowed to travel in a sealed tunnel only.
    #[serde(default)]
    pub sealed: BTreeSet<String>,
    /// Seconds by which the authority's clock was ahead of this machine's.
    #[serde(default)]
    pub skew: i32,
}

impl KeptSession {
    /// Returns a client of the session's authority, or of its cluster, that has the session's token.
    ///
    /// # Errors
    ///
    /// Fails if the address or a certificate is malformed, or if there are no certificates to trust.
    pub fn caller(&self) -> Result<Authority, Error> {
        Ok(self.knowing(Authority::new(&self.authority, self.ca.as_deref().map(str::as_bytes))?))
    }

    /// Returns the client `authority` with the session's token and its knowledge of the cluster.
    pub fn knowing(&self, authority: Authority) -> Authority {
        authority.learn(&self.authorities);
        authority.with_token(&self.token)
    }
}
