//! The daemon: one loop that follows the authority and the interfaces, passes events to the engine and performs its
//! actions.

mod refusals;
mod segments;
mod status;

use crate::control::{self, Command, Request};
use crate::directory::Directory;
use crate::kernel::{Change, Inlet, Kernel};
use crate::outlets::Outlets;
use crate::session::{News, Session};
use crate::settings::Settings;
use crate::view::Status;
use crate::{metrics, now, report};
use anyhow::{Context, Result, bail};
use api::{Confirm, Event, Report};
use datapath::Pins;
use datapath::svtep::Unsent;
use engine::endpoint::Endpoint;
use follower::{Acknowledger, Enrolment, Follower, Health, Role, Start, State};
use refusals::Refusals;
use segments::{Answer, Answers};
use shell::signals::Signals;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};
use wire::{Epoch, ProofKey};

/// Interval for setting the kernel programs' clock and checking interfaces.
const TICK: Duration = Duration::from_secs(1);
/// Interval for renewing segments and removing expired segments.
const SWEEP: Duration = Duration::from_secs(5);
/// Interval of probes, if the authority knows several paths to an endpoint.
const PROBE: Duration = Duration::from_millis(400);
/// Capacity of each of the loop's queues.
const QUEUE: usize = 1024;

/// Runs the daemon until a signal arrives or a client requests [`Request::Detach`].
///
/// # Errors
///
/// Fails if the daemon cannot start, for instance because another daemon runs, the underlay or a key file is unusable,
/// or the authority does not know this endpoint.
pub async fn run(settings: Settings, directory: Directory, enrolment: Enrolment) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let _lock = directory.lock()?;
    let pins = Pins::new("svtep", &settings.instance)?;
    let _instance_lock = pins.lock().with_context(|| {
        let name = &settings.instance;
        format!(
            "cannot lock the kernel state of tunnel endpoint {name:?}: if it already runs, a second one needs its own \
             --instance, --dir and --socket"
        )
    })?;
    let listener = control::listen(&settings.socket)?;
    let readers = match settings.metrics {
        Some(address) => Some(shell::metrics::listen(address).await?),
        None => None,
    };
    let authority = enrolment.caller()?;
    let (news_sender, mut news) = mpsc::channel(QUEUE);
    let (sessions, asks) = sessions(&settings, &directory, &enrolment, &news_sender)?;
    let (state, trouble) = tokio::select! {
        state = first_state(&directory, &authority, &enrolment) => state?,
        () = signals.any() => return Ok(ExitCode::SUCCESS),
    };
    let (packet_sender, mut packets) = mpsc::channel(QUEUE);
    let (answer_sender, mut answers) = mpsc::channel(QUEUE);
    let (command_sender, mut commands) = mpsc::channel::<Command>(16);
    let lost = Arc::new(AtomicU64::new(0));
    let mut kernel = Kernel::load(&settings, &state, pins, Inlet { packets: packet_sender, lost: lost.clone() })?;
    let outlets = Outlets::open(settings.addresses[0], kernel.mtu())?;
    let (withdrawn, keys) = (state.config.withdrawn.clone(), keys(&state));
    let folder = directory.folder().clone();
    let start = Start { authority: authority.clone(), folder, state, trouble, confirms: Confirm::Nothing };
    let mut follower = Follower::start(start)?;
    let acknowledger = Acknowledger::new(authority.clone());
    kernel.attach_underlay()?;
    let (latest, figures) = watch::channel(None);
    let mut daemon = Daemon {
        endpoint: Endpoint::new(settings.addresses.clone()),
        health: follower.health(),
        acknowledger,
        settings,
        enrolment,
        authority: authority.clone(),
        kernel,
        outlets,
        lost,
        sessions,
        asks,
        places: BTreeMap::new(),
        answer_sender,
        answers: Answers::default(),
        refusals: Refusals::default(),
        report: latest,
    };
    daemon.withdraw(&withdrawn);
    daemon.endpoint.hold_keys(keys.0, keys.1);
    daemon.follow_interfaces();
    daemon.kernel.last()?;
    tracing::info!(
        verifier = daemon.enrolment.verifier,
        underlay = daemon.kernel.underlay().name,
        mtu = daemon.kernel.mtu(),
        tenants = daemon.places.len(),
        "tunnel endpoint started"
    );
    let calls = tokio::spawn(control::serve(listener, command_sender.clone()));
    let measuring =
        readers.map(|readers| tokio::spawn(shell::metrics::serve(readers, move || page(command_sender.clone()))));
    let reporting = tokio::spawn(follower::report(authority, move || report::latest(figures.clone())));
    let done = daemon.follow(&mut follower, &mut packets, &mut answers, &mut news, &mut commands, &mut signals).await;
    calls.abort();
    reporting.abort();
    measuring.inspect(JoinHandle::abort);
    follower.save_last().await;
    let _ = std::fs::remove_file(&daemon.settings.socket);
    done
}

/// Starts a session for each key file. Also returns, for each tenant, the index of its session.
fn sessions(
    settings: &Settings,
    directory: &Directory,
    enrolment: &Enrolment,
    news: &mpsc::Sender<(usize, News)>,
) -> Result<(Vec<Session>, Vec<usize>)> {
    let mut files: Vec<&PathBuf> = settings.tenants.iter().map(|tenant| &tenant.service_key).collect();
    files.sort();
    files.dedup();
    let (url, device) = (&enrolment.authority, &enrolment.verifier);
    let start =
        |(number, file): (usize, &&PathBuf)| Session::start(file, url, device, directory, (number, news.clone()));
    let sessions = files.iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
    let asks = settings.tenants.iter().filter_map(|tenant| files.binary_search(&&tenant.service_key).ok());
    Ok((sessions, asks.collect()))
}

/// Returns the endpoint's keys as a verifier of proofs, and the length of an epoch in seconds.
fn keys(state: &State) -> (Vec<(IpAddr, Epoch, ProofKey)>, u32) {
    // A malformed key is reported when the keys are written to the kernel.
    let keys = state.keys.proofs.as_ref().and_then(|keys| keys.read().ok());
    (keys.unwrap_or_default(), state.config.epoch_length)
}

/// Fetches the authority's state. If this fails, returns the state from the last run, with the reason for the failure
/// as the second value.
async fn first_state(
    directory: &Directory,
    authority: &client::Authority,
    enrolment: &Enrolment,
) -> Result<(State, Option<String>)> {
    let cached = State::load(directory.folder(), &enrolment.verifier);
    cached.iter().for_each(|cached| authority.learn(&cached.config.authorities));
    let answer = match &cached {
        Some(_) => State::fetch_soon(authority).await,
        None => State::wait_for(authority).await,
    };
    match (answer, cached) {
        (Ok(state), _) => Ok((state, None)),
        (Err(client::Error::NotLoggedIn), _) => {
            bail!("the authority does not know this endpoint: run `vouchsafe svtep enrol --again`")
        }
        (Err(error), Some(state)) => {
            tracing::warn!(%error, "starting with the last configuration from the authority");
            Ok((state, Some(error.to_string())))
        }
        (Err(error), None) => Err(error).context("cannot read configuration and keys from the authority"),
    }
}

struct Daemon {
    settings: Settings,
    enrolment: Enrolment,
    authority: client::Authority,
    acknowledger: Acknowledger,
    health: watch::Receiver<Health>,
    kernel: Kernel,
    endpoint: Endpoint,
    outlets: Outlets,
    /// Number of packets lost between the kernel and the daemon's loop.
    lost: Arc<AtomicU64>,
    sessions: Vec<Session>,
    /// For each tenant, by its index in the settings, the index of its session.
    asks: Vec<usize>,
    /// Index of the tenant in the settings, by interface.
    places: BTreeMap<u32, usize>,
    answer_sender: mpsc::Sender<Answer>,
    answers: Answers,
    refusals: Refusals,
    report: watch::Sender<Option<Report>>,
}

impl Role for Daemon {
    const NAME: &'static str = "tunnel endpoint";

    fn apply(&mut self, state: &State, _before: &State) -> Result<()> {
        self.withdraw(&state.config.withdrawn);
        let (keys, epoch_length) = keys(state);
        self.endpoint.hold_keys(keys, epoch_length);
        self.write(state)
    }

    fn event(&mut self, event: Event, state: &mut State) {
        match event {
            Event::Withdrawn { withdrawn } => {
                self.kernel.withdraw(&withdrawn);
                self.withdraw(&withdrawn);
                tracing::info!(statements = withdrawn.len(), "consent was withdrawn");
                state.withdraw(&withdrawn, now());
            }
            Event::Mark { mark } => self.acknowledger.confirm(mark),
            _ => {}
        }
    }
}

impl Daemon {
    async fn follow(
        &mut self,
        follower: &mut Follower,
        packets: &mut mpsc::Receiver<Unsent>,
        answers: &mut mpsc::Receiver<Answer>,
        news: &mut mpsc::Receiver<(usize, News)>,
        commands: &mut mpsc::Receiver<Command>,
        signals: &mut Signals,
    ) -> Result<ExitCode> {
        let (mut ticks, mut sweeps, mut probes) = (interval(TICK), interval(SWEEP), interval(PROBE));
        // An answer needs this time to arrive, even if the loop was late.
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // Withdrawals are handled before answers that issue segments.
                biased;
                () = signals.any() => break,
                news = follower.next() => follower.handle(news, self),
                Some((session, news)) = news.recv() => self.news(session, &news),
                _ = ticks.tick() => self.tick(),
                _ = sweeps.tick() => self.sweep(follower),
                Some((request, reply)) = commands.recv() => {
                    let answer = self.answer(request);
                    let ended = request == Request::Detach && answer.is_ok();
                    let _ = reply.send(answer);
                    if ended {
                        // Let the answer be sent before the process ends.
                        sleep(Duration::from_millis(50)).await;
                        return Ok(ExitCode::SUCCESS);
                    }
                },
                Some(answer) = answers.recv() => self.answered(answer),
                _ = probes.tick() => {
                    // Answers to the last probes may be among the packets.
                    for _ in 0..QUEUE {
                        let Ok(unsent) = packets.try_recv() else { break };
                        self.handed_over(&unsent);
                    }
                    self.probe();
                },
                Some(unsent) = packets.recv() => self.handed_over(&unsent),
            }
        }
        tracing::info!(
            "stopped; current segments stay in use until they expire. `vouchsafe svtep detach` removes them"
        );
        Ok(ExitCode::SUCCESS)
    }

    fn write(&mut self, state: &State) -> Result<()> {
        if self.kernel.is_loaded_for(state) {
            return self.kernel.write(state);
        }
        self.kernel.reload(state)?;
        self.outlets = Outlets::open(self.settings.addresses[0], self.kernel.mtu())?;
        Ok(())
    }

    fn tick(&mut self) {
        let done = self.kernel.set_clock().and_then(|()| self.kernel.follow_cores());
        if let Err(error) = done {
            tracing::error!("cannot set the programs' clock, or reopen their packet buffers: {error:#}");
        }
        self.follow_interfaces();
    }

    fn follow_interfaces(&mut self) {
        let changes = self.kernel.follow_interfaces();
        if changes.is_empty() {
            return;
        }
        for change in changes {
            match change {
                Change::Came(interface, place) => {
                    self.forget_others(interface, place);
                    self.endpoint.admit(interface, self.settings.tenants[place].tenant.clone());
                    self.places.insert(interface, place);
                }
                Change::Gone(interface) => {
                    self.endpoint.forget(interface);
                    self.places.remove(&interface);
                }
            }
        }
        // An earlier process may have left segments, now void, for the interfaces that appeared.
        self.forget_void();
    }

    fn sweep(&mut self, follower: &mut Follower) {
        if let Err(error) = self.kernel.sweep() {
            tracing::error!("cannot remove expired withdrawals and keys: {error:#}");
        }
        if (self.kernel.is_closed() || !self.kernel.is_loaded_for(follower.state()))
            && let Err(error) = self.write(follower.current_state())
        {
            tracing::warn!("cannot write keys and withdrawals to the kernel; the next sweep tries again: {error:#}");
        }
        self.renew();
        if let Ok(counts) = self.kernel.program().proofs.counts() {
            let report = report::report(&counts, self.kernel.is_closed(), self.kernel.keys_until());
            self.report.send_replace(Some(report));
        }
    }
}

/// Builds the page of metrics from the loop's status.
async fn page(commands: mpsc::Sender<Command>) -> Result<shell::metrics::Page> {
    let (reply, answer) = oneshot::channel();
    commands.send((Request::Status, reply)).await.ok().context("the tunnel endpoint is stopping")?;
    let status: Status = serde_json::from_value(answer.await.context("the tunnel endpoint is stopping")??)?;
    Ok(metrics::page(&status, now()))
}
