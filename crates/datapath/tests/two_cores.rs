//! The loaded program on two cores at the same moment: a token admits once, whatever the other core does.
//!
//! `VOUCHSAFE_PAIRS` sets the number of pairs of packets (default a million).

#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::hook::Hook;
use datapath::run::Runner;
use datapath::verifier::Sizes;
use lab::forge::{Packet, Tcp};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use wire::map::VerifierConfig;
use wire::{Destination, Epoch, tail};
use world::{Deciders, Family, Grant, NOW, SIZES, families};
use zerocopy::IntoBytes;

/// Number of pairs between two sweeps; the flows of one round are removed in the next.
const ROUND: usize = 4096;
/// Seconds between rounds: the tokens of one round are no longer valid in the next.
const PAUSE: u32 = 100;
const PASS: u32 = 2;
/// Time limit for waiting for the other side.
const PATIENCE: Duration = Duration::from_secs(20);

fn pairs() -> usize {
    std::env::var("VOUCHSAFE_PAIRS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000)
}

/// Properties that the two packets of a pair share.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pair {
    /// Everything.
    Copies,
    /// The token; the ports differ.
    Ports,
    /// The token, in datagrams.
    Datagrams,
}

const PAIRS: [Pair; 3] = [Pair::Copies, Pair::Ports, Pair::Datagrams];

fn frame(family: &Family, grant: &Grant, pair: Pair, number: usize, side: usize, now: u32) -> Vec<u8> {
    let client_port = 1024 + (number * 2 + if pair == Pair::Ports { side } else { 0 }) as u16;
    let (protocol, port) = if pair == Pair::Datagrams { (17, 443) } else { (6, 22) };
    let to = Destination { address: family.server, protocol, port };
    let token = tail::block(&grant.token(&to, now, number as u32));
    let packet = Packet::new(family.client, family.server);
    match pair {
        Pair::Datagrams => packet.udp(client_port, port).payload(&[b"data".as_slice(), &token].concat()).frame(),
        _ => packet.tcp(Tcp::syn(client_port, port)).payload(&token).frame(),
    }
}

fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core).expect("a core's number");
    sched_setaffinity(Pid::from_raw(0), &cores).expect("this machine has two cores");
}

/// Serialises the tests: two cores are enough for one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static CORES: Mutex<()> = Mutex::new(());
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Releases two threads at the same moment, again and again.
#[derive(Default)]
struct Gate {
    arrived: AtomicUsize,
}

impl Gate {
    fn pass(&self, number: usize) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let mut spins = 0u32;
        let began = Instant::now();
        while self.arrived.load(Ordering::Acquire) < 2 * (number + 1) {
            spins = spins.wrapping_add(1);
            // The other thread may be waiting for this core, because other programs run here, too.
            if !spins.is_multiple_of(4096) {
                spin_loop();
                continue;
            }
            assert!(began.elapsed() < PATIENCE, "the other side is gone");
            thread::yield_now();
        }
    }
}

/// Returns a verifier with limits so high that only replays are refused.
fn deciders() -> Deciders {
    let config = VerifierConfig {
        flows_per_grant: 1 << 20,
        flows_per_account: 1 << 20,
        grants_per_account: 1 << 20,
        ..world::config()
    };
    let sizes = Sizes {
        replay_buckets: 1 << 17,
        flows: 2 * ROUND as u32,
        grants: ROUND as u32,
        accounts: ROUND as u32,
        ..SIZES
    };
    Deciders::with_sizes(Hook::Xdp, config, &world::receivers(), sizes)
}

#[test]
fn two_cores_admit_a_token_once() {
    let _cores = alone();
    let mut deciders = deciders();
    let mut now = NOW;
    let (mut twice, mut never, mut total) = (0, 0, 0);
    let rounds = pairs().div_ceil(ROUND);
    for round in 0..rounds {
        now += PAUSE;
        let epoch = Epoch::at(now.into(), world::EPOCH_LENGTH);
        (epoch.0 - 1..=epoch.0 + 1).for_each(|epoch| deciders.learn(Epoch(epoch)));
        deciders.set_clock(now);
        deciders.kernel.sweep(now).expect("sweep");
        let family = families()[round % 2];
        let grant = Grant { epoch, expires: now + 300, ..Grant::new(&family, 1 + round as u64) };
        let runners = [(); 2].map(|()| deciders.kernel.runner("admit").expect("a program"));
        // In every other round, the sweep runs concurrently.
        let sweeper = (round % 4 < 2).then(|| deciders.kernel.runner("sweep").expect("a program"));
        let admitted: Vec<AtomicU8> = (0..ROUND).map(|_| AtomicU8::new(0)).collect();
        let (gate, done) = (Gate::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            let sides: Vec<_> = runners
                .iter()
                .enumerate()
                .map(|(side, runner)| {
                    let (gate, admitted, grant, family) = (&gate, &admitted, &grant, &family);
                    scope.spawn(move || run_side(side, runner, gate, admitted, family, grant, now))
                })
                .collect();
            if let Some(sweeper) = &sweeper {
                let done = &done;
                scope.spawn(move || {
                    while !done.load(Ordering::Acquire) {
                        let mut pass = [now, now, 0, 0];
                        assert_eq!(sweeper.on_structure(pass.as_mut_bytes()).expect("the program runs"), 0);
                        thread::yield_now();
                    }
                });
            }
            for side in sides {
                side.join().expect("a side of the pairs");
            }
            done.store(true, Ordering::Release);
        });
        for admitted in &admitted {
            let admitted = admitted.load(Ordering::Acquire);
            total += 1;
            twice += u32::from(admitted > 1);
            never += u32::from(admitted == 0);
        }
    }
    println!("{total} pairs: {twice} admitted twice, {never} not at all");
    assert_eq!((twice, never), (0, 0), "of {total} pairs");
}

fn run_side(
    side: usize,
    runner: &Runner,
    gate: &Gate,
    admitted: &[AtomicU8],
    family: &Family,
    grant: &Grant,
    now: u32,
) {
    pin(side);
    let frames: Vec<_> =
        (0..ROUND).map(|number| frame(family, grant, PAIRS[number % PAIRS.len()], number, side, now)).collect();
    for (number, frame) in frames.iter().enumerate() {
        gate.pass(number);
        if runner.on_frame(frame).expect("the program runs") == PASS {
            admitted[number].fetch_add(1, Ordering::AcqRel);
        }
    }
}

#[test]
fn no_flow_outlives_a_revocation_beside_its_first_packet() {
    let _cores = alone();
    let deciders = deciders();
    let family = families()[0];
    deciders.set_clock(NOW);
    // As many handles as the table of revocations holds.
    let count = pairs().min(3000);
    let grants: Vec<_> = (0..count).map(|number| Grant::new(&family, 1 + number as u64)).collect();
    let frames: Vec<_> =
        grants.iter().enumerate().map(|(at, grant)| frame(&family, grant, Pair::Copies, at, 0, NOW)).collect();
    let admit = deciders.kernel.runner("admit").expect("a program");
    let sweep = deciders.kernel.runner("sweep").expect("a program");
    let revoked = &deciders.kernel.revoked;
    let gate = Gate::default();
    let passed = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(0);
            for (number, frame) in frames.iter().enumerate() {
                gate.pass(number);
                if admit.on_frame(frame).expect("the program runs") == PASS {
                    passed.fetch_add(1, Ordering::AcqRel);
                }
            }
        });
        scope.spawn(|| {
            pin(1);
            for (number, grant) in grants.iter().enumerate() {
                gate.pass(number);
                revoked.set(grant.handle, grant.expires).expect("revoked");
                let mut pass = [NOW, NOW, 0, 0];
                assert_eq!(sweep.on_structure(pass.as_mut_bytes()).expect("the program runs"), 0);
            }
        });
    });
    // A packet after its sweep was refused, and a flow before it was swept: no other sweep is needed.
    let left: Vec<_> = deciders.kernel.flows.entries().into_iter().map(|(_, flow)| flow.handle).collect();
    println!("{count} pairs of a first packet and a revocation: {} passed", passed.load(Ordering::Acquire));
    assert!(left.is_empty(), "{} flows outlive their revocation: {left:x?}", left.len());
}
