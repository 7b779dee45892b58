//! Differential fuzzing: random and mutated packets, with random operations between them. The Rust decisions and the
//! kernel programs must agree on every packet, and keep their promises (`fuzzing::promises`).
//!
//! `VOUCHSAFE_FUZZ_PACKETS` sets the number of packets (default 400 000), `VOUCHSAFE_FUZZ_SEED` the seed. A failure
//! names both, and the packet.

#[allow(dead_code, reason = "the table's rows are its other user")]
mod agents;
mod fuzzing;
#[allow(dead_code, reason = "the table's rows are its other user")]
mod table;
#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::hook::Hook;
use datapath::verifier::Sizes;
use fuzzing::Run;
use fuzzing::between::{Between, Pinned};
use fuzzing::chance::Chance;
use fuzzing::given::Given;
use fuzzing::packets::{mutate, packet};
use fuzzing::promises::Promises;
use wire::checksum;
use wire::map::counter;
use world::{Deciders, NOW, SIZES};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Number of packets. After a change of the decisions or of the kernel programs, run the test with ten times as many.
const PACKETS: u64 = 400_000;
/// Number of packets between two operations.
const BATCH: u64 = 512;
/// Enough buckets that none is ever full, because the model has no buckets.
const BUCKETS: u32 = 16_384;

#[test]
fn kernel_at_xdp_and_rust_agree_on_random_packets() {
    agree_on_random_packets(Hook::Xdp);
}

#[test]
fn kernel_at_tc_and_rust_agree_on_random_packets() {
    agree_on_random_packets(Hook::Tc);
}

fn agree_on_random_packets(hook: Hook) {
    let packets = setting("VOUCHSAFE_FUZZ_PACKETS", PACKETS);
    let seed = setting("VOUCHSAFE_FUZZ_SEED", 0x5eed_f10e_0000_0001);
    let config = world::config_with_shims();
    let pinned = Pinned::new(&format!("fuzz-{}", hook.name()), config, Sizes { replay_buckets: BUCKETS, ..SIZES });
    let mut run = Run {
        deciders: Deciders::around(pinned.load(hook), config, &world::receivers()).with_tunnel(),
        hook,
        seed,
        chance: Chance(seed | 1),
        now: NOW,
        given: Given::default(),
        promises: Promises::default(),
        between: Between::default(),
        pinned,
        packets: 0,
        tally: [0; counter::COUNT as usize],
        unwrapped: [0; 2],
        inside: 0,
    };
    while run.packets < packets {
        run.between();
        (0..BATCH).for_each(|_| run.packet());
        run.compare();
    }
    let Run { tally, unwrapped, between, promises, inside, .. } = &run;
    // Inside addresses are assigned after this decision.
    let reasons = wire::DropReason::ALL.iter().filter(|reason| **reason != wire::DropReason::NoAddress);
    let missing: Vec<_> = reasons.filter(|reason| tally[**reason as usize] == 0).collect();
    println!(
        "{} packets: {tally:?}; out of shims: {unwrapped:?}; inside: {inside}; copies: {}",
        run.packets, promises.copies
    );
    println!("between them: {:?}", between.counts());
    let never: Vec<_> = between.counts().into_iter().filter(|(_, count)| *count == 0).collect();
    assert!(packets < 20_000 || never.is_empty(), "never happened: {never:?}");
    assert!(packets < 20_000 || promises.copies > 0, "no admitted packet was shown again");
    assert!(packets < 100_000 || unwrapped.iter().all(|count| *count > 10), "few shims were taken: {unwrapped:?}");
    assert!(packets < 100_000 || *inside > 10, "few tokens were taken inside: {inside}");
    assert!(packets < 100_000 || missing.is_empty(), "never came up: {missing:?}");
}

#[test]
fn kernel_and_rust_insert_the_same_into_random_packets() {
    let packets = setting("VOUCHSAFE_FUZZ_PACKETS", PACKETS) / 10;
    let seed = setting("VOUCHSAFE_FUZZ_SEED", 0x5eed_f10e_0000_0002);
    let mut chance = Chance(seed | 1);
    let rows = table::agent::rows();
    let mut agents = agents::Agents::new();
    let mut given = Given::default();
    for number in 0..packets {
        if number % 64 == 0 {
            agents.know(&rows[chance.below(rows.len())]);
        }
        let mut frame = packet(&mut chance, NOW, &mut given);
        mutate(&mut chance, &mut frame);
        let parsed = wire::packet::Packet::parse(&frame);
        // A test run accepts no frame without a whole IP header, and no frame whose checksum is left to the network
        // card: only a real sender can request that.
        if frame.len() < 54 || checksum::is_partial(&frame, &parsed) == Some(true) {
            continue;
        }
        let [modelled, emitted] = agents.insert(&frame, NOW);
        assert!(
            modelled == emitted,
            "packet {number} of seed {seed:#x}: {}\n{modelled:x?}\n{emitted:x?}",
            hex::encode(&frame)
        );
    }
}
