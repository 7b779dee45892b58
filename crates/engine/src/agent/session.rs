//! One person's session: its grants, open requests and waiting frames.

use super::consent::Consent;
use super::frame::{Frame, Sender};
use super::insertion::Used;
use super::known::{Known, Unusable, plain_entry};
use super::queue::Queue;
use super::view::GrantView;
use super::{Clock, FetchId, Login, Output, Subject};
use crate::model::{Grant, GrantRequest, Receiver, Target};
use ipnet::IpNet;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::map::{GrantEntry, GrantSlot};
use wire::{Destination, Handle};

/// Seconds for which a denial by policy holds before the agent asks the authority again.
const DENIAL: u64 = 10;
/// Seconds for which packets to a destination outside the person's receivers go without identity.
const FOREIGN: u64 = 60;
/// Seconds for which a denial by the person's own rule holds; a change of rules ends it at once.
const OWN_RULE: u64 = 3600;
/// Maximum number of grants, and of destinations whose packets go without identity.
const GRANTS_MAX: usize = 4096;
/// Maximum number of open requests, so that a scan of all protected destinations does not flood the authority.
const FETCHES_MAX: usize = 64;
/// The first pause after a failure.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest pause while frames wait (`PAUSE_WAITING`), and otherwise (`PAUSE_IDLE`).
const PAUSE_WAITING: Duration = Duration::from_secs(4);
const PAUSE_IDLE: Duration = Duration::from_secs(30);
/// Minimum time between two corrections of the clock, because each rewrites every entry.
const CLOCK_HOLDS: Duration = Duration::from_secs(5);
/// Minimum time between two requests for the destinations.
const RELOAD_EVERY: Duration = Duration::from_secs(1);
/// Minimum time between two requests caused by hints, so that an attacker who forges hints can't cause a flood.
const HINT_EVERY: Duration = Duration::from_secs(60);
/// Time between two checks of an idle grant that is about to end.
const IDLE_LOOK: Duration = Duration::from_secs(5);

type Outputs = VecDeque<Output>;

/// Reason why packets to a place go without identity.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    OwnRule,
    Foreign,
    Policy(String),
}

/// A request to the authority.
struct Fetch {
    id: FetchId,
    place: Destination,
    renews: Option<Handle>,
    attempts: u32,
    /// When to ask again; `None` while the answer is awaited.
    retry: Option<Duration>,
}

/// Outcome for a first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The user is not logged in.
    NotLoggedIn,
    /// The destination is none of the person's receivers.
    NotProtected,
    /// The person's own rule denies it, or the default if there is no rule.
    Withheld(Option<Target>),
    /// The policy denies it, with the reason.
    Denied(String),
    /// The packet gets a token of this grant.
    Granted(Box<GrantView>),
    /// The kernel would hold the packet, and the agent would request its grant.
    Missing,
    /// The agent has asked the authority.
    Asked(FetchId),
}

pub(super) struct Session {
    pub subject: Subject,
    /// End of the session, by its authority's clock.
    pub expires: u64,
    /// The authority's clock.
    clock: Clock,
    /// Seconds by which it is ahead of this machine's clock, as in the kernel's entries.
    pub skew: i32,
    corrected: Option<Duration>,
    pub receivers: Vec<Receiver>,
    /// Whether the receivers come from the authority's answer, to this session or to an earlier process.
    heard: bool,
    known: Vec<Known>,
    plain: BTreeMap<Destination, (u64, Why)>,
    fetches: Vec<Fetch>,
    queue: Queue,
    /// Places of packets that arrived incomplete.
    wanted: Vec<Destination>,
    /// Prefix length of the latest grant for each receiver, and whether it was for one service.
    widths: BTreeMap<String, (u8, bool)>,
    reload: Option<Duration>,
    reloaded: Option<Duration>,
    reload_attempts: u32,
    hinted: Option<Duration>,
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
            heard: !login.receivers.is_empty(),
            receivers: login.receivers,
            known: Vec::new(),
            plain: BTreeMap::new(),
            fetches: Vec::new(),
            queue: Queue::default(),
            wanted: Vec::new(),
            widths: BTreeMap::new(),
            reload: None,
            reloaded: None,
            reload_attempts: 0,
            hinted: None,
        }
    }

    /// Returns Unix seconds by the authority's clock.
    pub fn unix(&self, now: Duration) -> u64 {
        self.clock.unix(now)
    }

    /// Takes the time that the authority reported. Returns whether that changed the kernel's entries.
    pub fn told_time(
        &mut self,
        unix: u64,
        (asked, answered): (Duration, Duration),
        local: &Clock,
        outputs: &mut Outputs,
    ) -> bool {
        if self.corrected.is_some_and(|at| answered < at + CLOCK_HOLDS) || !self.clock.told(unix, asked, answered) {
            return false;
        }
        self.corrected = Some(answered);
        self.skew = self.clock.skew(local);
        for known in &self.known {
            let entries = known.places.iter().map(|place| (self.subject.slot(place), known.entry(self.skew)));
            outputs.extend(entries.map(|(slot, entry)| Output::Write(slot, entry)));
        }
        for (place, (until, _)) in &self.plain {
            outputs.push_back(Output::Write(self.subject.slot(place), plain_entry(*until, self.skew)));
        }
        true
    }

    fn receiver_of(&self, place: &Destination) -> Option<&Receiver> {
        let covering = self.receivers.iter().filter(|receiver| {
            receiver.prefix.contains(&place.address)
                && receiver.services.iter().any(|service| service.covers(place.protocol, place.port))
        });
        covering.max_by_key(|receiver| receiver.prefix.prefix_len())
    }

    fn is_foreign(&self, place: &Destination) -> bool {
        self.heard && self.receiver_of(place).is_none()
    }

    fn best(&self, unix: u64, place: &Destination, sender: Option<Sender>) -> Option<usize> {
        let good = self.known.iter().enumerate();
        let good = good.filter(|(_, known)| known.is_good(unix) && known.covers(place) && known.serves(place, sender));
        good.max_by_key(|(_, known)| known.expires).map(|(index, _)| index)
    }

    pub fn held(
        &mut self,
        now: Duration,
        unix: u64,
        place: Destination,
        frame: Option<Frame>,
        consent: (Consent, Option<Target>),
        outputs: &mut Outputs,
    ) {
        if consent.0 == Consent::Deny {
            self.go_plain(place, unix + OWN_RULE, Why::OwnRule, outputs);
        } else if self.is_foreign(&place) {
            self.go_plain(place, unix + FOREIGN, Why::Foreign, outputs);
        } else if let Some((until, why)) = self.plain.get(&place).filter(|(until, _)| *until > unix + 1).cloned() {
            self.go_plain(place, until, why, outputs);
        } else {
            match frame {
                Some(frame) => self.queue.push(place, frame, now),
                None if self.wanted.len() < FETCHES_MAX && self.best(unix, &place, None).is_none() => {
                    self.wanted.push(place);
                }
                None => {}
            }
            return self.serve(unix, outputs);
        }
        if let Some(frame) = frame {
            outputs.push_back(Output::Send(self.subject, frame));
        }
    }

    /// Sends every waiting frame that has a grant.
    fn serve(&mut self, unix: u64, outputs: &mut Outputs) {
        let skew = self.skew;
        let served = |session: &Self, place: &Destination, frame: &Frame| session.best(unix, place, frame.sender());
        let mut queue = std::mem::take(&mut self.queue);
        while let Some((place, frame)) = queue.take(|place, frame| served(self, place, frame).is_some()) {
            let sender = frame.sender();
            let Some(known) = self.best(unix, &place, sender).and_then(|index| self.known.get_mut(index)) else {
                break;
            };
            outputs.push_back(Output::Write(self.subject.slot(&place), known.entry(skew)));
            outputs.push_back(Output::Send(self.subject, frame));
            if known.is_single() {
                // The kernel would use the grant for the next flow, too.
                outputs.push_back(Output::Remove(self.subject.slot(&place)));
                known.flow = sender.map(|sender| (place, sender));
            } else {
                known.places.insert(place);
            }
        }
        self.queue = queue;
    }

    /// Lets packets go without identity, the waiting frames first.
    fn go_plain(&mut self, place: Destination, until: u64, why: Why, outputs: &mut Outputs) {
        while self.plain.len() >= GRANTS_MAX {
            if let Some((place, _)) = self.plain.pop_first() {
                outputs.push_back(Output::Remove(self.subject.slot(&place)));
            }
        }
        self.plain.insert(place, (until, why));
        outputs.push_back(Output::Write(self.subject.slot(&place), plain_entry(until, self.skew)));
        while let Some((_, frame)) = self.queue.take(|waiting, _| *waiting == place) {
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
        match self.best(unix, place, None).and_then(|index| self.known.get(index)) {
            Some(known) => Standing::Granted(Box::new(GrantView::of(known))),
            None => Standing::Missing,
        }
    }

    /// Guesses what a grant for this place would cover, from the latest one for its receiver.
    fn guess(&self, place: &Destination) -> (IpNet, Option<(u8, u16)>) {
        let width = self.receiver_of(place).and_then(|receiver| self.widths.get(&receiver.name));
        let (length, fixed) = width.copied().unwrap_or((128, true));
        let length = length.min(if place.address.is_ipv4() { 32 } else { 128 });
        let prefix = IpNet::new(place.address, length).unwrap_or(place.address.into()).trunc();
        (prefix, fixed.then_some((place.protocol, place.port)))
    }

    /// Returns the open request whose answer is likely to cover this place.
    pub fn fetch_for(&self, place: &Destination) -> Option<FetchId> {
        let guess = self.guess(place);
        self.fetches.iter().find(|fetch| fetch.place == *place || self.guess(&fetch.place) == guess).map(|f| f.id)
    }

    /// Returns a place that packets wait for and that no request covers.
    pub fn unasked(&mut self) -> Option<Destination> {
        if self.fetches.len() >= FETCHES_MAX {
            return None;
        }
        while let Some(place) = self.wanted.pop() {
            if self.fetch_for(&place).is_none() {
                return Some(place);
            }
        }
        self.queue.places().into_iter().find(|place| self.fetch_for(place).is_none())
    }

    pub fn begin_fetch(&mut self, id: FetchId, place: Destination, outputs: &mut Outputs) {
        self.ask(id, place, None, outputs);
    }

    fn ask(&mut self, id: FetchId, place: Destination, renews: Option<Handle>, outputs: &mut Outputs) {
        self.fetches.push(Fetch { id, place, renews, attempts: 0, retry: None });
        outputs.push_back(Output::Fetch(id, self.subject, request_for(place)));
    }

    pub fn awaits(&self, id: FetchId) -> bool {
        self.fetches.iter().any(|fetch| fetch.id == id)
    }

    fn take_fetch(&mut self, id: FetchId) -> Option<Fetch> {
        let index = self.fetches.iter().position(|fetch| fetch.id == id)?;
        Some(self.fetches.remove(index))
    }

    /// Takes the grant from an answer. The error says why the grant is unusable; it counts as a failure.
    pub fn granted(
        &mut self,
        now: Duration,
        unix: u64,
        id: FetchId,
        answer: &Grant,
        outputs: &mut Outputs,
    ) -> Result<(), Unusable> {
        let Some(fetch) = self.take_fetch(id) else { return Ok(()) };
        let mut known = match Known::from_answer(answer, &fetch.place, unix, now) {
            Ok(known) => known,
            Err(why) => {
                self.fetches.push(fetch);
                self.failed(now, id);
                return Err(why);
            }
        };
        self.widths.insert(known.receiver.clone(), (known.prefix.prefix_len(), known.service.is_some()));
        self.plain.remove(&fetch.place);
        if let Some(old) = fetch.renews.and_then(|handle| self.take_known(handle)) {
            known.used = old.used;
            for place in &old.places {
                let slot = self.subject.slot(place);
                if known.covers(place) && !known.is_single() {
                    known.places.insert(*place);
                    outputs.push_back(Output::Write(slot, known.entry(self.skew)));
                } else {
                    outputs.push_back(Output::Remove(slot));
                }
            }
        }
        if self.known.len() >= GRANTS_MAX {
            let oldest = self.known.iter().min_by_key(|known| known.expires).map(|known| known.handle());
            oldest.into_iter().for_each(|handle| self.revoked(handle.0, outputs));
        }
        self.known.push(known);
        self.serve(unix, outputs);
        Ok(())
    }

    pub fn denied(&mut self, unix: u64, id: FetchId, why: String, outputs: &mut Outputs) {
        let Some(fetch) = self.take_fetch(id) else { return };
        if let Some(handle) = fetch.renews {
            self.revoked(handle.0, outputs);
        }
        self.go_plain(fetch.place, unix + DENIAL, Why::Policy(why), outputs);
    }

    pub fn failed(&mut self, now: Duration, id: FetchId) {
        if let Some(fetch) = self.fetches.iter_mut().find(|fetch| fetch.id == id) {
            let longest = if fetch.renews.is_some() { PAUSE_IDLE } else { PAUSE_WAITING };
            fetch.retry = Some(now + pause(fetch.attempts, longest));
            fetch.attempts += 1;
        }
    }

    /// Takes a hint that the authority protects these networks. Asks the authority unless it has already said so
    /// itself.
    pub fn hinted(&mut self, now: Duration, networks: &[IpNet], outputs: &mut Outputs) {
        let is_known = |network: &IpNet| {
            // A record may name a network that contains the person's receiver.
            self.receivers.iter().any(|own| own.prefix.contains(network) || network.contains(&own.prefix))
        };
        let is_early = self.hinted.is_some_and(|last| now < last + HINT_EVERY);
        if !is_early && !networks.iter().all(is_known) {
            self.hinted = Some(now);
            self.reload_soon(now, outputs);
        }
    }

    pub fn reload_later(&mut self, now: Duration) {
        self.reload = Some(now + pause(self.reload_attempts, PAUSE_IDLE));
        self.reload_attempts += 1;
    }

    /// Requests the destinations again, at most once a second however often the authority sends events.
    pub fn reload_soon(&mut self, now: Duration, outputs: &mut Outputs) {
        match self.reloaded {
            Some(last) if now < last + RELOAD_EVERY => self.reload = Some(last + RELOAD_EVERY),
            _ => {
                self.reloaded = Some(now);
                outputs.push_back(Output::FetchDestinations(self.subject));
            }
        }
    }

    pub fn retry_at_once(&mut self, now: Duration) {
        for fetch in &mut self.fetches {
            fetch.retry = fetch.retry.map(|retry| retry.min(now));
        }
    }

    pub fn set_receivers(&mut self, receivers: Vec<Receiver>, outputs: &mut Outputs) {
        (self.receivers, self.heard) = (receivers, true);
        self.reload_attempts = 0;
        let subject = self.subject;
        // The policy may have changed: the agent asks again for destinations that it denied.
        self.plain.retain(|place, (_, why)| {
            let keep = *why == Why::OwnRule;
            if !keep {
                outputs.push_back(Output::Remove(subject.slot(place)));
            }
            keep
        });
        let mut all = std::mem::take(&mut self.known);
        for known in &mut all {
            known.places.retain(|place| {
                let keep = self.receiver_of(place).is_some();
                if !keep {
                    outputs.push_back(Output::Remove(subject.slot(place)));
                }
                keep
            });
        }
        self.known = all;
    }

    /// Takes over an entry that an earlier process wrote into the kernel.
    pub fn adopt(&mut self, mut known: Known, place: Destination, entry: &GrantEntry, outputs: &mut Outputs) {
        if entry.skew != self.skew {
            outputs.push_back(Output::Write(self.subject.slot(&place), known.entry(self.skew)));
        }
        let handle = known.handle();
        match self.known.iter_mut().find(|other| other.handle() == handle) {
            Some(other) => {
                other.used = other.used.max(known.used);
                other.places.insert(place);
            }
            None => {
                known.receiver = self.receiver_of(&place).map(|receiver| receiver.name.clone()).unwrap_or_default();
                known.places.insert(place);
                self.known.push(known);
            }
        }
    }

    fn take_known(&mut self, handle: Handle) -> Option<Known> {
        let index = self.known.iter().position(|known| known.handle() == handle)?;
        Some(self.known.remove(index))
    }

    /// Drops the grants that `gone` accepts.
    fn drop_known(&mut self, gone: impl Fn(&Known) -> bool, outputs: &mut Outputs) {
        let subject = self.subject;
        self.known.retain(|known| {
            let gone = gone(known);
            if gone {
                outputs.extend(known.places.iter().map(|place| Output::Remove(subject.slot(place))));
            }
            !gone
        });
    }

    pub fn revoked(&mut self, handle: u64, outputs: &mut Outputs) {
        self.drop_known(|known| known.handle().0 == handle, outputs);
    }

    pub fn drop_bound(&mut self, outputs: &mut Outputs) {
        self.drop_known(Known::is_bound, outputs);
    }

    pub fn forget_all(&mut self, outputs: &mut Outputs) {
        self.drop_known(|_| true, outputs);
        let plain = std::mem::take(&mut self.plain);
        outputs.extend(plain.keys().map(|place| Output::Remove(self.subject.slot(place))));
    }

    /// Removes kernel entries that the changed rules no longer allow.
    pub fn judge_anew(&mut self, allows: impl Fn(&Destination) -> bool, outputs: &mut Outputs) {
        let subject = self.subject;
        let mut remove = |place: &Destination| outputs.push_back(Output::Remove(subject.slot(place)));
        self.plain.retain(|place, (_, why)| {
            // The authority may have denied a grant because no rule here consented: the agent asks again.
            let keep = *why == Why::OwnRule && !allows(place);
            if !keep {
                remove(place);
            }
            keep
        });
        for known in &mut self.known {
            known.places.retain(|place| {
                let keep = allows(place);
                if !keep {
                    remove(place);
                }
                keep
            });
        }
    }

    pub fn tick(
        &mut self,
        now: Duration,
        next_fetch: &mut u64,
        used: &impl Fn(&GrantSlot) -> Option<Used>,
        outputs: &mut Outputs,
    ) {
        let unix = self.unix(now);
        self.queue.expire(now);
        self.plain.retain(|_, (until, _)| *until > unix);
        self.note_spent(used);
        self.drop_known(|known| !known.is_good(unix), outputs);
        self.renew(now, next_fetch, used, outputs);
        self.retry(now, outputs);
        if self.reload.is_some_and(|at| at <= now) {
            (self.reload, self.reloaded) = (None, Some(now));
            outputs.push_back(Output::FetchDestinations(self.subject));
        }
    }

    /// Records how many nonces of pairs were used. The kernel counts them in the entry that was used last.
    fn note_spent(&mut self, used: &impl Fn(&GrantSlot) -> Option<Used>) {
        for known in self.known.iter_mut().filter(|known| known.is_pair()) {
            let spent = known.places.iter().filter_map(|place| Some(used(&self.subject.slot(place))?.spent)).max();
            known.spent = known.spent.max(spent.unwrap_or_default());
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
        for known in self.known.iter_mut().filter(|known| known.is_due(now)) {
            let handle = known.handle();
            if self.fetches.iter().any(|fetch| fetch.renews == Some(handle)) {
                continue;
            }
            let subject = self.subject;
            let latest = known.places.iter().filter_map(|place| Some((used(&subject.slot(place))?.last, *place))).max();
            known.used = known.used.max(latest.map_or(0, |(used, _)| used));
            match latest.filter(|(used, _)| u64::from(*used) >= known.issued) {
                Some((_, place)) => due.push((handle, place)),
                None => known.renew_at = now + IDLE_LOOK,
            }
        }
        for (handle, place) in due {
            *next_fetch += 1;
            self.ask(FetchId(*next_fetch), place, Some(handle), outputs);
        }
    }

    /// Repeats unanswered requests that still matter.
    fn retry(&mut self, now: Duration, outputs: &mut Outputs) {
        let waiting: Vec<_> = self.queue.places().iter().map(|place| self.guess(place)).collect();
        let mut fetches = std::mem::take(&mut self.fetches);
        fetches.retain_mut(|fetch| {
            if fetch.retry.is_none_or(|at| at > now) {
                return true;
            }
            let of_interest = match fetch.renews {
                Some(handle) => self.known.iter().any(|known| known.handle() == handle),
                None => waiting.contains(&self.guess(&fetch.place)),
            };
            if of_interest {
                fetch.retry = None;
                outputs.push_back(Output::Fetch(fetch.id, self.subject, request_for(fetch.place)));
            }
            of_interest
        });
        self.fetches = fetches;
    }

    pub fn timeout(&self) -> Option<Duration> {
        self.fetches.iter().filter_map(|fetch| fetch.retry).chain(self.reload).min()
    }

    pub fn views(&self, used: impl Fn(&GrantSlot) -> Option<Used>) -> Vec<GrantView> {
        let last = |place: &Destination| Some(used(&self.subject.slot(place))?.last);
        let latest = |known: &Known| known.places.iter().filter_map(last).max();
        let views = self.known.iter().map(|known| {
            let mut view = GrantView::of(known);
            view.used = view.used.max(latest(known).unwrap_or_default());
            view
        });
        views.collect()
    }
}

/// Returns the request for a destination's grant; whether the person has consented is set when it is sent.
fn request_for(to: Destination) -> GrantRequest {
    GrantRequest { to, consented: false }
}

fn pause(attempts: u32, longest: Duration) -> Duration {
    PAUSE.saturating_mul(1 << attempts.min(10)).min(longest)
}
