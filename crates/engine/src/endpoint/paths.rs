//! Several paths to one endpoint (wire.md §8.16). This endpoint finds out by probes whether the path in use works. If
//! it does not, the endpoint requests segments for another path. Later it tries the abandoned paths again.

use super::control::send_control;
use super::passed_on::Back;
use super::{Action, Endpoint, OPEN_MAX, Open, Purpose, RENEWED_BEFORE, Wanted, entry_of};
use crate::model::Issued;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use wire::answers::{PROBE, PROBE_ANSWER};
use wire::geneve::Encapsulation;
use wire::inner::Ports;
use wire::map::{Consent, SegmentEntry, SegmentKey, segment_state};
use wire::{Inner, SegmentFlags};

/// Number of calls of [`Endpoint::probe`] between an answer and the next probe.
const PAUSE: u8 = 3;
/// Number of unanswered probes after which a path counts as dead.
const MISSED_MAX: u16 = 3;
/// Number of unanswered probes after which a path counts as dead if the other endpoint has never answered one.
/// Endpoints of earlier releases answer no probes.
const MISSED_WITHOUT_ANSWER: u16 = 12;
/// Maximum number of times that [`MISSED_WITHOUT_ANSWER`] doubles while no path works: first if the other endpoint has
/// ever answered a probe, then if it has not.
const DOUBLINGS: (u8, u8) = (3, 6);
/// Number of answers after which a path that was left counts as working, and maximum number of probes until then.
const TRIAL: (u8, u8) = (3, 5);
/// Shortest and longest time from leaving a path to trying it again, in seconds. The time doubles with each trial.
const TRY_AFTER: (u32, u32) = (10, 3600);
/// Minimum time for which an endpoint stays on a path that has worked, in seconds: its first and its highest value. The
/// value doubles with each change within [`STABLE`]. The minimum is needed because a congested path loses probes
/// although it works.
const STAY: (u32, u32) = (2, 32);
/// Time on one path, in seconds, after which earlier changes no longer count.
const STABLE: u32 = 600;
/// Time for which the endpoint remembers the path that it has chosen if nobody sends, in seconds.
const REMEMBERED: u32 = 3600;
/// Maximum number of other endpoints to which this endpoint uses several paths. To further endpoints, it uses the first
/// path only.
const MOST: usize = 4096;
/// Maximum number of segments to one endpoint that are candidates for probes.
const CANDIDATES: usize = 16;
/// Maximum number of probes on one path whose answers are awaited.
const AWAITED: usize = 8;
/// Maximum number of return segments that other endpoints can make this endpoint request within a second, for each
/// tenant.
const REQUESTED_MAX: u32 = 16;
/// Protocol of a control packet under a segment for all services, from the numbers for experiments (RFC 3692).
const ANY_PROTOCOL: u8 = 253;

/// The paths to another endpoint, if the authority knows several.
#[derive(Clone, Debug, Default)]
pub struct Way {
    /// Number of the path in use. 0 is the first path.
    pub number: u8,
    /// Number of paths besides the one in use.
    pub others: u8,
    /// Whether the other endpoint has answered a probe on the path in use.
    pub answered: bool,
    /// Time of the last change of the path, in Unix seconds; `None` if it was never changed.
    pub changed: Option<u32>,
    /// The segments to the endpoint, each with the number of its path.
    segments: BTreeMap<SegmentKey, u8>,
    /// Segments to the endpoint under which packets were sent a short time ago.
    candidates: Vec<SegmentKey>,
    /// Segments that have to be requested for the path in use.
    left: Vec<SegmentKey>,
    /// Time when a segment to the endpoint was last in use.
    used: u32,
    /// The segment under which the last probe was sent.
    under: Option<SegmentKey>,
    /// Whether the other endpoint has answered a probe under `under`.
    is_known: bool,
    /// Whether the other endpoint has ever answered a probe.
    has_answered: bool,
    /// Numbers of probes that may still be answered, each with its segment.
    awaited: Vec<(u64, SegmentKey)>,
    /// Number of probes since the last answer.
    missed: u16,
    pause: u8,
    /// Number of changes of the path since the last answer.
    changes: u8,
    stay: u32,
    trial: Option<Trial>,
    try_at: u32,
    try_after: u32,
    /// Number of trials of other paths, modulo 256.
    trials: u8,
}

/// A segment with which the endpoint finds out whether another path works. Tenants' packets are not sent under it.
#[derive(Clone, Debug)]
struct Trial {
    number: u8,
    key: SegmentKey,
    entry: SegmentEntry,
    /// The return segment, in the form in which it is passed on.
    answers: Vec<u8>,
    awaited: Vec<u64>,
    sent: u8,
    answered: u8,
}

/// The paths to other endpoints, and the requests that other endpoints cause by changing the path.
#[derive(Default)]
pub(super) struct Paths {
    ways: BTreeMap<IpAddr, Way>,
    /// For each return segment, the expiry of the segment whose packets it answers.
    consented: HashMap<SegmentKey, u32>,
    /// For each tenant's interface, a time in Unix seconds, and the number of requests that other endpoints caused in
    /// the second that begins then.
    caused: BTreeMap<u32, (u32, u32)>,
    changes: u64,
}

impl Paths {
    pub(super) fn forget(&mut self, interface: u32) {
        self.caused.remove(&interface);
        self.consented.retain(|key, _| key.interface != interface);
        for way in self.ways.values_mut() {
            way.keep(|key| key.interface != interface);
        }
    }

    /// Records that a return segment for a received segment is used or requested. The received segment ends at
    /// `expires`.
    pub(super) fn answers(&mut self, key: SegmentKey, expires: u32) {
        self.consented.insert(key, expires);
    }

    /// Records that a request for a return segment failed, so that it is repeated.
    pub(super) fn not_answered(&mut self, keys: &[SegmentKey]) {
        for key in keys {
            self.consented.entry(*key).and_modify(|expires| *expires = 0);
        }
    }

    /// Reports whether the entry of a return segment is for a received segment other than `consent`.
    pub(super) fn is_outdated(&self, key: &SegmentKey, entry: Option<&SegmentEntry>, consent: &Consent) -> bool {
        match (entry, self.consented.get(key)) {
            (None, _) => true,
            (_, Some(consented)) => *consented != consent.expires,
            (Some(entry), None) => consent.expires > entry.until,
        }
    }

    /// Records that a segment to the endpoint `to` takes the path with this number.
    pub(super) fn takes(&mut self, to: IpAddr, key: SegmentKey, number: u8) {
        if let Some(way) = self.ways.get_mut(&to) {
            way.segments.insert(key, number);
            if !way.candidates.contains(&key) {
                way.candidates.insert(0, key);
                way.candidates.truncate(CANDIDATES);
            }
        }
    }

    /// Returns the number of the path in use to the receiving endpoint of an entry.
    pub(super) fn number(&self, entry: &SegmentEntry) -> u8 {
        entry.endpoints().and_then(|(_, to)| self.ways.get(&to)).map_or(0, |way| way.number)
    }
}

impl Way {
    fn keep(&mut self, is_kept: impl Fn(&SegmentKey) -> bool) {
        self.segments.retain(|key, _| is_kept(key));
        self.candidates.retain(&is_kept);
        self.left.retain(&is_kept);
        self.trial.take_if(|trial| !is_kept(&trial.key));
    }

    /// Returns the segment for the next probe. If the segment under which the other endpoint answers is in use, returns
    /// this segment, otherwise the candidates in turn.
    fn choose(&mut self, usable: impl Fn(&SegmentKey) -> Option<SegmentEntry>) -> Option<(SegmentKey, SegmentEntry)> {
        let is_on_path = |key: &SegmentKey| self.segments.get(key) == Some(&self.number);
        if let Some(key) = self.under.filter(|_| self.is_known)
            && let Some(entry) = usable(&key)
        {
            // A segment for the path in use may have been requested, and not arrived yet.
            return is_on_path(&key).then_some((key, entry));
        }
        let last = self.candidates.iter().position(|key| Some(*key) == self.under);
        let (before, after) = self.candidates.split_at(last.map_or(0, |last| last + 1));
        let mut in_turn = after.iter().chain(before).filter(|key| is_on_path(key));
        let found = in_turn.find_map(|key| Some((*key, usable(key)?)))?;
        if self.is_known {
            // Nothing is known about the next one.
            self.is_known = false;
            self.heard_nothing();
        }
        self.under = Some(found.0);
        Some(found)
    }

    fn heard_nothing(&mut self) {
        self.missed = 0;
        self.awaited.clear();
    }

    fn heard(&mut self, under: SegmentKey) {
        self.heard_nothing();
        (self.under, self.is_known) = (Some(under), true);
        (self.answered, self.has_answered) = (true, true);
        (self.changes, self.pause) = (0, PAUSE);
    }

    /// Reports whether the path in use counts as dead.
    fn is_dead(&self, now: u32) -> bool {
        let is_short = if self.changes == 0 { self.is_known } else { self.number != 0 };
        let most = if is_short {
            MISSED_MAX
        } else {
            // Either nothing has been heard yet, or each path has been tried. The first path is tried longest.
            let rounds = self.changes / self.others.saturating_add(1).max(1);
            MISSED_WITHOUT_ANSWER << rounds.min(if self.has_answered { DOUBLINGS.0 } else { DOUBLINGS.1 })
        };
        let stays = self.answered
            && self.changed.is_some_and(|changed| (changed..changed.saturating_add(self.stay)).contains(&now));
        self.missed >= most && !stays
    }

    /// Changes to the path with this number.
    fn change(&mut self, number: u8, now: u32) {
        let is_soon = self.changed.is_some_and(|changed| (changed..changed.saturating_add(STABLE)).contains(&now));
        if !is_soon {
            (self.stay, self.try_after) = (STAY.0, TRY_AFTER.0);
        } else if self.answered {
            self.stay = (2 * self.stay).min(STAY.1);
        }
        self.try_at = now.saturating_add(self.try_after);
        (self.number, self.answered, self.changed, self.trial) = (number, false, Some(now), None);
        self.heard_nothing();
        self.pause = 0;
        self.left = self.segments.iter().filter(|(_, of)| **of != number).map(|(key, _)| *key).collect();
    }

    /// Returns the number of a path that comes before the path in use, if it is time to try such a path.
    fn next_trial(&mut self, now: u32) -> Option<u8> {
        let is_time = self.number > 0 && self.is_known && self.answered && self.trial.is_none() && now >= self.try_at;
        if !is_time {
            return None;
        }
        self.try_at = now.saturating_add(self.try_after);
        self.try_after = (2 * self.try_after).min(TRY_AFTER.1);
        let number = self.trials % self.number;
        self.trials = self.trials.wrapping_add(1);
        Some(number)
    }
}

impl Endpoint {
    /// Returns the paths to each endpoint for which the authority knows several paths.
    pub const fn ways(&self) -> &BTreeMap<IpAddr, Way> {
        &self.paths.ways
    }

    /// Returns the number of changes from one path to another.
    pub const fn path_changes(&self) -> u64 {
        self.paths.changes
    }

    /// Returns the number of the path that the segment of an entry takes; `None` if the endpoint knows only one path to
    /// the receiving endpoint.
    pub fn path_of(&self, key: &SegmentKey, entry: &SegmentEntry) -> Option<u8> {
        let (_, to) = entry.endpoints()?;
        self.paths.ways.get(&to)?.segments.get(key).copied()
    }

    /// Records how many other paths lead to the endpoint `to`. `taken` is the path of a segment that has arrived. If
    /// another path is in use, returns its number, because the segment is then of no use.
    pub(super) fn learn(&mut self, to: IpAddr, taken: u8, others: u8) -> Option<u8> {
        let ways = &mut self.paths.ways;
        if others == 0 || self.addresses.contains(&to) {
            ways.remove(&to);
            return None;
        }
        if ways.len() >= MOST && !ways.contains_key(&to) {
            return None;
        }
        let way = ways.entry(to).or_default();
        way.others = others;
        if way.number > others {
            way.number = 0;
        }
        (way.number != taken).then_some(way.number)
    }

    /// Requests the segment of an open request again, for the path with this number.
    pub(super) fn ask_again(&mut self, wanted: &Wanted, open: Open, path: u8, now: u32) -> Vec<Action> {
        let question = self.question(*wanted, &wanted.inner(), |_| None, path, now);
        let ask = |(action, _)| {
            let purpose = if open.purpose == Purpose::Try { Purpose::Send } else { open.purpose };
            self.open.insert(*wanted, Open { path, purpose, ..open });
            vec![action]
        };
        question.map_or_else(Vec::new, ask)
    }

    /// Updates the record of the segments on each path: removes segments that have ended, and finds out which ones are
    /// in use. `entries` is the content of the table of segments.
    pub fn follow_paths(&mut self, entries: &[(SegmentKey, SegmentEntry)], now: u32) {
        if self.paths.ways.is_empty() && self.paths.consented.is_empty() {
            return;
        }
        let given =
            |(_, entry): &&(SegmentKey, SegmentEntry)| entry.state() == segment_state::GIVEN && entry.until > now;
        let given: HashMap<_, _> = entries.iter().filter(given).map(|(key, entry)| (*key, entry)).collect();
        let open = |key: &SegmentKey| self.open.keys().any(|wanted| wanted.interface == key.interface);
        self.paths.consented.retain(|key, _| given.contains_key(key) || open(key));
        for way in self.paths.ways.values_mut() {
            way.keep(|key| given.contains_key(key));
            let in_use = |(key, number): (&SegmentKey, &u8)| {
                let entry = given.get(key).filter(|entry| is_in_use(entry, now))?;
                Some((entry.used, *key, *number))
            };
            let mut in_use: Vec<_> = way.segments.iter().filter_map(in_use).collect();
            in_use.sort_unstable_by(|a, b| b.cmp(a));
            if !in_use.is_empty() {
                way.used = now;
            }
            way.left = in_use.iter().filter(|(_, _, of)| *of != way.number).map(|(_, key, _)| *key).collect();
            way.candidates = in_use.into_iter().take(CANDIDATES).map(|(_, key, _)| key).collect();
        }
        let is_remembered = |way: &Way| way.number != 0 && way.used.saturating_add(REMEMBERED) > now;
        self.paths.ways.retain(|_, way| !way.segments.is_empty() || is_remembered(way));
    }

    /// Sends the probes that have become due. Probes go to the endpoints for which the authority knows several paths
    /// and to which packets were sent a short time ago. Changes the path if the one in use is dead, or if a path with a
    /// lower number works again. `entry` looks up an entry of the table of segments, and `random` returns random
    /// numbers. The caller calls this function at regular intervals.
    pub fn probe(
        &mut self,
        entry: impl Fn(&SegmentKey) -> Option<SegmentEntry>,
        mut random: impl FnMut() -> u64,
        now: u32,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut ways = std::mem::take(&mut self.paths.ways);
        for (to, way) in &mut ways {
            let usable = |key: &SegmentKey| entry(key).filter(|found| self.carries_probes(key, found, *to, now));
            if let Some((key, found)) = way.choose(usable) {
                actions.extend(self.probe_one(way, &key, &found, &mut random, now));
            } else {
                way.heard_nothing();
            }
            actions.extend(self.move_segments(way, &entry, now));
        }
        self.paths.ways = ways;
        actions
    }

    fn probe_one(
        &mut self,
        way: &mut Way,
        key: &SegmentKey,
        entry: &SegmentEntry,
        random: &mut impl FnMut() -> u64,
        now: u32,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        if way.is_dead(now) {
            way.changes = way.changes.saturating_add(1);
            self.paths.changes += 1;
            way.change(if way.number >= way.others { 0 } else { way.number + 1 }, now);
            return actions;
        }
        if let Some(trial) = &mut way.trial {
            if trial.answered >= TRIAL.0 {
                let number = trial.number;
                self.paths.changes += 1;
                way.change(number, now);
                return actions;
            }
            if trial.sent >= TRIAL.1 {
                way.trial = None;
            } else {
                let number = random();
                trial.sent += 1;
                trial.awaited.push(number);
                actions.extend(probe_under(&trial.key, &trial.entry, number, &trial.answers));
                // The next probe follows at once, so that the other endpoint sees the path in use again.
                way.pause = 0;
            }
        } else if let Some(number) = way.next_trial(now) {
            actions.extend(self.ask_for(key, number, Purpose::Try, now));
        }
        if way.missed == 0 && way.pause > 1 {
            way.pause -= 1;
            return actions;
        }
        let number = random();
        if way.awaited.len() >= AWAITED {
            way.awaited.remove(0);
        }
        way.awaited.push((number, *key));
        way.missed = way.missed.saturating_add(1);
        actions.extend(probe_under(key, entry, number, &[]));
        actions
    }

    /// Requests segments for the path in use. They replace segments that are in use but take another path.
    fn move_segments(
        &mut self,
        way: &mut Way,
        entry: &impl Fn(&SegmentKey) -> Option<SegmentEntry>,
        now: u32,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        for key in std::mem::take(&mut way.left) {
            if !entry(&key).is_some_and(|found| is_in_use(&found, now)) {
                continue;
            }
            // Half of the requests are for packets that wait.
            if self.open.range(Wanted::all_of(key.interface)).count() >= OPEN_MAX / 2 {
                way.left.push(key);
                continue;
            }
            actions.extend(self.ask_for(&key, way.number, Purpose::Move, now));
        }
        actions
    }

    /// Requests a segment like the one with this key, for the path with this number.
    fn ask_for(&mut self, key: &SegmentKey, path: u8, purpose: Purpose, now: u32) -> Option<Action> {
        let wanted = Wanted::new(key.interface, &example(key))?;
        if self.open.contains_key(&wanted) {
            return None;
        }
        let (action, sending) = self.question(wanted, &wanted.inner(), |_| None, path, now)?;
        self.open.insert(wanted, Open { sending, path, purpose, queued: Vec::new() });
        match (purpose, action) {
            (Purpose::Try, Action::Ask(wanted, request)) => Some(Action::AskBoth(wanted, request)),
            (_, action) => Some(action),
        }
    }

    /// Handles the authority's answer to a request for a segment with which a path is tried.
    pub(super) fn tried(&mut self, wanted: &Wanted, open: Open, issued: Option<Issued>, now: u32) -> Vec<Action> {
        let to = issued.as_ref().map(|issued| issued.given.ends.receiving);
        let way = to.and_then(|to| self.paths.ways.get_mut(&to));
        let number = way.as_ref().map_or(0, |way| way.number);
        if !open.queued.is_empty() {
            // Packets that wait are sent on the path in use.
            return self.ask_again(wanted, open, number, now);
        }
        let (Some(way), Some(Issued { given, answers, others })) = (way, issued) else { return Vec::new() };
        let is_useful = open.path <= others && open.path < way.number && !answers.is_empty();
        if let Some(entry) = entry_of(&given).filter(|_| is_useful) {
            let key = SegmentKey::of(wanted.interface, wanted.sender, wanted.receiver, &given.segment);
            let (number, awaited) = (open.path, Vec::new());
            way.trial = Some(Trial { number, key, entry, answers, awaited, sent: 0, answered: 0 });
        }
        Vec::new()
    }

    /// Answers a probe. Also requests a return segment if the endpoint has none for the segment under which the probe
    /// came. This happens if the other endpoint has changed the path, or gets no answers yet.
    pub(super) fn answer_probe(
        &mut self,
        interface: u32,
        answer: &Inner,
        bytes: &[u8],
        consent: impl Fn(&SegmentKey) -> Option<Consent>,
        known: impl Fn(&SegmentKey) -> Option<SegmentEntry>,
        now: u32,
    ) -> Option<Vec<Action>> {
        let (number, passed_on) = bytes.split_first_chunk::<8>()?;
        if !passed_on.is_empty() {
            // Only the answer to this probe takes that segment.
            let Back { key, entry, .. } = self.read_back(interface, answer, passed_on, consent, now)?;
            return message_under(&key, &entry, PROBE_ANSWER, number).map(|action| vec![action]);
        }
        let keys = SegmentKey::answering(interface, answer);
        let (key, came) = keys.iter().find_map(|key| Some((*key, consent(key)?)))?;
        let entry = known(&key).filter(|entry| self.is_usable(&key, entry, now));
        let is_outdated = self.paths.is_outdated(&key, entry.as_ref(), &came);
        let mut actions = Vec::new();
        if let Some(entry) = entry {
            actions.extend(message_under(&key, &entry, PROBE_ANSWER, number));
        }
        let is_refused = |entry: SegmentEntry| entry.state() == segment_state::REFUSED && entry.until > now;
        if is_outdated && !known(&SegmentKey::to_service(interface, answer)).is_some_and(is_refused) {
            actions.extend(self.ask_back(interface, answer, consent, now));
        }
        Some(actions)
    }

    /// Requests a return segment because of a probe.
    fn ask_back(
        &mut self,
        interface: u32,
        answer: &Inner,
        consent: impl Fn(&SegmentKey) -> Option<Consent>,
        now: u32,
    ) -> Option<Action> {
        let wanted = Wanted::new(interface, answer)?;
        let is_full = self.open.range(Wanted::all_of(interface)).count() >= OPEN_MAX / 2;
        if is_full || self.open.contains_key(&wanted) {
            return None;
        }
        let (second, count) = self.paths.caused.entry(interface).or_default();
        if *second != now {
            (*second, *count) = (now, 0);
        }
        if *count >= REQUESTED_MAX {
            return None;
        }
        *count += 1;
        let (action, sending) = self.question(wanted, answer, consent, 0, now)?;
        if !matches!(action, Action::AskBack(..)) {
            return None;
        }
        self.open.insert(wanted, Open { sending, path: 0, purpose: Purpose::Send, queued: Vec::new() });
        Some(action)
    }

    /// Handles an answer to a probe. `answer` is an example of the packets under the segment of the probe.
    pub(super) fn probed(&mut self, interface: u32, answer: &Inner, bytes: &[u8]) {
        let Ok(number) = bytes.try_into().map(u64::from_be_bytes) else { return };
        let is_its = |key: &SegmentKey| {
            (key.interface, key.sender(), key.receiver()) == (interface, answer.sender, answer.receiver)
        };
        for way in self.paths.ways.values_mut() {
            if let Some((_, key)) = way.awaited.iter().find(|(awaited, key)| *awaited == number && is_its(key)) {
                let key = *key;
                return way.heard(key);
            }
            if let Some(trial) = way.trial.as_mut().filter(|trial| is_its(&trial.key))
                && let Some(at) = trial.awaited.iter().position(|awaited| *awaited == number)
            {
                trial.awaited.swap_remove(at);
                trial.answered += 1;
                return;
            }
        }
    }

    /// Reports whether probes to the endpoint `to` can be sent under this segment: packets are, and it permits answers.
    fn carries_probes(&self, key: &SegmentKey, entry: &SegmentEntry, to: IpAddr, now: u32) -> bool {
        is_in_use(entry, now)
            && self.is_usable(key, entry, now)
            && entry.endpoints().is_some_and(|(_, receiving)| receiving == to)
            && Encapsulation::decode(entry.geneve())
                .is_ok_and(|(header, _)| header.segment.flags.has(SegmentFlags::REPLY))
    }
}

fn is_in_use(entry: &SegmentEntry, now: u32) -> bool {
    entry.state() == segment_state::GIVEN && entry.until > now && entry.used.saturating_add(RENEWED_BEFORE) >= now
}

/// Returns an example of the packets under the segment with this key.
fn example(key: &SegmentKey) -> Inner {
    key.example().unwrap_or_else(|| Inner {
        sender: key.sender(),
        receiver: key.receiver(),
        protocol: ANY_PROTOCOL,
        ports: Ports::Shown(0, 0),
    })
}

/// Returns the action that sends a probe with this number under the segment of an entry. If `answers` contains a return
/// segment, the answer to the probe travels under this segment.
pub(super) fn probe_under(key: &SegmentKey, entry: &SegmentEntry, number: u64, answers: &[u8]) -> Option<Action> {
    message_under(key, entry, PROBE, &[&number.to_be_bytes(), answers].concat())
}

fn message_under(key: &SegmentKey, entry: &SegmentEntry, kind: u8, bytes: &[u8]) -> Option<Action> {
    let wanted = Wanted::new(key.interface, &example(key))?;
    let (header, _) = Encapsulation::decode(entry.geneve()).ok()?;
    let hops: Vec<_> = entry.hops().collect();
    send_control(header, entry.endpoints()?, &hops, &wanted, &[&[kind, 0, 0, 0], bytes].concat())
}
