//! The costs of a large database of lists at the authority: its import, the memory of an entry, and changes while the
//! authority decides.
//!
//! Without an argument, 10⁴ addresses have 10³ entries each. With the argument `whole`, 10⁶ addresses have 10³ entries
//! each. The bench then takes some 10 GB of memory, as much of the disk, and an hour. The changes go through the file
//! of lists, in which the bench writes them as commands do, in batches of a hundred. Each batch is on the disk before
//! it is in force. The yardstick for decisions during changes is the same decisions just before, without changes.
//!
//! Prints one JSON object, which `cargo xtask bench` collects.

use authority::Directory;
use authority::lists::{Follower, Line, Store};
use authority::storage::Operator;
use engine::policy::{Compiled, Decision, Policy, Request, Subject};
use measure::{Bound, Figures, Yardstick};
use std::io::{BufReader, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::Destination;

/// The argument by which the bench starts itself as the process that imports.
const IMPORT: &str = "import-into";
/// Number of entries of an address.
const ENTRIES: u32 = 1000;
/// Number of people whom entries name.
const PEOPLE: u32 = 100_000;
/// Number of changes of a batch, and changes per second that must be sustained.
const BATCH: u64 = 100;
const RATE: u64 = 10_000;
/// Duration of the changes.
const SPAN: Duration = Duration::from_secs(10);
/// Number of decisions of a sample.
const DECISIONS: u32 = 2000;
/// Maximum memory of an entry, in bytes.
const ENTRY_BYTES: f64 = 10.0;
/// Maximum time of decisions during changes, as a multiple of their time without changes. The limit is low, because
/// changes use a processor of their own.
const DURING: f64 = 2.0;

const POLICY: &str = "[[receivers]]\nname = \"farm\"\naddress = \"10.0.0.0/8\"\nservices = \"tcp/22\"\n\
                      verifier = \"edge\"\n[[lists]]\nname = \"partners\"\nto = \"farm\"\nwho = \"everyone\"\n";

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let receivers = if arguments.iter().any(|word| word == "whole") { 1_000_000 } else { 10_000 };
    if let Some(place) = arguments.iter().position(|word| word == IMPORT) {
        return import(&Directory::at(&arguments[place + 1]), receivers);
    }
    let room = tempfile::tempdir().expect("a directory");
    let directory = Directory::at(room.path());
    let by = Operator::current();
    let mut figures = Figures::default();
    let mut figure = |name: &str, unit: &str, value: f64, bound: Bound| {
        figures.count(&format!("lists.{receivers}_{name}"), unit, value, bound);
    };

    // Another process imports, as in use, so its memory does not count.
    let begun = Instant::now();
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    let words = [IMPORT.as_ref(), room.path().as_os_str()];
    command.args(arguments.iter().skip(1)).args(words).stdout(Stdio::null());
    assert!(command.status().expect("the bench starts itself").success(), "the import failed");
    let entries = f64::from(receivers) * f64::from(ENTRIES);
    figure("import_s", "s", begun.elapsed().as_secs_f64(), Bound::None);
    let on_disk = std::fs::metadata(directory.path().join("lists.db")).expect("a file").len();
    figure("disk_bytes", "B/entry", on_disk as f64 / entries, Bound::None);

    let before = resident();
    let begun = Instant::now();
    let mut follower = Follower::new(directory.clone());
    let (lists, _) = follower.follow().expect("the file is valid").expect("there is a list");
    assert_eq!(lists.len() as f64, entries);
    let mut policy = Compiled::new(Policy::parse(POLICY, 3600).expect("valid")).expect("small");
    policy.set_lists(lists);
    figure("load_s", "s", begun.elapsed().as_secs_f64(), Bound::None);
    figure("memory_bytes", "B/entry", (resident() - before) / entries, Bound::AtMost(ENTRY_BYTES));
    shell::memory::into_huge_pages().expect("its own memory");

    let _lock = Store::lock(&directory).expect("a lock");
    let mut store = Store::create(&directory).expect("the file of lists");
    let policy = RwLock::new(policy);
    let mut draw = Draw(7);
    // After a large list was read, the kernel still rearranges memory for a while.
    for _ in 0..60 {
        decide(&policy, receivers, &mut draw);
    }
    let mut quiet: Vec<_> = (0..20).map(|_| decide(&policy, receivers, &mut draw)).collect();
    let (ends, made) = (AtomicBool::new(false), AtomicU64::new(0));
    let during = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (begun, mut draw) = (Instant::now(), Draw(11));
            for batch in 0..RATE / BATCH * SPAN.as_secs() {
                let due = begun + Duration::from_micros(batch * BATCH * 1_000_000 / RATE);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let lines = (1..=BATCH).map(|number| (number, change(&mut draw, receivers)));
                store.change("partners", lines, "the bench", (&by, 1_900_000_000)).expect("a change");
                let (lists, _) = follower.follow().expect("the file is valid").expect("it changed");
                let former = policy.write().expect("no panic").set_lists(lists);
                drop(former);
                made.fetch_add(BATCH, Ordering::Relaxed);
                if batch % 10 == 0 {
                    follower.fold(Instant::now() + Duration::from_millis(20)).expect("a file");
                }
            }
            let rate = made.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
            figure("changes_per_s", "1/s", rate, Bound::None);
            ends.store(true, Ordering::SeqCst);
        });
        let mut samples = Vec::new();
        while !ends.load(Ordering::SeqCst) {
            samples.push(decide(&policy, receivers, &mut draw));
        }
        samples
    });
    quiet.extend((0..20).map(|_| decide(&policy, receivers, &mut draw)));
    let quiet = Yardstick::new(quiet);
    let name = format!("lists.{receivers}");
    let mean = during.iter().sum::<f64>() / during.len() as f64;
    figures.add(&format!("{name}_decide_during_us"), "us", mean, &quiet, Bound::AtMost(DURING));
    let rate = figures.get(&format!("{name}_changes_per_s")).and_then(|figure| figure["value"].as_f64());
    let wanted = Yardstick::fixed(RATE as f64);
    figures.add(&format!("{name}_changes_sustained"), "1/s", rate.expect("measured"), &wanted, Bound::AtLeast(0.99));
    figures.print();
}

/// Imports the whole list.
fn import(directory: &Directory, receivers: u32) {
    let _lock = Store::lock(directory).expect("a lock");
    let mut store = Store::create(directory).expect("a file of lists");
    let input = BufReader::with_capacity(1 << 20, Lines::new(receivers));
    let by = (&Operator::current(), 1_900_000_000);
    let imported = store.import("partners", input, "the bench", by, |_| {}).expect("an import");
    assert_eq!(imported.entries, u64::from(receivers) * u64::from(ENTRIES));
}

/// Makes decisions, half of them about people who are listed. Returns the mean time of one, in microseconds.
fn decide(policy: &RwLock<Compiled>, receivers: u32, draw: &mut Draw) -> f64 {
    let asked: Vec<_> = (0..DECISIONS)
        .map(|number| {
            let receiver = draw.below(receivers);
            let place = if number % 2 == 0 { draw.below(ENTRIES) } else { ENTRIES + draw.below(PEOPLE - ENTRIES) };
            (format!("p{}", named(receiver, place)), address(receiver))
        })
        .collect();
    let begun = Instant::now();
    let mut allowed = 0;
    for (person, address) in &asked {
        let to = Destination { address: *address, protocol: 6, port: 22 };
        let request = Request { subject: Subject::person(person), to, now: 1_900_000_000 };
        let policy = policy.read().expect("no panic");
        allowed += u32::from(matches!(policy.decide(&request), Decision::Allowed(_)));
    }
    let taken = begun.elapsed().as_secs_f64() * 1e6 / f64::from(DECISIONS);
    assert!(allowed > DECISIONS / 4, "{allowed} of {DECISIONS}");
    taken
}

/// Returns a change: a person gets or loses access to an address.
fn change(draw: &mut Draw, receivers: u32) -> Line {
    let (receiver, person) = (draw.below(receivers), draw.below(PEOPLE));
    let who = vec![format!("person:p{person}")];
    Line { to: address(receiver).to_string(), who, remove: draw.below(2) == 0, ..Line::default() }
}

fn address(receiver: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 | receiver).into()
}

/// Returns the number of the person at one place of an address's list.
fn named(receiver: u32, place: u32) -> u32 {
    ((u64::from(receiver) * 7919 + u64::from(place)) % u64::from(PEOPLE)) as u32
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") * 1024.0
}

/// A generator of numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(most)) as u32
    }
}

/// The file to import, made while it is read: one line for each address.
struct Lines {
    next: u32,
    receivers: u32,
    line: Vec<u8>,
    read: usize,
}

impl Lines {
    fn new(receivers: u32) -> Self {
        Self { next: 0, receivers, line: Vec::new(), read: 0 }
    }
}

impl Read for Lines {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.read == self.line.len() {
            if self.next == self.receivers {
                return Ok(0);
            }
            let people = (0..ENTRIES).map(|place| format!("\"person:p{}\"", named(self.next, place)));
            let people = people.collect::<Vec<_>>().join(",");
            self.line = format!("{{\"to\":\"{}\",\"who\":[{people}]}}\n", address(self.next)).into_bytes();
            (self.next, self.read) = (self.next + 1, 0);
        }
        let mut rest = &self.line[self.read..];
        let read = rest.read(into)?;
        self.read += read;
        Ok(read)
    }
}
