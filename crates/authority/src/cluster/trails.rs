//! The heads of the members' audit trails. Each member publishes the heads of its own trails in etcd, where they stay
//! when the member stops. So a member notices at its start that its disk was lost or went back to an earlier state, and
//! an operator can check copies of all trails.

use crate::storage::{Database, NotedHead};
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// The heads of a member's audit trails, as the member published them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrailState {
    /// The member's name.
    pub name: String,
    /// The time at which the member published the heads, in Unix seconds.
    pub time: u64,
    /// The heads, such as `acts:123:9f86d081…`.
    pub heads: Vec<String>,
    /// Earlier heads that the member's trails do not contain any more, until an operator accepts that.
    #[serde(default)]
    pub lost: Vec<String>,
}

impl TrailState {
    /// Returns the heads in the form in which a trail is compared with them.
    ///
    /// # Errors
    /// Fails if a head is malformed.
    pub fn noted(&self) -> Result<Vec<NotedHead>> {
        self.heads.iter().map(|head| head.parse()).collect()
    }
}

/// Returns the published heads that the audit trails of the database do not contain, and the heads that the member has
/// already published as lost (`lost`).
///
/// # Errors
/// Fails if the database cannot be read, or a head is malformed.
pub fn missing(database: &Database, published: &TrailState) -> Result<Vec<String>> {
    let mut missing = published.lost.clone();
    for (head, noted) in published.heads.iter().zip(published.noted()?) {
        if !missing.contains(head) && !database.has_head(&noted)? {
            missing.push(head.clone());
        }
    }
    Ok(missing)
}
