//! Measures what a decision costs, with and without the grant's MAC. Also measures how much memory a rulebook takes,
//! how long loading and changes take, and how a writer affects readers. The rulebooks have a thousand to a million
//! receivers with a thousand entries each.
//!
//! Prints one JSON object, which `cargo xtask bench` collects. For comparison, the bench also measures a chain of
//! single reads, in which each address depends on the previous read. The chain covers as much memory as the entries
//! take, and this memory is in huge pages, too. Every request is made once, for a random receiver and sender, so that
//! the caches contain what they would contain in real use. Each request is timed separately; `engine.clock_ns` is the
//! cost of the clock, which is not subtracted. Only `engine.issue_ns` is measured differently. Most of its requests are
//! allowed. They are made in batches of 32, and each batch is timed as a whole. `issue_alone_ns`, `issue_p50_ns` and
//! `issue_p99_ns` are for single requests.

#[path = "engine/world.rs"]
mod world;

use arc_swap::ArcSwap;
use engine::policy::rulebook::{Decision, Rulebook};
use measure::memory::Walk;
use measure::{Bound, Figures, Yardstick};
use std::fs;
use std::hint::black_box;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use world::{ENTRIES, World};

/// Maximum memory, in bytes: per entry, for a world and for the walk's memory of the same size (`ROOM_PER_ENTRY`), and
/// for the bench itself (`ROOM_BESIDE`).
const ROOM_PER_ENTRY: u64 = 16;
const ROOM_BESIDE: u64 = 3 << 30;
const REQUESTS: usize = 400_000;
/// Requests per batch: the number that a server takes from its socket at once.
const TOGETHER: usize = 32;
const CHANGES: usize = 2_000;
/// Number of changes that a writer has to make in a second while decisions are measured (`RATE`), that it tries to make
/// in a second (`PACE`), and that it publishes at once (`PUBLISHED`).
const RATE: f64 = 10_000.0;
const PACE: f64 = 10_500.0;
const PUBLISHED: usize = 100;
/// Time for which the writer makes changes.
const SUSTAINED: Duration = Duration::from_secs(5);
/// Number of walks during each kind of work.
const WALKS: usize = 20;
/// Upper bounds for a grant and a change, in reads of the walk.
const ISSUE: f64 = 10.0;
const ISSUE_P99: f64 = 30.0;
const CHANGE: f64 = 1e4;
/// Minimum share of memory in huge pages.
const HUGE_MIN: f64 = 0.9;
const LARGEST: usize = 1_000_000;
const SIZES: [usize; 4] = [1_000, 10_000, 100_000, LARGEST];

/// Number of receivers that this process measures. Each size has its own process, with fresh memory.
const RECEIVERS: &str = "VOUCHSAFE_BENCH_RECEIVERS";

fn main() {
    if let Ok(receivers) = std::env::var(RECEIVERS) {
        return measure(receivers.parse().expect("a number of receivers"));
    }
    let mut figures = Figures::default();
    for receivers in SIZES {
        eprintln!("engine: {receivers} receivers");
        let fits = available().saturating_sub(ROOM_BESIDE) / (ROOM_PER_ENTRY * ENTRIES as u64);
        let fits = usize::try_from(fits).unwrap_or(usize::MAX);
        if fits < receivers {
            eprintln!("engine: {receivers} receivers don't fit in {} MiB: measuring {fits} instead", available() >> 20);
        }
        let mut itself = Command::new(std::env::current_exe().expect("a path"));
        itself.env(RECEIVERS, receivers.min(fits).to_string());
        let output = itself.stderr(Stdio::inherit()).output().expect("the bench starts itself");
        assert!(output.status.success(), "{receivers} receivers: {}", output.status);
        figures.merge(&output.stdout).expect("figures");
    }
    figures.print();
}

/// Asks the kernel to free its file cache and to join free pages. Earlier programs leave memory in pieces, of which the
/// kernel can make no huge pages. Does nothing without root.
fn make_room() {
    for setting in ["drop_caches", "compact_memory"] {
        let _ = fs::write(format!("/proc/sys/vm/{setting}"), "1");
    }
}

fn measure(receivers: usize) {
    let mut figures = Figures::default();
    let clock = spread((0..REQUESTS).map(|_| time(|| ()).1).collect());
    figures.count("engine.clock_ns", "ns", clock.mean, Bound::None);
    size(receivers, &mut figures);
    figures.print();
}

fn size(receivers: usize, figures: &mut Figures) {
    let suffix = if receivers == LARGEST { String::new() } else { format!("_{receivers}") };
    let named = |name: &str| format!("engine.{name}{suffix}");
    let before = resident();
    let (world, mut book, loading) = World::load(receivers);
    make_room();
    // The authority does this with a policy that comes into force, too.
    let (_, gathering) = time(|| shell::memory::into_huge_pages().expect("its own memory"));
    let (taken, entries) = (resident() - before, (receivers * ENTRIES) as f64);
    let bound = if receivers == LARGEST { Bound::AtMost(8.0) } else { Bound::None };
    figures.count(&named("bytes_per_entry"), "B", taken as f64 / entries, bound);
    figures.count(&named("load_s"), "s", loading.as_secs_f64(), Bound::None);
    figures.count(&named("into_huge_pages_s"), "s", gathering / 1e9, Bound::None);
    let mut walk = Walk::new(taken as usize);
    shell::memory::into_huge_pages().expect("its own memory");
    let huge = kilobytes("/proc/self/smaps_rollup", "AnonHugePages:") as f64 / resident() as f64;
    figures.count(&named("in_huge_pages"), "of 1", huge, Bound::None);
    assert!(receivers < LARGEST || huge > HUGE_MIN, "the kernel gave huge pages to {huge:.2} of the memory only");
    let mut beside = Beside { walk: &mut walk, reads: Vec::new() };

    let mut requests = world.requests(1);
    let (mut allowed, mut denied) = (Vec::new(), Vec::new());
    beside.during(REQUESTS, || {
        let request = requests.draw();
        let (decision, taken) = time(|| book.decide(&request.request(), world::open).decision);
        match decision {
            Decision::Decided(ruling) if world::allows(&ruling) => allowed.push(taken),
            Decision::NoReceiver => panic!("every request is for a receiver"),
            _ => denied.push(taken),
        }
    });
    let mut issued = Vec::new();
    let mut requests = world.requests(2);
    while issued.len() < REQUESTS / 2 {
        beside.during(REQUESTS / 2, || {
            let request = requests.draw();
            let (grant, taken) = time(|| world.issue(&book, &request));
            if grant.is_some() {
                issued.push(taken);
            }
        });
    }
    let mut requests = world.requests(4);
    let (mut made, mut nanoseconds) = (0, 0.0);
    beside.during(REQUESTS / TOGETHER, || {
        let batch: Vec<_> = (0..TOGETHER).map(|_| requests.draw_allowed()).collect();
        let (granted, taken) = time(|| world.issue_all(&book, &batch));
        made += granted;
        nanoseconds += taken;
    });
    let mut changes = Vec::new();
    let mut number = 0;
    beside.during(CHANGES, || {
        changes.push(time(|| world.change(&mut book, number)).1);
        number += 1;
    });

    let read = Yardstick::new(beside.reads);
    let bound = |most: f64| if receivers == LARGEST { Bound::AtMost(most) } else { Bound::None };
    let mut add =
        |name: &str, nanoseconds: f64, bound: Bound| figures.add(&named(name), "ns", nanoseconds, &read, bound);
    for (name, spread) in [("decide_allowed", spread(allowed)), ("decide_denied", spread(denied))] {
        add(&format!("{name}_ns"), spread.mean, Bound::None);
        add(&format!("{name}_p50_ns"), spread.p50, Bound::None);
        add(&format!("{name}_p99_ns"), spread.p99, Bound::None);
    }
    let issued = spread(issued);
    add("issue_alone_ns", issued.mean, Bound::None);
    add("issue_p50_ns", issued.p50, Bound::None);
    add("issue_p99_ns", issued.p99, bound(ISSUE_P99));
    add("issue_ns", nanoseconds / made as f64, bound(ISSUE));
    let changes = spread(changes);
    add("change_ns", changes.mean, bound(CHANGE));
    add("change_p99_ns", changes.p99, bound(CHANGE));
    figures.count(&named("issue_granted"), "of 1", made as f64 / REQUESTS as f64, Bound::None);
    let rate = if receivers == LARGEST { Bound::AtLeast(1.0) } else { Bound::None };
    while_changing(&world, book, &read, figures, &named, rate);
}

/// Measures decisions while a writer makes ten thousand changes per second, as a server with many receivers does.
fn while_changing(
    world: &World,
    book: Rulebook,
    read: &Yardstick,
    figures: &mut Figures,
    named: &impl Fn(&str) -> String,
    rate: Bound,
) {
    let shared = ArcSwap::from_pointee(book);
    let done = AtomicBool::new(false);
    let (meanwhile, changes) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (begun, mut written) = (Instant::now(), 0);
            while !done.load(Ordering::Relaxed) {
                let mut next = Rulebook::clone(&shared.load());
                for _ in 0..PUBLISHED {
                    world.change(&mut next, CHANGES + written);
                    written += 1;
                }
                shared.store(Arc::new(next));
                let due = Duration::from_secs_f64(written as f64 / PACE);
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
            }
            written as f64 / begun.elapsed().as_secs_f64()
        });
        let (begun, mut requests, mut taken) = (Instant::now(), world.requests(3), Vec::new());
        while begun.elapsed() < SUSTAINED {
            let request = requests.draw();
            taken.push(time(|| black_box(shared.load().decide(&request.request(), world::open).decision)).1);
        }
        done.store(true, Ordering::Relaxed);
        (spread(taken), writer.join().expect("the writer ends"))
    });
    figures.add(&named("changes_per_s"), "1/s", changes, &Yardstick::fixed(RATE), rate);
    figures.add(&named("decide_while_changing_ns"), "ns", meanwhile.mean, read, Bound::None);
    figures.add(&named("decide_while_changing_p99_ns"), "ns", meanwhile.p99, read, Bound::None);
}

/// A walk over memory that alternates with the measured work.
struct Beside<'a> {
    walk: &'a mut Walk,
    reads: Vec<f64>,
}

impl Beside<'_> {
    /// Does `work` `times` times, and walks at regular intervals.
    fn during(&mut self, times: usize, mut work: impl FnMut()) {
        for number in 0..times {
            if number % times.div_ceil(WALKS) == 0 {
                self.reads.push(self.walk.sample());
            }
            work();
        }
    }
}

struct Spread {
    /// Mean, which includes the time that other processes take from this one.
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

fn resident() -> u64 {
    kilobytes("/proc/self/status", "VmRSS:")
}

fn available() -> u64 {
    kilobytes("/proc/meminfo", "MemAvailable:")
}

/// Returns, in bytes, the value of a line of `file` that states it in kB.
fn kilobytes(file: &str, line: &str) -> u64 {
    let text = std::fs::read_to_string(file).expect(file);
    let value = text.lines().find_map(|text| text.strip_prefix(line)).expect(line);
    value.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}
