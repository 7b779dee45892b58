//! A session as it is stored: by the agent for each user, and by a user's own commands.

use engine::model::Receiver;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A stored session. No `Debug`: it contains a secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct KeptSession {
    /// The authority's address.
    pub authority: String,
    /// The certificates to trust, PEM; the system's if absent.
    pub ca: Option<String>,
    /// The bearer token. Secret; empty in a file if the keyring has it.
    pub token: String,
    /// The person's name.
    pub person: String,
    /// The device's name.
    pub device: String,
    /// When the session ends, Unix seconds.
    pub expires: u64,
    /// The receivers that the person could reach at the last answer.
    #[serde(default)]
    pub receivers: Vec<Receiver>,
    /// Names of those to which packets may travel in a sealed tunnel only.
    #[serde(default)]
    pub sealed: BTreeSet<String>,
    /// How many seconds the authority's clock was ahead of this machine's.
    #[serde(default)]
    pub skew: i32,
}
