//! A gateway's inside addresses in the kernel programs: their assignment, the rewriting of packets, and the state left
//! when all flows have ended. Frames go through the loaded programs one by one.

#[allow(dead_code, reason = "the flows' tests are its other user")]
mod gateway;
#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::Spot;
use datapath::hook::Hook;
use datapath::verifier::Verifier;
use gateway::{Client, FOUR, MACS, PASS, Stage, back_of, both};
use lab::forge::{Packet, Tcp, flag};
use lab::seen::Seen;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use wire::map::{Bearer, Flow, VerifierConfig, address_of, origin};
use wire::packet::{TCP, UDP};
use world::{NOW, address};

#[test]
fn kernel_gives_a_person_one_address_and_takes_it_off_again() {
    let stage = Stage::new(&both());
    for six in [false, true] {
        for protocol in [TCP, UDP] {
            let client = Client { protocol, ..Client::new(7, six) };
            stage.admit(&client);
            let (inside, port) = stage.shown(&client).expect("passes");
            assert_eq!(inside.to_string(), if six { "fd09::1" } else { "10.9.0.1" });
            assert_eq!(port, client.port);
            let back = Packet::new(client.server, inside).ethernet(MACS[1], MACS[0]);
            let answer = match protocol {
                TCP => back.tcp(Tcp::new(22, port, flag::SYN | flag::ACK)).payload(b"fine").frame(),
                _ => back.udp(22, port).payload(b"fine").frame(),
            };
            let seen = stage.outward(&answer).expect("goes out");
            assert_eq!(
                (seen.source, seen.destination, seen.ports),
                (client.server, client.address, Some((22, client.port)))
            );
            assert!(seen.checksums_right && seen.payload == b"fine", "{seen:?}");
        }
    }
    let leases = stage.gateway.addresses.leases.entries();
    assert_eq!(leases.len(), 2, "one of each family: {leases:?}");
}

/// A pool of a hundred addresses serves a thousand people, a hundred of them at a time.
#[test]
fn kernel_gives_a_hundred_addresses_to_a_thousand_people_in_turn() {
    let pool: Vec<String> = (1..=100).map(|host| format!("10.9.0.{host}")).collect();
    let mut stage = Stage::new(&pool.iter().map(String::as_str).collect::<Vec<_>>());
    let (mut live, mut order): (BTreeMap<IpAddr, Client>, Vec<IpAddr>) = Default::default();
    for person in 1..=1000 {
        let client = Client::new(person, false);
        stage.admit(&client);
        if live.len() == 100 {
            assert_eq!(stage.shown(&client), None, "no address is free");
            // The earliest client leaves, and its address is the next to be assigned.
            let first = order.remove(0);
            let gone = live.remove(&first).unwrap();
            stage.end(&gone);
            assert_eq!(stage.shown(&client), None, "its flow may still be on its way");
            stage.reclaim();
            assert_eq!(stage.shown(&client), Some((first, client.port)), "the one that is free");
        }
        let (inside, _) = stage.shown(&client).expect("an address");
        assert!(live.insert(inside, client).is_none(), "{inside} is two people's");
        order.push(inside);
    }
    let used: BTreeSet<_> = live.keys().copied().collect();
    assert_eq!(used.len(), 100);
    for (inside, client) in &live {
        assert_eq!(stage.shown(client), Some((*inside, client.port)), "as long as the flow lives");
    }
    let dropped = stage.verifier.count(wire::DropReason::NoAddress as u32).unwrap();
    assert_eq!(dropped, 2 * 900);
}

#[test]
fn kernel_reuses_the_address_that_was_used_the_longest_ago() {
    let mut stage = Stage::new(&FOUR);
    let clients: Vec<Client> = (1..=3).map(|person| Client::new(person, false)).collect();
    let mut had = Vec::new();
    for client in &clients {
        stage.admit(client);
        had.push(stage.shown(client).unwrap().0);
    }
    for index in [1, 0, 2] {
        stage.end(&clients[index]);
        stage.reclaim();
    }
    // A person who comes back before the address has gone to another person has the same address again.
    let back = Client { port: 40_001, ..clients[0] };
    stage.verifier.flows.insert(&back.key(), &Flow { handle: 1 << 8, seen: stage.now, ..Flow::default() }).unwrap();
    assert_eq!(stage.shown(&back).unwrap().0, had[0]);
    for (person, expected) in [(8, had[1]), (9, had[2])] {
        let client = Client::new(person, false);
        stage.admit(&client);
        assert_eq!(stage.shown(&client).unwrap().0, expected, "person {person}");
    }
    let last = Client::new(10, false);
    stage.admit(&last);
    assert_eq!(stage.shown(&last), None);
}

#[test]
fn kernel_lets_nobody_in_whose_name_it_does_not_know() {
    let stage = Stage::new(&FOUR);
    let client = Client::new(3, false);
    stage.verifier.flows.insert(&client.key(), &Flow { handle: 99, seen: NOW, ..Flow::default() }).unwrap();
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = told.clone();
    let ring = stage.gateway.addresses.news(move |news| tell.lock().unwrap().push((news.kind, news.handle))).unwrap();
    assert_eq!(stage.shown(&client), None);
    ring.consume().unwrap();
    assert_eq!(*told.lock().unwrap(), [(wire::map::nat_news::UNKNOWN, 99)]);
    stage.gateway.addresses.bearers.set(&99, &Bearer { person: 3, expires: NOW + 300 }).unwrap();
    assert!(stage.shown(&client).is_some(), "the next packet");
}

/// A person's datagrams without an inside address could otherwise push out the messages about the addresses of others.
#[test]
fn kernel_asks_for_an_unknown_person_once_a_second_and_reports_addresses_all_the_while() {
    let stage = Stage::new(&FOUR);
    let unknown = Client { protocol: UDP, ..Client::new(3, false) };
    stage.verifier.flows.insert(&unknown.key(), &Flow { handle: 99, seen: NOW, ..Flow::default() }).unwrap();
    let reports = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let report = reports.clone();
    let ring = stage.gateway.addresses.news(move |news| report.lock().unwrap().push(news.kind)).unwrap();
    let begun = std::time::Instant::now();
    for _ in 0..20_000 {
        assert_eq!(stage.shown(&unknown), None);
    }
    let seconds = begun.elapsed().as_secs() as usize + 1;
    let known = Client::new(4, false);
    stage.admit(&known);
    assert!(stage.shown(&known).is_some());
    ring.consume().unwrap();
    let count = |kind| reports.lock().unwrap().iter().filter(|one| **one == kind).count();
    assert_eq!(count(wire::map::nat_news::GIVEN), 1, "the address that another person has got is reported");
    let asked = count(wire::map::nat_news::UNKNOWN);
    assert!((1..=seconds + 1).contains(&asked), "{asked} messages in {seconds} s");
}

/// Malformed packets are dropped before all others; a sender who mixes them with others must not get more samples.
#[test]
fn kernel_limits_samples_whatever_kinds_of_packets_are_dropped() {
    const LIMIT: u32 = 10;
    let config = VerifierConfig { samples_per_second: LIMIT, ..world::config() };
    let verifier = Verifier::load(Hook::Xdp, config, world::SIZES, None).unwrap_or_else(|error| panic!("{error:#}"));
    let stage = Stage::with(verifier, &config, &[]);
    let samples = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = samples.clone();
    let count = move |_| {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let ring = stage.verifier.samples(count).unwrap();
    let client = Client::new(3, false);
    let plain = client.packet().tcp(Tcp::new(client.port, 22, flag::SYN)).frame();
    let mut malformed = plain.clone();
    // A TCP header of 16 bytes.
    malformed[14 + 20 + 12] = 0x40;
    let begun = std::time::Instant::now();
    for _ in 0..1000 {
        for frame in [&malformed, &plain] {
            assert_eq!(stage.verifier.run(frame, 1).unwrap().code, Hook::Xdp.code(false));
        }
        ring.consume().unwrap();
    }
    let cores = std::thread::available_parallelism().unwrap().get();
    let most = LIMIT as usize * cores * (begun.elapsed().as_secs() as usize + 2);
    let samples = samples.load(std::sync::atomic::Ordering::Relaxed);
    assert!((1..=most).contains(&samples), "{samples} samples of 2000 packets, at most {most} are due");
}

/// Two devices of a person that use the same port appear as two to the inside.
#[test]
fn kernel_tells_a_persons_devices_apart_by_port() {
    let stage = Stage::new(&FOUR);
    let laptop = Client::new(1, false);
    let phone = Client { address: address("192.0.2.77"), ..laptop };
    stage.admit(&laptop);
    stage.verifier.flows.insert(&phone.key(), &Flow { handle: 1 << 8, seen: NOW, ..Flow::default() }).unwrap();
    let (one, other) = (stage.shown(&laptop).unwrap(), stage.shown(&phone).unwrap());
    assert_eq!((one.0, one.1 + 1), other);
    for (client, port) in [(laptop, one.1), (phone, other.1)] {
        let answer = Packet::new(client.server, one.0).ethernet(MACS[1], MACS[0]);
        let seen = stage.outward(&answer.tcp(Tcp::new(22, port, flag::ACK)).frame()).unwrap();
        assert!(seen.destination == client.address && seen.ports == Some((22, client.port)) && seen.checksums_right);
    }
}

#[test]
fn kernel_leaves_alone_what_no_token_admitted() {
    let stage = Stage::new(&both());
    for six in [false, true] {
        let client = Client::new(1, six);
        assert_eq!(stage.shown(&client), Some((client.address, client.port)), "not protected");
        let flow = Flow { origin: origin::INSIDE, seen: NOW, ..Flow::default() };
        stage.verifier.flows.insert(&client.key(), &flow).unwrap();
        assert_eq!(stage.shown(&client), Some((client.address, client.port)), "opened from inside");
    }
    assert!(stage.gateway.addresses.leases.entries().is_empty());
    // Packets from the inside to an unassigned address of the pool are dropped.
    let stray = Packet::new(address("203.0.113.20"), address("10.9.0.3")).ethernet(MACS[1], MACS[0]);
    assert!(stage.outward(&stray.clone().udp(22, 40_000).frame()).is_none());
    assert!(stage.outward(&stray.tcp(Tcp::syn(22, 40_000)).frame()).is_none());
    assert_eq!(stage.verifier.count(wire::map::counter::UNCLAIMED).unwrap(), 2);
}

#[test]
fn kernel_lets_nobody_outside_pass_for_an_address_of_the_pool() {
    let stage = Stage::new(&both());
    let mut dropped = 0;
    for (inside, other) in [("10.9.0.3", "203.0.113.99"), ("fd09::2", "2001:db8::99")] {
        let [inside, other] = [inside, other].map(address);
        let (kind, ping) = if inside.is_ipv6() { (1, 128) } else { (3, 8) };
        for (from, to) in [(inside, other), (other, inside)] {
            let packet = || Packet::new(from, to).ethernet(MACS[0], MACS[1]);
            let quoted = Packet::new(to, from).udp(5353, 5353).ip();
            let mut frames = packet().udp(5353, 5353).identification(3).payload(&[7; 100]).fragments(40);
            frames.push(packet().tcp(Tcp::syn(40_000, 80)).frame());
            frames.push(packet().udp(5353, 5353).frame());
            frames.push(packet().icmp(ping, 0, [0; 4]).frame());
            frames.push(packet().icmp(kind, 1, [0; 4]).payload(&quoted).frame());
            for frame in &frames {
                assert!(stage.inward(frame).is_none(), "{:?}", Seen::frame(frame));
            }
            dropped += frames.len() as u64;
        }
        // The gateway assigns an admitted person an inside address, whatever outside address the client has.
        let client = Client { address: inside, ..Client::new(1, inside.is_ipv6()) };
        stage.admit(&client);
        assert!(stage.shown(&client).is_some());
    }
    assert_eq!(stage.verifier.count(wire::map::counter::UNCLAIMED).unwrap(), dropped);
}

#[test]
fn kernel_translates_errors_with_what_they_quote() {
    let stage = Stage::new(&both());
    for six in [false, true] {
        let phone = Client::new(2, six);
        let client = Client { address: Client::new(3, six).address, ..phone };
        // Another device of the same person has the port, so this device's port changes.
        stage.admit(&phone);
        stage.shown(&phone).unwrap();
        stage.verifier.flows.insert(&client.key(), &Flow { handle: 2 << 8, seen: NOW, ..Flow::default() }).unwrap();
        let (inside, port) = stage.shown(&client).unwrap();
        assert_ne!(port, client.port);
        let (kind, unreachable) = if six { (1, 4) } else { (3, 3) };
        let router = address(if six { "2001:db8:77::1" } else { "192.0.2.1" });
        // Errors from the client, and from a router on the path, about the server's packet.
        let sent = Packet::new(client.server, client.address).tcp(Tcp::new(22, client.port, flag::ACK)).ip();
        for (from, shown) in [(client.address, inside), (router, router)] {
            let error = Packet::new(from, client.server).ethernet(MACS[0], MACS[1]);
            let seen = stage.inward(&error.icmp(kind, unreachable, [0; 4]).payload(&sent).frame()).expect("comes in");
            assert!(seen.checksums_right && seen.source == shown, "{seen:?}");
            let quoted = Seen::ip(&seen.payload).unwrap();
            assert_eq!((quoted.source, quoted.destination, quoted.ports), (client.server, inside, Some((22, port))));
        }
        // Errors from the server about the client's packet.
        let got = Packet::new(inside, client.server).tcp(Tcp::new(port, 22, flag::ACK)).ip();
        let error = Packet::new(client.server, inside).ethernet(MACS[1], MACS[0]);
        let seen = stage.outward(&error.icmp(kind, unreachable, [0; 4]).payload(&got).frame()).expect("goes out");
        assert!(seen.checksums_right && seen.destination == client.address, "{seen:?}");
        let quoted = Seen::ip(&seen.payload).unwrap();
        assert_eq!(
            (quoted.source, quoted.destination, quoted.ports),
            (client.address, client.server, Some((client.port, 22)))
        );
    }
}

#[test]
fn kernel_translates_fragments() {
    let stage = Stage::new(&both());
    for six in [false, true] {
        let client = Client { protocol: UDP, ..Client::new(5, six) };
        stage.admit(&client);
        let pieces = client.packet().udp(client.port, 22).identification(9).payload(&[7; 100]).fragments(40);
        let shown: BTreeSet<IpAddr> = pieces.iter().map(|piece| stage.inward(piece).expect("passes").source).collect();
        let inside = address(if six { "fd09::1" } else { "10.9.0.1" });
        assert_eq!(shown, BTreeSet::from([inside]));
        let back = Packet::new(client.server, inside).ethernet(MACS[1], MACS[0]);
        let pieces = back.udp(22, client.port).identification(9).payload(&[7; 100]).fragments(40);
        for piece in &pieces {
            assert_eq!(stage.outward(piece).expect("goes out").destination, client.address);
        }
        let late =
            back_of(client.server, inside).identification(10).udp(22, client.port).payload(&[7; 100]).fragments(40);
        assert!(stage.outward(&late[1]).is_none(), "a piece whose first one nobody saw");
    }
}

/// A UDP checksum that is absent over IPv4 stays absent.
#[test]
fn kernel_makes_no_checksum_where_there_is_none() {
    let stage = Stage::new(&FOUR);
    let client = Client { protocol: UDP, ..Client::new(5, false) };
    stage.admit(&client);
    let frame = client.packet().udp(client.port, 22).no_checksum().payload(b"odd").frame();
    let ran = stage.gateway.run(Spot::Inward, &frame).unwrap();
    assert_eq!((ran.code, &ran.frame[40..42]), (PASS, &[0, 0][..]));
    assert_eq!(
        address_of([10, 9, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 4),
        Seen::frame(&ran.frame).unwrap().source
    );
}
