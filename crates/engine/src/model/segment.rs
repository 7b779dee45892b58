//! Path segments (wire.md §8) in the form in which their holders have them, and requests for path segments.

use std::net::{IpAddr, Ipv6Addr};
use wire::geneve::{ENCAPSULATION_MAX, Encapsulation, HEADER_LEN, Payload};
use wire::{Destination, DropReason, Ends, InterfaceId, Segment, SegmentFlags, Vni};

/// The location of an address of a virtual network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Tunnel endpoint in front of the address.
    pub endpoint: IpAddr,
    /// Interface of the address at that endpoint.
    pub interface: InterfaceId,
}

/// A request for a segment for a sender of a virtual network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRequest {
    /// Name of the virtual network.
    pub network: String,
    /// Address of the sender in the virtual network.
    pub sender: IpAddr,
    /// The endpoint from which the sender's packets come.
    pub sending: IpAddr,
    /// The destination to which the sender wants to send.
    pub to: Destination,
    /// The port from which the sender sends; used only if the rule limits segments to single flows.
    pub sender_port: u16,
    /// The number of the path that the segment has to take (wire.md §8.16). 0 is the first path.
    pub path: u8,
}

/// A segment with its proofs, and the values to which the proofs are bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The segment without its proofs.
    pub segment: Segment,
    /// The number of the virtual network.
    pub vni: Vni,
    /// The four addresses: those of the two endpoints, of the sender and of the receiver.
    pub ends: Ends,
    /// The proofs, one for each verifier.
    pub proofs: Vec<[u8; 16]>,
    /// If the path is fixed, one address for each verifier, in order; the last address is that of the receiving
    /// endpoint. Empty if the path is not fixed.
    pub hops: Vec<Ipv6Addr>,
}

impl Given {
    /// Parses the Geneve option of a segment. `option` begins with the option's class. `hops` contains the hops of a
    /// fixed path; it is empty if the path is not fixed.
    ///
    /// # Errors
    ///
    /// Returns the reason why a verifier would drop a packet with this option.
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

    /// Returns the Geneve option that carries the segment; the bytes begin with the option's class.
    pub fn option(&self) -> Vec<u8> {
        let mut room = [0; ENCAPSULATION_MAX];
        let len = self.encapsulation(Payload::Ipv4).encode(&mut room).unwrap_or(HEADER_LEN);
        room.get(HEADER_LEN..len).unwrap_or_default().to_vec()
    }

    /// Returns the Geneve header that carries the segment.
    pub fn encapsulation(&self, payload: Payload) -> Encapsulation<'_> {
        Encapsulation { control: false, payload, vni: self.vni, segment: self.segment, proofs: &self.proofs }
    }
}
