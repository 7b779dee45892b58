//! What the kernel programs cost per packet, beside empty programs in the same run (BPF_PROG_TEST_RUN).
//!
//! Prints one JSON object: {name: {value, unit, baseline, ratio, bound, holds}}; `cargo xtask bench` collects it. Rounds
//! of both programs alternate and their middles are compared, for the machine's other work disturbs both.

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

use datapath::agent::{Agent, Attachment};
use datapath::hook::Hook;
use datapath::probe::Probe;
use datapath::run::Ran;
use datapath::verifier::{Sizes, Verifier};
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp, flag};
use serde_json::{Map, Value, json};
use table::{CLIENT_PORT, Transport};
use wire::map::{ReplayBucket, VerifierConfig};
use wire::shim::Content;
use world::{Deciders, Family, Grant, LsPair, NOW, families};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const ROUNDS: usize = 15;
const REPEAT: u32 = 200_000;
static FED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bench.bpf.o"));
/// Frames that `bpf/bench.bpf.c` feeds, and their length.
const FED_FRAMES: u32 = 8192;
const FED_LENGTH: usize = 134;
/// So few that all they touch is at hand.
const FED_FEW: u32 = 64;

/// What `bpf/bench.bpf.c` feeds, and has fed.
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

/// All figures, or those of the parts named as arguments: xdp, tc, first, ls, agent, proofs.
fn main() {
    let named: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |part: &str| named.is_empty() || named.iter().any(|name| name == part);
    let probe = Probe::load().unwrap_or_else(|error| panic!("{error:#}"));
    let mut figures = Map::new();
    for family in families() {
        for (part, hook) in [("xdp", Hook::Xdp), ("tc", Hook::Tc)] {
            if wanted(part) {
                verifier(&probe, hook, &family, &mut figures);
            }
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
    println!("{}", Value::Object(figures));
}

/// The mean of the middle half: what others took in some rounds stays out, and whole nanoseconds average to parts of them.
fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let quarter = values.len() / 4;
    let half = &values[quarter..values.len() - quarter];
    half.iter().sum::<f64>() / half.len() as f64
}

/// Middles of alternating rounds of two measurements.
fn side_by_side(mut one: impl FnMut() -> f64, mut other: impl FnMut() -> f64) -> (f64, f64) {
    let (ones, others) = (0..ROUNDS).map(|_| (one(), other())).unzip();
    (middle(ones), middle(others))
}

fn figure(figures: &mut Map<String, Value>, name: String, (value, baseline): (f64, f64), bound: Option<f64>) {
    let ratio = value / baseline;
    let round = |value: f64| (value * 100.0).round() / 100.0;
    figures.insert(
        name,
        json!({
            "value": round(value), "unit": "ns", "baseline": round(baseline), "ratio": round(ratio),
            "bound": bound, "holds": bound.is_none_or(|bound| ratio <= bound),
        }),
    );
}

/// The mean duration of `repeat` runs. The kernel cuts it down to whole nanoseconds: half a one too little on average.
fn nanoseconds(repeat: u32, run: impl FnOnce(u32) -> anyhow::Result<Ran>) -> f64 {
    run(repeat).expect("the program runs").duration.as_nanos() as f64 + 0.5
}

fn verifier(probe: &Probe, hook: Hook, family: &Family, figures: &mut Map<String, Value>) {
    let config = wire::map::VerifierConfig {
        flows_per_grant: i32::MAX as u32 / 8,
        flows_per_account: i32::MAX as u32 / 8,
        ..world::config()
    };
    let mut deciders = Deciders::with_sizes(hook, config, &world::receivers(), Sizes::default());
    let suffix = if family.server.is_ipv6() { "_ipv6" } else { "" };
    // The bounds are stated for XDP and IPv4; tc and IPv6 have none of their own and are shown beside.
    let bounded = |bound| (hook == Hook::Xdp && !family.server.is_ipv6()).then_some(bound);
    let program = if hook == Hook::Xdp { "verifier" } else { "verifier_tc" };
    let empty = |frame: &[u8], repeat| match hook {
        Hook::Xdp => probe.run_xdp(frame, repeat),
        Hook::Tc => probe.run_tc(frame, repeat),
    };
    deciders.set_clock(NOW);
    let grant = Grant { expires: NOW + 3000, ..Grant::new(family, 1) };
    let first = Transport::Tcp.first(family, &grant, CLIENT_PORT, 1);
    let [_, (outcome, _)] = deciders.judge(&first.frame(), NOW);
    assert_eq!(outcome, Outcome::Token);
    let admitted = Transport::Tcp.later(family, CLIENT_PORT).payload(&[0; 64]).frame();
    let not_ours = Packet::new(family.client, family.open).tcp(Tcp::new(CLIENT_PORT, 22, flag::ACK)).payload(&[0; 64]);
    let mut wrong = first.clone();
    wrong.token[30] ^= 1;
    let mut compare = |name: &str, frame: &[u8], expected: Outcome, bound: f64| {
        let [_, (outcome, _)] = deciders.judge(frame, NOW);
        assert_eq!(outcome, expected, "{name} measures what it says");
        let pair = side_by_side(
            || {
                deciders.set_clock(NOW);
                nanoseconds(REPEAT, |repeat| deciders.kernel.run(frame, repeat))
            },
            || nanoseconds(REPEAT, |repeat| empty(frame, repeat)),
        );
        figure(figures, format!("{program}.{name}_ns{suffix}"), pair, bounded(bound));
    };
    compare("admitted", &admitted, Outcome::Flow, 5.0);
    compare("not_ours", &not_ours.frame(), Outcome::NotOurs, 4.0);
    compare("forged", &wrong.frame(), Outcome::Drop(wire::DropReason::BadTag), 25.0);
    let aes = Grant { suite: wire::Suite::AesCmac, ..grant };
    let mut wrong = Transport::Tcp.first(family, &aes, CLIENT_PORT, 1);
    wrong.token[30] ^= 1;
    let pair = side_by_side(
        || nanoseconds(REPEAT / 10, |repeat| deciders.kernel.run(&wrong.frame(), repeat)),
        || nanoseconds(REPEAT, |repeat| empty(&wrong.frame(), repeat)),
    );
    figure(figures, format!("{program}.forged_aes_cmac_ns{suffix}"), pair, None);
}

/// Valid first packets with all table writes, each with a grant of its own, as `bpf/bench.bpf.c` feeds them.
///
/// A few that are forgotten and come again find their memory at hand, as the other figures' packets do. Of many, each one's
/// entries are somewhere else: beyond the nearest caches, though not always beyond the last. The bound is stated for memory
/// at hand.
fn first_packets(probe: &Probe, family: &Family, figures: &mut Map<String, Value>) {
    let fed = Fed::new(world::config());
    let first = |number: u32| {
        let grant = Grant { expires: NOW + 3000, ..Grant::new(family, 1_000_000 + u64::from(number)) };
        Transport::Tcp.first(family, &grant, 1024 + number as u16, number).frame()
    };
    fed.fill(FED_FRAMES, first);
    let any = first(0);
    let few = Feed { frames: FED_FEW, forgets: 1, ..Feed::default() };
    let many = Feed { frames: FED_FRAMES, ..Feed::default() };
    for (name, feed, repeat, bound) in
        [("verifier.first_ns", few, REPEAT / 4, Some(80.0)), ("verifier.first_many_ns", many, FED_FRAMES, None)]
    {
        figure(figures, name.to_owned(), fed.beside_empty(probe, &any, feed, repeat), bound);
    }
}

/// The same with tokens of the scheme of LS, each with another nonce2 of one pair. The bound is stated in nanoseconds.
fn first_packets_of_a_pair(probe: &Probe, family: &Family, figures: &mut Map<String, Value>) {
    const MOST: f64 = 5000.0;
    let mut fed = Fed::new(world::config_with_shims());
    let pair = LsPair { expires: NOW + 3000, ..LsPair::new(1) };
    fed.deciders.tell(&pair);
    let to = Transport::Tcp.destination(family);
    let first = |number: u32| {
        let syn = Transport::Tcp.opening(family, 1024 + number as u16, &to);
        syn.shimmed(&Content::Ls(pair.token(number as u16)).encode()).frame()
    };
    fed.fill(FED_FEW, first);
    let feed = Feed { frames: FED_FEW, forgets: 1, pair: pair.pair.handle().0, ..Feed::default() };
    let name = "ls.validator_sha224_ns";
    figure(figures, name.to_owned(), fed.beside_empty(probe, &first(0), feed, REPEAT / 4), None);
    let holds = figures[name]["value"].as_f64().is_some_and(|value| value <= MOST);
    figures[name]["bound"] = json!(MOST);
    figures[name]["holds"] = json!(holds);
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

    /// What a decision takes, and an empty program.
    fn beside_empty(&self, probe: &Probe, any: &[u8], feed: Feed, repeat: u32) -> (f64, f64) {
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
        let pair = side_by_side(
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
        // An empty decision takes no time by this clock: a packet's way to the program and back is added.
        (pair.0 + pair.1, pair.1)
    }
}

fn agent(probe: &Probe, figures: &mut Map<String, Value>) {
    let agent = Agent::load(14, false, Attachment::Tcx, None).unwrap_or_else(|error| panic!("{error:#}"));
    let protected = engine::protected::entries(&world::receivers()).expect("few spans");
    let entries: Vec<_> =
        protected.iter().map(|entry| (entry.prefix.network(), entry.prefix.prefix_len(), entry.services)).collect();
    agent.protect(&entries).expect("maps take prefixes");
    let [family, _] = families();
    let segment = Packet::new(family.client, family.open).tcp(Tcp::new(CLIENT_PORT, 443, flag::ACK)).payload(&[0; 64]);
    let syn = Packet::new(family.client, family.open).tcp(Tcp::syn(CLIENT_PORT, 443)).frame();
    let datagram = Packet::new(family.client, family.open).udp(CLIENT_PORT, 53).payload(&[0; 64]).frame();
    for (name, frame, bound) in [
        ("agent.other_ns", datagram, Some(6.0)),
        ("agent.other_segment_ns", segment.frame(), Some(6.0)),
        ("agent.other_syn_ns", syn, Some(6.0)),
    ] {
        let pair = side_by_side(
            || nanoseconds(REPEAT, |repeat| agent.run(&frame, repeat)),
            || nanoseconds(REPEAT, |repeat| probe.run_tc(&frame, repeat)),
        );
        figure(figures, name.to_owned(), pair, bound);
    }
}
