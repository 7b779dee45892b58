//! Issues path segments with their proofs, valid ones and invalid ones of every kind, with the authority's own key
//! (wire.md §8).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use wire::geneve::{Encapsulation, Payload};
use wire::map::{SegmentEntry, SegmentKey};
use wire::routing::{Hops, Lock, Routed};
use wire::{Ends, Epoch, InterfaceId, MasterKey, Proof, ProofKey, Segment, SegmentFlags, Suite, Vni};

use crate::mint::now;

/// Length of an epoch in seconds, the authority's default.
pub const EPOCH_LENGTH: u32 = 3600;
/// Maximum lifetime of a segment, in seconds.
pub const MAX_LIFETIME: u32 = 3600;
/// Default lifetime of a segment, in seconds.
const LIFETIME: u32 = 300;

/// Issues segments the way the authority does.
pub struct Giver {
    master: MasterKey,
    /// The authority's address.
    pub authority: IpAddr,
    /// The suite of the proofs.
    pub suite: Suite,
}

/// A segment, its proofs, and the values that the proofs are bound to.
#[derive(Clone, Debug)]
pub struct Minted {
    /// The segment.
    pub segment: Segment,
    /// Number of the virtual network.
    pub vni: Vni,
    /// Addresses of sender and receiver, and of their endpoints.
    pub ends: Ends,
    /// One proof for each verifier of the path.
    pub proofs: Vec<[u8; 16]>,
    /// The hops of the path, if it is fixed.
    pub hops: Option<Hops>,
}

impl Giver {
    /// Creates an issuer of segments with this master key.
    pub fn new(master: [u8; 32]) -> Self {
        let authority = Ipv4Addr::new(192, 0, 2, 1).into();
        Self { master: MasterKey::new(master), authority, suite: Suite::Siphash }
    }

    /// Returns the authority's proof key for a verifier at `time`, with the epoch of the key.
    pub fn key(&self, verifier: &str, time: u32) -> Result<(Epoch, ProofKey)> {
        let epoch = Epoch::at(time.into(), EPOCH_LENGTH);
        Ok((epoch, self.master.proof_key(verifier, self.authority, epoch).context("the verifier's id is too long")?))
    }

    /// Returns a segment for packets from the sender to the receiver in `ends`; `interface` is the receiver's
    /// interface. The segment is valid for all services or, if `service` (protocol and port) is given, for that service
    /// only. The caller can change the segment before it calls [`Self::prove`].
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

    /// Returns the segment with a proof for each of the verifiers in `path`.
    pub fn prove(&self, segment: Segment, vni: Vni, ends: Ends, path: &[&str]) -> Result<Minted> {
        let segment = Segment { count: u8::try_from(path.len())?, pointer: 0, ..segment };
        let proof = |(place, verifier): (u8, &&str)| {
            let (_, key) = self.key(verifier, now())?;
            Ok(Proof::new(&key, &Segment { pointer: place, ..segment }, vni, &ends).0)
        };
        let proofs = (0..).zip(path).map(proof).collect::<Result<_>>()?;
        Ok(Minted { segment, vni, ends, proofs, hops: None })
    }

    /// Returns the segment with a proof for each verifier of a fixed path. `path` gives the id and the hop of each
    /// verifier. Each proof except the first is XORed with the lock of the verifier before it.
    pub fn prove_along(&self, segment: Segment, vni: Vni, ends: Ends, path: &[(&str, Ipv6Addr)]) -> Result<Minted> {
        let hops: Vec<_> = path.iter().map(|(_, hop)| *hop).collect();
        let hops = Hops::new(&hops).context("a path has 1 to 5 hops")?;
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
    /// Returns the header that carries the segment and its proofs before a packet of the kind `payload`.
    pub fn encapsulation(&self, payload: Payload) -> Encapsulation<'_> {
        Encapsulation { control: false, payload, vni: self.vni, segment: self.segment, proofs: &self.proofs }
    }

    /// Returns the segment as a tunnel endpoint stores it: the key that selects packets of the tenant behind
    /// `interface`, and the headers to add.
    pub fn entry(&self, interface: u32) -> Result<(SegmentKey, SegmentEntry)> {
        let Ends { sending, receiving, sender, receiver } = self.ends;
        let payload = if sender.is_ipv4() { Payload::Ipv4 } else { Payload::Ipv6 };
        let entry = SegmentEntry::given(&self.encapsulation(payload), sending, receiving);
        let entry = self.hops.map_or(entry, |hops| entry.and_then(|entry| entry.along(&hops)));
        let entry = entry.context("the segment has a wrong number of proofs, or addresses of two families")?;
        Ok((SegmentKey::of(interface, sender, receiver, &self.segment), entry))
    }
}
