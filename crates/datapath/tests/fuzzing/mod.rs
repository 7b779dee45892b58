//! Parts of the differential fuzzer: random packets, operations between them, and invariants that must hold throughout.

pub mod between;
pub mod chance;
pub mod given;
pub mod packets;
pub mod promises;

use crate::world::{Deciders, families, with_link};
use between::{Between, Pinned};
use chance::Chance;
use datapath::hook::Hook;
use datapath::kernel_tables::KernelTables;
use engine::verifier::{Outcome, explain};
use given::Given;
use promises::Promises;
use wire::map::counter;
use wire::packet::Packet;
use wire::shim::{self, Content};

/// The two deciders, and the history of the run.
pub struct Run {
    pub deciders: Deciders,
    pub hook: Hook,
    pub seed: u64,
    pub chance: Chance,
    pub now: u32,
    pub given: Given,
    pub promises: Promises,
    pub between: Between,
    pub pinned: Pinned,
    pub packets: u64,
    /// Outcomes, by their counters.
    pub tally: [u64; counter::COUNT as usize],
    /// Number of tokens of either scheme that were removed from shims.
    pub unwrapped: [u64; 2],
    /// Number of tokens that admitted inside a sealed tunnel.
    pub inside: u64,
}

impl Run {
    /// Describes the place of a failure.
    pub fn place(&self) -> String {
        let Self { packets, seed, now, hook, .. } = self;
        format!("packet {packets} of seed {seed:#x} at {now}, {hook:?}, after {}", self.between.latest())
    }

    /// Runs one random packet.
    pub fn packet(&mut self) {
        let copy =
            if self.chance.one_in(16) { self.promises.admitted_around(&mut self.chance, self.now) } else { None };
        let frame = copy.unwrap_or_else(|| {
            let mut frame = packets::packet(&mut self.chance, self.now, &mut self.given);
            packets::mutate(&mut self.chance, &mut frame);
            frame
        });
        if self.chance.one_in(4) {
            self.verify_inside(&frame);
        } else {
            self.verify(&frame);
        }
    }

    /// Checks that both decide alike on a frame's packet when it comes out of a sealed tunnel.
    fn verify_inside(&mut self, frame: &[u8]) {
        self.packets += 1;
        let Some((packet, linked)) = frame.get(14..).and_then(|packet| Some((packet, with_link(packet)?))) else {
            return;
        };
        self.deciders.set_clock(self.now);
        self.deciders.forget_alike();
        let flows = self.deciders.model.flows.len();
        let mut modelled = packet.to_vec();
        self.deciders.model.in_tunnel = true;
        let outcome = self.deciders.model.verify(&mut modelled, self.now);
        self.deciders.model.in_tunnel = false;
        let ran = self.deciders.tunnel.as_ref().expect("loaded").run(&linked).expect("the program runs");
        self.tally[outcome.counter() as usize] += 1;
        self.inside += u64::from(matches!(outcome, Outcome::Token | Outcome::Consumed));
        let place = || format!("{}, inside, {outcome:?}: {}", self.place(), hex::encode(packet));
        assert_ne!(outcome, Outcome::NotOurs, "{}", place());
        assert_eq!(ran.code, Hook::Tc.code(outcome.passes(false)), "{}", place());
        assert!(ran.frame[14..] == modelled, "{}\nrust   {}", place(), hex::encode(&modelled));
        let kept = self.promises.judged(&self.deciders.model, (&linked, true), outcome, self.now, flows);
        assert!(kept.is_ok(), "{}: {}", self.place(), kept.unwrap_err());
    }

    /// Checks that both decide alike on a frame, and returns the outcome; `None` if the frame can't be run.
    pub fn verify(&mut self, frame: &[u8]) -> Option<Outcome> {
        self.packets += 1;
        if !crate::world::runs(self.hook, frame) {
            return None;
        }
        // Set each time, because the second may end in between on a slow machine.
        self.deciders.set_clock(self.now);
        self.deciders.forget_alike();
        let explained = explain(&KernelTables::with_room(&self.deciders.kernel), frame, self.now);
        let flows = self.deciders.model.flows.len();
        let mut modelled = frame.to_vec();
        let outcome = self.deciders.model.verify(&mut modelled, self.now);
        let ran = self.deciders.kernel.run(frame, 1).expect("the program runs");
        self.tally[outcome.counter() as usize] += 1;
        if matches!(outcome, Outcome::Token | Outcome::Consumed) {
            match shim::open(frame, &Packet::parse(frame)) {
                Some(Ok((_, Content::Token(_)))) => self.unwrapped[0] += 1,
                Some(Ok((_, Content::Ls(_)))) => self.unwrapped[1] += 1,
                _ => {}
            }
        }
        let place = || format!("{}, {outcome:?}: {}", self.place(), hex::encode(frame));
        assert_eq!(ran.code, self.hook.code(outcome.passes(false)), "{}", place());
        assert_eq!(explained.outcome, outcome, "{}\n{explained:?}", place());
        assert!(
            ran.frame == modelled,
            "{}\nrust   {}\nkernel {}",
            place(),
            hex::encode(&modelled),
            hex::encode(&ran.frame)
        );
        let kept = self.promises.judged(&self.deciders.model, (frame, false), outcome, self.now, flows);
        assert!(kept.is_ok(), "{}: {}", self.place(), kept.unwrap_err());
        Some(outcome)
    }

    /// Compares all tables and counters.
    pub fn compare(&self) {
        let (Deciders { model, kernel, .. }, place) = (&self.deciders, self.place());
        for index in (0..counter::COUNT).filter(|index| *index != counter::SAMPLES_LOST) {
            let counted = kernel.count(index).expect("counters");
            assert_eq!(counted, self.tally[index as usize], "{place}: counter {index}");
        }
        let flows: std::collections::BTreeMap<_, _> = kernel.flows.entries().into_iter().collect();
        assert!(flows == model.flows, "{place}: the flow tables differ");
        let grants: std::collections::BTreeMap<_, _> =
            kernel.grants.entries().into_iter().map(|(handle, used)| (wire::Handle(handle), used)).collect();
        assert!(grants == model.grants, "{place}: the grant tables differ");
        let accounts: std::collections::BTreeMap<_, _> = kernel.accounts.entries().into_iter().collect();
        assert!(accounts == model.accounts, "{place}: the tables of accounts differ");
        let pairs: std::collections::BTreeMap<_, _> =
            kernel.ls_grants.entries().into_iter().map(|(handle, pair)| (wire::Handle(handle), pair)).collect();
        assert!(pairs == model.ls_grants, "{place}: the tables of pairs differ");
        let kept = self.promises.tables(model);
        assert!(kept.is_ok(), "{place}: {}", kept.unwrap_err());
    }

    /// Returns a random family.
    pub fn family(&mut self) -> crate::world::Family {
        self.chance.pick(&families())
    }
}
