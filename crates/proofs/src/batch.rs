//! Judges packets in batches.

use crate::aes::{LANES, Mac, Message};
use crate::keys::Keys;
use crate::plain::{HEAD, Plain, class};
use engine::proofs::{Outcome, Verifier};
use ipnet::IpNet;
use std::net::IpAddr;
use wire::packet::Packet;
use wire::{DropReason, Epoch, Suite, geneve};
use zeroize::Zeroizing;

/// Packets that are judged together.
pub const BATCH: usize = 32;
/// The field of the UDP checksum in a packet of the plain form.
const CHECKSUM: usize = 40;

/// A verifier of proofs that judges batches.
pub struct Batch {
    verifier: Verifier,
    keys: Keys,
    /// The IPv4 endpoints: network and mask.
    endpoints: Vec<(u32, u32)>,
    /// A bit for each class of receivers of whom one may have withdrawn consent.
    withdrawn: Box<[u64; 1024]>,
}

/// What is known of a packet before its MAC.
enum Look {
    /// It is not of the plain form.
    Other,
    Decided(Outcome),
    /// The number of its key.
    Waits(Plain, usize),
}

/// Packets whose MACs are awaited: what is used together lies together.
#[derive(Default)]
struct Waiting {
    count: usize,
    messages: [Message; LANES],
    /// Numbers of keys.
    keys: [usize; LANES],
    proofs: [Mac; LANES],
    classes: [usize; LANES],
    /// Places in the batch.
    places: [usize; LANES],
}

impl Batch {
    /// A verifier that judges as `verifier` does.
    pub fn new(verifier: Verifier) -> Self {
        let keys = Keys::new(&[], Zeroizing::default());
        let mut batch = Self { verifier, keys, endpoints: Vec::new(), withdrawn: Box::new([0; 1024]) };
        batch.index();
        batch
    }

    /// Changes keys, endpoints or withdrawals.
    pub fn change(&mut self, change: impl FnOnce(&mut Verifier)) {
        change(&mut self.verifier);
        self.index();
    }

    fn index(&mut self) {
        let verifier = &self.verifier;
        let keys = verifier.keys.iter().filter_map(|((authority, epoch), key)| match authority {
            IpAddr::V4(address) => Some(((address.to_bits(), *epoch), *key.of(Suite::AesCmac))),
            IpAddr::V6(_) => None,
        });
        let (places, keys): (Vec<_>, Vec<_>) = keys.unzip();
        self.keys = Keys::new(&places, Zeroizing::new(keys));
        let endpoints = verifier.endpoints.iter().filter_map(|prefix| match prefix {
            IpNet::V4(prefix) => Some((prefix.network().to_bits(), prefix.netmask().to_bits())),
            IpNet::V6(_) => None,
        });
        self.endpoints = endpoints.collect();
        self.withdrawn.fill(0);
        for (what, _) in verifier.withdrawals() {
            if let IpAddr::V4(receiver) = what.receiver {
                let class = class(receiver.to_bits());
                self.withdrawn[class / 64] |= 1 << (class % 64);
            }
        }
    }

    /// Judges Ethernet frames at `now` (Unix seconds), moves the pointers of those that pass, and writes what becomes of each.
    /// Frames beyond [`BATCH`] are not looked at.
    pub fn judge(&self, frames: &mut [&mut [u8]], now: u32, outcomes: &mut [Outcome; BATCH]) {
        let epoch = Epoch::at(now.into(), self.verifier.epoch_length.max(1));
        let mut waiting = Waiting::default();
        for place in 0..frames.len().min(BATCH) {
            match self.look(frames[place], now, epoch) {
                Look::Other => outcomes[place] = self.verifier.judge(frames[place], now),
                Look::Decided(outcome) => outcomes[place] = outcome,
                Look::Waits(plain, key) => {
                    let lane = waiting.count % LANES;
                    waiting.messages[lane] = plain.message;
                    waiting.keys[lane] = key;
                    waiting.proofs[lane] = plain.proof;
                    waiting.classes[lane] = plain.class;
                    waiting.places[lane] = place;
                    waiting.count += 1;
                    if waiting.count == LANES {
                        self.check(&mut waiting, frames, now, outcomes);
                    }
                }
            }
        }
        self.check(&mut waiting, frames, now, outcomes);
    }

    /// All checks before the MAC, in the order of wire.md §8.8.
    #[inline(always)]
    fn look(&self, frame: &[u8], now: u32, epoch: Epoch) -> Look {
        let Some(plain) = Plain::read(frame) else { return Look::Other };
        if !self.endpoints.iter().any(|(network, mask)| plain.receiving & mask == *network) {
            return Look::Decided(Outcome::NotOurs);
        }
        let drop = |reason| Look::Decided(Outcome::Drop(reason));
        let key = epoch.from_wire(plain.epoch).and_then(|epoch| self.keys.find(plain.authority, epoch));
        let Some(key) = key else { return drop(DropReason::UnknownEpoch) };
        if plain.expires <= now {
            return drop(DropReason::Expired);
        }
        if plain.expires - now > self.verifier.max_lifetime {
            return drop(DropReason::LifetimeTooLong);
        }
        if plain.serves { Look::Waits(plain, key) } else { drop(DropReason::BadTag) }
    }

    /// Compares the proofs of those that wait, and lets them go.
    #[inline(always)]
    fn check(&self, waiting: &mut Waiting, frames: &mut [&mut [u8]], now: u32, outcomes: &mut [Outcome; BATCH]) {
        let macs = self.keys.set.macs(&waiting.keys, &waiting.messages, waiting.count);
        for (lane, mac) in macs.iter().enumerate().take(waiting.count) {
            let (place, class) = (waiting.places[lane], waiting.classes[lane]);
            let proof = waiting.proofs[lane];
            outcomes[place] = if (proof[0] ^ mac[0]) | (proof[1] ^ mac[1]) != 0 {
                Outcome::Drop(DropReason::BadTag)
            } else if self.withdrawn[class / 64] >> (class % 64) & 1 != 0 {
                self.verifier.judge(frames[place], now)
            } else {
                advance(frames[place]);
                Outcome::Proved
            };
        }
        waiting.count = 0;
    }
}

/// Moves the pointer of a packet of the plain form.
#[inline(always)]
fn advance(frame: &mut [u8]) {
    if frame[CHECKSUM] | frame[CHECKSUM + 1] == 0 {
        frame[HEAD] += 1;
    } else {
        // INVARIANT: the plain form is a datagram with a pointer, which is all that this asks for.
        let packet = Packet::parse(frame);
        let _ = geneve::advance(frame, &packet);
    }
}
