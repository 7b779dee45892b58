//! The kernel's replay table in virtual time: what filled it once does not come back.

#[allow(dead_code, reason = "the case table is its other user")]
mod table;
#[allow(dead_code, reason = "the case table is its other user")]
mod world;

use datapath::hook::Hook;
use datapath::verifier::Sizes;
use engine::verifier::Outcome;
use table::{CLIENT_PORT, Transport};
use wire::map::{REPLAY_ENTRIES, VerifierConfig};
use wire::{DropReason, Epoch};
use world::{Deciders, Grant, NOW};

const BUCKETS: u32 = 64;

/// Someone with one account fills the table within a second. From the moment when those tokens have ended, each fresh token is
/// admitted and each copy is dropped, for a day.
#[test]
fn kernel_admits_fresh_tokens_for_a_day_after_the_table_was_full() {
    let [family, _] = world::families();
    let config = VerifierConfig { flows_per_grant: 1 << 20, flows_per_account: 1 << 20, ..world::config() };
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
    deciders.set_clock(NOW);
    for nonce in 0..30 * BUCKETS * REPLAY_ENTRIES as u32 {
        deciders.kernel.run(&first(NOW, nonce), 1).expect("the program runs");
    }
    let refused = deciders.kernel.count(DropReason::FlowLimit as u32).expect("counters");
    assert!(refused > 0, "the table was full");
    for now in (NOW + 31..NOW + 86_400).step_by(101) {
        deciders.learn(Epoch::at(now.into(), world::EPOCH_LENGTH));
        deciders.set_clock(now);
        let [_, (outcome, _)] = deciders.judge(&first(now, now), now);
        assert_eq!(outcome, Outcome::Token, "a fresh token {} s later", now - NOW);
        let [_, (outcome, _)] = deciders.judge(&first(now, now), now);
        assert_eq!(outcome, Outcome::Drop(DropReason::Replayed), "its copy {} s later", now - NOW);
        deciders.sweep(now);
    }
}
