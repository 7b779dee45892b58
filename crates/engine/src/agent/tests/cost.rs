//! Tests of what one person's packets, receivers and events may cost the agent, and so everybody on the machine.

use super::*;
use crate::model::work::steps;
use std::net::IpAddr;

/// Most entries that look-ups for one packet may examine, however many receivers, grants and requests there are.
const STEPS_MAX: usize = 1000;

fn v6(network: u128, length: u8) -> ipnet::IpNet {
    ipnet::IpNet::new(IpAddr::from(network.to_be_bytes()), length).expect("a prefix").trunc()
}

fn at(address: IpAddr, port: u16) -> Destination {
    Destination { address, protocol: TCP, port }
}

/// Receivers, and destinations in them.
type List = (Vec<Receiver>, fn(u16) -> Destination);

/// Three lists of the largest size: one host each; one network and one port each; networks of every length around the
/// same addresses.
fn lists() -> [List; 3] {
    let count = RECEIVERS_MAX as u32;
    let hosts = (0..count).map(|n| Receiver { prefix: IpAddr::from((n + 1).to_be_bytes()).into(), ..receiver("::/0") });
    let ports = (0..count as u16).map(|n| Receiver {
        services: vec![Service { protocol: TCP, first_port: n, last_port: n }],
        ..receiver("0.0.0.0/0")
    });
    let nested = (0..count as u128).map(|n| Receiver {
        prefix: v6(n << 64, (n % 129) as u8),
        services: vec![Service { protocol: TCP, first_port: 0, last_port: 4096 }],
        ..receiver("::/0")
    });
    [
        (hosts.collect(), |n| at(IpAddr::from((u32::from(n) + 1).to_be_bytes()), 22)),
        (ports.collect(), |n| at([192, 0, 2, 1].into(), n)),
        (nested.collect(), |n| at(IpAddr::from(1_u128.to_be_bytes()), n)),
    ]
}

#[test]
fn a_packet_costs_the_same_however_many_receivers_and_requests_there_are() {
    for (receivers, place) in lists() {
        let mut stage = Stage::new(Config::default());
        stage.agent.login(ALICE, Login { expires: UNIX + 1000, receivers, ..Login::default() });
        // The authority never answers.
        for n in 0..200 {
            let cost = steps(|| stage.queued(place(n), n));
            assert!(cost <= STEPS_MAX, "packet {n} examined {cost} entries");
        }
        assert_eq!(stage.requests.len(), 64);
        stage.pass(1);
        let cost = steps(|| stage.agent.tick(stage.now, |_| None));
        assert!(cost <= STEPS_MAX, "a tick examined {cost} entries");
    }
}

#[test]
fn a_packet_costs_the_same_however_many_grants_there_are() {
    for flags in [Flags::PORT, Flags::PORT.with(Flags::SINGLE)] {
        let mut stage = Stage::alice();
        for n in 0..1000 {
            let place = if flags == Flags::PORT { tcp(1, n) } else { tcp(1, 22) };
            stage.queued(place, n);
            stage.answer(stage.grant_of(place, u64::from(n) + 1, 32, flags));
        }
        for n in [0, 999, 2000] {
            let cost = steps(|| stage.queued(tcp(1, 22), n));
            assert!(cost <= STEPS_MAX, "a packet examined {cost} entries");
        }
    }
}

#[test]
fn requests_by_hand_and_renewals_are_limited_and_leave_room_for_packets() {
    let mut stage = Stage::alice();
    for n in 0..500 {
        stage.queued(tcp(1, n), n);
        stage.answer(stage.grant(tcp(1, n), u64::from(n) + 1));
    }
    stage.used.last = UNIX as u32 + 10;
    stage.pass(250);
    assert_eq!(stage.requests.len(), 64, "renewals");
    for n in 1000..2000 {
        stage.agent.want(stage.now, ALICE, tcp(1, n));
    }
    stage.settle();
    assert_eq!(stage.requests.len(), 128);
    assert_eq!(stage.agent.want(stage.now, ALICE, tcp(1, 5000)), Standing::Missing);
    // Another person has room of their own.
    stage.login(BOB);
    stage.held_for(BOB, tcp(1, 5000), 1);
    assert_eq!(stage.requests.len(), 129);
    // Each renewal that is answered makes room for the next one.
    stage.answer(stage.grant(tcp(1, 0), 2000));
    stage.pass(1);
    assert_eq!(stage.requests.len(), 129);
}

#[test]
fn a_grant_for_a_network_has_a_limited_number_of_entries_in_the_kernel() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 1), 1);
    stage.answer(stage.grant_of(tcp(1, 1), 5, 24, Flags::default()));
    for n in 2..6000 {
        stage.queued(tcp((n % 250) as u8, n), n);
    }
    assert_eq!((stage.entries.len(), stage.sent.len(), stage.requests.len()), (4096, 5999, 0));
    assert!(stage.entry(tcp(1, 1)).is_none() && stage.has_grant(tcp((5999 % 250) as u8, 5999), 5));
    // A packet whose entry had to go takes the detour through the agent again.
    stage.queued(tcp(1, 1), 1);
    assert!(stage.has_grant(tcp(1, 1), 5));
    stage.agent.event(stage.now, ALICE, &Event::Revoked(vec![Handle(5)]));
    stage.settle();
    assert!(stage.entries.is_empty());
}

#[test]
fn an_event_that_names_many_grants_is_handled_in_parts() {
    let mut stage = Stage::alice();
    for n in 0..1000 {
        stage.queued(tcp(1, n), n);
        stage.answer(stage.grant(tcp(1, n), u64::from(n) + 1));
    }
    let parts = Event::Revoked((1..=100_000).map(Handle).collect()).parts();
    assert_eq!(parts.len(), 391);
    for part in parts {
        let Event::Revoked(grants) = &part else { panic!("{part:?}") };
        assert!(grants.len() <= 256);
        let cost = steps(|| stage.agent.event(stage.now, ALICE, &part));
        assert!(cost <= STEPS_MAX, "{cost}");
        stage.settle();
    }
    assert!(stage.entries.is_empty());
    assert_eq!(Event::Policy.parts(), [Event::Policy]);
}

#[test]
fn while_one_user_floods_the_packets_of_another_are_served_in_turn() {
    let mut stage = Stage::alice();
    stage.login(BOB);
    let mut turns = Turns::new(1024);
    for n in 0..10_000 {
        turns.push(ALICE.number(), (ALICE, tcp(1, n)));
        if n >= 9_000 && n % 100 == 0 {
            turns.push(BOB.number(), (BOB, tcp(2, n)));
        }
    }
    for n in 0..20 {
        let (subject, place) = turns.pop().expect("a packet");
        stage.held_for(subject, place, n);
    }
    let count = |subject| stage.requests.iter().filter(|(_, of, _)| *of == subject).count();
    assert_eq!((count(ALICE), count(BOB)), (10, 10));
}

#[test]
fn a_person_has_a_limited_number_of_rules() {
    let mut rules = ConsentRules::default();
    let target = |n: u32| Target::host(IpAddr::from(n.to_be_bytes()), None);
    for n in 0..consent::RULES_MAX as u32 {
        assert!(rules.have_room_for(&target(n)));
        rules.set(target(n), Consent::Deny);
    }
    assert!(!rules.have_room_for(&target(9999)) && rules.have_room_for(&target(7)));
}
