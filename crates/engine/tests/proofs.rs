//! Checks the decisions in Rust against the table of cases for verifiers of proofs.

mod cases;

use cases::{Step, Table};
use engine::verifier::proofs::{Outcome, Withdrawal};
use wire::packet::Packet;
use wire::{DropReason, Vni, geneve};

#[test]
fn every_case_of_the_table_has_its_outcome() {
    let table = Table::read();
    let (mut failures, mut frames, mut seen) = (Vec::new(), 0, Vec::new());
    for case in &table.cases {
        let mut verifier = table.verifiers[case.of].clone();
        let mut now = table.now;
        for (index, step) in case.steps.iter().enumerate() {
            match step {
                Step::Wait(seconds) => now += seconds,
                Step::Withdraw(what, until) => verifier.withdraw(*what, *until),
                Step::Frame { frame, outcome, out } => {
                    let mut left = frame.clone();
                    let got = verifier.verify(&mut left, now);
                    if got != *outcome || left != *out {
                        failures.push(format!("{}, step {index}: {got:?}, not {outcome:?}", case.name));
                    }
                    seen.push(*outcome);
                    frames += 1;
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {frames} frames:\n{}", failures.len(), failures.join("\n"));
    let reasons = [
        DropReason::NoToken,
        DropReason::Malformed,
        DropReason::UnknownSuite,
        DropReason::UnknownEpoch,
        DropReason::Expired,
        DropReason::LifetimeTooLong,
        DropReason::BadTag,
        DropReason::Revoked,
        DropReason::Fragment,
    ];
    for outcome in reasons.map(Outcome::Drop).into_iter().chain([Outcome::Proved, Outcome::NotOurs]) {
        assert!(seen.contains(&outcome), "no row shows {outcome:?}");
    }
}

#[test]
fn what_a_compromised_verifier_lets_through_the_others_stop() {
    let table = Table::read();
    let (mut through, mut stopped) = (0, 0);
    for (name, frame, outcome, _) in table.first_frames() {
        for compromised in 0..3 {
            let mut packet = frame.clone();
            let passes = table.verifiers.iter().enumerate().all(|(place, verifier)| {
                if place != compromised {
                    return verifier.verify(&mut packet, table.now) == Outcome::Proved;
                }
                // The compromised verifier lets every packet through, as if it had checked.
                let parsed = Packet::parse(&packet);
                let _ = geneve::advance(&mut packet, &parsed);
                true
            });
            // Exception: if only the compromised verifier's own proof is wrong, the others rely on it to notice.
            let own = compromised == 0 && name.contains("of the proof flipped");
            let is_valid = outcome == Outcome::Proved;
            assert!(!passes || is_valid || own, "{name}: passes where verifier {compromised} is compromised");
            if passes { through += 1 } else { stopped += 1 }
        }
    }
    assert!(through >= 60 && stopped >= 60, "{through} passed, {stopped} did not");
}

#[test]
fn withdrawals_are_forgotten_when_all_they_void_has_ended() {
    let table = Table::read();
    let mut verifier = table.verifiers[0].clone();
    let now = table.now;
    let what = Withdrawal { vni: Vni::new(1).expect("24 bits"), receiver: [10, 0, 0, 9].into(), sender: None };
    verifier.withdraw(what, now + 10);
    verifier.withdraw(what, now + 5);
    verifier.sweep(now + 9);
    let held: Vec<_> = verifier.withdrawals().collect();
    assert_eq!(held, [(&what, now + 10)], "a later word takes nothing back");
    verifier.sweep(now + 10);
    assert_eq!(verifier.withdrawals().count(), 0);
}
