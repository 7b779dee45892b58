//! State machine of the agent, without IO: which packets carry which tokens, and what to fetch from the authority.
//!
//! Method calls deliver events. [`Agent::poll`] returns the effects as values: entries of kernel maps, requests to the
//! authority, frames to send. `now` is the time since boot, which the kernel program uses too. Unix times are those of
//! the session's own authority, taken from its answers. An authority never sets the time for a session of another
//! authority.

mod clock;
pub mod consent;
mod fetches;
pub mod frame;
mod grants;
mod held_grant;
pub mod insertion;
mod queue;
mod receivers;
mod session;
#[cfg(test)]
mod tests;
mod turns;
mod view;
pub mod wallet;

pub use clock::Clock;
pub use consent::{Consent, ConsentRules};
pub use frame::Frame;
pub use held_grant::Unusable;
pub use turns::Turns;
pub use view::{GrantView, Standing};
pub use wallet::Wallet;

use crate::model::protected::{self, Protected};
use crate::model::{Grant, GrantRequest, Receiver, Target};
use held_grant::HeldGrant;
use insertion::Used;
use ipnet::IpNet;
use session::Session;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use wire::map::{GrantEntry, GrantSlot, Owner, owner};
use wire::{Destination, Handle, ls};

/// A logged-in user of this machine, as the kernel program identifies them. Never 0, and unchanged by a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject(u32);

impl Subject {
    /// Returns the subject of a user. The highest user id, which means "no change" to the kernel, is no user's.
    pub const fn of_user(uid: u32) -> Self {
        Self(uid.saturating_add(1))
    }

    /// Returns the user id.
    pub const fn user(self) -> u32 {
        self.0 - 1
    }

    /// Returns the number that the kernel's maps contain.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the slot of a destination in the kernel's grants.
    pub fn slot(self, to: &Destination) -> GrantSlot {
        GrantSlot::new(self.0, to)
    }

    const fn from_number(number: u32) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }
}

/// Maximum number of receivers per session, so that one person's authority can't fill the kernel's tables for everyone.
pub const RECEIVERS_MAX: usize = 4096;
/// Maximum number of spans of ports in a session's receivers.
const SPANS_MAX: usize = 16 * RECEIVERS_MAX;

/// Error: a session has more receivers than it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{receivers} receivers with {spans} port ranges exceed the limits of a session ({RECEIVERS_MAX} and {SPANS_MAX})"
)]
pub struct TooManyReceivers {
    receivers: usize,
    spans: usize,
}

/// Checks that a session may have these receivers.
pub fn check_receivers(receivers: &[Receiver]) -> Result<(), TooManyReceivers> {
    let spans = receivers.iter().map(|receiver| receiver.services.len()).sum();
    if receivers.len() > RECEIVERS_MAX || spans > SPANS_MAX {
        return Err(TooManyReceivers { receivers: receivers.len(), spans });
    }
    Ok(())
}

/// Identifies a request to the authority until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(u64);

/// Reason why the authority issued no grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The policy denies the request, with the reason.
    Denied(String),
    /// The session has ended.
    NotLoggedIn,
    /// No usable answer arrived; the agent asks again later.
    Failed(String),
}

/// An event that the authority pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The stream of events is open. Events before this one may have been missed.
    Hello,
    /// Receivers or rules have changed.
    Policy,
    /// These grants were revoked.
    Revoked(Vec<Handle>),
    /// The session has ended.
    LoggedOut,
}

/// Maximum number of grants that one [`Event::Revoked`] from [`Event::parts`] names.
const REVOKED_MAX: usize = 256;

impl Event {
    /// Splits an event into parts, each of which is handled quickly, so that other work can be done in between.
    pub fn parts(self) -> Vec<Self> {
        match self {
            Self::Revoked(grants) => grants.chunks(REVOKED_MAX).map(|part| Self::Revoked(part.to_vec())).collect(),
            other => vec![other],
        }
    }
}

/// An effect that the shell around the state machine has to carry out.
#[allow(clippy::large_enum_variant, reason = "moved once, from the queue to the shell")]
pub enum Output {
    /// Attribute packets of this owner to the subject.
    SetOwner(Owner, Subject),
    /// Attribute packets of this owner to no subject any more.
    RemoveOwner(Owner),
    /// Handle first packets of this slot as the entry says. The entry contains secrets.
    Write(GrantSlot, GrantEntry),
    /// Queue first packets of this slot.
    Remove(GrantSlot),
    /// Protect these prefixes and no others.
    Protect(Vec<Protected>),
    /// Set the nanoseconds that the kernel program adds to the boot clock.
    SetClock(u64),
    /// Ask the subject's authority for a grant; report the answer with [`Agent::answered`].
    Fetch(FetchId, Subject, GrantRequest),
    /// Ask the subject's authority for its destinations; report the answer with [`Agent::destinations`].
    FetchDestinations(Subject),
    /// Send this frame again, for the subject.
    Send(Subject, Frame),
    /// Forget the secret of a session that the authority has ended.
    Ended(Subject),
}

/// Configuration that applies to all sessions.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Consent to destinations for which the person has no rule.
    pub default: Consent,
    /// Owners other than the users themselves (cgroups, forwarded packets), and the subject whose identity their
    /// packets carry.
    pub owners: Vec<(Owner, Subject)>,
    /// Whether to give up pairs that an earlier process left. It has to if that process also used nonces of these pairs
    /// for switches, because their number was only in that process's memory.
    pub forgets_pairs: bool,
}

/// A login, new or from before a restart.
#[derive(Clone, Debug, Default)]
pub struct Login {
    /// End of the session, Unix seconds.
    pub expires: u64,
    /// Receivers that the person could reach according to the authority's latest answer.
    pub receivers: Vec<Receiver>,
    /// Names of those to which packets may travel in a sealed tunnel only.
    pub sealed: BTreeSet<String>,
    /// Seconds by which the authority's clock was ahead of this machine's.
    pub skew: i32,
}

/// The agent's state machine.
pub struct Agent {
    config: Config,
    /// This machine's clock, which the kernel program uses.
    clock: Clock,
    sessions: BTreeMap<Subject, Session>,
    rules: BTreeMap<Subject, ConsentRules>,
    outputs: VecDeque<Output>,
    next_fetch: u64,
}

impl Agent {
    /// Creates an agent without sessions.
    pub fn new(config: Config, clock: Clock) -> Self {
        let outputs = VecDeque::from([Output::SetClock(clock.boot_to_unix_nanos())]);
        let (sessions, rules) = (BTreeMap::new(), BTreeMap::new());
        Self { config, clock, sessions, rules, outputs, next_fetch: 0 }
    }

    /// Returns the next effect, in order.
    pub fn poll(&mut self) -> Option<Output> {
        let mut next = self.outputs.pop_front();
        if let Some(Output::Fetch(_, subject, request)) = &mut next {
            // Set only now, because requests are repeated and rules may have changed since.
            request.consented = matches!(self.consent(*subject, &request.to), (Consent::Allow, Some(_)));
        }
        next
    }

    /// Returns the time of the subject's authority in Unix seconds, or this machine's time if the subject is not logged
    /// in.
    pub fn unix(&self, now: Duration, subject: Subject) -> u64 {
        self.sessions.get(&subject).map_or_else(|| self.clock.unix(now), |session| session.unix(now))
    }

    /// Returns by how many seconds the clock of the subject's authority is ahead of this machine's.
    pub fn skew(&self, subject: Subject) -> i32 {
        self.sessions.get(&subject).map_or(0, |session| session.skew)
    }

    /// Takes the time from an answer of the subject's authority. Returns whether that changed [`Self::skew`].
    pub fn sync_clock(&mut self, subject: Subject, unix: u64, requested: Duration, answered: Duration) -> bool {
        let Some(session) = self.sessions.get_mut(&subject) else { return false };
        session.sync_clock(unix, (requested, answered), &self.clock, &mut self.outputs)
    }

    /// Reports whether this request is still open.
    pub fn awaits(&self, subject: Subject, id: FetchId) -> bool {
        self.sessions.get(&subject).is_some_and(|session| session.awaits(id))
    }

    /// Starts the session of a person who has logged in, now or before a restart.
    pub fn login(&mut self, subject: Subject, mut login: Login) {
        self.drop_session(subject);
        if check_receivers(&login.receivers).is_err() {
            login.receivers.clear();
        }
        self.sessions.insert(subject, Session::new(subject, login, &self.clock));
        for owner in self.owners_of(subject) {
            self.outputs.push_back(Output::SetOwner(owner, subject));
        }
        self.protect();
        self.outputs.push_back(Output::FetchDestinations(subject));
    }

    /// Ends the session of a person who has logged out: their packets carry no tokens from now on. Drops waiting
    /// frames; the application that wants to connect sends them again.
    pub fn logout(&mut self, subject: Subject) {
        self.drop_session(subject);
        self.protect();
    }

    fn drop_session(&mut self, subject: Subject) {
        let Some(mut session) = self.sessions.remove(&subject) else { return };
        for owner in self.owners_of(subject) {
            self.outputs.push_back(Output::RemoveOwner(owner));
        }
        session.forget_all(&mut self.outputs);
    }

    /// Takes over the kernel entries of an earlier process: keeps those that are still valid and removes the others.
    pub fn take_over(&mut self, now: Duration, owners: &[Owner], entries: &[(GrantSlot, GrantEntry)]) {
        let wanted: Vec<_> = self.sessions.keys().flat_map(|subject| self.owners_of(*subject)).collect();
        for owner in owners.iter().filter(|owner| !wanted.contains(owner)) {
            self.outputs.push_back(Output::RemoveOwner(*owner));
        }
        for (slot, entry) in entries {
            let place = slot.destination();
            let subject = Subject::from_number(slot.subject);
            let subject = subject.filter(|subject| consents(&self.rules, self.config.default, *subject, &place));
            let allowed = subject.and_then(|subject| self.sessions.get_mut(&subject));
            let given_up = self.config.forgets_pairs && entry.suite == ls::SUITE;
            let held = allowed.filter(|_| !given_up).and_then(|session| {
                let held = HeldGrant::from_entry(entry, &place, session.unix(now), now)?;
                Some((session, held))
            });
            match held {
                Some((session, held)) => session.adopt(held, place, entry, &mut self.outputs),
                None => self.outputs.push_back(Output::Remove(*slot)),
            }
        }
    }

    /// Handles a discovery record which says that the person's authority protects these networks (wire.md §7.2): the
    /// agent may ask the authority whether that is true. A record alone never protects anything and never causes a
    /// request for a grant.
    pub fn hinted(&mut self, now: Duration, subject: Subject, networks: &[IpNet]) {
        if let Some(session) = self.sessions.get_mut(&subject) {
            session.hinted(now, networks, &mut self.outputs);
        }
    }

    /// Takes the authority's list of receivers that the person may reach, and the names of those to which packets may
    /// travel in a sealed tunnel only; `None` if the authority didn't answer.
    ///
    /// # Errors
    /// If there are more receivers than a session may have.
    pub fn destinations(
        &mut self,
        now: Duration,
        subject: Subject,
        receivers: Option<(Vec<Receiver>, BTreeSet<String>)>,
    ) -> Result<(), TooManyReceivers> {
        let Some(session) = self.sessions.get_mut(&subject) else { return Ok(()) };
        let Some((receivers, sealed)) = receivers else {
            session.reload_later(now);
            return Ok(());
        };
        check_receivers(&receivers)?;
        let changed = session.receivers() != receivers;
        session.set_receivers(receivers, sealed, &mut self.outputs);
        if changed {
            self.protect();
        }
        Ok(())
    }

    fn protect(&mut self) {
        let all = self.sessions.values().flat_map(Session::receivers);
        self.outputs.push_back(Output::Protect(protected::widened(all)));
    }

    /// Handles a first packet that the kernel queued for its grant; `frame` is `None` if the packet arrived incomplete.
    pub fn queued(&mut self, now: Duration, slot: &GrantSlot, frame: Option<Frame>) {
        let place = slot.destination();
        let Some(subject) = Subject::from_number(slot.subject) else { return };
        let consent = self.consent(subject, &place);
        let Some(session) = self.sessions.get_mut(&subject) else { return };
        let unix = session.unix(now);
        if session.queued(now, unix, place, frame, consent, &mut self.outputs) {
            session.ask_in_turn(place, &mut self.next_fetch, &mut self.outputs);
        }
    }

    /// Returns what would happen to a first packet. If its grant is missing, asks the authority for it, and returns
    /// [`Standing::Missing`] only if too many of the person's requests are open.
    pub fn want(&mut self, now: Duration, subject: Subject, place: Destination) -> Standing {
        let consent = self.consent(subject, &place);
        let Some(session) = self.sessions.get_mut(&subject) else { return Standing::NotLoggedIn };
        let unix = session.unix(now);
        let standing = session.standing(unix, &place, consent);
        if !matches!(standing, Standing::Missing) {
            return standing;
        }
        session.ask(place, &mut self.next_fetch, &mut self.outputs).map_or(Standing::Missing, Standing::Requested)
    }

    /// Handles the authority's answer to a request. An error says why the grant can't be used; the agent then asks
    /// again, as after a failure.
    pub fn answered(
        &mut self,
        now: Duration,
        subject: Subject,
        id: FetchId,
        answer: &Result<Grant, Refusal>,
    ) -> Result<(), Unusable> {
        // An answer to a request of an earlier session does not concern this session.
        let session = self.sessions.get_mut(&subject).filter(|session| session.awaits(id));
        let Some(session) = session else { return Ok(()) };
        let unix = session.unix(now);
        let mut outcome = Ok(());
        match answer {
            Err(Refusal::NotLoggedIn) => self.end(subject),
            // Its packets may travel in a tunnel only: denied, they don't go without identity either.
            Err(Refusal::Denied(_)) if session.is_sealed(id) => session.failed(now, id),
            Err(Refusal::Denied(why)) => session.denied(unix, id, why.clone(), &mut self.outputs),
            Err(Refusal::Failed(_)) => session.failed(now, id),
            Ok(grant) => outcome = session.granted(now, unix, id, grant, &mut self.outputs),
        }
        self.start_fetches(subject);
        outcome
    }

    /// Handles an event that the authority pushed.
    pub fn event(&mut self, now: Duration, subject: Subject, event: &Event) {
        let Some(session) = self.sessions.get_mut(&subject) else { return };
        match event {
            Event::Hello => {
                session.retry_at_once(now);
                session.reload_soon(now, &mut self.outputs);
                self.start_fetches(subject);
            }
            Event::Policy => session.reload_soon(now, &mut self.outputs),
            Event::Revoked(grants) => {
                for grant in grants {
                    session.revoked(grant.0, &mut self.outputs);
                }
            }
            Event::LoggedOut => self.end(subject),
        }
    }

    /// Called after this machine's addresses changed: drops grants that are bound to an address.
    pub fn moved(&mut self) {
        for session in self.sessions.values_mut() {
            session.drop_bound(&mut self.outputs);
        }
    }

    /// Ends a session that the authority has ended.
    pub fn end(&mut self, subject: Subject) {
        if self.sessions.contains_key(&subject) {
            self.logout(subject);
            self.outputs.push_back(Output::Ended(subject));
        }
    }

    /// Does all work that is due. Call it at [`Self::timeout`], and at least once a second. `used` returns how an entry
    /// has been used.
    pub fn tick(&mut self, now: Duration, used: impl Fn(&GrantSlot) -> Option<Used>) {
        let over = self.sessions.iter().filter(|(_, session)| session.expires <= session.unix(now));
        let ended: Vec<_> = over.map(|(subject, _)| *subject).collect();
        for subject in ended {
            self.end(subject);
        }
        let subjects: Vec<_> = self.sessions.keys().copied().collect();
        for subject in subjects {
            if let Some(session) = self.sessions.get_mut(&subject) {
                session.tick(now, &mut self.next_fetch, &used, &mut self.outputs);
            }
        }
    }

    /// Returns the next time at which [`Self::tick`] has a request to repeat, if any.
    pub fn timeout(&self) -> Option<Duration> {
        self.sessions.values().filter_map(Session::timeout).min()
    }

    /// Returns a person's rules.
    pub fn rules(&self, subject: Subject) -> ConsentRules {
        self.rules.get(&subject).cloned().unwrap_or_default()
    }

    /// Replaces a person's rules and re-evaluates the entries that the kernel has.
    pub fn set_rules(&mut self, subject: Subject, rules: ConsentRules) {
        self.rules.insert(subject, rules);
        if let Some(session) = self.sessions.get_mut(&subject) {
            let (rules, default) = (&self.rules, self.config.default);
            session.reevaluate(|place| consents(rules, default, subject, place), &mut self.outputs);
        }
    }

    /// Returns whether the person's identity may go to this place, and the rule that decides.
    pub fn consent(&self, subject: Subject, place: &Destination) -> (Consent, Option<Target>) {
        let rule = self.rules.get(&subject).and_then(|rules| rules.deciding(place.address, place.port));
        rule.map_or((self.config.default, None), |rule| (rule.consent, Some(rule.target)))
    }

    /// Returns the person's grants.
    pub fn grants(&self, subject: Subject, used: impl Fn(&GrantSlot) -> Option<Used>) -> Vec<GrantView> {
        self.sessions.get(&subject).map(|session| session.views(used)).unwrap_or_default()
    }

    /// Reports whether the person has a grant for a destination that any flow may use.
    pub fn has_grant_for(&self, subject: Subject, place: &Destination) -> bool {
        self.sessions.get(&subject).is_some_and(|session| session.has_grant_for(place))
    }

    /// Returns the receivers that the person may reach, from the authority's latest answer.
    pub fn receivers(&self, subject: Subject) -> &[Receiver] {
        self.sessions.get(&subject).map_or(&[], Session::receivers)
    }

    /// Asks for the grants for which frames wait and for which there may be no request.
    fn start_fetches(&mut self, subject: Subject) {
        let Some(session) = self.sessions.get_mut(&subject) else { return };
        session.ask_waiting(&mut self.next_fetch, &mut self.outputs);
    }

    fn owners_of(&self, subject: Subject) -> Vec<Owner> {
        let user = Owner { kind: owner::USER, reserved: 0, id: subject.user().into() };
        let others = self.config.owners.iter().filter(|(_, of)| *of == subject).map(|(owner, _)| *owner);
        std::iter::once(user).chain(others).collect()
    }
}

fn consents(rules: &BTreeMap<Subject, ConsentRules>, default: Consent, subject: Subject, place: &Destination) -> bool {
    let rule = rules.get(&subject).and_then(|rules| rules.deciding(place.address, place.port));
    rule.map_or(default, |rule| rule.consent) == Consent::Allow
}
