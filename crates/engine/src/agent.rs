//! State machine of the agent, without IO: it decides which packets carry which tokens, and which grants to request
//! from the authority.
//!
//! Method calls deliver events. [`Agent::poll`] returns the effects as values: entries of kernel maps, requests to the
//! authority, frames to send. `now` is the time since boot, which the kernel program uses too. Unix times are those of
//! the session's own authority, taken from its answers. An authority never sets the time for a session of another
//! authority.

mod clock;
pub mod consent;
pub mod datagrams;
mod fetches;
pub mod frame;
mod grants;
mod held_grant;
pub mod insertion;
pub mod ladder;
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

/// The number by which the kernel program identifies a user of this machine. It is never 0 and does not change when the
/// agent restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject(u32);

impl Subject {
    /// Returns the subject of a user id. The kernel uses the highest user id to mean "no change", so this id has no
    /// subject of its own: it shares the subject of the next lower id.
    pub const fn of_user(uid: u32) -> Self {
        Self(uid.saturating_add(1))
    }

    /// Returns the user id of this subject.
    pub const fn user(self) -> u32 {
        self.0 - 1
    }

    /// Returns the number that stands for this subject in the kernel's maps.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the key of the entry for this subject and destination in the kernel's grant map.
    pub fn slot(self, to: &Destination) -> GrantSlot {
        GrantSlot::new(self.0, to)
    }

    const fn from_number(number: u32) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }
}

/// Maximum number of receivers per session. Without a limit, an authority that one user chose could fill the kernel's
/// tables, which all users share.
pub const RECEIVERS_MAX: usize = 4096;
/// Maximum number of port ranges in all receivers of a session together.
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

/// Checks the limits on a session's receivers.
///
/// # Errors
///
/// Fails if there are more than [`RECEIVERS_MAX`] receivers, or if all receivers together have more port ranges than a
/// session is allowed to have.
pub fn check_receivers(receivers: &[Receiver]) -> Result<(), TooManyReceivers> {
    let spans = receivers.iter().map(|receiver| receiver.services.len()).sum();
    if receivers.len() > RECEIVERS_MAX || spans > SPANS_MAX {
        return Err(TooManyReceivers { receivers: receivers.len(), spans });
    }
    Ok(())
}

/// Number that identifies an open request for a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(u64);

/// The reason for which the authority issued no grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The policy denies the request, with the reason.
    Denied(String),
    /// The session has ended.
    NotLoggedIn,
    /// No usable answer arrived; the agent asks again later.
    Failed(String),
}

/// An event that the authority sends to the agent without a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The stream of events is open. The agent may have missed earlier events.
    Hello,
    /// Receivers or rules have changed.
    Policy,
    /// The authority revoked the grants with these handles.
    Revoked(Vec<Handle>),
    /// The session has ended.
    LoggedOut,
}

/// Maximum number of grants that one [`Event::Revoked`] from [`Event::parts`] names.
const REVOKED_MAX: usize = 256;

impl Event {
    /// Splits an event that revokes many grants into several events, so that the agent can do other work between them.
    /// Returns any other event unchanged.
    pub fn parts(self) -> Vec<Self> {
        match self {
            Self::Revoked(grants) => grants.chunks(REVOKED_MAX).map(|part| Self::Revoked(part.to_vec())).collect(),
            other => vec![other],
        }
    }
}

/// An effect that the program around the state machine has to carry out.
#[allow(clippy::large_enum_variant, reason = "moved once, from the queue to the shell")]
pub enum Output {
    /// Write an entry to the kernel's table of owners: packets of this owner belong to the subject.
    SetOwner(Owner, Subject),
    /// Remove this owner from the kernel's table of owners, so that its packets belong to no subject.
    RemoveOwner(Owner),
    /// Write this entry, which contains secrets, to the kernel's grant map.
    Write(GrantSlot, GrantEntry),
    /// Remove this slot from the kernel's grant map. The kernel then queues first packets to its destination.
    Remove(GrantSlot),
    /// Protect these prefixes and no others.
    Protect(Vec<Protected>),
    /// Set the number of nanoseconds that the kernel program adds to the boot clock to get Unix time.
    SetClock(u64),
    /// Ask the subject's authority for a grant; report the answer with [`Agent::answered`].
    Fetch(FetchId, Subject, GrantRequest),
    /// Ask the subject's authority for its destinations; report the answer with [`Agent::destinations`].
    FetchDestinations(Subject),
    /// Send this queued frame again; the kernel program then attributes it to the subject.
    Send(Subject, Frame),
    /// Forget the secret of a session that the authority has ended.
    Ended(Subject),
}

/// Configuration of the agent that applies to all sessions.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Whether a person's identity is allowed to go to destinations for which the person has no rule.
    pub default: Consent,
    /// Owners that are not users (cgroups, forwarded packets), each with the subject whose identity the owner's packets
    /// carry.
    pub owners: Vec<(Owner, Subject)>,
    /// Whether to give up pairs that an earlier process left in the kernel's map. This is necessary if that process
    /// also used nonces of the pairs for OpenFlow switches, because only that process knew how many nonces are used.
    pub forgets_pairs: bool,
    /// Whether the agent supports sealed tunnels, which it needs for grants that admit packets only inside a tunnel.
    pub seals: bool,
}

/// A session's data, from a new login or saved before a restart.
#[derive(Clone, Debug, Default)]
pub struct Login {
    /// End of the session, Unix seconds.
    pub expires: u64,
    /// Receivers that the person was allowed to reach, according to the authority's latest answer.
    pub receivers: Vec<Receiver>,
    /// Names of the receivers whose packets must travel in a sealed tunnel.
    pub sealed: BTreeSet<String>,
    /// Seconds by which the authority's clock was ahead of this machine's when the session was saved.
    pub skew: i32,
}

/// The agent's state machine, with all its sessions.
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

    /// Removes and returns the oldest effect that the caller has not yet taken.
    pub fn poll(&mut self) -> Option<Output> {
        let mut next = self.outputs.pop_front();
        if let Some(Output::Fetch(_, subject, request)) = &mut next {
            // Set only now, because requests are repeated and rules may have changed since.
            request.consented = matches!(self.consent(*subject, &request.to), (Consent::Allow, Some(_)));
        }
        next
    }

    /// Returns Unix time in seconds by the clock of the subject's authority, or by this machine's clock if the subject
    /// is not logged in.
    pub fn unix(&self, now: Duration, subject: Subject) -> u64 {
        self.clock(subject).unix(now)
    }

    /// Returns the clock of the subject's authority, or this machine's clock if the subject is not logged in.
    pub fn clock(&self, subject: Subject) -> Clock {
        self.sessions.get(&subject).map_or(self.clock, |session| session.clock)
    }

    /// Returns by how many seconds the clock of the subject's authority is ahead of this machine's.
    pub fn skew(&self, subject: Subject) -> i32 {
        self.sessions.get(&subject).map_or(0, |session| session.skew)
    }

    /// Sets the clock of a subject's session from an answer of the subject's authority. The answer states the time
    /// `unix`; it arrived at `answered`, to a request made at `requested`. Returns whether that changed [`Self::skew`].
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

    /// Ends the session of a person who has logged out: their packets carry no tokens from now on. Drops frames that
    /// wait for grants; the application that wants to connect sends them again.
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

    /// Handles a discovery record that names the person's authority and says that it protects these networks (wire.md
    /// §7.2). If a network is new, the agent asks the authority for the list of receivers again. A record alone never
    /// protects anything and never causes a request for a grant.
    pub fn hinted(&mut self, now: Duration, subject: Subject, networks: &[IpNet]) {
        if let Some(session) = self.sessions.get_mut(&subject) {
            session.hinted(now, networks, &mut self.outputs);
        }
    }

    /// Takes the authority's answer: the receivers that the person is allowed to reach, and the names of the receivers
    /// whose packets must travel in a sealed tunnel. `receivers` is `None` if the authority didn't answer.
    ///
    /// # Errors
    ///
    /// Fails if the receivers exceed the limits of [`check_receivers`].
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

    /// Handles a first packet that the kernel queued because its grant is missing; `frame` is `None` if the packet
    /// arrived incomplete.
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

    /// Requests a renewal of the grant that the kernel uses for a destination, before the renewal is due. A caller
    /// needs this if it lacks information that the authority gives together with a grant.
    pub fn renew_early(&mut self, subject: Subject, place: Destination) {
        if let Some(session) = self.sessions.get_mut(&subject) {
            session.renew_early(place, &mut self.next_fetch, &mut self.outputs);
        }
    }

    /// Returns what would happen to a first packet to this destination. If the grant for it is missing, requests the
    /// grant. If too many of the person's requests are open, makes no request and returns [`Standing::Missing`].
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

    /// Handles the authority's answer to a request.
    ///
    /// # Errors
    ///
    /// Returns why the agent can't use the grant in the answer. The agent then repeats the request later, as it does
    /// after a failure.
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
            // Packets to this receiver may travel in a sealed tunnel only: a denial must not let them go without
            // identity.
            Err(Refusal::Denied(_)) if session.is_sealed(id) => session.failed(now, id),
            Err(Refusal::Denied(why)) => session.denied(unix, id, why.clone(), &mut self.outputs),
            Err(Refusal::Failed(_)) => session.failed(now, id),
            Ok(grant) if grant.admits_in_tunnel_only() && !self.config.seals => {
                session.failed(now, id);
                outcome = Err(Unusable::Sealed);
            }
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

    /// Removes grants that are bound to an address. Call this method after this machine's addresses have changed.
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

    /// Does all work that is due. Call this method at the time that [`Self::timeout`] returns, and at least once a
    /// second. `used` returns the kernel's record of the tokens made from an entry of its grant map.
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

    /// Returns a person's consent rules.
    pub fn rules(&self, subject: Subject) -> ConsentRules {
        self.rules.get(&subject).cloned().unwrap_or_default()
    }

    /// Replaces a person's consent rules, and removes kernel entries that the new rules no longer allow.
    pub fn set_rules(&mut self, subject: Subject, rules: ConsentRules) {
        self.rules.insert(subject, rules);
        if let Some(session) = self.sessions.get_mut(&subject) {
            let (rules, default) = (&self.rules, self.config.default);
            session.reevaluate(|place| consents(rules, default, subject, place), &mut self.outputs);
        }
    }

    /// Returns whether the person's identity is allowed to go to this destination, and the target of the rule that
    /// decides. The target is `None` if no rule matches and the default decides.
    pub fn consent(&self, subject: Subject, place: &Destination) -> (Consent, Option<Target>) {
        let rule = self.rules.get(&subject).and_then(|rules| rules.deciding(place.address, place.port));
        rule.map_or((self.config.default, None), |rule| (rule.consent, Some(rule.target)))
    }

    /// Returns the person's grants in the form that is shown to users. `used` returns the kernel's record of the tokens
    /// made from an entry of its grant map.
    pub fn grants(&self, subject: Subject, used: impl Fn(&GrantSlot) -> Option<Used>) -> Vec<GrantView> {
        self.sessions.get(&subject).map(|session| session.views(used)).unwrap_or_default()
    }

    /// Reports whether the person has a grant for `place` that is not assigned to a single flow.
    pub fn has_grant_for(&self, subject: Subject, place: &Destination) -> bool {
        self.sessions.get(&subject).is_some_and(|session| session.has_grant_for(place))
    }

    /// Returns the receivers that the person is allowed to reach, from the authority's latest answer.
    pub fn receivers(&self, subject: Subject) -> &[Receiver] {
        self.sessions.get(&subject).map_or(&[], Session::receivers)
    }

    /// Requests the grants that queued frames need, unless requests for them are open.
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
