//! Several paths between two endpoints: dead ones are left, and found again when they work.

use super::*;
use crate::model::Issued;
use std::collections::{HashMap, VecDeque};
use wire::answers::{PROBE, PROBE_ANSWER};
use wire::{Epoch, ProofKey};

const LINK: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
/// Time from one call of `probe` to the next, in milliseconds.
const TICK: u32 = 400;

fn key() -> ProofKey {
    ProofKey::new([4; 32])
}

/// Issues a segment for the path with this number. The first byte of its proof tells the number.
fn on_path(flags: SegmentFlags, ends: Ends, expires: u32, path: u8) -> Given {
    Given { proofs: vec![[path; 16]], ..segment(flags, ends, expires) }
}

fn path_of(datagram: &[u8]) -> u8 {
    Encapsulation::decode(datagram).expect("our own").0.proofs[0][0]
}

/// Two endpoints, an authority that knows two paths in each direction, and the network between them.
struct World {
    a: Endpoint,
    b: Endpoint,
    table_a: HashMap<SegmentKey, SegmentEntry>,
    table_b: HashMap<SegmentKey, SegmentEntry>,
    consents: HashMap<SegmentKey, Consent>,
    /// For each path, whether it works there, and back.
    works: [[bool; 2]; 2],
    /// Which share of the packets there the network loses: this many of as many.
    loss: (u32, u32),
    /// Whether the authority's answers have room for both segments.
    has_room: bool,
    /// Whether the other endpoint knows probes.
    answers: bool,
    in_use: bool,
    millis: u32,
    sent: u32,
    number: u64,
    /// Numbers of requests for segments: of A for each path, and of B.
    asked: [u32; 3],
}

impl World {
    /// Starts a flow from a tenant of A to one of B.
    fn new() -> Self {
        let mut b = Endpoint::new(vec![address(THEIRS)]);
        let vni = Vni::new(5).expect("24 bits");
        b.admit(INTERFACE, Tenant { network: "blue".into(), vni, addresses: vec![address("10.0.0.2")] });
        b.hold_keys(vec![(address("192.0.2.1"), Epoch(0), key())], 3600);
        let (table_a, table_b, consents) = Default::default();
        let mut world = Self {
            a: endpoint(),
            b,
            table_a,
            table_b,
            consents,
            works: [[true; 2]; 2],
            loss: (0, 1),
            has_room: true,
            answers: true,
            in_use: true,
            millis: 0,
            sent: 0,
            number: 0,
            asked: [0; 3],
        };
        world.send("10.0.0.2");
        world
    }

    fn now(&self) -> u32 {
        NOW + self.millis / 1000
    }

    /// Hands over a packet to this address for which A has no segment.
    fn send(&mut self, to: &str) {
        let frame = syn("10.0.0.1", to, CLIENT, SERVICE);
        let action = self.a.handed_over(&unsent(&frame), nothing, no_entry, self.now());
        self.carry_out(true, action.into_iter().collect());
    }

    fn carry_out(&mut self, at_a: bool, actions: Vec<Action>) {
        let now = self.now();
        let mut left: VecDeque<_> = actions.into_iter().map(|action| (at_a, action)).collect();
        while let Some((at_a, action)) = left.pop_front() {
            let (at, more) = match action {
                Action::Write(key, entry) => {
                    let table = if at_a { &mut self.table_a } else { &mut self.table_b };
                    table.insert(key, entry);
                    continue;
                }
                Action::Ask(wanted, request) => (true, self.issue(&wanted, &request, self.has_room)),
                Action::AskBoth(wanted, request) => (true, self.issue(&wanted, &request, true)),
                Action::AskBack(wanted, shown) => {
                    self.asked[2] += 1;
                    let given = on_path(SegmentFlags::RETURN, back(), shown.segment.expires, shown.proofs[0][0]);
                    (false, self.b.answered(&wanted, Ok(given.into()), now))
                }
                Action::Send { datagram, .. } => (!at_a, self.arrived(at_a, &datagram)),
                Action::Tell { .. } => panic!("nothing to tell"),
            };
            left.extend(more.into_iter().map(|action| (at, action)));
        }
    }

    fn issue(&mut self, wanted: &Wanted, request: &SegmentRequest, both: bool) -> Vec<Action> {
        self.asked[usize::from(request.path)] += 1;
        let (now, path) = (self.now(), request.path);
        let given = on_path(SegmentFlags::REPLY, Ends { receiver: request.to.address, ..out() }, now + 300, path);
        let answers = on_path(SegmentFlags::RETURN, back(), now + 300, path).passed_on(&key()).expect("it can be");
        let answers = if both { answers } else { Vec::new() };
        self.a.answered(wanted, Ok(Issued { given, answers, others: 1 }), now)
    }

    fn arrived(&mut self, from_a: bool, datagram: &[u8]) -> Vec<Action> {
        let now = self.now();
        self.sent += u32::from(from_a);
        let is_lost = from_a && self.sent % self.loss.1 < self.loss.0;
        if is_lost || !self.works[usize::from(path_of(datagram))][usize::from(!from_a)] {
            return Vec::new();
        }
        let (header, inner) = Encapsulation::decode(datagram).expect("our own");
        let frame = [&LINK[..], inner].concat();
        let Self { a, b, table_a, table_b, consents, .. } = self;
        if !from_a {
            assert!(header.control && header.segment.flags.has(SegmentFlags::RETURN));
            return a.controlled(INTERFACE, &frame, nothing, |key| table_a.get(key).copied(), now);
        }
        // As the kernel program does.
        let sent = read(&frame).expect("a packet");
        let flags = header.segment.flags.with(SegmentFlags::RETURN, true);
        let noted = SegmentKey::of(INTERFACE, sent.receiver, sent.sender, &Segment { flags, ..header.segment });
        let plain = Encapsulation { control: false, ..header };
        let came = Consent::new(&plain, address(OURS), address(THEIRS)).expect("it fits");
        if consents.get(&noted).is_none_or(|known| known.expires != came.expires) {
            consents.insert(noted, came);
        }
        if !header.control || !self.answers {
            return Vec::new();
        }
        b.controlled(INTERFACE, &frame, |key| consents.get(key).copied(), |key| table_b.get(key).copied(), now)
    }

    fn tick(&mut self) {
        self.millis += TICK;
        let now = self.now();
        if self.in_use {
            self.table_a.values_mut().for_each(|entry| entry.used = now);
        }
        let Self { a, table_a, number, .. } = self;
        let random = || {
            *number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678);
            *number
        };
        let mut actions = a.probe(|key| table_a.get(key).copied(), random, now);
        if self.millis.is_multiple_of(4800) {
            let entries: Vec<_> = table_a.iter().map(|(key, entry)| (*key, *entry)).collect();
            a.follow_paths(&entries, now);
            actions.extend(entries.iter().filter_map(|(key, entry)| a.renew(key, entry, nothing, now)));
        }
        self.carry_out(true, actions);
    }

    fn way(&self) -> &Way {
        &self.a.ways()[&address(THEIRS)]
    }

    /// Counts calls of `probe` until packets pass there and back on the path with this number.
    fn until(&mut self, number: u8) -> u32 {
        for ticks in 0..2000 {
            let way = self.way();
            if (way.number, way.answered) == (number, true) && self.back() == Some(number) {
                return ticks;
            }
            self.tick();
        }
        panic!("{:?}", self.way());
    }

    /// The path of the segment under which B's tenant answers.
    fn back(&self) -> Option<u8> {
        self.table_b.values().find(|entry| entry.until > self.now()).map(|entry| path_of(entry.geneve()))
    }
}

/// Returns a control packet of TCP between tenants, as the kernel program hands it up.
fn control(from: ([u8; 4], u16), to: ([u8; 4], u16), message: &[u8]) -> Vec<u8> {
    let length = (20 + 4 + message.len()) as u8;
    let head = [0x45, 0, 0, length, 0, 0, 0x40, 0, 64, TCP, 0, 0];
    [&LINK[..], &head, &from.0, &to.0, &from.1.to_be_bytes(), &to.1.to_be_bytes(), message].concat()
}

#[test]
fn a_path_that_dies_is_left_within_seconds_there_and_back() {
    for has_room in [true, false] {
        for dead in [[false, false], [false, true], [true, false]] {
            let mut world = World { has_room, ..World::new() };
            assert!(world.until(0) < 5);
            for _ in 0..100 {
                world.tick();
                assert_eq!((world.way().number, world.way().others, world.asked[1]), (0, 1, 0));
            }
            world.works[0] = dead;
            assert!(world.until(1) <= 10, "more than 4 s: {:?}", world.way());
            assert!(world.way().changed.is_some());
            assert_eq!((world.asked[1], world.a.path_changes()), (1, 1), "{has_room} {dead:?}");
        }
    }
}

#[test]
fn a_path_that_works_again_is_taken_again_and_nothing_is_lost() {
    let mut world = World::new();
    world.until(0);
    world.works[0] = [false, false];
    world.until(1);
    // Half a path is of no use. While it is tried, packets pass on the other.
    for half in [[false, false], [true, false], [false, true]] {
        world.works[0] = half;
        for _ in 0..200 {
            world.tick();
            assert_eq!((world.way().number, world.back()), (1, Some(1)), "{half:?}");
        }
    }
    let tries = world.asked[0];
    assert!((4..10).contains(&tries), "{tries} in four minutes");
    world.works[0] = [true, true];
    let mut ticks = 0;
    while world.way().number == 1 {
        assert_eq!(world.back(), Some(1));
        world.tick();
        ticks += 1;
        assert!(ticks < 2000, "{:?}", world.way());
    }
    assert!(world.until(0) < 5 && world.a.path_changes() == 2);
}

#[test]
fn a_flow_that_begins_on_another_path_takes_it_at_once() {
    let mut world = World::new();
    world.until(0);
    world.works[0] = [false, false];
    world.until(1);
    world.send("10.0.0.3");
    let entry = world.table_a.iter().find(|(key, _)| key.receiver() == address("10.0.0.3"));
    let (key, entry) = entry.expect("a segment");
    assert_eq!((path_of(entry.geneve()), world.a.path_of(key, entry)), (1, Some(1)));
}

/// An endpoint of an earlier release, or one that has no segment for its answers, answers no probe.
#[test]
fn an_endpoint_that_answers_no_probe_is_sent_to_on_the_first_path() {
    let mut world = World { answers: false, ..World::new() };
    let mut first = 0;
    for _ in 0..1500 {
        world.tick();
        first += u32::from(world.way().number == 0);
    }
    assert!(first > 1400 && world.a.path_changes() < 20, "{first} of 1500, {} changes", world.a.path_changes());
}

#[test]
fn a_congested_path_is_not_left_again_and_again() {
    let mut world = World::new();
    world.until(0);
    for (loss, most) in [((1, 2), 0), ((2, 3), 0), ((3, 4), 100)] {
        world.loss = loss;
        for _ in 0..1500 {
            world.tick();
        }
        let changes = world.a.path_changes();
        assert!(changes <= most, "{changes} changes in ten minutes, with loss {loss:?}");
    }
}

#[test]
fn probes_cost_nothing_without_alternatives_or_use() {
    let mut world = World::new();
    world.until(0);
    world.in_use = false;
    for _ in 0..100 {
        world.tick();
    }
    let sent = world.sent;
    for _ in 0..100 {
        world.tick();
    }
    assert_eq!(world.sent, sent, "nobody sends");
    let mut endpoint = endpoint();
    let (wanted, request) = ask(&mut endpoint, &syn("10.0.0.1", "10.0.0.2", CLIENT, SERVICE));
    assert_eq!(request.path, 0);
    endpoint.answered(&wanted, Ok(segment(SegmentFlags::REPLY, out(), NOW + 300).into()), NOW);
    assert!(endpoint.ways().is_empty());
}

#[test]
fn nobody_keeps_an_endpoint_on_a_dead_path_by_made_up_answers() {
    let mut world = World::new();
    world.until(0);
    let forge = |world: &mut World, from: [u8; 4], number: u64| {
        let message = [&[PROBE_ANSWER, 0, 0, 0][..], &number.to_be_bytes()].concat();
        let (frame, now) = (control((from, SERVICE), ([10, 0, 0, 1], CLIENT), &message), world.now());
        world.a.controlled(INTERFACE, &frame, nothing, no_entry, now);
    };
    world.works = [[false; 2]; 2];
    for ticks in 0.. {
        assert!(ticks < 10, "{:?}", world.way());
        world.tick();
        if world.way().number == 1 {
            break;
        }
        // Other numbers than the probe's, and the right one from another tenant.
        let number = world.number;
        (0..64).for_each(|bit| forge(&mut world, [10, 0, 0, 2], number ^ 1 << bit));
        forge(&mut world, [10, 0, 0, 3], number);
    }
    // An answer counts if it has the number of a probe and comes from the probe's receiver.
    world.tick();
    let number = world.number;
    assert!(!world.way().answered);
    forge(&mut world, [10, 0, 0, 2], number);
    assert!(world.way().answered);
}

/// A sender to a tenant can cause requests, but only so many.
#[test]
fn probes_make_an_endpoint_request_few_segments() {
    let mut world = World { has_room: false, answers: false, ..World::new() };
    let consent = *world.consents.values().next().expect("a packet came");
    let mut asked = 0;
    for client in 1..200_u16 {
        let message = [&[PROBE, 0, 0, 0][..], &[0; 8]].concat();
        let frame = control(([10, 0, 0, 1], client), ([10, 0, 0, 2], SERVICE), &message);
        let actions = world.b.controlled(INTERFACE, &frame, |_| Some(consent), no_entry, NOW);
        asked += actions.iter().filter(|action| matches!(action, Action::AskBack(..))).count();
    }
    assert_eq!(asked, 16);
}
