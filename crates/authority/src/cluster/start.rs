//! The start of an authority: opens its database, and selects the policy with which it starts. A member of a cluster
//! starts with the policy that is in force in the cluster. It starts even if etcd does not answer.

use super::contact::Contact;
use super::files::{self, SharedFiles};
use super::membership::{Cluster, Members, check_alike, known_urls};
use super::trails;
use crate::policy::candidate::Candidate;
use crate::storage::Database;
use crate::{Directory, Settings, now};
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::time::Instant;

/// The parts with which an authority starts.
pub struct Start {
    /// The members of the cluster, if the authority is in one.
    pub members: Members,
    /// The time of the last contact with the cluster.
    pub contact: Contact,
    /// The database. It contains everything that the cluster has recorded, provided that etcd answered.
    pub database: Database,
    /// The policy to put in force.
    pub candidate: Candidate,
    /// The version of the policy that is in force in the cluster; 0 for an authority alone.
    pub version: i64,
    /// The text of `networks.toml` that the members share.
    pub networks: Option<String>,
}

impl Start {
    /// Opens the database. A member of a cluster applies the changes that other members have recorded, and takes over
    /// policy, master keys and `networks.toml`. Blocks the thread, at most for a few seconds if etcd does not answer.
    ///
    /// # Errors
    /// Fails if a file of the directory is not valid or cannot be read or written, if the database fails, or if this
    /// member cannot work with the settings of other members.
    pub fn prepare(directory: &Directory, settings: &Settings, members: Members) -> Result<Self> {
        let Some(cluster) = members.cluster() else {
            // The policy is checked before the database is opened, and so before an old one is converted.
            let candidate = Candidate::read(directory, None)?;
            let (database, contact) = (Database::open(&directory.database())?, Contact::alone());
            return Ok(Self { members, contact, database, candidate, version: 0, networks: None });
        };
        let mut database = directory.open_database()?;
        let contact = Contact::of_member(directory.path(), settings.grace, cluster.log().clock().clone());
        let issuer = settings.provider.as_ref().map(|provider| provider.issuer.clone()).unwrap_or_default();
        cluster.change(|own| {
            (own.epoch_length, own.max_lifetime, own.issuer) = (settings.epoch_length, settings.max_lifetime, issuer);
        });
        match meet(cluster, &mut database, &contact) {
            // Before the member is there, so that only this member fails and not those that run.
            Ok(Met::Disagrees(error)) => return Err(error),
            Ok(Met::Well) => {}
            Err(error) => {
                contact.note_failure(format!("{error:#}"));
                tracing::warn!("this member starts without contact with the cluster: {error:#}");
            }
        }
        // Changes up to here are part of the start.
        database.take_changes();
        contact.limit_grace(files::most_grace(&database)?);
        cluster.set_known(known_urls(&database)?);
        for endpoint in cluster.config().endpoints.iter().filter(|url| is_exposed(url)) {
            tracing::warn!(
                "the connection to {endpoint} is not encrypted, so everybody on its path can stop the cluster: \
                docs/cluster.md says how to set up TLS"
            );
        }
        let Taken { version, policy, networks } = take_files(directory, &database)?;
        let candidate = Candidate::new(policy, &format!("version {version} of the policy"), settings.max_lifetime)?;
        let applied = database.applied()?;
        cluster.change(|own| (own.applied, own.followed, own.policy, own.since) = (applied, applied, version, now()));
        Ok(Self { members, contact, database, candidate, version, networks })
    }
}

/// The files of a directory that were taken over from the database.
pub struct Taken {
    /// The version of the policy in force.
    pub version: i64,
    /// The text of the policy in force.
    pub policy: String,
    /// The text of `networks.toml` that the members share.
    pub networks: Option<String>,
}

/// Writes the cluster's master keys, `networks.toml` and policy to the files of the directory.
///
/// # Errors
/// Fails if the database cannot be read or contains no policy, or a file cannot be written.
pub fn take_files(directory: &Directory, database: &Database) -> Result<Taken> {
    let SharedFiles { keys, networks } = files::read(database)?;
    if let Some(keys) = keys
        && directory.read_master_keys().map(|there| *there.encode() != *keys).unwrap_or(true)
    {
        directory.replace_master_keys(&keys)?;
    }
    if let Some(networks) = &networks {
        directory.follow_networks(networks, str::is_empty)?;
    }
    let (version, policy) = database.policy_in_force().context(
        "the cluster has no policy: run `vouchsafe authority cluster leave`, then `vouchsafe authority cluster init`",
    )?;
    let recorded: HashSet<_> = database.policies()?.into_iter().map(|version| version.sha256).collect();
    directory.follow_policy(&policy, |text| recorded.contains(&hex::encode(Sha256::digest(text))))?;
    Ok(Taken { version, policy, networks })
}

/// Reports whether connections to this URL of etcd are unencrypted and leave the machine.
fn is_exposed(url: &str) -> bool {
    let Some(host) = url.strip_prefix("http://") else { return false };
    !["127.", "localhost", "[::1]"].iter().any(|local| host.starts_with(local))
}

/// The result of meeting the other members.
enum Met {
    Well,
    /// Another member has settings with which this member cannot work.
    Disagrees(anyhow::Error),
}

/// Reads the states of the other members, applies what they have recorded, and publishes the state of this member.
fn meet(cluster: &Cluster, database: &mut Database, contact: &Contact) -> Result<Met> {
    let begun = Instant::now();
    cluster.log().head()?;
    cluster.read()?;
    if let Err(error) = check_alike(&cluster.own(), &cluster.others()) {
        return Ok(Met::Disagrees(error));
    }
    database.catch_up()?;
    let applied = database.applied()?;
    let lost = trails::missing(database, &cluster.read_own_trail()?)?;
    cluster.set_lost_heads(lost);
    let heads = database.audit_heads()?.iter().map(ToString::to_string).collect();
    // The member follows what it starts with.
    cluster.change(|own| (own.applied, own.followed, own.heads) = (applied, applied, heads));
    cluster.publish()?;
    contact.note(begun);
    Ok(Met::Well)
}
