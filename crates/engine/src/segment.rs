//! Gives path segments on a rule's terms, with a proof for each verifier on the path (wire.md §8); and segments for answers
//! to those that consented to them. Keys and time are passed in.

mod route;

use crate::issue::CLOCK_MARGIN;
use crate::policy::{Scope, Terms};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use wire::geneve::{ENCAPSULATION_MAX, Encapsulation, HEADER_LEN, Payload};
use wire::segment::PROOFS_MAX;
use wire::{Destination, DropReason, Ends, Epoch, InterfaceId, Proof, ProofKey, Segment, SegmentFlags, Suite, Vni};

/// Where an address of a virtual network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The endpoint before it.
    pub endpoint: IpAddr,
    /// Its interface there.
    pub interface: InterfaceId,
}

/// What the authority knows whenever it gives a segment.
#[derive(Clone, Copy)]
pub struct Giver<'a> {
    /// Its address, as segments name it.
    pub authority: IpAddr,
    /// The suite of the proofs.
    pub suite: Suite,
    /// The keys of the verifiers on the path for the epoch of `now`, in the packets' order.
    pub path: &'a [ProofKey],
    /// Unix seconds.
    pub now: u64,
    /// Seconds an epoch lasts.
    pub epoch_length: u32,
    /// The longest lifetime that verifiers accept, seconds.
    pub max_lifetime: u32,
}

/// What a segment is made of.
pub struct Give<'a> {
    /// Who gives it.
    pub giver: Giver<'a>,
    /// The terms on which it may be given.
    pub terms: Terms,
    /// What it may cover: for all services, or one. It is for one receiver, however wide.
    pub scope: Scope,
    /// When it has to end, if its terms alone don't say so.
    pub until: Option<u64>,
    /// What ends then or before is void (wire.md §8.10).
    pub withdrawn: Option<u32>,
    /// The virtual network.
    pub vni: Vni,
    /// Who asks.
    pub sender: IpAddr,
    /// The endpoint through which the sender sends.
    pub sending: IpAddr,
    /// The port that the sender sends from, which counts where the terms give single flows.
    pub sender_port: u16,
    /// Where to.
    pub to: Destination,
    /// Where the receiver is.
    pub receiving: Place,
}

/// A segment with its proofs, and what they are bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The segment.
    pub segment: Segment,
    /// The virtual network.
    pub vni: Vni,
    /// The addresses.
    pub ends: Ends,
    /// A proof for each verifier.
    pub proofs: Vec<[u8; 16]>,
    /// Where the path is fixed, an address of each verifier, the last of them the receiving endpoint; else none.
    pub hops: Vec<Ipv6Addr>,
}

/// Why a segment can't be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveError {
    /// No verifier is on the path, or more than an option has room for; or the hops of a fixed one are not those of its
    /// verifiers.
    Path,
    /// The addresses of one pair are of two families.
    Family,
    /// The time doesn't fit the format's 32 bits.
    Time,
    /// What was withdrawn would end as late: not before that can there be more.
    Withdrawn,
    /// What is to be answered did not consent to it.
    NoConsent,
    /// What is to be answered has ended.
    Expired,
    /// What is to be answered is not the authority's own, or not from there.
    Forged,
}

impl fmt::Display for GiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path => write!(
                f,
                "a path has 1 to {PROOFS_MAX} verifiers; a fixed one leads through an IPv6 address of each, the last one \
                 the receiving endpoint's"
            ),
            Self::Family => f.write_str("sender and receiver, or their endpoints, are of different address families"),
            Self::Time => f.write_str("the authority's clock is beyond what segments can express"),
            Self::Withdrawn => f.write_str("consent was withdrawn; ask again when what was given before has ended"),
            Self::NoConsent => f.write_str("the sender did not consent to answers"),
            Self::Expired => f.write_str("the segment to be answered has ended"),
            Self::Forged => f.write_str("the segment to be answered is not one of this authority's"),
        }
    }
}

impl std::error::Error for GiveError {}

impl Giver<'_> {
    fn give(&self, segment: Segment, vni: Vni, ends: Ends) -> Result<Given, GiveError> {
        let count = u8::try_from(self.path.len()).ok().filter(|count| (1..=PROOFS_MAX).contains(count));
        if ends.sending.is_ipv6() != ends.receiving.is_ipv6() || ends.sender.is_ipv6() != ends.receiver.is_ipv6() {
            return Err(GiveError::Family);
        }
        let flags = segment.flags.with(ends.flags(), true).with(SegmentFlags::AUTHORITY6, self.authority.is_ipv6());
        let segment = Segment { count: count.ok_or(GiveError::Path)?, pointer: 0, flags, ..segment };
        let proof = |(place, key)| Proof::new(key, &Segment { pointer: place, ..segment }, vni, &ends).0;
        let proofs = (0..).zip(self.path).map(proof).collect();
        Ok(Given { segment, vni, ends, proofs, hops: Vec::new() })
    }
}

impl Give<'_> {
    /// Gives the segment.
    pub fn give(&self) -> Result<Given, GiveError> {
        let Self { giver, terms, scope, .. } = self;
        let lifetime = terms.lifetime.min(giver.max_lifetime - CLOCK_MARGIN.min(giver.max_lifetime / 2));
        let expires = giver.now.saturating_add(lifetime.into());
        // What was withdrawn may end as late as what would be given instead.
        let expires = self.withdrawn.map_or(expires, |until| expires.max(u64::from(until) + 1));
        let expires = self.until.map_or(expires, |until| until.min(expires));
        if expires > giver.now.saturating_add(giver.max_lifetime.into()) || self.withdraws(expires) {
            return Err(GiveError::Withdrawn);
        }
        // A single flow is one of one service.
        let service = scope.service.or(terms.single.then_some((self.to.protocol, self.to.port)));
        let (protocol, port) = service.unwrap_or_default();
        let flags = SegmentFlags::default()
            .with(SegmentFlags::PORT, service.is_some())
            .with(SegmentFlags::SINGLE, terms.single)
            .with(SegmentFlags::REPLY, terms.reply);
        let segment = Segment {
            suite: giver.suite,
            count: 0,
            pointer: 0,
            flags,
            protocol,
            epoch: Epoch::at(giver.now, giver.epoch_length).on_wire(),
            expires: u32::try_from(expires).map_err(|_| GiveError::Time)?,
            interface: self.receiving.interface,
            port,
            sender_port: if terms.single { self.sender_port } else { 0 },
            authority: giver.authority,
        };
        let receiving = self.receiving.endpoint;
        giver.give(
            segment,
            self.vni,
            Ends { sending: self.sending, receiving, sender: self.sender, receiver: self.to.address },
        )
    }

    fn withdraws(&self, expires: u64) -> bool {
        self.withdrawn.is_some_and(|until| expires <= until.into())
    }
}

impl Given {
    /// Reads the Geneve option of a segment, from its class on, with the hops of its path if that is fixed.
    pub fn from_option(option: &[u8], vni: Vni, ends: Ends, hops: Vec<Ipv6Addr>) -> Result<Self, DropReason> {
        let words = u8::try_from(option.len() / 4).ok().filter(|words| *words < 64).ok_or(DropReason::Malformed)?;
        let [v0, v1, v2] = vni.bytes();
        let [p0, p1] = (Payload::Ipv4 as u16).to_be_bytes();
        let header = [words, Encapsulation::CRITICAL, p0, p1, v0, v1, v2, 0];
        let bytes = [&header, option].concat();
        let (Encapsulation { segment, proofs, .. }, rest) = Encapsulation::decode(&bytes)?;
        if !rest.is_empty() {
            return Err(DropReason::Malformed);
        }
        let families = SegmentFlags::UNDERLAY6.0 | SegmentFlags::IPV6.0;
        let expected = if segment.flags.has(SegmentFlags::ROUTED) { proofs.len() } else { 0 };
        let leads = hops.last().is_none_or(|last| IpAddr::V6(*last) == ends.receiving);
        if segment.flags.0 & families != ends.flags().0 || hops.len() != expected || !leads {
            return Err(DropReason::Malformed);
        }
        Ok(Self { segment, vni, ends, proofs: proofs.to_vec(), hops })
    }

    /// The Geneve option that carries it, from its class on.
    pub fn option(&self) -> Vec<u8> {
        let mut room = [0; ENCAPSULATION_MAX];
        let len = self.encapsulation(Payload::Ipv4).encode(&mut room).unwrap_or(HEADER_LEN);
        room.get(HEADER_LEN..len).unwrap_or_default().to_vec()
    }

    /// The header that carries it.
    pub fn encapsulation(&self, payload: Payload) -> Encapsulation<'_> {
        Encapsulation { payload, vni: self.vni, segment: self.segment, proofs: &self.proofs }
    }

    /// Gives the segment for answers to this one, which its receiver shows (wire.md §8.11). `first` is the key of this
    /// one's first verifier for its epoch, and `back` where its sender is. Whether a withdrawal voids this one is the
    /// caller's to ask. The answer ends by `until`; its own path is not fixed.
    pub fn answer(&self, giver: &Giver<'_>, first: &ProofKey, back: Place, until: u64) -> Result<Self, GiveError> {
        let shown = Segment { pointer: 0, ..self.segment };
        let proof = self.proofs.first().map(|bytes| Proof(*bytes));
        let is_ours = shown.authority == giver.authority
            && back.endpoint == self.ends.sending
            && proof.is_some_and(|proof| self.is_proved(&proof, &shown, first));
        if !is_ours {
            return Err(GiveError::Forged);
        }
        if !shown.flags.has(SegmentFlags::REPLY) {
            return Err(GiveError::NoConsent);
        }
        if u64::from(shown.expires) <= giver.now {
            return Err(GiveError::Expired);
        }
        let kept = SegmentFlags(shown.flags.0 & (SegmentFlags::PORT.0 | SegmentFlags::SINGLE.0));
        let segment = Segment {
            suite: giver.suite,
            expires: u32::try_from(until).map_or(shown.expires, |until| until.min(shown.expires)),
            flags: kept.with(SegmentFlags::RETURN, true),
            epoch: Epoch::at(giver.now, giver.epoch_length).on_wire(),
            interface: back.interface,
            ..shown
        };
        let Ends { sending, receiving, sender, receiver } = self.ends;
        giver.give(
            segment,
            self.vni,
            Ends { sending: receiving, receiving: sending, sender: receiver, receiver: sender },
        )
    }
}

#[cfg(test)]
mod tests;
