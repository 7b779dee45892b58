//! A gateway's flows in the kernel programs: how they open, how peer gateways' reports change them, and how they end.

#[allow(dead_code, reason = "the inside addresses' tests are its other user")]
mod gateway;
#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use gateway::{Client, MACS, PASS, Stage, admission_sees, both};
use lab::forge::{Packet, Tcp, flag};
use std::net::IpAddr;
use wire::map::{Flow, origin, stage, taken};
use wire::packet::UDP;
use wire::{Carrier, reorder};
use world::{NOW, address};

/// A client whose SYN was admitted must know the number of the server's answer, which it knows only if it received that
/// answer.
#[test]
fn kernel_opens_a_connection_once_its_client_has_the_answer() {
    const ANSWER: u32 = 1_000_000;
    for pool in [vec![], both()] {
        let stage = Stage::new(&pool);
        for six in [false, true] {
            let client = Client::new(7, six);
            stage.admit(&client);
            let flow = stage.verifier.flows.get(&client.key()).unwrap().unwrap();
            stage.verifier.flows.remove(&client.key()).unwrap();
            let opening = Flow { stage: stage::OPENING, next: 1, ..flow };
            stage.verifier.flows.insert(&client.key(), &opening).unwrap();
            let (shown, port) = match pool.is_empty() {
                true => (client.address, client.port),
                false => stage.shown(&client).expect("passes"),
            };
            let segment = |acknowledgement| Tcp { acknowledgement, ..Tcp::new(client.port, 22, flag::ACK) };
            let seen = admission_sees(&stage, &client, segment(ANSWER + 1));
            assert_eq!(seen.stage, stage::OPENING, "the server has not answered");
            let answer = Tcp { sequence: ANSWER, ..Tcp::new(22, port, flag::SYN | flag::ACK) };
            let back = Packet::new(client.server, shown).ethernet(MACS[1], MACS[0]);
            stage.outward(&back.tcp(answer).frame()).expect("goes out");
            for (guess, expected) in [(0, stage::OPENING), (ANSWER, stage::OPENING), (ANSWER + 1, stage::OPEN)] {
                let seen = admission_sees(&stage, &client, segment(guess));
                assert_eq!((seen.stage, seen.answer), (expected, ANSWER + 1), "{shown}, {guess}");
            }
        }
    }
}

/// The answer to a client whose segments come as datagrams is recorded for that client's flow, and for no other flow
/// between the same ports. A gateway that does not take such segments ignores their flows.
#[test]
fn kernel_opens_a_connection_in_datagrams_once_its_client_has_the_answer() {
    const ANSWER: u32 = 1_000_000;
    for takes in [true, false] {
        let carriers = if takes { Carrier::TcpInUdp as u16 } else { 0 };
        let stage = Stage::taking(carriers);
        for six in [false, true] {
            let client = Client::new(7, six);
            let key = client.key().in_datagrams();
            let opening = Flow { stage: stage::OPENING, next: 1, ..stage.flow_there(&client) };
            assert!(stage.verifier.flows.insert(&key, &opening).unwrap());
            let answer = Tcp { sequence: ANSWER, ..Tcp::new(22, client.port, flag::SYN | flag::ACK) };
            let back = Packet::new(client.server, client.address).ethernet(MACS[1], MACS[0]);
            stage.outward(&back.tcp(answer).frame()).expect("goes out");
            let flow = stage.verifier.flows.get(&key).unwrap().unwrap();
            let expected = if takes { ANSWER + 1 } else { 0 };
            assert_eq!((flow.stage, flow.answer), (stage::OPENING, expected), "IPv6: {six}");
            assert_eq!(stage.flow_at(&client), None, "an answer opens no flow of segments");
            if !takes {
                continue;
            }
            // The client's segments reach admission as datagrams.
            for (guess, expected) in [(ANSWER, stage::OPENING), (ANSWER + 1, stage::OPEN)] {
                let segment = Tcp { acknowledgement: guess, ..Tcp::new(client.port, 22, flag::ACK) };
                let mut datagram = client.packet().tcp(segment).frame();
                let whole = wire::packet::Packet::parse(&datagram);
                reorder::to_udp(&mut datagram, &whole).expect("a segment");
                assert_eq!(stage.verifier.run(&datagram, 1).unwrap().code, PASS);
                let flow = stage.verifier.flows.get(&key).unwrap().unwrap();
                assert_eq!(flow.stage, expected, "IPv6: {six}, {guess}");
            }
        }
    }
}

/// A sender that does not know the sequence numbers of either end can't open or end a flow that the inside opens.
#[test]
fn kernel_believes_only_the_one_that_the_inside_calls() {
    const CALL: u32 = 5_000;
    let stage = Stage::new(&[]);
    for six in [false, true] {
        let called = Client::new(7, six);
        let call = Tcp { sequence: CALL, ..Tcp::syn(22, called.port) };
        let out = Packet::new(called.server, called.address).ethernet(MACS[1], MACS[0]);
        stage.outward(&out.tcp(call).frame()).expect("goes out");
        let came = |sequence, acknowledgement, flags| {
            admission_sees(&stage, &called, Tcp { sequence, acknowledgement, ..Tcp::new(called.port, 22, flags) })
        };
        let forged = came(9, CALL, flag::SYN | flag::ACK);
        assert_eq!((forged.origin, forged.stage), (origin::INSIDE, stage::OPENING));
        let answered = came(70_000, CALL + 1, flag::SYN | flag::ACK);
        assert_eq!((answered.stage, answered.next), (stage::OPEN, 70_001));
        assert_eq!(came(1, 1, flag::RST).stage, stage::OPEN);
        assert_eq!(came(70_001, 1, flag::RST).stage, stage::RESET);
    }
}

#[test]
fn kernel_takes_a_told_flow_over_as_if_it_had_admitted_it() {
    let mut stage = Stage::new(&[]);
    for six in [false, true] {
        let client = Client::new(7, six);
        let flow = stage.flow_there(&client);
        assert_eq!(stage.told(&client, flow, false), taken::GONE, "nothing begins by news of what goes on");
        assert_eq!(stage.told(&client, flow, true), taken::NEW);
        assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), Some(flow));
        assert_eq!(stage.verifier.grants.get(&flow.handle).unwrap().map(|used| used.flows), Some(1));
        // The later packet wins, and a packet of the same second does not reopen a flow that is closing here.
        let closing = Flow { stage: stage::CLOSING, seen: flow.seen + 5, ..flow };
        assert_eq!(stage.told(&client, closing, false), taken::KNOWN);
        assert_eq!(stage.told(&client, Flow { stage: stage::OPEN, ..closing }, false), taken::KNOWN);
        assert_eq!(stage.told(&client, flow, true), taken::KNOWN);
        assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), Some(closing));
        // The sequence numbers of client and server come from the gateway that saw them last.
        let again = Flow { stage: stage::OPEN, seen: closing.seen + 1, next: 70, answer: 80, ..closing };
        assert_eq!(stage.told(&client, again, false), taken::KNOWN);
        assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), Some(again));
        // An open flow keeps its owner.
        let strangers = Flow { handle: 8, holder: 0x801, since: flow.since + 1, ..flow };
        assert_eq!(stage.told(&client, strangers, true), taken::OLDER);
        assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), Some(again));
        // Another grant's flow of the same holder replaces it if it is younger, and is counted in its own grant.
        let other = Flow { handle: 9, ..flow };
        assert_eq!(stage.told(&client, other, true), taken::OLDER);
        assert_eq!(stage.told(&client, Flow { since: flow.since + 1, ..other }, true), taken::NEW);
        let flows = |handle| stage.verifier.grants.get(&handle).unwrap().map(|used| used.flows);
        assert_eq!((flows(flow.handle), flows(9)), (Some(0), Some(1)));
        stage.verifier.grants.remove(&flow.handle).unwrap();
        stage.verifier.grants.remove(&9).unwrap();
        stage.end(&client);
        // A token that arrived at the peer counts here, and an older one undoes nothing.
        let datagrams = Client { protocol: UDP, port: 40_001, ..client };
        assert_eq!(stage.told(&datagrams, flow, true), taken::NEW);
        for proved in [flow.seen + 9, flow.seen + 3] {
            assert_eq!(stage.told(&datagrams, Flow { proved, ..flow }, false), taken::KNOWN);
            assert_eq!(stage.flow_at(&datagrams).map(|flow| flow.proved), Some(flow.seen + 9));
        }
        stage.verifier.grants.remove(&flow.handle).unwrap();
        stage.end(&datagrams);
    }
}

#[test]
fn kernel_takes_no_flow_over_whose_grant_is_revoked() {
    let stage = Stage::new(&[]);
    let client = Client::new(7, false);
    let flow = stage.flow_there(&client);
    stage.verifier.revoked.set(flow.handle, stage.now + 300).unwrap();
    assert_eq!(stage.told(&client, flow, true), taken::REVOKED);
    assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), None);
    assert_eq!(stage.verifier.grants.get(&flow.handle).unwrap(), None);
}

#[test]
fn kernel_takes_what_another_inside_opened_as_far_as_there_is_room() {
    let stage = Stage::new(&[]);
    let opened = Flow { origin: origin::INSIDE, since: NOW, seen: NOW, ..Flow::default() };
    let taken_over = (0..1100).filter(|port| {
        let client = Client { port: 10_000 + port, ..Client::new(7, false) };
        stage.told(&client, opened, true) == taken::NEW
    });
    assert_eq!(taken_over.count(), 1000);
    assert_eq!(stage.verifier.outbound().unwrap(), 1000);
}

/// A client's datagram arrived through one gateway, and the answer left through the other before that one had learned
/// of the flow.
#[test]
fn kernel_takes_answers_to_a_clients_datagram_for_no_flow_of_the_inside() {
    let stage = Stage::new(&[]);
    let client = Client { protocol: UDP, ..Client::new(7, false) };
    let flow = stage.flow_there(&client);
    let opened = Flow { origin: origin::INSIDE, since: flow.since, seen: flow.seen, ..Flow::default() };
    assert_eq!(stage.told(&client, opened, true), taken::NEW);
    assert_eq!(stage.told(&client, flow, true), taken::NEW);
    assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), Some(flow));
    assert_eq!(stage.verifier.outbound().unwrap(), 0);
    assert_eq!(stage.told(&client, Flow { since: flow.since + 1, ..opened }, true), taken::OLDER);
    assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), Some(flow));
}

#[test]
fn kernel_gives_a_told_flow_the_address_that_it_has_there() {
    let mut stage = Stage::new(&both());
    for (six, there, other) in [(false, "10.9.0.3", "10.9.0.1"), (true, "fd09::2", "fd09::1")] {
        let client = Client::new(7, six);
        let slot = stage.told_address(&client, there);
        assert_ne!(slot, 0);
        let flow = Flow { inside: slot, inside_port: client.port.to_be_bytes(), ..stage.flow_there(&client) };
        assert_eq!(stage.told(&client, flow, true), taken::NEW);
        assert_eq!(stage.told_address(&client, there), slot, "to be told twice changes nothing");
        assert_eq!(stage.shown(&client), Some((address(there), client.port)));
        let used = stage.gateway.addresses.slots.get(&(slot - 1)).unwrap().unwrap();
        assert_eq!((used.flows, used.person), (1, client.person));
        // The client's next flow, which begins here, has the same address; another client's has a different one.
        let next = Client { port: 40_001, ..client };
        stage.admit(&next);
        assert_eq!(stage.shown(&next), Some((address(there), next.port)));
        let stranger = Client { address: Client::new(8, six).address, ..Client::new(8, six) };
        assert_eq!(stage.told_address(&stranger, there), 0, "it is somebody's");
        assert_eq!(
            stage.told_address(&stranger, if six { "fd09::77" } else { "10.9.0.77" }),
            0,
            "it is not of the pool"
        );
        stage.admit(&stranger);
        assert_eq!(stage.shown(&stranger), Some((address(other), stranger.port)));
        for client in [client, next, stranger] {
            stage.end(&client);
        }
        stage.reclaim();
        assert!(stage.gateway.addresses.ways_back.keys().is_empty());
        let free = stage.gateway.addresses.slots.entries().iter().all(|(_, slot)| slot.flows == 0);
        assert!(free, "{:?}", stage.gateway.addresses.slots.entries());
    }
}

#[test]
fn kernel_leaves_room_for_the_neighbours_of_a_host_that_opens_all_it_can() {
    let mut stage = Stage::new(&[]);
    for six in [false, true] {
        let (_, server) = (Client::new(1, six).address, Client::new(1, six).server);
        let neighbour = match six {
            false => address("203.0.113.200"),
            true => address("2001:db8:0:1::99"),
        };
        let outside = Client::new(1, six).address;
        let open = |stage: &Stage, from: IpAddr, port: u16, to: u16| {
            let datagram = Packet::new(from, outside).ethernet(MACS[1], MACS[0]);
            let frame = datagram.tcp(Tcp::syn(port, to)).frame();
            assert!(stage.outward(&frame).is_some());
        };
        let of = |stage: &Stage, from: IpAddr| {
            stage.verifier.flows.keys().iter().filter(|key| key.server().0 == from).count()
        };
        // The limit is 1000 flows in all, of which one address may have a quarter.
        for port in 0..400 {
            open(&stage, server, 10_000 + port, 443);
        }
        assert_eq!(of(&stage, server), 250);
        open(&stage, neighbour, 8000, 443);
        assert_eq!(of(&stage, neighbour), 1);
        // The sweep recounts: it removes no live flow, and releases those that have ended.
        stage.verifier.sweep(stage.now).unwrap();
        open(&stage, server, 20_000, 443);
        assert_eq!(of(&stage, server), 250);
        stage.now += 31;
        stage.set_clock();
        stage.verifier.sweep(stage.now).unwrap();
        assert_eq!(of(&stage, server), 0);
        open(&stage, server, 20_000, 443);
        assert_eq!(of(&stage, server), 1);
    }
}

/// A client whose grant was revoked lets more flows end than any table of ended flows could hold.
#[test]
fn kernel_remembers_the_end_of_a_revoked_flow_whatever_else_ends() {
    let mut stage = Stage::of_size(131_072);
    let revoked = Client { protocol: UDP, ..Client::new(7, true) };
    let all = (50_000..50_200).map(|port| Client { port, ..revoked });
    all.clone().for_each(|client| stage.admit(&client));
    stage.verifier.revoked.set(u64::from(revoked.person) << 8, stage.now + 300).unwrap();
    stage.verifier.sweep(stage.now).unwrap();
    for port in 0..70_000u32 {
        let address = format!("2001:db8:ffff::9:{:x}", port >> 16).parse().unwrap();
        let client = Client { address, port: port as u16, ..Client { person: 9, ..revoked } };
        let flow = Flow { handle: 9 << 8, since: stage.now - 100, seen: stage.now - 100, ..Flow::default() };
        assert!(stage.verifier.flows.insert(&client.key(), &flow).unwrap());
    }
    stage.verifier.sweep(stage.now).unwrap();
    let opened = |stage: &Stage| {
        let is_open = |client: &Client| {
            let answer = Packet::new(client.server, client.address).ethernet(MACS[1], MACS[0]);
            stage.outward(&answer.udp(22, client.port).payload(b"more").frame()).expect("goes out");
            stage.verifier.flows.get(&client.key()).unwrap().is_some_and(|flow| flow.origin == origin::INSIDE)
        };
        all.clone().filter(is_open).count()
    };
    assert_eq!(opened(&stage), 0, "the inside's answers opened revoked flows again");
    // The flows stay ended while the inside keeps sending, and no longer.
    stage.now += 50;
    stage.set_clock();
    assert_eq!(opened(&stage), 0);
    stage.now += 50;
    stage.set_clock();
    stage.verifier.sweep(stage.now).unwrap();
    assert_eq!(opened(&stage), 0);
    stage.now += 70;
    stage.set_clock();
    stage.verifier.sweep(stage.now).unwrap();
    assert_eq!(opened(&stage), 200, "after a long silence the inside opens flows of its own");
}
