//! Test setting: Alice, behind one endpoint, has consent to send to one service behind another; three verifiers are on
//! the path.

use engine::issuing::segment::{Give, Giver};
use engine::model::{Given, Place};
use engine::policy::{Decision, Policy, Request, Subject};
use engine::verifier::proofs::{Outcome, Verifier};
use std::net::IpAddr;
use wire::geneve::{ENCAPSULATION_MAX, Payload};
use wire::{Destination, Epoch, InterfaceId, MasterKey, ProofKey, Suite, Vni};

pub const NOW: u64 = 1_800_000_000;
pub const EPOCH_LENGTH: u32 = 3600;
pub const AUTHORITY: &str = "198.51.100.1";
pub const PATH: [&str; 3] = ["sending-edge", "receiving-edge", "svtep"];
pub const ALICE: &str = "10.0.0.7";
pub const SERVER: &str = "10.0.0.9";
pub const HERE: &str = "192.0.2.1";
pub const THERE: &str = "192.0.2.2";
pub const SSH: (u8, u16) = (6, 22);
/// Offsets in [`frame`].
pub const OUTER_ADDRESSES: std::ops::Range<usize> = 26..34;
pub const SEGMENT: usize = 42 + 12;
pub const PROOFS: usize = SEGMENT + 20;
pub const INNER: usize = PROOFS + 16 * PATH.len();

pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn key_of(master: u8, verifier: &str, epoch: Epoch) -> ProofKey {
    MasterKey::new([master; 32]).proof_key(verifier, address(AUTHORITY), epoch).unwrap()
}

/// Returns the authority's own key for the current epoch.
pub fn key(verifier: &str) -> ProofKey {
    key_of(7, verifier, Epoch::at(NOW, EPOCH_LENGTH))
}

/// Creates a verifier with the keys of the epochs around `NOW`.
pub fn verifier(name: &str) -> Verifier {
    let mut verifier = Verifier::new(vec!["192.0.2.0/24".parse().unwrap()], EPOCH_LENGTH, 3600);
    let current = Epoch::at(NOW, EPOCH_LENGTH).0;
    for epoch in (current - 1..current + 3).map(Epoch) {
        verifier.keys.insert((address(AUTHORITY), epoch), key_of(7, name, epoch));
    }
    verifier
}

pub fn giver(path: &[ProofKey]) -> Giver<'_> {
    Giver {
        authority: address(AUTHORITY),
        suite: Suite::Siphash,
        path,
        now: NOW,
        epoch_length: EPOCH_LENGTH,
        max_lifetime: 3600,
    }
}

const POLICY: &str = r#"
[[receivers]]
name = "server"
address = "10.0.0.9"
services = ["tcp/22"]
verifier = "svtep"

[[rules]]
action = "allow"
who = "person:alice"
to = "server"
granularity = "application"
"#;

/// Requests a segment for a person, with these lines added to the rule; `None` without consent.
pub fn given_by(giver: Giver<'_>, person: &str, terms: &str) -> Option<Given> {
    let policy = Policy::parse(&format!("{POLICY}{terms}"), 3600).unwrap();
    let to = Destination { address: address(SERVER), protocol: SSH.0, port: SSH.1 };
    let request = Request { subject: Subject::person(person), to, now: giver.now };
    let Decision::Allowed(permit) = policy.decide(&request) else { return None };
    let give = Give {
        giver,
        terms: permit.terms,
        scope: permit.scope,
        until: permit.until,
        withdrawn: None,
        vni: Vni::new(77).unwrap(),
        sender: address(ALICE),
        sending: address(HERE),
        sender_port: 40_000,
        to,
        receiving: Place { endpoint: address(THERE), interface: InterfaceId(5) },
    };
    Some(give.give().expect("it can be given"))
}

/// Requests a segment for Alice.
pub fn given() -> Given {
    given_by(giver(&PATH.map(key)), "alice", "").expect("she has consent")
}

fn ipv4(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (source, destination) else { panic!("IPv4") };
    let length = (20 + payload.len()) as u16;
    let fixed = [0, 7, 0, 0, 64, protocol, 0, 0];
    [&[0x45, 0][..], &length.to_be_bytes(), &fixed, &source.octets(), &destination.octets(), payload].concat()
}

/// Builds a packet to the service under a segment.
pub fn frame(given: &Given) -> Vec<u8> {
    let ends = &given.ends;
    let transport = [&40_000_u16.to_be_bytes()[..], &SSH.1.to_be_bytes(), &[0; 16]].concat();
    let inner = ipv4(ends.sender, ends.receiver, SSH.0, &transport);
    let mut header = [0; ENCAPSULATION_MAX];
    let len = given.encapsulation(Payload::Ipv4).encode(&mut header).unwrap();
    let udp_len = (8 + len + inner.len()) as u16;
    let udp = [&[0xc0, 0, 0x17, 0xc1][..], &udp_len.to_be_bytes(), &[0, 0], &header[..len], &inner].concat();
    [&[2; 12][..], &[8, 0], &ipv4(ends.sending, ends.receiving, 17, &udp)].concat()
}

/// Sends a frame along the path. Returns the first outcome other than `Proved`, or `Proved` if all verifiers pass it.
pub fn travels_at(mut frame: Vec<u8>, now: u64) -> Outcome {
    let mut judged = PATH.iter().map(|name| verifier(name).verify(&mut frame, now as u32));
    judged.find(|outcome| *outcome != Outcome::Proved).unwrap_or(Outcome::Proved)
}

pub fn travels(frame: Vec<u8>) -> Outcome {
    travels_at(frame, NOW)
}
