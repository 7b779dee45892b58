//! The start of an authority: its database, and the policy with which it starts. A member of a cluster starts with what
//! the cluster has in force, and it starts even if etcd does not answer.

use super::contact::Contact;
use super::files::{self, SharedFiles};
use super::membership::{Cluster, Members, check_alike};
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
    /// The database, which contains what the cluster has recorded if etcd answers.
    pub database: Database,
    /// The policy to put in force.
    pub candidate: Candidate,
    /// The version of the policy that is in force in the cluster; 0 for an authority alone.
    pub version: i64,
    /// The text of `networks.toml` that the members share.
    pub networks: Option<String>,
}

impl Start {
    /// Opens the database. At a member, applies what the others have recorded, and takes over policy, master keys and
    /// `networks.toml`. Blocks: if etcd does not answer, for a few seconds.
    ///
    /// # Errors
    /// A file of the directory cannot be read, written or is not valid, the database fails, or other members have
    /// settings with which this member cannot work.
    pub fn prepare(directory: &Directory, settings: &Settings, members: Members) -> Result<Self> {
        let Some(cluster) = members.cluster() else {
            // The policy is checked before the database is opened, and so before an old one is converted.
            let candidate = Candidate::read(directory, None)?;
            let (database, contact) = (Database::open(&directory.database())?, Contact::alone());
            return Ok(Self { members, contact, database, candidate, version: 0, networks: None });
        };
        let mut database = directory.open_database()?;
        let contact = Contact::of_member(directory.path(), settings.grace);
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
                tracing::warn!("this member starts without the cluster: {error:#}");
            }
        }
        // Changes up to here are part of the start.
        database.take_changes();
        contact.limit_grace(files::most_grace(&database)?);
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
    /// The text of this version.
    pub policy: String,
    /// The text of `networks.toml` that the members share.
    pub networks: Option<String>,
}

/// Writes master keys, `networks.toml` and policy as the cluster has them in force to the files of the directory.
///
/// # Errors
/// The database cannot be read, or a file cannot be written.
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
    // The member follows what it starts with.
    cluster.change(|own| (own.applied, own.followed) = (applied, applied));
    cluster.publish()?;
    contact.note(begun);
    Ok(Met::Well)
}
