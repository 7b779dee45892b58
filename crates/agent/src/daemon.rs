//! The daemon: one loop that passes events to the state machine and carries out its outputs.

mod climbing;
mod commands;
mod discovery;
mod events;
mod login;
mod organisations;
mod sealing;
mod territory;

use crate::control;
use crate::kernel::{Kernel, Outlets};
use crate::key_transfer::{self, Keys};
use crate::metrics::{self, Answers, Snapshot};
use crate::packet_queue::PacketQueue;
use crate::packet_queue::QueuedPacket;
use crate::sessions::{Kept, Sessions};
use crate::settings::Settings;
use crate::switches::{News, Switches};
use crate::{now, unix};
use anyhow::{Context, Result};
use api::Destinations;
use client::{Authority, Error, Way, convert};
use datapath::Pins;
use discovery::Discovery;
use engine::agent::insertion::Used;
use engine::agent::{Agent, Clock, FetchId, Login, Output, Refusal, Subject, Unusable};
use engine::discovery::{Answer, Domain};
use engine::model::GrantRequest;
use engine::openflow::logins::Realm;
use events::{Connection, Report};
use ipnet::IpNet;
use login::Started;
use organisations::LoginScope;
use reach::kept::KeptSession;
use reach::login::{LoggedIn, Timed, timed};
use reach::protocol::{Reply, Standing};
use shell::signals::Signals;
use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::Duration;
use territory::Territory;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use wire::Destination;
use wire::map::GrantSlot;

/// Interval at which interfaces, grants and sessions are checked.
const LOOK: Duration = Duration::from_secs(1);
/// Interval at which the names of authorities that transfer keys in band are resolved.
const RESOLVE: Duration = Duration::from_secs(60);
/// Maximum time that a client waits for the authority's answer: a little more than a call may take.
const WAIT: Duration = Duration::from_secs(20);
/// Maximum number of answers and commands that wait for the loop.
const QUEUE: usize = 1024;
/// Number of queued packets that the loop handles before other events. One event may take as long as many packets.
const BATCH: usize = 64;

/// A message to the loop from one of its tasks.
enum Message {
    Login(LoginScope, Box<LoggedIn>, oneshot::Sender<Reply>),
    LoginStarted(u32, Started, Reply, oneshot::Sender<Reply>),
    Grant(Subject, FetchId, Timed<Result<(api::Grant, Way), Error>>),
    Destinations(Subject, u64, Timed<Result<Destinations, Error>>),
    Reported(Subject, u64, Report),
    Discovered(Domain, Answer),
    Metrics(oneshot::Sender<Result<Snapshot>>),
    TakeKeysFrom(Vec<SocketAddrV4>, Vec<Realm>),
    #[cfg(feature = "seal")]
    Tunnel(Subject, u64, Destination, Result<api::Grant, Error>),
}

/// A client that waits for the authority's answer.
struct Waiter {
    fetch: FetchId,
    subject: Subject,
    place: Destination,
    since: Duration,
    reply: oneshot::Sender<Reply>,
}

struct Daemon {
    settings: Settings,
    kernel: Kernel,
    switches: Option<Switches>,
    keys: Keys,
    agent: Agent,
    sessions: Sessions,
    kept: BTreeMap<u32, Kept>,
    connections: BTreeMap<Subject, Connection>,
    logins: u64,
    answers: Answers,
    /// Logins with an identity provider that users have started but not finished, at most one per user.
    started: BTreeMap<u32, Started>,
    waiters: Vec<Waiter>,
    territory: Territory,
    discovery: Discovery,
    messages: mpsc::Sender<Message>,
    queued: PacketQueue,
    #[cfg(feature = "seal")]
    sealing: sealing::Sealing,
    #[cfg(feature = "seal")]
    climbing: climbing::Climbing,
}

/// Runs the daemon until a signal ends it. Leaves the programs and the grants in the kernel, so that flows continue and
/// new flows can still begin. The next daemon takes over the programs and grants.
///
/// # Errors
///
/// Fails if the daemon can't start, for instance because a daemon of the same instance runs already.
pub async fn run(settings: Settings) -> Result<()> {
    let sessions = Sessions::open(settings.dir.clone())?;
    // Take the lock before touching anything that a running daemon depends on: its socket, its programs, its injector.
    let pins = Pins::new("agent", &settings.instance)?;
    let _lock = pins.lock().with_context(|| {
        format!(
            "cannot lock the kernel state of agent instance {:?}: if it already runs, a second agent needs its own \
             --instance, --dir and --socket",
            settings.instance
        )
    })?;
    let listener = control::listen(&settings.socket)?;
    let readers = match settings.metrics {
        Some(address) => Some(shell::metrics::listen(address).await?),
        None => None,
    };
    let queued = PacketQueue::new();
    let (overheard_sender, mut overheard) = mpsc::channel(QUEUE);
    let (command_sender, mut commands) = mpsc::channel(QUEUE);
    let (message_sender, mut messages) = mpsc::channel(QUEUE);
    let asking = message_sender.clone();
    let (news_sender, mut news) = mpsc::channel(QUEUE);
    let mut switches = Switches::listen(&settings, news_sender).await?;
    // Resolve the names before the first connection to these authorities is opened.
    let ends = key_transfer::ends(&settings.key_transfer).await;
    if let Some(switches) = &mut switches {
        switches.set_realms(key_transfer::realms(&settings.device_logins).await, now());
    }
    let names = (settings.key_transfer.clone(), settings.device_logins.clone());
    let resolving = tokio::spawn(follow_names(names, message_sender.clone()));
    let outlets = Outlets { queued: queued.clone(), overheard: overheard_sender };
    let mut daemon = Daemon::start(settings, sessions, pins, switches, outlets, message_sender, &ends)?;
    let measuring = readers.map(|readers| tokio::spawn(shell::metrics::serve(readers, move || page(asking.clone()))));
    let calls = tokio::spawn(control::serve(listener, command_sender));
    let mut signals = Signals::listen()?;
    tracing::info!(socket = %daemon.settings.socket.display(), "agent started");
    // `systemctl start` returns now. Without this, a `vouchsafe login` after it could find no agent.
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
    let mut look = Instant::now();
    loop {
        let pause = daemon.timeout().map_or(LOOK, |at| at.saturating_sub(now()));
        let wake = look.min(Instant::now() + pause);
        tokio::select! {
            packet = queued.next() => {
                daemon.queued(packet);
                std::iter::from_fn(|| queued.pop()).take(BATCH - 1).for_each(|packet| daemon.queued(packet));
            }
            Some(record) = overheard.recv() => daemon.overheard(record),
            Some(message) = messages.recv() => daemon.message(message),
            Some(news) = news.recv() => daemon.switch_news(news),
            Some(command) = commands.recv() => daemon.command(command),
            () = sleep_until(wake) => {
                if Instant::now() >= look {
                    look = Instant::now() + LOOK;
                    daemon.follow_interfaces();
                    daemon.dismiss();
                    daemon.look_around();
                    daemon.tend_tunnels();
                    #[cfg(feature = "seal")]
                    {
                        daemon.follow_network();
                        daemon.store_ladder();
                    }
                    daemon.switches.iter_mut().for_each(|switches| switches.tick(now()));
                }
                let Daemon { agent, kernel, switches, .. } = &mut daemon;
                agent.tick(now(), |slot| used(kernel, switches.as_ref(), slot));
            }
            () = signals.any() => break,
        }
        daemon.act();
        #[cfg(feature = "seal")]
        daemon.climb();
        // All tasks share this thread. They get a turn, however fast somebody makes the kernel queue packets.
        tokio::task::yield_now().await;
    }
    #[cfg(feature = "seal")]
    daemon.store_ladder_at_end().await;
    calls.abort();
    resolving.abort();
    measuring.inspect(JoinHandle::abort);
    let _ = std::fs::remove_file(&daemon.settings.socket);
    tracing::info!("agent stopped; its programs and grants stay in the kernel. `vouchsafe agent detach` removes them");
    Ok(())
}

/// Periodically resolves the names of the authorities that transfer keys in band.
async fn follow_names((urls, logins): (Vec<String>, BTreeMap<String, Vec<IpNet>>), messages: mpsc::Sender<Message>) {
    while !urls.is_empty() || !logins.is_empty() {
        tokio::time::sleep(RESOLVE).await;
        let (ends, realms) = (key_transfer::ends(&urls).await, key_transfer::realms(&logins).await);
        if messages.send(Message::TakeKeysFrom(ends, realms)).await.is_err() {
            return;
        }
    }
}

/// Combines the kernel program's and the switches' records of the tokens made from an entry.
fn used(kernel: &Kernel, switches: Option<&Switches>, slot: &GrantSlot) -> Option<Used> {
    let by_kernel = kernel.used(slot)?;
    let by_switches = switches.map(|switches| switches.used(slot)).unwrap_or_default();
    Some(Used { last: by_kernel.last.max(by_switches.last), spent: by_kernel.spent.max(by_switches.spent) })
}

impl Daemon {
    fn start(
        settings: Settings,
        sessions: Sessions,
        pins: Pins,
        switches: Option<Switches>,
        outlets: Outlets,
        messages: mpsc::Sender<Message>,
        ends: &[SocketAddrV4],
    ) -> Result<Self> {
        let kept = sessions.load()?;
        let queued = outlets.queued.clone();
        let kernel = Kernel::start(&settings, pins, outlets)?;
        kernel.take_keys_from(ends)?;
        // Times in the entries and sessions of an earlier process are relative to that process's clock.
        let clock = match kernel.maps().clock()? {
            0 => Clock::at(unix(), now()),
            offset => Clock::at(Duration::from_nanos(offset) + now(), now()),
        };
        let agent = Agent::new(settings.agent.clone(), clock);
        let territory = Territory::new(settings.organisations.clone());
        let mut daemon = Self {
            settings,
            keys: Keys::new(kernel.maps().keys_taken()?),
            kernel,
            switches,
            agent,
            sessions,
            kept,
            connections: BTreeMap::new(),
            logins: 0,
            answers: Answers::default(),
            started: BTreeMap::new(),
            waiters: Vec::new(),
            discovery: Discovery::default(),
            messages,
            queued,
            territory,
            #[cfg(feature = "seal")]
            sealing: sealing::Sealing::default(),
            #[cfg(feature = "seal")]
            climbing: climbing::Climbing::default(),
        };
        #[cfg(feature = "seal")]
        daemon.export_keys()?;
        daemon.start_wishes();
        #[cfg(feature = "seal")]
        daemon.restore_ladder();
        daemon.restore();
        daemon.act();
        daemon.kernel.let_go();
        daemon.follow_interfaces();
        Ok(daemon)
    }

    /// Restores sessions from disk, and their entries from the kernel's tables.
    fn restore(&mut self) {
        for (uid, kept) in self.kept.clone() {
            self.agent.set_rules(Subject::of_user(uid), kept.rules.clone());
            self.restore_networks(uid, &kept);
            for (number, ..) in kept.all() {
                if let Some(session) = kept.session(number) {
                    self.resume(Subject::of_user(uid).in_organisation(number), session.clone());
                }
            }
        }
        let (owners, entries) = self.kernel.inventory();
        self.agent.take_over(now(), &owners, &entries);
        #[cfg(feature = "seal")]
        self.renew_for_ladder(&entries);
    }

    fn resume(&mut self, subject: Subject, session: KeptSession) {
        let uid = subject.user();
        let (ca, limits) = (session.ca.as_deref().map(str::as_bytes), self.limits(subject));
        match Authority::of_user(&session.authority, ca, (uid, limits), &self.settings.resolvers) {
            Ok(authority) => {
                self.connect(subject, session.knowing(authority));
                let KeptSession { expires, receivers, sealed, skew, .. } = session;
                let (receivers, refused) = self.claims(subject, receivers);
                self.note_refused(subject, refused);
                self.note_destinations(subject, &receivers, &sealed, None);
                self.agent.login(subject, Login { expires, receivers, sealed, skew });
            }
            Err(error) => tracing::error!(uid, "cannot resume the saved session: {error}"),
        }
    }

    fn follow_interfaces(&mut self) {
        match self.kernel.follow_interfaces() {
            Ok(true) => {
                self.agent.moved();
                self.tunnels_moved();
                self.connections.values().for_each(|connection| connection.asker.renew_line());
            }
            Ok(false) => {}
            Err(error) => tracing::warn!("cannot follow changes of interfaces: {error:#}"),
        }
        if let Err(error) = self.kernel.follow_cores() {
            tracing::warn!("cannot check whether packets from the kernel program still arrive: {error:#}");
        }
    }

    /// Returns when something is due.
    fn timeout(&self) -> Option<Duration> {
        #[cfg(feature = "seal")]
        return self.agent.timeout().into_iter().chain(self.climbs_at()).min();
        #[cfg(not(feature = "seal"))]
        self.agent.timeout()
    }

    fn queued(&mut self, packet: QueuedPacket) {
        #[cfg(feature = "seal")]
        let Some(packet) = self.sent(packet) else { return };
        tracing::trace!(to = ?packet.slot.destination(), "queued");
        self.agent.queued(now(), &packet.slot, packet.frame);
    }

    fn switch_news(&mut self, news: News) {
        let Some(switches) = &mut self.switches else { return };
        let (queued, overheard) = (switches.receive(news, now()), switches.overheard());
        queued.into_iter().for_each(|packet| self.queued.push(packet));
        overheard.into_iter().for_each(|record| self.overheard(record));
    }

    /// Carries out all pending outputs of the state machine.
    fn act(&mut self) {
        while let Some(output) = self.agent.poll() {
            if let Err(error) = self.perform(output) {
                tracing::error!("cannot update the kernel program's tables: {error:#}");
            }
        }
    }

    fn perform(&mut self, output: Output) -> Result<()> {
        if let Some(switches) = &mut self.switches
            && switches.perform(&output, now())
        {
            return Ok(());
        }
        let maps = self.kernel.maps();
        match output {
            Output::SetOwner(owner, subject) => maps.owners.set(&owner, &subject.number())?,
            Output::RemoveOwner(owner) => maps.owners.remove(&owner)?,
            Output::Write(slot, entry) => {
                maps.grants.set(&slot, &entry)?;
                self.note_entry(&slot, &entry);
            }
            Output::Remove(slot) => {
                maps.grants.remove(&slot)?;
                self.note_removed(&slot);
            }
            Output::Protect(entries) => self.kernel.protect(&entries)?,
            Output::SetClock(offset) => maps.set_clock(offset)?,
            Output::Send(subject, frame) => self.kernel.send(subject, &frame),
            Output::Fetch(id, subject, request) => self.fetch(id, subject, request),
            Output::FetchDestinations(subject) => self.fetch_destinations(subject),
            Output::Ended(subject) => {
                tracing::info!(uid = subject.user(), "the session has ended");
                self.connections.remove(&subject);
                self.forget_tunnels(subject);
                self.set_session(subject, None);
                self.save(subject.user());
            }
        }
        Ok(())
    }

    fn fetch(&mut self, id: FetchId, subject: Subject, request: GrantRequest) {
        let Some(connection) = self.connections.get(&subject) else {
            // Waiting clients get this error; the state machine tries again once there is a connection.
            let (value, requested) = (Err(Error::Other("there is no connection to the authority".to_owned())), now());
            return self.answered(subject, id, Timed { value, requested, answered: requested });
        };
        let (asker, messages) = (connection.asker.clone(), self.messages.clone());
        self.answers.renewals += u64::from(self.agent.has_grant_for(subject, &request.to));
        let kept = self.kept_session(subject);
        let in_band = kept.is_some_and(|session| self.settings.key_transfer.contains(&session.authority));
        let keys = in_band.then(|| self.keys.clone());
        self.note_fetch(id, request.to);
        let request = convert::grant_request(&request);
        tokio::spawn(async move {
            let in_band = |grant| (grant, Way::Https);
            let answer = match keys {
                Some(keys) => timed(key_transfer::ask(asker.authority(), &request, &keys)).await.map_ok(in_band),
                None => timed(asker.grant(&request)).await,
            };
            let _ = messages.send(Message::Grant(subject, id, answer)).await;
        });
    }

    fn fetch_destinations(&self, subject: Subject) {
        let Some(connection) = self.connections.get(&subject) else { return };
        let (authority, messages, login) = (connection.authority.clone(), self.messages.clone(), connection.login);
        tokio::spawn(async move {
            let answer = timed(authority.destinations()).await;
            let _ = messages.send(Message::Destinations(subject, login, answer)).await;
        });
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Login(place, done, reply) => self.logged_in(&place, *done, reply),
            Message::LoginStarted(uid, started, answer, reply) => {
                self.started.insert(uid, started);
                let _ = reply.send(answer);
            }
            Message::Grant(subject, id, answer) => {
                let answer = self.note_way(subject, answer);
                self.answered(subject, id, answer);
            }
            Message::Destinations(subject, login, answer) => {
                if self.is_current(subject, login) {
                    self.destinations(subject, answer);
                }
            }
            Message::Discovered(domain, answer) => self.discovery_answered(&domain, answer),
            Message::TakeKeysFrom(ends, realms) => {
                if let Some(switches) = &mut self.switches {
                    switches.set_realms(realms, now());
                }
                if let Err(error) = self.kernel.take_keys_from(&ends) {
                    tracing::warn!("cannot store the authorities that may send keys in band: {error:#}");
                }
            }
            #[cfg(feature = "seal")]
            Message::Tunnel(subject, login, to, answer) => self.tunnel_granted((subject, login), to, answer),
            Message::Metrics(reply) => drop(reply.send(self.snapshot())),
            Message::Reported(subject, login, report) => {
                if self.is_current(subject, login) {
                    self.reported(subject, report);
                }
            }
        }
    }

    fn is_current(&self, subject: Subject, login: u64) -> bool {
        self.connections.get(&subject).is_some_and(|connection| connection.login == login)
    }

    fn note<T>(&mut self, subject: Subject, outcome: &Result<T, Error>) {
        let Some(connection) = self.connections.get_mut(&subject) else { return };
        connection.trouble = match outcome {
            Err(error @ (Error::Unreachable(_) | Error::Unusable(_) | Error::Other(_) | Error::Refused(_))) => {
                Some(error.to_string())
            }
            Ok(_) | Err(Error::Denied(_) | Error::NotLoggedIn) => None,
        };
    }

    fn answered(&mut self, subject: Subject, id: FetchId, answer: Timed<Result<api::Grant, Error>>) {
        self.note(subject, &answer.value);
        match &answer.value {
            Ok(_) => self.answers.granted += 1,
            Err(Error::Denied(_)) => self.answers.denied += 1,
            Err(_) => self.answers.failed += 1,
        }
        if let Ok(grant) = &answer.value
            && self.agent.awaits(subject, id)
        {
            self.sync_clock(subject, grant.now, answer.requested, answer.answered);
        }
        let mut failure = None;
        let (answer, unusable) = match answer.value.map(|grant| convert::grant(&grant)) {
            Ok(Ok(grant)) => (Ok(grant), None),
            Ok(Err(why)) => (Err(Refusal::Failed(why.to_string())), self.agent.awaits(subject, id).then_some(why)),
            Err(error) => (Err(refusal(error)), None),
        };
        if let Err(Refusal::Failed(why)) = &answer {
            failure = Some(why.clone());
        }
        // No tunnel of another organisation may take the packets of this organisation, or get its grants.
        let answer = answer.map(|mut grant| {
            grant.tunnels.retain(|tunnel| self.agent.speaks_for(subject, tunnel.ip()));
            grant
        });
        self.note_answer(subject, id, &answer);
        let used = self.agent.answered(now(), subject, id, &answer);
        if let Some(why) = unusable.or(used.err()) {
            match why {
                Unusable::Over => tracing::warn!(uid = subject.user(), "cannot use the grant: {why}"),
                Unusable::Sealed | Unusable::Malformed(_) => {
                    tracing::error!(uid = subject.user(), "cannot use the grant: {why}")
                }
            }
            failure = Some(format!("cannot use the grant: {why}"));
        }
        let (concerned, others): (Vec<_>, Vec<_>) = self.waiters.drain(..).partition(|waiter| waiter.fetch == id);
        self.waiters = others;
        for waiter in concerned {
            match &failure {
                Some(why) => drop(waiter.reply.send(Reply::Standing(Standing::Failed { why: why.clone() }))),
                None => self.explain(waiter.subject, waiter.place, true, waiter.reply),
            }
        }
    }

    /// Answers clients that have waited too long. They would wait for the next request to the authority, but a failed
    /// request may be repeated much later, or never.
    fn dismiss(&mut self) {
        let late = now().saturating_sub(WAIT);
        for waiter in self.waiters.extract_if(.., |waiter| waiter.since < late) {
            let why = format!("the authority did not answer within {WAIT:?}");
            let _ = waiter.reply.send(Reply::Standing(Standing::Failed { why }));
        }
    }

    fn sync_clock(&mut self, subject: Subject, unix: u64, requested: Duration, answered: Duration) {
        let changed = self.agent.sync_clock(subject, unix, requested, answered);
        let skew = self.agent.skew(subject);
        if changed && let Some(session) = self.kept_session_mut(subject) {
            session.skew = skew;
            self.save(subject.user());
        }
    }

    fn destinations(&mut self, subject: Subject, answer: Timed<Result<Destinations, Error>>) {
        self.note(subject, &answer.value);
        let receivers = match answer.value {
            Err(Error::NotLoggedIn) => return self.agent.end(subject),
            Err(error) => {
                tracing::debug!(uid = subject.user(), "cannot fetch destinations from the authority: {error}");
                None
            }
            Ok(answer_value) => {
                self.sync_clock(subject, answer_value.now, answer.requested, answer.answered);
                let (receivers, sealed) = convert::reachable(&answer_value);
                let (receivers, refused) = self.claims(subject, receivers);
                self.note_refused(subject, refused);
                let mut tunnels = answer_value.sealed.tunnels;
                tunnels.retain(|tunnel| self.agent.speaks_for(subject, tunnel.ip()));
                self.note_destinations(subject, &receivers, &sealed, Some(&tunnels));
                Some((receivers, sealed))
            }
        };
        let received = receivers.as_ref().map(|(_, sealed)| sealed.clone());
        if let Err(error) = self.agent.destinations(now(), subject, receivers) {
            tracing::error!(uid = subject.user(), "cannot use the destinations from the authority: {error}");
        }
        let receivers = self.agent.receivers(subject).to_vec();
        let connection = self.connections.get(&subject);
        let authorities = connection.map(|connection| connection.authority.members().all).unwrap_or_default();
        if let Some(sealed) = received
            && let Some(session) = self.kept_session_mut(subject)
            && (session.receivers != receivers || session.sealed != sealed || session.authorities != authorities)
        {
            (session.receivers, session.sealed) = (receivers, sealed);
            session.authorities = authorities;
            self.save(subject.user());
        }
    }

    fn save(&self, uid: u32) {
        let Some(kept) = self.kept.get(&uid) else { return };
        if let Err(error) = self.sessions.save(uid, kept) {
            tracing::error!(uid, "cannot save the session for the next start: {error:#}");
        }
    }
}

/// Builds the page of metrics from the loop's snapshot.
async fn page(messages: mpsc::Sender<Message>) -> Result<shell::metrics::Page> {
    let (reply, snapshot) = oneshot::channel();
    messages.send(Message::Metrics(reply)).await.ok().context("the agent is stopping")?;
    Ok(metrics::page(&snapshot.await.context("the agent is stopping")??))
}

fn refusal(error: Error) -> Refusal {
    match error {
        Error::Denied(problem) => Refusal::Denied(match problem.detail {
            Some(detail) => format!("{} ({detail})", problem.title),
            None => problem.title,
        }),
        Error::NotLoggedIn => Refusal::NotLoggedIn,
        other => Refusal::Failed(other.to_string()),
    }
}
