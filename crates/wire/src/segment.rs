//! Wire format of path segments (wire.md §8.4, §8.5). A segment is the content of a Geneve option without the proofs.

use crate::drop_reason::DropReason;
use crate::mac::Suite;
use core::net::IpAddr;

/// Length in bytes of a segment's fixed head, which precedes the authority's address.
pub const HEAD_LEN: usize = 16;
/// Maximum number of proofs in a packet. If the authority's address is IPv6, a Geneve option has no room for more
/// proofs.
pub const PROOFS_MAX: u8 = 5;

/// The number of a virtual network: 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vni(u32);

impl Vni {
    /// Returns the network with this number, unless the number has more than 24 bits.
    pub const fn new(number: u32) -> Option<Self> {
        if number >> 24 == 0 { Some(Self(number)) } else { None }
    }

    /// Returns the network's number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the number as its three bytes on the wire.
    pub const fn bytes(self) -> [u8; 3] {
        let [_, bytes @ ..] = self.0.to_be_bytes();
        bytes
    }
}

impl From<[u8; 3]> for Vni {
    fn from([a, b, c]: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, a, b, c]))
    }
}

/// The number of an interface behind a receiving endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceId(pub u16);

/// The flags of a segment (wire.md §8.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SegmentFlags(pub u8);

impl SegmentFlags {
    /// The segment is for one protocol and port.
    pub const PORT: Self = Self(1);
    /// The segment is for answers to received packets.
    pub const RETURN: Self = Self(2);
    /// The receiver is allowed to answer.
    pub const REPLY: Self = Self(4);
    /// The segment is for one flow only.
    pub const SINGLE: Self = Self(8);
    /// The endpoints' addresses are IPv6.
    pub const UNDERLAY6: Self = Self(16);
    /// Sender's and receiver's addresses are IPv6.
    pub const IPV6: Self = Self(32);
    /// The authority's address is IPv6.
    pub const AUTHORITY6: Self = Self(64);
    /// The path is fixed.
    pub const ROUTED: Self = Self(128);

    /// Reports whether every flag of `other` is set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the flags of `self` and, if `set` is true, also those of `other`.
    pub const fn with(self, other: Self, set: bool) -> Self {
        if set { Self(self.0 | other.0) } else { self }
    }
}

/// A path segment without its proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The MAC suite of the proofs.
    pub suite: Suite,
    /// Number of proofs that travel with the segment.
    pub count: u8,
    /// Number of verifiers that have already checked their proofs. This number selects the verifier that checks its
    /// proof next.
    pub pointer: u8,
    /// The segment's flags.
    pub flags: SegmentFlags,
    /// The protocol; 0 if the flag [`SegmentFlags::PORT`] is not set.
    pub protocol: u8,
    /// The low 8 bits of the number of the epoch whose proof keys made the proofs.
    pub epoch: u8,
    /// Expiry of the segment, Unix seconds.
    pub expires: u32,
    /// The number of the receiver's interface.
    pub interface: InterfaceId,
    /// The service's port; 0 if the flag [`SegmentFlags::PORT`] is not set.
    pub port: u16,
    /// The port of the end that opened the flow; 0 if the flag [`SegmentFlags::SINGLE`] is not set.
    pub sender_port: u16,
    /// Address of the authority that issued the segment.
    pub authority: IpAddr,
}

impl Segment {
    /// Returns the bytes before the authority's address.
    pub fn head(&self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        bytes[0] = (self.suite as u8) << 6 | (self.count & 7) << 3 | self.pointer & 7;
        bytes[1] = self.flags.0;
        bytes[2] = self.protocol;
        bytes[3] = self.epoch;
        bytes[4..8].copy_from_slice(&self.expires.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.interface.0.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.port.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.sender_port.to_be_bytes());
        bytes
    }

    /// Parses the option's data. Returns the segment and the proofs, which are the rest of the data.
    ///
    /// # Errors
    ///
    /// Returns `Malformed`, or `UnknownSuite` if only the suite is unknown.
    pub fn decode(data: &[u8]) -> Result<(Self, &[[u8; 16]]), DropReason> {
        let (head, rest) = data.split_first_chunk::<HEAD_LEN>().ok_or(DropReason::Malformed)?;
        let [first, flags, protocol, epoch, e0, e1, e2, e3, i0, i1, p0, p1, s0, s1, z0, z1] = *head;
        let flags = SegmentFlags(flags);
        let (authority, rest) = if flags.has(SegmentFlags::AUTHORITY6) {
            let (address, rest) = rest.split_first_chunk::<16>().ok_or(DropReason::Malformed)?;
            (IpAddr::from(*address), rest)
        } else {
            let (address, rest) = rest.split_first_chunk::<4>().ok_or(DropReason::Malformed)?;
            (IpAddr::from(*address), rest)
        };
        let (count, pointer) = (first >> 3 & 7, first & 7);
        let (port, sender_port) = (u16::from_be_bytes([p0, p1]), u16::from_be_bytes([s0, s1]));
        let (proofs, none) = rest.as_chunks::<16>();
        let (with_port, single) = (flags.has(SegmentFlags::PORT), flags.has(SegmentFlags::SINGLE));
        let is_well_formed = none.is_empty()
            && proofs.len() == usize::from(count)
            && pointer < count
            && count <= PROOFS_MAX
            && (!flags.has(SegmentFlags::ROUTED) || flags.has(SegmentFlags::UNDERLAY6))
            && !flags.has(SegmentFlags(SegmentFlags::RETURN.0 | SegmentFlags::REPLY.0))
            && (with_port || (protocol, port) == (0, 0) && !single)
            && (single || sender_port == 0)
            && (z0, z1) == (0, 0);
        if !is_well_formed {
            return Err(DropReason::Malformed);
        }
        let segment = Self {
            suite: Suite::from_number(first >> 6).ok_or(DropReason::UnknownSuite)?,
            count,
            pointer,
            flags,
            protocol,
            epoch,
            expires: u32::from_be_bytes([e0, e1, e2, e3]),
            interface: InterfaceId(u16::from_be_bytes([i0, i1])),
            port,
            sender_port,
            authority,
        };
        Ok((segment, proofs))
    }
}
