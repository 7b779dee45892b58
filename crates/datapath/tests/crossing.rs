//! Frames that cross through a process: the table of cases for verifiers of proofs, with a batch as the judge; and many
//! frames in a row.

#[path = "../../engine/tests/cases/mod.rs"]
mod cases;
mod line;

use cases::{Step, Table};
use datapath::crossing::{BATCH, Counts, Crossing};
use datapath::interface::Interface;
use engine::verifier::proofs::Outcome;
use lab::net::{Namespace, veth};
use line::Sender;
use proofs::Batch;
use std::time::{Duration, Instant};

/// Time limit for every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(30);

/// A sender, a crossing, and a second crossing that keeps the frames it receives: `from` - `near` crossing `far` - `to`
/// keeper `end` - `wall`.
struct Line {
    sender: Sender,
    crossing: Crossing,
    keeper: Crossing,
    _names: [Namespace; 4],
}

impl Line {
    fn new() -> Self {
        let names = ["from", "cross", "keep", "wall"].map(|role| {
            let namespace = Namespace::new(role).expect("a namespace");
            // Without IPv6, only this test sends frames.
            namespace.sysctl("net/ipv6/conf/default/disable_ipv6", "1").expect("no IPv6");
            namespace
        });
        let [from, cross, keep, wall] = &names;
        veth(from, "from", "", cross, "near", "").expect("a cable");
        veth(cross, "far", "", keep, "to", "").expect("a cable");
        veth(keep, "end", "", wall, "wall", "").expect("a cable");
        let open = |one, other| {
            let [one, other] = [one, other].map(|name| Interface::named(name).expect("an interface"));
            Crossing::open(&one, &other).unwrap_or_else(|error| panic!("{error:#}"))
        };
        let crossing = cross.enter(|| open("near", "far"));
        let keeper = keep.enter(|| open("to", "end"));
        let sender = from.enter(|| Sender::new("from"));
        Self { sender, crossing, keeper, _names: names }
    }

    /// Turns both crossings until `done`, which receives the counts and the frames kept so far.
    fn until(
        &mut self,
        mut judge: impl FnMut(&mut [&mut [u8]]) -> u32,
        done: impl Fn(Counts, &[Vec<u8>]) -> bool,
    ) -> Vec<Vec<u8>> {
        let (deadline, mut kept) = (Instant::now() + PATIENCE, Vec::new());
        loop {
            let mut moved = self.crossing.turn(&mut judge).expect("a turn");
            let keep = |frames: &mut [&mut [u8]]| {
                kept.extend(frames.iter().map(|frame| frame.to_vec()));
                0
            };
            moved += self.keeper.turn(keep).expect("a turn");
            let counts = self.crossing.counts().expect("counts");
            if done(counts, &kept) {
                return kept;
            }
            assert!(Instant::now() < deadline, "{counts:?}, {} kept", kept.len());
            if moved == 0 {
                self.crossing.wait(Duration::from_millis(1)).expect("waiting");
            }
        }
    }
}

/// Returns a judge that passes the frames that a batch passes, and records the outcomes.
fn verify<'a>(batch: &'a mut Batch, now: u32, said: &'a mut Vec<Outcome>) -> impl FnMut(&mut [&mut [u8]]) -> u32 + 'a {
    move |frames| {
        let mut outcomes = [Outcome::NotOurs; BATCH];
        batch.verify(frames, now, &mut outcomes);
        said.extend(&outcomes[..frames.len()]);
        let passes = outcomes.iter().enumerate().filter(|(_, outcome)| !matches!(outcome, Outcome::Drop(_)));
        passes.fold(0, |passes, (place, _)| passes | 1 << place)
    }
}

#[test]
fn every_case_of_the_table_has_its_outcome_by_af_xdp() {
    let table = Table::read();
    let mut line = Line::new();
    let (mut failures, mut frames, mut expected) = (Vec::new(), 0, Counts::default());
    for case in &table.cases {
        let mut batch = Batch::new(table.verifiers[case.of].clone());
        let mut now = table.now;
        for step in &case.steps {
            match step {
                Step::Wait(seconds) => now += seconds,
                Step::Withdraw(what, until) => batch.change(|verifier| verifier.withdraw(*what, *until)),
                // No network delivers a frame without a whole Ethernet header.
                Step::Frame { frame, .. } if frame.len() <= 14 => {}
                Step::Frame { frame, outcome, out } => {
                    let passes = !matches!(outcome, Outcome::Drop(_));
                    frames += 1;
                    expected.received += 1;
                    expected.passed += u64::from(passes);
                    expected.refused += u64::from(!passes);
                    let mut said = Vec::new();
                    line.sender.send(frame);
                    let received = expected.received;
                    let kept = line.until(verify(&mut batch, now, &mut said), |counts, kept| {
                        counts.received == received && kept.len() >= usize::from(passes)
                    });
                    let wanted: &[Vec<u8>] = if passes { std::slice::from_ref(out) } else { &[] };
                    if said != [*outcome] || kept != wanted {
                        failures.push(format!("{}: {said:?}, not {outcome:?}; {} came out", case.name, kept.len()));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {frames}:\n{}", failures.len(), failures.join("\n"));
    assert!(frames >= 300, "{frames} frames");
    assert_eq!(line.crossing.counts().expect("counts"), expected, "each is in one counter");
}

#[test]
fn many_frames_cross_in_order_and_their_memory_comes_back() {
    let table = Table::read();
    let mut line = Line::new();
    let mut batch = Batch::new(table.verifiers[0].clone());
    let (_, good, _, after) =
        table.first_frames().find(|(name, ..)| name.starts_with("ipv4: aes-cmac")).expect("a row");
    let mut bad = good.clone();
    // A byte of the proof.
    bad[80] ^= 1;
    // Several times more than the memory holds.
    let rounds = 300;
    for round in 0..rounds {
        // One whole batch and part of another; no verifier checks the sender's port, so it can distinguish the frames.
        let mut wanted = Vec::new();
        for number in 0..50u16 {
            let mut frame = if number % 7 == 3 { bad.clone() } else { good.clone() };
            frame[34..36].copy_from_slice(&number.to_be_bytes());
            line.sender.send(&frame);
            if number % 7 != 3 {
                let mut out = after.clone();
                out[34..36].copy_from_slice(&number.to_be_bytes());
                wanted.push(out);
            }
        }
        let kept = line.until(verify(&mut batch, table.now, &mut Vec::new()), |_, kept| kept.len() >= wanted.len());
        assert_eq!(kept, wanted, "round {round}");
    }
    let counts = line.crossing.counts().expect("counts");
    let (refused, received) = (rounds * 7, rounds * 50);
    assert_eq!(counts, Counts { received, passed: received - refused, refused, ..Counts::default() });
}
