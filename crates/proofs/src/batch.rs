//! Verification of packets in batches.

use crate::BATCH;
#[cfg(target_arch = "x86_64")]
use crate::aes::native::{self, Expanded, Processor};
use crate::aes::{self, LANES, Lane, LibraryKey};
use crate::keys::Keys;
#[cfg(target_arch = "x86_64")]
use crate::plain::COUNT;
use crate::plain::{HEAD, PROOFS, Plain};
#[cfg(target_arch = "x86_64")]
use crate::wide::{Limits, Wide};
use engine::verifier::proofs::{Outcome, Verifier};
use ipnet::IpNet;
use std::net::IpAddr;
use wire::packet::Packet;
use wire::{DropReason, Epoch, Suite, geneve};

/// Offset of the UDP checksum in a packet of the plain form.
const CHECKSUM: usize = 40;

/// Prefetches into the processor's cache the headers of frames that will be verified soon. This is only useful if
/// another core or a device wrote the frames. If the headers are in the cache already, prefetching costs more time than
/// it saves.
pub fn fetch(frames: &[&mut [u8]]) {
    #[cfg(target_arch = "x86_64")]
    frames.iter().for_each(|frame| native::fetch(frame));
    #[cfg(not(target_arch = "x86_64"))]
    let _ = frames;
}

/// A verifier of proofs that works in batches.
pub struct Batch {
    verifier: Verifier,
    rules: Rules,
    means: Means,
    keys: KeySet,
    /// The epoch for which `keys` was built: `keys` has the keys of this epoch, of the previous one and of the next
    /// one.
    epoch: Option<Epoch>,
}

/// Rules for packets of the plain form.
struct Rules {
    /// The IPv4 endpoints: network and mask, with the first byte in the lowest bits.
    endpoints: Vec<(u32, u32)>,
    max_lifetime: u32,
    /// One bit per class of receivers. The bit is set if a receiver in the class has possibly withdrawn consent.
    withdrawn: Box<[u64; 1024]>,
    any_withdrawn: bool,
}

/// The implementation that computes the MACs. All implementations give the same verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// The processor's AES instructions on wide registers, each of which holds four packets.
    Wide,
    /// The processor's AES instructions.
    Native,
    /// Code of a library, without special instructions of the processor.
    Library,
}

impl Means {
    /// Returns the implementations that this processor supports, the fastest first.
    pub fn here() -> impl Iterator<Item = Self> {
        [Self::Wide, Self::Native, Self::Library].into_iter().filter(|means| match means {
            #[cfg(target_arch = "x86_64")]
            Self::Wide => Processor::detect().is_some() && Wide::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Native => Processor::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Wide | Self::Native => false,
            Self::Library => true,
        })
    }
}

/// Keys in the form that the MAC implementation needs.
enum KeySet {
    #[cfg(target_arch = "x86_64")]
    Wide(Wide, Keys<Expanded>),
    #[cfg(target_arch = "x86_64")]
    Native(Keys<Expanded>),
    Library(Keys<LibraryKey>),
}

/// Result of the checks that precede the computation of the MAC.
enum Look<'a, K> {
    /// The packet is not of the plain form.
    Other,
    Decided(Outcome),
    Waits(Plain<'a>, &'a K),
}

impl Batch {
    /// Returns a verifier with the same verdicts as `verifier`. It computes MACs with the fastest implementation that
    /// the processor supports.
    pub fn new(verifier: Verifier) -> Self {
        Self::with(verifier, Means::here().next().unwrap_or(Means::Library))
    }

    /// Returns a verifier with the same verdicts as `verifier`. It computes MACs with the implementation `means` or, if
    /// the processor does not support `means`, with the fastest implementation that the processor supports.
    pub fn with(verifier: Verifier, means: Means) -> Self {
        let rules = Rules::of(&verifier);
        let keys = KeySet::Library(Keys::new([].into_iter(), LibraryKey::new(&[0; 16])));
        Self { verifier, rules, means, keys, epoch: None }
    }

    /// Changes the verifier's keys, endpoints or withdrawals by calling `change`.
    pub fn change(&mut self, change: impl FnOnce(&mut Verifier)) {
        change(&mut self.verifier);
        self.rules = Rules::of(&self.verifier);
        self.epoch = None;
    }

    fn learn(&mut self, epoch: Epoch) {
        let keys = self.verifier.keys.iter().filter_map(|((authority, of), key)| match authority {
            IpAddr::V4(address) if epoch.from_wire(of.on_wire()) == Some(*of) => {
                Some(((address.to_bits(), *of), key.of(Suite::AesCmac)))
            }
            _ => None,
        });
        self.keys = KeySet::new(&keys.collect::<Vec<_>>(), self.means);
        self.epoch = Some(epoch);
    }

    /// Verifies Ethernet frames at `now` (Unix seconds), advances the pointers of frames that pass, and stores the
    /// outcome of each frame in `outcomes`. Frames after the first [`BATCH`] are ignored.
    pub fn verify(&mut self, frames: &mut [&mut [u8]], now: u32, outcomes: &mut [Outcome; BATCH]) {
        let epoch = Epoch::at(now.into(), self.verifier.epoch_length.max(1));
        if self.epoch != Some(epoch) {
            self.learn(epoch);
        }
        let count = frames.len().min(BATCH);
        let frames = &mut frames[..count];
        if frames.is_empty() {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if let KeySet::Wide(wide, keys) = &self.keys
            && let Some(limits) = self.rules.limits(now)
        {
            let (fit, right) = wide.verify(keys, frames, limits);
            let passes = right & !self.rules.perhaps_withdrawn(right, frames);
            let left = settle(frames, passes, fit & !right, outcomes);
            if left != 0 {
                self.verify_rest(left, frames, now, outcomes);
            }
            return;
        }
        self.verify_narrowly(frames, now, outcomes);
    }

    /// Verifies the frames whose bits are set in `bits`.
    #[cfg(target_arch = "x86_64")]
    #[cold]
    fn verify_rest(&self, bits: u32, frames: &mut [&mut [u8]], now: u32, outcomes: &mut [Outcome; BATCH]) {
        let mut rest: [&mut [u8]; BATCH] = Default::default();
        let mut count = 0;
        for (_, frame) in frames.iter_mut().enumerate().filter(|(place, _)| bits >> place & 1 != 0) {
            rest[count] = frame;
            count += 1;
        }
        let mut own = [Outcome::NotOurs; BATCH];
        self.verify_narrowly(&mut rest[..count], now, &mut own);
        let places = (0..BATCH).filter(|place| bits >> place & 1 != 0);
        places.zip(own).for_each(|(place, outcome)| outcomes[place] = outcome);
    }

    fn verify_narrowly(&self, frames: &mut [&mut [u8]], now: u32, outcomes: &mut [Outcome; BATCH]) {
        let mut others = match &self.keys {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: expanded keys exist only if the processor has the features.
            KeySet::Wide(_, keys) | KeySet::Native(keys) => unsafe {
                self.rules.verify_natively(keys, frames, now, outcomes)
            },
            KeySet::Library(keys) => self.rules.verify(keys, aes::right, frames, now, outcomes),
        };
        while others != 0 {
            let place = others.trailing_zeros() as usize;
            outcomes[place] = self.verifier.verify(frames[place], now);
            others &= others - 1;
        }
    }
}

impl KeySet {
    fn new(keys: &[((u32, Epoch), &[u8; 16])], means: Means) -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(processor) = Processor::detect()
            && means != Means::Library
        {
            let expanded = keys.iter().map(|(name, key)| (*name, processor.expand(key)));
            let keys = Keys::new(expanded, processor.expand(&[0; 16]));
            return match Wide::detect() {
                Some(wide) if means == Means::Wide => Self::Wide(wide, keys),
                _ => Self::Native(keys),
            };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = means;
        Self::library(keys)
    }

    fn library(keys: &[((u32, Epoch), &[u8; 16])]) -> Self {
        let own = keys.iter().map(|(name, key)| (*name, LibraryKey::new(key)));
        Self::Library(Keys::new(own, LibraryKey::new(&[0; 16])))
    }
}

impl Rules {
    fn of(verifier: &Verifier) -> Self {
        let endpoints = verifier.endpoints.iter().filter_map(|prefix| match prefix {
            IpNet::V4(prefix) => {
                Some([prefix.network(), prefix.netmask()].map(|address| u32::from_le_bytes(address.octets())).into())
            }
            IpNet::V6(_) => None,
        });
        let (mut withdrawn, mut any_withdrawn) = (Box::new([0; 1024]), false);
        for (what, _) in verifier.withdrawals() {
            if let IpAddr::V4(receiver) = what.receiver {
                let class = class(receiver.to_bits());
                withdrawn[class / 64] |= 1 << (class % 64);
                any_withdrawn = true;
            }
        }
        Self { endpoints: endpoints.collect(), max_lifetime: verifier.max_lifetime, withdrawn, any_withdrawn }
    }

    /// Returns the bounds for packets that pass at `now`, or `None` if no packet can pass.
    #[cfg(target_arch = "x86_64")]
    fn limits(&self, now: u32) -> Option<Limits<'_>> {
        let expires = (now.checked_add(1)?, now.saturating_add(self.max_lifetime));
        (expires.0 <= expires.1).then_some(Limits { endpoints: &self.endpoints, expires })
    }

    /// Returns the subset of `bits` whose receivers may have withdrawn consent; the packets must be of the plain form.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn perhaps_withdrawn(&self, bits: u32, frames: &[&mut [u8]]) -> u32 {
        let perhaps = |(place, frame): (usize, &&mut [u8])| {
            let receiver = PROOFS + 2 * usize::from(frame.get(HEAD)? & COUNT) + 16;
            let class = class(u32::from_be_bytes(*frame.get(receiver..)?.first_chunk()?));
            Some(((self.withdrawn[class / 64] >> (class % 64) & 1) as u32) << place)
        };
        if self.any_withdrawn { bits & frames.iter().enumerate().filter_map(perhaps).sum::<u32>() } else { 0 }
    }

    /// Does what [`Self::verify`] does, in a copy of that code that is compiled for the processor's features.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "aes,avx2,bmi1,bmi2,movbe")]
    fn verify_natively(
        &self,
        keys: &Keys<Expanded>,
        frames: &mut [&mut [u8]],
        now: u32,
        outcomes: &mut [Outcome; BATCH],
    ) -> u32 {
        self.verify(keys, |lanes| native::right(lanes), frames, now, outcomes)
    }

    /// Verifies frames and stores their outcomes; returns one bit for each frame that is not of the plain form or whose
    /// receiver may have withdrawn consent. These frames get no outcome.
    #[inline(always)]
    fn verify<K>(
        &self,
        keys: &Keys<K>,
        right: impl Fn(&[Lane<'_, K>; LANES]) -> u8,
        frames: &mut [&mut [u8]],
        now: u32,
        outcomes: &mut [Outcome; BATCH],
    ) -> u32 {
        let (mut passes, mut wrong, mut others) = (0u32, 0u32, 0u32);
        // The current group of eight packets. A slot without a packet in this group keeps a packet of an earlier group,
        // because the MACs of all eight slots are computed in any case.
        let mut lanes = [(Plain::NONE, keys.any()); LANES];
        for (group, frames) in frames.chunks(LANES).enumerate() {
            let first = group * LANES;
            let mut waits = u32::from(u8::MAX >> (LANES - frames.len()));
            for (place, (frame, lane)) in frames.iter().zip(&mut lanes).enumerate() {
                match self.look(keys, frame, now) {
                    Look::Waits(plain, key) => *lane = (plain, key),
                    Look::Other => {
                        others |= 1 << (first + place);
                        waits &= !(1 << place);
                    }
                    Look::Decided(decided) => {
                        outcomes[first + place] = decided;
                        waits &= !(1 << place);
                    }
                }
            }
            if waits == 0 {
                continue;
            }
            let right = u32::from(right(&lanes)) & waits;
            passes |= right << first;
            wrong |= (right ^ waits) << first;
            if self.any_withdrawn {
                for (place, (plain, _)) in lanes.iter().enumerate() {
                    let class = class(plain.receiver());
                    let perhaps = (self.withdrawn[class / 64] >> (class % 64) & 1) as u32;
                    others |= (perhaps << place & right) << first;
                }
            }
        }
        settle(frames, passes & !others, wrong, outcomes);
        others
    }

    /// Runs all checks that precede the MAC.
    #[inline(always)]
    fn look<'a, K>(&self, keys: &'a Keys<K>, frame: &'a [u8], now: u32) -> Look<'a, K> {
        let Some(plain) = Plain::read(frame) else { return Look::Other };
        let receiving = plain.receiving();
        if !self.endpoints.iter().any(|(network, mask)| receiving & mask == *network) {
            return Look::Decided(Outcome::NotOurs);
        }
        let key = keys.find(plain.authority(), plain.epoch());
        // For an expired segment, the difference wraps and exceeds any lifetime.
        let lives = u64::from(plain.expires()).wrapping_sub(u64::from(now) + 1) < u64::from(self.max_lifetime);
        match key {
            Some(key) if lives && plain.serves() => Look::Waits(plain, key),
            _ => Look::Decided(Outcome::Drop(self.refused(&plain, key.is_some(), now))),
        }
    }

    /// Returns why a packet is dropped without a MAC: the first reason in the order of wire.md §8.8.
    #[cold]
    fn refused(&self, plain: &Plain<'_>, has_key: bool, now: u32) -> DropReason {
        if !has_key {
            DropReason::UnknownEpoch
        } else if plain.expires() <= now {
            DropReason::Expired
        } else if plain.expires() - now > self.max_lifetime {
            DropReason::LifetimeTooLong
        } else {
            DropReason::BadTag
        }
    }
}

/// Stores the outcomes of the packets that pass and of the packets with a wrong proof. Returns one bit for each of the
/// remaining packets.
#[inline(always)]
fn settle(frames: &mut [&mut [u8]], passes: u32, wrong: u32, outcomes: &mut [Outcome; BATCH]) -> u32 {
    let all = u32::MAX.unbounded_shr((BATCH - frames.len()) as u32);
    if passes == all {
        frames.iter_mut().for_each(|frame| advance(frame));
        outcomes[..frames.len()].fill(Outcome::Proved);
        return 0;
    }
    for (place, (frame, outcome)) in frames.iter_mut().zip(outcomes).enumerate() {
        if passes >> place & 1 != 0 {
            advance(frame);
            *outcome = Outcome::Proved;
        } else if wrong >> place & 1 != 0 {
            *outcome = Outcome::Drop(DropReason::BadTag);
        }
    }
    all & !passes & !wrong
}

/// Advances the pointer of a packet of the plain form.
#[inline(always)]
fn advance(frame: &mut [u8]) {
    if let Some(outer) = frame.first_chunk_mut::<PROOFS>()
        && outer[CHECKSUM] | outer[CHECKSUM + 1] == 0
    {
        outer[HEAD] += 1;
    } else {
        // INVARIANT: a packet of the plain form is a UDP datagram with a pointer, so this can't fail.
        let packet = Packet::parse(frame);
        let _ = geneve::advance(frame, &packet);
    }
}

/// Returns the class of a receiver, one of 65 536. Most classes have no receiver that has withdrawn consent.
#[inline(always)]
fn class(receiver: u32) -> usize {
    (receiver.wrapping_mul(0x9e37_79b1) >> 16) as usize
}
