//! Proofs. A proof in a packet shows a verifier that the authority issued the packet's segment (wire.md §8.6).

use crate::inner::{Inner, Ports};
use crate::key::ProofKey;
use crate::mac::{self, MAC_LEN};
use crate::packet::Packet;
use crate::segment::{HEAD_LEN, PROOFS_MAX, Segment, SegmentFlags, Vni};
use core::net::IpAddr;

/// Length in bytes of the longest message that a proof covers: a message with IPv6 addresses and the maximum number of
/// hops.
pub const MESSAGE_MAX: usize = HEAD_LEN + (3 + PROOFS_MAX as usize) * 16;

/// The addresses to which a proof is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Source of the outer packet: the sending endpoint.
    pub sending: IpAddr,
    /// Destination of the outer packet: the receiving endpoint.
    pub receiving: IpAddr,
    /// Source of the inner packet.
    pub sender: IpAddr,
    /// Destination of the inner packet.
    pub receiver: IpAddr,
}

impl Ends {
    /// Returns the endpoints from `packet`, and the sender and receiver from its inner packet. Returns `None` if the
    /// parser did not find the addresses of `packet`.
    pub fn of(packet: &Packet, inner: &Inner) -> Option<Self> {
        Some(Self {
            sending: packet.source?,
            receiving: packet.destination?,
            sender: inner.sender,
            receiver: inner.receiver,
        })
    }

    /// Returns the flags by which a segment states the families of these addresses: IPv4 or IPv6.
    pub const fn flags(&self) -> SegmentFlags {
        SegmentFlags(0)
            .with(SegmentFlags::UNDERLAY6, self.receiving.is_ipv6())
            .with(SegmentFlags::IPV6, self.receiver.is_ipv6())
    }
}

/// The message that a proof covers: 32 to 144 bytes in a fixed buffer.
#[derive(Clone, Copy)]
pub struct Message {
    bytes: [u8; MESSAGE_MAX],
    len: usize,
}

impl Message {
    /// Builds the message for the verifier at the segment's pointer.
    pub fn new(segment: &Segment, vni: Vni, ends: &Ends) -> Self {
        let mut message = Self::begin(segment, vni, ends);
        message.push_address(ends.receiving);
        message.end(ends)
    }

    /// Builds the message for the verifier at the segment's pointer on a fixed path (wire.md §8.12.2).
    pub fn routed(segment: &Segment, vni: Vni, ends: &Ends, hops: &[[u8; 16]]) -> Self {
        let mut message = Self::begin(segment, vni, ends);
        message.push(hops.as_flattened());
        message.end(ends)
    }

    fn begin(segment: &Segment, vni: Vni, ends: &Ends) -> Self {
        let mut message = Self { bytes: [0; MESSAGE_MAX], len: 0 };
        let mut head = segment.head();
        [head[3], head[14], head[15]] = vni.bytes();
        message.push(&head);
        message.push_address(ends.sending);
        message
    }

    fn end(mut self, ends: &Ends) -> Self {
        self.push_address(ends.sender);
        self.push_address(ends.receiver);
        self
    }

    fn push_address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.push(&address.octets()),
            IpAddr::V6(address) => self.push(&address.octets()),
        }
    }

    fn push(&mut self, part: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + part.len()) {
            room.copy_from_slice(part);
            self.len += part.len();
        }
    }

    /// Returns the bytes that the MAC covers.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// A proof for one verifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof(pub [u8; MAC_LEN]);

impl Proof {
    /// Computes the proof for the verifier at the segment's pointer; `key` is that verifier's key.
    pub fn new(key: &ProofKey, segment: &Segment, vni: Vni, ends: &Ends) -> Self {
        Self(key.mac(segment.suite, Message::new(segment, vni, ends).bytes()))
    }

    /// Reports whether this proof is the one that `key` yields for the verifier at the segment's pointer. The
    /// comparison takes constant time.
    pub fn proves(&self, key: &ProofKey, segment: &Segment, vni: Vni, ends: &Ends) -> bool {
        mac::tags_equal(&self.0, &Self::new(key, segment, vni, ends).0)
    }
}

impl Segment {
    /// Reports whether the segment covers a packet whose inner packet is `inner`. If the ports of `inner` could not be
    /// read, only a segment for all services covers it.
    pub fn serves(&self, inner: &Inner) -> bool {
        if !self.flags.has(SegmentFlags::PORT) {
            return true;
        }
        let Ports::Shown(source, destination) = inner.ports else { return false };
        let (sender, service) =
            if self.flags.has(SegmentFlags::RETURN) { (destination, source) } else { (source, destination) };
        self.protocol == inner.protocol
            && self.port == service
            && (!self.flags.has(SegmentFlags::SINGLE) || self.sender_port == sender)
    }
}
