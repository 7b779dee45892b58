//! Cost per packet of the kernel programs, compared with empty programs in the same run (BPF_PROG_TEST_RUN).
//!
//! Prints one JSON object, which `cargo xtask bench` collects. Rounds of a program and of the empty program alternate,
//! so that other work on the machine affects both alike.

#[allow(dead_code, reason = "the tests are its other user")]
#[path = "../../engine/tests/cases/mod.rs"]
mod cases;
#[path = "kernel/proofs.rs"]
mod proofs;
#[allow(dead_code, reason = "the tests are its other user")]
#[path = "../tests/provers/mod.rs"]
mod provers;
#[allow(dead_code, reason = "the tests are its other user")]
#[path = "../tests/table/mod.rs"]
mod table;
#[allow(dead_code, reason = "the tests are its other user")]
#[path = "../tests/world/mod.rs"]
mod world;

use datapath::agent::Agent;
use datapath::hook::Hook;
use datapath::probe::Probe;
use datapath::run::Ran;
use datapath::tc::Attachment;
use datapath::verifier::{Sizes, Verifier};
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp, flag};
use measure::{Bound, Figures, Yardstick, alternate, mean_of_middle};
use table::{CLIENT_PORT, Transport};
use wire::DropReason;
use wire::map::{ReplayBucket, VerifierConfig};
use wire::shim::Content;
use world::{Deciders, Family, Grant, LsPair, NOW, families};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const ROUNDS: usize = 15;
const REPEAT: u32 = 200_000;
/// Bound on the cost of IPv6 relative to IPv4.
const OF_IPV4: Bound = Bound::AtMost(1.6);
static FED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bench.bpf.o"));
/// Frames that `bpf/bench.bpf.c` replays, and their length.
const FED_FRAMES: u32 = 8192;
const FED_LENGTH: usize = 134;
/// Number of frames, so small that all data that a program touches for them stays in the nearest caches.
const FED_FEW: u32 = 64;

/// Parameters and results of `bpf/bench.bpf.c`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Feed {
    frames: u32,
    forgets: u32,
    next: u32,
    admitted: u32,
    nanoseconds: u64,
    pair: u64,
}

/// Measures all figures, or those of the parts named as arguments: xdp, tc, first, ls, agent, proofs.
fn main() {
    let named: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |part: &str| named.is_empty() || named.iter().any(|name| name == part);
    let probe = Probe::load().unwrap_or_else(|error| panic!("{error:#}"));
    let mut figures = Figures::default();
    for (part, hook) in [("xdp", Hook::Xdp), ("tc", Hook::Tc)] {
        if wanted(part) {
            verifier(&probe, hook, &mut figures);
        }
    }
    if wanted("first") {
        let [family, _] = families();
        first_packets(&probe, &family, &mut figures);
    }
    if wanted("ls") {
        let [family, _] = families();
        first_packets_of_a_pair(&probe, &family, &mut figures);
    }
    if wanted("agent") {
        agent(&probe, &mut figures);
    }
    if wanted("proofs") {
        proofs::proofs(&probe, &mut figures);
    }
    figures.print();
}

/// Adds the cost of a packet, with the empty program as the yardstick.
fn add(figures: &mut Figures, name: &str, (values, empty): (Vec<f64>, Vec<f64>), bound: Bound) {
    figures.add(name, "ns", mean_of_middle(&values), &Yardstick::new(empty), bound);
}

/// Returns the mean duration of `repeat` runs. The kernel truncates it to whole nanoseconds, which is half a nanosecond
/// too little on average.
fn nanoseconds(repeat: u32, run: impl FnOnce(u32) -> anyhow::Result<Ran>) -> f64 {
    run(repeat).expect("the program runs").duration.as_nanos() as f64 + 0.5
}

/// Measures the cost of each kind of packet, over both families. The bounds are stated for XDP; tc is shown for
/// comparison.
fn verifier(probe: &Probe, hook: Hook, figures: &mut Figures) {
    let [ipv4, ipv6] = families().map(|family| Judged::new(hook, &family));
    let program = if hook == Hook::Xdp { "verifier" } else { "verifier_tc" };
    let bounded = |bound| if hook == Hook::Xdp { bound } else { Bound::None };
    for (kind, bound) in [
        (Kind::Admitted, Bound::AtMost(5.0)),
        (Kind::NotOurs, Bound::AtMost(4.0)),
        (Kind::Forged, Bound::AtMost(20.0)),
        (Kind::ForgedAesCmac, Bound::None),
    ] {
        let name = kind.name();
        let (mut four, mut six, mut empty) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            four.push(ipv4.cost(kind));
            six.push(ipv6.cost(kind));
            let frame = ipv4.frame(kind);
            empty.push(nanoseconds(REPEAT, |repeat| match hook {
                Hook::Xdp => probe.run_xdp(frame, repeat),
                Hook::Tc => probe.run_tc(frame, repeat),
            }));
        }
        let empty = Yardstick::new(empty);
        figures.add(&format!("{program}.{name}_ns"), "ns", mean_of_middle(&four), &empty, bounded(bound));
        figures.add(&format!("{program}.{name}_ns_ipv6"), "ns", mean_of_middle(&six), &empty, Bound::None);
        let bound = if kind == Kind::ForgedAesCmac { Bound::None } else { bounded(OF_IPV4) };
        let name = format!("{program}.{name}_ipv6_beside_ipv4");
        figures.add(&name, "ns", mean_of_middle(&six), &Yardstick::new(four), bound);
    }
}

/// Kinds of packets that the verifier decides on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Admitted,
    NotOurs,
    Forged,
    ForgedAesCmac,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Admitted, Self::NotOurs, Self::Forged, Self::ForgedAesCmac];

    const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::NotOurs => "not_ours",
            Self::Forged => "forged",
            Self::ForgedAesCmac => "forged_aes_cmac",
        }
    }

    const fn outcome(self) -> Outcome {
        match self {
            Self::Admitted => Outcome::Flow,
            Self::NotOurs => Outcome::NotOurs,
            Self::Forged | Self::ForgedAesCmac => Outcome::Drop(DropReason::BadTag),
        }
    }
}

/// Returns the configuration without limits on grants and accounts. A bench sends more tokens in a second than these
/// limits allow.
fn without_limits(config: VerifierConfig) -> VerifierConfig {
    let most = i32::MAX as u32 / 8;
    VerifierConfig { flows_per_grant: most, flows_per_account: most, grants_per_account: most, ..config }
}

/// A verifier that has admitted a flow, and a frame of each kind.
struct Judged {
    deciders: Deciders,
    frames: [Vec<u8>; Kind::ALL.len()],
}

impl Judged {
    fn new(hook: Hook, family: &Family) -> Self {
        let config = without_limits(world::config());
        let mut deciders = Deciders::with_sizes(hook, config, &world::receivers(), Sizes::default());
        deciders.set_clock(NOW);
        let grant = Grant { expires: NOW + 3000, ..Grant::new(family, 1) };
        let first = |grant: &Grant| Transport::Tcp.first(family, grant, CLIENT_PORT, 1);
        let [_, (outcome, _)] = deciders.verify(&first(&grant).frame(), NOW);
        assert_eq!(outcome, Outcome::Token);
        let to_open = Packet::new(family.client, family.open).tcp(Tcp::new(CLIENT_PORT, 22, flag::ACK));
        let forged = |grant: &Grant| {
            let mut packet = first(grant);
            packet.token[30] ^= 1;
            packet.frame()
        };
        let frames = Kind::ALL.map(|kind| match kind {
            Kind::Admitted => Transport::Tcp.later(family, CLIENT_PORT).payload(&[0; 64]).frame(),
            Kind::NotOurs => to_open.clone().payload(&[0; 64]).frame(),
            Kind::Forged => forged(&grant),
            Kind::ForgedAesCmac => forged(&Grant { suite: wire::Suite::AesCmac, ..grant }),
        });
        for (kind, frame) in Kind::ALL.into_iter().zip(&frames) {
            let [_, (outcome, _)] = deciders.verify(frame, NOW);
            assert_eq!(outcome, kind.outcome(), "{} measures what it says", kind.name());
        }
        Self { deciders, frames }
    }

    fn frame(&self, kind: Kind) -> &[u8] {
        &self.frames[kind as usize]
    }

    /// Returns the nanoseconds for one packet.
    fn cost(&self, kind: Kind) -> f64 {
        self.deciders.set_clock(NOW);
        let repeat = if kind == Kind::ForgedAesCmac { REPEAT / 10 } else { REPEAT };
        nanoseconds(repeat, |repeat| self.deciders.kernel.run(self.frame(kind), repeat))
    }
}

/// Measures valid first packets with all table writes, each with its own grant, as replayed by `bpf/bench.bpf.c`.
///
/// With a few grants, whose state is removed after each use, the memory is in the caches, as in the other figures. With
/// many grants, the entries of most grants are outside of the nearest caches, though not always outside of the last
/// cache. The bound is stated for cached memory.
fn first_packets(probe: &Probe, family: &Family, figures: &mut Figures) {
    let fed = Fed::new(without_limits(world::config()));
    let first = |number: u32| {
        let grant = Grant { expires: NOW + 3000, ..Grant::new(family, 1_000_000 + u64::from(number)) };
        Transport::Tcp.first(family, &grant, 1024 + number as u16, number).frame()
    };
    fed.fill(FED_FRAMES, first);
    let any = first(0);
    let few = Feed { frames: FED_FEW, forgets: 1, ..Feed::default() };
    let many = Feed { frames: FED_FRAMES, ..Feed::default() };
    for (name, feed, repeat, bound) in [
        ("verifier.first_ns", few, REPEAT / 4, Bound::AtMost(60.0)),
        ("verifier.first_many_ns", many, FED_FRAMES, Bound::None),
    ] {
        add(figures, name, fed.beside_empty(probe, &any, feed, repeat), bound);
    }
}

/// Measures first packets with tokens of the LS scheme, all of one pair, each with a different nonce2.
fn first_packets_of_a_pair(probe: &Probe, family: &Family, figures: &mut Figures) {
    let mut fed = Fed::new(without_limits(world::config_with_shims()));
    let pair = LsPair { expires: NOW + 3000, ..LsPair::new(1) };
    fed.deciders.tell(&pair);
    let to = Transport::Tcp.destination(family);
    let first = |number: u32| {
        let syn = Transport::Tcp.opening(family, 1024 + number as u16, &to);
        syn.shimmed(&Content::Ls(pair.token(number as u16)).encode()).frame()
    };
    fed.fill(FED_FEW, first);
    let feed = Feed { frames: FED_FEW, forgets: 1, pair: pair.pair.handle().0, ..Feed::default() };
    let cost = fed.beside_empty(probe, &first(0), feed, REPEAT / 4);
    add(figures, "ls.validator_sha224_ns", cost, Bound::AtMost(250.0));
}

/// Adds the overhead of running a program to each decision. The clock of `bpf/bench.bpf.c` does not count this
/// overhead, so an empty decision takes no time.
fn with_way(decisions: &[f64], empty: &[f64]) -> Vec<f64> {
    let way = mean_of_middle(empty);
    decisions.iter().map(|decision| decision + way).collect()
}

/// The verifier with the programs of `bpf/bench.bpf.c`.
struct Fed {
    deciders: Deciders,
}

impl Fed {
    fn new(config: VerifierConfig) -> Self {
        let kernel = Verifier::load_object(FED, Hook::Xdp, config, Sizes::default(), None);
        let kernel = kernel.unwrap_or_else(|error| panic!("{error:#}"));
        Self { deciders: Deciders::around(kernel, config, &world::receivers()) }
    }

    fn fill(&self, count: u32, frame: impl Fn(u32) -> Vec<u8>) {
        let frames = self.deciders.kernel.table::<u32, [u8; FED_LENGTH]>("fed_frames").expect("fed_frames");
        for number in 0..count {
            let mut bytes = [0; FED_LENGTH];
            let frame = frame(number);
            bytes[..frame.len()].copy_from_slice(&frame);
            frames.set(&number, &bytes).expect("fed_frames");
        }
    }

    /// Returns samples of the duration of a decision, and of an empty program.
    fn beside_empty(&self, probe: &Probe, any: &[u8], feed: Feed, repeat: u32) -> (Vec<f64>, Vec<f64>) {
        let kernel = &self.deciders.kernel;
        let feeds = kernel.table::<u32, Feed>("feeds").expect("feeds");
        let mean = |program: &str| {
            feeds.set(&0, &feed).expect("feeds");
            self.deciders.set_clock(NOW);
            kernel.run_program(program, any, repeat).expect("the program runs");
            let fed = feeds.get(&0).expect("feeds").expect("an entry");
            assert!(program == "idle" || fed.admitted == repeat, "every one is admitted");
            fed.nanoseconds as f64 / f64::from(repeat)
        };
        let (decisions, empty) = alternate(
            ROUNDS,
            || {
                if feed.pair == 0 {
                    kernel.sweep(NOW + 1_000_000).expect("the sweep runs");
                }
                for bucket in 0..kernel.replays.capacity() {
                    kernel.replays.set(&bucket, &ReplayBucket::default()).expect("replays");
                }
                mean("admit") - mean("idle")
            },
            || nanoseconds(REPEAT, |repeat| probe.run_xdp(any, repeat)),
        );
        (with_way(&decisions, &empty), empty)
    }
}

fn agent(probe: &Probe, figures: &mut Figures) {
    let agent = Agent::load(14, false, Attachment::Tcx, None).unwrap_or_else(|error| panic!("{error:#}"));
    let protected = engine::model::protected::entries(&world::receivers()).expect("few spans");
    let entries: Vec<_> =
        protected.iter().map(|entry| (entry.prefix.network(), entry.prefix.prefix_len(), entry.services)).collect();
    agent.protect(&entries).expect("maps take prefixes");
    let [family, _] = families();
    let segment = Packet::new(family.client, family.open).tcp(Tcp::new(CLIENT_PORT, 443, flag::ACK)).payload(&[0; 64]);
    let syn = Packet::new(family.client, family.open).tcp(Tcp::syn(CLIENT_PORT, 443)).frame();
    let datagram = Packet::new(family.client, family.open).udp(CLIENT_PORT, 53).payload(&[0; 64]).frame();
    for (name, frame, bound) in [
        ("agent.other_ns", datagram, Bound::AtMost(6.0)),
        ("agent.other_segment_ns", segment.frame(), Bound::AtMost(6.0)),
        ("agent.other_syn_ns", syn, Bound::AtMost(6.0)),
    ] {
        let samples = alternate(
            ROUNDS,
            || nanoseconds(REPEAT, |repeat| agent.run(&frame, repeat)),
            || nanoseconds(REPEAT, |repeat| probe.run_tc(&frame, repeat)),
        );
        add(figures, name, samples, bound);
    }
}
