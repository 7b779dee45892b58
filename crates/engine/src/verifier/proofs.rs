//! The decision that a verifier of proofs makes about a packet (wire.md §8.8). The decision is a function of the
//! packet, the verifier's keys, withdrawn consent and the time.
//!
//! The table of test cases `crates/wire/tests/data/proofs.json` was made independently of this code. Tests run these
//! cases through this code and through every other verifier of proofs.

pub use crate::model::Withdrawal;

use crate::model::Withdrawals;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use wire::geneve::{self, Encapsulation};
use wire::inner::Ports;
use wire::packet::{Form, Fragment, Packet, UDP};
use wire::routing::{self, Hops, Lock, Routed};
use wire::{DropReason, Ends, Epoch, Inner, Proof, ProofKey, Segment, SegmentFlags, Vni};

/// Outcome of the decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The packet is not addressed to an endpoint of this verifier: it passes unchanged.
    NotOurs,
    /// The proof is valid: the packet passes with its pointer advanced.
    Proved,
    /// The packet is dropped.
    Drop(DropReason),
}

/// A verifier that checks the proofs of packets.
#[derive(Clone)]
pub struct Verifier {
    /// Addresses of the endpoints before which the verifier stands.
    pub endpoints: Vec<IpNet>,
    /// Length of an epoch, in seconds.
    pub epoch_length: u32,
    /// Maximum remaining lifetime of a segment, in seconds.
    pub max_lifetime: u32,
    /// Proof keys, by authority and epoch.
    pub keys: BTreeMap<(IpAddr, Epoch), ProofKey>,
    withdrawn: Withdrawals,
}

impl Verifier {
    /// Creates a verifier without keys.
    pub fn new(endpoints: Vec<IpNet>, epoch_length: u32, max_lifetime: u32) -> Self {
        Self { endpoints, epoch_length, max_lifetime, keys: BTreeMap::new(), withdrawn: Withdrawals::default() }
    }

    /// Adds a withdrawal, which voids the segments that expire at `until` or before.
    pub fn withdraw(&mut self, what: Withdrawal, until: u32) {
        self.withdrawn.add(what, until);
    }

    /// Removes withdrawals that void only expired segments.
    pub fn sweep(&mut self, now: u32) {
        self.withdrawn.sweep(now);
    }

    /// Iterates over the withdrawals in force, each with the latest expiry of the segments that it voids.
    pub fn withdrawals(&self) -> impl Iterator<Item = (&Withdrawal, u32)> {
        self.withdrawn.iter()
    }

    /// Decides about an Ethernet frame at `now` (Unix seconds), and advances the segment's pointer if the frame passes.
    pub fn verify(&self, frame: &mut [u8], now: u32) -> Outcome {
        match self.packet(frame, now) {
            Ok(outcome) => outcome,
            Err(reason) => Outcome::Drop(reason),
        }
    }

    fn is_endpoint(&self, address: IpAddr) -> bool {
        self.endpoints.iter().any(|prefix| prefix.contains(&address))
    }

    fn packet(&self, frame: &mut [u8], now: u32) -> Result<Outcome, DropReason> {
        let packet = Packet::parse(frame);
        if packet.form == Form::NotIp {
            return Ok(Outcome::NotOurs);
        }
        let destination = packet.destination.ok_or(DropReason::Malformed)?;
        let is_led = packet.route.unknown || packet.route.addresses().iter().any(|address| self.is_endpoint(*address));
        let to_port = packet.protocol == UDP && packet.destination_port == geneve::PORT;
        let whole = packet.form == Form::Whole && packet.fragment == Fragment::Whole;
        if is_led && !(whole && to_port && self.is_endpoint(destination)) {
            return Err(DropReason::Malformed);
        }
        if !self.is_endpoint(destination) {
            return Ok(Outcome::NotOurs);
        }
        if packet.form == Form::Broken {
            return Err(DropReason::Malformed);
        }
        match packet.fragment {
            Fragment::Later(_) if packet.protocol == UDP => return Err(DropReason::Fragment),
            Fragment::First(_) if to_port => return Err(DropReason::Fragment),
            Fragment::Whole if to_port => {}
            _ => return Ok(Outcome::NotOurs),
        }
        if let Some((segment, lock)) = self.datagram(frame, &packet, is_led, now)? {
            routing::open_next(frame, &packet, &segment, &lock).ok_or(DropReason::Malformed)?;
        }
        geneve::advance(frame, &packet).ok_or(DropReason::Malformed)?;
        Ok(Outcome::Proved)
    }

    /// Verifies the datagram. If the path is fixed, returns the segment and the lock that uncovers the next proof.
    fn datagram(
        &self,
        frame: &[u8],
        packet: &Packet,
        is_led: bool,
        now: u32,
    ) -> Result<Option<(Segment, Lock)>, DropReason> {
        let datagram = frame.get(packet.transport..packet.end).ok_or(DropReason::Malformed)?;
        let length = datagram.get(4..).and_then(<[u8]>::first_chunk).ok_or(DropReason::Malformed)?;
        if usize::from(u16::from_be_bytes(*length)) != datagram.len() {
            return Err(DropReason::Malformed);
        }
        let payload = frame.get(packet.payload..packet.end).ok_or(DropReason::Malformed)?;
        let (encapsulation, inner) = Encapsulation::decode(payload)?;
        let inner = Inner::parse(encapsulation.payload, inner)?;
        let ends = Ends::of(packet, &inner).ok_or(DropReason::Malformed)?;
        let hops = match encapsulation.segment.flags.has(SegmentFlags::ROUTED) {
            true => Some(Hops::of(frame, packet, &encapsulation.segment).ok_or(DropReason::Malformed)?),
            false if is_led => return Err(DropReason::Malformed),
            false => None,
        };
        self.proof(&encapsulation, &inner, &ends, hops.as_ref(), now)
    }

    fn proof(
        &self,
        of: &Encapsulation<'_>,
        inner: &Inner,
        ends: &Ends,
        hops: Option<&Hops>,
        now: u32,
    ) -> Result<Option<(Segment, Lock)>, DropReason> {
        let (segment, vni) = (&of.segment, of.vni);
        let routed = hops.map(|hops| Routed { segment, vni, ends, hops });
        let families = SegmentFlags::UNDERLAY6.0 | SegmentFlags::IPV6.0;
        let with_port = segment.flags.has(SegmentFlags::PORT);
        if segment.flags.0 & families != ends.flags().0 || with_port && inner.ports == Ports::Cut {
            return Err(DropReason::Malformed);
        }
        if with_port && inner.ports == Ports::Hidden {
            return Err(DropReason::Fragment);
        }
        let epoch = Epoch::at(now.into(), self.epoch_length.max(1)).from_wire(segment.epoch);
        let key = epoch.and_then(|epoch| self.keys.get(&(segment.authority, epoch)));
        let key = key.ok_or(DropReason::UnknownEpoch)?;
        if segment.expires <= now {
            return Err(DropReason::Expired);
        }
        if segment.expires - now > self.max_lifetime {
            return Err(DropReason::LifetimeTooLong);
        }
        let proof = of.proofs.get(usize::from(segment.pointer)).map(|bytes| Proof(*bytes));
        let is_proved = |proof: Proof| match &routed {
            Some(routed) => routed.is_proved(&proof, key),
            None => proof.proves(key, segment, vni, ends),
        };
        if !segment.serves(inner) || !proof.is_some_and(is_proved) {
            return Err(DropReason::BadTag);
        }
        if self.is_withdrawn(vni, ends.sender, ends.receiver, segment.expires) {
            return Err(DropReason::Revoked);
        }
        Ok(routed.map(|routed| (*segment, routed.lock(key))))
    }

    /// Reports whether a withdrawal voids segments between this sender and receiver that expire at `expires`.
    pub fn is_withdrawn(&self, vni: Vni, sender: IpAddr, receiver: IpAddr, expires: u32) -> bool {
        self.withdrawn.void(vni, sender, receiver, expires)
    }
}
