//! One person's session: its grants, open requests and waiting frames.

mod bounds;
mod renewal;
use super::consent::Consent;
use super::fetches::{FETCHES_MAX, Fetch, Fetches, Guess, PAUSE_IDLE, pause};
use super::frame::Frame;
use super::grants::Grants;
use super::held_grant::{HeldGrant, Unusable, plain_entry, shortened};
use super::insertion::Used;
use super::queue::Queue;
use super::receivers::Receivers;
use super::view::{GrantView, Standing};
use super::{Clock, FetchId, Login, Output, Subject};
use crate::model::{Grant, GrantRequest, Receiver, Target};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use wire::map::{GrantEntry, GrantSlot};
use wire::{Destination, Handle};

/// Number of seconds after a denial by policy during which the agent does not ask the authority again.
const DENIAL: u64 = 10;
/// Seconds for which packets to a destination outside the person's receivers go without identity.
const FOREIGN: u64 = 60;
/// Seconds for which a denial by the person's own rule stays in the kernel; a change of rules ends it at once.
const OWN_RULE: u64 = 3600;
/// Maximum number of destinations whose packets go without identity.
const PLAIN_MAX: usize = 4096;
/// Minimum time between two passes over all grants of the session, however often requests are repeated.
const SWEEP_EVERY: Duration = Duration::from_millis(500);
/// Minimum time between two corrections of the clock. It is needed because each correction rewrites every kernel entry.
const CLOCK_HOLDS: Duration = Duration::from_secs(5);
/// Minimum time between two requests for the list of receivers.
const RELOAD_EVERY: Duration = Duration::from_secs(1);
/// Minimum time between two hints that cause a request for the list of receivers, so that an attacker who forges hints
/// can't cause a flood.
const HINT_EVERY: Duration = Duration::from_secs(60);
/// Time between two checks whether an idle grant that is about to end is in use again.
const IDLE_LOOK: Duration = Duration::from_secs(5);

type Outputs = VecDeque<Output>;

/// Reason why packets to a destination go without identity.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    OwnRule,
    Foreign,
    Policy(String),
}

pub(super) struct Session {
    pub subject: Subject,
    /// End of the session, in Unix seconds by its authority's clock.
    pub expires: u64,
    /// The authority's clock.
    pub clock: Clock,
    /// Number of seconds by which the authority's clock is ahead of this machine's clock. The kernel's entries contain
    /// the same number.
    pub skew: i32,
    corrected: Option<Duration>,
    receivers: Receivers,
    /// Whether the authority has confirmed the receivers to this process or to an earlier one.
    confirmed: bool,
    grants: Grants,
    plain: BTreeMap<Destination, (u64, Why)>,
    fetches: Fetches,
    queue: Queue,
    /// Destinations of packets that arrived incomplete, so that they are not in the queue. The agent has not yet
    /// requested grants for these destinations, because too many requests are open.
    wanted: BTreeSet<Destination>,
    /// Whether queued packets may have destinations that no open request covers.
    unrequested: bool,
    reload: Option<Duration>,
    reloaded: Option<Duration>,
    reload_attempts: u32,
    hinted: Option<Duration>,
    hurried: Option<Duration>,
    swept: Option<Duration>,
}

impl Session {
    /// Creates a session that uses this machine's clock `local` until its authority reports the time.
    pub fn new(subject: Subject, login: Login, local: &Clock) -> Self {
        Self {
            subject,
            expires: login.expires,
            clock: local.shifted(login.skew),
            skew: login.skew,
            corrected: None,
            confirmed: !login.receivers.is_empty(),
            receivers: Receivers::new(login.receivers, login.sealed),
            grants: Grants::default(),
            plain: BTreeMap::new(),
            fetches: Fetches::default(),
            queue: Queue::default(),
            wanted: BTreeSet::new(),
            unrequested: false,
            reload: None,
            reloaded: None,
            reload_attempts: 0,
            hinted: None,
            hurried: None,
            swept: None,
        }
    }

    /// Returns Unix seconds by the authority's clock.
    pub fn unix(&self, now: Duration) -> u64 {
        self.clock.unix(now)
    }

    /// Sets the session's clock from an answer of the authority. Returns whether the kernel's entries have changed.
    pub fn sync_clock(
        &mut self,
        unix: u64,
        (requested, answered): (Duration, Duration),
        local: &Clock,
        outputs: &mut Outputs,
    ) -> bool {
        if self.corrected.is_some_and(|at| answered < at + CLOCK_HOLDS) || !self.clock.sync(unix, requested, answered) {
            return false;
        }
        self.corrected = Some(answered);
        self.skew = self.clock.skew(local);
        for held in self.grants.iter() {
            let entries = held.places.iter().map(|place| (self.subject.slot(place), held.entry(self.skew)));
            outputs.extend(entries.map(|(slot, entry)| Output::Write(slot, entry)));
        }
        for (place, (until, _)) in &self.plain {
            outputs.push_back(Output::Write(self.subject.slot(place), plain_entry(*until, self.skew)));
        }
        true
    }

    pub fn receivers(&self) -> &[Receiver] {
        self.receivers.all()
    }

    fn is_foreign(&self, place: &Destination) -> bool {
        self.confirmed && self.receivers.of(place).is_none()
    }

    /// Handles a packet that the kernel queued. Returns whether a grant for the packet's destination is missing.
    pub fn queued(
        &mut self,
        now: Duration,
        unix: u64,
        place: Destination,
        frame: Option<Frame>,
        consent: (Consent, Option<Target>),
        outputs: &mut Outputs,
    ) -> bool {
        if consent.0 == Consent::Deny && self.receivers.are_sealed(&place) {
            return false;
        } else if consent.0 == Consent::Deny {
            self.go_plain(place, unix + OWN_RULE, Why::OwnRule, outputs);
        } else if self.is_foreign(&place) {
            self.go_plain(place, unix + FOREIGN, Why::Foreign, outputs);
        } else if let Some(until) = self.plain.get(&place).map(|(until, _)| *until).filter(|until| *until > unix + 1) {
            self.write_plain(&place, until, outputs);
        } else {
            let sender = frame.as_ref().and_then(Frame::sender);
            let best = self.grants.best(unix, &place, sender);
            match (frame, best) {
                (Some(frame), Some(handle)) => self.send(handle, &place, frame, outputs),
                (Some(frame), None) => self.queue.push(place, frame, now),
                (None, _) => {}
            }
            return best.is_none();
        }
        if let Some(frame) = frame {
            outputs.push_back(Output::Send(self.subject, frame));
        }
        false
    }

    /// Sends every frame that waits for this destination and for which there is a grant.
    fn serve(&mut self, unix: u64, place: &Destination, outputs: &mut Outputs) {
        loop {
            let Self { queue, grants, .. } = self;
            let wanted = |frame: &Frame| grants.best(unix, place, frame.sender()).is_some();
            let Some(frame) = queue.take(place, wanted) else { return };
            let Some(handle) = grants.best(unix, place, frame.sender()) else { return };
            self.send(handle, place, frame, outputs);
        }
    }

    /// Sends a frame with a token of this grant.
    fn send(&mut self, handle: Handle, place: &Destination, frame: Frame, outputs: &mut Outputs) {
        let Some(held) = self.grants.get(handle) else { return };
        let (slot, sender, is_single) = (self.subject.slot(place), frame.sender(), held.is_single());
        outputs.push_back(Output::Write(slot, held.entry(self.skew)));
        outputs.push_back(Output::Send(self.subject, frame));
        self.plain.remove(place);
        if is_single {
            // The kernel would use the grant for the next flow, too.
            outputs.push_back(Output::Remove(slot));
            self.grants.unplace(place);
            self.grants.bind(handle, sender.map(|sender| (*place, sender)));
        } else {
            self.place(handle, *place, outputs);
        }
    }

    /// Records that the kernel has this grant for a destination, and removes the oldest entry if there are too many.
    fn place(&mut self, handle: Handle, place: Destination, outputs: &mut Outputs) {
        if let Some(oldest) = self.grants.place(handle, place) {
            outputs.push_back(Output::Remove(self.subject.slot(&oldest)));
        }
    }

    /// Lets packets to this destination, including queued packets, go without identity until the time `until`.
    fn go_plain(&mut self, place: Destination, until: u64, why: Why, outputs: &mut Outputs) {
        while self.plain.len() >= PLAIN_MAX {
            if let Some((place, _)) = self.plain.pop_first() {
                outputs.push_back(Output::Remove(self.subject.slot(&place)));
            }
        }
        self.grants.unplace(&place);
        self.plain.insert(place, (until, why));
        self.write_plain(&place, until, outputs);
    }

    fn write_plain(&mut self, place: &Destination, until: u64, outputs: &mut Outputs) {
        outputs.push_back(Output::Write(self.subject.slot(place), plain_entry(until, self.skew)));
        while let Some(frame) = self.queue.take(place, |_| true) {
            outputs.push_back(Output::Send(self.subject, frame));
        }
    }

    pub fn standing(&self, unix: u64, place: &Destination, consent: (Consent, Option<Target>)) -> Standing {
        if self.is_foreign(place) {
            return Standing::NotProtected;
        }
        if consent.0 == Consent::Deny {
            return Standing::Withheld(consent.1);
        }
        if let Some((until, Why::Policy(why))) = self.plain.get(place)
            && *until > unix
        {
            return Standing::Denied(why.clone());
        }
        match self.grants.best(unix, place, None).and_then(|handle| self.grants.get(handle)) {
            Some(held) => Standing::Granted(Box::new(GrantView::of(held))),
            None => Standing::Missing,
        }
    }

    /// Guesses what a grant for this destination would cover, from the latest grant for the destination's receiver.
    fn guess(&self, place: &Destination) -> Guess {
        let (length, fixed) = self.receivers.width(place).unwrap_or((128, true));
        let length = length.min(if place.address.is_ipv4() { 32 } else { 128 });
        let prefix = IpNet::new(place.address, length).unwrap_or(place.address.into()).trunc();
        Guess { prefix, service: fixed.then_some((place.protocol, place.port)) }
    }

    /// Requests the grant for a destination, unless the answer to an open request is likely to contain it. Returns the
    /// new request or that open request, or `None` if too many requests are open.
    pub fn ask(&mut self, place: Destination, next_fetch: &mut u64, outputs: &mut Outputs) -> Option<FetchId> {
        let guess = self.guess(&place);
        if let Some(id) = self.fetches.covering(&place, &guess) {
            return Some(id);
        }
        self.begin_fetch(place, guess, None, next_fetch, outputs)
    }

    /// Requests the grant for `place`, which a queued packet needs. If too many requests are open, stores `place` until
    /// there is room for another request.
    pub fn ask_in_turn(&mut self, place: Destination, next_fetch: &mut u64, outputs: &mut Outputs) {
        if self.ask(place, next_fetch, outputs).is_none()
            && !self.queue.waits_for(&place)
            && self.wanted.len() < FETCHES_MAX
        {
            self.wanted.insert(place);
        }
    }

    /// Requests every grant that queued packets need and that no open request covers. Does nothing unless a request has
    /// ended or the receivers have changed since the last call.
    pub fn ask_waiting(&mut self, next_fetch: &mut u64, outputs: &mut Outputs) {
        if !std::mem::take(&mut self.unrequested) {
            return;
        }
        let incomplete = std::mem::take(&mut self.wanted);
        for place in incomplete.into_iter().chain(self.queue.places()) {
            self.ask_in_turn(place, next_fetch, outputs);
        }
    }

    fn begin_fetch(
        &mut self,
        place: Destination,
        guess: Guess,
        renews: Option<Handle>,
        next_fetch: &mut u64,
        outputs: &mut Outputs,
    ) -> Option<FetchId> {
        if !self.fetches.has_room(renews.is_some()) {
            return None;
        }
        *next_fetch += 1;
        let id = FetchId(*next_fetch);
        self.fetches.push(id, place, guess, renews);
        outputs.push_back(Output::Fetch(id, self.subject, request_for(place)));
        Some(id)
    }

    /// Reports whether a request is for a destination whose packets must travel in a sealed tunnel.
    pub fn is_sealed(&self, id: FetchId) -> bool {
        self.fetches.get(id).is_some_and(|fetch| self.receivers.are_sealed(&fetch.place))
    }

    pub fn awaits(&self, id: FetchId) -> bool {
        self.fetches.get(id).is_some()
    }

    pub fn has_grant_for(&self, place: &Destination) -> bool {
        self.grants.has_for(place)
    }

    /// Takes the grant from the answer to a request.
    ///
    /// # Errors
    ///
    /// Returns the reason why the agent can't use the grant. The agent then repeats the request later, as it does after
    /// a failure.
    pub fn granted(
        &mut self,
        now: Duration,
        unix: u64,
        id: FetchId,
        answer: &Grant,
        outputs: &mut Outputs,
    ) -> Result<(), Unusable> {
        let Some(fetch) = self.fetches.get(id) else { return Ok(()) };
        let held = match HeldGrant::from_answer(answer, &fetch.place, unix, now) {
            Ok(held) => held,
            Err(why) => {
                self.failed(now, id);
                return Err(why);
            }
        };
        let Some(fetch) = self.take_fetch(id) else { return Ok(()) };
        self.receivers.set_width(&fetch.place, (held.prefix.prefix_len(), held.service.is_some()));
        if self.plain.remove(&fetch.place).is_some() {
            outputs.push_back(Output::Remove(self.subject.slot(&fetch.place)));
        }
        let old = fetch.renews.and_then(|handle| self.grants.remove(handle));
        self.insert(held, old, outputs);
        for place in self.queue.places() {
            self.serve(unix, &place, outputs);
        }
        Ok(())
    }

    /// Adds a grant, and gives it the kernel entries of the grant that it replaces.
    fn insert(&mut self, mut held: HeldGrant, old: Option<HeldGrant>, outputs: &mut Outputs) {
        let handle = held.handle();
        // If an authority uses a handle again, the new grant replaces the old one.
        self.revoked(handle.0, outputs);
        held.used = old.as_ref().map_or(0, |old| old.used);
        let inherits = |place: &Destination| held.covers(place) && !held.is_single();
        let (kept, gone) = old.iter().flat_map(|old| &old.places).partition::<Vec<_>, _>(|place| inherits(place));
        let entry = held.entry(self.skew);
        outputs.extend(gone.iter().map(|place| Output::Remove(self.subject.slot(place))));
        outputs.extend(kept.iter().map(|place| Output::Write(self.subject.slot(place), entry)));
        if let Some(first) = self.grants.insert(held) {
            self.revoked(first.0, outputs);
        }
        for place in kept {
            self.place(handle, place, outputs);
        }
    }

    pub fn denied(&mut self, unix: u64, id: FetchId, why: String, outputs: &mut Outputs) {
        let Some(fetch) = self.take_fetch(id) else { return };
        if let Some(handle) = fetch.renews {
            self.revoked(handle.0, outputs);
        }
        self.go_plain(fetch.place, unix + DENIAL, Why::Policy(shortened(&why)), outputs);
    }

    pub fn failed(&mut self, now: Duration, id: FetchId) {
        self.fetches.failed(now, id);
    }

    fn take_fetch(&mut self, id: FetchId) -> Option<Fetch> {
        self.unrequested = true;
        self.fetches.take(id)
    }

    /// Handles a hint that the authority protects these networks: requests the list of receivers again, unless each
    /// network overlaps a receiver already. Requests the list at most once per [`HINT_EVERY`].
    pub fn hinted(&mut self, now: Duration, networks: &[IpNet], outputs: &mut Outputs) {
        let is_early = self.hinted.is_some_and(|last| now < last + HINT_EVERY);
        // A record may also name a network that contains the person's receiver.
        if !is_early && !networks.iter().all(|network| self.receivers.overlap(network)) {
            self.hinted = Some(now);
            self.reload_soon(now, outputs);
        }
    }

    pub fn reload_later(&mut self, now: Duration) {
        self.reload = Some(now + pause(self.reload_attempts, PAUSE_IDLE));
        self.reload_attempts += 1;
    }

    /// Requests the list of receivers again, but at most once a second, no matter how often the authority sends events.
    pub fn reload_soon(&mut self, now: Duration, outputs: &mut Outputs) {
        match self.reloaded {
            Some(last) if now < last + RELOAD_EVERY => self.reload = Some(last + RELOAD_EVERY),
            _ => {
                self.reloaded = Some(now);
                outputs.push_back(Output::FetchDestinations(self.subject));
            }
        }
    }

    /// Makes all failed requests due now, at most once a second. The authority can cause a call of this method as often
    /// as it likes.
    pub fn retry_at_once(&mut self, now: Duration) {
        if self.hurried.is_none_or(|last| now >= last + RELOAD_EVERY) {
            self.hurried = Some(now);
            self.fetches.retry_at_once(now);
        }
    }

    pub fn set_receivers(&mut self, receivers: Vec<Receiver>, sealed: BTreeSet<String>, outputs: &mut Outputs) {
        (self.confirmed, self.reload_attempts, self.unrequested) = (true, 0, true);
        if self.receivers() != receivers || *self.receivers.sealed() != sealed {
            self.receivers = Receivers::new(receivers, sealed);
        }
        // The policy may have changed: the agent asks again for destinations that it denied.
        let shut: BTreeSet<_> = self.plain.keys().filter(|place| self.receivers.are_sealed(place)).copied().collect();
        self.keep_plain(|place, _, why| *why == Why::OwnRule && !shut.contains(place), outputs);
        let gone: Vec<_> = self.grants.places().filter(|place| self.receivers.of(place).is_none()).copied().collect();
        self.remove_places(&gone, outputs);
    }

    fn keep_plain(&mut self, keep: impl Fn(&Destination, u64, &Why) -> bool, outputs: &mut Outputs) {
        let subject = self.subject;
        self.plain.retain(|place, (until, why)| {
            let keep = keep(place, *until, why);
            if !keep {
                outputs.push_back(Output::Remove(subject.slot(place)));
            }
            keep
        });
    }

    fn remove_places(&mut self, places: &[Destination], outputs: &mut Outputs) {
        for place in places {
            self.grants.unplace(place);
            outputs.push_back(Output::Remove(self.subject.slot(place)));
        }
    }

    /// Takes over an entry that an earlier process wrote into the kernel.
    pub fn adopt(&mut self, mut held: HeldGrant, place: Destination, entry: &GrantEntry, outputs: &mut Outputs) {
        if entry.skew != self.skew {
            outputs.push_back(Output::Write(self.subject.slot(&place), held.entry(self.skew)));
        }
        let handle = held.handle();
        match self.grants.get_mut(handle) {
            Some(other) => other.used = other.used.max(held.used),
            None => {
                held.receiver = self.receivers.of(&place).map(|receiver| receiver.name.clone()).unwrap_or_default();
                if let Some(first) = self.grants.insert(held) {
                    self.revoked(first.0, outputs);
                }
            }
        }
        self.place(handle, place, outputs);
    }

    /// Drops the grants that `gone` accepts.
    fn drop_grants(&mut self, gone: impl Fn(&HeldGrant) -> bool, outputs: &mut Outputs) {
        let gone: Vec<_> = self.grants.iter().filter(|held| gone(held)).map(HeldGrant::handle).collect();
        gone.into_iter().for_each(|handle| self.revoked(handle.0, outputs));
    }

    pub fn revoked(&mut self, handle: u64, outputs: &mut Outputs) {
        if let Some(held) = self.grants.remove(Handle(handle)) {
            outputs.extend(held.places.iter().map(|place| Output::Remove(self.subject.slot(place))));
        }
    }

    /// Removes kernel entries that the changed rules no longer allow.
    pub fn reevaluate(&mut self, allows: impl Fn(&Destination) -> bool, outputs: &mut Outputs) {
        // The authority may have denied a grant because no rule here consented: the agent asks again.
        self.keep_plain(|place, _, why| *why == Why::OwnRule && !allows(place), outputs);
        let gone: Vec<_> = self.grants.places().filter(|place| !allows(place)).copied().collect();
        self.remove_places(&gone, outputs);
    }

    pub fn tick(
        &mut self,
        now: Duration,
        next_fetch: &mut u64,
        used: &impl Fn(&GrantSlot) -> Option<Used>,
        outputs: &mut Outputs,
    ) {
        self.queue.expire(now);
        if self.swept.is_none_or(|last| now >= last + SWEEP_EVERY) {
            self.swept = Some(now);
            let unix = self.unix(now);
            self.keep_plain(|_, until, _| until > unix, outputs);
            self.note_spent(used);
            self.drop_grants(|held| !held.is_good(unix), outputs);
            self.renew(now, next_fetch, used, outputs);
        }
        self.retry(now, outputs);
        self.ask_waiting(next_fetch, outputs);
        if self.reload.is_some_and(|at| at <= now) {
            (self.reload, self.reloaded) = (None, Some(now));
            outputs.push_back(Output::FetchDestinations(self.subject));
        }
    }

    /// Records how many nonces of pairs were used. The kernel counts them in the entry that was used last.
    fn note_spent(&mut self, used: &impl Fn(&GrantSlot) -> Option<Used>) {
        for held in self.grants.iter_mut().filter(|held| held.is_pair()) {
            let spent = held.places.iter().filter_map(|place| Some(used(&self.subject.slot(place))?.spent)).max();
            held.spent = held.spent.max(spent.unwrap_or_default());
        }
    }

    /// Requests successors of grants that are in use and end soon, or have few nonces left.
    fn renew(
        &mut self,
        now: Duration,
        next_fetch: &mut u64,
        used: &impl Fn(&GrantSlot) -> Option<Used>,
        outputs: &mut Outputs,
    ) {
        let mut due = Vec::new();
        for held in self.grants.iter_mut().filter(|held| held.is_due(now)) {
            let handle = held.handle();
            if self.fetches.renews(handle) {
                continue;
            }
            let subject = self.subject;
            let latest = held.places.iter().filter_map(|place| Some((used(&subject.slot(place))?.last, *place))).max();
            held.used = held.used.max(latest.map_or(0, |(used, _)| used));
            match latest.filter(|(used, _)| u64::from(*used) >= held.issued) {
                Some((_, place)) => due.push((handle, place)),
                None => held.renew_at = now + IDLE_LOOK,
            }
        }
        for (handle, place) in due {
            let guess = self.guess(&place);
            if self.begin_fetch(place, guess, Some(handle), next_fetch, outputs).is_none() {
                return;
            }
        }
    }

    /// Repeats unanswered requests that still matter.
    fn retry(&mut self, now: Duration, outputs: &mut Outputs) {
        if self.fetches.timeout().is_none_or(|at| at > now) {
            return;
        }
        let waiting: BTreeSet<_> = self.queue.places().iter().map(|place| self.guess(place)).collect();
        let Self { fetches, grants, queue, .. } = self;
        let before = fetches.len();
        let due = fetches.due(now, |fetch| match fetch.renews {
            Some(handle) => grants.get(handle).is_some(),
            None => queue.waits_for(&fetch.place) || waiting.contains(&fetch.guess),
        });
        self.unrequested |= self.fetches.len() < before;
        let subject = self.subject;
        outputs.extend(due.into_iter().map(|(id, place)| Output::Fetch(id, subject, request_for(place))));
    }

    pub fn timeout(&self) -> Option<Duration> {
        self.fetches.timeout().into_iter().chain(self.reload).min()
    }

    pub fn views(&self, used: impl Fn(&GrantSlot) -> Option<Used>) -> Vec<GrantView> {
        let last = |place: &Destination| Some(used(&self.subject.slot(place))?.last);
        let latest = |held: &HeldGrant| held.places.iter().filter_map(last).max();
        let views = self.grants.iter().map(|held| {
            let mut view = GrantView::of(held);
            view.used = view.used.max(latest(held).unwrap_or_default());
            view
        });
        views.collect()
    }
}

/// Returns the request for a destination's grant. The field `consented` gets its value when the request is sent.
fn request_for(to: Destination) -> GrantRequest {
    GrantRequest { to, consented: false }
}
