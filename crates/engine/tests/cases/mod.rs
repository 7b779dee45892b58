//! Test vectors for verifiers of proofs, generated without any of this project's code. Other crates' tests use this
//! module, too.

use engine::verifier::proofs::{Outcome, Verifier, Withdrawal};
use serde_json::Value;
use std::net::IpAddr;
use wire::{DropReason, Epoch, MasterKey, ProofKey, Vni};

/// One step of a case.
pub enum Step {
    /// A frame arrives; the verifier decides, and `out` is the frame afterwards (unchanged if it is dropped or not
    /// ours).
    Frame { frame: Vec<u8>, outcome: Outcome, out: Vec<u8> },
    /// Seconds pass.
    Wait(u32),
    /// Consent is withdrawn for segments that end by the given time.
    Withdraw(Withdrawal, u32),
}

/// One case of the table.
pub struct Case {
    pub name: String,
    /// Index of the verifier under test.
    pub of: usize,
    pub steps: Vec<Step>,
}

/// The table of cases and their setting.
pub struct Table {
    /// Time at which every case begins, Unix seconds.
    pub now: u32,
    pub cases: Vec<Case>,
    /// One verifier for each place on the path.
    pub verifiers: Vec<Verifier>,
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

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(text(value)).expect("hex")
}

impl Table {
    pub fn read() -> Self {
        let text_of_it = include_str!("../../../wire/tests/data/proofs.json");
        let table: Value = serde_json::from_str(text_of_it).expect("proofs.json is JSON");
        let cases: Vec<_> = list(&table["packets"]).iter().map(case).collect();
        assert!(cases.len() >= 300, "{} cases", cases.len());
        let verifiers = list(&table["verifiers"]).iter().map(|id| verifier(&table, text(id))).collect();
        Self { now: number(&table["now"]), cases, verifiers }
    }

    /// Returns the first frames of the cases at the first verifier: name, frame, outcome, and the frame afterwards.
    pub fn first_frames(&self) -> impl Iterator<Item = (&str, &Vec<u8>, Outcome, &Vec<u8>)> {
        self.cases.iter().filter(|case| case.of == 0).filter_map(|case| match &case.steps[0] {
            Step::Frame { frame, outcome, out } => Some((&*case.name, frame, *outcome, out)),
            _ => None,
        })
    }
}

/// Builds a verifier with the keys of the epochs around `now`.
fn verifier(table: &Value, id: &str) -> Verifier {
    let endpoints = list(&table["endpoints"]).iter().map(|prefix| text(prefix).parse().expect("a prefix")).collect();
    let mut verifier = Verifier::new(endpoints, number(&table["epoch_length"]), number(&table["max_lifetime"]));
    let epoch = Epoch::at(number(&table["now"]).into(), verifier.epoch_length).0;
    for authority in list(&table["authorities"]) {
        let master = MasterKey::new(bytes(&authority["master_key"]).try_into().expect("32 bytes"));
        let at = address(&authority["address"]);
        for epoch in (epoch - 3..epoch + 4).map(Epoch) {
            let key: ProofKey = master.proof_key(id, at, epoch).expect("a short id");
            verifier.keys.insert((at, epoch), key);
        }
    }
    verifier
}

fn case(row: &Value) -> Case {
    let name = format!("{} ({})", text(&row["name"]), text(&row["clause"]));
    Case { name, of: number(&row["of"]) as usize, steps: list(&row["steps"]).iter().map(step).collect() }
}

fn step(step: &Value) -> Step {
    if let Some(seconds) = step.get("wait") {
        return Step::Wait(number(seconds));
    }
    if let Some(word) = step.get("withdraw") {
        let what = Withdrawal {
            vni: Vni::new(number(&word["vni"])).expect("24 bits"),
            receiver: address(&word["receiver"]),
            sender: word["sender"].as_str().map(|sender| sender.parse().expect("an address")),
        };
        return Step::Withdraw(what, number(&word["until"]));
    }
    let frame = bytes(&step["frame"]);
    let mut out = frame.clone();
    for change in step["changes"].as_array().into_iter().flatten() {
        out[number(&change[0]) as usize] = number(&change[1]) as u8;
    }
    Step::Frame { frame, outcome: outcome(text(&step["outcome"])), out }
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
