//! Waits until the members of the cluster have followed a change, so that a command returns only when the change is in
//! force at all of them.

use super::membership::{Cluster, KNOWN, MemberState, Members, TTL};
use crate::now;
use crate::storage::{Database, Storage};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time to wait. A member that has lost etcd is no longer there after [`TTL`] seconds.
const PATIENCE: Duration = Duration::from_secs(TTL as u64 + 2);
/// Pauses between two looks: the first ones, and later ones.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];
/// Seconds by which the clocks of members may differ.
const CLOCKS: u64 = 30;
/// Number of short pauses.
const SHORT: u32 = 25;

/// The members that have followed a change, and those that have not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// Whether the authority is a member of a cluster.
    pub in_cluster: bool,
    /// The other members that have followed the change.
    pub confirmed: Vec<String>,
    /// The running members that have not followed the change within the time limit.
    pub late: Vec<String>,
    /// The members that are not running.
    pub absent: Vec<String>,
    /// The reason why the members' state is not known, if etcd did not answer.
    pub unknown: Option<String>,
}

impl Followed {
    /// Reports whether every member now decides with the change. Returns `false` if a member may still decide without
    /// it.
    pub fn is_complete(&self) -> bool {
        self.late.is_empty() && self.absent.is_empty() && self.unknown.is_none()
    }
}

impl fmt::Display for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.in_cluster {
            return Ok(());
        }
        if let Some(why) = &self.unknown {
            return write!(f, "; it is not known which members have followed: {why}");
        }
        match self.confirmed.as_slice() {
            [] => {}
            [one] => write!(f, "; in force at {one}, too")?,
            several => write!(f, "; in force at {}, too", several.join(", "))?,
        }
        if !self.late.is_empty() {
            write!(f, "; NOT yet in force at {}: `vouchsafe authority cluster status`", self.late.join(", "))?;
        }
        if !self.absent.is_empty() {
            let absent = self.absent.join(", ");
            write!(f, "; {absent} not there: until its `grace` is over, it may renew leases as before")?;
        }
        Ok(())
    }
}

/// Waits until the other members have followed a change.
pub struct Confirmation {
    pub(crate) members: Arc<Members>,
    pub(crate) storage: Arc<Storage>,
}

impl Confirmation {
    /// Waits until every running member has followed everything that this member's database contains now. Waits for
    /// seven seconds at most.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn wait(&self) -> Result<Followed> {
        if self.members.cluster().is_none() {
            return Ok(Followed::default());
        }
        let read = |database: &mut Database| Ok((database.applied()?, known(database)?));
        let (number, known) = self.storage.call(read).await?;
        let members = self.members.clone();
        let wait = move || members.cluster().map(|cluster| wait_for(cluster, number, &known));
        Ok(tokio::task::spawn_blocking(wait).await?.unwrap_or_default())
    }
}

/// Returns the names of all members that belong to the cluster.
///
/// # Errors
/// Fails if the database cannot be read.
pub fn known(database: &Database) -> Result<BTreeSet<String>> {
    Ok(database.shared_below(KNOWN)?.into_iter().map(|(name, _)| name).collect())
}

/// Waits until every running member except this one has followed the log's entry `number`. Waits for seven seconds at
/// most, and blocks the thread. `known` contains the names of all members.
pub fn wait_for(cluster: &Cluster, number: u64, known: &BTreeSet<String>) -> Followed {
    let own = &cluster.config().name;
    let begun = Instant::now();
    let mut looks = 0;
    loop {
        let mut followed = Followed { in_cluster: true, ..Followed::default() };
        match cluster.read() {
            Ok(there) => {
                let others = || there.iter().filter(|member| member.name != *own && known.contains(&member.name));
                // An old state says nothing about now.
                let oldest = now().saturating_sub(2 * u64::from(TTL) + CLOCKS);
                let is_done = |member: &&MemberState| member.followed >= number && member.time >= oldest;
                let (done, late) = others().partition::<Vec<_>, _>(is_done);
                let names = |members: Vec<&MemberState>| {
                    members.into_iter().map(|member| member.name.clone()).collect::<Vec<_>>()
                };
                (followed.confirmed, followed.late) = (names(done), names(late));
                let is_there = |name: &String| there.iter().any(|member| member.name == *name);
                followed.absent = known.iter().filter(|name| *name != own && !is_there(name)).cloned().collect();
            }
            Err(error) => followed.unknown = Some(format!("{error:#}")),
        }
        let is_settled = followed.late.is_empty() && followed.unknown.is_none();
        if is_settled || begun.elapsed() >= PATIENCE {
            return followed;
        }
        std::thread::sleep(PAUSES[usize::from(looks >= SHORT)]);
        looks += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_reads_who_has_not_followed() {
        assert_eq!(Followed::default().to_string(), "");
        let followed = Followed { in_cluster: true, confirmed: vec!["b".into()], ..Followed::default() };
        assert_eq!(followed.to_string(), "; in force at b, too");
        assert!(followed.is_complete());
        let followed = Followed { late: vec!["c".into()], absent: vec!["d".into()], ..followed };
        let text = followed.to_string();
        assert!(text.contains("NOT yet in force at c") && text.contains("d not there"), "{text}");
        assert!(!followed.is_complete());
        let followed = Followed { unknown: Some("nobody answers".into()), ..followed };
        assert!(followed.to_string().ends_with("not known which members have followed: nobody answers"));
    }
}
