//! The daemon's main loop: reacts to the authority, the clock, orders from the control socket and signals.

use super::marks::SECOND_CUT;
use super::{Daemon, notify};
use crate::kernel::Cut;
use crate::now;
use crate::organisations::Chain;
use crate::shared::{Order, Shared};
use crate::unnamed::Unnamed;
use anyhow::{Result, bail};
use api::{Confirm, Event, RevokedGrant, RevokedSession};
use follower::{Follower, Role, State};
use shell::signals::Signals;
use std::collections::HashSet;
use std::future::pending;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep, sleep_until};
use wire::Handle;

/// Interval at which the kernel program's clock is set and interfaces are checked.
const TICK: Duration = Duration::from_secs(1);
/// Interval at which idle flows are swept.
const SWEEP: Duration = Duration::from_secs(5);

impl Daemon {
    pub(super) async fn follow(
        mut self,
        follower: &mut Follower,
        chain: &Chain,
        mut orders: mpsc::Receiver<(Order, tokio::sync::oneshot::Sender<Result<String>>)>,
        mut signals: Signals,
        trial: Option<Duration>,
    ) -> Result<ExitCode> {
        let (mut ticks, mut sweeps) = (interval(TICK), interval(SWEEP));
        let mut trial = trial.map(|trial| Instant::now() + trial);
        if let Some(end) = trial {
            let seconds = end.duration_since(Instant::now()).as_secs();
            tracing::warn!(seconds, "trial: protection ends unless `vouchsafe verifier confirm` is run in time");
        }
        loop {
            tokio::select! {
                news = follower.next() => follower.handle(news, &mut self),
                grants = self.recheck.answer() => self.rechecked(&grants, follower),
                () = self.addresses.notified() => self.protect_addresses(follower.state()),
                () = self.peers.recheck.notified() => self.recheck.want(),
                () = chain.changed() => self.protect_others(chain),
                _ = ticks.tick() => self.tick(follower, chain),
                _ = sweeps.tick() => self.sweep(),
                () = until(self.second_cut.into_iter().chain(self.marks.cut_at()).min()) => self.cut_again(),
                flows = swept(&mut self.sweeping) => self.swept(flows, follower),
                Some((order, reply)) = orders.recv() => {
                    let ends = matches!(order, Order::Detach);
                    let done = self.obey(order, &mut trial);
                    let ended = ends && done.is_ok();
                    let _ = reply.send(done);
                    if ended {
                        // Give the answer time to reach the client before the process ends.
                        sleep(Duration::from_millis(50)).await;
                        return Ok(ExitCode::SUCCESS);
                    }
                },
                () = until(trial) => {
                    self.shared.kernel_mut().end()?;
                    tracing::error!(
                        "nobody confirmed the trial with `vouchsafe verifier confirm` in time: protection has ended"
                    );
                    return Ok(ExitCode::FAILURE);
                },
                () = signals.any() => break,
            }
        }
        notify::stopping();
        follower.save_last().await;
        if trial.is_some() {
            self.shared.kernel_mut().end()?;
            tracing::warn!("stopped before anybody confirmed the trial: protection has ended");
            return Ok(ExitCode::FAILURE);
        }
        if self.shared.observes() {
            tracing::info!("stopped; nothing is protected: the attached programs count packets, but drop none");
        } else {
            tracing::info!(
                "stopped; protection stays in force until the current keys expire. `vouchsafe verifier detach` ends \
                 protection"
            );
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Follows the authority of an organisation other than the default one, until `stop` becomes true.
    pub(super) async fn follow_behind(mut self, follower: &mut Follower, mut stop: watch::Receiver<bool>) {
        let (mut ticks, mut sweeps) = (interval(TICK), interval(SWEEP));
        loop {
            tokio::select! {
                news = follower.next() => follower.handle(news, &mut self),
                grants = self.recheck.answer() => self.rechecked(&grants, follower),
                _ = ticks.tick() => self.set_clock(),
                _ = sweeps.tick() => self.sweep(),
                () = until(self.second_cut.into_iter().chain(self.marks.cut_at()).min()) => self.cut_again(),
                flows = swept(&mut self.sweeping) => self.swept(flows, follower),
                () = stopped(&mut stop) => break,
            }
        }
        follower.save_last().await;
    }

    fn revoke(&mut self, grants: &[RevokedGrant], state: &mut State) {
        let cut = self.shared.kernel().revoke(grants, now());
        self.note_cut(grants, &cut, state);
        self.recheck_tunnels();
    }

    fn end_sessions(&mut self, sessions: &[RevokedSession], state: &mut State) {
        let ended = self.shared.kernel().end_sessions(sessions, now());
        tracing::info!(sessions = sessions.len(), flows = ended.flows, "sessions ended");
        self.second_cut = Some(Instant::now() + SECOND_CUT);
        state.end_sessions(sessions, now());
        self.recheck_tunnels();
    }

    /// Cuts the flows of the grants that the authority named in its answer to [`crate::recheck::Recheck`].
    fn rechecked(&mut self, grants: &[RevokedGrant], follower: &mut Follower) {
        if !grants.is_empty() {
            let cut = self.shared.kernel().cut(grants, now());
            self.note_cut(grants, &cut, follower.state_mut());
        }
        self.marks.rechecked(!self.recheck.is_failing(), Instant::now());
    }

    /// Sweeps after the kernel programs have finished with the packets that they were processing during a change.
    fn cut_again(&mut self) {
        let now = Instant::now();
        self.second_cut = self.second_cut.filter(|time| *time > now);
        self.marks.sweep(self.sweeping.is_some(), now);
        self.sweep();
    }

    fn note_cut(&mut self, grants: &[RevokedGrant], cut: &Cut, state: &mut State) {
        tracing::info!(grants = grants.len(), flows = cut.flows, "cut");
        self.second_cut = Some(Instant::now() + SECOND_CUT);
        let owners = self.shared.owners();
        for grant in grants {
            let owner = owners.of(grant.handle);
            let (person, device) = (owner.map(|o| o.person.as_str()), owner.map(|o| o.device.as_str()));
            tracing::info!(handle = %Handle(grant.handle), person, device, "revoked");
        }
        state.revoke(&cut.lasting, now());
    }

    fn write(&mut self, state: &State) -> Result<()> {
        let loaded = self.shared.kernel().is_loaded_for(&state.config);
        let reloaded = if loaded { Ok(()) } else { self.shared.kernel_mut().reload(&state.config) };
        if !loaded {
            self.restart_tunnels();
        }
        let kernel = self.shared.kernel();
        // Write both even if one fails: withdrawals must take effect even if the rest cannot be written.
        let proofs = kernel.write_proofs(state);
        kernel.write(&state.config, &state.keys.keys, now())?;
        reloaded.and(proofs)
    }

    fn tick(&mut self, follower: &Follower, chain: &Chain) {
        self.set_clock();
        if self.shared.kernel().interfaces_changed()
            && let Err(error) = self.shared.kernel_mut().attach_changed()
        {
            tracing::error!("cannot follow changes of interfaces: {error:#}");
        }
        self.protect_others(chain);
        self.protect_addresses(follower.state());
        self.follow_tunnels(follower.state());
        notify::alive(&self.shared.kernel(), follower.is_connected(), &mut self.last_status);
    }

    fn set_clock(&self) {
        if let Err(error) = self.shared.kernel().set_clock() {
            tracing::error!("cannot set the clock of the kernel programs: {error:#}");
        }
    }

    /// Writes the services of all organisations, if those of another organisation have changed.
    fn protect_others(&self, chain: &Chain) {
        if chain.take_changes()
            && let Err(error) = self.shared.kernel().protect_again()
        {
            tracing::error!("cannot protect the services of another organisation: {error:#}");
        }
    }

    /// Protects this host's new addresses, and stops protecting those that it has lost.
    fn protect_addresses(&self, state: &State) {
        let kernel = self.shared.kernel();
        if kernel.addresses_changed() {
            match kernel.protect(&state.config.receivers) {
                Ok(()) => {
                    tracing::info!("this host's addresses changed: its ports are protected at the current addresses")
                }
                Err(error) => {
                    tracing::error!("cannot protect this host's ports at its current addresses: {error:#}");
                }
            }
        }
    }

    /// Sweeps on a thread of its own: with full tables a sweep takes a while, and must not delay newly issued grants.
    fn sweep(&mut self) {
        self.sweep_again = self.sweeping.is_some();
        if self.sweeping.is_none() {
            let shared = self.shared.clone();
            self.sweeping = Some(tokio::task::spawn_blocking(move || shared.kernel().sweep()));
        }
    }

    fn swept(&mut self, flows: Option<u32>, follower: &mut Follower) {
        self.sweeping = None;
        self.marks.swept(flows.is_some());
        if std::mem::take(&mut self.sweep_again) {
            self.sweep();
        }
        if let Some(flows @ 1..) = flows {
            tracing::debug!(flows, "forgotten");
        }
        let is_closed = self.shared.kernel().is_closed() || self.shared.kernel().proofs_are_closed();
        if is_closed && let Err(error) = self.write(follower.current_state()) {
            tracing::debug!("no new flows are admitted yet: {error:#}");
        }
        // Use only what this process has fetched: the state on the disk may lack the last revocations.
        if follower.health().borrow().read.is_some() {
            self.shared.kernel().readmit(&follower.current_state().config);
        }
        let keyless = !self.shared.kernel().is_closed() && self.shared.kernel().keys_until(now()).is_none();
        if keyless && !std::mem::replace(&mut self.keyless, keyless) {
            tracing::error!(
                "no key for the current epoch: no new flows are admitted until the authority can be reached"
            );
        }
        self.keyless = keyless;
        for handle in self.shared.kernel().without_class() {
            // If the queue is full, the next sweep finds the grant again.
            let _ = self.unknown.try_send(handle);
        }
        if self.shared.owners().is_crowded() {
            let flows: HashSet<u64> = self.shared.kernel().flows().iter().map(|(_, flow)| flow.handle).collect();
            self.shared.owners().forget(now(), &flows);
        }
    }

    fn obey(&self, order: Order, trial: &mut Option<Instant>) -> Result<String> {
        match order {
            Order::Confirm => {
                if trial.is_none() {
                    bail!("no trial to confirm");
                }
                self.shared.kernel_mut().last()?;
                *trial = None;
                *self.shared.trial() = None;
                tracing::info!("confirmed: protection stays");
                Ok("confirmed: protection stays".into())
            }
            Order::Detach => {
                self.shared.kernel_mut().end()?;
                tracing::warn!("detached by command: nothing is protected now");
                Ok("detached: nothing is protected now".into())
            }
        }
    }
}

impl Role for Daemon {
    const NAME: &'static str = "verifier";

    fn apply(&mut self, state: &State, before: &State) -> Result<()> {
        if state.config.receivers != before.config.receivers {
            tracing::info!(receivers = state.config.receivers.len(), "the protected destinations changed");
        }
        self.follow_tunnels(state);
        let written = self.write(state);
        self.second_cut = Some(Instant::now() + SECOND_CUT);
        written
    }

    fn event(&mut self, event: Event, state: &mut State) {
        match event {
            Event::Hello | Event::Policy | Event::Recheck => self.recheck.want(),
            Event::Revoked { grants } => self.revoke(&grants, state),
            Event::SessionsRevoked { sessions } => self.end_sessions(&sessions, state),
            Event::Granted { owner } => {
                let handle = Handle(owner.handle);
                tracing::debug!(%handle, person = owner.person, device = owner.device, "granted");
                self.shared.learn(owner);
                self.confirmer.note(Confirm::Grants, handle.0);
            }
            Event::Pair { pair } => {
                if let Err(error) = self.shared.kernel().note_pairs(&[pair], now()) {
                    tracing::error!("cannot store a pair of suite sha224, so its tokens are dropped: {error:#}");
                }
                self.confirmer.note(Confirm::Pairs, pair.handle);
                state.add_pairs(&[pair], now());
            }
            Event::Withdrawn { withdrawn } => {
                self.shared.kernel().withdraw(&withdrawn);
                tracing::info!(statements = withdrawn.len(), "consent was withdrawn");
                state.withdraw(&withdrawn, now());
            }
            Event::Mark { mark } => self.marks.begin(mark, self.recheck.outstanding(), Instant::now()),
            Event::Alive | Event::LoggedOut | Event::RoleChange { .. } => {}
        }
    }
}

/// Asks the authority for the owners of grants that the kernel program or the tunnels' thread does not know, and
/// records the owners. The clients of these grants retransmit their packets in the meantime.
pub(super) async fn name(
    shared: Arc<Shared>,
    authority: client::Authority,
    mut unknown: mpsc::Receiver<u64>,
    in_tunnels: Arc<Unnamed>,
) {
    loop {
        let handle = tokio::select! {
            handle = unknown.recv() => match handle {
                Some(handle) => handle,
                None => return,
            },
            handle = in_tunnels.take() => handle,
        };
        let owner = shared.owners().of(handle).cloned();
        match owner {
            Some(owner) => shared.learn(owner),
            None => match authority.grant_owner(handle).await {
                Ok(Some(owner)) => shared.learn(owner),
                Ok(None) => {
                    tracing::warn!(handle = %Handle(handle), "the authority does not know the owner of this grant");
                }
                Err(error) => tracing::warn!("cannot look up the owner of grant {}: {error}", Handle(handle)),
            },
        }
    }
}

/// Waits until `stop` becomes true.
pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The sender lives as long as the process.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

/// Waits for the sweep under way, if any; returns the number of flows that the sweep removed, or `None` if it failed.
/// The caller clears `task`.
async fn swept(task: &mut Option<JoinHandle<Option<u32>>>) -> Option<u32> {
    match task {
        Some(task) => task.await.unwrap_or_default(),
        None => pending().await,
    }
}
