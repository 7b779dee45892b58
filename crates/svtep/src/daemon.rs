//! The daemon: one loop that follows the authority and the interfaces, passes events to the engine and performs its
//! actions.

mod refusals;
mod segments;
mod status;

use crate::control::{self, Asked, Request};
use crate::directory::{Cache, Directory, Enrolment};
use crate::kernel::{Change, Inlet, Kernel};
use crate::outlets::Outlets;
use crate::session::{News, Session};
use crate::settings::Settings;
use crate::view::Status;
use crate::{metrics, now, report};
use anyhow::{Context, Result};
use api::{Event, Report, Withdrawal};
use client::EventStream;
use datapath::Pins;
use datapath::svtep::Unsent;
use engine::endpoint::Endpoint;
use refusals::Refusals;
use segments::{Answer, Answers};
use shell::signals::Signals;
use std::collections::BTreeMap;
use std::future::pending;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep, sleep_until};

/// Interval for setting the kernel programs' clock and checking interfaces.
const TICK: Duration = Duration::from_secs(1);
/// Interval for renewing segments and removing expired ones.
const SWEEP: Duration = Duration::from_secs(5);
/// The first and the longest pause before the next request to the authority.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Number of epochs whose keys are fetched in advance.
const KEYS_AHEAD: u32 = 24;
/// Silence after which the event stream counts as lost; the authority sends something every 10 s.
const SILENCE: Duration = Duration::from_secs(25);
/// Capacity of each of the loop's queues.
const QUEUE: usize = 1024;

/// Runs until a signal or a request to detach.
pub async fn run(settings: Settings, directory: Directory, enrolment: Enrolment) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let _lock = directory.lock()?;
    let pins = Pins::new("svtep", &settings.instance)?;
    let _instance_lock = pins.lock().with_context(|| {
        let name = &settings.instance;
        format!("a tunnel endpoint {name:?} runs already; a second one needs another --instance, --dir and --socket")
    })?;
    let listener = control::listen(&settings.socket)?;
    let readers = match settings.metrics {
        Some(address) => Some(shell::metrics::listen(address).await?),
        None => None,
    };
    let authority = enrolment.caller()?;
    let (news_sender, mut news) = mpsc::channel(QUEUE);
    let (sessions, asks) = sessions(&settings, &directory, &enrolment, &news_sender)?;
    let (cache, trouble) = tokio::select! {
        state = first_state(&directory, &authority, &enrolment) => state?,
        () = signals.any() => return Ok(ExitCode::SUCCESS),
    };
    let (packet_sender, mut packets) = mpsc::channel(QUEUE);
    let (answer_sender, mut answers) = mpsc::channel(QUEUE);
    let (asked_sender, mut asked) = mpsc::channel::<Asked>(16);
    let lost = Arc::new(AtomicU64::new(0));
    let mut kernel = Kernel::load(&settings, &cache, pins, Inlet { packets: packet_sender, lost: lost.clone() })?;
    let outlets = Outlets::open(settings.addresses[0], kernel.mtu())?;
    directory.set_cache(&cache)?;
    kernel.attach_underlay()?;
    let (latest, told) = watch::channel(None);
    let mut withdrawn = Vec::new();
    Withdrawal::add(&mut withdrawn, &cache.config.withdrawn, now());
    let mut daemon = Daemon {
        endpoint: Endpoint::new(settings.addresses.clone()),
        events: Some(authority.events()),
        health: Health { connected: false, read: trouble.is_none().then(now), trouble },
        withdrawn,
        settings,
        enrolment,
        directory,
        authority: authority.clone(),
        cache,
        saving: None,
        unsaved: false,
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
        sync: None,
        sync_again: false,
        next_sync: Instant::now(),
        pause: PAUSES.0,
        reconnect: None,
        heard: Instant::now(),
    };
    daemon.follow_interfaces();
    daemon.kernel.last()?;
    tracing::info!(
        verifier = daemon.enrolment.verifier,
        underlay = daemon.kernel.underlay().name,
        mtu = daemon.kernel.mtu(),
        tenants = daemon.places.len(),
        "the tunnel endpoint runs"
    );
    let calls = tokio::spawn(control::serve(listener, asked_sender.clone()));
    let measuring =
        readers.map(|readers| tokio::spawn(shell::metrics::serve(readers, move || page(asked_sender.clone()))));
    let reporting = tokio::spawn(report::keep(authority, told));
    let done = daemon.follow(&mut packets, &mut answers, &mut news, &mut asked, &mut signals).await;
    calls.abort();
    reporting.abort();
    measuring.inspect(JoinHandle::abort);
    daemon.saved().await;
    let _ = std::fs::remove_file(&daemon.settings.socket);
    done
}

/// Starts a session for each key file; also returns the index of each tenant's session.
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

/// Fetches the authority's state, or else reads the cached one. The second value is the error of the authority, if
/// there was one.
async fn first_state(
    directory: &Directory,
    authority: &client::Authority,
    enrolment: &Enrolment,
) -> Result<(Cache, Option<String>)> {
    let mut pause = PAUSES.0;
    loop {
        let error = match fetch(authority.clone()).await {
            Ok(cache) => return Ok((cache, None)),
            Err(error @ client::Error::NotLoggedIn) => {
                return Err(error).context("the authority doesn't know this endpoint: `vouchsafe svtep enrol --again`");
            }
            Err(error) => error,
        };
        if let Some(cached) = directory.cache(&enrolment.verifier) {
            tracing::warn!(%error, "starting with what the authority said last");
            return Ok((cached, Some(error.to_string())));
        }
        tracing::warn!(%error, "nothing is known from before; waiting for the authority");
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn fetch(authority: client::Authority) -> Result<Cache, client::Error> {
    let (config, keys) = tokio::try_join!(authority.config(), authority.keys(KEYS_AHEAD))?;
    Ok(Cache { config, keys })
}

/// State of the connection to the authority.
struct Health {
    connected: bool,
    read: Option<u64>,
    trouble: Option<String>,
}

struct Daemon {
    settings: Settings,
    enrolment: Enrolment,
    directory: Directory,
    authority: client::Authority,
    cache: Cache,
    saving: Option<JoinHandle<()>>,
    /// Whether the cache is newer than its file.
    unsaved: bool,
    health: Health,
    kernel: Kernel,
    endpoint: Endpoint,
    outlets: Outlets,
    /// Number of packets lost on the way from the kernel to the loop.
    lost: Arc<AtomicU64>,
    sessions: Vec<Session>,
    /// By index of a tenant in the settings: the index of its session.
    asks: Vec<usize>,
    /// Indices of tenants in the settings, by interface.
    places: BTreeMap<u32, usize>,
    answer_sender: mpsc::Sender<Answer>,
    answers: Answers,
    refusals: Refusals,
    /// Withdrawals, from whichever source.
    withdrawn: Vec<Withdrawal>,
    report: watch::Sender<Option<Report>>,
    events: Option<EventStream>,
    reconnect: Option<Instant>,
    sync: Option<JoinHandle<Result<Cache, client::Error>>>,
    /// Something changed during a request to the authority: request again.
    sync_again: bool,
    next_sync: Instant,
    pause: Duration,
    /// Time of the last event of the stream.
    heard: Instant,
}

impl Daemon {
    async fn follow(
        &mut self,
        packets: &mut mpsc::Receiver<Unsent>,
        answers: &mut mpsc::Receiver<Answer>,
        news: &mut mpsc::Receiver<(usize, News)>,
        asked: &mut mpsc::Receiver<Asked>,
        signals: &mut Signals,
    ) -> Result<ExitCode> {
        let (mut ticks, mut sweeps) = (interval(TICK), interval(SWEEP));
        loop {
            tokio::select! {
                // Withdrawals are handled before answers that issue segments.
                biased;
                () = signals.any() => break,
                event = next(&mut self.events) => self.event(event),
                Some((session, news)) = news.recv() => self.news(session, &news),
                () = until(self.reconnect) => {
                    self.reconnect = None;
                    self.events = Some(self.authority.events());
                },
                fetched = join(&mut self.sync) => self.fetched(fetched),
                () = until(Some(self.next_sync)), if self.sync.is_none() => self.want(),
                _ = ticks.tick() => self.tick(),
                _ = sweeps.tick() => self.sweep(),
                Some((request, reply)) = asked.recv() => {
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
                Some(unsent) = packets.recv() => self.handed_over(&unsent),
            }
        }
        tracing::info!("stopped; segments at hand go on until they end. `vouchsafe svtep detach` ends that");
        Ok(ExitCode::SUCCESS)
    }

    fn event(&mut self, event: Result<Event, client::Error>) {
        self.heard = Instant::now();
        match event {
            Ok(Event::Hello) => {
                if !std::mem::replace(&mut self.health.connected, true) {
                    tracing::info!("connected to the authority");
                }
                self.want();
            }
            Ok(Event::Policy) => self.want(),
            Ok(Event::Withdrawn { withdrawn }) => {
                self.kernel.withdraw(&withdrawn);
                self.void(&withdrawn);
                tracing::info!(statements = withdrawn.len(), "consent was withdrawn");
                Withdrawal::add(&mut self.cache.config.withdrawn, &withdrawn, now());
                self.unsaved = true;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "the authority refuses this endpoint; what it knows goes on until keys end. Enrol it again");
                self.health.connected = false;
                self.health.trouble = Some(error.to_string());
                self.events = None;
                self.reconnect = Some(Instant::now() + PAUSES.1);
            }
        }
    }

    /// Requests configuration and keys from the authority.
    fn want(&mut self) {
        if self.sync.is_some() {
            self.sync_again = true;
        } else {
            self.sync = Some(tokio::spawn(fetch(self.authority.clone())));
        }
    }

    fn fetched(&mut self, fetched: Result<Cache, client::Error>) {
        self.sync = None;
        match fetched {
            Ok(cache) => self.apply(cache),
            Err(error) => {
                if self.health.trouble.is_none() {
                    tracing::warn!(%error, "cannot read from the authority; what it said last goes on");
                }
                self.health.trouble = Some(error.to_string());
                self.next_sync = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(PAUSES.1);
            }
        }
        if std::mem::take(&mut self.sync_again) {
            self.want();
        }
    }

    fn apply(&mut self, mut cache: Cache) {
        // Keep withdrawals that arrived while the request was in flight.
        Withdrawal::add(&mut cache.config.withdrawn, &std::mem::take(&mut self.cache.config.withdrawn), now());
        self.void(&cache.config.withdrawn);
        self.health.read = Some(now());
        self.health.trouble = None;
        self.pause = PAUSES.0;
        self.next_sync = Instant::now() + Duration::from_secs((cache.config.epoch_length / 4).max(5).into());
        if let Err(error) = self.write(&cache) {
            tracing::error!("cannot put in force what the authority says: {error:#}");
            self.health.trouble = Some(format!("{error:#}"));
            self.next_sync = Instant::now() + PAUSES.1;
        }
        self.cache = cache;
        self.unsaved = true;
    }

    fn write(&mut self, cache: &Cache) -> Result<()> {
        if self.kernel.is_loaded_for(cache) {
            return self.kernel.write(cache);
        }
        self.kernel.reload(cache)?;
        self.outlets = Outlets::open(self.settings.addresses[0], self.kernel.mtu())?;
        Ok(())
    }

    fn tick(&mut self) {
        let done = self.kernel.set_clock().and_then(|()| self.kernel.follow_cores());
        if let Err(error) = done {
            tracing::error!("{error:#}");
        }
        self.follow_interfaces();
        if self.heard.elapsed() > SILENCE && std::mem::take(&mut self.health.connected) {
            tracing::warn!("lost the authority; what it said last goes on");
        }
        self.save();
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
        self.void(&self.withdrawn.clone());
    }

    fn sweep(&mut self) {
        if let Err(error) = self.kernel.sweep() {
            tracing::error!("{error:#}");
        }
        if self.kernel.is_closed() || !self.kernel.is_loaded_for(&self.cache) {
            Withdrawal::add(&mut self.cache.config.withdrawn, &[], now());
            let cache = self.cache.clone();
            if let Err(error) = self.write(&cache) {
                tracing::warn!("{error:#}");
            }
        }
        self.renew();
        if let Ok(counts) = self.kernel.program().proofs.counts() {
            let report = report::report(&counts, self.kernel.is_closed(), self.kernel.keys_until());
            self.report.send_replace(Some(report));
        }
    }

    /// Stores the authority's state, on a thread of its own, because a withdrawal must not wait for a slow disk.
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
}

/// Builds the page of metrics from the loop's status.
async fn page(asked: mpsc::Sender<Asked>) -> Result<shell::metrics::Page> {
    let (reply, told) = oneshot::channel();
    asked.send((Request::Status, reply)).await.ok().context("the endpoint ends")?;
    let status: Status = serde_json::from_value(told.await.context("the endpoint ends")??)?;
    Ok(metrics::page(&status, now()))
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

/// Waits for the task, if there is one, without removing it: the caller does that.
async fn join(task: &mut Option<JoinHandle<Result<Cache, client::Error>>>) -> Result<Cache, client::Error> {
    match task {
        Some(task) => task.await.unwrap_or_else(|error| Err(client::Error::Other(error.to_string()))),
        None => pending().await,
    }
}
