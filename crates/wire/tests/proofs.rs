//! Segments and proofs: vectors made without this crate's code, and properties that hold for every input (wire.md §8).

mod frames;

use frames::{Checksum, Plan, frame, frames, transport_sum};
use proptest::prelude::*;
use serde_json::Value;
use std::net::{IpAddr, Ipv6Addr};
use wire::checksum;
use wire::geneve::{self, ENCAPSULATION_MAX, Encapsulation, HEADER_LEN, OPTION_HEADER_LEN, Payload};
use wire::inner::Ports;
use wire::packet::Packet;
use wire::proof::Message;
use wire::routing::{Hops, Lock, Routed};
use wire::segment::PROOFS_MAX;
use wire::{
    DropReason, Ends, Epoch, Inner, InterfaceId, MasterKey, Proof, ProofKey, Segment, SegmentFlags, Suite, Vni,
};

fn vectors(name: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("data/proofs.json")).expect("proofs.json is JSON");
    all[name].as_array().expect("an array").clone()
}

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().expect("hex")).expect("hex")
}

fn number(case: &Value, field: &str) -> u64 {
    case[field].as_u64().unwrap_or_else(|| panic!("{field} is missing in {case}"))
}

fn text<'a>(case: &'a Value, field: &str) -> &'a str {
    case[field].as_str().unwrap_or_else(|| panic!("{field} is missing in {case}"))
}

fn address(case: &Value, field: &str) -> IpAddr {
    text(case, field).parse().expect("an address")
}

fn key(case: &Value, verifier: &str) -> ProofKey {
    let master = MasterKey::new(bytes(&case["master_key"]).try_into().expect("32 bytes"));
    master.proof_key(verifier, address(case, "authority"), Epoch(number(case, "epoch"))).expect("a short id")
}

fn segment_of(case: &Value, proofs: usize) -> Segment {
    Segment {
        suite: Suite::from_number(number(case, "suite") as u8).expect("a suite"),
        count: proofs as u8,
        pointer: 0,
        flags: SegmentFlags(number(case, "flags") as u8),
        protocol: number(case, "protocol") as u8,
        epoch: Epoch(number(case, "epoch")).on_wire(),
        expires: number(case, "expires") as u32,
        interface: InterfaceId(number(case, "interface") as u16),
        port: number(case, "port") as u16,
        sender_port: number(case, "sender_port") as u16,
        authority: address(case, "authority"),
    }
}

#[test]
fn keys_are_the_published_ones() {
    let cases = vectors("keys");
    assert!(cases.len() >= 7);
    for case in cases {
        assert_eq!(key(&case, text(&case, "verifier")).bytes()[..], bytes(&case["key"]), "{case}");
    }
    assert!(MasterKey::new([0; 32]).proof_key(&"x".repeat(65), [0; 4].into(), Epoch(0)).is_none());
}

#[test]
fn messages_proofs_and_options_are_the_published_ones() {
    let cases = vectors("segments");
    assert_eq!(cases.len(), 16, "every family of endpoints, ends and authority, with both suites");
    for case in cases {
        let ends = Ends {
            sending: address(&case, "sending"),
            receiving: address(&case, "receiving"),
            sender: address(&case, "sender"),
            receiver: address(&case, "receiver"),
        };
        let path = case["path"].as_array().expect("a path");
        let segment = segment_of(&case, path.len());
        let vni = Vni::new(number(&case, "vni") as u32).expect("24 bits");
        let mut proofs = Vec::new();
        for (place, verifier) in path.iter().enumerate() {
            let here = Segment { pointer: place as u8, ..segment };
            assert_eq!(Message::new(&here, vni, &ends).bytes(), bytes(&case["messages"][place]), "{case}");
            let key = key(&case, verifier.as_str().expect("an id"));
            let proof = Proof::new(&key, &here, vni, &ends);
            assert_eq!(proof.0[..], bytes(&case["proofs"][place]), "{case}");
            assert!(proof.proves(&key, &here, vni, &ends));
            proofs.push(proof.0);
        }
        let payload = if ends.sender.is_ipv6() { Payload::Ipv6 } else { Payload::Ipv4 };
        let made = Encapsulation { control: false, payload, vni, segment, proofs: &proofs };
        let mut room = [0; ENCAPSULATION_MAX];
        let len = made.encode(&mut room).expect("there is room");
        assert_eq!(room[..len], bytes(&case["geneve"]), "{case}");
        assert_eq!(Encapsulation::decode(&room[..len]), Ok((made, &[][..])));
        assert_eq!(made.encode(&mut room[..len - 1]), None);
    }
}

#[test]
fn messages_locks_and_closed_proofs_of_a_fixed_path_are_the_published_ones() {
    let cases = vectors("routes");
    assert_eq!(cases.len(), 4, "both families inside, both suites");
    for case in cases {
        let texts = |field: &str| -> Vec<String> {
            let list = case[field].as_array().expect("a list").iter();
            list.map(|value| value.as_str().expect("a text").to_owned()).collect()
        };
        let hops: Vec<Ipv6Addr> = texts("hops").iter().map(|hop| hop.parse().expect("an address")).collect();
        let path = texts("path");
        let ends = Ends {
            sending: address(&case, "sending"),
            receiving: hops[2].into(),
            sender: address(&case, "sender"),
            receiver: address(&case, "receiver"),
        };
        let hops = Hops::new(&hops).expect("no more than five");
        let vni = Vni::new(number(&case, "vni") as u32).expect("24 bits");
        let segment = segment_of(&case, path.len());
        let mut lock: Option<Lock> = None;
        for (place, verifier) in path.iter().enumerate() {
            let here = Segment { pointer: place as u8, ..segment };
            let routed = Routed { segment: &here, vni, ends: &ends, hops: &hops };
            assert_eq!(routed.message().bytes(), bytes(&case["messages"][place]), "{case}");
            let key = key(&case, verifier);
            let open = routed.proof(&key);
            assert!(routed.is_proved(&open, &key));
            let mut closed = open.0;
            if let Some(lock) = lock.replace(routed.lock(&key)) {
                lock.turn(&mut closed);
                assert!(!routed.is_proved(&Proof(closed), &key));
            }
            assert_eq!(closed[..], bytes(&case["proofs"][place]), "{case}");
            let mut turned = [0; 16];
            routed.lock(&key).turn(&mut turned);
            assert_eq!(turned[..], bytes(&case["locks"][place]), "{case}");
        }
    }
}

#[test]
fn a_path_has_one_to_five_hops() {
    let hop = Ipv6Addr::LOCALHOST;
    assert!(Hops::new(&[]).is_none() && Hops::new(&[hop; 6]).is_none());
    assert_eq!(Hops::new(&[hop; 5]).expect("five").list().len(), 5);
    let path = [Ipv6Addr::UNSPECIFIED, hop];
    let hops = Hops::new(&path).expect("two");
    assert_eq!(hops.list(), [hop.octets(), [0; 16]], "the last is listed first");
}

fn segments() -> impl Strategy<Value = Segment> {
    let suites = prop_oneof![Just(Suite::AesCmac), Just(Suite::Siphash)];
    let authority = prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)];
    let place = (1..=PROOFS_MAX).prop_flat_map(|count| (Just(count), 0..count));
    let fields = any::<(u8, u8, u8, u32, u16, u16, u16)>();
    (suites, place, authority, fields).prop_map(|(suite, (count, pointer), authority, fields)| {
        let (flags, protocol, epoch, expires, interface, port, sender_port) = fields;
        let chosen = SegmentFlags(if flags & 0x90 == 0x90 { flags & 0xb7 } else { flags & 0x37 })
            .with(SegmentFlags::AUTHORITY6, authority.is_ipv6());
        let flags = if chosen.has(SegmentFlags::RETURN) { SegmentFlags(chosen.0 & !4) } else { chosen };
        let single = flags.has(SegmentFlags::PORT) && sender_port % 2 == 1;
        let flags = flags.with(SegmentFlags::SINGLE, single);
        let (protocol, port) = if flags.has(SegmentFlags::PORT) { (protocol, port) } else { (0, 0) };
        let sender_port = if single { sender_port } else { 0 };
        let interface = InterfaceId(interface);
        Segment { suite, count, pointer, flags, protocol, epoch, expires, interface, port, sender_port, authority }
    })
}

fn ends() -> impl Strategy<Value = Ends> {
    (any::<[[u8; 16]; 4]>(), any::<bool>(), any::<bool>()).prop_map(|(all, underlay6, ipv6)| {
        let [sending, receiving, sender, receiver] = all;
        let of = |bytes: [u8; 16], six: bool| -> IpAddr {
            if six { bytes.into() } else { [bytes[0], bytes[1], bytes[2], bytes[3]].into() }
        };
        Ends {
            sending: of(sending, underlay6),
            receiving: of(receiving, underlay6),
            sender: of(sender, ipv6),
            receiver: of(receiver, ipv6),
        }
    })
}

fn payloads() -> impl Strategy<Value = Payload> {
    prop_oneof![Just(Payload::Ipv4), Just(Payload::Ipv6), Just(Payload::Ethernet)]
}

fn vnis() -> impl Strategy<Value = Vni> {
    any::<[u8; 3]>().prop_map(Vni::from)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_encapsulation_is_decoded_as_it_was_encoded(
        segment in segments(), payload in payloads(), vni in vnis(), proofs: [[u8; 16]; 5], inner: [u8; 3],
        change in (0usize..40, 1u8..),
    ) {
        let made = Encapsulation { control: false, payload, vni, segment, proofs: &proofs[..segment.count.into()] };
        let mut bytes = vec![0; ENCAPSULATION_MAX];
        let len = made.encode(&mut bytes).expect("there is room");
        bytes.truncate(len);
        bytes.extend(inner);
        prop_assert_eq!(Encapsulation::decode(&bytes), Ok((made, &inner[..])));
        for short in 0..len {
            let refused = Encapsulation::decode(&bytes[..short]);
            prop_assert_eq!(refused, Err(DropReason::Malformed), "of {} bytes", short);
        }
        // Every accepted encapsulation has exactly one encoding.
        bytes[change.0] ^= change.1;
        match Encapsulation::decode(&bytes) {
            Ok((read, rest)) => {
                let mut again = vec![0; ENCAPSULATION_MAX];
                let len = read.encode(&mut again).expect("there is room");
                prop_assert_eq!(&again[..len], &bytes[..bytes.len() - rest.len()]);
            }
            Err(reason) => prop_assert!(matches!(
                reason,
                DropReason::Malformed | DropReason::UnknownSuite | DropReason::NoToken
            )),
        }
    }

    #[test]
    fn a_proof_is_good_for_one_segment_one_place_and_one_set_of_ends(
        segment in segments(), vni in vnis(), ends in ends(), key: [u8; 32], other: [u8; 32], which in 0usize..4, bit in 0u32..32,
    ) {
        let (key, other) = (ProofKey::new(key), ProofKey::new(other));
        let proof = Proof::new(&key, &segment, vni, &ends);
        prop_assert!(proof.proves(&key, &segment, vni, &ends));
        prop_assert!(!proof.proves(&other, &segment, vni, &ends));
        let elsewhere = Vni::from([vni.bytes()[0] ^ 1, vni.bytes()[1], vni.bytes()[2]]);
        prop_assert!(!proof.proves(&key, &segment, elsewhere, &ends));
        let flip = |address: IpAddr| -> IpAddr {
            match address {
                IpAddr::V4(a) => IpAddr::V4((a.to_bits() ^ 1 << bit).into()),
                IpAddr::V6(a) => IpAddr::V6((a.to_bits() ^ 1 << bit).into()),
            }
        };
        let mut moved = ends;
        let end = [&mut moved.sending, &mut moved.receiving, &mut moved.sender, &mut moved.receiver];
        let [sending, receiving, sender, receiver] = end;
        let end = match which { 0 => sending, 1 => receiving, 2 => sender, _ => receiver };
        *end = flip(*end);
        prop_assert!(!proof.proves(&key, &segment, vni, &moved));
        let changed = [
            Segment { count: segment.count ^ 1, ..segment },
            Segment { pointer: segment.pointer ^ 1, ..segment },
            Segment { flags: SegmentFlags(segment.flags.0 ^ 1 << (bit % 8)), ..segment },
            Segment { protocol: segment.protocol ^ 1, ..segment },
            Segment { expires: segment.expires ^ 1 << bit, ..segment },
            Segment { interface: InterfaceId(segment.interface.0 ^ 1), ..segment },
            Segment { port: segment.port ^ 1, ..segment },
            Segment { sender_port: segment.sender_port ^ 1, ..segment },
        ];
        for segment in changed {
            prop_assert!(!proof.proves(&key, &segment, vni, &ends), "{:?}", segment);
        }
    }

    #[test]
    fn an_inner_packet_is_read_as_it_was_built(plan in frames(), link: bool) {
        let plan = Plan { tags: 0, extras: 0, ..plan };
        let whole = frame(&plan);
        let (payload, bytes) = match (link, plan.source) {
            (true, _) => (Payload::Ethernet, &whole[..]),
            (false, IpAddr::V4(_)) => (Payload::Ipv4, &whole[14..]),
            (false, IpAddr::V6(_)) => (Payload::Ipv6, &whole[14..]),
        };
        let inner = Inner::parse(payload, bytes).expect("nothing is wrong with it");
        prop_assert_eq!((inner.sender, inner.receiver), (plan.source, plan.destination));
        prop_assert_eq!(inner.ports, Ports::Shown(plan.ports.0, plan.ports.1));
        let end = bytes.len() - plan.padding;
        for short in 0..end {
            prop_assert_eq!(Inner::parse(payload, &bytes[..short]), Err(DropReason::Malformed));
        }
    }

    #[test]
    fn an_inner_packet_of_noise_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..120), payload in payloads()) {
        if let Ok(inner) = Inner::parse(payload, &bytes) {
            prop_assert_eq!(inner.sender.is_ipv6(), inner.receiver.is_ipv6());
        }
    }

    #[test]
    fn a_pointer_is_moved_and_checksums_stay_as_right_as_they_were(plan in frames(), rest in proptest::collection::vec(any::<u8>(), 16..60)) {
        let mut payload = rest;
        payload[HEADER_LEN + OPTION_HEADER_LEN] &= 0x7f;
        let plan = Plan { tcp: false, payload, ..plan };
        let before = frame(&plan);
        let packet = Packet::parse(&before);
        let mut after = before.clone();
        prop_assert_eq!(geneve::advance(&mut after, &packet), Some(()));
        let at = packet.payload + HEADER_LEN + OPTION_HEADER_LEN;
        prop_assert_eq!(after[at], before[at] + 1);
        let field = packet.transport + 6..packet.transport + 8;
        for index in (0..before.len()).filter(|index| *index != at && !field.contains(index)) {
            prop_assert_eq!(before[index], after[index]);
        }
        match plan.checksum {
            Checksum::Whole => prop_assert_eq!(transport_sum(&after, &packet), 0xffff),
            Checksum::Absent => prop_assert_eq!(&after[field], &[0, 0]),
            // One partial sum in 65 536 is also right as a complete one.
            Checksum::Partial => prop_assert!(
                after[field.clone()] == before[field] || checksum::is_partial(&before, &packet) == Some(false)
            ),
        }
    }

    #[test]
    fn nothing_but_a_datagram_has_a_pointer(plan in frames()) {
        let plan = Plan { tcp: true, ..plan };
        let mut bytes = frame(&plan);
        let before = bytes.clone();
        let packet = Packet::parse(&bytes);
        prop_assert_eq!(geneve::advance(&mut bytes, &packet), None);
        prop_assert_eq!(bytes, before);
    }
}
