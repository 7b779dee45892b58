//! One person's session: grants held, questions open, frames waiting.

use super::consent::{Consent, Target};
use super::frame::{Frame, Sender};
use super::known::{Known, Unusable, plain_entry};
use super::queue::Queue;
use super::view::GrantView;
use super::{Clock, FetchId, Login, Output, Place, Subject};
use crate::api::{self, Receiver};
use crate::insertion::Used;
use ipnet::IpNet;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::Handle;
use wire::map::{GrantEntry, GrantSlot};

/// How long a denial by policy holds before the authority is asked again, seconds.
const DENIAL: u64 = 10;
/// The same for what is none of this person's receivers.
const FOREIGN: u64 = 60;
/// The same for a person's own rule; a change of rules ends it at once.
const OWN_RULE: u64 = 3600;
/// The most grants that are held, and the most destinations that go without identity.
const GRANTS_MAX: usize = 4096;
/// The most questions that are open at a time: a scan of everything protected must not become a flood of the authority.
const FETCHES_MAX: usize = 64;
/// The first pause after a failure.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest pause while somebody waits, and while nobody does.
const PAUSE_WAITING: Duration = Duration::from_secs(4);
const PAUSE_IDLE: Duration = Duration::from_secs(30);
/// How long a correction of the clock holds at least: each writes every entry anew.
const CLOCK_HOLDS: Duration = Duration::from_secs(5);
/// How often destinations are asked for at most.
const RELOAD_EVERY: Duration = Duration::from_secs(1);
/// How often a hint makes the agent ask: whoever forges hints must not have it ask all the time.
const HINT_EVERY: Duration = Duration::from_secs(60);
/// How often an idle grant that is about to end is looked at.
const IDLE_LOOK: Duration = Duration::from_secs(5);

type Outputs = VecDeque<Output>;

/// Why packets to a place go without identity.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    OwnRule,
    Foreign,
    Policy(String),
}

/// A question to the authority.
struct Fetch {
    id: FetchId,
    place: Place,
    renews: Option<Handle>,
    attempts: u32,
    /// When to ask again; none while the answer is awaited.
    retry: Option<Duration>,
}

/// What would happen to a first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody is logged in.
    NotLoggedIn,
    /// It is none of this person's receivers.
    NotProtected,
    /// The person's own rule, or the default where there is none, says no.
    Withheld(Option<Target>),
    /// The policy says no, and why.
    Denied(String),
    /// It gets a token of this grant.
    Granted(Box<GrantView>),
    /// It would be held, and its grant asked for.
    Missing,
    /// The authority is being asked.
    Asked(FetchId),
}

pub(super) struct Session {
    pub subject: Subject,
    /// When it ends, by its authority's clock.
    pub expires: u64,
    /// The authority's clock.
    clock: Clock,
    /// How many seconds it is ahead of this machine's, as the kernel's entries have it.
    pub skew: i32,
    corrected: Option<Duration>,
    pub receivers: Vec<Receiver>,
    /// The receivers are the authority's answer, of this session or an earlier process's.
    heard: bool,
    known: Vec<Known>,
    plain: BTreeMap<Place, (u64, Why)>,
    fetches: Vec<Fetch>,
    queue: Queue,
    /// Places of packets that did not come through whole.
    wanted: Vec<Place>,
    /// How wide the latest grant for each receiver was.
    widths: BTreeMap<String, (u8, bool)>,
    reload: Option<Duration>,
    reloaded: Option<Duration>,
    reload_attempts: u32,
    hinted: Option<Duration>,
}

impl Session {
    /// A session whose clock is this machine's `local` one until its authority tells the time.
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

    /// Unix seconds by the authority's clock.
    pub fn unix(&self, now: Duration) -> u64 {
        self.clock.unix(now)
    }

    /// The authority told its time. Says whether that changed what the kernel adds.
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
            let entries = known.places.iter().map(|place| (place.slot(self.subject), known.entry(self.skew)));
            outputs.extend(entries.map(|(slot, entry)| Output::Write(slot, entry)));
        }
        for (place, (until, _)) in &self.plain {
            outputs.push_back(Output::Write(place.slot(self.subject), plain_entry(*until, self.skew)));
        }
        true
    }

    fn receiver_of(&self, place: &Place) -> Option<&Receiver> {
        let covering = self.receivers.iter().filter(|receiver| {
            receiver.prefix.contains(&place.address)
                && receiver.services.iter().any(|service| service.covers(place.protocol, place.port))
        });
        covering.max_by_key(|receiver| receiver.prefix.prefix_len())
    }

    fn is_foreign(&self, place: &Place) -> bool {
        self.heard && self.receiver_of(place).is_none()
    }

    fn best(&self, unix: u64, place: &Place, sender: Option<Sender>) -> Option<usize> {
        let good = self.known.iter().enumerate();
        let good = good.filter(|(_, known)| known.is_good(unix) && known.covers(place) && known.serves(place, sender));
        good.max_by_key(|(_, known)| known.expires).map(|(index, _)| index)
    }

    pub fn held(
        &mut self,
        now: Duration,
        unix: u64,
        place: Place,
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
        let served = |session: &Self, place: &Place, frame: &Frame| session.best(unix, place, frame.sender());
        let mut queue = std::mem::take(&mut self.queue);
        while let Some((place, frame)) = queue.take(|place, frame| served(self, place, frame).is_some()) {
            let sender = frame.sender();
            let Some(known) = self.best(unix, &place, sender).and_then(|index| self.known.get_mut(index)) else {
                break;
            };
            outputs.push_back(Output::Write(place.slot(self.subject), known.entry(skew)));
            outputs.push_back(Output::Send(self.subject, frame));
            if known.is_single() {
                // The kernel would use it for the next flow, too.
                outputs.push_back(Output::Remove(place.slot(self.subject)));
                known.flow = sender.map(|sender| (place, sender));
            } else {
                known.places.insert(place);
            }
        }
        self.queue = queue;
    }

    /// Lets packets go without identity, those that wait first.
    fn go_plain(&mut self, place: Place, until: u64, why: Why, outputs: &mut Outputs) {
        while self.plain.len() >= GRANTS_MAX {
            if let Some((place, _)) = self.plain.pop_first() {
                outputs.push_back(Output::Remove(place.slot(self.subject)));
            }
        }
        self.plain.insert(place, (until, why));
        outputs.push_back(Output::Write(place.slot(self.subject), plain_entry(until, self.skew)));
        while let Some((_, frame)) = self.queue.take(|waiting, _| *waiting == place) {
            outputs.push_back(Output::Send(self.subject, frame));
        }
    }

    pub fn standing(&self, unix: u64, place: &Place, consent: (Consent, Option<Target>)) -> Standing {
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

    /// What a grant for this place would cover, judging by the latest one for its receiver.
    fn guess(&self, place: &Place) -> (IpNet, Option<(u8, u16)>) {
        let width = self.receiver_of(place).and_then(|receiver| self.widths.get(&receiver.name));
        let (length, fixed) = width.copied().unwrap_or((128, true));
        let length = length.min(if place.address.is_ipv4() { 32 } else { 128 });
        let prefix = IpNet::new(place.address, length).unwrap_or(place.address.into()).trunc();
        (prefix, fixed.then_some((place.protocol, place.port)))
    }

    /// The open question whose answer will most likely do for this place.
    pub fn fetch_for(&self, place: &Place) -> Option<FetchId> {
        let guess = self.guess(place);
        self.fetches.iter().find(|fetch| fetch.place == *place || self.guess(&fetch.place) == guess).map(|f| f.id)
    }

    /// A place that is waited for and that nobody has asked about.
    pub fn unasked(&mut self) -> Option<Place> {
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

    pub fn begin_fetch(&mut self, id: FetchId, place: Place, outputs: &mut Outputs) {
        self.ask(id, place, None, outputs);
    }

    fn ask(&mut self, id: FetchId, place: Place, renews: Option<Handle>, outputs: &mut Outputs) {
        self.fetches.push(Fetch { id, place, renews, attempts: 0, retry: None });
        outputs.push_back(Output::Fetch(id, self.subject, place.request()));
    }

    pub fn awaits(&self, id: FetchId) -> bool {
        self.fetches.iter().any(|fetch| fetch.id == id)
    }

    fn take_fetch(&mut self, id: FetchId) -> Option<Fetch> {
        let index = self.fetches.iter().position(|fetch| fetch.id == id)?;
        Some(self.fetches.remove(index))
    }

    /// The error says what is wrong with the grant; it counts as a failure.
    pub fn granted(
        &mut self,
        now: Duration,
        unix: u64,
        id: FetchId,
        answer: &api::Grant,
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
                let slot = place.slot(self.subject);
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

    /// Somebody says that the authority protects these networks. Where it has not said so itself, it is asked.
    pub fn hinted(&mut self, now: Duration, networks: &[IpNet], outputs: &mut Outputs) {
        let is_known = |network: &IpNet| {
            // A record may name a network around what the person may reach.
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

    /// Asks for the destinations anew: not more than once a second, however often the authority wants it.
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
        // The policy may have changed: what it refused is asked for again.
        self.plain.retain(|place, (_, why)| {
            let keep = *why == Why::OwnRule;
            if !keep {
                outputs.push_back(Output::Remove(place.slot(subject)));
            }
            keep
        });
        let mut all = std::mem::take(&mut self.known);
        for known in &mut all {
            known.places.retain(|place| {
                let keep = self.receiver_of(place).is_some();
                if !keep {
                    outputs.push_back(Output::Remove(place.slot(subject)));
                }
                keep
            });
        }
        self.known = all;
    }

    /// Takes over what an earlier process wrote into the kernel.
    pub fn adopt(&mut self, mut known: Known, place: Place, entry: &GrantEntry, outputs: &mut Outputs) {
        if entry.skew != self.skew {
            outputs.push_back(Output::Write(place.slot(self.subject), known.entry(self.skew)));
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
                outputs.extend(known.places.iter().map(|place| Output::Remove(place.slot(subject))));
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
        outputs.extend(plain.keys().map(|place| Output::Remove(place.slot(self.subject))));
    }

    /// Rules changed: what the kernel has by other ones goes.
    pub fn judge_anew(&mut self, allows: impl Fn(&Place) -> bool, outputs: &mut Outputs) {
        let subject = self.subject;
        let mut remove = |place: &Place| outputs.push_back(Output::Remove(place.slot(subject)));
        self.plain.retain(|place, (_, why)| {
            // The authority may have withheld a grant for want of a rule here: it is asked again.
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

    /// Notes how many nonces of pairs were used. They are counted in the entry that was used last.
    fn note_spent(&mut self, used: &impl Fn(&GrantSlot) -> Option<Used>) {
        for known in self.known.iter_mut().filter(|known| known.is_pair()) {
            let spent = known.places.iter().filter_map(|place| Some(used(&place.slot(self.subject))?.spent)).max();
            known.spent = known.spent.max(spent.unwrap_or_default());
        }
    }

    /// Asks for successors of grants that are in use and end soon, or have few nonces left.
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
            let latest = known.places.iter().filter_map(|place| Some((used(&place.slot(subject))?.last, *place))).max();
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

    /// Asks again what was not answered and is still of interest.
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
                outputs.push_back(Output::Fetch(fetch.id, self.subject, fetch.place.request()));
            }
            of_interest
        });
        self.fetches = fetches;
    }

    pub fn timeout(&self) -> Option<Duration> {
        self.fetches.iter().filter_map(|fetch| fetch.retry).chain(self.reload).min()
    }

    pub fn views(&self, used: impl Fn(&GrantSlot) -> Option<Used>) -> Vec<GrantView> {
        let last = |place: &Place| Some(used(&place.slot(self.subject))?.last);
        let latest = |known: &Known| known.places.iter().filter_map(last).max();
        let views = self.known.iter().map(|known| {
            let mut view = GrantView::of(known);
            view.used = view.used.max(latest(known).unwrap_or_default());
            view
        });
        views.collect()
    }
}

fn pause(attempts: u32, longest: Duration) -> Duration {
    PAUSE.saturating_mul(1 << attempts.min(10)).min(longest)
}
