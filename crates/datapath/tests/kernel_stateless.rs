//! A verifier that takes tokens of the LS scheme without having been told of their pairs (wire.md §6.4.7): the kernel
//! program and the engine decide alike.

#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::hook::Hook;
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp};
use wire::map::VerifierConfig;
use wire::shim::Content;
use wire::{DropReason, Epoch};
use world::{Deciders, EPOCH_LENGTH, LsPair, NOW, config_with_shims, families};

const BAD_TAG: Outcome = Outcome::Drop(DropReason::BadTag);

struct Stateless(Deciders);

impl Stateless {
    fn new(hook: Hook) -> Self {
        let config = VerifierConfig { ls_stateless: 1, ..config_with_shims() };
        let deciders = Deciders::new(hook, config, &world::receivers());
        deciders.set_clock(NOW);
        Self(deciders)
    }

    /// Lets a SYN with this token arrive from a port, and returns the outcome on which both deciders agree.
    fn outcome(&mut self, port: u16, token: [u8; wire::ls::TOKEN_LEN], now: u32) -> Outcome {
        let [family, _] = families();
        let packet = Packet::new(family.client, family.server).ethernet([2; 6], [4; 6]).tcp(Tcp::syn(port, 22));
        self.0.set_clock(now);
        let [modelled, ran] = self.0.verify(&packet.shimmed(&Content::Ls(token).encode()).frame(), now);
        assert_eq!(modelled, ran);
        let admitted = ran.0 == Outcome::Token;
        assert_eq!(ran.1 == packet.frame(), admitted, "what is admitted arrives without its shim");
        ran.0
    }
}

#[test]
fn kernel_takes_pairs_that_nobody_announced_and_their_tokens_as_often_as_they_come() {
    for hook in [Hook::Xdp, Hook::Tc] {
        let (mut verifier, pair) = (Stateless::new(hook), LsPair::new(7));
        for port in 1..4 {
            assert_eq!(verifier.outcome(port, pair.token(5), NOW), Outcome::Token);
        }
        for byte in 0..wire::ls::TOKEN_LEN {
            let mut wrong = pair.token(5);
            wrong[byte] ^= 1;
            assert_eq!(verifier.outcome(10, wrong, NOW), BAD_TAG, "byte {byte}");
        }
        assert!(verifier.0.kernel.ls_grants.keys().is_empty());
    }
}

#[test]
fn kernel_takes_the_secrets_of_three_epochs_and_a_pair_ends_with_its_own() {
    let mut verifier = Stateless::new(Hook::Xdp);
    let pair = LsPair::new(7);
    let of = |epoch: u64| LsPair { epoch: Epoch(epoch), ..pair }.token(1);
    let Epoch(current) = pair.epoch;
    for (port, epoch) in (1..).zip([current - 1, current, current + 1]) {
        assert_eq!(verifier.outcome(port, of(epoch), NOW), Outcome::Token, "epoch {epoch}");
    }
    for epoch in [current - 2, current + 2] {
        assert_eq!(verifier.outcome(9, of(epoch), NOW), BAD_TAG, "epoch {epoch}");
    }
    let ends = (current as u32 + 2) * EPOCH_LENGTH;
    assert_eq!(verifier.outcome(20, pair.token(2), ends - 1), Outcome::Token);
    assert_eq!(verifier.outcome(21, pair.token(3), ends), BAD_TAG);
}

#[test]
fn kernel_refuses_a_revoked_pair_and_one_flow_too_many() {
    let mut verifier = Stateless::new(Hook::Xdp);
    let (one, other) = (LsPair::new(7), LsPair::new(8));
    for port in 0..world::FLOWS_PER_GRANT as u16 {
        assert_eq!(verifier.outcome(100 + port, one.token(port), NOW), Outcome::Token);
    }
    assert_eq!(verifier.outcome(200, one.token(200), NOW), Outcome::Drop(DropReason::FlowLimit));
    assert_eq!(verifier.outcome(201, other.token(1), NOW), Outcome::Token);
    verifier.0.revoke(other.pair.handle().0, NOW + 2 * EPOCH_LENGTH);
    assert_eq!(verifier.outcome(202, other.token(2), NOW), Outcome::Drop(DropReason::Revoked));
}

#[test]
fn kernel_without_keys_takes_nothing() {
    let mut verifier = Stateless::new(Hook::Xdp);
    let none = wire::map::SecretEntry { epoch: 0, block: [0; 64] };
    let no_key = wire::map::EpochKey { epoch: 0, siphash: [0; 16], aes: [0; 16] };
    for slot in 0..256 {
        verifier.0.kernel.ls_secrets.set(&slot, &none).expect("map takes secrets");
        verifier.0.kernel.epoch_keys.set(&slot, &no_key).expect("map takes keys");
    }
    verifier.0.model.keys.clear();
    assert_eq!(verifier.outcome(1, LsPair::new(7).token(1), NOW), Outcome::Drop(DropReason::UnknownEpoch));
}
