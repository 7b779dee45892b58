//! Waits until the members of the cluster have followed a change, and until the verifiers that are connected to them or
//! to this authority have confirmed that they have carried it out. So a command returns only when the change is in
//! force everywhere.

use super::membership::{CONNECTED_MAX, Cluster, KNOWN, MemberState, Members, TTL, VerifiersState};
use crate::now;
use crate::push::events::Push;
use crate::push::heard::Heard;
use crate::push::verifiers::Verifiers;
use crate::storage::{Database, Storage};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time to wait for members. It is longer than the time for which a member waits for its verifiers. A member
/// that has lost etcd no longer counts as running after [`TTL`] seconds.
const PATIENCE: Duration = Duration::from_secs(TTL as u64 + 2);
/// Pauses between two reads of the members' states: first [`SHORT`] short pauses, then long ones.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];
/// Seconds by which the clocks of members may differ.
const CLOCKS: u64 = 30;
/// Number of short pauses.
const SHORT: u32 = 25;

/// The members that have followed a change and the verifiers that have carried it out, and those that have not.
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
    /// The verifiers that have not confirmed that they have carried out the change.
    #[serde(default)]
    pub verifiers: Heard,
}

impl Followed {
    /// Reports whether every member now decides with the change, and every enrolled verifier has carried it out.
    pub fn is_complete(&self) -> bool {
        self.late.is_empty() && self.absent.is_empty() && self.unknown.is_none() && self.verifiers.is_complete()
    }

    /// Reports whether a running member has not followed the change in time, a connected verifier has not confirmed it
    /// in time, or the state of the members is not known.
    pub fn is_late(&self) -> bool {
        !self.late.is_empty() || self.unknown.is_some() || !self.verifiers.late.is_empty()
    }

    /// Adds what the other members say about the verifiers that are connected to them. `here` contains the verifiers
    /// that are connected to this authority, and `number` is the entry of the log that they must have carried out.
    fn add_verifiers(&mut self, members: &[MemberState], number: u64, here: HashSet<String>, enrolled: &[String]) {
        let mut connected = here;
        let verifiers = &mut self.verifiers;
        verifiers.unknown.extend(self.late.iter().cloned());
        for member in members {
            match &member.verifiers {
                Some(VerifiersState { heard, late, unable, connected: Some(there) }) if *heard >= number => {
                    verifiers.late.extend(late.iter().cloned());
                    verifiers.unable.extend(unable.iter().cloned());
                    connected.extend(there.iter().cloned());
                }
                _ => verifiers.unknown.push(member.name.clone()),
            }
        }
        // A member that does not run has no verifiers.
        let is_known = verifiers.unknown.is_empty() && self.unknown.is_none();
        verifiers.absent = enrolled.iter().filter(|id| is_known && !connected.contains(*id)).cloned().collect();
        for names in [&mut verifiers.late, &mut verifiers.unable] {
            names.sort_unstable();
            names.dedup();
        }
        let late: HashSet<_> = verifiers.late.iter().cloned().collect();
        verifiers.unable.retain(|id| !late.contains(id));
    }
}

impl fmt::Display for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.unknown {
            return write!(f, "; it is not known at which members the change is in force: {why}{}", self.verifiers);
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
            write!(f, "; no contact with {absent}: until `grace` is over, such a member may renew leases as before")?;
        }
        write!(f, "{}", self.verifiers)
    }
}

/// Waits until the other members have followed a change, and the verifiers have carried it out.
pub struct Confirmation {
    pub(crate) members: Arc<Members>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) push: Arc<Push>,
    pub(crate) verifiers: Arc<Verifiers>,
}

impl Confirmation {
    /// Waits until every running member has followed everything that this member's database contains now, and every
    /// connected verifier has carried out what was announced to it. Waits for three seconds at most, or for seven in a
    /// cluster. The caller must hold no lock.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn wait(&self) -> Result<Followed> {
        let enrolled = self.verifiers.ids();
        if self.members.cluster().is_none() {
            return Ok(Followed { verifiers: self.push.heard(&enrolled).await, ..Followed::default() });
        }
        let read = |database: &mut Database| Ok((database.applied()?, known(database)?));
        let (number, known) = self.storage.call(read).await?;
        let members = self.members.clone();
        let at_members = async {
            let wait = move || members.cluster().map(|cluster| wait_for(cluster, number, &known));
            anyhow::Ok(tokio::task::spawn_blocking(wait).await?.unwrap_or_default())
        };
        let (at_members, heard) = tokio::join!(at_members, self.push.heard(&enrolled));
        let (mut followed, states) = at_members?;
        let absent: HashSet<_> = heard.absent.iter().map(String::as_str).collect();
        let mut enrolled: Vec<_> = enrolled.iter().map(ToString::to_string).collect();
        enrolled.sort_unstable();
        let here = enrolled.iter().filter(|id| !absent.contains(id.as_str())).cloned().collect();
        followed.verifiers = heard;
        followed.add_verifiers(&states, number, here, &enrolled);
        Ok(followed)
    }

    /// Waits, for three seconds at most, until the verifiers that are connected to this member have carried out
    /// everything that was announced to them. Returns the state of these verifiers, as this member publishes it.
    /// `number` is the number of the last log entry whose changes were announced to them.
    pub async fn heard_here(&self, number: u64) -> VerifiersState {
        let enrolled = self.verifiers.ids();
        published(number, &enrolled, self.push.heard(&enrolled).await)
    }

    /// Returns the same state as [`Self::heard_here`], or `None` if this member still has to wait for a verifier.
    pub fn heard_now(&self, number: u64) -> Option<VerifiersState> {
        let enrolled = self.verifiers.ids();
        self.push.heard_now(&enrolled).map(|heard| published(number, &enrolled, heard))
    }
}

/// Returns the state that a member publishes about its verifiers.
fn published(number: u64, enrolled: &HashSet<Arc<str>>, heard: Heard) -> VerifiersState {
    let absent: HashSet<_> = heard.absent.into_iter().collect();
    let mut connected: Vec<_> = enrolled.iter().map(ToString::to_string).filter(|id| !absent.contains(id)).collect();
    connected.sort_unstable();
    let is_short = connected.len() <= CONNECTED_MAX;
    let few = |mut names: Vec<String>| {
        names.truncate(CONNECTED_MAX);
        names
    };
    let connected = is_short.then_some(connected);
    VerifiersState { heard: number, late: few(heard.late), unable: few(heard.unable), connected }
}

/// Returns the names of all members that belong to the cluster.
///
/// # Errors
/// Fails if the database cannot be read.
pub fn known(database: &Database) -> Result<BTreeSet<String>> {
    Ok(database.shared_below(KNOWN)?.into_iter().map(|(name, _)| name).collect())
}

/// Waits as [`Confirmation::wait`] does, but blocks the thread. The server of this member must not be running, so that
/// no verifier is connected to it. `enrolled` contains the ids of the enrolled verifiers.
pub fn wait_without_server(cluster: &Cluster, number: u64, known: &BTreeSet<String>, enrolled: &[String]) -> Followed {
    let (mut followed, states) = wait_for(cluster, number, known);
    followed.add_verifiers(&states, number, HashSet::new(), enrolled);
    followed
}

/// Waits until every running member except this one has followed the log's entry `number`, and until their verifiers
/// have carried it out. Waits for seven seconds at most, and blocks the thread. `known` contains the names of all
/// members. Returns the members that have followed and those that have not. Also returns the last states of the members
/// that have followed.
fn wait_for(cluster: &Cluster, number: u64, known: &BTreeSet<String>) -> (Followed, Vec<MemberState>) {
    let own = &cluster.config().name;
    let begun = Instant::now();
    let mut looks = 0;
    loop {
        let mut followed = Followed { in_cluster: true, ..Followed::default() };
        let mut states = Vec::new();
        match cluster.read() {
            Ok(there) => {
                let others = || there.iter().filter(|member| member.name != *own && known.contains(&member.name));
                // An old state says nothing about now.
                let oldest = now().saturating_sub(2 * u64::from(TTL) + CLOCKS);
                // A member of an earlier release says nothing about its verifiers.
                let has_heard =
                    |member: &MemberState| member.verifiers.as_ref().is_none_or(|verifiers| verifiers.heard >= number);
                let is_done =
                    |member: &&MemberState| member.followed >= number && member.time >= oldest && has_heard(member);
                let (done, late) = others().partition::<Vec<_>, _>(is_done);
                let names = |members: Vec<&MemberState>| {
                    members.into_iter().map(|member| member.name.clone()).collect::<Vec<_>>()
                };
                states = done.iter().map(|member| (*member).clone()).collect();
                (followed.confirmed, followed.late) = (names(done), names(late));
                let is_there = |name: &String| there.iter().any(|member| member.name == *name);
                followed.absent = known.iter().filter(|name| *name != own && !is_there(name)).cloned().collect();
            }
            Err(error) => followed.unknown = Some(format!("{error:#}")),
        }
        let is_settled = followed.late.is_empty() && followed.unknown.is_none();
        if is_settled || begun.elapsed() >= PATIENCE {
            return (followed, states);
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
        assert!(text.contains("NOT yet in force at c") && text.contains("no contact with d"), "{text}");
        assert!(!followed.is_complete());
        assert!(followed.is_late());
        let followed = Followed { unknown: Some("nobody answers".into()), ..followed };
        assert!(followed.to_string().ends_with("not known at which members the change is in force: nobody answers"));
    }

    #[test]
    fn verifiers_of_other_members_are_named_too() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let state = |name: &str, verifiers| MemberState { name: name.into(), verifiers, ..MemberState::default() };
        let verifiers = |heard, late: &[&str], connected: &[&str]| {
            let (late, connected) = (names(late), Some(names(connected)));
            Some(VerifiersState { heard, late, unable: Vec::new(), connected })
        };
        let enrolled = names(&["e1", "e2", "e3", "e4"]);
        let heard = |states: &[MemberState]| {
            let mut followed = Followed { in_cluster: true, ..Followed::default() };
            let here = HashSet::from(["e1".to_owned()]);
            followed.add_verifiers(states, 7, here, &enrolled);
            followed.verifiers
        };
        let b = state("b", verifiers(7, &["e2"], &["e2", "e3"]));
        let expected = Heard { late: names(&["e2"]), absent: names(&["e4"]), ..Heard::default() };
        assert_eq!(heard(std::slice::from_ref(&b)), expected);
        for silent in [state("c", None), state("c", verifiers(6, &[], &["e4"]))] {
            let expected = Heard { late: names(&["e2"]), unknown: names(&["c"]), ..Heard::default() };
            assert_eq!(heard(&[b.clone(), silent]), expected, "nobody knows where e4 is");
        }
        assert_eq!(heard(&[b, state("c", verifiers(9, &[], &["e4"]))]).absent, Vec::<String>::new());
    }
}
