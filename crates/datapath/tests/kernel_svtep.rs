//! A tunnel endpoint's programs, packet by packet: tenants' packets come out of the tunnel as they went in, and nothing
//! else does.

#[path = "../../engine/tests/cases/mod.rs"]
#[allow(dead_code, reason = "the other verifiers' tests are its other users")]
mod cases;
mod endpoints;

use cases::{Step, Table};
use datapath::Pins;
use datapath::clock;
use datapath::run::Ran;
use endpoints::{Endpoint, INTERFACE, MTU, REPORTS, address, families, vni};
use engine::verifier::proofs::{Outcome, Verifier};
use lab::forge::{Packet, Tcp, flag};
use lab::mint::now;
use lab::segments::{EPOCH_LENGTH, MAX_LIFETIME};
use std::net::{IpAddr, Ipv6Addr};
use wire::geneve::{Encapsulation, Payload};
use wire::map::{SegmentEntry, SegmentKey, UnsentHeader, counter, svtep_counter as tunnel};
use wire::packet::{Form, TCP, UDP};
use wire::{DropReason, Ends, Inner, SegmentFlags};

const REDIRECT: u32 = 7;
const SHOT: u32 = 2;
const UNSPEC: u32 = u32::MAX;
const SERVICE: u16 = 443;

fn datagram(from: IpAddr, to: IpAddr, port: u16, payload: &[u8]) -> Vec<u8> {
    Packet::new(from, to).udp(40_000, port).payload(payload).frame()
}

fn ended(ran: &Ran) -> &[u8] {
    &ran.frame[14..]
}

#[test]
fn kernel_puts_a_packet_in_and_takes_the_same_out_whatever_the_families() {
    let endpoint = Endpoint::new();
    for ends in families() {
        let given = endpoint.give(ends, Some((UDP, SERVICE)), SegmentFlags(0));
        let frame = datagram(ends.sender, ends.receiver, SERVICE, b"across");
        let (out, counted) = endpoint.counted(|| endpoint.program.run_out(&frame).unwrap());
        assert_eq!((out.code, counted), (REDIRECT, tunnel::SENT), "{ends:?}");
        let packet = wire::packet::Packet::parse(&out.frame);
        assert_eq!((packet.form, packet.destination_port), (Form::Whole, wire::geneve::PORT));
        assert_eq!((packet.source, packet.destination), (Some(ends.sending), Some(ends.receiving)));
        assert_eq!(packet.end, out.frame.len());
        let (encapsulation, inner) = Encapsulation::decode(&out.frame[packet.payload..packet.end]).unwrap();
        assert_eq!((encapsulation.segment, encapsulation.proofs), (given.segment, &given.proofs[..]));
        assert_eq!(inner, &frame[14..]);
        for _ in ["computed", "remembered"] {
            let (back, counted) = endpoint.counted(|| endpoint.program.run_in(&out.frame).unwrap());
            assert_eq!((back.code, counted), (REDIRECT, tunnel::DELIVERED), "{ends:?}");
            // Linux 6.1 requires padding of short packets. Bytes beyond a packet's own end belong to no packet.
            assert!(ended(&back).starts_with(&frame[14..]), "{ends:?}");
            assert_eq!(back.frame[12..14], frame[12..14], "{ends:?}");
        }
    }
}

/// Forwards a packet as the router with the next hop's address does.
fn route_on(frame: &mut [u8]) {
    let left = usize::from(frame[57]) - 1;
    frame[57] = left as u8;
    frame.copy_within(62 + 16 * left..78 + 16 * left, 38);
}

#[test]
fn kernel_leads_packets_along_a_fixed_path_and_takes_them_out_at_its_end() {
    let endpoint = Endpoint::new();
    let edge: Ipv6Addr = "2001:db8::a".parse().unwrap();
    let (epoch, key) = endpoint.giver.key("edge", now()).unwrap();
    let mut verifier = Verifier::new(vec![IpAddr::V6(edge).into()], EPOCH_LENGTH, MAX_LIFETIME);
    verifier.keys.insert((endpoint.giver.authority, epoch), key);
    for ends in families().into_iter().filter(|ends| ends.receiving.is_ipv6()) {
        let IpAddr::V6(end) = ends.receiving else { unreachable!("they were chosen") };
        let segment = endpoint.giver.segment(&ends, endpoints::ID, Some((UDP, SERVICE)));
        let segment = wire::Segment { flags: segment.flags.with(SegmentFlags::REPLY, true), ..segment };
        let path = [("edge", edge), (endpoints::PATH[0], end)];
        let given = endpoint.giver.prove_along(segment, vni(5), ends, &path).unwrap();
        let (slot, entry) = given.entry(INTERFACE).unwrap();
        assert_eq!(entry.endpoints(), Some((ends.sending, ends.receiving)));
        endpoint.program.segments.set(&slot, &entry).unwrap();
        let frame = datagram(ends.sender, ends.receiver, SERVICE, b"across");
        let (out, counted) = endpoint.counted(|| endpoint.program.run_out(&frame).unwrap());
        assert_eq!((out.code, counted), (REDIRECT, tunnel::SENT), "{ends:?}");
        assert_eq!(out.frame.len(), frame.len() + entry.grows());
        let mut led = out.frame;
        // The end of the path rejects a packet that has bypassed a verifier.
        let mut around = led.clone();
        route_on(&mut around);
        let malformed = || endpoint.program.proofs.counts().unwrap()[DropReason::Malformed as usize];
        let before = malformed();
        assert_eq!((endpoint.program.run_in(&around).unwrap().code, malformed()), (SHOT, before + 1));
        assert_eq!(verifier.verify(&mut led, now()), Outcome::Proved, "{ends:?}");
        route_on(&mut led);
        let (back, counted) = endpoint.counted(|| endpoint.program.run_in(&led).unwrap());
        assert_eq!((back.code, counted), (REDIRECT, tunnel::DELIVERED), "{ends:?}");
        assert!(ended(&back).starts_with(&frame[14..]), "{ends:?}");
        let noted: Vec<_> = endpoint.program.consents.entries().into_iter().map(|(_, consent)| consent).collect();
        let of_it = noted.iter().find(|consent| consent.hops().eq([edge, end]));
        assert!(of_it.is_some_and(|consent| consent.endpoints() == (ends.sending, ends.receiving)), "{noted:?}");
        endpoint.program.consents.keys().iter().for_each(|key| endpoint.program.consents.remove(key).unwrap());
    }
}

#[test]
fn kernel_decides_at_the_endpoint_as_every_other_verifier_of_proofs() {
    let table = Table::read();
    let mut judged = 0;
    for (of, verifier) in table.verifiers.iter().enumerate() {
        let fresh = || {
            let endpoint = Endpoint::new();
            let proofs = &endpoint.program.proofs;
            let before: Vec<_> = verifier.endpoints.iter().map(|net| (net.network(), net.prefix_len())).collect();
            proofs.stand_before(&before).unwrap();
            for ((authority, epoch), key) in &verifier.keys {
                proofs.learn(*authority, *epoch, key).unwrap();
            }
            endpoint
        };
        let mut endpoint = fresh();
        for case in table.cases.iter().filter(|case| case.of == of) {
            let (mut now, mut withdrew) = (table.now, false);
            for step in &case.steps {
                let proofs = &endpoint.program.proofs;
                match step {
                    Step::Wait(seconds) => now += seconds,
                    Step::Withdraw(what, until) => {
                        proofs.withdraw(what.vni, what.receiver, what.sender, *until).unwrap();
                        withdrew = true;
                    }
                    Step::Frame { frame, outcome, .. } => {
                        proofs.set_clock(clock::coarse_reading(now.into()).wrapping_add(200_000_000)).unwrap();
                        let before = proofs.counts().unwrap();
                        let ran = endpoint.program.run_in(frame).unwrap();
                        let after = proofs.counts().unwrap();
                        let moved: Vec<_> = (0..after.len()).filter(|i| after[*i] != before[*i]).collect();
                        let expected = match outcome {
                            Outcome::NotOurs => vec![counter::NOT_OURS as usize],
                            Outcome::Proved => vec![counter::TOKEN as usize],
                            Outcome::Drop(reason) => vec![*reason as usize],
                        };
                        let remembered = *outcome == Outcome::Proved && moved == [counter::FLOW as usize];
                        assert!(moved == expected || remembered, "{}: {moved:?}, not {expected:?}", case.name);
                        // No tenant is behind the interfaces that the table's segments name.
                        assert_eq!(ran.code, if *outcome == Outcome::NotOurs { UNSPEC } else { SHOT }, "{}", case.name);
                        judged += 1;
                    }
                }
            }
            if withdrew {
                endpoint = fresh();
            }
        }
    }
    assert!(judged > 300, "{judged}");
}

#[test]
fn kernel_sends_only_what_a_segment_is_for() {
    let endpoint = Endpoint::new();
    let [ends, ..] = families();
    endpoint.give(ends, Some((UDP, SERVICE)), SegmentFlags(0));
    let sent = |frame: &[u8]| {
        let (ran, counted) = endpoint.counted(|| endpoint.program.run_out(frame).unwrap());
        assert_eq!(ran.code == REDIRECT, counted == tunnel::SENT);
        counted
    };
    let (sender, receiver) = (ends.sender, ends.receiver);
    // This test opens no buffer, so packets for user space find no room.
    assert_eq!(sent(&datagram(sender, receiver, SERVICE, b"")), tunnel::SENT);
    assert_eq!(sent(&datagram(sender, receiver, SERVICE + 1, b"")), tunnel::UNREPORTED, "another port");
    assert_eq!(sent(&datagram(address("10.0.0.3"), receiver, SERVICE, b"")), tunnel::UNREPORTED, "another's address");
    assert_eq!(sent(&datagram(sender, address("10.0.0.3"), SERVICE, b"")), tunnel::UNREPORTED, "another receiver");
    let tcp = Packet::new(sender, receiver).tcp(Tcp::syn(40_000, SERVICE)).frame();
    assert_eq!(sent(&tcp), tunnel::UNREPORTED, "another protocol");
    let options = Packet::new(sender, receiver).options(&[1]).udp(40_000, SERVICE).frame();
    assert_eq!(sent(&options), tunnel::MALFORMED, "wire.md 8.7");
    let later = Packet::new(sender, receiver).udp(40_000, SERVICE).payload(&[0; 64]).fragments(32).remove(1);
    assert_eq!(sent(&later), tunnel::FRAGMENT);
    let refused = SegmentEntry::refused(lab::mint::now() + 60);
    let all = SegmentKey::new(INTERFACE, sender, receiver);
    let inner = Inner::parse(Payload::Ipv4, &tcp[14..]).unwrap();
    endpoint.program.segments.set(&SegmentKey::to_service(INTERFACE, &inner), &refused).unwrap();
    assert_eq!(sent(&tcp), tunnel::REFUSED);
    let given = endpoint.give(ends, None, SegmentFlags(0));
    assert_eq!((sent(&tcp), sent(&later)), (tunnel::SENT, tunnel::SENT), "one for all services");
    endpoint.program.segments.remove(&all).unwrap();
    let (_, mut entry) = given.entry(INTERFACE).unwrap();
    entry.until = lab::mint::now() - 1;
    endpoint.program.segments.set(&all, &entry).unwrap();
    assert_eq!(sent(&later), tunnel::FRAGMENT, "it has ended");
    endpoint.program.remove_tenant(INTERFACE, endpoints::ID).unwrap();
    assert_eq!(sent(&datagram(sender, receiver, SERVICE, b"")), tunnel::MALFORMED, "the tenant is gone");
}

#[test]
fn kernel_answers_under_a_segment_for_answers_only_and_tells_flows_apart_where_asked() {
    let endpoint = Endpoint::new();
    let [ends, ..] = families();
    let answer = |source: u16, destination: u16| {
        let packet = Packet::new(ends.sender, ends.receiver);
        endpoint.counted(|| endpoint.program.run_out(&packet.udp(source, destination).frame()).unwrap()).1
    };
    endpoint.give(ends, Some((UDP, SERVICE)), SegmentFlags::RETURN);
    assert_eq!((answer(SERVICE, 40_000), answer(40_000, SERVICE)), (tunnel::SENT, tunnel::UNREPORTED));
    let segment = endpoint.giver.segment(&ends, endpoints::ID, Some((UDP, SERVICE)));
    let flags = segment.flags.with(SegmentFlags::SINGLE, true);
    let single = wire::Segment { flags, sender_port: 40_000, ..segment };
    let single = endpoint.giver.prove(single, vni(5), ends, &endpoints::PATH).unwrap();
    let (key, entry) = single.entry(INTERFACE).unwrap();
    assert!(key.is_for_one_flow());
    endpoint.program.segments.set(&key, &entry).unwrap();
    endpoint.program.segments.set(&key.for_every_flow(), &SegmentEntry::by_flow()).unwrap();
    assert_eq!((answer(40_000, SERVICE), answer(40_001, SERVICE)), (tunnel::SENT, tunnel::UNREPORTED));
}

#[test]
fn kernel_notes_who_may_be_answered_once_for_each_segment() {
    let endpoint = Endpoint::new();
    for ends in families() {
        let answered =
            Ends { sending: ends.receiving, receiving: ends.sending, sender: ends.receiver, receiver: ends.sender };
        let frame = |port| datagram(ends.sender, ends.receiver, port, b"");
        let answer = Packet::new(ends.receiver, ends.sender).udp(SERVICE, 40_000).frame();
        let payload = if ends.sender.is_ipv4() { Payload::Ipv4 } else { Payload::Ipv6 };
        let inner = Inner::parse(payload, &answer[14..]).unwrap();
        let noted = || {
            let keys = SegmentKey::answering(INTERFACE, &inner);
            keys.into_iter().find_map(|key| endpoint.program.consents.get(&key).unwrap())
        };
        endpoint.give(ends, Some((UDP, SERVICE + 1)), SegmentFlags(0));
        let silent = endpoint.program.run_out(&frame(SERVICE + 1)).unwrap();
        endpoint.program.run_in(&silent.frame).unwrap();
        assert_eq!(noted(), None, "a sensor's hub may not answer");
        let given = endpoint.give(ends, Some((UDP, SERVICE)), SegmentFlags::REPLY);
        let out = endpoint.program.run_out(&frame(SERVICE)).unwrap();
        let before = endpoint.program.count(tunnel::CONSENTS).unwrap();
        for _ in 0..3 {
            assert_eq!(endpoint.program.run_in(&out.frame).unwrap().code, REDIRECT);
        }
        assert_eq!(endpoint.program.count(tunnel::CONSENTS).unwrap(), before + 1);
        let consent = noted().expect("it may be answered");
        assert_eq!(consent.endpoints(), (answered.receiving, answered.sending));
        let (shown, _) = Encapsulation::decode(consent.geneve()).unwrap();
        assert_eq!((shown.proofs, shown.vni, consent.expires), (&given.proofs[..], given.vni, given.segment.expires));
        endpoint.program.consents.keys().iter().for_each(|key| endpoint.program.consents.remove(key).unwrap());
    }
}

#[test]
fn kernel_delivers_to_the_tenant_of_that_network_and_as_the_last_verifier_only() {
    let endpoint = Endpoint::new();
    let [ends, ..] = families();
    let segment = endpoint.giver.segment(&ends, endpoints::ID, None);
    let come = |segment, network, path: &[&str]| {
        let given = endpoint.giver.prove(segment, vni(network), ends, path).unwrap();
        let (key, entry) = given.entry(INTERFACE).unwrap();
        endpoint.program.segments.set(&key, &entry).unwrap();
        let out = endpoint.program.run_out(&datagram(ends.sender, ends.receiver, 1, b"")).unwrap();
        endpoint.counted(|| endpoint.program.run_in(&out.frame).unwrap()).1
    };
    assert_eq!(come(segment, 5, &["here"]), tunnel::DELIVERED);
    assert_eq!(come(segment, 6, &["here"]), tunnel::UNDELIVERED, "another network's");
    assert_eq!(come(segment, 5, &["here", "there"]), tunnel::UNDELIVERED, "another verifier is to come");
    let nowhere = wire::Segment { interface: wire::InterfaceId(8), ..segment };
    assert_eq!(come(nowhere, 5, &["here"]), tunnel::UNDELIVERED);
}

#[test]
fn kernel_answers_for_neighbours_itself() {
    let endpoint = Endpoint::new();
    let run = |frame: &[u8]| endpoint.counted(|| endpoint.program.run_out(frame).unwrap());
    let mac = [2, 0, 0, 0, 0, 9];
    let arp = |operation: u8, sender: [u8; 4], target: [u8; 4]| {
        let mut frame = [&[0xff; 6][..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation], &mac, &sender].concat();
        frame.extend([[0; 6].as_slice(), &target].concat());
        frame
    };
    let (reply, counted) = run(&arp(1, [10, 0, 0, 1], [10, 0, 0, 2]));
    assert_eq!((reply.code, counted), (REDIRECT, tunnel::NEIGHBOUR));
    let ours = &reply.frame[6..12];
    assert_eq!(reply.frame[..6], mac);
    assert_eq!(reply.frame[20..22], [0, 2]);
    assert_eq!(reply.frame[22..42], [ours, &[10, 0, 0, 2], &mac, &[10, 0, 0, 1]].concat());
    assert_eq!(run(&arp(1, [0; 4], [10, 0, 0, 1])).1, tunnel::OTHER, "whether somebody else has the address");
    assert_eq!(run(&arp(1, [10, 0, 0, 1], [10, 0, 0, 1])).1, tunnel::OTHER, "it says that it is there");
    assert_eq!(run(&arp(2, [10, 0, 0, 1], [10, 0, 0, 2])).1, tunnel::OTHER, "an answer nobody asked for");

    let (asker, asked) = (address("fd00::1"), address("fd00::2"));
    let IpAddr::V6(target) = asked else { unreachable!("IPv6") };
    let solicitation = |from: IpAddr, option: &[u8], hops| {
        let body = [&target.octets()[..], option].concat();
        let to = address("ff02::1:ff00:2");
        Packet::new(from, to).hops(hops).icmp(135, 0, [0; 4]).payload(&body).ethernet(mac, [0x33; 6]).frame()
    };
    let option = [&[1, 1][..], &mac].concat();
    for option in [&option[..], &[]] {
        let (reply, counted) = run(&solicitation(asker, option, 255));
        assert_eq!((reply.code, counted), (REDIRECT, tunnel::NEIGHBOUR));
        let taken = if option.is_empty() { vec![] } else { [&[2, 1][..], ours].concat() };
        let body = [&target.octets()[..], &taken].concat();
        let expected = Packet::new(asked, asker).hops(255).icmp(136, 0, [0x60, 0, 0, 0]).payload(&body);
        assert_eq!(ended(&reply), &expected.frame()[14..]);
    }
    assert_eq!(run(&solicitation(address("::"), &[], 255)).1, tunnel::OTHER, "whether somebody else has the address");
    assert_eq!(run(&solicitation(asker, &option, 64)).1, tunnel::MALFORMED, "from beyond the link");
}

#[test]
fn kernel_keeps_segments_of_tcp_as_small_as_the_tunnel() {
    let endpoint = Endpoint::new();
    for ends in families() {
        let (key, entry) = endpoint.give(ends, Some((TCP, SERVICE)), SegmentFlags(0)).entry(INTERFACE).unwrap();
        let limit = MTU as usize - entry.grows() - if ends.sender.is_ipv4() { 40 } else { 60 };
        for (before, offered, after) in [(&[][..], 1460u16, limit as u16), (&[1], 9000, limit as u16), (&[], 536, 536)]
        {
            let options = |mss: u16| [before, &[2, 4], &mss.to_be_bytes(), &[1, 3, 3, 7]].concat();
            let syn = |mss| {
                let tcp = Tcp { options: options(mss), ..Tcp::syn(40_000, SERVICE) };
                Packet::new(ends.sender, ends.receiver).tcp(tcp).frame()
            };
            let out = endpoint.program.run_out(&syn(offered)).unwrap();
            let packet = wire::packet::Packet::parse(&out.frame);
            let (_, inner) = Encapsulation::decode(&out.frame[packet.payload..packet.end]).unwrap();
            assert_eq!(inner, &syn(after)[14..], "{offered} in {ends:?}");
        }
        endpoint.program.segments.remove(&key).unwrap();
    }
}

#[test]
fn kernel_hands_over_what_is_too_long_and_not_what_the_network_cuts_up() {
    let endpoint = Endpoint::new();
    for ends in families() {
        let (_, entry) = endpoint.give(ends, None, SegmentFlags(0)).entry(INTERFACE).unwrap();
        let headers = if ends.sender.is_ipv4() { 20 } else { 40 };
        let room = MTU as usize - entry.grows() - headers;
        let udp = |payload| datagram(ends.sender, ends.receiver, SERVICE, &vec![0; payload]);
        let counted = |frame: &[u8]| endpoint.counted(|| endpoint.program.run_out(frame).unwrap()).1;
        assert_eq!(counted(&udp(room - 8)), tunnel::SENT);
        assert_eq!(counted(&udp(room - 7)), tunnel::UNREPORTED);
        let tcp = Packet::new(ends.sender, ends.receiver).tcp(Tcp::new(40_000, SERVICE, flag::ACK));
        let tcp = tcp.payload(&[0; 3000]).frame();
        let segments = |of| endpoint.counted(|| endpoint.program.run_out_segments(&tcp, of).unwrap()).1;
        // In a test run, the kernel does not know that the packet is TCP, and refuses to change a super-packet.
        assert_eq!(segments(room as u32 - 20), tunnel::FAILED);
        assert_eq!(segments(room as u32 - 19), tunnel::UNREPORTED);
    }
}

#[test]
fn kernel_hands_over_no_more_than_a_tenants_share() {
    use std::sync::{Arc, Mutex};
    let endpoint = Endpoint::new();
    let [ends, ..] = families();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hear = heard.clone();
    let ring = endpoint.program.unsent(move |unsent| hear.lock().unwrap().push(unsent), |_| ()).unwrap();
    let frames: Vec<_> =
        (0..REPORTS as u16 + 3).map(|i| datagram(ends.sender, ends.receiver, i + 1, b"held")).collect();
    let second = lab::mint::now();
    let run = |frame: &Vec<u8>| {
        // The clock stands still, so that all packets arrive within one second.
        let reading = clock::coarse_reading(second.into()).wrapping_add(200_000_000);
        endpoint.program.proofs.set_clock(reading).unwrap();
        endpoint.counted(|| endpoint.program.run_out(frame).unwrap()).1
    };
    let reported = frames.iter().map(run).filter(|counted| *counted == tunnel::UNKNOWN).count();
    ring.poll(std::time::Duration::from_secs(1)).unwrap();
    let heard = heard.lock().unwrap();
    assert_eq!((heard.len(), reported), (REPORTS as usize, REPORTS as usize));
    assert!(heard.iter().all(|unsent| frames.contains(&unsent.frame) && unsent.header.interface == INTERFACE));
}

#[test]
fn kernel_hands_over_control_packets_apart_from_a_tenants_share() {
    use std::sync::{Arc, Mutex};
    /// The program's limit for each tenant and second.
    const CONTROLS_MAX: usize = 256;
    for ends in families() {
        let endpoint = Endpoint::new();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hear = heard.clone();
        let ring = endpoint.program.unsent(move |unsent| hear.lock().unwrap().push(unsent), |_| ()).unwrap();
        let given = endpoint.give(ends, Some((UDP, SERVICE)), SegmentFlags::REPLY);
        let frame = datagram(ends.sender, ends.receiver, SERVICE, b"to the endpoint");
        let mut control = endpoint.program.run_out(&frame).unwrap().frame;
        let packet = wire::packet::Packet::parse(&control);
        assert_eq!(control[packet.payload + 1], Encapsulation::CRITICAL);
        control[packet.payload + 1] |= Encapsulation::CONTROL;
        let second = lab::mint::now();
        let stand_still = || {
            let reading = clock::coarse_reading(second.into()).wrapping_add(200_000_000);
            endpoint.program.proofs.set_clock(reading).unwrap();
        };
        let run = || {
            stand_still();
            endpoint.counted(|| endpoint.program.run_in(&control).unwrap())
        };
        for count in 0..CONTROLS_MAX {
            let (ran, counted) = run();
            assert_eq!((ran.code, counted), (SHOT, tunnel::CONTROL), "{ends:?}, {count}");
            ring.poll(std::time::Duration::from_millis(1)).unwrap();
        }
        assert_eq!(run().1, tunnel::UNREPORTED, "{ends:?}");
        {
            let heard = heard.lock().unwrap();
            assert_eq!(heard.len(), CONTROLS_MAX);
            for unsent in heard.iter() {
                assert_eq!((unsent.header.interface, unsent.header.limit), (INTERFACE, UnsentHeader::CONTROL));
                assert!(unsent.frame[14..].starts_with(&frame[14..]) && unsent.frame[12..14] == frame[12..14]);
            }
        }
        // It was noted who may be answered, and the tenant's own packets are still handed over.
        let keys = endpoint.program.consents.keys();
        assert!(matches!(&keys[..], [key] if key.sender() == ends.receiver && key.receiver() == ends.sender));
        stand_still();
        let own = datagram(ends.sender, ends.receiver, SERVICE + 1, b"held");
        assert_eq!(endpoint.counted(|| endpoint.program.run_out(&own).unwrap()).1, tunnel::UNKNOWN);
        let nowhere = wire::Segment { interface: wire::InterfaceId(8), ..given.segment };
        let other = endpoint.giver.prove(nowhere, vni(5), ends, &endpoints::PATH).unwrap();
        let (key, entry) = other.entry(INTERFACE).unwrap();
        endpoint.program.segments.set(&key, &entry).unwrap();
        let mut control = endpoint.program.run_out(&frame).unwrap().frame;
        control[packet.payload + 1] |= Encapsulation::CONTROL;
        assert_eq!(endpoint.counted(|| endpoint.program.run_in(&control).unwrap()).1, tunnel::UNDELIVERED);
    }
}

#[test]
fn kernel_keeps_what_was_withdrawn_and_given_when_the_next_process_takes_over() {
    let pins = Pins::new("svtep", &format!("test-{}", std::process::id())).unwrap();
    let [ends, ..] = families();
    let frame = datagram(ends.sender, ends.receiver, SERVICE, b"");
    let endpoint = Endpoint::pinned(Some(pins.clone()));
    let given = endpoint.give(ends, Some((UDP, SERVICE)), SegmentFlags(0));
    endpoint.program.proofs.withdraw(vni(5), ends.receiver, Some(ends.sender), given.segment.expires).unwrap();
    drop(endpoint);
    let endpoint = Endpoint::pinned(Some(pins.clone()));
    let out = endpoint.program.run_out(&frame).unwrap();
    let came = endpoint.program.run_in(&out.frame).unwrap();
    let revoked = endpoint.program.proofs.counts().unwrap()[wire::DropReason::Revoked as usize];
    drop(endpoint);
    pins.remove().unwrap();
    assert_eq!((out.code, came.code, revoked), (REDIRECT, SHOT, 1));
}
