//! Cuts super-packets into packets, each of which fits into a record. This neither copies payload nor computes
//! checksums over it: the record's tag protects the payload, so the packets travel with partial checksums (wire.md
//! §9.4).

use crate::packet::{Layout, TCP, UDP, Virtio};
use crate::sum;

const HEADERS_MAX: usize = 60 + 60;
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Reason why a packet can't be cut so that it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCut {
    /// The packet is not a valid IP packet, or its checksum is wrong.
    Malformed,
    /// The packet is too long, and only TCP packets can be cut at any place.
    TooLong,
}

/// A packet or super-packet that is cut into packets, which [`Self::next_piece`] returns one after the other.
pub struct Cut<'p> {
    packet: &'p [u8],
    layout: Layout,
    headers: [u8; HEADERS_MAX],
    partial: bool,
    /// Payload bytes of each packet; 0 if the packet is not cut.
    size: usize,
    at: usize,
    pseudo: u64,
    number: u16,
}

/// A packet, in two parts.
pub struct Piece<'c> {
    /// The headers, and the payload.
    pub parts: [&'c [u8]; 2],
    /// Whether the transport checksum is partial.
    pub partial: bool,
}

impl<'p> Cut<'p> {
    /// Prepares to cut `packet` into packets of at most `room` bytes.
    ///
    /// # Errors
    ///
    /// Fails if the packet is malformed, or can't be cut so that it fits.
    pub fn new(packet: &'p [u8], layout: Layout, virtio: Virtio, room: usize) -> Result<Self, NotCut> {
        let mut cut = Self {
            packet,
            layout,
            headers: [0; HEADERS_MAX],
            partial: virtio.partial,
            size: 0,
            at: 0,
            pseudo: 0,
            number: 0,
        };
        let payload = packet.len() - layout.payload;
        let segment = usize::from(virtio.segment);
        if packet.len() <= room && (segment == 0 || segment >= payload) {
            return Ok(cut);
        }
        let most = room.checked_sub(layout.payload).filter(|most| *most > 0 && payload > 0).ok_or(NotCut::TooLong)?;
        cut.size = match layout.protocol {
            _ if layout.payload == layout.transport => return Err(NotCut::TooLong),
            TCP if segment == 0 => most,
            TCP => segment.min(most),
            _ if segment == 0 || segment > most => return Err(NotCut::TooLong),
            _ => segment,
        };
        let mut addresses = [0; 32];
        let both = layout.addresses(packet);
        addresses[..both.len()].copy_from_slice(both);
        cut.pseudo = sum::pseudo(&addresses, layout.protocol);
        if !virtio.partial {
            // The packets get new checksums, so a wrong checksum must not become valid that way.
            let transport = packet.get(layout.transport..).ok_or(NotCut::Malformed)?;
            if sum::fold(sum::add(cut.pseudo + transport.len() as u64, transport)) != 0xffff {
                return Err(NotCut::Malformed);
            }
            cut.partial = true;
        }
        let headers = packet.get(..layout.payload).ok_or(NotCut::Malformed)?;
        cut.headers.get_mut(..layout.payload).ok_or(NotCut::Malformed)?.copy_from_slice(headers);
        cut.number = u16::from_be_bytes([headers[4], headers[5]]);
        Ok(cut)
    }

    /// Returns the next packet; `None` after the last.
    pub fn next_piece(&mut self) -> Option<Piece<'_>> {
        if self.size == 0 {
            let whole = std::mem::take(&mut self.packet);
            return (!whole.is_empty()).then_some(Piece { parts: [whole, &[]], partial: self.partial });
        }
        let Layout { transport, payload: begin, is_ipv6, protocol, .. } = self.layout;
        let rest = self.packet.get(begin + self.at..).filter(|rest| !rest.is_empty())?;
        let (payload, is_last) = (rest.get(..self.size).unwrap_or(rest), rest.len() <= self.size);
        let headers = self.headers.get_mut(..begin)?;
        let original = self.packet.get(..begin)?;
        let length = begin + payload.len();
        if is_ipv6 {
            headers[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
        } else {
            headers[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            headers[4..6].copy_from_slice(&self.number.to_be_bytes());
            self.number = self.number.wrapping_add(1);
            headers[10..12].fill(0);
            let checksum = !sum::fold(sum::add(0, &headers[..transport]));
            headers[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        let bytes = (length - transport) as u16;
        let checksum = sum::fold(self.pseudo + u64::from(bytes)).to_be_bytes();
        if protocol == UDP {
            headers[transport + 4..transport + 6].copy_from_slice(&bytes.to_be_bytes());
            headers[transport + 6..transport + 8].copy_from_slice(&checksum);
        } else {
            let first = u32::from_be_bytes(*original.get(transport + 4..)?.first_chunk()?);
            headers[transport + 4..transport + 8].copy_from_slice(&first.wrapping_add(self.at as u32).to_be_bytes());
            let mut flags = original[transport + 13];
            if !is_last {
                flags &= !FIN_PSH;
            }
            if self.at > 0 {
                flags &= !CWR;
            }
            headers[transport + 13] = flags;
            headers[transport + 16..transport + 18].copy_from_slice(&checksum);
        }
        self.at += payload.len();
        Some(Piece { parts: [headers, payload], partial: true })
    }
}
