//! Follows the changes that other members record: applies them to this member's database, memory and files, and then
//! notifies this member's listeners.

use super::contact::{Contact, Standing};
use super::files::{self, SharedFiles};
use super::membership::{Cluster, KNOWN, KnownMember, Load, Members, VerifiersState, check_alike, known_urls};
use super::trails::{self, TrailState};
use crate::leases::Leases;
use crate::login::Sessions;
use crate::policy::{Enforcer, PolicyInForce};
use crate::push::events::{Listener, Push};
use crate::push::verifiers::Verifiers;
use crate::single_flight::SingleFlight;
use crate::storage::{Changes, Database, FollowedGrant, SCHEMA_VERSION, Storage, TokenHash, Unavailable};
use crate::sync::Synchroniser;
use crate::{Directory, Settings, now};
use anyhow::{Context, Result};
use api::Event;
use etcd::WatchEvent;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use wire::Handle;

/// Interval at which a member publishes its state, and reads what the others have recorded even if no event came.
const TICK: Duration = Duration::from_secs(1);
/// Pause after etcd has not answered.
const AGAIN: Duration = Duration::from_millis(250);
/// Time that a watch waits for an event before it checks whether the member has stopped.
const WATCH: Duration = Duration::from_millis(500);
/// Pause after a watch was lost.
const WATCH_PAUSE: Duration = Duration::from_millis(200);
/// Minimum time between two [rounds](Follower::refresh) that callers with unknown tokens cause.
const STRANGERS: Duration = Duration::from_millis(100);
/// Time without contact after which the endpoints that listen here are sent to another member, which hears of
/// revocations.
const SEND_AWAY: Duration = Duration::from_secs(5);
/// Minimum time between two events that make all endpoints read their destinations again.
const TELL_AGAIN: Duration = Duration::from_secs(5);
/// Interval at which the same failure is logged again.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// Follows the changes of other members.
pub struct Follower {
    pub(crate) settings: Arc<Settings>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) members: Arc<Members>,
    pub(crate) contact: Arc<Contact>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) enforcer: Arc<Enforcer>,
    pub(crate) sync: Arc<Synchroniser>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) policy: Arc<PolicyInForce>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) verifiers: Arc<Verifiers>,
    pub(crate) push: Arc<Push>,
    pub(crate) state: FollowerState,
}

/// The parts of a [`Follower`] that change.
#[derive(Default)]
pub struct FollowerState {
    rounds: SingleFlight,
    wake: Notify,
    /// Wakes [`Follower::hear`] when it has to wait for the verifiers that are connected here.
    announced: Notify,
    /// Whether a command of another member waits for the verifiers that are connected here.
    is_awaited: AtomicBool,
    /// Whether a round failed after it had taken changes. The next round must then treat everything as changed.
    missed: AtomicBool,
    /// Whether the endpoints have to read their destinations again.
    untold: AtomicBool,
    told: Mutex<Option<Instant>>,
    /// The time of the last round that was started because a caller presented an unknown token.
    stranger: Mutex<Option<Instant>>,
    /// Number of the last entry of the log, as the last round read it.
    head: AtomicU64,
    /// The start of the last round after which the member had followed everything.
    level: Mutex<Option<Instant>>,
}

/// The lag of a member's decisions behind the state of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Number of entries of the log that the member knows of, but that its decisions do not take into account yet.
    pub behind: u64,
    /// The age of the state by which the member decides: the time since it knew everything that was recorded.
    pub age: Duration,
}

impl Follower {
    /// Follows changes until the future is dropped. An authority in no cluster has nothing to follow.
    ///
    /// # Errors
    /// Fails if the thread that watches etcd cannot be started.
    pub async fn run(self: Arc<Self>) -> Result<()> {
        if self.members.cluster().is_none() {
            return std::future::pending().await;
        }
        watch(&self)?;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut failure, news) = (Failure::default(), self.storage.news());
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.state.wake.notified() => {}
                () = news.notified() => {}
            }
            match self.refresh().await {
                Ok(()) => failure.ended(),
                Err(error) => {
                    self.contact.note_failure(format!("{error:#}"));
                    failure.note(&error, &self.contact.standing());
                    tokio::time::sleep(AGAIN).await;
                    self.state.wake.notify_one();
                }
            }
        }
    }

    /// Stores snapshots in etcd when they are due, until the future is dropped.
    ///
    /// # Errors
    /// Never fails. It returns a `Result` because all tasks of the server do.
    pub async fn upload(self: Arc<Self>) -> Result<()> {
        if self.members.cluster().is_none() {
            return std::future::pending().await;
        }
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.upload_snapshot().await {
                tracing::warn!("cannot store a snapshot of the database in etcd; trying again: {error:#}");
            }
        }
    }

    /// Waits for the verifiers that are connected here, and notes in this member's state what they have carried out,
    /// until the future is dropped.
    ///
    /// # Errors
    /// Never fails. It returns a `Result` because all tasks of the server do.
    pub async fn hear(self: Arc<Self>) -> Result<()> {
        let Some(cluster) = self.members.cluster() else { return std::future::pending().await };
        loop {
            self.state.announced.notified().await;
            let is_awaited = self.state.is_awaited.swap(false, Ordering::SeqCst);
            // Everything up to this entry has been announced.
            let followed = cluster.own().followed;
            note_heard(cluster, self.sync.confirmation.heard_here(followed).await);
            if is_awaited && let Err(error) = self.publish_once().await {
                tracing::debug!("cannot publish what the verifiers have carried out; trying again: {error:#}");
            }
        }
    }

    /// If no verifier has to be waited for, notes what the verifiers have carried out, and returns true. Otherwise
    /// makes [`Self::hear`] wait for the verifiers, and returns false.
    fn hear_now(&self, cluster: &Cluster) -> bool {
        let heard = self.sync.confirmation.heard_now(cluster.own().followed);
        match heard {
            Some(heard) => {
                note_heard(cluster, heard);
                true
            }
            None => {
                self.state.announced.notify_one();
                false
            }
        }
    }

    /// Publishes the state of this member until the future is dropped. If the member has been without contact with etcd
    /// for five seconds, or its clock is wrong, asks the endpoints that listen here to use another member.
    ///
    /// # Errors
    /// Never fails. It returns a `Result` because all tasks of the server do.
    pub async fn publish(self: Arc<Self>) -> Result<()> {
        if self.members.cluster().is_none() {
            return std::future::pending().await;
        }
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut is_known, mut sent_away, mut disagreement) = (false, false, Failure::default());
        loop {
            ticks.tick().await;
            if let Some(cluster) = self.members.cluster() {
                self.hear_now(cluster);
            }
            if let Err(error) = self.publish_once().await {
                self.contact.note_failure(format!("{error:#}"));
                ticks.reset_after(AGAIN);
            }
            if let Some(cluster) = self.members.cluster() {
                match check_alike(&cluster.own(), &cluster.others()) {
                    Ok(()) => disagreement.ended(),
                    Err(error) => disagreement.note(&error, &self.contact.standing()),
                }
                if !is_known && self.contact.may_record() {
                    is_known = self.make_known(cluster).await.is_ok();
                }
            }
            self.tell();
            let gone = match self.contact.standing() {
                Standing::NoMajority { since, .. } => now().saturating_sub(since) >= SEND_AWAY.as_secs(),
                Standing::WrongClock { .. } => true,
                _ => false,
            };
            if gone && !sent_away {
                tracing::warn!("this member asks its agents, verifiers and tunnel endpoints to use another member");
                self.push.broadcast(&Event::RoleChange { next: self.members.next() });
            }
            sent_away = gone;
        }
    }

    /// Applies everything that other members have recorded before this call. Concurrent calls share one run.
    ///
    /// # Errors
    /// Fails if etcd does not answer, a change cannot be put in force here, or [`Cluster::check_contact`] fails. The
    /// call then does not count as contact with the cluster. Also fails if this member's state cannot be published
    /// afterwards. The call then counts as contact.
    pub async fn refresh(self: &Arc<Self>) -> Result<()> {
        let follower = self.clone();
        // The run is a task of its own: a caller that is cancelled must not cancel it, because each change is taken
        // from the database only once.
        tokio::spawn(async move { follower.state.rounds.run(async || follower.round().await).await }).await?
    }

    /// Reports whether other members of the cluster possibly know a token that is unknown here. If so, the caller must
    /// not be told that its session has ended. First applies the changes of the other members, at most every 100 ms.
    pub async fn may_be_known(self: &Arc<Self>, token: &TokenHash) -> bool {
        if self.members.cluster().is_none() {
            return false;
        }
        if !self.contact.may_record() {
            return true;
        }
        let is_due = {
            let mut last = self.state.stranger.lock().unwrap_or_else(PoisonError::into_inner);
            let is_due = last.is_none_or(|last| last.elapsed() >= STRANGERS);
            if is_due {
                *last = Some(Instant::now());
            }
            is_due
        };
        if !is_due {
            tokio::time::sleep(STRANGERS).await;
        }
        let is_current = self.refresh().await.is_ok();
        self.sessions.any(token).is_some() || self.verifiers.id(token).is_some() || !is_current
    }

    async fn round(&self) -> Result<()> {
        let Some(cluster) = self.members.cluster() else { return Ok(()) };
        let begun = Instant::now();
        // The storage thread must not wait for etcd while etcd does not answer: all local work waits for this thread.
        let others = cluster.others();
        let log = cluster.log().clone();
        let head = tokio::task::spawn_blocking(move || log.head()).await??;
        self.state.head.store(head, Ordering::Relaxed);
        let followed = cluster.own().followed;
        let apply = move |database: &mut Database| {
            // A command of this host may have applied entries, of which this process has to learn.
            let is_behind = database.applied()? != head || followed != head;
            let changes = if is_behind { database.catch_up()? } else { database.take_changes() };
            Ok((changes, database.applied()?))
        };
        let (mut changes, applied) = self.storage.call(apply).await?;
        // Until the changes are in force, a later round must treat everything as changed.
        changes.whole |= self.state.missed.swap(true, Ordering::SeqCst);
        let urgent = changes.urgent || changes.policy || changes.shared || changes.sessions || changes.whole;
        self.follow(changes).await.context("cannot put the changes of another member in force")?;
        self.state.missed.store(false, Ordering::SeqCst);
        self.storage.set_followed(applied);
        *self.state.level.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
        let version = self.enforcer.version.load(Ordering::SeqCst);
        cluster.change(|own| {
            (own.applied, own.followed, own.policy) = (applied, applied, version);
        });
        let in_contact = cluster.check_contact(head, &others);
        if in_contact.is_ok() {
            self.contact.note(begun);
        }
        if urgent {
            // Another member's command waits for this state.
            if !self.hear_now(cluster) {
                self.state.is_awaited.store(true, Ordering::SeqCst);
                self.state.announced.notify_one();
            }
            self.publish_once().await?;
        }
        in_contact
    }

    /// Puts changes of other members in force here, and tells the listeners.
    async fn follow(&self, changes: Changes) -> Result<()> {
        let Changes { whole, policy, shared, sessions, urgent, decisive, grants, .. } = changes;
        if shared || whole {
            self.follow_files().await?;
        }
        // The version in force can also differ because a change that this member made itself was only half done.
        self.enforcer.follow_policy().await?;
        if whole {
            let leases = self.leases.clone();
            let resume = move |database: &mut Database| {
                leases.resume(database.renewable_grants(now())?);
                Ok(())
            };
            self.storage.call(resume).await?;
        } else if !grants.is_empty() {
            self.follow_grants(grants).await?;
        }
        if whole || policy || shared || sessions || urgent || decisive {
            self.storage.end_basis();
            self.sync.run().await?;
        }
        if whole {
            // Verifiers read their configuration again when they reconnect: pairs and revocations may have been missed.
            self.push.close_unless(|listener| matches!(listener, Listener::Session(_)));
        }
        if (decisive && !policy) || whole {
            self.state.untold.store(true, Ordering::SeqCst);
        }
        self.tell();
        Ok(())
    }

    /// Makes all endpoints read their destinations again if that is due, but at most once in five seconds: one person
    /// who changes their mind again and again must not occupy everybody else's agents.
    fn tell(&self) {
        let mut told = self.state.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|told| told.elapsed() >= TELL_AGAIN) && self.state.untold.swap(false, Ordering::SeqCst) {
            *told = Some(Instant::now());
            drop(told);
            // Tags or groups changed, so that people may reach other destinations.
            self.push.broadcast(&Event::Policy);
        }
    }

    /// Makes the grants of other members renewable here, and announces them to the verifiers that listen here.
    async fn follow_grants(&self, handles: Vec<Handle>) -> Result<()> {
        let (leases, epoch_length) = (self.leases.clone(), self.settings.epoch_length);
        // The table of leases must change in the order of the database's changes, so the storage thread does this.
        let read = move |database: &mut Database| {
            let mut followed = database.followed_grants(&handles, now(), epoch_length)?;
            leases.resume(followed.iter_mut().filter_map(|grant| grant.resumed.take()).collect());
            let terms = followed.iter().map(|grant| database.lease_terms(Handle(grant.owner.handle)));
            let terms = terms.collect::<Result<Vec<_>>>()?;
            Ok(followed.into_iter().zip(terms).collect::<Vec<_>>())
        };
        for (FollowedGrant { verifier, mut owner, pair, .. }, terms) in self.storage.call(read).await? {
            owner.class = self.policy.with(|policy| policy.class_of(&owner.rule)).await;
            if let Some(terms) = terms {
                owner.expires = self.leases.ends_of(Handle(owner.handle), &terms, owner.expires);
            }
            let listener = Listener::Verifier(verifier);
            if let Some(pair) = pair {
                self.push.send(&listener, &Event::Pair { pair });
            }
            self.push.send(&listener, &Event::Granted { owner });
        }
        Ok(())
    }

    /// Takes over the master keys and `networks.toml`.
    async fn follow_files(&self) -> Result<()> {
        let read =
            |database: &mut Database| Ok((files::read(database)?, files::late(database)?, known_urls(database)?));
        let (SharedFiles { keys, networks }, late, known) = self.storage.call(read).await?;
        self.leases.set_late(late);
        if let Some(cluster) = self.members.cluster() {
            cluster.set_known(known);
        }
        if let Some(keys) = keys {
            self.enforcer.follow_keys(&keys).await?;
        }
        if let Some(networks) = networks {
            self.enforcer.follow_networks(networks).await?;
        }
        Ok(())
    }

    /// Returns how far this member's decisions are behind the cluster; zero for an authority in no cluster.
    pub fn lag(&self) -> Lag {
        let Some(cluster) = self.members.cluster() else { return Lag::default() };
        let own = cluster.own();
        let level = *self.state.level.lock().unwrap_or_else(PoisonError::into_inner);
        let since_start = || Duration::from_secs(now().saturating_sub(own.since));
        Lag {
            behind: self.state.head.load(Ordering::Relaxed).saturating_sub(own.followed),
            age: level.map_or_else(since_start, |level| level.elapsed()),
        }
    }

    /// Compares this member's audit trails with the heads that it has published earlier.
    async fn compare_trails(&self, cluster: &Cluster) -> Result<()> {
        let members = self.members.clone();
        let read = move || members.cluster().map_or_else(|| Ok(TrailState::default()), Cluster::read_own_trail);
        let published = tokio::task::spawn_blocking(read).await??;
        let lost = self.storage.call(move |database| trails::missing(database, &published)).await?;
        cluster.set_lost_heads(lost);
        Ok(())
    }

    async fn publish_once(&self) -> Result<()> {
        if let Some(cluster) = self.members.cluster().filter(|cluster| cluster.lost_heads().is_none()) {
            self.compare_trails(cluster).await?;
        }
        let heads = self.storage.call(|database| database.audit_heads()).await?;
        let (members, (sessions, verifiers)) = (self.members.clone(), self.push.count());
        let publish = move || {
            let Some(cluster) = members.cluster() else { return Ok(()) };
            cluster.change(|own| {
                own.heads = heads.iter().map(ToString::to_string).collect();
                own.load = Some(Load { sessions, verifiers });
            });
            cluster.publish()?;
            cluster.read().map(drop)
        };
        tokio::task::spawn_blocking(publish).await?
    }

    /// Stores a snapshot in etcd, from which members that were away for long continue, and removes old entries of the
    /// log.
    async fn upload_snapshot(&self) -> Result<()> {
        if !self.contact.may_record() || !self.storage.call(|database| database.snapshot_is_due()).await? {
            return Ok(());
        }
        let (members, path) = (self.members.clone(), self.directory.database());
        let upload = move || {
            let Some(cluster) = members.cluster() else { return Ok(()) };
            cluster.log().upload_snapshot(&Database::open_to_read(&path)?)
        };
        tokio::task::spawn_blocking(upload).await?
    }

    /// Adds this member to the cluster's list of members, and makes the others keep ended sessions and revoked grants
    /// for as long as this member may renew leases without contact.
    async fn make_known(&self, cluster: &Cluster) -> Result<()> {
        let (name, url) = (cluster.config().name.clone(), cluster.config().url.clone());
        let grace = self.settings.grace;
        let record = move |database: &mut Database| {
            files::note_grace(database, grace)?;
            let known = serde_json::to_vec(&KnownMember { url, format: Some(SCHEMA_VERSION) })?;
            // Only an invitation makes a member.
            database.change_shared(&format!("{KNOWN}{name}"), |before| Ok(before.map(|_| known)))
        };
        self.storage.call(record).await
    }
}

/// Notes in this member's state which entries of the log its verifiers have carried out. Does nothing if the state
/// already contains a later entry.
fn note_heard(cluster: &Cluster, heard: VerifiersState) {
    cluster.change(|own| {
        if own.verifiers.as_ref().is_none_or(|before| before.heard <= heard.heard) {
            own.verifiers = Some(heard);
        }
    });
}

/// Watches the head of the log on a thread of its own, which ends with the follower.
fn watch(follower: &Arc<Follower>) -> Result<()> {
    let Some(cluster) = follower.members.cluster() else { return Ok(()) };
    let (etcd, key) = (cluster.etcd().clone(), format!("/vouchsafe/{}/head", cluster.config().id));
    let follower: Weak<Follower> = Arc::downgrade(follower);
    std::thread::Builder::new().name("cluster-watch".into()).spawn(move || {
        while follower.strong_count() > 0 {
            let mut watch = etcd.watch(&key, None);
            loop {
                let event = watch.next(WATCH);
                let Some(follower) = follower.upgrade() else { return };
                match event {
                    WatchEvent::Quiet => {}
                    WatchEvent::Changed { .. } => follower.state.wake.notify_one(),
                    WatchEvent::Compacted | WatchEvent::Lost(_) => {
                        // Changes may have been missed.
                        follower.state.wake.notify_one();
                        break;
                    }
                }
            }
            std::thread::sleep(WATCH_PAUSE);
        }
    })?;
    Ok(())
}

/// Logs failures, but the same failure at most once a minute.
#[derive(Default)]
struct Failure {
    text: String,
    logged: Option<Instant>,
}

impl Failure {
    fn note(&mut self, error: &anyhow::Error, standing: &Standing) {
        let text = format!("{error:#}");
        let is_old = self.text == text && self.logged.is_some_and(|logged| logged.elapsed() < LOG_AGAIN);
        if !is_old {
            let is_outage =
                error.downcast_ref::<Unavailable>().is_some() || error.downcast_ref::<etcd::Error>().is_some();
            let sentence = match standing {
                // Its sentence contains the reason.
                Standing::NoMajority { .. } => standing.sentence(now()),
                _ => text.clone(),
            };
            if is_outage {
                tracing::warn!("cannot follow the cluster; trying again: {sentence}");
            } else {
                tracing::error!("cannot follow the cluster; trying again: {sentence}");
            }
            self.logged = Some(Instant::now());
        }
        self.text = text;
    }

    fn ended(&mut self) {
        if self.logged.take().is_some() {
            tracing::info!("this member follows the cluster again");
        }
        self.text.clear();
    }
}
