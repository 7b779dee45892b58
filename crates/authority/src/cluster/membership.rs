//! The running members. Each member publishes its state in etcd, under a key that etcd removes when the member's lease
//! ends. Each member reads the states of the others.

use super::config::ClusterConfig;
use super::trails::TrailState;
use crate::now;
use crate::storage::{Database, Log, clock_sentence};
use anyhow::{Context, Result, bail};
use api::AUTHORITIES_MAX;
use etcd::{Compare, Etcd, Op, Txn};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time after which etcd removes the state of a member that no longer publishes it, in seconds.
pub const TTL: u32 = 5;
/// Maximum time since etcd last stored this member's state. After a longer time, the member assumes that etcd stores
/// nothing. The limit is not lower, because the election of a leader or a lost call takes some seconds.
const STORED: Duration = Duration::from_secs(3 * TTL as u64);
/// Prefix of the names under which the table `shared` lists the members. The table lists members that do not run, too.
pub const KNOWN: &str = "member:";

/// The state of a member, as the member publishes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberState {
    /// The member's name.
    pub name: String,
    /// The URL at which agents and verifiers reach the member.
    pub url: String,
    /// The version of the member's program.
    pub version: String,
    /// The time at which the member's server started, in Unix seconds.
    pub since: u64,
    /// The time of this state by the member's clock, in Unix seconds.
    pub time: u64,
    /// Number of the last entry of the log that the member's database contains.
    pub applied: u64,
    /// Number of the last entry of the log that the member's decisions take into account.
    pub followed: u64,
    /// The version of the policy with which the member decides.
    pub policy: i64,
    /// The member's `epoch_length`, in seconds.
    pub epoch_length: u32,
    /// The member's `max_lifetime`, in seconds.
    pub max_lifetime: u32,
    /// The issuer of the member's identity provider; empty if it has none.
    #[serde(default)]
    pub issuer: String,
    /// The last entries of the member's audit trails, such as `acts:123:9f86d081…`.
    pub heads: Vec<String>,
    /// The load of the member. `None` if the member runs an earlier release, or has just started.
    #[serde(default)]
    pub load: Option<Load>,
    /// The verifiers that are connected to the member. `None` if the member runs an earlier release, or has just
    /// started.
    #[serde(default)]
    pub verifiers: Option<VerifiersState>,
}

/// The load of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Number of event streams of agents and other programs in sessions.
    pub sessions: usize,
    /// Number of event streams of verifiers and tunnel endpoints.
    pub verifiers: usize,
}

/// Maximum number of verifiers in each list of [`VerifiersState`]. A member publishes its state every second, so all
/// names in it together must not take more than some kilobytes.
pub const CONNECTED_MAX: usize = 256;

/// The verifiers that are connected to a member, as the member publishes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiersState {
    /// Number of the last entry of the log that all connected verifiers have carried out, except for those in `late`
    /// and `unable`.
    pub heard: u64,
    /// The connected verifiers that have not confirmed in time that they have carried out the entries.
    pub late: Vec<String>,
    /// The connected verifiers that do not confirm, because they run an earlier release.
    pub unable: Vec<String>,
    /// All connected verifiers; `None` if there are more than [`CONNECTED_MAX`].
    pub connected: Option<Vec<String>>,
}

/// A member of the cluster, running or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownMember {
    /// The URL at which agents and verifiers reach the member.
    pub url: String,
    /// The format of the member's database. The storage reads this value, too. `None` if the member ran an earlier
    /// release when it last started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<i64>,
}

/// Returns the URLs of all members that belong to the cluster, by name.
///
/// # Errors
/// Fails if the database cannot be read.
pub fn known_urls(database: &Database) -> Result<BTreeMap<String, String>> {
    let url = |known: Vec<u8>| serde_json::from_slice::<KnownMember>(&known).map(|known| known.url).unwrap_or_default();
    Ok(database.shared_below(KNOWN)?.into_iter().map(|(name, known)| (name, url(known))).collect())
}

/// The key under which a member publishes its state.
#[derive(Default)]
struct Published {
    lease: Option<i64>,
    /// The revision in which etcd created the key; 0 if this process has not created it.
    created: i64,
    /// Whether the member is stopping, so that it must not publish its state any more.
    ends: bool,
    /// The heads that etcd has stored, and the earlier heads that this member's audit trails lack.
    trails: Option<(Vec<String>, Vec<String>)>,
}

/// The cluster, as one of its members uses it.
pub struct Cluster {
    config: ClusterConfig,
    etcd: Etcd,
    log: Log,
    own: Mutex<MemberState>,
    published: Mutex<Published>,
    /// The time at which etcd last stored the state of this member.
    stored: Mutex<Option<Instant>>,
    /// The states of all running members, beginning with this member's state.
    live: Mutex<Vec<MemberState>>,
    /// The names and URLs of all members, as this member's database lists them.
    known: Mutex<Option<BTreeMap<String, String>>>,
    /// The heads that this member has published earlier, and that its audit trails lack. `None` if they have not been
    /// compared yet.
    lost: Mutex<Option<Vec<String>>>,
    /// The number of times that etcd has ended the member's lease although the member was running.
    lost_leases: AtomicU64,
}

/// The members of the cluster. In an authority without a cluster, the only member is the authority itself.
pub struct Members {
    cluster: Option<Cluster>,
    /// The URL of an authority in no cluster, if it is known.
    url: Option<String>,
}

impl Members {
    /// Creates the value for an authority in no cluster. `url` is its URL, if it is known.
    pub fn alone(url: Option<String>) -> Self {
        Self { cluster: None, url }
    }

    /// Reads `cluster.toml` in the authority's directory at `path`. Does not wait for etcd. `url` is the authority's
    /// URL, for the case that there is no such file.
    ///
    /// # Errors
    /// Fails if `cluster.toml`, the cluster's key or a TLS file cannot be read or is not valid.
    pub fn read(path: &Path, url: Option<String>) -> Result<Self> {
        let Some(config) = ClusterConfig::read(path)? else { return Ok(Self::alone(url)) };
        let etcd = config.connect(path)?;
        let log = Log::new(etcd.clone(), config.id, ClusterConfig::read_key(path)?, config.name.clone());
        let (name, url, version) = (config.name.clone(), config.url.clone(), env!("CARGO_PKG_VERSION").to_owned());
        let own = Mutex::new(MemberState { name, url, version, since: now(), ..MemberState::default() });
        let (published, stored, live) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (known, lost, lost_leases) = (Mutex::default(), Mutex::default(), AtomicU64::default());
        let cluster = Cluster { config, etcd, log, own, published, stored, live, known, lost, lost_leases };
        Ok(Self { cluster: Some(cluster), url: None })
    }

    /// Returns the cluster, or `None` if this authority is in no cluster.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// Returns the URLs of all members, at most [`AUTHORITIES_MAX`]: this member's URL, then those of running members,
    /// then those of the others. An authority in no cluster returns at most its own URL.
    ///
    /// The URLs of members that do not run are in the list, because a client keeps only the URLs of the latest list.
    /// Without these URLs, the clients of a member that runs alone for a while would forget the other members.
    pub fn urls(&self) -> Vec<String> {
        let Some(cluster) = &self.cluster else { return self.url.clone().into_iter().collect() };
        let others = cluster.others();
        let known = lock(&cluster.known).clone().unwrap_or_default();
        let is_absent =
            |name: &String| *name != cluster.config.name && others.iter().all(|member| member.name != *name);
        let absent = known.into_iter().filter(|(name, url)| is_absent(name) && !url.is_empty()).map(|(_, url)| url);
        let absent: Vec<_> = absent.collect();
        let others = others.into_iter().map(|member| member.url);
        std::iter::once(cluster.config.url.clone()).chain(others).chain(absent).take(AUTHORITIES_MAX).collect()
    }

    /// Returns the URLs that messages to endpoints contain: those of [`Self::urls`], or an empty list if the authority
    /// is in no cluster.
    pub fn authorities(&self) -> Vec<String> {
        if self.cluster.is_some() { self.urls() } else { Vec::new() }
    }

    /// Returns the URL of another running member, to which this member's endpoints should change.
    pub fn next(&self) -> Option<String> {
        let cluster = self.cluster.as_ref()?;
        let others = cluster.others();
        // The members are in the order of their names. Each points to the one behind it, so that the endpoints of
        // members that stop one after the other do not all go to the same member.
        let behind = others.iter().find(|member| member.name > cluster.config.name).or_else(|| others.first());
        behind.map(|member| member.url.clone())
    }

    /// Reports whether this authority does the work that only one member does for all members. The first running member
    /// in the order of names does this work. An authority in no cluster does all work.
    pub fn is_first(&self) -> bool {
        let Some(cluster) = &self.cluster else { return true };
        cluster.others().iter().all(|member| cluster.config.name < member.name)
    }
}

impl Cluster {
    /// Returns the content of `cluster.toml`.
    pub fn config(&self) -> &ClusterConfig {
        &self.config
    }

    /// Returns the handle to etcd.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// Returns the handle to the log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Returns the state of this member.
    pub fn own(&self) -> MemberState {
        lock(&self.own).clone()
    }

    /// Changes the state of this member, which [`Self::publish`] then publishes.
    pub fn change(&self, change: impl FnOnce(&mut MemberState)) {
        change(&mut lock(&self.own));
    }

    /// Returns the states of the running members as they were last read, beginning with this member's state.
    pub fn live(&self) -> Vec<MemberState> {
        let others = self.others();
        std::iter::once(self.own()).chain(others).collect()
    }

    /// Returns the states of the other running members as they were last read.
    pub fn others(&self) -> Vec<MemberState> {
        lock(&self.live).iter().filter(|member| member.name != self.config.name).cloned().collect()
    }

    /// Reports whether, within the last 15 seconds, etcd has stored the state that this process publishes. An etcd
    /// whose database is full answers reads, but stores nothing, so that no member can record a revocation.
    pub fn is_published(&self) -> bool {
        lock(&self.stored).is_some_and(|stored| stored.elapsed() < STORED)
    }

    /// Publishes the state of this member, and keeps the member's lease alive. Blocks until etcd has answered.
    ///
    /// # Errors
    /// Fails if etcd does not answer, another process publishes a state under this member's name, or [`Self::withdraw`]
    /// was called before.
    pub fn publish(&self) -> Result<()> {
        let begun = Instant::now();
        self.store()?;
        *lock(&self.stored) = Some(begun);
        Ok(())
    }

    fn store(&self) -> Result<()> {
        let mut published = lock(&self.published);
        if published.ends {
            bail!("this member stops");
        }
        let lease = match published.lease {
            Some(lease) if self.etcd.keep_alive(lease)? => lease,
            ended => {
                if ended.is_some() {
                    self.lost_leases.fetch_add(1, Ordering::Relaxed);
                    published.lease = None;
                }
                let lease = self.etcd.grant_lease(TTL)?;
                *published = Published { lease: Some(lease), ..Published::default() };
                lease
            }
        };
        let state = MemberState { time: now(), ..self.own() };
        let (key, context) = (self.key(&self.config.name), context(&self.config.name));
        let value = self.log.seal(&context, &serde_json::to_vec(&state)?)?;
        let mut puts = vec![Op::Put { key: key.clone(), value, lease: Some(lease) }];
        // Before the trails have been compared with the heads that etcd has, these heads must stay.
        let lost = lock(&self.lost).clone().filter(|_| !state.heads.is_empty());
        let trails = lost.map(|lost| (state.heads, lost));
        if let Some((heads, lost)) = trails.clone().filter(|_| published.trails != trails) {
            let trail = TrailState { name: state.name, time: state.time, heads, lost };
            let value = self.log.seal(&trail_context(&trail.name), &serde_json::to_vec(&trail)?)?;
            puts.push(Op::Put { key: self.trail_key(&trail.name), value, lease: None });
        }
        let compare = vec![Compare::CreateRevisionIs(key.clone(), published.created)];
        let reply = self.etcd.txn(&Txn { compare, success: puts, failure: vec![Op::Get { key: key.clone() }] })?;
        if reply.succeeded {
            published.trails = trails;
            if published.created == 0 {
                published.created = reply.revision;
            }
            return Ok(());
        }
        let there = reply.got.into_iter().flatten().next();
        let ours = published.created != 0;
        published.created = 0;
        let Some(there) = there else {
            // The lease ended between the two calls. The next call creates the key again.
            bail!("etcd has removed the state of this member");
        };
        if ours || there.lease == lease {
            // The answer to an earlier call was lost: the key is this process's.
            published.created = if there.lease == lease { there.create_revision } else { 0 };
            bail!("the state of this member changed in etcd meanwhile");
        }
        bail!(
            "another process publishes its state as member `{name}`, or a process that was killed published it less \
             than {TTL} s ago. If another host uses a copy of this directory, stop one of the two hosts: a name \
             belongs to one member",
            name = self.config.name
        );
    }

    /// Reads the states of all running members. Blocks until etcd has answered. Ignores states that were not made with
    /// the cluster's key.
    ///
    /// # Errors
    /// Fails if etcd does not answer.
    pub fn read(&self) -> Result<Vec<MemberState>> {
        let (found, _) = self.etcd.list(&self.key(""))?;
        let mut states = Vec::with_capacity(found.len());
        for item in found {
            let Some(name) = item.key.rsplit('/').next() else { continue };
            let opened = self.log.open(&context(name), &item.value);
            match opened.and_then(|text| Ok(serde_json::from_slice::<MemberState>(&text)?)) {
                Ok(state) if state.name == name => states.push(state),
                Ok(_) => tracing::warn!(name, "etcd has the state of another member under this name"),
                Err(error) => tracing::warn!(name, "cannot read the state of this member in etcd: {error:#}"),
            }
        }
        if let Some(known) = &*lock(&self.known) {
            // Somebody with the cluster's key could publish states of members that nobody has invited.
            states.retain(|state| known.contains_key(&state.name));
        }
        states.sort_by(|one, other| one.name.cmp(&other.name));
        let others = states.iter().filter(|state| state.name != self.config.name);
        self.log.clock().compare(&others.map(|state| state.time).collect::<Vec<_>>());
        lock(&self.live).clone_from(&states);
        Ok(states)
    }

    /// Sets the names and URLs of the members that belong to the cluster. States of others are ignored from now on.
    pub fn set_known(&self, known: BTreeMap<String, String>) {
        *lock(&self.known) = Some(known);
    }

    /// Returns the number of members that belong to the cluster, running or not.
    pub fn known_count(&self) -> usize {
        lock(&self.known).as_ref().map_or(0, BTreeMap::len)
    }

    /// Returns the number of times that etcd has ended the lease of this member although the member was running.
    pub fn lost_leases(&self) -> u64 {
        self.lost_leases.load(Ordering::Relaxed)
    }

    /// Reads the heads of all members' audit trails, as the members published them, sorted by the members' names.
    /// Blocks until etcd has answered.
    ///
    /// # Errors
    /// Fails if etcd does not answer, or has heads that were not made with the cluster's key.
    pub fn read_trails(&self) -> Result<Vec<TrailState>> {
        let (found, _) = self.etcd.list(&self.trail_key(""))?;
        found.iter().map(|item| self.open_trail(item.key.rsplit('/').next().unwrap_or_default(), &item.value)).collect()
    }

    /// Reads the heads that this member has published earlier.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Self::read_trails`].
    pub fn read_own_trail(&self) -> Result<TrailState> {
        let name = &self.config.name;
        let found = self.etcd.get(&self.trail_key(name))?;
        found.map_or_else(|| Ok(TrailState::default()), |item| self.open_trail(name, &item.value))
    }

    fn open_trail(&self, name: &str, sealed: &[u8]) -> Result<TrailState> {
        let opened = self.log.open(&trail_context(name), sealed);
        opened
            .and_then(|text| Ok(serde_json::from_slice(&text)?))
            .with_context(|| format!("cannot read the heads of member {name}'s audit trails in etcd"))
    }

    /// Deletes the heads of a member that was removed from the cluster.
    ///
    /// # Errors
    /// Fails if etcd does not answer.
    pub fn forget_trail(&self, name: &str) -> Result<()> {
        let success = vec![Op::Delete { key: self.trail_key(name) }];
        self.etcd.txn(&Txn { compare: Vec::new(), success, failure: Vec::new() })?;
        Ok(())
    }

    /// Returns the heads that this member has published earlier, and that its audit trails lack. Returns `None` if they
    /// have not been compared yet.
    pub fn lost_heads(&self) -> Option<Vec<String>> {
        lock(&self.lost).clone()
    }

    /// Sets the heads that this member's audit trails lack.
    pub fn set_lost_heads(&self, lost: Vec<String>) {
        if !lost.is_empty() {
            tracing::error!(
                "the audit trails of this member lack entries that it has published earlier: {}. The disk was lost or \
                 has an earlier state, or the power failed. Find out the reason, then run `vouchsafe authority audit \
                 accept`",
                lost.join(" and ")
            );
        }
        *lock(&self.lost) = Some(lost);
    }

    /// Checks that this member is in contact with the cluster. There are four conditions: the member belongs to the
    /// cluster, etcd stores its state, its clock is right, and etcd shows it all log entries that other members have.
    /// `head` is the number of the last entry that etcd shows. `others` are the states of other members, which were
    /// read before `head`.
    ///
    /// # Errors
    /// Fails if one of these conditions does not hold; the error says which, and the way out.
    pub fn check_contact(&self, head: u64, others: &[MemberState]) -> Result<()> {
        let name = &self.config.name;
        if lock(&self.known).as_ref().is_some_and(|known| !known.contains_key(name)) {
            bail!(
                "member {name} was removed from the cluster: stop this server and delete its directory, or run `vouchsafe \
                 authority cluster invite` at a member and join again"
            );
        }
        if !self.is_published() {
            bail!(
                "etcd answers, but does not store the state of this member: see `vouchsafe authority cluster status`"
            );
        }
        if let Some(behind) = self.log.clock().wrong() {
            bail!(clock_sentence(behind));
        }
        if let Some(other) = others.iter().find(|other| other.applied > head) {
            bail!(
                "member {} has entry {} of the cluster's log, but etcd shows only {head} entries to this member",
                other.name,
                other.applied
            );
        }
        Ok(())
    }

    /// Removes the state of this member from etcd, because the member stops.
    ///
    /// # Errors
    /// Fails if etcd does not answer; the state then ends with its lease.
    pub fn withdraw(&self) -> Result<()> {
        let mut published = lock(&self.published);
        (published.created, published.ends) = (0, true);
        match published.lease.take() {
            Some(lease) => Ok(self.etcd.revoke_lease(lease)?),
            None => Ok(()),
        }
    }

    fn key(&self, name: &str) -> String {
        format!("/vouchsafe/{}/members/{name}", self.config.id)
    }

    fn trail_key(&self, name: &str) -> String {
        format!("/vouchsafe/{}/trails/{name}", self.config.id)
    }
}

/// Returns the text that binds sealed heads to their member.
fn trail_context(name: &str) -> String {
    format!("trails/{name}")
}

/// Returns the text that binds a sealed state to its member.
fn context(name: &str) -> String {
    format!("members/{name}")
}

/// Checks that the other members have the same values as this one for all settings that must be equal.
///
/// # Errors
/// Fails if a member in `others` has another value than `own` for such a setting. The error names the setting and the
/// member, and says what to do.
pub fn check_alike(own: &MemberState, others: &[MemberState]) -> Result<()> {
    for other in others {
        let seconds = |seconds: u32| format!("{seconds} s");
        let quoted = |text: &str| format!("\"{text}\"");
        for (key, own, theirs) in [
            ("epoch_length", seconds(own.epoch_length), seconds(other.epoch_length)),
            ("max_lifetime", seconds(own.max_lifetime), seconds(other.max_lifetime)),
            ("issuer", quoted(&own.issuer), quoted(&other.issuer)),
        ] {
            if own != theirs {
                bail!(
                    "`{key}` in authority.toml is {own} here and {theirs} at member {}: keys, grants and sessions would \
                     not fit together. Write the same value here; to change it for the whole cluster, stop all \
                     members, change it everywhere, then start them",
                    other.name
                );
            }
        }
    }
    Ok(())
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_must_have_the_same_epochs() {
        let own = MemberState { name: "a".into(), epoch_length: 3600, max_lifetime: 3600, ..MemberState::default() };
        let other = MemberState { name: "b".into(), ..own.clone() };
        check_alike(&own, std::slice::from_ref(&other)).unwrap();
        let error = check_alike(&own, &[MemberState { epoch_length: 1800, ..other.clone() }]).unwrap_err().to_string();
        assert!(check_alike(&own, &[MemberState { issuer: "https://id.example.org".into(), ..other }]).is_err());
        assert!(error.contains("`epoch_length`") && error.contains("1800 s") && error.contains("member b"), "{error}");
    }

    #[test]
    fn an_authority_alone_names_nobody_to_endpoints() {
        let members = Members::alone(Some("https://a.example.org:8443".into()));
        assert_eq!(members.urls(), ["https://a.example.org:8443"]);
        assert!(members.authorities().is_empty() && members.next().is_none() && members.cluster().is_none());
    }
}
