//! Receivers, senders and requests for the bench. All of them are computed from their numbers, so that making a request
//! touches none of the memory that the decision uses.

use engine::issuing::grant::{Issue, Issued};
use engine::model::Service;
use engine::policy::rulebook::{Decision, Entry, Evaluation, Packed, Receiver, Request, Rulebook, Ruling, Sender};
use engine::policy::{Action, GrantSuite, Granularity, Terms};
use ipnet::IpNet;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::ops::Range;
use std::time::{Duration, Instant};
use wire::{Destination, Handle, Holder, Suite, VerifierKey};

/// Number of entries in each receiver's list.
pub const ENTRIES: usize = 1000;
/// Number of groups per person.
const GROUPS: usize = 4;
const TAGS: u64 = 100;
/// Number of receivers loaded between two checks of the progress.
const BATCH: u64 = 8192;
const NOW: u64 = 1_800_000_000;
/// Number of the windows that are closed at the bench's time.
const CLOSED: u16 = 2;

/// Reports whether the time window with the number `window` is open at the bench's time.
pub fn open(window: NonZeroU16) -> bool {
    window.get() != CLOSED
}

/// Reports whether a ruling allows the sender to send.
pub fn allows(ruling: &Ruling) -> bool {
    ruling.entry.action == Action::Allow
}

/// The numbers, senders, terms and keys from which the bench computes the content of its rulebook.
pub struct World {
    receivers: u64,
    persons: u64,
    networks: [Vec<Sender>; 4],
    terms: Vec<Terms>,
    keys: Vec<VerifierKey>,
}

/// A stream of random requests.
pub struct Requests<'w> {
    world: &'w World,
    chance: Chance,
}

/// A random request. It owns the list of subjects to which the result of [`Self::request`] refers.
pub struct Drawn {
    subjects: [Sender; GROUPS + 2],
    source: IpAddr,
    to: Destination,
    handle: Handle,
}

impl Drawn {
    /// Returns the request in the rulebook's form.
    pub fn request(&self) -> Request<'_> {
        Request { subjects: &self.subjects, source: Some(self.source), to: self.to }
    }
}

/// Pseudo-random numbers: splitmix64.
#[derive(Clone)]
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// The sender of an entry, as computed from its number.
enum About {
    Person(u64),
    Group(u64),
    Tag(u64),
    /// A network: one of the kinds of [`network`], and its number.
    Network(usize, u64),
}

impl World {
    /// Makes a world with this number of receivers, and fills a rulebook with its entries, in two threads. Returns
    /// both, and the total duration, including the computation of the entries.
    pub fn load(receivers: usize) -> (Self, Rulebook, Duration) {
        let receivers = receivers as u64;
        let mut book = Rulebook::default();
        let mut world = Self {
            receivers,
            persons: receivers.max(10_000),
            networks: [receivers / 2, receivers / 8, receivers / 4, receivers / 8]
                .map(|count| vec![Sender::EVERYONE; count as usize]),
            terms: terms(),
            keys: (0..1000).map(|number: u64| VerifierKey::new([number as u8; 32])).collect(),
        };
        let start = Instant::now();
        for (kind, senders) in world.networks.iter_mut().enumerate() {
            for (number, sender) in senders.iter_mut().enumerate() {
                *sender = book.network(network(kind, number as u64));
            }
        }
        let pack = |numbers: Range<u64>| -> Vec<Packed> {
            let entries = |number| (0..ENTRIES as u64).map(|place| world.entry(number, place)).collect::<Vec<_>>();
            numbers.map(|number| Packed::new(&entries(number))).collect()
        };
        for first in (0..receivers).step_by(BATCH as usize) {
            let end = receivers.min(first + BATCH);
            let middle = first.midpoint(end);
            let (some, others) = std::thread::scope(|scope| {
                let others = scope.spawn(|| pack(middle..end));
                (pack(first..middle), others.join().expect("lists are packed"))
            });
            for (number, packed) in (first..end).zip(some.into_iter().chain(others)) {
                book.set_packed(world.receiver(number), packed);
            }
            if first > 0 && first.is_multiple_of(16 * BATCH) {
                eprintln!("engine: {first} of {receivers} receivers are loaded");
            }
        }
        let loading = start.elapsed();
        (world, book, loading)
    }

    /// Returns a stream of requests; the same seed gives the same stream.
    pub fn requests(&self, seed: u64) -> Requests<'_> {
        Requests { world: self, chance: Chance(seed << 32) }
    }

    /// Decides on the request, and makes the grant if the decision allows one.
    pub fn issue(&self, book: &Rulebook, drawn: &Drawn) -> Option<Issued> {
        self.grant(&book.decide(&drawn.request(), open), drawn)
    }

    /// Decides on each request of a batch, and makes the grants that the decisions allow. Returns the number of grants.
    pub fn issue_all(&self, book: &Rulebook, drawn: &[Drawn]) -> usize {
        let requests: Vec<_> = drawn.iter().map(Drawn::request).collect();
        let mut made = 0;
        book.decide_all(
            &requests,
            |_, window| open(window),
            |place, evaluation| {
                made += usize::from(black_box(self.grant(evaluation, &drawn[place])).is_some());
            },
        );
        made
    }

    fn grant(&self, evaluation: &Evaluation<'_>, drawn: &Drawn) -> Option<Issued> {
        let Decision::Decided(ruling) = evaluation.decision else { return None };
        if !allows(&ruling) {
            return None;
        }
        let terms = self.terms[usize::from(ruling.entry.terms)];
        let issue = Issue {
            terms,
            scope: evaluation.scope(&ruling, terms.granularity),
            until: evaluation.windows().iter().map(|window| NOW + 100 * u64::from(window.get())).min(),
            to: drawn.to,
            source: drawn.source,
            holder: Holder((drawn.handle.0 >> 32) as u32),
            chance: drawn.handle.0,
            now: NOW,
            epoch_length: 3600,
            max_lifetime: 3600,
            verifier_key: &self.keys[ruling.receiver.verifier as usize],
        };
        issue.issue().ok()
    }

    /// Makes the change with the number `number`. A change with an even number adds an entry to some receiver's list.
    /// The change with the next odd number removes this entry.
    pub fn change(&self, book: &mut Rulebook, number: usize) {
        let mut chance = Chance(number as u64 / 2);
        let receiver = self.receiver(chance.below(self.receivers));
        let mut entry = self.entry(chance.below(self.receivers), chance.below(ENTRIES as u64));
        entry.revision = (self.receivers + 1) * ENTRIES as u64 + number as u64 / 2;
        let done =
            if number.is_multiple_of(2) { book.insert(&receiver, entry) } else { book.remove(&receiver, &entry) };
        assert!(done, "the receiver and the entry are there");
    }

    /// Returns the receiver with this number. A fifth of all receivers are networks, which have the lowest numbers. The
    /// other receivers are hosts inside these networks.
    fn receiver(&self, number: u64) -> Receiver {
        let wide = self.receivers / 5;
        let (network, host) = if number < wide { (number, None) } else { (number % wide, Some(number / wide)) };
        let prefix: IpNet = if network.is_multiple_of(4) {
            let bits = (0x2001_0db8_u128 << 96) | (u128::from(network) << 64) | u128::from(host.unwrap_or(0));
            IpNet::new(Ipv6Addr::from_bits(bits).into(), if host.is_some() { 128 } else { 64 }).expect("a prefix")
        } else {
            let bits = 0x4000_0000 | ((network as u32) << 8) | host.unwrap_or(0) as u32;
            IpNet::new(Ipv4Addr::from_bits(bits).into(), if host.is_some() { 32 } else { 24 }).expect("a prefix")
        };
        let service = if number.is_multiple_of(2) {
            Service::ALL
        } else {
            Service { protocol: 6, first_port: 1, last_port: 1023 }
        };
        Receiver { prefix, service, number: number as u32, verifier: (network % 1000) as u32 }
    }

    fn about(&self, receiver: u64, place: u64) -> (About, Chance) {
        let mut chance = Chance((receiver << 20) | place);
        let about = match chance.below(100) {
            0..50 => About::Person(chance.below(self.persons)),
            50..60 => About::Group(chance.below(self.groups())),
            60..65 => About::Tag(chance.below(TAGS)),
            65..80 => About::Network(0, chance.below(self.networks[0].len() as u64)),
            80..90 => About::Network(1, chance.below(self.networks[1].len() as u64)),
            90..95 => About::Network(2, chance.below(self.networks[2].len() as u64)),
            _ => About::Network(3, chance.below(self.networks[3].len() as u64)),
        };
        (about, chance)
    }

    fn entry(&self, receiver: u64, place: u64) -> Entry {
        let (about, mut chance) = self.about(receiver, place);
        let sender = match about {
            About::Person(number) => person(number),
            About::Group(number) => self.group(number),
            About::Tag(number) => self.tag(number),
            About::Network(kind, number) => self.networks[kind][number as usize],
        };
        let action = if chance.below(4) == 0 { Action::Deny } else { Action::Allow };
        Entry {
            sender,
            action,
            priority: 100 * (1 + chance.below(3) as u16),
            revision: receiver * ENTRIES as u64 + place,
            terms: if action == Action::Deny { 0 } else { chance.below(self.terms.len() as u64) as u16 },
            window: NonZeroU16::new(chance.below(10).saturating_sub(7) as u16),
        }
    }

    fn groups(&self) -> u64 {
        self.persons / 100
    }

    fn group(&self, number: u64) -> Sender {
        subject(self.persons + number)
    }

    fn tag(&self, number: u64) -> Sender {
        subject(self.persons + self.groups() + number)
    }
}

impl Requests<'_> {
    /// Draws the next request. In about half of the requests, the receiver has an entry about the sender; in the other
    /// half, the sender is random.
    pub fn draw(&mut self) -> Drawn {
        let number = self.chance.below(self.world.receivers);
        let known = self.chance.below(2) == 0;
        let place = known.then(|| self.chance.below(ENTRIES as u64));
        self.draw_about(number, place)
    }

    /// Draws a request that the rulebook most probably allows. The receiver has an entry that allows the sender at all
    /// times and has the highest priority, so only another entry of the same priority can override this entry.
    pub fn draw_allowed(&mut self) -> Drawn {
        let number = self.chance.below(self.world.receivers);
        let allowing = |place: &u64| {
            let entry = self.world.entry(number, *place);
            (entry.action, entry.priority, entry.window) == (Action::Allow, 300, None)
        };
        let first = self.chance.below(ENTRIES as u64);
        let place = (first..ENTRIES as u64).chain(0..first).find(allowing);
        self.draw_about(number, place)
    }

    fn draw_about(&mut self, number: u64, place: Option<u64>) -> Drawn {
        let (world, chance) = (self.world, &mut self.chance);
        let receiver = world.receiver(number);
        let inside = 5 + chance.next() % 200;
        let address = match receiver.prefix {
            IpNet::V4(net) if net.prefix_len() < 32 => Ipv4Addr::from_bits(net.addr().to_bits() + inside as u32).into(),
            IpNet::V6(net) if net.prefix_len() < 128 => {
                Ipv6Addr::from_bits(net.addr().to_bits() + u128::from(inside)).into()
            }
            host => host.addr(),
        };
        let mut who = chance.below(world.persons);
        let mut groups = [(); GROUPS].map(|()| chance.below(world.groups()));
        let mut tag = chance.below(TAGS);
        let kind = chance.below(4) as usize;
        let mut source = (kind, chance.below(world.networks[kind].len() as u64));
        match place.map(|place| world.about(number, place).0) {
            None => {}
            Some(About::Person(number)) => who = number,
            Some(About::Group(number)) => groups[0] = number,
            Some(About::Tag(number)) => tag = number,
            Some(About::Network(kind, number)) => source = (kind, number),
        }
        let source = match network(source.0, source.1) {
            IpNet::V4(net) if net.prefix_len() < 32 => Ipv4Addr::from_bits(net.addr().to_bits() + 9).into(),
            IpNet::V6(net) if net.prefix_len() < 128 => Ipv6Addr::from_bits(net.addr().to_bits() + 9).into(),
            host => host.addr(),
        };
        let mut subjects = [person(who); GROUPS + 2];
        for (room, group) in subjects[1..].iter_mut().zip(groups) {
            *room = world.group(group);
        }
        subjects[GROUPS + 1] = world.tag(tag);
        let to = Destination { address, protocol: 6, port: 22 };
        Drawn { subjects, source, to, handle: Handle(chance.next()) }
    }
}

/// Returns a network for entries. By kind: IPv4 hosts, IPv4 networks of three lengths around some of them, IPv6 hosts,
/// IPv6 networks of two lengths around some of them.
fn network(kind: usize, number: u64) -> IpNet {
    let v4 = |bits: u32, length| IpNet::new(Ipv4Addr::from_bits(bits).into(), length).expect("a prefix").trunc();
    let v6 = |bits: u128, length| IpNet::new(Ipv6Addr::from_bits(bits).into(), length).expect("a prefix").trunc();
    let wide = 0x2a00_u128 << 112;
    match kind {
        0 => v4(0x8000_0000 | ((number as u32) << 5), 32),
        1 => v4(
            0x8000_0000 | ((number as u32) << 8),
            if number.is_multiple_of(256) { 16 } else { 24 - (number % 2) as u8 * 4 },
        ),
        2 => v6(wide | (u128::from(number) << 62) | 1, 128),
        _ => v6(wide | (u128::from(number) << 64), if number.is_multiple_of(256) { 48 } else { 64 }),
    }
}

fn person(number: u64) -> Sender {
    subject(number)
}

fn subject(number: u64) -> Sender {
    Sender::subject(number as u32 + 1).expect("few subjects")
}

fn terms() -> Vec<Terms> {
    let terms = |granularity, single, suite| Terms {
        granularity,
        lifetime: 300,
        single,
        reply: false,
        bind_source: false,
        carrier: wire::Carrier::Tail,
        class: 0,
        sealing: engine::model::Sealing::NONE,
        suite,
    };
    vec![
        terms(Granularity::Application, false, GrantSuite::Mac(Suite::Siphash)),
        terms(Granularity::Application, true, GrantSuite::Mac(Suite::Siphash)),
        terms(Granularity::Host, false, GrantSuite::Mac(Suite::Siphash)),
        terms(Granularity::Network, false, GrantSuite::Mac(Suite::Siphash)),
    ]
}
