//! What a decision costs, alone and with the grant's MAC, where a thousand to a million receivers have a thousand entries
//! each; what that takes of memory; how long loading and changes take, and what readers notice of a writer.
//!
//! Prints one JSON object: {name: {value, unit, baseline, ratio, bound, holds}}; `cargo xtask bench` collects it. Every
//! request is made once, for a receiver and a sender drawn at random, so that caches hold what they would in use. Each is
//! timed by itself; what the clock takes of that is `engine.clock_ns`, and nothing is subtracted. But `engine.issue_ns` is of
//! requests that come 32 together, mostly allowed ones, and timed as a whole; `issue_alone_ns`, `issue_p50_ns` and
//! `issue_p99_ns` are of each by itself.

#[path = "engine/world.rs"]
mod world;

use arc_swap::ArcSwap;
use engine::rulebook::{Decision, Rulebook};
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use world::{ENTRIES, World};

/// The most that a world may take, bytes per entry, and what the bench itself needs.
const ROOM_PER_ENTRY: u64 = 8;
const ROOM_BESIDE: u64 = 3 << 30;
const REQUESTS: usize = 400_000;
/// Requests that are decided together: what a server takes from its socket at once.
const TOGETHER: usize = 32;
const CHANGES: usize = 2_000;
const LARGEST: usize = 1_000_000;
const SIZES: [usize; 4] = [1_000, 10_000, 100_000, LARGEST];

/// Says how many receivers a process measures: each size has one of its own, whose memory nobody else has used.
const RECEIVERS: &str = "VOUCHSAFE_BENCH_RECEIVERS";

fn main() {
    if let Ok(receivers) = std::env::var(RECEIVERS) {
        return measure(receivers.parse().expect("a number of receivers"));
    }
    let mut figures = Map::new();
    for receivers in SIZES {
        eprintln!("engine: {receivers} receivers");
        let fits = available().saturating_sub(ROOM_BESIDE) / (ROOM_PER_ENTRY * ENTRIES as u64);
        let fits = usize::try_from(fits).unwrap_or(usize::MAX);
        if fits < receivers {
            eprintln!("engine: {receivers} receivers don't fit in {} MiB: {fits} instead", available() >> 20);
        }
        let mut itself = Command::new(std::env::current_exe().expect("a path"));
        itself.env(RECEIVERS, receivers.min(fits).to_string());
        let output = itself.stderr(Stdio::inherit()).output().expect("the bench starts itself");
        assert!(output.status.success(), "{receivers} receivers: {}", output.status);
        figures.extend(serde_json::from_slice::<Map<_, _>>(&output.stdout).expect("figures"));
    }
    println!("{}", Value::Object(figures));
}

fn measure(receivers: usize) {
    let mut figures = Map::new();
    let clock = spread((0..REQUESTS).map(|_| time(|| ()).1).collect());
    figure(&mut figures, "engine.clock_ns", clock.mean, "ns", None);
    size(receivers, &mut figures);
    println!("{}", Value::Object(figures));
}

fn size(receivers: usize, figures: &mut Map<String, Value>) {
    let suffix = if receivers == LARGEST { String::new() } else { format!("_{receivers}") };
    let bound = |bound: f64| (receivers == LARGEST).then_some(bound);
    let mut add = |name: &str, value: f64, unit: &str, bound: Option<f64>| {
        figure(figures, &format!("engine.{name}{suffix}"), value, unit, bound);
    };
    let before = resident();
    let (world, mut book, loading) = World::load(receivers);
    // As the authority does with a policy that comes into force.
    let (_, gathering) = time(|| shell::memory::into_huge_pages().expect("its own memory"));
    let entries = (receivers * ENTRIES) as f64;
    add("bytes_per_entry", (resident() - before) as f64 / entries, "B", bound(8.0));
    add(
        "in_huge_pages",
        kilobytes("/proc/self/smaps_rollup", "AnonHugePages:") as f64 / resident() as f64,
        "of 1",
        None,
    );
    add("load_s", loading.as_secs_f64(), "s", None);
    add("into_huge_pages_s", gathering / 1e9, "s", None);

    let mut requests = world.requests(1);
    let (mut allowed, mut denied) = (Vec::new(), Vec::new());
    for _ in 0..REQUESTS {
        let request = requests.draw();
        let (decision, taken) = time(|| book.decide(&request.request(), world::open).decision);
        match decision {
            Decision::Decided(ruling) if world::allows(&ruling) => allowed.push(taken),
            Decision::NoReceiver => panic!("every request is for a receiver"),
            _ => denied.push(taken),
        }
    }
    let (allowed, denied) = (spread(allowed), spread(denied));
    add("decide_allowed_ns", allowed.mean, "ns", None);
    add("decide_allowed_p50_ns", allowed.p50, "ns", None);
    add("decide_allowed_p99_ns", allowed.p99, "ns", None);
    add("decide_denied_ns", denied.mean, "ns", None);
    add("decide_denied_p50_ns", denied.p50, "ns", None);
    add("decide_denied_p99_ns", denied.p99, "ns", None);

    let mut issued = Vec::new();
    let mut requests = world.requests(2);
    while issued.len() < REQUESTS / 2 {
        let request = requests.draw();
        let (grant, taken) = time(|| world.issue(&book, &request));
        if grant.is_some() {
            issued.push(taken);
        }
    }
    let issued = spread(issued);
    add("issue_alone_ns", issued.mean, "ns", None);
    add("issue_p50_ns", issued.p50, "ns", None);
    add("issue_p99_ns", issued.p99, "ns", bound(3000.0));

    let mut requests = world.requests(4);
    let (mut made, mut nanoseconds) = (0, 0.0);
    for _ in 0..REQUESTS / TOGETHER {
        let batch: Vec<_> = (0..TOGETHER).map(|_| requests.draw_allowed()).collect();
        let (granted, taken) = time(|| world.issue_all(&book, &batch));
        made += granted;
        nanoseconds += taken;
    }
    add("issue_ns", nanoseconds / made as f64, "ns", bound(1000.0));
    add("issue_granted", made as f64 / REQUESTS as f64, "of 1", None);

    let changes = spread((0..CHANGES).map(|number| time(|| world.change(&mut book, number)).1).collect());
    add("change_us", changes.mean / 1000.0, "us", bound(1000.0));
    add("change_p99_us", changes.p99 / 1000.0, "us", bound(1000.0));

    let shared = ArcSwap::from_pointee(book);
    let done = AtomicBool::new(false);
    let (meanwhile, written) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0;
            while !done.load(Ordering::Relaxed) {
                let mut next = Rulebook::clone(&shared.load());
                world.change(&mut next, CHANGES + written);
                shared.store(Arc::new(next));
                written += 1;
            }
            written
        });
        let mut requests = world.requests(3);
        let taken = (0..REQUESTS / 2).map(|_| {
            let request = requests.draw();
            time(|| black_box(shared.load().decide(&request.request(), world::open).decision)).1
        });
        let taken = spread(taken.collect());
        done.store(true, Ordering::Relaxed);
        (taken, writer.join().expect("the writer ends"))
    });
    assert!(written > 0, "the writer came to write");
    add("decide_while_changing_ns", meanwhile.mean, "ns", None);
    add("decide_while_changing_p99_ns", meanwhile.p99, "ns", None);
}

struct Spread {
    /// Other processes' turns on the machine are in it.
    mean: f64,
    p50: f64,
    p99: f64,
}

fn spread(mut nanoseconds: Vec<f64>) -> Spread {
    assert!(!nanoseconds.is_empty(), "something was measured");
    nanoseconds.sort_by(f64::total_cmp);
    let mean = nanoseconds.iter().sum::<f64>() / nanoseconds.len() as f64;
    let [p50, p99] = [50, 99].map(|part| nanoseconds[nanoseconds.len() * part / 100]);
    Spread { mean, p50, p99 }
}

fn time<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = black_box(work());
    (result, start.elapsed().as_nanos() as f64)
}

fn figure(figures: &mut Map<String, Value>, name: &str, value: f64, unit: &str, bound: Option<f64>) {
    let rounded = (value * 100.0).round() / 100.0;
    eprintln!("{name} {rounded} {unit}");
    let holds = bound.is_none_or(|bound| value <= bound);
    figures.insert(
        name.to_owned(),
        json!({ "value": rounded, "unit": unit, "baseline": null, "ratio": null, "bound": bound, "holds": holds }),
    );
}

fn resident() -> u64 {
    kilobytes("/proc/self/status", "VmRSS:")
}

fn available() -> u64 {
    kilobytes("/proc/meminfo", "MemAvailable:")
}

/// The bytes that a line of `file` tells in kB.
fn kilobytes(file: &str, line: &str) -> u64 {
    let text = std::fs::read_to_string(file).expect(file);
    let value = text.lines().find_map(|text| text.strip_prefix(line)).expect(line);
    value.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}
