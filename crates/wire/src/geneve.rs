//! Geneve headers with the one option that carries a segment and its proofs (RFC 8926, wire.md §8.3, §8.4, §8.9).

use crate::checksum;
use crate::drop_reason::DropReason;
use crate::packet::{Packet, UDP};
use crate::segment::{HEAD_LEN, Segment, Vni};
use core::net::IpAddr;

/// Geneve's UDP port.
pub const PORT: u16 = 6081;
/// Length of Geneve's header without options, in bytes.
pub const HEADER_LEN: usize = 8;
/// Length of an option's header, in bytes.
pub const OPTION_HEADER_LEN: usize = 4;
/// Class of the option with the segment and its proofs, from the experimental range.
pub const OPTION_CLASS: u16 = 0xff53;
/// Type of the option with the segment and its proofs. The critical bit is set: a receiver that does not know the
/// option has to drop the packet.
pub const OPTION_TYPE: u8 = 0x81;
/// Offset of the authority's address from the start of Geneve's header; the proofs follow the address.
pub(crate) const PROOFS_AT: usize = HEADER_LEN + OPTION_HEADER_LEN + HEAD_LEN;
/// Maximum length in bytes of Geneve's header with the option that carries a segment and its proofs.
pub const ENCAPSULATION_MAX: usize = HEADER_LEN + OPTION_HEADER_LEN + HEAD_LEN + 16 + 5 * 16;

/// Type of the packet that an encapsulation contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Payload {
    /// An IPv4 packet.
    Ipv4 = 0x0800,
    /// An IPv6 packet.
    Ipv6 = 0x86dd,
    /// An Ethernet frame.
    Ethernet = 0x6558,
}

impl Payload {
    const fn from_number(number: u16) -> Option<Self> {
        match number {
            0x0800 => Some(Self::Ipv4),
            0x86dd => Some(Self::Ipv6),
            0x6558 => Some(Self::Ethernet),
            _ => None,
        }
    }
}

/// Geneve's header with a segment and its proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encapsulation<'a> {
    /// Whether the inner packet is a message for the receiving endpoint itself (wire.md §8.15).
    pub control: bool,
    /// Type of the inner packet.
    pub payload: Payload,
    /// The number of the virtual network.
    pub vni: Vni,
    /// The segment, without its proofs.
    pub segment: Segment,
    /// The segment's proofs, as many as its `count`.
    pub proofs: &'a [[u8; 16]],
}

impl<'a> Encapsulation<'a> {
    /// Geneve's flags when only the bit for critical options is set.
    pub const CRITICAL: u8 = 0x40;
    /// Geneve's bit O, which marks a control packet.
    pub const CONTROL: u8 = 0x80;

    /// Parses the payload of a UDP datagram. Returns the encapsulation and the bytes of the inner packet.
    ///
    /// # Errors
    ///
    /// Returns `NoToken` if the first option is not one with a segment. Returns `Malformed` or `UnknownSuite` if the
    /// header has another fault.
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DropReason> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(DropReason::Malformed)?;
        let [lengths, flags, p0, p1, vni @ .., reserved] = *header;
        if lengths >> 6 != 0 {
            return Err(DropReason::Malformed);
        }
        if lengths == 0 {
            return Err(DropReason::NoToken);
        }
        let (option, inner) = rest.split_at_checked(usize::from(lengths) * 4).ok_or(DropReason::Malformed)?;
        let ([c0, c1, kind, words], data) = option.split_first_chunk().ok_or(DropReason::Malformed)?;
        if u16::from_be_bytes([*c0, *c1]) != OPTION_CLASS || *kind != OPTION_TYPE {
            return Err(DropReason::NoToken);
        }
        if flags & !Self::CONTROL != Self::CRITICAL || reserved != 0 || usize::from(*words) * 4 != data.len() {
            return Err(DropReason::Malformed);
        }
        let payload = Payload::from_number(u16::from_be_bytes([p0, p1])).ok_or(DropReason::Malformed)?;
        let (segment, proofs) = Segment::decode(data)?;
        let control = flags & Self::CONTROL != 0;
        Ok((Self { control, payload, vni: vni.into(), segment, proofs }, inner))
    }

    /// Writes the header into `room` and returns its length in bytes. Returns `None` if `room` is too short, or if the
    /// segment's `count` is not the number of proofs.
    pub fn encode(&self, room: &mut [u8]) -> Option<usize> {
        let authority: &[u8] = match &self.segment.authority {
            IpAddr::V4(address) => &address.octets(),
            IpAddr::V6(address) => &address.octets(),
        };
        let data = HEAD_LEN + authority.len() + self.proofs.len() * 16;
        let len = HEADER_LEN + OPTION_HEADER_LEN + data;
        if self.proofs.len() != usize::from(self.segment.count) || len > ENCAPSULATION_MAX {
            return None;
        }
        let [p0, p1] = (self.payload as u16).to_be_bytes();
        let [v0, v1, v2] = self.vni.bytes();
        let words = (data / 4) as u8;
        let [c0, c1] = OPTION_CLASS.to_be_bytes();
        let flags = if self.control { Self::CRITICAL | Self::CONTROL } else { Self::CRITICAL };
        let headers = [words + 1, flags, p0, p1, v0, v1, v2, 0, c0, c1, OPTION_TYPE, words];
        let mut room = room.get_mut(..len)?;
        for part in [&headers[..], &self.segment.head(), authority, self.proofs.as_flattened()] {
            let (here, rest) = room.split_at_mut_checked(part.len())?;
            here.copy_from_slice(part);
            room = rest;
        }
        Some(len)
    }
}

/// Adds one to the pointer of the segment in a packet with a valid encapsulation, and updates the UDP checksum if there
/// is one (wire.md §8.9). Returns `None` if the packet is not a UDP datagram, or if it is too short.
pub fn advance(frame: &mut [u8], packet: &Packet) -> Option<()> {
    if packet.protocol != UDP {
        return None;
    }
    let field = packet.transport + 6;
    let checksum = u16::from_be_bytes(*frame.get(field..)?.first_chunk()?);
    let stays = checksum == 0 || checksum::is_partial(frame, packet)?;
    let word = frame.get_mut(packet.payload + HEADER_LEN + OPTION_HEADER_LEN..packet.end)?.first_chunk_mut::<2>()?;
    let old = u16::from_be_bytes(*word);
    word[0] = word[0].checked_add(1)?;
    let new = u16::from_be_bytes(*word);
    if !stays {
        // One's complement has two zeros; UDP uses 0xffff, since 0 means "no checksum".
        let mended = checksum::replace(checksum, old, new);
        *frame.get_mut(field..)?.first_chunk_mut()? = if mended == 0 { 0xffff } else { mended }.to_be_bytes();
    }
    Some(())
}
