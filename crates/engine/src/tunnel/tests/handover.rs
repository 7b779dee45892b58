//! Tests of a path that leads to another responder, which does not know the tunnel.

use super::*;
use wire::seal::record::Unknown;
use wire::seal::{Counter, Index};

impl World {
    /// Leads the path to another responder, with the same keys and without tunnels.
    fn lead_elsewhere(&mut self) {
        self.responder = Responder::new(Limits::default(), (Suites::ALL, Suites(3)));
        self.path = Path::default();
    }

    /// Runs until the responder has a confirmed tunnel; returns how long that took.
    fn until_known(&mut self, at_most: Millis) -> Millis {
        let begun = self.now;
        while !self.responder.of(self.holder).and_then(|id| self.responder.info(id)).is_some_and(|info| info.confirmed)
        {
            assert!(self.now - begun < at_most, "no tunnel after {at_most} ms");
            self.run(STEP);
        }
        self.now - begun
    }

    /// Returns how many messages of a type were on the path since `from`, repeated ones included.
    fn messages(&self, kind: u8, from: usize) -> usize {
        self.seen[from..].iter().filter(|datagram| datagram[0] == kind).count()
    }
}

#[test]
fn a_client_that_only_receives_notices_within_two_seconds() {
    let mut world = World::open(41);
    for number in 1..20 {
        world.answer(number).expect("sealed");
        world.run(100);
    }
    world.lead_elsewhere();
    // Neither end has anything to say: the client waits for the server, and the other responder does not know it.
    let took = world.until_known(2_000);
    assert!(took >= 900, "{took}");
    world.answer(20).expect("sealed");
    world.run(100);
    assert_eq!(world.at_client.last(), Some(&20));
}

#[test]
fn after_an_outage_the_client_is_back_within_a_quarter_of_it() {
    for (outage, within) in [(3_000, 2_000), (10_000, 3_500), (40_000, 9_000)] {
        let mut world = World::open(42);
        world.talk(1, 20, 50);
        world.path.lost = 100;
        let _ = world.send(100);
        world.run(outage);
        world.lead_elsewhere();
        let took = world.until_known(within);
        let before = world.at_server.len();
        world.talk(200, 5, 50);
        world.run(100);
        assert_eq!(world.at_server.len(), before + 5, "{outage}: after {took}");
    }
}

#[test]
fn a_responder_that_says_nothing_of_unknown_tunnels_gets_a_handshake_after_silence() {
    let mut world = World::open(43);
    world.talk(1, 20, 50);
    world.lead_elsewhere();
    let _ = world.send(100);
    let begun = world.now;
    while world.now < begun + 7_000 {
        world.run(STEP);
        world.under_way.retain(|(.., datagram)| datagram[0] != 7);
    }
    assert!(world.info().confirmed);
}

#[test]
fn a_tunnel_that_is_quiet_costs_one_ping() {
    let mut world = World::open(44);
    world.talk(1, 20, 50);
    world.run(500);
    let from = world.seen.len();
    world.run(19_000);
    assert_eq!((world.messages(6, from), world.messages(1, from)), (2, 0), "a ping and its pong");
}

#[test]
fn forged_hints_begin_no_handshake_while_the_tunnel_is_heard_and_few_while_it_is_not() {
    let mut world = World::open(45);
    let mut dice = Dice(7);
    let from = world.seen.len();
    let forge = |world: &mut World| {
        // The attacker sees the client's records, and sends what looks like an answer to the latest of them.
        let index = world.initiator.links().next().expect("a tunnel").phases().next().expect("a phase").theirs;
        let is_theirs = |record: &&Vec<u8>| matches!(record[0], 4 | 6) && record[4..8] == index.get().to_be_bytes();
        let record = world.seen.iter().rev().find(is_theirs).expect("a record");
        let counter = Counter::from_bytes(record[8..16].try_into().expect("eight bytes")).expect("a counter");
        world.come_back(&mut Unknown { index, counter }.encode());
    };
    for number in 0..600 {
        let _ = (world.send(number), world.answer(number));
        world.run(100);
        (0..10).for_each(|_| forge(&mut world));
    }
    assert_eq!(world.messages(1, from), 0, "the tunnel is heard all the time");
    let info = world.info();
    // Somebody who does not see the records names none of them.
    world.run(5_000);
    for _ in 0..20_000 {
        let index = Index::new(dice.draw() as u32 | 1).expect("not zero");
        let counter = Counter::from_bytes((dice.draw() >> 40).to_be_bytes()).expect("a counter");
        world.come_back(&mut Unknown { index, counter }.encode());
    }
    world.run(1_000);
    assert_eq!(world.messages(1, from), 0, "nobody but who sees the path begins a handshake");
    for _ in 0..6_000 {
        world.run(STEP);
        forge(&mut world);
    }
    let handshakes = world.messages(1, from);
    assert!((1..=61).contains(&handshakes), "{handshakes} in a minute");
    assert_eq!(world.info().address, info.address);
    world.talk(1000, 3, 50);
    world.run(100);
    assert!(world.at_server.ends_with(&[1000, 1001, 1002]));
}
