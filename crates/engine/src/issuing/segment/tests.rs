use super::*;
use crate::policy::{Decision, Permit, Policy, Request, Subject};
use crate::verifier::proofs::{Outcome, Verifier};
use wire::geneve::Payload;
use wire::{DropReason, InterfaceId, MasterKey};

const NOW: u64 = 1_800_000_000;
const LENGTH: u32 = 3600;
const PATH: [&str; 3] = ["sending-edge", "receiving-edge", "svtep"];
const AUTHORITY: &str = "198.51.100.1";
const SENDER: &str = "10.0.0.7";
const RECEIVER: &str = "10.0.0.9";
const HERE: &str = "192.0.2.1";
const THERE: &str = "192.0.2.2";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn key(verifier: &str) -> ProofKey {
    MasterKey::new([7; 32]).proof_key(verifier, address(AUTHORITY), Epoch::at(NOW, LENGTH)).unwrap()
}

fn verifier(name: &str) -> Verifier {
    let mut verifier = Verifier::new(vec!["192.0.2.0/24".parse().unwrap()], LENGTH, 3600);
    verifier.keys.insert((address(AUTHORITY), Epoch::at(NOW, LENGTH)), key(name));
    verifier
}

fn giver(path: &[ProofKey]) -> Giver<'_> {
    Giver {
        authority: address(AUTHORITY),
        suite: Suite::AesCmac,
        path,
        now: NOW,
        epoch_length: LENGTH,
        max_lifetime: 3600,
    }
}

/// Returns the segment, if any, that this person gets under a tenant's policy whose rule for Alice has these terms.
fn given_by(terms: &str, person: &str, path: &[ProofKey]) -> Option<Result<Given, GiveError>> {
    given_after(None, terms, person, path)
}

/// Returns the segment as [`given_by`] does, after consent was withdrawn for segments that end by `withdrawn`.
fn given_after(
    withdrawn: Option<u32>,
    terms: &str,
    person: &str,
    path: &[ProofKey],
) -> Option<Result<Given, GiveError>> {
    let text = format!(
        "[[receivers]]\nname = \"lab\"\naddress = \"10.0.0.0/24\"\nservices = \"all\"\nverifier = \"svtep\"\n\
         [[rules]]\naction = \"allow\"\nwho = \"person:alice\"\nto = \"lab\"\n{terms}"
    );
    let policy = Policy::parse(&text, 3600).unwrap();
    let to = Destination { address: address(RECEIVER), protocol: 6, port: 22 };
    let request = Request { subject: Subject::person(person), to, now: NOW };
    let Decision::Allowed(Permit { terms, scope, until, .. }) = policy.decide(&request) else { return None };
    let give = Give {
        giver: giver(path),
        terms,
        scope,
        until,
        withdrawn,
        vni: Vni::new(77).unwrap(),
        sender: address(SENDER),
        sending: address(HERE),
        sender_port: 40000,
        to,
        receiving: Place { endpoint: address(THERE), interface: InterfaceId(5) },
    };
    Some(give.give())
}

fn given(terms: &str) -> Given {
    given_by(terms, "alice", &PATH.map(key)).expect("allowed").expect("given")
}

fn ipv4(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (source, destination) else { panic!("IPv4") };
    let mut packet = vec![0x45, 0];
    packet.extend(((20 + payload.len()) as u16).to_be_bytes());
    packet.extend([0, 7, 0, 0, 64, protocol, 0, 0]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(payload);
    packet
}

/// Returns a packet between these ports under the segment.
fn frame(given: &Given, protocol: u8, ports: (u16, u16)) -> Vec<u8> {
    let ends = &given.ends;
    let transport = [&ports.0.to_be_bytes()[..], &ports.1.to_be_bytes(), &[0; 16]].concat();
    let inner = ipv4(ends.sender, ends.receiver, protocol, &transport);
    let mut header = [0; wire::geneve::ENCAPSULATION_MAX];
    let len = given.encapsulation(Payload::Ipv4).encode(&mut header).unwrap();
    let length = (8 + len + inner.len()) as u16;
    let udp = [&[0xc0, 0, 0x17, 0xc1][..], &length.to_be_bytes(), &[0, 0], &header[..len], &inner].concat();
    [&[2; 12][..], &[8, 0], &ipv4(ends.sending, ends.receiving, 17, &udp)].concat()
}

/// Sends a frame through the verifiers of the path; returns the first outcome other than `Proved`, or `Proved`.
fn travels(mut frame: Vec<u8>, now: u64) -> Outcome {
    for name in PATH {
        let outcome = verifier(name).verify(&mut frame, now as u32);
        if outcome != Outcome::Proved {
            return outcome;
        }
    }
    Outcome::Proved
}

const BAD: Outcome = Outcome::Drop(DropReason::BadTag);

#[test]
fn a_segment_opens_as_much_as_its_terms_say() {
    for (terms, same_flow, same_service, same_host) in [
        ("granularity = \"network\"", true, true, true),
        ("granularity = \"host\"", true, true, true),
        ("granularity = \"application\"", true, true, false),
        ("granularity = \"flow\"", true, false, false),
        ("granularity = \"network\"\nsingle = true", true, false, false),
    ] {
        let given = given(terms);
        let opens = |protocol, ports, open| {
            let expected = if open { Outcome::Proved } else { BAD };
            assert_eq!(travels(frame(&given, protocol, ports), NOW), expected, "{terms}: {protocol} {ports:?}");
        };
        opens(6, (40000, 22), same_flow);
        opens(6, (40001, 22), same_service);
        opens(6, (40000, 23), same_host);
        opens(17, (40000, 22), same_host);
    }
}

#[test]
fn who_has_no_consent_gets_no_segment() {
    assert_eq!(given_by("", "mallory", &PATH.map(key)), None);
}

#[test]
fn a_segment_has_a_proof_for_each_verifier_on_the_path_and_no_more_than_five() {
    for count in 1..=5 {
        let path: Vec<_> = PATH.iter().cycle().take(count).map(|name| key(name)).collect();
        let given = given_by("", "alice", &path).unwrap().unwrap();
        assert_eq!((given.proofs.len(), usize::from(given.segment.count)), (count, count));
        let mut frame = frame(&given, 6, (40000, 22));
        for name in PATH.iter().cycle().take(count) {
            assert_eq!(verifier(name).verify(&mut frame, NOW as u32), Outcome::Proved);
        }
        let beyond = verifier(PATH[0]).verify(&mut frame, NOW as u32);
        assert_eq!(beyond, Outcome::Drop(DropReason::Malformed), "none is left");
    }
    for count in [0, 6, 300] {
        let path: Vec<_> = (0..count).map(|_| key("a")).collect();
        assert_eq!(given_by("", "alice", &path), Some(Err(GiveError::Path)), "{count}");
    }
}

#[test]
fn a_segment_ends_with_its_terms_and_below_the_verifiers_maximum() {
    for (terms, lifetime) in [
        ("", 300),
        ("lifetime = \"1m\"", 60),
        ("lifetime = \"1h\"", 3570),
        // NOW is 08:00:00 UTC on a Friday.
        ("when = { hours = \"08:00-08:02\" }", 120),
    ] {
        let given = given(terms);
        assert_eq!(u64::from(given.segment.expires), NOW + lifetime, "{terms}");
        let frame = frame(&given, 6, (40000, 22));
        assert_eq!(travels(frame.clone(), NOW + lifetime - 1), Outcome::Proved);
        assert_eq!(travels(frame, NOW + lifetime), Outcome::Drop(DropReason::Expired));
    }
}

#[test]
fn a_receiver_answers_where_the_sender_consented_and_nowhere_else() {
    let path = PATH.map(key);
    let back = Place { endpoint: address(HERE), interface: InterfaceId(3) };
    let answer = |given: &Given| given.answer(&giver(&path), &key(PATH[0]), back, u64::MAX);
    // A sensor that only sends can't be reached.
    assert_eq!(answer(&given("")), Err(GiveError::NoConsent));
    let consented = given("reply = true");
    let answered = answer(&consented).unwrap();
    assert_eq!((answered.segment.interface, answered.segment.expires), (InterfaceId(3), consented.segment.expires));
    assert_eq!(travels(frame(&answered, 6, (22, 40000)), NOW), Outcome::Proved);
    assert_eq!(travels(frame(&answered, 6, (40000, 22)), NOW), BAD, "no request of the receiver's own");
    assert_eq!(travels(frame(&answered, 6, (23, 40000)), NOW), BAD, "not from another service");
    let there = Place { endpoint: address(THERE), interface: InterfaceId(5) };
    let again = answered.answer(&giver(&path), &key(PATH[0]), there, u64::MAX);
    assert_eq!(again, Err(GiveError::NoConsent), "an answer is not consent to another");
    let flow = answer(&given("granularity = \"flow\"\nreply = true")).unwrap();
    assert_eq!(travels(frame(&flow, 6, (22, 40000)), NOW), Outcome::Proved);
    assert_eq!(travels(frame(&flow, 6, (22, 40001)), NOW), BAD, "not to another flow");
}

#[test]
fn consent_to_answers_can_not_be_made_up() {
    let path = PATH.map(key);
    let back = Place { endpoint: address(HERE), interface: InterfaceId(3) };
    let consented = given("reply = true");
    let forged = |change: &dyn Fn(&mut Given)| {
        let mut shown = consented.clone();
        change(&mut shown);
        assert_eq!(shown.answer(&giver(&path), &key(PATH[0]), back, u64::MAX), Err(GiveError::Forged), "{shown:?}");
    };
    forged(&|shown| {
        *shown = Given {
            segment: Segment { flags: shown.segment.flags.with(SegmentFlags::REPLY, true), ..given("").segment },
            ..given("")
        }
    });
    forged(&|shown| shown.ends.sender = address("10.0.0.8"));
    forged(&|shown| shown.ends.receiver = address("10.0.0.8"));
    forged(&|shown| shown.ends.sending = address("192.0.2.8"));
    forged(&|shown| shown.segment.expires += 100);
    forged(&|shown| shown.segment.authority = address("198.51.100.2"));
    forged(&|shown| shown.vni = Vni::new(78).unwrap());
    forged(&|shown| shown.proofs[0][0] ^= 1);
    forged(&|shown| shown.proofs.clear());
    let elsewhere = Place { endpoint: address("192.0.2.8"), ..back };
    assert_eq!(consented.answer(&giver(&path), &key(PATH[0]), elsewhere, u64::MAX), Err(GiveError::Forged));
    let late = Giver { now: NOW + 300, ..giver(&path) };
    assert_eq!(consented.answer(&late, &key(PATH[0]), back, u64::MAX), Err(GiveError::Expired));
}

#[test]
fn addresses_of_a_pair_are_of_one_family() {
    let path = PATH.map(key);
    let given = given("reply = true");
    let mixed = Ends { sender: address("fd00::7"), ..given.ends };
    assert_eq!(giver(&path).give(given.segment, given.vni, mixed), Err(GiveError::Family));
    let mixed = Ends { sending: address("2001:db8::1"), ..given.ends };
    assert_eq!(giver(&path).give(given.segment, given.vni, mixed), Err(GiveError::Family));
}

#[test]
fn an_option_is_read_as_it_was_written_and_for_its_families_only() {
    let one = given("reply = true");
    let option = one.option();
    assert_eq!(Given::from_option(&option, one.vni, one.ends, vec![]), Ok(one.clone()));
    let other = Ends { sender: address("fd00::1"), receiver: address("fd00::2"), ..one.ends };
    assert_eq!(Given::from_option(&option, one.vni, other, vec![]), Err(DropReason::Malformed));
    for len in 0..option.len() {
        assert!(Given::from_option(&option[..len], one.vni, one.ends, vec![]).is_err(), "{len}");
    }
    assert!(Given::from_option(&[&option[..], &[0; 4]].concat(), one.vni, one.ends, vec![]).is_err());
}

#[test]
fn what_is_given_after_consent_was_withdrawn_ends_later_than_what_is_void() {
    let until = |withdrawn: u64, terms: &str| {
        let given = given_after(Some(withdrawn as u32), terms, "alice", &PATH.map(key)).unwrap();
        given.map(|given| u64::from(given.segment.expires))
    };
    assert_eq!(until(NOW + 10, ""), Ok(NOW + 300));
    assert_eq!(until(NOW + 300, ""), Ok(NOW + 301));
    assert_eq!(until(NOW + 3599, ""), Ok(NOW + 3600));
    assert_eq!(until(NOW + 3600, ""), Err(GiveError::Withdrawn));
}
