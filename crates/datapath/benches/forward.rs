//! Measures how many packets per second a verifier of proofs in user space (AF_XDP) forwards on one core. The bench
//! compares this rate with the rate of forwarding without verification, and with the rate of the kernel's program (XDP)
//! at the same veth pair. The sizes in the output are those of the tenants' packets before encapsulation (SVLAN, Fig.
//! 5). Needs root.
//!
//! Prints one JSON object, which `cargo xtask bench` collects.
//!
//! The time that the sender needs does not count: the sender first fills the ring with a burst of frames, and then the
//! clock starts. The clock runs for whole batches of these waiting frames. In this time, they are verified, sent, and
//! dropped at the far end of the veth pair. Bursts with verification and bursts without alternate. For XDP, the kernel
//! itself injects frames, 64 at a time, as the driver of a network card would, and the frames leave through the same
//! veth pair. Their proofs are of suite siphash; the program computes each proof once and then remembers it.

#[allow(dead_code, reason = "the tests are its other user")]
#[path = "../../engine/tests/cases/mod.rs"]
mod cases;
#[path = "../tests/line/mod.rs"]
mod line;
#[allow(dead_code, reason = "the tests are its other user")]
#[path = "../tests/provers/mod.rs"]
mod provers;

use cases::Table;
use datapath::crossing::{BATCH, Crossing};
use datapath::interface::Interface;
use datapath::probe::{Attached, Probe};
use datapath::proofs::{Proofs, REMEMBERED};
use engine::verifier::proofs::Outcome;
use lab::net::{Namespace, veth};
use line::Sender;
use measure::{Bound, Figures, Yardstick, mean_of_middle};
use proofs::Batch;
use provers::Prover;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Number of bursts of each kind and size.
const BURSTS: usize = 120;
/// Number of frames in a burst, which has to fit into the ring.
const BURST: usize = 30 * BATCH;
/// Packet sizes, each with the lowest permitted rate relative to unchecked forwarding.
const SIZES: [(usize, Bound); 6] = [
    (64, Bound::AtLeast(0.8)),
    (128, Bound::None),
    (256, Bound::None),
    (512, Bound::AtLeast(0.95)),
    (1024, Bound::AtLeast(0.95)),
    (1500, Bound::AtLeast(0.95)),
];
/// The simple IMIX: of twelve packets, the number that have each size.
const IMIX: [(usize, usize); 3] = [(7, 64), (4, 576), (1, 1500)];
const FRAMES: u32 = 100_000;
/// Runs of each kind and size.
const RUNS: usize = 15;
static FED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/proofs_bench.bpf.o"));

/// A sender, a crossing, and the far end: `from` - `near` crossing `far` - `to`.
struct Way {
    sender: Sender,
    crossing: Crossing,
    _end: Attached,
    names: [Namespace; 3],
}

impl Way {
    fn new(probe: &Probe) -> Self {
        let names = ["from", "cross", "to"].map(|role| {
            let namespace = Namespace::new(role).expect("a namespace");
            namespace.sysctl("net/ipv6/conf/default/disable_ipv6", "1").expect("no IPv6");
            namespace
        });
        let [from, cross, to] = &names;
        veth(from, "from", "", cross, "near", "").expect("a cable");
        veth(cross, "far", "", to, "to", "").expect("a cable");
        for (namespace, device) in [(from, "from"), (cross, "near"), (cross, "far"), (to, "to")] {
            // The longest of these packets, plus its outer headers.
            namespace.ip(&format!("link set {device} mtu 1750")).expect("an mtu");
        }
        let interface = |name| Interface::named(name).expect("an interface");
        let end = to.enter(|| probe.attach_sink(&interface("to")).unwrap_or_else(|error| panic!("{error:#}")));
        let open = || Crossing::open(&interface("near"), &interface("far")).unwrap_or_else(|error| panic!("{error:#}"));
        let (crossing, sender) = (cross.enter(open), from.enter(|| Sender::new("from")));
        Self { sender, crossing, _end: end, names }
    }

    /// Returns the number of frames that reached the end.
    fn ended(&self) -> u64 {
        let [.., to] = &self.names;
        let shown = to.ip("-j -s link show dev to").expect("statistics");
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        shown[0]["stats64"]["rx"]["packets"].as_u64().expect("a count")
    }

    /// Returns the rate of one burst, in millions of packets per second.
    fn burst(&mut self, frames: &[Vec<u8>], mut judge: impl FnMut(&mut [&mut [u8]]) -> u32) -> f64 {
        frames.iter().cycle().take(BURST).for_each(|frame| self.sender.send(frame));
        let (mut took, mut count, mut came) = (Duration::ZERO, 0, 0);
        let deadline = Instant::now() + Duration::from_secs(10);
        while came < BURST {
            let begun = Instant::now();
            let moved = self.crossing.turn(&mut judge).expect("a turn");
            came += moved;
            if moved == BATCH {
                took += begun.elapsed();
                count += moved;
            }
            assert!(Instant::now() < deadline, "every frame comes in");
        }
        count as f64 / took.as_nanos() as f64 * 1e3
    }
}

/// Measures XDP forwarding with the decision and without it, in millions of packets per second.
fn in_kernel(way: &mut Way, table: &Table, frame: &[u8]) -> (Vec<f64>, Vec<f64>) {
    let fed = Prover::with(&table.verifiers[0], |config| Proofs::load_object(FED, config, REMEMBERED));
    let [_, cross, _] = &way.names;
    let before = way.ended();
    let far = cross.enter(|| Interface::named("far").expect("an interface"));
    fed.program.table::<u32, u32>("forward_to").expect("a map").set(&0, &far.index).expect("an interface");
    let run = |program: &str| {
        fed.set_clock(table.now);
        let begun = Instant::now();
        cross.enter(|| fed.program.run_live(program, frame, FRAMES)).unwrap_or_else(|error| panic!("{error:#}"));
        f64::from(FRAMES) / begun.elapsed().as_nanos() as f64 * 1e3
    };
    let (rates, baselines): (Vec<_>, Vec<_>) = (0..RUNS).map(|_| (run("prove_on"), run("send_on"))).unzip();
    let sent = 2 * RUNS as u64 * u64::from(FRAMES);
    let ended = way.ended() - before;
    assert!(ended >= sent / 100 * 99, "{ended} of {sent} frames got through");
    (rates, baselines)
}

/// Returns the length of everything before the inner packet.
fn room(frame: &[u8]) -> usize {
    74 + 16 * usize::from(frame[54] >> 3 & 7)
}

/// Returns the frame with an inner packet of this size. The frame's proof stays valid, because proofs do not cover
/// lengths.
fn sized(frame: &[u8], size: usize) -> Vec<u8> {
    let at = room(frame);
    let mut sized = frame.to_vec();
    sized.resize(at + size, 0);
    let length = sized.len();
    for (at, length) in [(16, length - 14), (38, length - 34), (at + 2, size)] {
        sized[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
    }
    sized
}

fn main() {
    let table = Table::read();
    let named = |text: &str| {
        let found = table.first_frames().find(|(name, ..)| name.starts_with(text));
        found.unwrap_or_else(|| panic!("no row {text}")).1.clone()
    };
    let probe = Probe::load().unwrap_or_else(|error| panic!("{error:#}"));
    let mut way = Way::new(&probe);
    let mut figures = Figures::default();
    let frame = named("ipv4: aes-cmac");
    let imix = IMIX.iter().flat_map(|(count, size)| std::iter::repeat_n(sized(&frame, *size), *count));
    let mut mixes = vec![("imix".to_owned(), imix.collect::<Vec<_>>(), Bound::None)];
    mixes.extend(SIZES.map(|(size, bound)| (size.to_string(), vec![sized(&frame, size)], bound)));
    let mut batch = Batch::new(table.verifiers[0].clone());
    for (name, frames, bound) in mixes {
        let mut verify = |frames: &mut [&mut [u8]]| {
            let mut outcomes = [Outcome::NotOurs; BATCH];
            proofs::fetch(frames);
            batch.verify(frames, table.now, &mut outcomes);
            let passes = outcomes.iter().enumerate().filter(|(_, outcome)| **outcome == Outcome::Proved);
            passes.fold(0, |passes, (place, _)| passes | 1 << place)
        };
        let before = way.crossing.counts().expect("counts");
        let bursts = (0..BURSTS).map(|_| (way.burst(&frames, &mut verify), way.burst(&frames, |_| u32::MAX)));
        let (rates, baselines): (Vec<_>, Vec<_>) = bursts.unzip();
        let after = way.crossing.counts().expect("counts");
        assert_eq!(after.passed - before.passed, 2 * (BURSTS * BURST) as u64, "all pass: {after:?}");
        let mut add = |name: String, rates: &[f64], beside: Vec<f64>, bound: Bound| {
            figures.add(&format!("forward.{name}_mpps"), "Mpps", mean_of_middle(rates), &Yardstick::new(beside), bound);
        };
        add(name.clone(), &rates, baselines, bound);
        if let [_] = &frames[..] {
            let (xdp, without) =
                in_kernel(&mut way, &table, &sized(&named("ipv4: siphash"), frames[0].len() - room(&frame)));
            add(format!("xdp_{name}"), &xdp, without, Bound::None);
            add(format!("{name}_beside_xdp"), &rates, xdp, Bound::None);
        }
    }
    figures.print();
}
