//! Runs every file of the committed corpus through its target.

use engine::issuing::lines::Unanswered;
use engine::verifier::Outcome;
use engine::verifier::proofs;
use harness::Unsealed;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use wire::DropReason;

fn corpus() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("fuzz/").join("corpus")
}

#[test]
fn every_input_of_the_corpus_holds() {
    for (name, target) in harness::TARGETS {
        let folder = corpus().join(name);
        let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut inputs = 0;
        for file in files {
            let path = file.expect("a file").path();
            let input = fs::read(&path).expect("readable");
            if std::panic::catch_unwind(|| target(&input)).is_err() {
                panic!("{name} fails on {}", path.display());
            }
            inputs += 1;
        }
        assert!(inputs >= 5, "{} has only {inputs} inputs", folder.display());
    }
}

#[test]
fn in_the_corpus_everything_happens_between_frames() {
    use harness::Between::{
        Adopt, Back, EndSession, EpochEnds, FarBack, Forward, Inside, Leap, OtherGrant, Restart, Revoke, Sweep,
    };
    let files = fs::read_dir(corpus().join("verifier")).expect("corpus/verifier/");
    let mut counts = BTreeMap::new();
    for file in files {
        for (between, count) in harness::happened(&fs::read(file.expect("a file").path()).expect("readable")) {
            *counts.entry(between).or_insert(0) += count;
        }
    }
    println!("{counts:?}");
    let all = [Forward, Leap, Back, FarBack, EpochEnds, Restart, Sweep, Revoke, EndSession, Adopt, OtherGrant, Inside];
    for between in all {
        assert!(counts.contains_key(&between), "{between:?} never happened: {counts:?}");
    }
}

#[test]
fn the_corpus_reaches_every_outcome() {
    let files = fs::read_dir(corpus().join("verifier")).expect("corpus/verifier/");
    let inputs = files.map(|file| fs::read(file.expect("a file").path()).expect("readable"));
    let reached: BTreeSet<_> = inputs.flat_map(|input| harness::outcomes(&input)).map(Outcome::counter).collect();
    let outcomes = [Outcome::NotOurs, Outcome::Flow, Outcome::Token, Outcome::Consumed, Outcome::IcmpError];
    // Inside addresses are assigned after the decision that this target tests.
    let reasons = DropReason::ALL.iter().filter(|reason| **reason != DropReason::NoAddress);
    for outcome in reasons.map(|reason| Outcome::Drop(*reason)).chain(outcomes) {
        assert!(reached.contains(&outcome.counter()), "{outcome:?}");
    }
}

#[test]
fn the_corpus_reaches_every_outcome_of_proofs() {
    let files = fs::read_dir(corpus().join("proof")).expect("corpus/proof/");
    let inputs = files.map(|file| fs::read(file.expect("a file").path()).expect("readable"));
    let reached: Vec<_> = inputs.map(|input| harness::judged(&input)).collect();
    let reasons = [
        DropReason::NoToken,
        DropReason::Malformed,
        DropReason::UnknownSuite,
        DropReason::UnknownEpoch,
        DropReason::Expired,
        DropReason::LifetimeTooLong,
        DropReason::BadTag,
        DropReason::Fragment,
    ];
    for outcome in
        reasons.map(proofs::Outcome::Drop).into_iter().chain([proofs::Outcome::Proved, proofs::Outcome::NotOurs])
    {
        assert!(reached.contains(&outcome), "{outcome:?}");
    }
}

#[test]
fn the_corpus_reaches_every_outcome_of_asking() {
    let files = fs::read_dir(corpus().join("ask")).expect("corpus/ask/");
    let inputs = files.map(|file| fs::read(file.expect("a file").path()).expect("readable"));
    let reached: BTreeSet<_> = inputs.map(|input| harness::asked(&input)).collect();
    // The other outcomes, which are limits and repetition, take several requests.
    let outcomes = [Unanswered::NotOurs, Unanswered::NoLine, Unanswered::Forged, Unanswered::Malformed].map(Some);
    assert_eq!(reached, outcomes.into_iter().chain([None]).collect());
}

#[test]
fn the_corpus_reaches_every_outcome_of_opening() {
    let files = fs::read_dir(corpus().join("seal")).expect("corpus/seal/");
    let inputs = files.map(|file| fs::read(file.expect("a file").path()).expect("readable"));
    let reached: BTreeSet<_> = inputs.map(|input| harness::unsealed(&input)).collect();
    assert_eq!(reached, BTreeSet::from([Unsealed::Malformed, Unsealed::BadTag, Unsealed::Opened]));
}

#[test]
fn every_target_has_its_fuzz_target() {
    for (name, _) in harness::TARGETS {
        let text = fs::read_to_string(corpus().with_file_name("fuzz_targets").join(format!("{name}.rs")));
        assert!(text.is_ok_and(|text| text.contains(&format!("harness::{name}"))), "{name}");
    }
    let targets = fs::read_dir(corpus().with_file_name("fuzz_targets")).expect("fuzz_targets/");
    assert_eq!(targets.count(), harness::TARGETS.len());
}

#[test]
fn short_inputs_hold() {
    for (_, target) in harness::TARGETS {
        for length in 0..100 {
            for value in [0, 1, 4, 0x45, 0xff] {
                target(&vec![value; length]);
            }
        }
    }
}
