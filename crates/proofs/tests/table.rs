//! Batches compared with the reference implementation: every case of the table, and changed ones.

#[path = "../../engine/tests/cases/mod.rs"]
mod cases;

use cases::{Step, Table};
use engine::verifier::proofs::Outcome;
use proofs::{BATCH, Batch, Means};
use proptest::prelude::*;
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use wire::geneve::Encapsulation;
use wire::packet::Packet;
use wire::{DropReason, Ends, Epoch, Inner, MasterKey, Proof, ProofKey};

fn verify(batch: &mut Batch, frames: &mut [&mut [u8]], now: u32) -> [Outcome; BATCH] {
    let mut outcomes = [Outcome::NotOurs; BATCH];
    batch.verify(frames, now, &mut outcomes);
    outcomes
}

fn each<T>(of: &[T]) -> impl Iterator<Item = (Means, &T)> {
    Means::here().flat_map(move |means| of.iter().map(move |one| (means, one)))
}

#[test]
fn every_case_of_the_table_has_its_outcome_alone() {
    let table = Table::read();
    let mut failures = Vec::new();
    for (means, case) in each(&table.cases) {
        let mut batch = Batch::with(table.verifiers[case.of].clone(), means);
        let mut now = table.now;
        for step in &case.steps {
            match step {
                Step::Wait(seconds) => now += seconds,
                Step::Withdraw(what, until) => batch.change(|verifier| verifier.withdraw(*what, *until)),
                Step::Frame { frame, outcome, out } => {
                    let mut left = frame.clone();
                    let got = verify(&mut batch, &mut [&mut left], now)[0];
                    if got != *outcome || left != *out {
                        failures.push(format!(
                            "{means:?}, {}: {got:?}, not {outcome:?}: {}",
                            case.name,
                            hex::encode(frame)
                        ));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_case_of_the_table_has_its_outcome_among_others() {
    let table = Table::read();
    let cases: Vec<_> = table.first_frames().collect();
    // Chunks of many lengths, so that a case has different neighbours each time.
    for (means, length) in each(&[1, 2, 3, 4, 5, 7, 8, 9, 31, BATCH, BATCH + 3]) {
        let mut batch = Batch::with(table.verifiers[0].clone(), means);
        for chunk in cases.chunks(*length) {
            let mut frames: Vec<_> = chunk.iter().map(|(_, frame, ..)| frame.to_vec()).collect();
            let mut borrowed: Vec<_> = frames.iter_mut().map(Vec::as_mut_slice).collect();
            let outcomes = verify(&mut batch, &mut borrowed, table.now);
            for (index, ((name, before, outcome, after), left)) in chunk.iter().zip(&frames).enumerate() {
                if index < BATCH {
                    assert_eq!((outcomes[index], left), (*outcome, *after), "{means:?}: {name}");
                } else {
                    assert_eq!(left, *before, "it is not looked at");
                }
            }
        }
    }
}

#[test]
fn frames_with_changed_bytes_are_judged_as_the_decision_in_rust_judges_them() {
    let table = Table::read();
    let verifier = &table.verifiers[0];
    let batches: Vec<_> = Means::here().map(|means| RefCell::new(Batch::with(verifier.clone(), means))).collect();
    // Start with frames of the plain form; the changes may leave it.
    let plain = |frame: &[u8], outcome| outcome == Outcome::Proved && frame[12..14] == [8, 0];
    let plain: Vec<_> = table.first_frames().filter(|(_, frame, outcome, _)| plain(frame, *outcome)).collect();
    let config = ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() };
    let changes = proptest::collection::vec((0usize..170, any::<u8>()), 0..3);
    let picked = (0..plain.len(), changes, 0usize..3, any::<prop::sample::Index>());
    let mut runner = prop::test_runner::TestRunner::new(config);
    let checked = runner.run(&picked, |(case, changes, cut, at)| {
        let mut one = plain[case].1.clone();
        for (at, value) in changes {
            if let Some(byte) = one.get_mut(at) {
                *byte = value;
            }
        }
        if cut == 0 {
            one.truncate(at.index(one.len()));
        }
        let mut other = one.clone();
        let expected = verifier.verify(&mut other, table.now);
        for batch in &batches {
            // The changed frame shares a batch with one that passes.
            let (mut changed, mut beside) = (one.clone(), plain[case].1.clone());
            let outcomes = verify(&mut batch.borrow_mut(), &mut [&mut changed, &mut beside], table.now);
            prop_assert_eq!(&outcomes[..2], &[expected, Outcome::Proved][..]);
            prop_assert_eq!(&changed, &other);
        }
        Ok(())
    });
    checked.expect("both verify alike");
}

/// Returns the frame as this authority, with this key, would have issued it.
fn given_by(frame: &[u8], authority: Ipv4Addr, key: &ProofKey) -> Vec<u8> {
    let mut given = frame.to_vec();
    given[70..74].copy_from_slice(&authority.octets());
    let packet = Packet::parse(&given);
    let (of, inner) = Encapsulation::decode(&given[packet.payload..packet.end]).expect("an encapsulation");
    let ends = Ends::of(&packet, &Inner::parse(of.payload, inner).expect("an inner packet")).expect("ends");
    let (proof, at) = (Proof::new(key, &of.segment, of.vni, &ends), 74 + 16 * usize::from(of.segment.pointer));
    given[at..at + 16].copy_from_slice(&proof.0);
    given
}

#[test]
fn each_packet_is_judged_by_the_key_of_its_authority() {
    let table = Table::read();
    let mut verifier = table.verifiers[0].clone();
    let (_, frame, ..) = table.first_frames().find(|(name, ..)| name.starts_with("ipv4: aes-cmac")).expect("a row");
    let epoch = Epoch::at(table.now.into(), verifier.epoch_length);
    let authorities: Vec<_> = (0..400u32).map(|number| Ipv4Addr::from(number.wrapping_mul(0x9e37_79b1))).collect();
    let master = MasterKey::new([5; 32]);
    let mut frames = Vec::new();
    // With this many keys, several share the first slot of their search.
    for (number, authority) in authorities.iter().enumerate() {
        let key = master.proof_key("edge", (*authority).into(), epoch).expect("a key");
        let good = given_by(frame, *authority, &key);
        let beside = given_by(frame, authorities[(number + 1) % authorities.len()], &key);
        frames.extend([(good, Outcome::Proved), (beside, Outcome::Drop(DropReason::BadTag))]);
        verifier.keys.insert(((*authority).into(), epoch), key);
    }
    let stranger =
        given_by(frame, [203, 0, 113, 77].into(), &master.proof_key("x", [0; 4].into(), epoch).expect("a key"));
    frames.push((stranger, Outcome::Drop(DropReason::UnknownEpoch)));
    for means in Means::here() {
        let mut batch = Batch::with(verifier.clone(), means);
        for chunk in frames.chunks(BATCH - 1) {
            let (mut left, expected): (Vec<_>, Vec<_>) = chunk.iter().cloned().unzip();
            let mut borrowed: Vec<_> = left.iter_mut().map(Vec::as_mut_slice).collect();
            let outcomes = verify(&mut batch, &mut borrowed, table.now);
            assert_eq!(outcomes[..chunk.len()], expected, "{means:?}");
        }
    }
}

#[test]
fn frames_of_every_length_are_judged_alike() {
    let table = Table::read();
    let (_, frame, ..) = table.first_frames().find(|(name, ..)| name.starts_with("ipv4: aes-cmac")).expect("a row");
    for means in Means::here() {
        let mut batch = Batch::with(table.verifiers[0].clone(), means);
        let mut frames: Vec<_> = (0..frame.len()).map(|length| frame[..length].to_vec()).collect();
        for chunk in frames.chunks_mut(5) {
            let mut expected = chunk.to_vec();
            let expected = expected.iter_mut().map(|frame| table.verifiers[0].verify(frame, table.now));
            let expected: Vec<_> = expected.collect();
            let mut borrowed: Vec<_> = chunk.iter_mut().map(Vec::as_mut_slice).collect();
            assert_eq!(verify(&mut batch, &mut borrowed, table.now)[..expected.len()], expected, "{means:?}");
        }
    }
}

#[test]
fn at_the_ends_of_time_all_means_agree() {
    let table = Table::read();
    let (_, frame, ..) = table.first_frames().find(|(name, ..)| name.starts_with("ipv4: aes-cmac")).expect("a row");
    for lifetime in [0, 1, 300, u32::MAX - 1, u32::MAX] {
        for now in [0, 1, table.now - 1, table.now, table.now + 300, u32::MAX - 1, u32::MAX] {
            for expires in
                [0, 1, now.saturating_sub(1), now, now.saturating_add(1), now.saturating_add(lifetime), u32::MAX]
            {
                let mut frame = frame.clone();
                frame[58..62].copy_from_slice(&expires.to_be_bytes());
                let mut verifier = table.verifiers[0].clone();
                verifier.max_lifetime = lifetime;
                let authority = IpAddr::from(*frame[70..].first_chunk::<4>().expect("an authority"));
                let epoch = Epoch::at(now.into(), verifier.epoch_length).from_wire(frame[57]);
                if let Some((epoch, key)) = epoch.zip(verifier.keys.values().next().cloned()) {
                    verifier.keys.insert((authority, epoch), key);
                }
                let expected = verifier.verify(&mut frame.clone(), now);
                for means in Means::here() {
                    let mut batch = Batch::with(verifier.clone(), means);
                    let outcome = verify(&mut batch, &mut [&mut frame.clone()], now)[0];
                    assert_eq!(outcome, expected, "{means:?}: {lifetime} {now} {expires}");
                }
            }
        }
    }
}

#[test]
fn keys_come_and_go_with_their_epochs() {
    let table = Table::read();
    let (_, frame, ..) = table.first_frames().find(|(name, ..)| name.starts_with("ipv4: aes-cmac")).expect("a row");
    let length = table.verifiers[0].epoch_length;
    for means in Means::here() {
        let mut batch = Batch::with(table.verifiers[0].clone(), means);
        for epochs in [0i64, 1, 2, 3, -1, -2, -3, 0, 256, -256] {
            let now = (i64::from(table.now) + epochs * i64::from(length)) as u32;
            let expected = table.verifiers[0].verify(&mut frame.clone(), now);
            assert_eq!(
                verify(&mut batch, &mut [&mut frame.clone()], now)[0],
                expected,
                "{means:?}: {epochs} epochs on"
            );
        }
    }
}
