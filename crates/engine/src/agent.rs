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
mod organisations;
mod queue;
mod receivers;
mod session;
mod subject;
#[cfg(test)]
mod tests;
mod turns;
mod view;
pub mod wallet;

pub use clock::Clock;
pub use consent::{Consent, ConsentRules};
pub use frame::Frame;
pub use held_grant::Unusable;
pub use organisations::{Organisations, overlap};
pub use subject::Subject;
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
use std::net::IpAddr;
use std::time::Duration;
use wire::map::{GrantEntry, GrantSlot, Owner, owner};
use wire::{Destination, Handle, ls};

/// Maximum number of receivers per session with a user's default organisation. A session with another organisation may
/// have a quarter of this number. Without a limit, an authority that one user chose could fill the kernel's tables,
/// which all users share.
pub const RECEIVERS_MAX: usize = 4096;
/// Maximum number of receivers per session with an organisation other than the user's default one. With several
/// organisations, one user would otherwise have many times the share of the kernel's tables.
const RECEIVERS_OF_OTHERS_MAX: usize = RECEIVERS_MAX / 4;
/// Maximum number of port ranges in all receivers of a session together.
const SPANS_MAX: usize = 16 * RECEIVERS_MAX;

/// Error: a session has more receivers or more port ranges than it is allowed to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{receivers} receivers with {spans} port ranges exceed the limits of a session ({most} and {SPANS_MAX})")]
pub struct TooManyReceivers {
    receivers: usize,
    spans: usize,
    most: usize,
}

/// Checks the limits on the receivers of a session with a user's default organisation.
///
/// # Errors
///
/// Fails if there are more than [`RECEIVERS_MAX`] receivers, or if all receivers together have more port ranges than a
/// session is allowed to have.
pub fn check_receivers(receivers: &[Receiver]) -> Result<(), TooManyReceivers> {
    check(RECEIVERS_MAX, receivers)
}

fn check(most: usize, receivers: &[Receiver]) -> Result<(), TooManyReceivers> {
    let spans = receivers.iter().map(|receiver| receiver.services.len()).sum();
    if receivers.len() > most || spans > SPANS_MAX {
        return Err(TooManyReceivers { receivers: receivers.len(), spans, most });
    }
    Ok(())
}

/// Number that identifies an open request for a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(u64);

/// The reason why the authority issued no grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The policy denies the request. The text is the reason.
    Denied(String),
    /// The session has ended.
    NotLoggedIn,
    /// No usable answer arrived. The agent repeats the request later. The text is the reason.
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
    /// Whether a person's identity may go to a destination if the person has no rule of their own for it.
    pub default: Consent,
    /// Owners that are not users (cgroups, forwarded packets), each with the subject whose identity the owner's packets
    /// carry.
    pub owners: Vec<(Owner, Subject)>,
    /// Whether to discard pairs that an earlier process left in the kernel's map. This is necessary if that process
    /// also used nonces of the pairs for OpenFlow switches: only that process knew how many nonces are used.
    pub forgets_pairs: bool,
    /// Whether the agent supports sealed tunnels, which it needs for grants that admit packets only inside a tunnel.
    pub seals: bool,
    /// Networks that the administrator of this machine has given to named organisations. No user's default organisation
    /// may speak for them.
    pub reserved: Vec<IpNet>,
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
    /// Number of seconds by which the authority's clock was ahead of this machine's clock when the session was saved.
    pub skew: i32,
}

/// The agent's state machine, with all its sessions.
pub struct Agent {
    config: Config,
    /// This machine's clock, which the kernel program uses.
    clock: Clock,
    sessions: BTreeMap<Subject, Session>,
    /// Each user's rules, by the subject of the default organisation: the rules apply to all organisations.
    rules: BTreeMap<Subject, ConsentRules>,
    organisations: Organisations,
    outputs: VecDeque<Output>,
    next_fetch: u64,
}

impl Agent {
    /// Creates an agent without sessions.
    pub fn new(config: Config, clock: Clock) -> Self {
        let outputs = VecDeque::from([Output::SetClock(clock.boot_to_unix_nanos())]);
        let (sessions, rules) = (BTreeMap::new(), BTreeMap::new());
        let organisations = Organisations::new(config.reserved.clone());
        Self { config, clock, sessions, rules, organisations, outputs, next_fetch: 0 }
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

    /// Returns the number of seconds by which the clock of the subject's authority is ahead of this machine's clock; 0
    /// if the subject is not logged in.
    pub fn skew(&self, subject: Subject) -> i32 {
        self.sessions.get(&subject).map_or(0, |session| session.skew)
    }

    /// Sets the clock of a subject's session from an answer of the subject's authority. The answer states the time
    /// `unix`. The request was sent at `requested`, and the answer arrived at `answered`. Returns whether
    /// [`Self::skew`] has changed.
    pub fn sync_clock(&mut self, subject: Subject, unix: u64, requested: Duration, answered: Duration) -> bool {
        let Some(session) = self.sessions.get_mut(&subject) else { return false };
        session.sync_clock(unix, (requested, answered), &self.clock, &mut self.outputs)
    }

    /// Reports whether this request is still open.
    pub fn awaits(&self, subject: Subject, id: FetchId) -> bool {
        self.sessions.get(&subject).is_some_and(|session| session.awaits(id))
    }

    /// Sets the networks for which an organisation of a user may speak, and ends everything that the user's sessions
    /// may no longer do. With `None`, forgets the networks of the organisation. Without networks, the default
    /// organisation may speak for every address that is neither reserved nor given to another organisation. Any other
    /// organisation may then speak for no address. The caller makes sure that no two organisations of a user have an
    /// address in common.
    pub fn set_networks(&mut self, subject: Subject, networks: Option<Vec<IpNet>>) {
        self.organisations.set(subject, networks);
        self.confine(subject);
    }

    /// Reports whether an organisation of a user may speak for all addresses of a prefix.
    pub fn may_claim(&self, subject: Subject, prefix: &IpNet) -> bool {
        self.organisations.may_claim(subject, prefix)
    }

    /// Returns the subject whose session gives tokens to a user's packets to the destination in `slot`. Returns `None`
    /// if no organisation of the user may speak for the destination, or if there is no session with this organisation.
    pub fn holder(&self, slot: &GrantSlot) -> Option<Subject> {
        let subject = self.organisations.at(slot.subject, slot.destination().address)?;
        self.sessions.contains_key(&subject).then_some(subject)
    }

    /// Reports whether the session of `subject` is the one that gives tokens to the user's packets to `address`.
    pub fn speaks_for(&self, subject: Subject, address: IpAddr) -> bool {
        self.organisations.at(subject.number, address) == Some(subject)
    }

    /// Makes all sessions of a subject's user give up addresses for which they may not speak.
    fn confine(&mut self, subject: Subject) {
        let Self { sessions, organisations, outputs, .. } = self;
        for (of, session) in sessions.range_mut(subject.all()) {
            let owns = |address| organisations.at(of.number, address) == Some(*of);
            session.confine(|prefix| organisations.may_claim(*of, prefix), owns, outputs);
        }
        self.protect();
    }

    /// Starts the session of a person who has logged in, now or before a restart.
    pub fn login(&mut self, subject: Subject, mut login: Login) {
        self.drop_session(subject);
        if check(subject.receivers_max(), &login.receivers).is_err() {
            login.receivers.clear();
        }
        login.receivers.retain(|receiver| self.organisations.may_claim(subject, &receiver.prefix));
        self.sessions.insert(subject, Session::new(subject, login, &self.clock));
        for owner in self.owners_of(subject) {
            self.outputs.push_back(Output::SetOwner(owner, subject.in_organisation(0)));
        }
        // Another session of the user may have let packets to the new one's destinations pass.
        self.confine(subject);
        self.outputs.push_back(Output::FetchDestinations(subject));
    }

    /// Ends the session of a person who has logged out: their packets carry no tokens from now on. Drops the person's
    /// frames that wait for grants; the applications send these frames again.
    pub fn logout(&mut self, subject: Subject) {
        self.drop_session(subject);
        self.protect();
    }

    fn drop_session(&mut self, subject: Subject) {
        let Some(mut session) = self.sessions.remove(&subject) else { return };
        if !self.has_session(subject) {
            for owner in self.owners_of(subject) {
                self.outputs.push_back(Output::RemoveOwner(owner));
            }
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
            let subject = self.organisations.at(slot.subject, place.address);
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

    /// Handles a discovery record that names the person's authority and says that this authority protects these
    /// networks (wire.md §7.2). If a network is new, the agent asks the authority for the list of receivers again. A
    /// record alone never protects anything and never causes a request for a grant.
    pub fn hinted(&mut self, now: Duration, subject: Subject, networks: &[IpNet]) {
        let own = networks.iter().filter(|network| self.organisations.may_claim(subject, network));
        let own: Vec<IpNet> = own.copied().collect();
        if let Some(session) = self.sessions.get_mut(&subject) {
            session.hinted(now, &own, &mut self.outputs);
        }
    }

    /// Processes the authority's answer. It contains the receivers that the person is allowed to reach, and the names
    /// of the receivers whose packets must travel in a sealed tunnel. `receivers` is `None` if the authority didn't
    /// answer. Ignores receivers for which the organisation may not speak.
    ///
    /// # Errors
    ///
    /// Fails if there are more receivers or port ranges than the session is allowed to have (see [`RECEIVERS_MAX`]).
    pub fn destinations(
        &mut self,
        now: Duration,
        subject: Subject,
        receivers: Option<(Vec<Receiver>, BTreeSet<String>)>,
    ) -> Result<(), TooManyReceivers> {
        let Some(session) = self.sessions.get_mut(&subject) else { return Ok(()) };
        let Some((mut receivers, sealed)) = receivers else {
            session.reload_later(now);
            return Ok(());
        };
        check(subject.receivers_max(), &receivers)?;
        receivers.retain(|receiver| self.organisations.may_claim(subject, &receiver.prefix));
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
        let Some(subject) = self.holder(slot) else { return self.pass(now, slot.subject, place, frame) };
        let consent = self.consent(subject, &place);
        let Some(session) = self.sessions.get_mut(&subject) else { return };
        let unix = session.unix(now);
        if session.queued(now, unix, place, frame, consent, &mut self.outputs) {
            session.ask_in_turn(place, &mut self.next_fetch, &mut self.outputs);
        }
    }

    /// Lets a packet go without identity, because no organisation of its user has a session and may speak for its
    /// destination. Another user's receivers may be the reason why the kernel queued it.
    fn pass(&mut self, now: Duration, number: u32, place: Destination, frame: Option<Frame>) {
        let of_user = self.sessions.range_mut(Subject { number, organisation: 0 }.all());
        if let Some(session) = of_user.map(|(_, session)| session).next() {
            let unix = session.unix(now);
            session.pass(unix, place, frame, &mut self.outputs);
        }
    }

    /// Requests a renewal of the grant that the kernel uses for a destination, before the renewal is due. A caller
    /// needs this if it lacks information that the authority gives together with a grant.
    pub fn renew_early(&mut self, subject: Subject, place: Destination) {
        if let Some(session) = self.sessions.get_mut(&subject) {
            session.renew_early(place, &mut self.next_fetch, &mut self.outputs);
        }
    }

    /// Returns what the agent would do with a first packet to the destination `place`. If the grant for it is missing,
    /// requests the grant. If too many of the person's requests are open, makes no request and returns
    /// [`Standing::Missing`]. `subject` may be the packet's user in any of the user's organisations.
    pub fn want(&mut self, now: Duration, subject: Subject, place: Destination) -> Standing {
        let Some(subject) = self.holder(&subject.slot(&place)) else {
            let is_known = self.has_session(subject);
            return if is_known { Standing::NotProtected } else { Standing::NotLoggedIn };
        };
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
    /// Returns the reason why the agent can't use the grant in the answer. The agent then repeats the request later, as
    /// it does after a failure.
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

    /// Does all work that is due. The caller calls this method at the time that [`Self::timeout`] returns, and at least
    /// once a second. `used` returns the kernel's record of the tokens made from an entry of its grant map.
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

    /// Returns a person's consent rules, which are the same in all organisations.
    pub fn rules(&self, subject: Subject) -> ConsentRules {
        self.rules.get(&subject.in_organisation(0)).cloned().unwrap_or_default()
    }

    /// Replaces a person's consent rules, and removes kernel entries that the new rules no longer allow.
    pub fn set_rules(&mut self, subject: Subject, rules: ConsentRules) {
        self.rules.insert(subject.in_organisation(0), rules);
        let (rules, default) = (&self.rules, self.config.default);
        for session in self.sessions.range_mut(subject.all()).map(|(_, session)| session) {
            session.reevaluate(|place| consents(rules, default, subject, place), &mut self.outputs);
        }
    }

    /// Returns whether the person's identity is allowed to go to this destination, and the target of the rule that
    /// decides. The target is `None` if no rule matches and the default decides.
    pub fn consent(&self, subject: Subject, place: &Destination) -> (Consent, Option<Target>) {
        let rules = self.rules.get(&subject.in_organisation(0));
        let rule = rules.and_then(|rules| rules.deciding(place.address, place.port));
        rule.map_or((self.config.default, None), |rule| (rule.consent, Some(rule.target)))
    }

    /// Returns the person's grants in the form that is shown to users. `used` returns the kernel's record of the tokens
    /// made from an entry of its grant map.
    pub fn grants(&self, subject: Subject, used: impl Fn(&GrantSlot) -> Option<Used>) -> Vec<GrantView> {
        self.sessions.get(&subject).map(|session| session.views(used)).unwrap_or_default()
    }

    /// Reports whether the person has a grant for `place` that any flow can use. The grant may have ended.
    pub fn has_grant_for(&self, subject: Subject, place: &Destination) -> bool {
        self.sessions.get(&subject).is_some_and(|session| session.has_grant_for(place))
    }

    /// Returns the receivers that the person is allowed to reach, from the authority's latest answer.
    pub fn receivers(&self, subject: Subject) -> &[Receiver] {
        self.sessions.get(&subject).map_or(&[], Session::receivers)
    }

    /// Reports whether a subject's user has a session, with any organisation.
    pub fn has_session(&self, subject: Subject) -> bool {
        self.sessions.range(subject.all()).next().is_some()
    }

    /// Requests the grants that queued frames need, unless requests for them are open.
    fn start_fetches(&mut self, subject: Subject) {
        let Some(session) = self.sessions.get_mut(&subject) else { return };
        session.ask_waiting(&mut self.next_fetch, &mut self.outputs);
    }

    fn owners_of(&self, subject: Subject) -> Vec<Owner> {
        let user = Owner { kind: owner::USER, reserved: 0, id: subject.user().into() };
        let others = self.config.owners.iter().filter(|(_, of)| of.number == subject.number).map(|(owner, _)| *owner);
        std::iter::once(user).chain(others).collect()
    }
}

fn consents(rules: &BTreeMap<Subject, ConsentRules>, default: Consent, subject: Subject, place: &Destination) -> bool {
    let rule = rules.get(&subject.in_organisation(0)).and_then(|rules| rules.deciding(place.address, place.port));
    rule.map_or(default, |rule| rule.consent) == Consent::Allow
}
