//! The follower: keeps a role's state in step with its authority.

use crate::{Backoff, State};
use anyhow::Result;
use api::{Confirm, Event};
use client::{Authority, Error, EventStream};
use shell::clock::now;
use shell::folder::Folder;
use std::future::pending;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, interval, sleep_until};

/// Interval at which the follower looks after the event stream, and stores a state that has changed.
const TICK: Duration = Duration::from_secs(1);
/// Silence after which the event stream counts as lost; the authority sends something every 10 s.
const SILENCE: Duration = Duration::from_secs(25);

/// A role: a program, such as the verifier's daemon, that carries out the decisions of its authority.
pub trait Role {
    /// The role's name in logs.
    const NAME: &'static str;

    /// Puts the authority's state `state` in force, in place of `before`.
    ///
    /// # Errors
    ///
    /// Fails if the role can't put the state in force. The follower then asks the authority for its state again after
    /// the longest pause of [`Backoff::AUTHORITY`].
    fn apply(&mut self, state: &State, before: &State) -> Result<()>;

    /// Carries out an event, and records in `state` the facts that the next run needs. The role need not request a
    /// state after [`Event::Hello`] and [`Event::Policy`], because the follower does. The role gets an [`Event::Mark`]
    /// after it has applied the state that the events before the mark demand. It confirms the mark with an
    /// [`Acknowledger`](crate::Acknowledger) as soon as it has carried out these events.
    fn event(&mut self, event: Event, state: &mut State);
}

/// State of the connection to the authority.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether the event stream is up.
    pub connected: bool,
    /// The last error; `None` as soon as a state that was read after the error is in force.
    pub trouble: Option<String>,
    /// When configuration and keys were last read, Unix seconds; `None` if this run has not read them yet.
    pub read: Option<u64>,
}

/// The parameters with which a follower starts.
pub struct Start {
    /// The authority, with the role's token.
    pub authority: Authority,
    /// The folder that keeps the state for the next run.
    pub folder: Folder,
    /// The authority's state, with which the role starts.
    pub state: State,
    /// The reason why `state` comes from the last run; `None` if the authority has just sent `state`.
    pub trouble: Option<String>,
    /// The kinds of events that the role acknowledges to the authority.
    pub confirms: Confirm,
}

/// Follows an authority for a role: keeps the state, the event stream and the health up to date.
pub struct Follower {
    authority: Authority,
    folder: Folder,
    state: State,
    confirms: Confirm,
    health: watch::Sender<Health>,
    /// The event stream. It is `None` after a refusal by the authority, until the time in `reconnect`.
    events: Option<EventStream>,
    reconnect: Option<Instant>,
    /// Time at which the event stream last delivered anything.
    last_received: Instant,
    sync: Option<JoinHandle<Result<State, Error>>>,
    /// Whether to fetch the state again after the request in progress, because the authority has announced a change
    /// since the request began.
    sync_again: bool,
    next_sync: Instant,
    /// Whether the authority has announced a change since the state in force was requested.
    is_outdated: bool,
    /// A mark that the role gets when the state in force contains everything that was announced before the mark.
    pending_mark: Option<PendingMark>,
    backoff: Backoff,
    ticks: Interval,
    /// Whether the state is newer than its file.
    unsaved: bool,
    saving: Option<JoinHandle<()>>,
}

/// A mark that waits for requests.
struct PendingMark {
    mark: u64,
    /// Number of requests that have to be done before the role gets the mark: 1, or 2 if the request in progress began
    /// before the last change was announced.
    requests: u8,
}

/// An event that [`Follower::next`] waits for and [`Follower::handle`] reacts to.
pub struct News(Kind);

enum Kind {
    Event(Box<Result<Event, Error>>),
    Fetched(Box<Result<State, Error>>),
    Reconnect,
    Due,
    Tick,
}

impl Follower {
    /// Stores the state, and starts to follow the authority.
    ///
    /// # Errors
    ///
    /// Fails if the state can't be stored.
    pub fn start(start: Start) -> Result<Self> {
        let Start { authority, folder, state, trouble, confirms } = start;
        state.store(&folder)?;
        let read = trouble.is_none().then(now);
        Ok(Self {
            events: Some(authority.marked_events(confirms)),
            authority,
            folder,
            state,
            confirms,
            health: watch::Sender::new(Health { connected: false, trouble, read }),
            reconnect: None,
            last_received: Instant::now(),
            sync: None,
            sync_again: false,
            next_sync: Instant::now(),
            is_outdated: false,
            pending_mark: None,
            backoff: Backoff::AUTHORITY,
            ticks: interval(TICK),
            unsaved: false,
            saving: None,
        })
    }

    /// Returns the last state that the role had to apply, with the changes that later events made.
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Returns the state, so that the role can record in it facts for the next run of the program. [`Self::handle`]
    /// stores the changes at its next tick.
    pub const fn state_mut(&mut self) -> &mut State {
        self.unsaved = true;
        &mut self.state
    }

    /// Removes ended revocations and withdrawals from the state, and returns the state. A role needs this if it has to
    /// write the state to its tables again.
    pub fn current_state(&mut self) -> &State {
        self.state.forget_ended(now());
        &self.state
    }

    /// Returns the receiving end of a channel, which shows the state of the connection to the authority and each change
    /// of this state.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Reports whether the event stream is up.
    pub fn is_connected(&self) -> bool {
        self.health.borrow().connected
    }

    /// Waits for the next event that [`Self::handle`] has to react to. Cancel-safe.
    pub async fn next(&mut self) -> News {
        tokio::select! {
            event = next_event(&mut self.events) => News(Kind::Event(Box::new(event))),
            fetched = joined(&mut self.sync) => {
                self.sync = None;
                News(Kind::Fetched(Box::new(fetched)))
            },
            () = until(self.reconnect) => News(Kind::Reconnect),
            () = sleep_until(self.next_sync), if self.sync.is_none() => News(Kind::Due),
            _ = self.ticks.tick() => News(Kind::Tick),
        }
    }

    /// Reacts to an event that [`Self::next`] returned; `role` carries out states and events of the authority.
    pub fn handle<R: Role>(&mut self, news: News, role: &mut R) {
        match news.0 {
            Kind::Event(event) => match *event {
                Ok(event) => self.event(event, role),
                Err(error) => self.refused::<R>(&error),
            },
            Kind::Fetched(fetched) => self.fetched(*fetched, role),
            Kind::Reconnect => {
                self.reconnect = None;
                self.events = Some(self.authority.marked_events(self.confirms));
            }
            Kind::Due => self.synchronise(),
            Kind::Tick => self.tick(),
        }
    }

    /// Stores the state if it has changed since it was last stored. The caller calls this method before the process
    /// ends.
    pub async fn save_last(&mut self) {
        for _ in 0..2 {
            if let Some(saving) = self.saving.take() {
                let _ = saving.await;
            }
            self.save();
        }
        if let Some(saving) = self.saving.take() {
            let _ = saving.await;
        }
    }

    fn event(&mut self, event: Event, role: &mut impl Role) {
        self.last_received = Instant::now();
        match event {
            Event::Hello => {
                let came = |health: &mut Health| !std::mem::replace(&mut health.connected, true);
                if self.health.send_if_modified(came) {
                    tracing::info!("connected to the authority");
                }
                // A mark of the previous stream is void.
                self.pending_mark = None;
                self.synchronise();
            }
            Event::Policy => self.synchronise(),
            Event::Revoked { .. } | Event::SessionsRevoked { .. } | Event::Pair { .. } | Event::Withdrawn { .. } => {
                self.unsaved = true;
            }
            Event::Mark { mark } if self.is_outdated => {
                self.pending_mark = Some(PendingMark { mark, requests: if self.sync_again { 2 } else { 1 } });
                return;
            }
            Event::Alive
            | Event::Recheck
            | Event::Granted { .. }
            | Event::Mark { .. }
            | Event::LoggedOut
            | Event::RoleChange { .. } => {}
        }
        role.event(event, &mut self.state);
    }

    fn refused<R: Role>(&mut self, error: &Error) {
        let name = R::NAME;
        let why = match error {
            Error::NotLoggedIn => explained::<R>(error),
            other => format!("the authority refuses this {name}: {other}"),
        };
        tracing::error!("{why}. The present configuration and keys of this {name} stay in force until the keys expire");
        self.health.send_modify(|health| {
            health.connected = false;
            health.trouble = Some(why);
        });
        self.events = None;
        self.reconnect = Some(Instant::now() + self.backoff.longest());
    }

    /// Asks the authority for its state, now or once the request under way is done.
    fn synchronise(&mut self) {
        self.is_outdated = true;
        self.sync_again = self.sync.is_some();
        if self.sync.is_none() {
            self.sync = Some(tokio::spawn(State::fetch(self.authority.clone())));
        }
    }

    fn fetched<R: Role>(&mut self, fetched: Result<State, Error>, role: &mut R) {
        let is_applied = match fetched {
            Ok(state) => self.apply(state, role),
            Err(error) => {
                let error = explained::<R>(&error);
                if self.health.borrow().trouble.is_none() {
                    tracing::warn!(
                        error,
                        "cannot read configuration and keys from the authority; those read earlier stay in force"
                    );
                }
                self.health.send_modify(|health| health.trouble = Some(error));
                self.next_sync = Instant::now() + self.backoff.pause();
                false
            }
        };
        self.is_outdated &= self.sync_again || !is_applied;
        self.pass_on_mark(is_applied, role);
        if std::mem::take(&mut self.sync_again) {
            self.synchronise();
        }
    }

    /// Counts a request that is done, and gives the role the mark that waited for it.
    fn pass_on_mark(&mut self, is_applied: bool, role: &mut impl Role) {
        match self.pending_mark.take() {
            Some(PendingMark { mark, requests: 1 }) if is_applied => role.event(Event::Mark { mark }, &mut self.state),
            // A request that begins after a failure is as good as the one that failed.
            Some(pending_mark) => self.pending_mark = Some(PendingMark { requests: 1, ..pending_mark }),
            None => {}
        }
    }

    /// Puts a state in force. Reports whether the role has applied it.
    fn apply(&mut self, mut state: State, role: &mut impl Role) -> bool {
        if let Some(seconds) = state.clock_error(now()) {
            tracing::warn!(
                seconds,
                "the clocks of this machine and of the authority differ, so tokens and proofs may be refused: \
                 synchronise both"
            );
        }
        state.keep(&self.state, now());
        let applied = role.apply(&state, &self.state);
        self.backoff.reset();
        let pause = Duration::from_secs((state.config.epoch_length / 4).max(5).into());
        let is_applied = applied.is_ok();
        self.next_sync = Instant::now() + if is_applied { pause } else { self.backoff.longest() };
        let trouble = applied.err().map(|error| format!("{error:#}"));
        if let Some(error) = &trouble {
            tracing::error!("cannot put the authority's configuration and keys in force: {error}");
        }
        self.health.send_modify(|health| {
            health.read = Some(now());
            health.trouble = trouble;
        });
        self.state = state;
        self.unsaved = true;
        is_applied
    }

    fn tick(&mut self) {
        let is_silent = self.last_received.elapsed() > SILENCE;
        if self.health.send_if_modified(|health| is_silent && std::mem::take(&mut health.connected)) {
            tracing::warn!(
                "lost the connection to the authority; the configuration and keys read earlier stay in force"
            );
        }
        // The stream has a connection of its own, so the calls may succeed although it is down.
        let why = self.events.as_ref().filter(|_| is_silent).and_then(|events| events.trouble().borrow().clone());
        self.health.send_if_modified(|health| {
            let is_new = health.trouble.is_none() && why.is_some();
            if is_new {
                health.trouble = why;
            }
            is_new
        });
        self.save();
    }

    /// Stores the state on a thread of its own, because the disk may be slow and a revocation must not wait for it.
    fn save(&mut self) {
        if !self.unsaved || self.saving.as_ref().is_some_and(|saving| !saving.is_finished()) {
            return;
        }
        self.unsaved = false;
        let (folder, state) = (self.folder.clone(), self.state.clone());
        self.saving = Some(tokio::task::spawn_blocking(move || {
            if let Err(error) = state.store(&folder) {
                tracing::warn!("cannot save the authority's configuration and keys for the next start: {error:#}");
            }
        }));
    }
}

/// Describes an error of the authority. A role can't log in: if the authority does not accept its token, it has to
/// enrol.
fn explained<R: Role>(error: &Error) -> String {
    match error {
        Error::NotLoggedIn => format!("the authority does not know this {}: enrol it again", R::NAME),
        other => other.to_string(),
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

async fn next_event(events: &mut Option<EventStream>) -> Result<Event, Error> {
    match events {
        Some(events) => events.next().await,
        None => pending().await,
    }
}

/// Waits for the request under way, if any. The caller clears `task`.
async fn joined(task: &mut Option<JoinHandle<Result<State, Error>>>) -> Result<State, Error> {
    match task {
        Some(task) => task.await.unwrap_or_else(|error| Err(Error::Other(error.to_string()))),
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
