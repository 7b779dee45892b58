//! The kernel program of a verifier of proofs, with the keys and endpoints of a verifier in Rust.

use datapath::clock;
use datapath::proofs::Proofs;
use engine::verifier::proofs::{Outcome, Verifier, Withdrawal};
use wire::DropReason;
use wire::map::{ProofsConfig, counter};

/// How the proof of a packet that passes was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Computed,
    Remembered,
}

pub struct Prover {
    pub program: Proofs,
}

impl Prover {
    pub fn new(verifier: &Verifier, remembered: u32) -> Self {
        Self::with(verifier, |config| Proofs::load(config, remembered))
    }

    pub fn with(verifier: &Verifier, load: impl FnOnce(ProofsConfig) -> anyhow::Result<Proofs>) -> Self {
        let config = ProofsConfig { epoch_length: verifier.epoch_length, max_lifetime: verifier.max_lifetime };
        let program = load(config).unwrap_or_else(|error| panic!("{error:#}"));
        let endpoints: Vec<_> =
            verifier.endpoints.iter().map(|prefix| (prefix.network(), prefix.prefix_len())).collect();
        program.stand_before(&endpoints).expect("maps take prefixes");
        let prover = Self { program };
        prover.learn(verifier);
        prover
    }

    pub fn learn(&self, verifier: &Verifier) {
        for ((authority, epoch), key) in &verifier.keys {
            self.program.learn(*authority, *epoch, key).expect("map takes keys");
        }
    }

    pub fn withdraw(&self, what: &Withdrawal, until: u32) {
        self.program.withdraw(what.vni, what.receiver, what.sender, until).expect("map takes withdrawals");
    }

    pub fn set_clock(&self, now: u32) {
        // A fifth of a second into it, so that neither the coarse clock's lag nor a few packets leave that second.
        self.program.set_clock(clock::coarse_reading(now.into()).wrapping_add(200_000_000)).expect("clock");
    }

    /// Runs a frame and returns its outcome: the one counter that moved.
    pub fn verify(&self, frame: &[u8], now: u32) -> (Outcome, Option<Way>, Vec<u8>) {
        self.set_clock(now);
        let before = self.program.counts().expect("counters");
        let ran = self.program.run(frame, 1).expect("the program runs");
        let after = self.program.counts().expect("counters");
        let moved: Vec<_> = (0..after.len()).filter(|index| after[*index] != before[*index]).collect();
        let [index] = moved[..] else { panic!("counters {moved:?} moved, not one") };
        assert_eq!(after[index], before[index] + 1);
        let (outcome, way) = match index as u32 {
            counter::NOT_OURS => (Outcome::NotOurs, None),
            counter::FLOW => (Outcome::Proved, Some(Way::Remembered)),
            counter::TOKEN => (Outcome::Proved, Some(Way::Computed)),
            _ => (Outcome::Drop(DropReason::from_number(index as u8).expect("a reason's counter")), None),
        };
        // XDP_DROP is 1, XDP_PASS 2.
        assert_eq!(ran.code, if matches!(outcome, Outcome::Drop(_)) { 1 } else { 2 }, "code and counter agree");
        (outcome, way, ran.frame)
    }
}
