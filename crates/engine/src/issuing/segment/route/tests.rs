use super::super::*;
use crate::verifier::proofs::{Outcome, Verifier};
use std::net::Ipv6Addr;
use wire::geneve::{ENCAPSULATION_MAX, Payload};
use wire::{DropReason, InterfaceId, MasterKey};

const NOW: u64 = 1_800_000_000;
const LENGTH: u32 = 3600;
const PATH: [&str; 3] = ["sending-edge", "aside", "svtep"];
const HOPS: [&str; 3] = ["2001:db8:1::a", "2001:db8:1::b", "2001:db8:1::c"];
const BAD: Outcome = Outcome::Drop(DropReason::BadTag);

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn hops() -> [Ipv6Addr; 3] {
    HOPS.map(|hop| hop.parse().unwrap())
}

fn key(verifier: &str) -> ProofKey {
    MasterKey::new([7; 32]).proof_key(verifier, address("198.51.100.1"), Epoch::at(NOW, LENGTH)).unwrap()
}

/// Returns a verifier that stands before its own hop only.
fn verifier(place: usize) -> Verifier {
    let mut verifier = Verifier::new(vec![address(HOPS[place]).into()], LENGTH, 3600);
    verifier.keys.insert((address("198.51.100.1"), Epoch::at(NOW, LENGTH)), key(PATH[place]));
    verifier
}

fn giver(path: &[ProofKey]) -> Giver<'_> {
    Giver {
        authority: address("198.51.100.1"),
        suite: Suite::Siphash,
        path,
        now: NOW,
        epoch_length: LENGTH,
        max_lifetime: 3600,
    }
}

fn plain(giver: &Giver<'_>) -> Given {
    let segment = Segment {
        suite: giver.suite,
        count: 0,
        pointer: 0,
        flags: SegmentFlags::REPLY,
        protocol: 0,
        epoch: Epoch::at(NOW, LENGTH).on_wire(),
        expires: NOW as u32 + 300,
        interface: InterfaceId(5),
        port: 0,
        sender_port: 0,
        authority: giver.authority,
    };
    let ends = Ends {
        sending: address("2001:db8:1::1"),
        receiving: address(HOPS[2]),
        sender: address("10.0.0.7"),
        receiver: address("10.0.0.9"),
    };
    giver.give(segment, Vni::new(7).unwrap(), ends).expect("a path of three")
}

/// Returns a packet under the segment that has reached the hop at `place`.
fn frame(given: &Given, hops: &[Ipv6Addr], place: usize) -> Vec<u8> {
    let mut header = [0; ENCAPSULATION_MAX];
    let length = given.encapsulation(Payload::Ipv4).encode(&mut header).unwrap();
    let mut inner = vec![0x45, 0, 0, 24, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 7, 10, 0, 0, 9];
    inner.extend([8, 0, 0, 0]);
    let udp = (8 + length + inner.len()) as u16;
    let count = hops.len() as u8;
    let routing = [17, 2 * count, 4, count - 1 - place as u8, count - 1, 0, 0, 0];
    let list: Vec<_> = hops.iter().rev().flat_map(Ipv6Addr::octets).collect();
    let payload = (routing.len() + list.len()) as u16 + udp;
    let IpAddr::V6(sending) = given.ends.sending else { panic!("IPv6") };
    let ip =
        [&[0x60, 0, 0, 0][..], &payload.to_be_bytes(), &[43, 64], &sending.octets(), &hops[place].octets()].concat();
    let udp = [&[0xc0, 0, 0x17, 0xc1][..], &udp.to_be_bytes(), &[0, 0]].concat();
    [&[2; 12][..], &[0x86, 0xdd], &ip, &routing, &list, &udp, &header[..length], &inner].concat()
}

/// Does what the router that owns the next hop's address does.
fn route_on(frame: &mut [u8]) {
    let left = usize::from(frame[57]) - 1;
    frame[57] = left as u8;
    let next: [u8; 16] = frame[62 + 16 * left..][..16].try_into().unwrap();
    frame[38..54].copy_from_slice(&next);
}

/// Sends a frame through the verifiers at these places in turn; returns the first outcome other than `Proved`, or
/// `Proved`.
fn travels(mut frame: Vec<u8>, places: &[usize]) -> Outcome {
    for (step, place) in places.iter().enumerate() {
        if step > 0 {
            route_on(&mut frame);
        }
        let outcome = verifier(*place).verify(&mut frame, NOW as u32);
        if outcome != Outcome::Proved {
            return outcome;
        }
    }
    Outcome::Proved
}

#[test]
fn a_packet_that_keeps_to_its_path_arrives() {
    let path = PATH.map(key);
    let giver = giver(&path);
    let routed = plain(&giver).along(&giver, &hops()).expect("three hops");
    assert_eq!(travels(frame(&routed, &hops(), 0), &[0, 1, 2]), Outcome::Proved);
}

#[test]
fn no_hop_can_be_skipped_swapped_or_replaced() {
    let path = PATH.map(key);
    let giver = giver(&path);
    let routed = plain(&giver).along(&giver, &hops()).expect("three hops");
    let [a, b, c] = hops();
    // The packet starts behind a verifier, with the matching pointer and segments left.
    for place in [1, 2] {
        let ahead = Given { segment: Segment { pointer: place, ..routed.segment }, ..routed.clone() };
        let begun = frame(&ahead, &hops(), place.into());
        assert_eq!(verifier(place.into()).verify(&mut begun.clone(), NOW as u32), BAD);
    }
    // The first verifier passes the packet, which then bypasses the second.
    let mut around = frame(&routed, &hops(), 0);
    assert_eq!(verifier(0).verify(&mut around, NOW as u32), Outcome::Proved);
    route_on(&mut around);
    route_on(&mut around);
    let pointer = 54 + 8 + 48 + 8 + 8 + 4;
    assert_eq!(verifier(2).verify(&mut around.clone(), NOW as u32), Outcome::Drop(DropReason::Malformed));
    around[pointer] += 1;
    assert_eq!(verifier(2).verify(&mut around, NOW as u32), BAD);
    for changed in [[a, c, b], [a, a, c], [a, "2001:db8:1::f".parse().unwrap(), c]] {
        assert_eq!(travels(frame(&routed, &changed, 0), &[0]), BAD, "{changed:?}");
    }
    assert_eq!(travels(frame(&routed, &[a, c], 0), &[0]), Outcome::Drop(DropReason::Malformed));
    let mut turned = frame(&routed, &[b, a, c], 0);
    assert_eq!(verifier(1).verify(&mut turned, NOW as u32), BAD);
}

#[test]
fn hops_are_as_many_as_verifiers_and_end_at_the_receiving_endpoint() {
    let path = PATH.map(key);
    let giver = giver(&path);
    let given = plain(&giver);
    let [a, b, c] = hops();
    for wrong in [&[][..], &[a, c], &[a, c, b], &[a, b, b, c]] {
        assert_eq!(given.along(&giver, wrong), Err(GiveError::Path), "{wrong:?}");
    }
}

#[test]
fn an_option_is_read_with_its_hops_and_not_without() {
    let path = PATH.map(key);
    let giver = giver(&path);
    let routed = plain(&giver).along(&giver, &hops()).expect("three hops");
    let read = |given: &Given, hops: &[Ipv6Addr]| {
        Given::from_option(&given.option(), given.vni, given.ends, hops.to_vec()).map_err(|_| ())
    };
    assert_eq!(read(&routed, &hops()), Ok(routed.clone()));
    let [a, b, c] = hops();
    for wrong in [&[][..], &[a, c], &[a, c, b], &[a, b, c, c]] {
        assert_eq!(read(&routed, wrong), Err(()), "{wrong:?}");
    }
    assert_eq!(read(&plain(&giver), &hops()), Err(()));
}

#[test]
fn an_answer_is_given_to_who_shows_the_right_hops() {
    let path = PATH.map(key);
    let giver = giver(&path);
    let routed = plain(&giver).along(&giver, &hops()).expect("three hops");
    let back = Place { endpoint: routed.ends.sending, interface: InterfaceId(6) };
    let answer = routed.answer(&giver, &path[0], back, u64::MAX).expect("it consented");
    assert_eq!(answer.segment.flags.0, (SegmentFlags::RETURN.0 | SegmentFlags::UNDERLAY6.0));
    assert_eq!(answer.ends.receiver, routed.ends.sender);
    let [a, b, c] = hops();
    let shown = |given: &Given, hops: &[Ipv6Addr]| {
        let shown = Given { hops: hops.to_vec(), ..given.clone() };
        shown.answer(&giver, &path[0], back, u64::MAX)
    };
    assert_eq!(shown(&routed, &[b, a, c]), Err(GiveError::Forged));
    assert_eq!(shown(&routed, &[]), Err(GiveError::Forged), "it has hops");
    assert_eq!(shown(&plain(&giver), &hops()), Err(GiveError::Forged), "it has none");
}
