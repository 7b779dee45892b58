//! A second evaluator, written directly from the semantics and sharing nothing with the engine: it has no index, counts
//! minutes in UTC in place of a calendar, and represents addresses as numbers. Engine and reference must agree on
//! random policies.

use crate::policy::*;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::Destination;

/// Monday, 2 March 2026, 00:00 UTC, in minutes.
const MONDAY: u64 = 1_772_409_600 / 60;
const PAIRS: usize = 1_000_000;
const REQUESTS_PER_POLICY: usize = 200;

/// Pseudo-random numbers, the same in every run (splitmix64).
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % bound as u64) as usize
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn some<T: Copy>(&mut self, choices: &[T], most: usize) -> Vec<T> {
        (0..1 + self.below(most)).map(|_| self.pick(choices)).collect()
    }
}

/// First address, last address, whether IPv6, and text form.
type Block = (u128, u128, bool, &'static str);
const BLOCKS: [Block; 11] = [
    (V4, V4 + 7, false, "10.0.0.0/29"),
    (V4, V4 + 3, false, "10.0.0.0/30"),
    (V4, V4 + 1, false, "10.0.0.0/31"),
    (V4 + 1, V4 + 1, false, "10.0.0.1"),
    (V4 + 2, V4 + 2, false, "10.0.0.2"),
    (V4 + 4, V4 + 7, false, "10.0.0.4/30"),
    (V6, V6 + 7, true, "2001:db8::/125"),
    (V6, V6 + 1, true, "2001:db8::/127"),
    (V6 + 1, V6 + 1, true, "2001:db8::1"),
    (0, u32::MAX as u128, false, "0.0.0.0/0"),
    (0, u128::MAX, true, "::/0"),
];
const V4: u128 = 0x0a00_0000;
const V6: u128 = 0x2001_0db8 << 96;
/// Protocol (0: all), first and last port, and text form.
type Span = (u8, u16, u16, &'static str);
const SPANS: [Span; 6] = [
    (0, 0, 0, "all"),
    (0, 0, 0, "all"),
    (6, 22, 22, "tcp/22"),
    (6, 20, 30, "tcp/20-30"),
    (17, 0, 65535, "udp"),
    (1, 0, 65535, "icmp"),
];
const PERSONS: [&str; 3] = ["alice", "bob", "eve"];
const GROUPS: [(&str, &[&str]); 3] = [("staff", &["alice", "bob"]), ("ops", &["bob"]), ("outside", &[])];
const TAGS: [&str; 2] = ["laptops", "byod"];
/// Sources: address as a number, and whether IPv6.
const SOURCES: [(u128, bool); 3] = [(0xc000_0201, false), (0xc633_6407, false), (V6 + 0x900, true)];
const SOURCE_BLOCKS: [Block; 3] = [
    (0xc000_0200, 0xc000_02ff, false, "192.0.2.0/24"),
    (0, u32::MAX as u128, false, "0.0.0.0/0"),
    (V6, V6 + 0xfff, true, "2001:db8::/116"),
];
const WHO: [&str; 9] = [
    "everyone",
    "everyone",
    "person:alice",
    "person:bob",
    "group:staff",
    "group:ops",
    "group:outside",
    "tag:laptops",
    "tag:byod",
];

struct Entry {
    allow: bool,
    priority: Option<u16>,
    who: Vec<&'static str>,
    sources: Vec<Block>,
    to: Vec<usize>,
    /// Windows: weekdays as bits from Monday; first and last minute of the day (into the next day if the last is not
    /// after the first); minutes by which the zone is ahead of UTC; first minute and last minute overall.
    windows: Vec<(u8, u16, u16, i64, u64, u64)>,
    width: &'static str,
    lifetime: u32,
}

pub(super) struct World {
    receivers: Vec<(Vec<Block>, Vec<Span>)>,
    entries: Vec<Entry>,
}

pub(super) struct Question {
    pub(super) person: &'static str,
    pub(super) groups: Vec<&'static str>,
    pub(super) tags: Vec<&'static str>,
    pub(super) source: (u128, bool),
    pub(super) to: (u128, bool),
    pub(super) protocol: u8,
    pub(super) port: u16,
    pub(super) minute: u64,
}

#[derive(Debug, PartialEq)]
enum Answer {
    Nothing,
    NoRule,
    Denied(usize),
    /// The rule's number, the prefix that the grant opens, and its one protocol and port (`None` for all).
    Allowed(usize, String, Option<(u8, u16)>),
}

impl World {
    pub(super) fn random(chance: &mut Chance) -> Self {
        let receivers: Vec<_> =
            (0..1 + chance.below(5)).map(|_| (chance.some(&BLOCKS, 3), chance.some(&SPANS, 2))).collect();
        let entries = (0..chance.below(8)).map(|_| Entry::random(chance, &receivers)).collect();
        Self { receivers, entries }
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::from("[groups]\n");
        for (name, members) in GROUPS {
            writeln!(text, "{name} = {members:?}").unwrap();
        }
        for (index, (blocks, spans)) in self.receivers.iter().enumerate() {
            let blocks: Vec<_> = blocks.iter().map(|block| block.3).collect();
            let spans: Vec<_> = spans.iter().map(|span| span.3).collect();
            writeln!(text, "[[receivers]]\nname = \"r{index}\"\naddress = {blocks:?}").unwrap();
            writeln!(text, "services = {spans:?}\nverifier = \"v\"").unwrap();
        }
        for entry in &self.entries {
            let action = if entry.allow { "allow" } else { "deny" };
            let sources = entry.sources.iter().map(|source| format!("address:{}", source.3));
            let who: Vec<_> = entry.who.iter().map(|who| (*who).to_owned()).chain(sources).collect();
            let to: Vec<_> = entry.to.iter().map(|receiver| format!("r{receiver}")).collect();
            writeln!(text, "[[rules]]\naction = \"{action}\"\nwho = {who:?}\nto = {to:?}").unwrap();
            if let Some(priority) = entry.priority {
                writeln!(text, "priority = {priority}").unwrap();
            }
            if entry.allow {
                writeln!(text, "granularity = \"{}\"\nlifetime = \"{}s\"", entry.width, entry.lifetime).unwrap();
            }
            let windows: Vec<_> = entry.windows.iter().map(window_text).collect();
            if !windows.is_empty() {
                writeln!(text, "when = [{}]", windows.join(", ")).unwrap();
            }
        }
        text
    }

    /// Computes the answer directly from the semantics.
    fn answer(&self, question: &Question) -> Answer {
        if !self.receivers.iter().any(|receiver| covers(receiver, question)) {
            return Answer::Nothing;
        }
        let mut deciding: Option<usize> = None;
        for (index, entry) in self.entries.iter().enumerate() {
            let matches = entry.to.iter().any(|receiver| covers(&self.receivers[*receiver], question))
                && entry.is_about(question)
                && entry.holds(question.minute);
            // The highest priority decides; of equals, the later rule.
            if matches && deciding.is_none_or(|other| entry.order() >= self.entries[other].order()) {
                deciding = Some(index);
            }
        }
        let Some(deciding) = deciding else { return Answer::NoRule };
        let entry = &self.entries[deciding];
        if !entry.allow {
            return Answer::Denied(deciding + 1);
        }
        let (first, last, prefix) = self.opened(entry, question);
        let one = host(question.to);
        if entry.width == "application" || entry.width == "flow" {
            return Answer::Allowed(deciding + 1, one, Some((question.protocol, question.port)));
        }
        // A wide grant is narrowed if another rule would decide otherwise in any part of it.
        let narrowed = self.entries.iter().enumerate().any(|(index, other)| {
            let stronger = (other.order(), index) > (entry.order(), deciding);
            let differs = !other.allow || (other.width, other.lifetime) != (entry.width, entry.lifetime);
            stronger
                && differs
                && other.is_about(question)
                && other.holds(question.minute)
                && self.touches(other, first, last, question.to.1)
        });
        if narrowed {
            Answer::Allowed(deciding + 1, one, Some((question.protocol, question.port)))
        } else {
            Answer::Allowed(deciding + 1, prefix, None)
        }
    }

    /// Returns the range that a wide grant of the entry covers: the smallest block around the destination of all its
    /// receivers' blocks.
    fn opened(&self, entry: &Entry, question: &Question) -> (u128, u128, String) {
        if entry.width != "network" {
            return (question.to.0, question.to.0, host(question.to));
        }
        let receivers =
            entry.to.iter().map(|receiver| &self.receivers[*receiver]).filter(|receiver| covers(receiver, question));
        let blocks = receivers.flat_map(|receiver| &receiver.0).filter(|block| within(block, question.to));
        let block = blocks.min_by_key(|block| block.1 - block.0).unwrap();
        let prefix = if block.0 == block.1 { host((block.0, block.2)) } else { block.3.to_owned() };
        (block.0, block.1, prefix)
    }

    fn touches(&self, entry: &Entry, first: u128, last: u128, v6: bool) -> bool {
        let mut blocks = entry.to.iter().flat_map(|receiver| &self.receivers[*receiver].0);
        blocks.any(|block| block.2 == v6 && block.0 <= last && first <= block.1)
    }
}

impl Entry {
    fn random(chance: &mut Chance, receivers: &[(Vec<Block>, Vec<Span>)]) -> Self {
        let to: Vec<_> = (0..1 + chance.below(2)).map(|_| chance.below(receivers.len())).collect();
        let wide = to.iter().all(|receiver| receivers[*receiver].1.iter().any(|span| span.0 == 0));
        let widths: &[_] =
            if wide { &["network", "host", "application", "flow", "network"] } else { &["application", "flow"] };
        let mut who = if chance.below(5) == 0 { Vec::new() } else { chance.some(&WHO, 2) };
        let sources = if who.is_empty() { chance.some(&SOURCE_BLOCKS, 2) } else { Vec::new() };
        if chance.below(12) == 0 {
            who.push("person:bob");
        }
        let window = |chance: &mut Chance| {
            let begin = chance.below(24) as u16 * 60 + chance.pick(&[0, 30]);
            let end = (begin + 30 + chance.below(46) as u16 * 30) % 1440;
            let from = chance.pick(&[0, MONDAY, MONDAY + 5 * 1440]);
            let until = chance.pick(&[u64::MAX, MONDAY + 9 * 1440]);
            (1 + chance.below(127) as u8, begin, end, chance.pick(&[0, 330, -180]), from, until)
        };
        let windows = (0..chance.below(6).saturating_sub(3)).map(|_| window(chance)).collect();
        Self {
            allow: chance.below(5) > 1,
            priority: chance.pick(&[
                None,
                None,
                None,
                Some(0),
                Some(100),
                Some(150),
                Some(200),
                Some(300),
                Some(65535),
            ]),
            who,
            sources,
            to,
            windows,
            width: chance.pick(widths),
            lifetime: chance.pick(&[60, 60, 300]),
        }
    }

    fn order(&self) -> u16 {
        self.priority.unwrap_or(if self.allow { 100 } else { 200 })
    }

    fn is_about(&self, question: &Question) -> bool {
        let of_file =
            |group: &str| GROUPS.iter().any(|(name, members)| *name == group && members.contains(&question.person));
        self.sources.iter().any(|block| within(block, question.source))
            || self.who.iter().any(|who| match who.split_once(':') {
                None => true,
                Some(("person", name)) => name == question.person,
                Some(("group", name)) => of_file(name) || question.groups.contains(&name),
                Some((_, name)) => question.tags.contains(&name),
            })
    }

    fn holds(&self, minute: u64) -> bool {
        self.windows.is_empty()
            || self.windows.iter().any(|(days, begin, end, ahead, from, until)| {
                let local = minute.checked_add_signed(*ahead).unwrap();
                // 1 January 1970 was a Thursday.
                let weekday = (local / 1440 + 3) % 7;
                let on = |day: u64| days >> (day % 7) & 1 == 1;
                let of_day = (local % 1440) as u16;
                let hours = if begin < end {
                    on(weekday) && *begin <= of_day && of_day < *end
                } else {
                    on(weekday) && *begin <= of_day || on(weekday + 6) && of_day < *end
                };
                hours && *from <= minute && minute < *until
            })
    }
}

impl Question {
    pub(super) fn random(chance: &mut Chance) -> Self {
        let v6 = chance.below(4) == 0;
        let protocol = chance.pick(&[6, 6, 6, 17, 1, 47]);
        Self {
            person: chance.pick(&PERSONS),
            groups: (0..chance.below(3)).map(|_| chance.pick(&GROUPS).0).collect(),
            tags: (0..chance.below(3)).map(|_| chance.pick(&TAGS)).collect(),
            source: chance.pick(&SOURCES),
            to: (if v6 { V6 } else { V4 } + chance.below(9) as u128, v6),
            protocol,
            port: if matches!(protocol, 6 | 17) { chance.pick(&[19, 20, 22, 30, 31]) } else { 0 },
            minute: MONDAY + chance.below(14 * 1440) as u64,
        }
    }
}

fn covers(receiver: &(Vec<Block>, Vec<Span>), question: &Question) -> bool {
    let serves =
        |span: &Span| span.0 == 0 || span.0 == question.protocol && span.1 <= question.port && question.port <= span.2;
    receiver.0.iter().any(|block| within(block, question.to)) && receiver.1.iter().any(serves)
}

fn within(block: &Block, address: (u128, bool)) -> bool {
    block.2 == address.1 && block.0 <= address.0 && address.0 <= block.1
}

pub(super) fn address((bits, v6): (u128, bool)) -> IpAddr {
    if v6 { Ipv6Addr::from(bits).into() } else { Ipv4Addr::from(bits as u32).into() }
}

fn host(to: (u128, bool)) -> String {
    format!("{}/{}", address(to), if to.1 { 128 } else { 32 })
}

fn window_text((days, begin, end, ahead, from, until): &(u8, u16, u16, i64, u64, u64)) -> String {
    let week = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    let days: Vec<_> = (0..7).filter(|day| days >> day & 1 == 1).map(|day| week[day]).collect();
    let clock = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
    let zone = match ahead {
        0 => "UTC",
        330 => "Asia/Kolkata",
        _ => "America/Sao_Paulo",
    };
    let mut text = format!(
        "{{ days = {days:?}, zone = \"{zone}\", hours = \"{}-{}\"",
        clock(*begin),
        clock(if *end == 0 { 1440 } else { *end })
    );
    let date = |minute: u64| format!("2026-03-{:02}T00:00:00Z", 2 + (minute - MONDAY) / 1440);
    if *from > 0 {
        write!(text, ", from = {}", date(*from)).unwrap();
    }
    if *until < u64::MAX {
        write!(text, ", until = {}", date(*until)).unwrap();
    }
    text + " }"
}

/// Calls `ask` with the question in the engine's form.
fn asked<T>(question: &Question, second: u64, ask: impl FnOnce(&Request<'_>) -> T) -> T {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let (groups, tags) = (owned(&question.groups), owned(&question.tags));
    let subject =
        Subject { person: question.person, groups: &groups, tags: &tags, source: Some(address(question.source)) };
    let to = Destination { address: address(question.to), protocol: question.protocol, port: question.port };
    ask(&Request { subject, to, now: question.minute * 60 + second })
}

/// Returns the engine's answer, and the time by which a grant must end.
fn engine(policy: &Policy, question: &Question, second: u64) -> (Answer, Option<u64>) {
    asked(question, second, |request| match policy.decide(request) {
        Decision::NoReceiver => (Answer::Nothing, None),
        Decision::DefaultDeny { .. } => (Answer::NoRule, None),
        Decision::Denied { rule, .. } => (Answer::Denied(rule.number), None),
        Decision::Allowed(permit) => {
            let Scope { prefix, service } = permit.scope;
            (Answer::Allowed(permit.rule.number, prefix.to_string(), service), permit.until)
        }
    })
}

#[test]
fn engine_and_reference_agree_on_a_million_random_pairs() {
    let mut chance = Chance(7);
    let mut seen = [0; 4];
    for _ in 0..PAIRS / REQUESTS_PER_POLICY {
        let world = World::random(&mut chance);
        let text = world.text();
        let policy = Policy::parse(&text, 3600).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
        let compiled = Compiled::new(policy.clone()).expect("a small policy");
        for _ in 0..REQUESTS_PER_POLICY {
            let question = Question::random(&mut chance);
            let expected = world.answer(&question);
            seen[match expected {
                Answer::Nothing => 0,
                Answer::NoRule => 1,
                Answer::Denied(_) => 2,
                Answer::Allowed(..) => 3,
            }] += 1;
            let second = chance.below(60) as u64;
            let (said, _) = engine(&policy, &question, second);
            assert_eq!(
                said,
                expected,
                "{} from {:?} groups {:?} tags {:?} to {:?} {}/{} at minute {}\n{text}",
                question.person,
                question.source,
                question.groups,
                question.tags,
                question.to,
                question.protocol,
                question.port,
                question.minute
            );
            // The rulebook's decision is identical, including receiver and end.
            asked(&question, second, |request| {
                let plain = policy.decide(request);
                assert_eq!(compiled.decide(request), plain, "the rulebook\n{text}");
                let (trace, explained) = (compiled.trace(request), plain.explain(request));
                assert_eq!((trace.allowed, trace.text), (explained.allowed, explained.text), "the trace\n{text}");
            });
        }
    }
    // Every kind of answer occurs often.
    assert!(seen.iter().all(|count| *count > PAIRS / 50), "{seen:?}");
}

/// The reference, evaluated minute by minute, gives the same answer for everything inside a grant until the grant ends.
#[test]
fn a_grant_ends_before_anything_in_it_is_decided_otherwise() {
    let mut chance = Chance(11);
    let (mut asked, mut ended) = (0, 0);
    while asked < 2000 {
        let world = World::random(&mut chance);
        let policy = Policy::parse(&world.text(), 3600).unwrap();
        for _ in 0..4 {
            let question = Question::random(&mut chance);
            let (Answer::Allowed(rule, prefix, service), until) = engine(&policy, &question, 0) else { continue };
            asked += 1;
            ended += usize::from(until.is_some());
            let prefix: IpNet = prefix.parse().unwrap();
            let entry = &world.entries[rule - 1];
            let last = until.map_or(u64::MAX, |until| until / 60).min(question.minute + 60);
            let mut inside = Question { ..question };
            for minute in inside.minute..last {
                for host in 0..8 {
                    inside.to = (if inside.to.1 { V6 } else { V4 } + host, inside.to.1);
                    for (protocol, port) in [(6, 22), (6, 40), (17, 7)] {
                        let covered =
                            prefix.contains(&address(inside.to)) && service.is_none_or(|one| one == (protocol, port));
                        (inside.protocol, inside.port, inside.minute) = (protocol, port, minute);
                        let Answer::Allowed(other, ..) = world.answer(&inside) else {
                            assert!(!covered, "denied inside\n{}", world.text());
                            continue;
                        };
                        let other = &world.entries[other - 1];
                        assert!(
                            !covered || (other.width, other.lifetime) == (entry.width, entry.lifetime),
                            "{}",
                            world.text()
                        );
                    }
                }
            }
        }
    }
    assert!(ended > asked / 20, "{ended} of {asked}");
}
