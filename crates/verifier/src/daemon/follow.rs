//! The daemon's main loop: reacts to the authority, the clock, orders from the control socket and signals.

use super::{Daemon, PAUSES, fetch, notify};
use crate::directory::Cache;
use crate::protection::Cut;
use crate::shared::{Order, Shared};
use crate::{now, plan};
use anyhow::{Result, bail};
use api::{Confirm, Event, RevokedGrant, RevokedSession, Withdrawal};
use client::EventStream;
use shell::signals::Signals;
use std::collections::HashSet;
use std::future::pending;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep, sleep_until};
use wire::Handle;

/// Interval at which the kernel program's clock is set and interfaces are checked.
const TICK: Duration = Duration::from_secs(1);
/// Interval at which idle flows are swept.
const SWEEP: Duration = Duration::from_secs(5);
/// Delay of the second cut after a revocation: by then, packets that were being processed during the first are done
/// with.
const SECOND_CUT: Duration = Duration::from_millis(75);
/// Silence after which the event stream counts as lost; the authority sends something every 10 s.
const SILENCE: Duration = Duration::from_secs(25);

impl Daemon {
    pub(super) async fn follow(
        mut self,
        mut orders: mpsc::Receiver<(Order, tokio::sync::oneshot::Sender<Result<String>>)>,
        mut signals: Signals,
        trial: Option<Duration>,
    ) -> Result<ExitCode> {
        let (mut ticks, mut sweeps) = (interval(TICK), interval(SWEEP));
        let (mut events, mut reconnect) = (Some(self.listen()), None);
        let mut trial = trial.map(|trial| Instant::now() + trial);
        if let Some(end) = trial {
            let seconds = end.duration_since(Instant::now()).as_secs();
            tracing::warn!(seconds, "trying: protection ends unless `vouchsafe verifier confirm` comes in time");
        }
        loop {
            tokio::select! {
                event = next(&mut events) => match event {
                    Ok(event) => self.event(event),
                    Err(error) => {
                        self.refused(&error);
                        events = None;
                        reconnect = Some(Instant::now() + PAUSES.1);
                    }
                },
                () = until(reconnect) => {
                    reconnect = None;
                    events = Some(self.listen());
                },
                fetched = join(&mut self.sync) => self.fetched(fetched),
                grants = self.recheck.answer() => self.rechecked(&grants),
                () = self.addresses.notified() => self.protect_addresses(),
                () = self.peers.recheck.notified() => self.recheck.want(),
                () = until(Some(self.next_sync)), if self.sync.is_none() => self.ask(),
                _ = ticks.tick() => self.tick(),
                _ = sweeps.tick() => self.sweep(),
                () = until(self.second_cut) => {
                    self.second_cut = None;
                    self.sweep();
                },
                flows = swept(&mut self.sweeping) => self.swept(flows),
                Some((order, reply)) = orders.recv() => {
                    let ends = matches!(order, Order::Detach);
                    let done = self.obey(order, &mut trial);
                    let ended = ends && done.is_ok();
                    let _ = reply.send(done);
                    if ended {
                        // Let the answer reach the client before the process ends.
                        sleep(Duration::from_millis(50)).await;
                        return Ok(ExitCode::SUCCESS);
                    }
                },
                () = until(trial) => {
                    self.shared.protection_mut().end()?;
                    tracing::error!("nobody confirmed in time: protection has been taken back");
                    return Ok(ExitCode::FAILURE);
                },
                () = signals.any() => break,
            }
        }
        notify::stopping();
        self.saved().await;
        if trial.is_some() {
            self.shared.protection_mut().end()?;
            tracing::warn!("stopped before anybody confirmed: protection has been taken back");
            return Ok(ExitCode::FAILURE);
        }
        if self.shared.observes() {
            tracing::info!("stopped; nothing is protected: what is attached counts and drops nothing");
        } else {
            tracing::info!("stopped; protection goes on with the keys there are. `vouchsafe verifier detach` ends it");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn listen(&self) -> EventStream {
        self.authority.confirmed_events(self.confirmer.confirms())
    }

    fn event(&mut self, event: Event) {
        self.heard = Instant::now();
        match event {
            Event::Hello => {
                if !std::mem::replace(&mut self.shared.health().connected, true) {
                    tracing::info!("connected to the authority");
                }
                self.want();
                self.recheck.want();
            }
            Event::Policy => {
                self.want();
                self.recheck.want();
            }
            Event::Recheck => self.recheck.want(),
            Event::Revoked { grants } => self.revoke(&grants),
            Event::Granted { owner } => {
                let handle = Handle(owner.handle);
                tracing::debug!(%handle, person = owner.person, device = owner.device, "granted");
                self.shared.learn(owner);
                self.confirmer.note(Confirm::Grants, handle.0);
            }
            Event::Pair { pair } => {
                if let Err(error) = self.shared.protection().note_pairs(&[pair], now()) {
                    tracing::error!("{error:#}");
                }
                self.confirmer.note(Confirm::Pairs, pair.handle);
                plan::with_pairs(&mut self.cache.config.pairs, &[pair], now());
                self.unsaved = true;
            }
            Event::Withdrawn { withdrawn } => {
                self.shared.protection().withdraw(&withdrawn);
                tracing::info!(statements = withdrawn.len(), "consent was withdrawn");
                Withdrawal::add(&mut self.cache.config.withdrawn, &withdrawn, now());
                self.unsaved = true;
            }
            Event::SessionsRevoked { sessions } => self.end_sessions(&sessions),
            Event::Alive | Event::LoggedOut => {}
        }
    }

    fn revoke(&mut self, grants: &[RevokedGrant]) {
        let cut = self.shared.protection().revoke(grants, now());
        self.note_cut(grants, &cut);
    }

    fn end_sessions(&mut self, sessions: &[RevokedSession]) {
        let ended = self.shared.protection().end_sessions(sessions, now());
        tracing::info!(sessions = sessions.len(), flows = ended.flows, "sessions ended");
        self.second_cut = Some(Instant::now() + SECOND_CUT);
        plan::with_sessions(&mut self.cache.config.revoked_sessions, sessions, now());
        self.unsaved = true;
    }

    /// Cuts the flows that the authority named in its answer.
    fn rechecked(&mut self, grants: &[RevokedGrant]) {
        if !grants.is_empty() {
            let cut = self.shared.protection().cut(grants, now());
            self.note_cut(grants, &cut);
        }
    }

    fn note_cut(&mut self, grants: &[RevokedGrant], cut: &Cut) {
        tracing::info!(grants = grants.len(), flows = cut.flows, "cut");
        self.second_cut = Some(Instant::now() + SECOND_CUT);
        let owners = self.shared.owners();
        for grant in grants {
            let owner = owners.of(grant.handle);
            let (person, device) = (owner.map(|o| o.person.as_str()), owner.map(|o| o.device.as_str()));
            tracing::info!(handle = %Handle(grant.handle), person, device, "revoked");
        }
        plan::with_revoked(&mut self.cache.config.revoked, &cut.lasting, now());
        self.unsaved = true;
    }

    /// Fetches configuration and keys from the authority, now or once the request under way is done.
    fn want(&mut self) {
        self.sync_again = self.sync.is_some();
        if self.sync.is_none() {
            self.ask();
        }
    }

    fn ask(&mut self) {
        self.sync = Some(tokio::spawn(fetch(self.authority.clone())));
    }

    fn fetched(&mut self, fetched: Result<Cache, client::Error>) {
        self.sync = None;
        match fetched {
            Ok(cache) => self.apply(cache),
            Err(error) => {
                if self.shared.health().trouble.is_none() {
                    tracing::warn!(%error, "cannot read from the authority; protection goes on with what it said last");
                }
                self.shared.health().trouble = Some(error.to_string());
                self.next_sync = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(PAUSES.1);
            }
        }
        if std::mem::take(&mut self.sync_again) {
            self.ask();
        }
    }

    fn apply(&mut self, mut cache: Cache) {
        if let Some(seconds) = plan::clock_error(cache.config.now, now()) {
            tracing::warn!(seconds, "this clock and the authority's differ: tokens may be refused");
        }
        // Keep what was revoked while the answer was under way.
        let known = std::mem::take(&mut self.cache.config.revoked);
        plan::with_revoked(&mut cache.config.revoked, &known, now());
        let known = std::mem::take(&mut self.cache.config.revoked_sessions);
        plan::with_sessions(&mut cache.config.revoked_sessions, &known, now());
        // Keep what was issued meanwhile, too.
        plan::with_pairs(&mut cache.config.pairs, &std::mem::take(&mut self.cache.config.pairs), now());
        Withdrawal::add(&mut cache.config.withdrawn, &std::mem::take(&mut self.cache.config.withdrawn), now());
        if cache.config.receivers != self.cache.config.receivers {
            tracing::info!(receivers = cache.config.receivers.len(), "what is protected changed");
        }
        let written = self.write(&cache);
        self.second_cut = Some(Instant::now() + SECOND_CUT);
        let mut health = self.shared.health();
        health.read = Some(now());
        health.trouble = None;
        self.pause = PAUSES.0;
        self.next_sync = Instant::now() + Duration::from_secs((cache.config.epoch_length / 4).max(5).into());
        if let Err(error) = written {
            tracing::error!("cannot put in force what the authority says: {error:#}");
            health.trouble = Some(format!("{error:#}"));
            self.next_sync = Instant::now() + PAUSES.1;
        }
        self.cache = cache;
        self.unsaved = true;
    }

    fn write(&self, cache: &Cache) -> Result<()> {
        let loaded = self.shared.protection().is_loaded_for(&cache.config);
        let reloaded = if loaded { Ok(()) } else { self.shared.protection_mut().reload(&cache.config) };
        let protection = self.shared.protection();
        // Write both even if one fails: withdrawals must take effect even if the rest cannot be written.
        let proofs = protection.write_proofs(cache);
        protection.write(&cache.config, &cache.keys.keys, now())?;
        reloaded.and(proofs)
    }

    fn refused(&self, error: &client::Error) {
        tracing::error!(%error, "the authority refuses this verifier; protection goes on until its keys end. Enrol it again");
        let mut health = self.shared.health();
        health.connected = false;
        health.trouble = Some(error.to_string());
    }

    fn tick(&mut self) {
        if let Err(error) = self.shared.protection().set_clock() {
            tracing::error!("{error:#}");
        }
        if self.shared.protection().interfaces_changed()
            && let Err(error) = self.shared.protection_mut().attach_changed()
        {
            tracing::error!("{error:#}");
        }
        self.protect_addresses();
        if self.heard.elapsed() > SILENCE && std::mem::take(&mut self.shared.health().connected) {
            tracing::warn!("lost the authority; protection goes on with what it said last");
        }
        let connected = self.shared.health().connected;
        notify::alive(&self.shared.protection(), connected, &mut self.told);
        self.save();
    }

    /// Protects this host's new addresses, and stops protecting those that it has lost.
    fn protect_addresses(&self) {
        let protection = self.shared.protection();
        if protection.addresses_changed() {
            match protection.protect(&self.cache.config.receivers) {
                Ok(()) => tracing::info!("this host's addresses changed: its ports are protected at those it has now"),
                Err(error) => tracing::error!("{error:#}"),
            }
        }
    }

    /// Saves the authority's state to disk on a thread of its own: a disk may be slower than a revocation may wait.
    fn save(&mut self) {
        if !self.unsaved || self.saving.as_ref().is_some_and(|saving| !saving.is_finished()) {
            return;
        }
        self.unsaved = false;
        let (directory, cache) = (self.directory.clone(), self.cache.clone());
        self.saving = Some(tokio::task::spawn_blocking(move || {
            if let Err(error) = directory.set_cache(&cache) {
                tracing::warn!("cannot keep what the authority said: {error:#}");
            }
        }));
    }

    async fn saved(&mut self) {
        for _ in 0..2 {
            if let Some(saving) = self.saving.take() {
                let _ = saving.await;
            }
            self.save();
        }
    }

    /// Sweeps on a thread of its own: with full tables a sweep takes a while, and newly issued grants are waiting to be
    /// processed.
    fn sweep(&mut self) {
        self.sweep_again = self.sweeping.is_some();
        if self.sweeping.is_none() {
            let shared = self.shared.clone();
            self.sweeping = Some(tokio::task::spawn_blocking(move || shared.protection().sweep()));
        }
    }

    fn swept(&mut self, flows: u32) {
        self.sweeping = None;
        if std::mem::take(&mut self.sweep_again) {
            self.sweep();
        }
        if flows > 0 {
            tracing::debug!(flows, "forgotten");
        }
        if self.shared.protection().is_closed() || self.shared.protection().proofs_are_closed() {
            Withdrawal::add(&mut self.cache.config.withdrawn, &[], now());
            plan::with_revoked(&mut self.cache.config.revoked, &[], now());
            plan::with_sessions(&mut self.cache.config.revoked_sessions, &[], now());
            if let Err(error) = self.write(&self.cache) {
                tracing::debug!("still closed: {error:#}");
            }
        }
        // Only with what this process has fetched: the state on the disk may lack the last revocations.
        if self.shared.health().read.is_some() {
            self.shared.protection().readmit(&self.cache.config);
        }
        let keyless = !self.shared.protection().is_closed() && self.shared.protection().keys_until(now()).is_none();
        if keyless && !std::mem::replace(&mut self.keyless, keyless) {
            tracing::error!("no key for the current epoch: nothing new is admitted until the authority can be reached");
        }
        self.keyless = keyless;
        for handle in self.shared.protection().without_class() {
            // If the queue is full, the next sweep finds the grant again.
            let _ = self.unknown.try_send(handle);
        }
        if self.shared.owners().is_crowded() {
            let flows: HashSet<u64> = self.shared.protection().flows().iter().map(|(_, flow)| flow.handle).collect();
            self.shared.owners().forget(now(), &flows);
        }
    }

    fn obey(&self, order: Order, trial: &mut Option<Instant>) -> Result<String> {
        match order {
            Order::Confirm => {
                if trial.is_none() {
                    bail!("nothing is being tried");
                }
                self.shared.protection_mut().last()?;
                *trial = None;
                *self.shared.trial() = None;
                tracing::info!("confirmed: protection stays");
                Ok("protection stays".into())
            }
            Order::Detach => {
                self.shared.protection_mut().end()?;
                tracing::warn!("detached by order: nothing is protected any more");
                Ok("detached: nothing is protected any more".into())
            }
        }
    }
}

/// Asks the authority for the owners of grants that the kernel program does not know. Meanwhile their clients
/// retransmit.
pub(super) async fn name(shared: Arc<Shared>, authority: client::Authority, mut asked: mpsc::Receiver<u64>) {
    while let Some(handle) = asked.recv().await {
        let owner = shared.owners().of(handle).cloned();
        match owner {
            Some(owner) => shared.learn(owner),
            None => match authority.grant_owner(handle).await {
                Ok(Some(owner)) => shared.learn(owner),
                Ok(None) => tracing::warn!(handle = %Handle(handle), "the authority does not know whose grant this is"),
                Err(error) => tracing::warn!("cannot ask whose a grant is: {error}"),
            },
        }
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

async fn next(events: &mut Option<EventStream>) -> Result<Event, client::Error> {
    match events {
        Some(events) => events.next().await,
        None => pending().await,
    }
}

/// Waits for the sweep under way, if any; returns the number of flows that it forgot. The caller clears `task`.
async fn swept(task: &mut Option<JoinHandle<u32>>) -> u32 {
    match task {
        Some(task) => task.await.unwrap_or_default(),
        None => pending().await,
    }
}

/// Waits for the task, if any, and returns its result. The caller clears `task`.
async fn join(task: &mut Option<JoinHandle<Result<Cache, client::Error>>>) -> Result<Cache, client::Error> {
    match task {
        Some(task) => task.await.unwrap_or_else(|error| Err(client::Error::Other(error.to_string()))),
        None => pending().await,
    }
}
