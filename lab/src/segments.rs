//! Path segments with their proofs, right and wrong in every way, made with the authority's own key (wire.md §8).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use wire::geneve::{Encapsulation, Payload};
use wire::map::{SegmentEntry, SegmentKey};
use wire::routing::{Hops, Lock, Routed};
use wire::{Ends, Epoch, InterfaceId, MasterKey, Proof, ProofKey, Segment, SegmentFlags, Suite, Vni};

use crate::mint::now;

/// Seconds an epoch lasts, as the authority's default.
pub const EPOCH_LENGTH: u32 = 3600;
/// The longest lifetime of a segment.
pub const MAX_LIFETIME: u32 = 3600;
/// How long one lives unless it is asked otherwise.
const LIFETIME: u32 = 300;

/// Makes segments as if the authority had given them.
pub struct Giver {
    master: MasterKey,
    /// The authority's address.
    pub authority: IpAddr,
    /// Which suite proofs are made with.
    pub suite: Suite,
}

/// A segment, its proofs, and what they are bound to.
#[derive(Clone, Debug)]
pub struct Minted {
    /// The segment.
    pub segment: Segment,
    /// The virtual network.
    pub vni: Vni,
    /// The addresses.
    pub ends: Ends,
    /// A proof for each verifier.
    pub proofs: Vec<[u8; 16]>,
    /// Where its path leads through, if it is fixed.
    pub hops: Option<Hops>,
}

impl Giver {
    /// An authority with this master key.
    pub fn new(master: [u8; 32]) -> Self {
        let authority = Ipv4Addr::new(192, 0, 2, 1).into();
        Self { master: MasterKey::new(master), authority, suite: Suite::Siphash }
    }

    /// Its key for a verifier and the epoch at this time.
    pub fn key(&self, verifier: &str, time: u32) -> Result<(Epoch, ProofKey)> {
        let epoch = Epoch::at(time.into(), EPOCH_LENGTH);
        Ok((epoch, self.master.proof_key(verifier, self.authority, epoch).context("a verifier's id is short")?))
    }

    /// A segment for these ends to an interface, to be changed before it is [proved](Self::prove).
    pub fn segment(&self, ends: &Ends, interface: InterfaceId, service: Option<(u8, u16)>) -> Segment {
        let (protocol, port) = service.unwrap_or_default();
        let flags = ends.flags().with(SegmentFlags::PORT, service.is_some());
        Segment {
            suite: self.suite,
            count: 0,
            pointer: 0,
            flags: flags.with(SegmentFlags::AUTHORITY6, self.authority.is_ipv6()),
            protocol,
            epoch: Epoch::at(now().into(), EPOCH_LENGTH).on_wire(),
            expires: now() + LIFETIME,
            interface,
            port,
            sender_port: 0,
            authority: self.authority,
        }
    }

    /// The segment with a proof for each of these verifiers.
    pub fn prove(&self, segment: Segment, vni: Vni, ends: Ends, path: &[&str]) -> Result<Minted> {
        let segment = Segment { count: u8::try_from(path.len())?, pointer: 0, ..segment };
        let proof = |(place, verifier): (u8, &&str)| {
            let (_, key) = self.key(verifier, now())?;
            Ok(Proof::new(&key, &Segment { pointer: place, ..segment }, vni, &ends).0)
        };
        let proofs = (0..).zip(path).map(proof).collect::<Result<_>>()?;
        Ok(Minted { segment, vni, ends, proofs, hops: None })
    }

    /// The same along a fixed path, with an address of each verifier: its proofs closed but the first.
    pub fn prove_along(&self, segment: Segment, vni: Vni, ends: Ends, path: &[(&str, Ipv6Addr)]) -> Result<Minted> {
        let hops: Vec<_> = path.iter().map(|(_, hop)| *hop).collect();
        let hops = Hops::new(&hops).context("1 to 5 hops")?;
        let flags = segment.flags.with(SegmentFlags::ROUTED, true);
        let segment = Segment { count: u8::try_from(path.len())?, pointer: 0, flags, ..segment };
        let (mut proofs, mut lock): (Vec<[u8; 16]>, Option<Lock>) = (Vec::new(), None);
        for (pointer, (verifier, _)) in (0..).zip(path) {
            let (_, key) = self.key(verifier, now())?;
            let segment = Segment { pointer, ..segment };
            let routed = Routed { segment: &segment, vni, ends: &ends, hops: &hops };
            let mut proof = routed.proof(&key).0;
            if let Some(lock) = lock.replace(routed.lock(&key)) {
                lock.turn(&mut proof);
            }
            proofs.push(proof);
        }
        Ok(Minted { segment, vni, ends, proofs, hops: Some(hops) })
    }
}

impl Minted {
    /// The header that carries it.
    pub fn encapsulation(&self, payload: Payload) -> Encapsulation<'_> {
        Encapsulation { payload, vni: self.vni, segment: self.segment, proofs: &self.proofs }
    }

    /// What a tunnel endpoint is told of it: which packets of the tenant behind an interface it is for, and their headers.
    pub fn entry(&self, interface: u32) -> Result<(SegmentKey, SegmentEntry)> {
        let Ends { sending, receiving, sender, receiver } = self.ends;
        let payload = if sender.is_ipv4() { Payload::Ipv4 } else { Payload::Ipv6 };
        let entry = SegmentEntry::given(&self.encapsulation(payload), sending, receiving);
        let entry = self.hops.map_or(entry, |hops| entry.and_then(|entry| entry.along(&hops)));
        let entry = entry.context("a segment whose number of proofs and families are right")?;
        Ok((SegmentKey::of(interface, sender, receiver, &self.segment), entry))
    }
}
