//! The attacks on the published scheme (SVLAN, section VII), one test each, named after the attack, against the
//! decisions in Rust. The table of cases shows that kernels and batches make the same decisions; docs/threats.md lists
//! the tests at other levels.

mod world;

use engine::issuing::segment::{GiveError, Giver};
use engine::model::{Given, Place};
use engine::verifier::proofs::{Outcome, Verifier, Withdrawal};
use wire::packet::Packet;
use wire::{DropReason, Ends, Epoch, InterfaceId, ProofKey, Segment, SegmentFlags, Vni, geneve};
use world::*;

const BAD: Outcome = Outcome::Drop(DropReason::BadTag);

/// Place and number of the bit that distinguishes control packets (wire.md §8.15.2).
const BIT_O: (usize, usize) = (43, 7);

#[test]
fn unauthorized_senders_get_nothing_and_what_they_make_up_is_dropped() {
    assert_eq!(travels(frame(&given())), Outcome::Proved);
    assert!(given_by(giver(&PATH.map(key)), "eve", "").is_none());
    // The attackers use keys of their own and the authority's name.
    let own = PATH.map(|name| key_of(8, name, Epoch::at(NOW, EPOCH_LENGTH)));
    let forged = given_by(giver(&own), "alice", "").expect("they say so");
    assert_eq!(travels(frame(&forged)), BAD);
}

#[test]
fn forged_segments_are_dropped_whichever_bit_was_changed() {
    let right = frame(&given());
    // The segment covers the inner packet's addresses, protocol and ports.
    let inside = [9..10, 12..24].map(|range| INNER + range.start..INNER + range.end);
    let covered = [OUTER_ADDRESSES, 42..INNER].into_iter().chain(inside).flatten().filter(|at| {
        // Except the sender's port, which this segment leaves open.
        !(INNER + 20..INNER + 22).contains(at)
    });
    let mut tried = 0;
    for at in covered {
        for bit in 0..8 {
            if (at, bit) == BIT_O {
                continue;
            }
            let mut changed = right.clone();
            changed[at] ^= 1 << bit;
            assert_ne!(travels(changed), Outcome::Proved, "bit {bit} of byte {at}");
            tried += 1;
        }
    }
    assert!(tried > 8 * (8 + 32 + 48 + 10), "{tried}");
}

#[test]
fn bit_o_is_not_covered_and_opens_nothing() {
    // A verifier on the path passes the packet either way. The receiving endpoint delivers no packet with bit O.
    let (at, bit) = BIT_O;
    let mut changed = frame(&given());
    changed[at] ^= 1 << bit;
    assert_eq!(travels(changed), Outcome::Proved);
}

#[test]
fn proof_guessing_tells_nothing_of_how_near_a_guess_was() {
    let right = frame(&given());
    let first = PROOFS..PROOFS + 16;
    // A half-correct guess, a guess with one wrong bit, and an entirely wrong one all get the same answer.
    for at in 0..128 {
        let mut guess = right.clone();
        guess[PROOFS + at / 8] ^= 1 << (at % 8);
        assert_eq!(travels(guess), BAD);
    }
    for byte in 0..=255 {
        for known in [0, 8, 15] {
            let mut guess = right.clone();
            guess[first.clone()][known..].fill(byte);
            assert!(guess == right || travels(guess) == BAD, "{byte} {known}");
        }
    }
}

#[test]
fn source_spoofing_from_another_endpoint_or_as_another_sender_is_dropped() {
    let given = given();
    let from = |ends: Ends| travels(frame(&Given { ends, ..given.clone() }));
    for sending in ["192.0.2.3", THERE, "198.51.100.7"] {
        assert_eq!(from(Ends { sending: address(sending), ..given.ends }), BAD, "{sending}");
    }
    for sender in ["10.0.0.8", SERVER, "192.0.2.1"] {
        assert_eq!(from(Ends { sender: address(sender), ..given.ends }), BAD, "{sender}");
    }
}

#[test]
fn stolen_segments_open_no_other_receiver_endpoint_network_or_service() {
    let given = given();
    let to = |ends: Ends| travels(frame(&Given { ends, ..given.clone() }));
    assert_eq!(to(Ends { receiver: address("10.0.0.10"), ..given.ends }), BAD);
    assert_eq!(to(Ends { receiving: address("192.0.2.3"), ..given.ends }), BAD);
    let vni = Vni::new(78).unwrap();
    assert_eq!(travels(frame(&Given { vni, ..given.clone() })), BAD);
    let with = |segment: Segment| travels(frame(&Given { segment, ..given.clone() }));
    assert_eq!(with(Segment { interface: InterfaceId(6), ..given.segment }), BAD, "another tenant's interface");
    assert_eq!(with(Segment { port: 23, ..given.segment }), BAD);
    let mut other = frame(&given);
    other[INNER + 23] = 23;
    assert_eq!(travels(other), BAD, "another service inside");
}

#[test]
fn replay_ends_with_the_segment_and_can_not_be_drawn_out() {
    let given = given();
    let ends = u64::from(given.segment.expires);
    assert_eq!(travels_at(frame(&given), ends - 1), Outcome::Proved, "until then it is good for its sender");
    assert_eq!(travels_at(frame(&given), ends), Outcome::Drop(DropReason::Expired));
    let longer = Segment { expires: given.segment.expires + 60, ..given.segment };
    assert_eq!(travels(frame(&Given { segment: longer, ..given.clone() })), BAD);
    let later = Segment { epoch: given.segment.epoch.wrapping_add(1), ..given.segment };
    assert_eq!(travels(frame(&Given { segment: later, ..given.clone() })), BAD);
    let old = Segment { epoch: given.segment.epoch.wrapping_sub(2), ..given.segment };
    assert_eq!(travels(frame(&Given { segment: old, ..given })), Outcome::Drop(DropReason::UnknownEpoch));
}

#[test]
fn bypassing_verifiers_by_the_pointer_or_the_number_of_proofs_is_noticed() {
    let given = given();
    let at = |pointer| Given { segment: Segment { pointer, ..given.segment }, ..given.clone() };
    // The pointer is moved ahead to skip earlier verifiers; each verifier decides alone, as if the packet had bypassed
    // the others.
    for (place, name) in PATH.iter().enumerate() {
        for pointer in (0..3).filter(|pointer| usize::from(*pointer) != place) {
            let mut moved = frame(&at(pointer));
            let judged = verifier(name).verify(&mut moved, NOW as u32);
            assert_eq!(judged, BAD, "{name} is not at {pointer}");
        }
    }
    let fewer = Given { segment: Segment { count: 2, ..given.segment }, proofs: given.proofs[..2].to_vec(), ..given };
    assert_eq!(travels(frame(&fewer)), BAD);
}

#[test]
fn compromised_verifier_what_it_lets_through_the_others_stop() {
    let keys = PATH.map(key);
    let given = given();
    for compromised in 0..PATH.len() {
        // The compromised verifier passes every packet, and can make its own proofs for anything.
        let mut keys_known = PATH.map(|name| key_of(8, name, Epoch::at(NOW, EPOCH_LENGTH)));
        keys_known[compromised] = keys[compromised].clone();
        let forged = given_by(giver(&keys_known), "alice", "").expect("it says so");
        let wider = Given { segment: Segment { interface: InterfaceId(6), ..forged.segment }, ..forged.clone() };
        for packet in [frame(&forged), frame(&wider)] {
            assert!(!passes(packet, compromised), "{compromised}");
        }
        assert!(passes(frame(&given), compromised), "{compromised}: nobody else suffers");
    }
}

/// Reports whether a packet reaches the end of the path when one verifier checks nothing.
fn passes(mut frame: Vec<u8>, compromised: usize) -> bool {
    PATH.iter().enumerate().all(|(place, name)| match place == compromised {
        true => {
            let packet = Packet::parse(&frame);
            geneve::advance(&mut frame, &packet).is_some()
        }
        false => verifier(name).verify(&mut frame, NOW as u32) == Outcome::Proved,
    })
}

#[test]
fn compromised_endpoint_can_send_only_where_its_own_tenants_have_consent() {
    let keys = PATH.map(key);
    // The compromised endpoint has the segments issued to it and may put any packet into them, but only as itself and
    // only to their receivers.
    let given = given_by(giver(&keys), "alice", "reply = true").expect("she has consent");
    for receiver in ["10.0.0.10", "10.0.0.1"] {
        let ends = Ends { receiver: address(receiver), ..given.ends };
        assert_eq!(travels(frame(&Given { ends, ..given.clone() })), BAD);
    }
    // A receiver's endpoint sees the segments of arriving packets, but with them it can only send answers.
    let Ends { sending, receiving, sender, receiver } = given.ends;
    let turned = Ends { sending: receiving, receiving: sending, sender: receiver, receiver: sender };
    for flags in [given.segment.flags, SegmentFlags::PORT, SegmentFlags::PORT.with(SegmentFlags::RETURN, true)] {
        let back = Given { segment: Segment { flags, ..given.segment }, ends: turned, ..given.clone() };
        assert_eq!(travels(frame(&back)), BAD);
    }
    let place = Place { endpoint: sending, interface: InterfaceId(3) };
    let without = given_by(giver(&keys), "alice", "").expect("she has consent");
    assert_eq!(without.answer(&giver(&keys), &keys[0], place, u64::MAX), Err(GiveError::NoConsent));
    let answer = given.answer(&giver(&keys), &keys[0], place, u64::MAX).expect("she consented to answers");
    assert_eq!(travels(frame(&answer)), BAD, "and may not open anything of its own under it");
}

#[test]
fn compromised_authority_opens_only_what_trusts_its_keys_and_only_for_their_epochs() {
    // Verifiers that trust two authorities, which have different addresses and keys.
    let other = address("203.0.113.1");
    let epoch = Epoch::at(NOW, EPOCH_LENGTH);
    let trusts = |name: &str, both: bool| {
        let mut verifier = verifier(name);
        if both {
            verifier.keys.insert((other, epoch), key_of(9, name, epoch));
        }
        verifier
    };
    let stolen: [ProofKey; 3] = PATH.map(|name| key_of(9, name, epoch));
    let made = given_by(Giver { authority: other, ..giver(&stolen) }, "alice", "").expect("it says so");
    let judge = |verifier: &Verifier, given: &Given, now: u64| verifier.verify(&mut frame(given), now as u32);
    assert_eq!(judge(&trusts(PATH[0], true), &made, NOW), Outcome::Proved, "what it stands for is its own");
    assert_eq!(judge(&trusts(PATH[0], false), &made, NOW), Outcome::Drop(DropReason::UnknownEpoch));
    let renamed = given_by(giver(&stolen), "alice", "").expect("it says so");
    assert_eq!(judge(&trusts(PATH[0], true), &renamed, NOW), BAD, "under the other's name it is nothing");
    // Leaked keys of past epochs are worthless, whatever the segments claim.
    let later = NOW + 3 * u64::from(EPOCH_LENGTH);
    let endless = Segment { expires: later as u32 + 60, ..given().segment };
    let old = Given { segment: endless, ..given() };
    assert_eq!(judge(&trusts(PATH[0], true), &old, later), Outcome::Drop(DropReason::UnknownEpoch));
}

#[test]
fn withdrawn_consent_ends_what_is_held_and_nobody_elses() {
    let given = given();
    let mut last = verifier(PATH[0]);
    let what = Withdrawal { vni: given.vni, receiver: address(SERVER), sender: Some(address(ALICE)) };
    last.withdraw(Withdrawal { sender: Some(address("10.0.0.8")), ..what }, given.segment.expires);
    last.withdraw(Withdrawal { vni: Vni::new(78).unwrap(), ..what }, given.segment.expires);
    assert_eq!(last.verify(&mut frame(&given), NOW as u32), Outcome::Proved, "others' consent is not hers");
    last.withdraw(what, given.segment.expires);
    assert_eq!(last.verify(&mut frame(&given), NOW as u32), Outcome::Drop(DropReason::Revoked));
}
