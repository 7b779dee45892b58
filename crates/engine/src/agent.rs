//! The agent without IO: whose packets carry which tokens, and what is fetched from the authority when.
//!
//! Events come in by calls, effects go out through [`Agent::poll`] as values: entries of kernel maps, questions to the
//! authority, frames to send. `now` counts since boot, as the kernel program does. Unix time is each session's
//! authority's, learnt from its answers; nobody's authority says what time it is for anybody else.

mod clock;
pub mod consent;
pub mod frame;
mod known;
mod queue;
mod session;
#[cfg(test)]
mod tests;
mod view;

pub use clock::Clock;
pub use consent::{Consent, ConsentRules, Target};
pub use frame::Frame;
pub use known::Unusable;
pub use session::Standing;
pub use view::GrantView;

use crate::api::{self, Event, GrantRequest, Receiver};
use crate::insertion::Used;
use crate::protected::{self, Protected};
use ipnet::IpNet;
use known::Known;
use session::Session;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;
use wire::ls;
use wire::map::{GrantEntry, GrantSlot, Owner, address_bytes, address_of, owner};

/// A logged-in user of this machine, as the kernel program knows it. Never 0, and the same after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject(u32);

impl Subject {
    /// The subject of a user. The last user id is nobody's (it means "no change" to the kernel).
    pub const fn of_user(uid: u32) -> Self {
        Self(uid.saturating_add(1))
    }

    /// The user id.
    pub const fn user(self) -> u32 {
        self.0 - 1
    }

    /// The number that the kernel's maps hold.
    pub const fn number(self) -> u32 {
        self.0
    }

    const fn from_number(number: u32) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }
}

/// Where packets go: address, protocol, port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The receiver's address.
    pub address: IpAddr,
    /// The IP protocol number.
    pub protocol: u8,
    /// The destination port.
    pub port: u16,
}

impl Place {
    /// The place that a slot of the kernel's grants is for.
    pub fn of_slot(slot: &GrantSlot) -> Self {
        Self {
            address: address_of(slot.address, slot.family),
            protocol: slot.protocol,
            port: u16::from_be_bytes(slot.port),
        }
    }

    /// Its slot in the kernel's grants.
    pub fn slot(&self, subject: Subject) -> GrantSlot {
        GrantSlot {
            subject: subject.number(),
            port: self.port.to_be_bytes(),
            protocol: self.protocol,
            family: if self.address.is_ipv4() { 4 } else { 6 },
            address: address_bytes(self.address),
        }
    }

    fn request(&self) -> GrantRequest {
        let Self { address, protocol, port } = *self;
        GrantRequest { address, protocol, port, consented: false, in_band: false }
    }
}

/// The most receivers of a session. What one person's authority says takes its share of the kernel's tables, not all.
pub const RECEIVERS_MAX: usize = 4096;
/// The most spans of ports in a session's receivers.
const SPANS_MAX: usize = 16 * RECEIVERS_MAX;

/// More receivers than a session may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{receivers} receivers with {spans} spans of ports are more than a session may have ({RECEIVERS_MAX} and {SPANS_MAX})"
)]
pub struct TooManyReceivers {
    receivers: usize,
    spans: usize,
}

/// Whether a session may have these receivers.
pub fn check_receivers(receivers: &[Receiver]) -> Result<(), TooManyReceivers> {
    let spans = receivers.iter().map(|receiver| receiver.services.len()).sum();
    if receivers.len() > RECEIVERS_MAX || spans > SPANS_MAX {
        return Err(TooManyReceivers { receivers: receivers.len(), spans });
    }
    Ok(())
}

/// Names a question to the authority until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(u64);

/// Why the authority gave no grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The policy says no, and why.
    Denied(String),
    /// The session has ended.
    NotLoggedIn,
    /// No answer, or none that can be used: asked again later.
    Failed(String),
}

/// What the shell is to do.
#[allow(clippy::large_enum_variant, reason = "moved once, from the queue to the shell")]
pub enum Output {
    /// Packets of this owner are the subject's.
    SetOwner(Owner, Subject),
    /// They are nobody's any more.
    RemoveOwner(Owner),
    /// First packets of this kind are handled so. Secret.
    Write(GrantSlot, GrantEntry),
    /// First packets of this kind are held.
    Remove(GrantSlot),
    /// These and no other prefixes are protected.
    Protect(Vec<Protected>),
    /// What the kernel program adds to the boot clock, nanoseconds.
    SetClock(u64),
    /// Ask the subject's authority for a grant; answer with [`Agent::answered`].
    Fetch(FetchId, Subject, GrantRequest),
    /// Ask the subject's authority for its destinations; answer with [`Agent::destinations`].
    FetchDestinations(Subject),
    /// Send this frame again, for the subject.
    Send(Subject, Frame),
    /// The authority ended the session: forget its secret.
    Ended(Subject),
}

/// What holds for all sessions.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// What holds where a person has no rule.
    pub default: Consent,
    /// Owners besides the users themselves (cgroups, forwarded packets), and whose identity their packets carry.
    pub owners: Vec<(Owner, Subject)>,
    /// Whether pairs that an earlier process left are given up: their nonces were counted in its memory, too.
    pub forgets_pairs: bool,
}

/// A login, new or from before a restart.
#[derive(Clone, Debug, Default)]
pub struct Login {
    /// When the session ends, Unix seconds.
    pub expires: u64,
    /// What the person could reach when it was last asked.
    pub receivers: Vec<Receiver>,
    /// How many seconds the authority's clock was ahead of this machine's.
    pub skew: i32,
}

/// The state machine.
pub struct Agent {
    settings: Settings,
    /// This machine's, which the kernel program has.
    clock: Clock,
    sessions: BTreeMap<Subject, Session>,
    rules: BTreeMap<Subject, ConsentRules>,
    outputs: VecDeque<Output>,
    next_fetch: u64,
}

impl Agent {
    /// An agent with nobody logged in.
    pub fn new(settings: Settings, clock: Clock) -> Self {
        let outputs = VecDeque::from([Output::SetClock(clock.boot_to_unix_nanos())]);
        let (sessions, rules) = (BTreeMap::new(), BTreeMap::new());
        Self { settings, clock, sessions, rules, outputs, next_fetch: 0 }
    }

    /// The next effect, in order.
    pub fn poll(&mut self) -> Option<Output> {
        let mut next = self.outputs.pop_front();
        if let Some(Output::Fetch(_, subject, request)) = &mut next {
            // Told at the last moment: questions are asked again, and rules change in between.
            let place = Place { address: request.address, protocol: request.protocol, port: request.port };
            request.consented = matches!(self.consent(*subject, &place), (Consent::Allow, Some(_)));
        }
        next
    }

    /// The time of the subject's authority, Unix seconds; this machine's where nobody is logged in.
    pub fn unix(&self, now: Duration, subject: Subject) -> u64 {
        self.sessions.get(&subject).map_or_else(|| self.clock.unix(now), |session| session.unix(now))
    }

    /// How many seconds the clock of the subject's authority is ahead of this machine's.
    pub fn skew(&self, subject: Subject) -> i32 {
        self.sessions.get(&subject).map_or(0, |session| session.skew)
    }

    /// An answer told the time of the subject's authority. Says whether that changed its [`Self::skew`].
    pub fn told_time(&mut self, subject: Subject, unix: u64, asked: Duration, answered: Duration) -> bool {
        let Some(session) = self.sessions.get_mut(&subject) else { return false };
        session.told_time(unix, (asked, answered), &self.clock, &mut self.outputs)
    }

    /// Whether this question is still open.
    pub fn awaits(&self, subject: Subject, id: FetchId) -> bool {
        self.sessions.get(&subject).is_some_and(|session| session.awaits(id))
    }

    /// A person logged in, or had before a restart.
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

    /// A person logged out: their packets go without tokens from now on. Frames that wait are dropped, to be sent again
    /// by whoever wanted to connect.
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

    /// What an earlier process left in the kernel: kept where it still holds, removed where it doesn't.
    pub fn take_over(&mut self, now: Duration, owners: &[Owner], entries: &[(GrantSlot, GrantEntry)]) {
        let wanted: Vec<_> = self.sessions.keys().flat_map(|subject| self.owners_of(*subject)).collect();
        for owner in owners.iter().filter(|owner| !wanted.contains(owner)) {
            self.outputs.push_back(Output::RemoveOwner(*owner));
        }
        for (slot, entry) in entries {
            let place = Place::of_slot(slot);
            let subject = Subject::from_number(slot.subject);
            let subject = subject.filter(|subject| consents(&self.rules, self.settings.default, *subject, &place));
            let allowed = subject.and_then(|subject| self.sessions.get_mut(&subject));
            let given_up = self.settings.forgets_pairs && entry.suite == ls::SUITE;
            let known = allowed.filter(|_| !given_up).and_then(|session| {
                let known = Known::from_entry(entry, &place, session.unix(now), now)?;
                Some((session, known))
            });
            match known {
                Some((session, known)) => session.adopt(known, place, entry, &mut self.outputs),
                None => self.outputs.push_back(Output::Remove(*slot)),
            }
        }
    }

    /// A record of discovery says that the person's authority protects these networks (wire.md §7.2): it may be asked
    /// whether it does. Nothing is protected, and no grant asked for, because of a record.
    pub fn hinted(&mut self, now: Duration, subject: Subject, networks: &[IpNet]) {
        if let Some(session) = self.sessions.get_mut(&subject) {
            session.hinted(now, networks, &mut self.outputs);
        }
    }

    /// What the authority says the person may reach; `None` if it didn't answer.
    pub fn destinations(
        &mut self,
        now: Duration,
        subject: Subject,
        receivers: Option<Vec<Receiver>>,
    ) -> Result<(), TooManyReceivers> {
        let Some(session) = self.sessions.get_mut(&subject) else { return Ok(()) };
        let Some(receivers) = receivers else {
            session.reload_later(now);
            return Ok(());
        };
        check_receivers(&receivers)?;
        let changed = session.receivers != receivers;
        session.set_receivers(receivers, &mut self.outputs);
        if changed {
            self.protect();
        }
        Ok(())
    }

    fn protect(&mut self) {
        let all = self.sessions.values().flat_map(|session| &session.receivers);
        self.outputs.push_back(Output::Protect(protected::widened(all)));
    }

    /// The kernel held a packet; `frame` is `None` if it did not come through whole.
    pub fn held(&mut self, now: Duration, slot: &GrantSlot, frame: Option<Frame>) {
        let place = Place::of_slot(slot);
        let Some(subject) = Subject::from_number(slot.subject) else { return };
        let consent = self.consent(subject, &place);
        let Some(session) = self.sessions.get_mut(&subject) else { return };
        let unix = session.unix(now);
        session.held(now, unix, place, frame, consent, &mut self.outputs);
        self.start_fetches(subject);
    }

    /// What would happen to a first packet; asks for the grant if it is missing.
    pub fn want(&mut self, now: Duration, subject: Subject, place: Place) -> Standing {
        let consent = self.consent(subject, &place);
        let Some(session) = self.sessions.get_mut(&subject) else { return Standing::NotLoggedIn };
        let unix = session.unix(now);
        let standing = session.standing(unix, &place, consent);
        if !matches!(standing, Standing::Missing) {
            return standing;
        }
        let id = session.fetch_for(&place).unwrap_or_else(|| {
            self.next_fetch += 1;
            let id = FetchId(self.next_fetch);
            session.begin_fetch(id, place, &mut self.outputs);
            id
        });
        Standing::Asked(id)
    }

    /// The authority's answer to a question. The error says why a grant can't be used; it counts as a failure.
    pub fn answered(
        &mut self,
        now: Duration,
        subject: Subject,
        id: FetchId,
        answer: &Result<api::Grant, Refusal>,
    ) -> Result<(), Unusable> {
        // An answer to an earlier session says nothing about this one.
        let session = self.sessions.get_mut(&subject).filter(|session| session.awaits(id));
        let Some(session) = session else { return Ok(()) };
        let unix = session.unix(now);
        let mut outcome = Ok(());
        match answer {
            Err(Refusal::NotLoggedIn) => self.end(subject),
            Err(Refusal::Denied(why)) => session.denied(unix, id, why.clone(), &mut self.outputs),
            Err(Refusal::Failed(_)) => session.failed(now, id),
            Ok(grant) => outcome = session.granted(now, unix, id, grant, &mut self.outputs),
        }
        self.start_fetches(subject);
        outcome
    }

    /// The authority pushed an event.
    pub fn event(&mut self, now: Duration, subject: Subject, event: &Event) {
        let Some(session) = self.sessions.get_mut(&subject) else { return };
        match event {
            Event::Hello => {
                session.retry_at_once(now);
                session.reload_soon(now, &mut self.outputs);
                self.start_fetches(subject);
            }
            Event::Policy => session.reload_soon(now, &mut self.outputs),
            Event::Revoked { grants } => {
                for grant in grants {
                    session.revoked(grant.handle, &mut self.outputs);
                }
            }
            Event::LoggedOut => self.end(subject),
            Event::Alive
            | Event::Granted { .. }
            | Event::Pair { .. }
            | Event::Recheck
            | Event::SessionsRevoked { .. }
            | Event::Withdrawn { .. } => {}
        }
    }

    /// This machine's addresses changed: grants that are bound to one are worth nothing at another.
    pub fn moved(&mut self) {
        for session in self.sessions.values_mut() {
            session.drop_bound(&mut self.outputs);
        }
    }

    /// The authority says that the session is over.
    pub fn end(&mut self, subject: Subject) {
        if self.sessions.contains_key(&subject) {
            self.logout(subject);
            self.outputs.push_back(Output::Ended(subject));
        }
    }

    /// Does what time brings; to be called at [`Self::timeout`] and at least each second. `used` tells what was
    /// made of an entry.
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
            self.start_fetches(subject);
        }
    }

    /// When [`Self::tick`] has something to do before the second is over.
    pub fn timeout(&self) -> Option<Duration> {
        self.sessions.values().filter_map(Session::timeout).min()
    }

    /// A person's rules.
    pub fn rules(&self, subject: Subject) -> ConsentRules {
        self.rules.get(&subject).cloned().unwrap_or_default()
    }

    /// Changes a person's rules; what the kernel has is judged anew.
    pub fn set_rules(&mut self, subject: Subject, rules: ConsentRules) {
        self.rules.insert(subject, rules);
        if let Some(session) = self.sessions.get_mut(&subject) {
            let (rules, default) = (&self.rules, self.settings.default);
            session.judge_anew(|place| consents(rules, default, subject, place), &mut self.outputs);
        }
    }

    /// Whether the person's identity may go to this place, and by which rule.
    pub fn consent(&self, subject: Subject, place: &Place) -> (Consent, Option<Target>) {
        let rule = self.rules.get(&subject).and_then(|rules| rules.deciding(place.address, place.port));
        rule.map_or((self.settings.default, None), |rule| (rule.consent, Some(rule.target)))
    }

    /// The person's grants.
    pub fn grants(&self, subject: Subject, used: impl Fn(&GrantSlot) -> Option<Used>) -> Vec<GrantView> {
        self.sessions.get(&subject).map(|session| session.views(used)).unwrap_or_default()
    }

    /// What the person may reach, as last heard.
    pub fn receivers(&self, subject: Subject) -> &[Receiver] {
        self.sessions.get(&subject).map_or(&[], |session| &session.receivers)
    }

    /// Asks for every grant that frames wait for and nobody has asked for yet.
    fn start_fetches(&mut self, subject: Subject) {
        let Some(session) = self.sessions.get_mut(&subject) else { return };
        while let Some(place) = session.unasked() {
            self.next_fetch += 1;
            session.begin_fetch(FetchId(self.next_fetch), place, &mut self.outputs);
        }
    }

    fn owners_of(&self, subject: Subject) -> Vec<Owner> {
        let user = Owner { kind: owner::USER, reserved: 0, id: subject.user().into() };
        let others = self.settings.owners.iter().filter(|(_, of)| *of == subject).map(|(owner, _)| *owner);
        std::iter::once(user).chain(others).collect()
    }
}

fn consents(rules: &BTreeMap<Subject, ConsentRules>, default: Consent, subject: Subject, place: &Place) -> bool {
    let rule = rules.get(&subject).and_then(|rules| rules.deciding(place.address, place.port));
    rule.map_or(default, |rule| rule.consent) == Consent::Allow
}
