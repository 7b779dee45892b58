//! Lists: who may reach which addresses, in more entries than a policy file can hold. For each list, the policy names
//! the receivers, people and services about which its entries count ([`engine::policy::lists`]).
//!
//! The entries are in a file of their own, `lists.db` ([`Store`]), which commands write. The server follows the file
//! ([`Follower`]), holds the entries in memory, and revokes the grants that an entry allowed and no longer allows
//! ([`ListService`](crate::policy::ListService)). Members of a cluster do not share this file, so they refuse lists.

mod entry;
mod follower;
mod import;
mod store;
mod sweep;

pub use entry::{Line, MOST_LINE, MOST_NOTE};
pub use follower::{Follower, Touched};
pub use import::{Changed, Imported};
pub use store::{ListEntry, ListSummary, Store};

use crate::Directory;
use crate::cluster::config::ClusterConfig;
use anyhow::{Result, bail};
use engine::policy::Policy;

/// Checks that a policy uses only lists that exist. Checks nothing if the directory has no authority, so that a policy
/// can be checked on any machine.
///
/// # Errors
/// Fails if a list does not exist, the authority is a member of a cluster and the policy uses lists, or the file of
/// lists cannot be read.
pub fn check(directory: &Directory, policy: &Policy) -> Result<()> {
    let Some(first) = policy.lists().first() else { return Ok(()) };
    if !directory.database().exists() {
        return Ok(());
    }
    refuse_in_cluster(directory, &format!("{} can't be in force", first.label()))?;
    let store = Store::open(directory)?;
    let known = store.map_or_else(|| Ok(Vec::new()), |store| store.summaries())?;
    for list in policy.lists() {
        if !known.iter().any(|other| other.list == list.name) {
            let (label, name) = (list.label(), &list.name);
            bail!("{label}: there is no list `{name}`: `vouchsafe authority lists import {name} FILE` makes it");
        }
    }
    Ok(())
}

/// Fails if the authority is a member of a cluster. The error message begins with `what`.
///
/// # Errors
/// Fails if the authority is a member of a cluster, or this cannot be found out.
pub fn refuse_in_cluster(directory: &Directory, what: &str) -> Result<()> {
    if ClusterConfig::read(directory.path())?.is_some() {
        bail!("{what}: the members of a cluster do not share lists. Use groups and rules instead");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
