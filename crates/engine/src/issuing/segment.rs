//! Issues path segments on a rule's terms, with a proof for each verifier on the path (wire.md §8), and return segments
//! for received segments. Keys and time are arguments.

mod route;

use super::grant::CLOCK_MARGIN;
use crate::model::{Given, Place};
use crate::policy::{Scope, Terms};
use std::fmt;
use std::net::IpAddr;
use wire::segment::PROOFS_MAX;
use wire::{Destination, Ends, Epoch, Proof, ProofKey, Segment, SegmentFlags, Suite, Vni};

/// Data of the authority that issues a segment: its address, settings and keys.
#[derive(Clone, Copy)]
pub struct Giver<'a> {
    /// The address that identifies the authority in its segments.
    pub authority: IpAddr,
    /// The suite of the proofs.
    pub suite: Suite,
    /// For each verifier on the path, its key for the epoch of `now`. The order is that in which packets pass the
    /// verifiers.
    pub path: &'a [ProofKey],
    /// The current time, in Unix seconds.
    pub now: u64,
    /// Length of an epoch, in seconds.
    pub epoch_length: u32,
    /// The longest lifetime that verifiers accept, in seconds.
    pub max_lifetime: u32,
}

/// A request for a segment, with the data from which the segment is issued.
pub struct Give<'a> {
    /// Address, settings and keys of the authority that issues the segment.
    pub giver: Giver<'a>,
    /// The terms on which the policy allows the segment.
    pub terms: Terms,
    /// The services that the segment is allowed to cover: all, or one. The segment is for one receiver only, even if
    /// the scope contains several addresses.
    pub scope: Scope,
    /// The latest time at which the segment may end. The terms can end it earlier. `None` if only the terms limit its
    /// lifetime.
    pub until: Option<u64>,
    /// The latest expiry of the segments that a withdrawal of consent voids; `None` if there is no withdrawal (wire.md
    /// §8.10). The new segment has to expire later.
    pub withdrawn: Option<u32>,
    /// The number of the virtual network.
    pub vni: Vni,
    /// Address of the sender in the virtual network.
    pub sender: IpAddr,
    /// The endpoint from which the sender's packets come.
    pub sending: IpAddr,
    /// The port from which the sender sends; used only if the terms limit the segment to a single flow.
    pub sender_port: u16,
    /// The destination to which the sender wants to send.
    pub to: Destination,
    /// The receiver's tunnel endpoint, and the receiver's interface there.
    pub receiving: Place,
}

/// Reason why a segment can't be issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveError {
    /// The path has no verifier, or more verifiers than an option has room for, or the hops of a fixed path don't match
    /// its verifiers.
    Path,
    /// The two endpoints, or the sender and the receiver, are of different address families.
    Family,
    /// The time does not fit into the 32 bits that the format has.
    Time,
    /// Consent was withdrawn, and the new segment would expire no later than the segments that the withdrawal voids.
    Withdrawn,
    /// The sender of the segment to be answered did not consent to answers.
    NoConsent,
    /// The segment to be answered has expired.
    Expired,
    /// This authority did not issue the segment to be answered, or the segment's sender now has another place.
    Forged,
}

impl fmt::Display for GiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path => write!(
                f,
                "a path must have 1 to {PROOFS_MAX} verifiers; a fixed path needs the IPv6 address of each \
                 verifier, and the last address must be that of the receiving endpoint"
            ),
            Self::Family => f.write_str("sender and receiver, or their endpoints, are of different address families"),
            Self::Time => f.write_str("the authority's clock is later than the latest time that a segment can express"),
            Self::Withdrawn => f.write_str("consent was withdrawn; request again when earlier segments have expired"),
            Self::NoConsent => f.write_str("the sender did not consent to answers"),
            Self::Expired => f.write_str("the segment to be answered has expired"),
            Self::Forged => f.write_str("this authority did not issue the segment to be answered"),
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
    /// Issues the segment.
    ///
    /// # Errors
    ///
    /// Returns the reason why the segment can't be issued.
    pub fn give(&self) -> Result<Given, GiveError> {
        let Self { giver, terms, scope, .. } = self;
        let lifetime = terms.lifetime.min(giver.max_lifetime - CLOCK_MARGIN.min(giver.max_lifetime / 2));
        let expires = giver.now.saturating_add(lifetime.into());
        // A withdrawal may void segments that end as late as the new one would. The new one has to end after them.
        let expires = self.withdrawn.map_or(expires, |until| expires.max(u64::from(until) + 1));
        let expires = self.until.map_or(expires, |until| until.min(expires));
        if expires > giver.now.saturating_add(giver.max_lifetime.into()) || self.withdraws(expires) {
            return Err(GiveError::Withdrawn);
        }
        // A single flow belongs to one service.
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
    /// Issues the return segment for the segment `self`. Either the receiver of packets with `self` has presented
    /// `self` to the authority (wire.md §8.11), or the authority has just issued `self` (§8.15). `first` is the key of
    /// the first verifier of `self`, for the epoch of `self`. `back` is the place of the sender of `self`. `until` is
    /// the latest time at which the new segment is allowed to end. The new segment's path is not fixed. The caller has
    /// to check whether a withdrawal voids `self`.
    ///
    /// # Errors
    ///
    /// Returns the reason why the return segment can't be issued.
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
