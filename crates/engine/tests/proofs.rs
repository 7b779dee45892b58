//! The table of cases for verifiers of proofs, which was made without this code, through the decision in Rust.

use engine::proofs::{Outcome, Verifier, Withdrawal};
use serde_json::Value;
use std::net::IpAddr;
use wire::{DropReason, Epoch, MasterKey, Vni};

fn table() -> Value {
    serde_json::from_str(include_str!("../../wire/tests/data/proofs.json")).expect("proofs.json is JSON")
}

fn number(value: &Value) -> u32 {
    value.as_u64().and_then(|number| number.try_into().ok()).expect("a number")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn address(value: &Value) -> IpAddr {
    text(value).parse().expect("an address")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// The verifier with this number, with keys for the epochs around now.
fn verifier(table: &Value, of: usize) -> Verifier {
    let endpoints = list(&table["endpoints"]).iter().map(|prefix| text(prefix).parse().expect("a prefix")).collect();
    let mut verifier = Verifier::new(endpoints, number(&table["epoch_length"]), number(&table["max_lifetime"]));
    for authority in list(&table["authorities"]) {
        let master = hex::decode(text(&authority["master_key"])).expect("hex");
        let master = MasterKey::new(master.try_into().expect("32 bytes"));
        let at = address(&authority["address"]);
        let epoch = Epoch::at(number(&table["now"]).into(), verifier.epoch_length).0;
        for epoch in epoch - 3..epoch + 4 {
            let key = master.proof_key(text(&table["verifiers"][of]), at, Epoch(epoch)).expect("a short id");
            verifier.keys.insert((at, Epoch(epoch)), key);
        }
    }
    verifier
}

fn outcome(name: &str) -> Outcome {
    match name {
        "proved" => Outcome::Proved,
        "not_ours" => Outcome::NotOurs,
        name => {
            let reason = DropReason::ALL.iter().find(|reason| reason.name() == name);
            Outcome::Drop(*reason.unwrap_or_else(|| panic!("{name} is no outcome")))
        }
    }
}

fn withdrawal(word: &Value) -> Withdrawal {
    Withdrawal {
        vni: Vni::new(number(&word["vni"])).expect("24 bits"),
        receiver: address(&word["receiver"]),
        sender: word["sender"].as_str().map(|sender| sender.parse().expect("an address")),
    }
}

#[test]
fn every_case_of_the_table_has_its_outcome() {
    let table = table();
    let verifiers: Vec<_> = (0..list(&table["verifiers"]).len()).map(|of| verifier(&table, of)).collect();
    let (mut failures, mut frames) = (Vec::new(), 0);
    let mut seen = std::collections::BTreeSet::new();
    for case in list(&table["packets"]) {
        let mut verifier = verifiers[number(&case["of"]) as usize].clone();
        let mut now = number(&table["now"]);
        for (index, step) in list(&case["steps"]).iter().enumerate() {
            if let Some(seconds) = step.get("wait") {
                now += number(seconds);
                continue;
            }
            if let Some(word) = step.get("withdraw") {
                verifier.withdraw(withdrawal(word), number(&word["until"]));
                continue;
            }
            let before = hex::decode(text(&step["frame"])).expect("hex");
            let mut after = before.clone();
            let expected = outcome(text(&step["outcome"]));
            let mut passed = before;
            for change in step["changes"].as_array().into_iter().flatten() {
                passed[number(&change[0]) as usize] = number(&change[1]) as u8;
            }
            let got = verifier.judge(&mut after, now);
            if got != expected || after != passed {
                failures
                    .push(format!("{} ({}), step {index}: {got:?}, not {expected:?}", case["name"], case["clause"]));
            }
            seen.insert(text(&step["outcome"]).to_owned());
            frames += 1;
        }
    }
    assert!(failures.is_empty(), "{} of {frames} frames:\n{}", failures.len(), failures.join("\n"));
    assert!(list(&table["packets"]).len() >= 60 && frames >= 60, "{frames} frames");
    let all = [
        "proved",
        "not_ours",
        "no_token",
        "malformed",
        "unknown_suite",
        "unknown_epoch",
        "expired",
        "lifetime_too_long",
        "bad_tag",
        "revoked",
        "fragment",
    ];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), {
        let mut all = all.map(str::to_owned);
        all.sort();
        all
    });
}

/// Valid packets of the table at the first verifier, with their place in the table.
fn first_frames(table: &Value) -> impl Iterator<Item = (&str, Vec<u8>)> {
    let cases = list(&table["packets"])
        .iter()
        .filter(|case| case["of"] == 0 && case["steps"].as_array().map(Vec::len) == Some(1));
    cases.map(|case| (text(&case["name"]), hex::decode(text(&case["steps"][0]["frame"])).expect("hex")))
}

#[test]
fn what_a_compromised_verifier_lets_through_the_others_stop() {
    let table = table();
    let honest: Vec<_> = (0..3).map(|of| verifier(&table, of)).collect();
    let now = number(&table["now"]);
    let (mut through, mut stopped) = (0, 0);
    for (name, frame) in first_frames(&table) {
        let is_valid = honest[0].judge(&mut frame.clone(), now) == Outcome::Proved;
        for compromised in 0..3 {
            let mut packet = frame.clone();
            let passes = honest.iter().enumerate().all(|(place, verifier)| {
                if place != compromised {
                    return verifier.judge(&mut packet, now) == Outcome::Proved;
                }
                // It lets everything through, as if it had checked.
                let parsed = wire::packet::Packet::parse(&packet);
                let _ = wire::geneve::advance(&mut packet, &parsed);
                true
            });
            // Where nothing is wrong but the proof for it, that is what it is trusted with.
            let own = compromised == 0 && name.contains("of the proof flipped");
            assert!(!passes || is_valid || own, "{name}: passes where verifier {compromised} is compromised");
            if passes { through += 1 } else { stopped += 1 }
        }
    }
    assert!(through >= 60 && stopped >= 60, "{through} passed, {stopped} did not");
}

#[test]
fn withdrawals_are_forgotten_when_all_they_void_has_ended() {
    let table = table();
    let mut verifier = verifier(&table, 0);
    let now = number(&table["now"]);
    let what = Withdrawal { vni: Vni::new(1).expect("24 bits"), receiver: [10, 0, 0, 9].into(), sender: None };
    verifier.withdraw(what, now + 10);
    verifier.withdraw(what, now + 5);
    verifier.sweep(now + 9);
    assert_eq!(verifier.withdrawals(), 1, "a later word takes nothing back");
    verifier.sweep(now + 10);
    assert_eq!(verifier.withdrawals(), 0);
}
