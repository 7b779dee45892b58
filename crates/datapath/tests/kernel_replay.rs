//! The kernel's replay table in virtual time: tokens that filled it once do not block it again, and a used token is
//! never admitted again.

#[allow(dead_code, reason = "the case table is its other user")]
mod table;
#[allow(dead_code, reason = "the case table is its other user")]
mod world;

use datapath::Pins;
use datapath::hook::Hook;
use datapath::verifier::{Sizes, Verifier as Kernel};
use engine::verifier::Outcome;
use table::{CLIENT_PORT, Transport};
use wire::map::{REPLAY_ENTRIES, VerifierConfig};
use wire::{DropReason, Epoch};
use world::{Deciders, Grant, NOW};

const BUCKETS: u32 = 64;

/// Returns the seconds between two probes: `VOUCHSAFE_REPLAY_STEP`, 101 by default. With 12 bits of time, an old entry looked
/// live again for 630 s of every 4096 s.
fn step() -> usize {
    std::env::var("VOUCHSAFE_REPLAY_STEP").map_or(101, |step| step.parse().expect("a number of seconds"))
}

/// A client with one account fills the table within a second. Once those tokens have ended, each fresh token is
/// admitted and each copy is dropped, for a day.
#[test]
fn kernel_admits_fresh_tokens_for_a_day_after_the_table_was_full() {
    let [family, _] = world::families();
    let config = VerifierConfig {
        flows_per_grant: 1 << 20,
        flows_per_account: 1 << 20,
        grants_per_account: 1 << 20,
        ..world::config()
    };
    let sizes = Sizes { replay_buckets: BUCKETS, ..world::SIZES };
    let mut deciders = Deciders::with_sizes(Hook::Xdp, config, &world::receivers(), sizes);
    let to = Transport::Tcp.destination(&family);
    let first = |now: u32, nonce: u32| {
        let epoch = Epoch::at(now.into(), world::EPOCH_LENGTH);
        let grant = Grant { epoch, expires: now + 300, ..Grant::new(&family, u64::from(now)) };
        let mut first = Transport::Tcp.first(&family, &grant, CLIENT_PORT, nonce);
        first.token = grant.token(&to, now, nonce);
        first.frame()
    };
    for nonce in 0..30 * BUCKETS * REPLAY_ENTRIES as u32 {
        // The kernel's clock goes on meanwhile. On a slow machine the fill would take longer than a token lives.
        if nonce % 64 == 0 {
            deciders.set_clock(NOW);
        }
        deciders.kernel.run(&first(NOW, nonce), 1).expect("the program runs");
    }
    let refused = deciders.kernel.count(DropReason::FlowLimit as u32).expect("counters");
    assert!(refused > 0, "the table was full");
    // While the clock was held, it may have been some seconds ahead: tokens of the 31 s behind that count as forgotten.
    for now in (NOW + 61..NOW + 86_400).step_by(step()) {
        deciders.learn(Epoch::at(now.into(), world::EPOCH_LENGTH));
        deciders.set_clock(now);
        let [_, (outcome, _)] = deciders.verify(&first(now, now), now);
        assert_eq!(outcome, Outcome::Token, "a fresh token {} s later", now - NOW);
        let [_, (outcome, _)] = deciders.verify(&first(now, now), now);
        assert_eq!(outcome, Outcome::Drop(DropReason::Replayed), "its copy {} s later", now - NOW);
        deciders.sweep(now);
    }
}

/// Returns a SYN with a token of this time.
fn syn(now: u32, port: u16, nonce: u32) -> Vec<u8> {
    let [family, _] = world::families();
    let epoch = Epoch::at(now.into(), world::EPOCH_LENGTH);
    let grant = Grant { epoch, expires: now + 3000, ..Grant::new(&family, 7) };
    let mut first = Transport::Tcp.first(&family, &grant, port, nonce);
    first.token = grant.token(&Transport::Tcp.destination(&family), now, nonce);
    first.frame()
}

/// Attacks a table whose slots become free once the clock has passed their tokens' time: the attacker keeps a copy of a
/// token until the clock is set back.
#[test]
fn kernel_admits_a_token_once_though_its_clock_is_set_back() {
    let config = VerifierConfig {
        flows_per_grant: 1 << 20,
        flows_per_account: 1 << 20,
        grants_per_account: 1 << 20,
        ..world::config()
    };
    let sizes = Sizes { replay_buckets: BUCKETS, ..world::SIZES };
    let mut deciders = Deciders::with_sizes(Hook::Xdp, config, &world::receivers(), sizes);
    let at = |deciders: &mut Deciders, now: u32| {
        deciders.learn(Epoch::at(now.into(), world::EPOCH_LENGTH));
        deciders.set_clock(now);
    };
    for (number, far) in [31, 90, 700, 3 * 3600].into_iter().enumerate() {
        let (begin, port) = (NOW + number as u32 * 86_400, CLIENT_PORT + number as u16);
        at(&mut deciders, begin);
        let used = syn(begin, port, 1);
        assert_eq!(kernel_outcome(&deciders, &used), Outcome::Token.counter());
        at(&mut deciders, begin + far);
        for nonce in 0..30 * BUCKETS * REPLAY_ENTRIES as u32 {
            deciders.kernel.run(&syn(begin + far, CLIENT_PORT + 100, nonce), 1).expect("the program runs");
        }
        at(&mut deciders, begin);
        let outcome = kernel_outcome(&deciders, &used);
        assert_ne!(outcome, Outcome::Token.counter(), "after {far} s there and back");
    }
}

/// A daemon that starts with another table size knows which tokens were used before.
#[test]
fn kernel_admits_a_token_once_though_its_table_changes_its_size() {
    let config = world::config();
    let pins = Pins::new("verifier", &format!("replay{}", std::process::id())).expect("the BPF file system");
    let load = |replay_buckets| {
        let sizes = Sizes { replay_buckets, ..world::SIZES };
        let kernel = Kernel::load(Hook::Xdp, config, sizes, Some(pins.clone())).expect("loaded");
        Deciders::around(kernel, config, &world::receivers())
    };
    let shown = |number: usize| syn(NOW, CLIENT_PORT + number as u16, number as u32);
    let mut outcomes = Vec::new();
    for (number, buckets) in [256, 1024, 64, 128].into_iter().enumerate() {
        let deciders = load(buckets);
        deciders.set_clock(NOW);
        let copies: Vec<u32> = (0..number).map(|earlier| kernel_outcome(&deciders, &shown(earlier))).collect();
        outcomes.push((copies, kernel_outcome(&deciders, &shown(number))));
    }
    pins.remove().expect("unpinned");
    for (number, (copies, fresh)) in outcomes.into_iter().enumerate() {
        assert_eq!(copies, vec![DropReason::Replayed as u32; number], "size {number}");
        assert_eq!(fresh, Outcome::Token.counter(), "size {number}");
    }
}

/// Returns the counter that a frame moves.
fn kernel_outcome(deciders: &Deciders, frame: &[u8]) -> u32 {
    let before = deciders.kernel.counts().expect("counters");
    deciders.kernel.run(frame, 1).expect("the program runs");
    let after = deciders.kernel.counts().expect("counters");
    (0..before.len()).find(|index| before[*index] != after[*index]).expect("one moved") as u32
}
