//! Packets with proofs, and a verifier that checks them.

use crate::world::{EPOCH_LENGTH, NOW};
use engine::verifier::proofs::{Outcome, Verifier};
use std::net::IpAddr;
use wire::geneve::{ENCAPSULATION_MAX, Encapsulation, HEADER_LEN, OPTION_HEADER_LEN};
use wire::packet::Packet;
use wire::segment::HEAD_LEN;
use wire::{Epoch, Inner, MasterKey, SegmentFlags};

/// Returns a verifier with the keys of the first verifier in the published table of cases.
fn verifier() -> Verifier {
    let prefixes = ["192.0.2.0/24", "2001:db8:1::/64"].map(|prefix| prefix.parse().expect("a prefix"));
    let mut verifier = Verifier::new(prefixes.to_vec(), EPOCH_LENGTH, 3600);
    let master = MasterKey::new(std::array::from_fn(|index| index as u8));
    let epoch = Epoch::at(NOW.into(), EPOCH_LENGTH).0;
    for authority in ["198.51.100.1", "2001:db8:a::1"] {
        let authority: IpAddr = authority.parse().expect("an address");
        for epoch in [epoch - 1, epoch, epoch + 1].map(Epoch) {
            let key = master.proof_key("sending-edge", authority, epoch).expect("the id is short");
            verifier.keys.insert((authority, epoch), key);
        }
    }
    verifier
}

/// Checks that a decoded encapsulation encodes to the same bytes. In a frame that passes, the verifier must have
/// advanced the pointer to the next proof, updated the UDP checksum and, on a fixed path, removed the lock from the
/// next proof. It must not have changed any other frame.
pub fn proof(input: &[u8]) {
    judged(input);
}

/// Returns the outcome of the frame, with the checks of [`proof`].
pub fn judged(input: &[u8]) -> Outcome {
    let packet = Packet::parse(input);
    if let Some(Ok((read, inner))) = input.get(packet.payload..packet.end).map(Encapsulation::decode) {
        let mut again = [0; ENCAPSULATION_MAX];
        let len = read.encode(&mut again).expect("what was read can be written");
        assert_eq!(again[..len], input[packet.payload..packet.end - inner.len()]);
        let _ = Inner::parse(read.payload, inner);
    }
    let mut frame = input.to_vec();
    let outcome = verifier().verify(&mut frame, NOW);
    if outcome != Outcome::Proved {
        assert_eq!(frame, input, "what does not pass, or is not ours, is not touched");
        return outcome;
    }
    let pointer = packet.payload + HEADER_LEN + OPTION_HEADER_LEN;
    let checksum = packet.transport + 6..packet.transport + 8;
    assert_eq!(frame.len(), input.len());
    assert_eq!(frame[pointer], input[pointer] + 1);
    let segment = Encapsulation::decode(&input[packet.payload..packet.end]).expect("it was proved").0.segment;
    let opens = segment.flags.has(SegmentFlags::ROUTED) && segment.pointer + 1 < segment.count;
    let proofs = pointer + HEAD_LEN + if segment.authority.is_ipv6() { 16 } else { 4 };
    let next = proofs + 16 * usize::from(segment.pointer + 1);
    let next = if opens { next..next + 16 } else { 0..0 };
    let others = (0..input.len()).filter(|at| *at != pointer && !checksum.contains(at) && !next.contains(at));
    assert!(others.into_iter().all(|at| frame[at] == input[at]));
    outcome
}
