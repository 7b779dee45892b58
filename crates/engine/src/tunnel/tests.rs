//! Tests of both ends as a pair, in virtual time, with a path between them that loses, delays, repeats and changes
//! datagrams.

mod handover;
mod limits;

use super::*;
use crate::verifier::Verifier;
use seal::Batch;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use wire::seal::INITIATION_LEN;
use wire::{Destination, DropReason, Epoch, Flags, GrantHeader, Holder, MasterKey, Suite as MacSuite};

const WALL: u32 = 1_800_000_000;
const STEP: Millis = 10;
const HOME: &str = "198.51.100.7:40000";
const AWAY: &str = "203.0.113.9:1234";
const ATTACKER: &str = "192.0.2.200:6666";

/// Random numbers that are the same in every run (splitmix64).
struct Dice(u64);

impl Dice {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.draw() % 100 < chance
    }
}

impl Chance for Dice {
    fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.as_chunks_mut().0.iter_mut().for_each(|room| *room = self.draw().to_be_bytes());
        bytes
    }
}

/// Faults of the path: percentages, and the maximum number of steps by which a datagram is late beyond two.
#[derive(Clone, Copy, Default)]
struct Path {
    lost: u64,
    repeated: u64,
    late: u64,
}

struct World {
    dice: Dice,
    now: Millis,
    /// Error of the client's clock, in seconds.
    wrong: i64,
    path: Path,
    client: SocketAddr,
    initiator: Initiator,
    responder: Responder,
    tables: Verifier,
    holder: Holder,
    /// Time of arrival, source (`None` for the server), destination, datagram.
    under_way: Vec<(Millis, Option<SocketAddr>, SocketAddr, Vec<u8>)>,
    /// Every datagram that ever was on the path.
    seen: Vec<Vec<u8>>,
    /// Numbers of the packets that arrived, at the server and at the client.
    at_server: Vec<u64>,
    at_client: Vec<u64>,
    early: usize,
    dropped: Vec<NotTaken>,
    last: Option<TunnelId>,
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn service() -> Destination {
    Destination { address: "192.0.2.9".parse().expect("an address"), protocol: 17, port: 4500 }
}

fn tables() -> Verifier {
    let mut tables = Verifier::default();
    let epoch = Epoch::at(WALL.into(), 3600);
    for epoch in [Epoch(epoch.0 - 1), epoch, Epoch(epoch.0 + 1)] {
        let key = MasterKey::new([7; 32]).verifier_key("edge", epoch).expect("a short id");
        tables.keys.insert(epoch, key);
    }
    tables
}

fn terms(tables: &Verifier, holder: Holder, chance: u32, expires: u32) -> Terms {
    let epoch = Epoch::at(WALL.into(), 3600);
    let key = &tables.keys[&epoch];
    let grant = GrantHeader {
        suite: MacSuite::Siphash,
        flags: Flags::PORT,
        epoch: epoch.on_wire(),
        prefix_length: 32,
        expires,
        handle: holder.handle(key, chance),
    };
    Terms {
        key: grant.key(key, &service(), address(HOME).ip()),
        grant,
        to: service(),
        forward: true,
        suites: (Suites::ALL, Suites(3)),
        rekey_after: 30_000,
        room: 1400,
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let tables = tables();
        let holder = Holder::new(5, 1).expect("small");
        Self {
            dice: Dice(seed),
            now: 1_000_000,
            wrong: 0,
            path: Path::default(),
            client: address(HOME),
            initiator: Initiator::new(terms(&tables, holder, 1, WALL + 3000)),
            responder: Responder::new(Limits::default(), (Suites::ALL, Suites(3))),
            tables,
            holder,
            under_way: Vec::new(),
            seen: Vec::new(),
            at_server: Vec::new(),
            at_client: Vec::new(),
            early: 0,
            dropped: Vec::new(),
            last: None,
        }
    }

    fn wall(&self) -> u32 {
        WALL + ((self.now - 1_000_000) / 1000) as u32
    }

    fn clients_wall(&self) -> u32 {
        (i64::from(self.wall()) + self.wrong) as u32
    }

    /// Puts a datagram on the path.
    fn put(&mut self, from: Option<SocketAddr>, to: SocketAddr, datagram: Vec<u8>) {
        self.seen.push(datagram.clone());
        let copies = 1 + usize::from(self.dice.percent(self.path.repeated));
        for _ in 0..copies {
            if !self.dice.percent(self.path.lost) {
                let late = if self.path.late == 0 { 0 } else { self.dice.draw() % (self.path.late + 1) };
                self.under_way.push((self.now + STEP * (2 + late), from, to, datagram.clone()));
            }
        }
    }

    fn put_batch(&mut self, from: Option<SocketAddr>, to: SocketAddr, batch: &Batch) {
        for run in batch.runs() {
            run.bytes.chunks(run.segment).for_each(|datagram| self.put(from, to, datagram.to_vec()));
        }
    }

    fn send(&mut self, number: u64) -> Result<(), NotSealed> {
        let mut batch = Batch::default();
        let text = number.to_be_bytes();
        let times = (self.now, self.clients_wall());
        self.initiator.seal(&packet(&[&text]), times, &mut self.dice, &mut batch)?;
        self.put_batch(Some(self.client), server(), &batch);
        Ok(())
    }

    fn answer(&mut self, number: u64) -> Result<(), NotSealed> {
        let id = self.responder.of(self.holder).or(self.last).ok_or(NotSealed::Over)?;
        let mut batch = Batch::default();
        let text = number.to_be_bytes();
        let to = self.responder.seal(id, &packet(&[&text]), (self.now, self.wall()), &mut batch)?;
        self.put_batch(None, to, &batch);
        Ok(())
    }

    /// Advances the virtual time.
    fn run(&mut self, time: Millis) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            self.step();
        }
    }

    fn step(&mut self) {
        let due: Vec<_> = self.under_way.extract_if(.., |entry| entry.0 <= self.now).collect();
        for (_, from, to, mut datagram) in due {
            match from {
                Some(from) => self.arrive(from, &mut datagram),
                None if to == self.client => self.come_back(&mut datagram),
                // The client is elsewhere by now.
                None => {}
            }
        }
        let (now, wall) = (self.now, self.clients_wall());
        for datagram in self.initiator.poll((now, wall), &mut self.dice) {
            self.put(Some(self.client), server(), datagram);
        }
        let mut out = Vec::new();
        self.responder.poll((now, self.wall()), &self.tables, &mut self.dice, &mut out);
        out.into_iter().for_each(|outgoing| self.put(None, outgoing.to, outgoing.datagram));
    }

    /// Delivers a datagram from `from` to the server.
    fn arrive(&mut self, from: SocketAddr, datagram: &mut [u8]) {
        let (times, mut out) = ((self.now, self.wall()), Vec::new());
        let Self { responder, tables, dice, .. } = self;
        match responder.receive(datagram, from, &service(), times, tables, dice, &mut out) {
            Ok((id, Received::Packet { packet, early, .. })) => {
                self.at_server.push(u64::from_be_bytes((&*packet).try_into().expect("eight bytes")));
                self.early += usize::from(early);
                self.last = Some(id);
            }
            Ok((id, _)) => self.last = Some(id),
            Err(why) => self.dropped.push(why),
        }
        out.into_iter().for_each(|outgoing| self.put(None, outgoing.to, outgoing.datagram));
    }

    fn come_back(&mut self, datagram: &mut [u8]) {
        let times = (self.now, self.clients_wall());
        if let Ok(Received::Packet { packet, .. }) = self.initiator.receive(datagram, times, &mut self.dice) {
            self.at_client.push(u64::from_be_bytes((&*packet).try_into().expect("eight bytes")));
        }
    }

    /// Returns a world with an open tunnel in use, over a path without faults.
    fn open(seed: u64) -> Self {
        let mut world = Self::new(seed);
        world.initiator.want(true);
        world.send(0).expect("behind the initiation");
        world.run(200);
        assert!(world.initiator.is_open(world.now));
        world
    }

    fn info(&self) -> TunnelInfo {
        self.responder.of(self.holder).and_then(|id| self.responder.info(id)).expect("a tunnel")
    }

    /// Sends `count` packets in each direction, one every `every` milliseconds.
    fn talk(&mut self, from: u64, count: u64, every: Millis) {
        for number in from..from + count {
            let _ = self.send(number);
            let _ = self.answer(number);
            self.run(every);
        }
    }
}

fn server() -> SocketAddr {
    SocketAddr::new(service().address, service().port)
}

fn packet<'p>(parts: &'p [&'p [u8]]) -> Packet<'p> {
    Packet { treatment: Treatment::Encrypt, suites: Suites::ALL, lane: 0, partial: false, parts }
}

fn unique(numbers: &[u64]) -> usize {
    numbers.iter().collect::<BTreeSet<_>>().len()
}

#[test]
fn the_first_packet_goes_with_the_initiation_and_its_answer_comes_after_one_round_trip() {
    let mut world = World::new(1);
    world.send(7).expect("behind the initiation");
    assert_eq!(world.under_way.len(), 1, "one datagram");
    world.run(2 * STEP);
    assert_eq!((&world.at_server[..], world.early), (&[7][..], 1));
    world.answer(8).expect("the keys are there");
    world.run(2 * STEP);
    assert_eq!(world.at_client, [8]);
    assert!(world.initiator.is_open(world.now));
    world.send(9).expect("a record");
    world.run(2 * STEP);
    assert_eq!((&world.at_server[..], world.early), (&[7, 9][..], 1));
    assert!(world.info().confirmed);
}

#[test]
fn loss_disorder_and_repetition_lose_packets_and_nothing_else() {
    for seed in 0..8 {
        let mut world = World::new(seed);
        world.path = Path { lost: 25, repeated: 20, late: 6 };
        world.initiator.want(true);
        world.talk(0, 2400, 100);
        assert_eq!(unique(&world.at_server), world.at_server.len(), "seed {seed}: nothing came twice");
        assert_eq!(unique(&world.at_client), world.at_client.len(), "seed {seed}: nothing came twice");
        assert!(world.at_server.len() > 1500 && world.at_client.len() > 1500, "seed {seed}");
        assert!(world.initiator.phase() >= 6, "seed {seed}: re-keyed every 30 s, in phase {}", world.initiator.phase());
        world.path = Path::default();
        world.run(10_000);
        let (server, client) = (world.at_server.len(), world.at_client.len());
        world.talk(10_000, 50, 20);
        world.run(100);
        assert_eq!((world.at_server.len() - server, world.at_client.len() - client), (50, 50), "seed {seed}");
        assert_eq!(world.info().phase, world.initiator.phase(), "seed {seed}");
    }
}

#[test]
fn both_ends_that_begin_a_phase_at_once_come_to_the_same() {
    for seed in 0..20 {
        let mut world = World::open(seed);
        world.path = Path { lost: if seed % 2 == 0 { 0 } else { 30 }, repeated: 10, late: seed % 5 };
        world.initiator.wear(UNITS_MAX / 2, 0);
        world.responder.wear(world.holder, UNITS_MAX / 2, 0);
        world.talk(1, 100, 20);
        assert_eq!((world.initiator.phase(), world.info().phase), (2, 2), "seed {seed}");
        if seed % 2 == 0 {
            world.run(200);
            assert_eq!((world.at_server.len(), world.at_client.len()), (101, 100), "nothing is lost over it");
        }
    }
}

#[test]
fn a_re_key_without_traffic_needs_no_packet() {
    let mut world = World::open(3);
    world.run(100_000);
    assert_eq!((world.initiator.phase(), world.info().phase), (4, 4));
    world.answer(1).expect("sealed");
    world.run(100);
    assert_eq!(world.at_client, [1], "the server can speak first after a long silence");
}

#[test]
fn an_unused_tunnel_that_nobody_wants_ends_at_both_ends() {
    let mut world = World::open(4);
    world.initiator.want(false);
    // The path is cut, so nothing re-keys.
    world.path.lost = 100;
    world.run(REKEY_AFTER + REKEY_GRACE + 20_000);
    assert!(!world.initiator.is_open(world.now));
    assert_eq!(world.responder.len(), 0);
    assert_eq!(world.answer(1), Err(NotSealed::Over));
}

#[test]
fn a_verifier_that_restarts_is_found_again_within_two_seconds() {
    let mut world = World::open(5);
    world.talk(1, 20, 100);
    world.run(1500);
    world.responder = Responder::new(Limits::default(), (Suites::ALL, Suites(3)));
    let before = world.at_server.len();
    world.talk(100, 20, 100);
    world.run(100);
    let lost = 20 - (world.at_server.len() - before);
    assert!(lost <= 20 && world.initiator.is_open(world.now));
    world.talk(200, 10, 100);
    world.run(100);
    assert!(world.at_server.ends_with(&[208, 209]) && world.at_client.ends_with(&[208, 209]), "lost {lost}");
    assert!(world.dropped.contains(&NotTaken::Record(Dropped::NoTunnel)));
}

#[test]
fn an_agent_that_restarts_has_a_new_tunnel_and_the_old_one_goes() {
    let mut world = World::open(6);
    world.initiator = Initiator::new(terms(&world.tables, world.holder, 2, WALL + 3000));
    world.send(50).expect("behind the initiation");
    world.run(100);
    world.send(51).expect("a record");
    world.run(100);
    assert!(world.at_server.ends_with(&[50, 51]));
    assert_eq!(world.responder.len(), 2, "records of the old one may be under way");
    world.answer(52).expect("sealed");
    world.run(LINGER + 100);
    assert_eq!((world.responder.len(), &world.at_client[..]), (1, &[52][..]));
}

#[test]
fn an_address_that_changes_within_the_handshake_costs_nothing_but_time() {
    let mut world = World::new(7);
    world.send(1).expect("behind the initiation");
    world.run(2 * STEP);
    // The response goes to the client's old address.
    world.client = address(AWAY);
    world.run(400);
    assert!(world.initiator.is_open(world.now));
    world.talk(2, 10, 20);
    world.run(100);
    assert_eq!((world.at_server.len(), world.at_client.len()), (11, 10));
    assert_eq!(world.info().address, address(AWAY));
}

#[test]
fn a_tunnel_follows_its_client_and_nobody_who_copies() {
    let mut world = World::open(8);
    // The attacker sees every datagram, and each copy arrives first, from elsewhere.
    for number in 1..20 {
        world.send(number).expect("a record");
        let original = world.under_way.pop().expect("it is under way");
        world.arrive(address(ATTACKER), &mut original.3.clone());
        world.under_way.push(original);
        world.run(50);
        assert_eq!(world.info().address, address(HOME));
    }
    assert_eq!(unique(&world.at_server), 20, "the copies count");
    world.client = address(AWAY);
    world.talk(100, 10, 50);
    world.run(100);
    assert_eq!(world.info().address, address(AWAY));
    assert!(world.at_client.ends_with(&[107, 108, 109]));
}

#[test]
fn a_blind_attacker_moves_and_ends_nothing() {
    let mut world = World::open(9);
    let mut dice = Dice(99);
    let index = world.seen.last().expect("a record")[4..8].to_vec();
    for number in 0..2000u64 {
        let mut forged: Vec<u8> = (0..80).map(|_| dice.draw() as u8).collect();
        forged[..4].copy_from_slice(&[[4, 2, 1, 0], [6, 2, 1, 0], [5, 0x12, 1, 0]][number as usize % 3]);
        forged[4..8].copy_from_slice(&index);
        forged[8..16].copy_from_slice(&(number % 50).to_be_bytes());
        world.arrive(address(ATTACKER), &mut forged.clone());
        world.come_back(&mut forged);
    }
    world.talk(1, 10, 20);
    world.run(100);
    assert_eq!((world.at_server.len(), world.at_client.len()), (11, 10));
    assert_eq!(world.info().address, address(HOME));
}

#[test]
fn clocks_that_jump_stop_new_tunnels_and_not_those_there_are() {
    let mut world = World::open(10);
    world.wrong = 1800;
    world.talk(1, 10, 20);
    world.run(50);
    assert_eq!(world.at_server.len(), 11, "the tunnel goes on");
    let mut other = World::new(11);
    other.wrong = 1800;
    other.send(1).expect("behind the initiation");
    other.run(100);
    assert!(other.at_server.is_empty() && other.responder.is_empty());
    assert!(other.dropped.contains(&NotTaken::Initiation(DropReason::ClockSkew)));
    other.wrong = 0;
    other.run(ATTEMPT + 9000);
    other.send(2).expect("behind another initiation");
    other.run(100);
    assert_eq!(other.at_server, [2]);
}

#[test]
fn after_a_sleep_nothing_goes_under_old_keys() {
    let mut world = World::open(12);
    world.now += 600_000;
    world.send(5).expect("behind an initiation");
    let datagram = &world.under_way.last().expect("it is under way").3;
    assert_eq!(datagram[0], 1, "an initiation, and no record of the old tunnel");
    assert_eq!(world.answer(6), Err(NotSealed::Over));
    world.run(200);
    assert!(world.at_server.ends_with(&[5]) && world.initiator.is_open(world.now));
}

#[test]
fn a_million_forged_initiations_leave_nothing() {
    let mut world = World::new(13);
    world.send(1).expect("behind the initiation");
    let right = world.under_way.pop().expect("it is under way").3;
    let begun = std::time::Instant::now();
    for number in 0..1_000_000u32 {
        let mut forged = right[..INITIATION_LEN].to_vec();
        forged[64..68].copy_from_slice(&number.to_be_bytes());
        world.arrive(address(ATTACKER), &mut forged);
    }
    println!("{} ns each", begun.elapsed().as_nanos() / 1_000_000);
    assert!(world.responder.is_empty() && world.under_way.is_empty(), "no state, no answer");
    assert!(world.dropped.iter().all(|why| *why == NotTaken::Initiation(DropReason::BadTag)));
}

#[test]
fn a_first_flight_counts_once() {
    let mut world = World::new(14);
    world.send(1).expect("behind the initiation");
    let flight = world.under_way[0].3.clone();
    world.run(2 * STEP);
    for _ in 0..3 {
        world.arrive(address(ATTACKER), &mut flight.clone());
    }
    assert_eq!(world.at_server, [1]);
    assert_eq!(world.responder.len(), 1);
    assert!(world.dropped.iter().all(|why| *why == NotTaken::Record(Dropped::Replayed)), "{:?}", world.dropped);
    // The tunnel is forgotten, but the clock check would still let the first flight pass.
    world.client = address(AWAY);
    world.path.lost = 100;
    world.run(ATTEMPT + 1000);
    assert_eq!(world.responder.len(), 0);
    world.dropped.clear();
    world.arrive(address(HOME), &mut flight.clone());
    assert_eq!(world.dropped, [NotTaken::Initiation(DropReason::Replayed)]);
    assert_eq!(world.at_server, [1]);
}

#[test]
fn without_forward_secrecy_all_else_is_the_same() {
    let mut world = World::new(19);
    let mut terms = terms(&world.tables, world.holder, 1, WALL + 3000);
    terms.forward = false;
    world.initiator = Initiator::new(terms);
    world.initiator.want(true);
    world.talk(0, 700, 100);
    assert!(world.initiator.phase() >= 3);
    assert_eq!(unique(&world.at_server), world.at_server.len());
    assert!(world.at_server.len() >= 699);
}

#[test]
fn nothing_on_the_path_shows_what_is_sent() {
    let mut world = World::open(20);
    let text = 0x5ec2_e7a1_b2c3_d4e5;
    world.send(text).expect("sealed");
    world.answer(text).expect("sealed");
    world.run(100);
    assert!(world.at_server.contains(&text) && world.at_client.contains(&text));
    let needle = text.to_be_bytes();
    assert!(world.seen.iter().all(|datagram| !datagram.windows(8).any(|window| window == needle)));
}

/// Checks the memory of an idle tunnel at the verifier when its owner has used all lanes: AEAD keys are derived again
/// on use.
#[test]
fn an_idle_tunnel_takes_less_than_8_kib_at_the_verifier() {
    let mut world = World::open(21);
    let lanes = usize::from(wire::seal::record::LANES);
    let windows = |phases: usize| phases * lanes * size_of::<wire::ReplayWindow<32>>();
    world.run(LINGER + 100);
    let id = world.responder.of(world.holder).expect("a tunnel");
    assert!(!world.responder.repeats(id), "what repeats a handshake is forgotten");
    // The tunnel's entries in five tables, with room for growth.
    let entries = 2 * (4 * 16 + 3 * 16 + 24 + 16);
    let idle = responder::Tunnel::SIZE + windows(1) + entries;
    assert!(idle <= 8192, "{idle} bytes");
    println!("{idle} bytes idle");
}

#[test]
fn the_documents_names_of_drops_are_these() {
    let document = include_str!("../../../../docs/wire.md");
    let clause = document.split("**9.13**").nth(1).expect("§9.13");
    let names: Vec<_> = clause.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(names, Dropped::ALL.map(Dropped::name));
}

#[test]
fn a_verifiers_clock_that_is_set_back_brings_no_first_flight_back() {
    let mut world = World::new(22);
    world.send(1).expect("behind the initiation");
    let flight = world.under_way[0].3.clone();
    world.path.lost = 100;
    world.run(2 * STEP);
    let right = (world.now, world.wall());
    // The clock is an hour ahead for a while, in which the tunnel and the tag are forgotten.
    world.now += 3_600_000;
    world.step();
    assert!(world.responder.is_empty());
    (world.now, world.dropped) = (right.0, Vec::new());
    assert_eq!(world.wall(), right.1);
    world.arrive(address(HOME), &mut flight.clone());
    assert_eq!(world.dropped, [NotTaken::Initiation(DropReason::Replayed)]);
    assert_eq!(world.at_server, [1]);
    world.path = Path::default();
    world.initiator = Initiator::new(terms(&world.tables, world.holder, 2, WALL + 3000));
    world.run(1000);
    world.send(2).expect("behind another initiation");
    world.run(100);
    assert_eq!(world.at_server, [1, 2], "newer ones are taken");
}
