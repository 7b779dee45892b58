//! Batches against the decision in Rust: every case of the table, and changed ones.

#[path = "../../engine/tests/cases/mod.rs"]
mod cases;

use cases::{Step, Table};
use engine::proofs::Outcome;
use proofs::{BATCH, Batch};
use proptest::prelude::*;
use std::cell::RefCell;

fn judge(batch: &mut Batch, frames: &mut [&mut [u8]], now: u32) -> [Outcome; BATCH] {
    let mut outcomes = [Outcome::NotOurs; BATCH];
    batch.judge(frames, now, &mut outcomes);
    outcomes
}

#[test]
fn every_case_of_the_table_has_its_outcome_alone() {
    let table = Table::read();
    let mut failures = Vec::new();
    for case in &table.cases {
        let mut batch = Batch::new(table.verifiers[case.of].clone());
        let mut now = table.now;
        for step in &case.steps {
            match step {
                Step::Wait(seconds) => now += seconds,
                Step::Withdraw(what, until) => batch.change(|verifier| verifier.withdraw(*what, *until)),
                Step::Frame { frame, outcome, out } => {
                    let mut left = frame.clone();
                    let got = judge(&mut batch, &mut [&mut left], now)[0];
                    if got != *outcome || left != *out {
                        failures.push(format!("{}: {got:?}, not {outcome:?}: {}", case.name, hex::encode(frame)));
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
    let mut batch = Batch::new(table.verifiers[0].clone());
    let cases: Vec<_> = table.first_frames().collect();
    // Of many lengths, so that none has the same neighbours each time.
    for length in [1, 7, 8, 9, 31, BATCH, BATCH + 3] {
        for chunk in cases.chunks(length) {
            let mut frames: Vec<_> = chunk.iter().map(|(_, frame, ..)| frame.to_vec()).collect();
            let mut borrowed: Vec<_> = frames.iter_mut().map(Vec::as_mut_slice).collect();
            let outcomes = judge(&mut batch, &mut borrowed, table.now);
            for (index, ((name, before, outcome, after), left)) in chunk.iter().zip(&frames).enumerate() {
                if index < BATCH {
                    assert_eq!((outcomes[index], left), (*outcome, *after), "{name}");
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
    let batch = RefCell::new(Batch::new(verifier.clone()));
    // Those that begin in the plain form; what changes may leave it.
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
        let expected = verifier.judge(&mut other, table.now);
        prop_assert_eq!(judge(&mut batch.borrow_mut(), &mut [&mut one], table.now)[0], expected);
        prop_assert_eq!(one, other);
        Ok(())
    });
    checked.expect("both judge alike");
}

#[test]
fn keys_come_and_go_with_their_epochs() {
    let table = Table::read();
    let mut batch = Batch::new(table.verifiers[0].clone());
    let (_, frame, ..) = table.first_frames().find(|(name, ..)| name.starts_with("ipv4: aes-cmac")).expect("a row");
    let length = table.verifiers[0].epoch_length;
    for epochs in [0i64, 1, 2, 3, -1, -2, -3, 0, 256, -256] {
        let now = (i64::from(table.now) + epochs * i64::from(length)) as u32;
        let expected = table.verifiers[0].judge(&mut frame.clone(), now);
        assert_eq!(judge(&mut batch, &mut [&mut frame.clone()], now)[0], expected, "{epochs} epochs on");
    }
}
