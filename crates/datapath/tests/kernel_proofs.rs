//! The table of cases for verifiers of proofs, run through the kernel program, and each frame again once its proof is
//! remembered.

#[path = "../../engine/tests/cases/mod.rs"]
mod cases;
mod provers;

use cases::{Step, Table};
use engine::verifier::proofs::Outcome;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use provers::{Prover, Way};
use wire::DropReason;

/// Pins this thread to one core, because each core remembers proofs separately.
fn stay_on_one_core() {
    let this = Pid::from_raw(0);
    let all = sched_getaffinity(this).expect("the cores it may run on");
    let first = (0..CpuSet::count()).find(|core| all.is_set(*core) == Ok(true)).expect("one");
    let mut one = CpuSet::new();
    one.set(first).and_then(|()| sched_setaffinity(this, &one)).expect("it may stay");
}

#[test]
fn kernel_and_table_agree_on_every_case() {
    let table = Table::read();
    let (mut failures, mut frames) = (Vec::new(), 0);
    for (of, verifier) in table.verifiers.iter().enumerate() {
        let mut prover = Prover::new(verifier, 1024);
        for case in table.cases.iter().filter(|case| case.of == of) {
            let mut now = table.now;
            for (index, step) in case.steps.iter().enumerate() {
                match step {
                    Step::Wait(seconds) => now += seconds,
                    Step::Withdraw(what, until) => prover.withdraw(what, *until),
                    Step::Frame { frame, outcome, out } => {
                        // A remembered proof does not change the outcome.
                        for time in ["first", "second"] {
                            let (got, _, left) = prover.verify(frame, now);
                            if got != *outcome || left != *out {
                                let place = format!("{}, step {index}, {time} time", case.name);
                                failures.push(format!("{place}: {got:?}, not {outcome:?}\n  {}", hex::encode(frame)));
                            }
                            frames += 1;
                        }
                    }
                }
            }
            if case.steps.iter().any(|step| matches!(step, Step::Withdraw(..))) {
                prover = Prover::new(verifier, 1024);
            }
        }
    }
    assert!(failures.is_empty(), "{} of {frames} frames:\n{}", failures.len(), failures.join("\n"));
    println!("{frames} frames agree");
}

#[test]
fn kernel_computes_a_steady_flows_proof_once_and_again_when_something_changed() {
    stay_on_one_core();
    let table = Table::read();
    let prover = Prover::new(&table.verifiers[0], 1024);
    let named = |text: &str| {
        let (_, frame, ..) = table.first_frames().find(|(name, ..)| name.contains(text)).expect("a row");
        frame.clone()
    };
    for text in ["ipv4: siphash", "ipv4: aes-cmac", "ipv6: siphash", "ipv6: aes-cmac"] {
        let frame = named(text);
        for way in [Way::Computed, Way::Remembered, Way::Remembered] {
            assert_eq!(prover.verify(&frame, table.now).1, Some(way), "{text}");
        }
        let elsewhere = engine::verifier::proofs::Withdrawal {
            vni: wire::Vni::from([0, 0, 1]),
            receiver: [10, 9, 9, 9].into(),
            sender: None,
        };
        prover.withdraw(&elsewhere, table.now + 1);
        assert_eq!(prover.verify(&frame, table.now).1, Some(Way::Computed), "{text}: somebody withdrew");
        prover.learn(&table.verifiers[0]);
        assert_eq!(prover.verify(&frame, table.now).1, Some(Way::Computed), "{text}: keys changed");
        assert_eq!(prover.verify(&frame, table.now).1, Some(Way::Remembered), "{text}");
    }
    assert_eq!(prover.program.withdrawals(), 1);
    prover.program.sweep(table.now + 1).expect("sweep");
    assert_eq!(prover.program.withdrawals(), 0);
}

#[test]
fn kernel_asks_whether_a_receiver_withdrew_while_any_of_its_class_has() {
    let table = Table::read();
    let prover = Prover::new(&table.verifiers[0], 1024);
    let (_, frame, ..) = table.first_frames().find(|(name, ..)| name.starts_with("ipv4: siphash")).expect("a row");
    let receiver =
        u32::from_be_bytes(*frame[frame.len() - inner_length(frame) + 16..].first_chunk().expect("an address"));
    let vni = wire::Vni::from([frame[46], frame[47], frame[48]]);
    let of = |vni, receiver: u32| engine::verifier::proofs::Withdrawal {
        vni,
        receiver: std::net::Ipv4Addr::from(receiver).into(),
        sender: None,
    };
    let revoked = Outcome::Drop(DropReason::Revoked);
    // A receiver with that address in another network is of the same class, but not the same receiver.
    prover.withdraw(&of(wire::Vni::from([9, 9, 9]), receiver), table.now + 100_000);
    assert_eq!(prover.verify(frame, table.now).0, Outcome::Proved);
    prover.withdraw(&of(vni, receiver), table.now + 100_000);
    assert_eq!(prover.verify(frame, table.now).0, revoked);
    prover.withdraw(&of(vni, receiver ^ 1), table.now + 1);
    prover.program.sweep(table.now + 2).expect("sweep");
    assert_eq!(prover.program.withdrawals(), 2);
    assert_eq!(prover.verify(frame, table.now).0, revoked, "what is swept takes no other's class along");
}

/// Returns the length of the inner packet, which fills the outer one.
fn inner_length(frame: &[u8]) -> usize {
    let count = usize::from(frame[54] >> 3 & 7);
    frame.len() - 74 - 16 * count
}

#[test]
fn kernel_keys_are_swept_when_their_epoch_is_over() {
    let table = Table::read();
    let verifier = &table.verifiers[0];
    let prover = Prover::new(verifier, 1024);
    assert_eq!(prover.program.keys(), verifier.keys.len());
    prover.program.sweep(table.now).expect("sweep");
    let now = u64::from(table.now / verifier.epoch_length);
    let held = verifier.keys.keys().filter(|(_, epoch)| epoch.0 + 1 >= now).count();
    assert!(0 < held && held < verifier.keys.len());
    assert_eq!(prover.program.keys(), held);
    let (_, frame, ..) = table.first_frames().find(|(name, ..)| name.starts_with("ipv4: siphash")).expect("a row");
    assert_eq!(prover.verify(frame, table.now).0, Outcome::Proved);
}

#[test]
fn kernel_remembers_no_more_than_it_has_room_for_and_what_is_forgotten_is_computed() {
    let table = Table::read();
    let prover = Prover::new(&table.verifiers[0], 16);
    let valid: Vec<_> = table.first_frames().filter(|(.., outcome, _)| *outcome == Outcome::Proved).collect();
    let mut computed = 0;
    for _ in 0..4 {
        for (name, frame, ..) in &valid {
            let (outcome, way, _) = prover.verify(frame, table.now);
            assert_eq!(outcome, Outcome::Proved, "{name}");
            computed += usize::from(way == Some(Way::Computed));
        }
    }
    assert!(computed > valid.len() * 2, "{computed} of {} were forgotten in between", valid.len() * 4);
}

/// SVLAN §VII, verifier flooding: the verifier keeps nothing that unauthenticated senders send, and forgets no flow
/// because of it.
#[test]
fn kernel_verifier_flooding_leaves_nothing_and_forgets_nobody() {
    stay_on_one_core();
    let table = Table::read();
    let prover = Prover::new(&table.verifiers[0], 16);
    let (_, steady, ..) = table.first_frames().find(|(name, ..)| name.starts_with("ipv4: siphash")).expect("a row");
    assert_eq!(prover.verify(steady, table.now).1, Some(Way::Computed));
    let (keys, withdrawals) = (prover.program.keys(), prover.program.withdrawals());
    // Proofs that would occupy every slot.
    for guess in 0..4096_u32 {
        let mut flood = steady.clone();
        let proof = 42 + 12 + 20;
        flood[proof..proof + 4].copy_from_slice(&guess.to_le_bytes());
        let (outcome, ..) = prover.verify(&flood, table.now);
        assert_eq!(outcome, Outcome::Drop(DropReason::BadTag));
    }
    assert_eq!(prover.verify(steady, table.now).1, Some(Way::Remembered));
    assert_eq!((prover.program.keys(), prover.program.withdrawals()), (keys, withdrawals));
}

#[test]
fn kernel_takes_no_changed_frame_that_the_decision_in_rust_refuses() {
    let table = Table::read();
    let verifier = &table.verifiers[0];
    let prover = Prover::new(verifier, 4096);
    let cases: Vec<_> = table.first_frames().collect();
    // Pseudo-random numbers of no particular quality, the same in every run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut proved = 0;
    for round in 0..5_000 {
        let mut frame = cases[next(cases.len())].1.clone();
        for _ in 0..next(3) {
            let at = next(frame.len());
            frame[at] = if next(2) == 0 { next(256) as u8 } else { frame[at] ^ 1 << next(8) };
        }
        if next(16) == 0 {
            frame.truncate(14 + next(frame.len() - 14));
        }
        let mut modelled = frame.clone();
        let expected = verifier.verify(&mut modelled, table.now);
        let (got, _, left) = prover.verify(&frame, table.now);
        assert_eq!((got, &left), (expected, &modelled), "round {round}: {}", hex::encode(&frame));
        proved += usize::from(got == Outcome::Proved);
    }
    assert!(proved > 300, "{proved}");
}
