//! Cuts super-packets into packets that each fit into a record. Does not copy payload, and does not compute checksums
//! over it. The record's tag protects the payload, so the packets travel with partial checksums (wire.md §9.4).

use crate::packet::{Layout, TCP, UDP, Virtio};
use crate::sum;

const HEADERS_MAX: usize = 60 + 60;
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Reason why a packet can't be cut into packets that fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCut {
    /// The packet is not a valid IP packet, or its checksum is wrong.
    Malformed,
    /// The packet is too long, and it can't be cut into packets that fit. Only TCP packets can be cut at any place of
    /// their payload.
    TooLong,
}

/// A packet or super-packet that is being cut. [`Self::next_piece`] returns the resulting packets one after the other.
pub struct Cut<'p> {
    packet: &'p mut [u8],
    layout: Layout,
    /// The packet's headers.
    headers: [u8; HEADERS_MAX],
    partial: bool,
    /// Payload bytes of each packet; 0 if the packet is not cut.
    size: usize,
    at: usize,
    pseudo: u64,
    number: u16,
}

/// A packet that results from cutting.
pub struct Piece<'c> {
    /// The whole packet.
    pub packet: &'c [u8],
    /// Whether the transport checksum is partial.
    pub partial: bool,
}

impl<'p> Cut<'p> {
    /// Prepares to cut `packet` into packets of at most `room` bytes. Cutting overwrites `packet`.
    ///
    /// # Errors
    ///
    /// Fails if the packet is malformed, or can't be cut into packets that fit.
    pub fn new(packet: &'p mut [u8], layout: Layout, virtio: Virtio, room: usize) -> Result<Self, NotCut> {
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
        let packet = &*cut.packet;
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

    /// Returns the next packet; `None` after the last one.
    pub fn next_piece(&mut self) -> Option<Piece<'_>> {
        if self.size == 0 {
            let packet = &*std::mem::take(&mut self.packet);
            return (!packet.is_empty()).then_some(Piece { packet, partial: self.partial });
        }
        let Layout { transport, payload: begin, is_ipv6, protocol, .. } = self.layout;
        let end = self.packet.len().min(begin + self.at + self.size);
        let is_last = end == self.packet.len();
        // The headers take the place of what is before the payload: the original ones, or payload that has been used.
        let packet = self.packet.get_mut(self.at..end).filter(|packet| packet.len() > begin)?;
        let (original, length) = (self.headers.get(..begin)?, packet.len());
        let headers = packet.get_mut(..begin)?;
        headers.copy_from_slice(original);
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
        self.at += length - begin;
        Some(Piece { packet, partial: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet with this many bytes of payload, which are numbered. Its checksum is partial.
    fn packet(is_ipv6: bool, protocol: u8, payload: usize) -> Vec<u8> {
        let header = if protocol == TCP { 32 } else { 8 };
        let rest = ((header + payload) as u16).to_be_bytes();
        let mut packet = if is_ipv6 {
            let mut packet = vec![0x60, 0, 0, 0, rest[0], rest[1], protocol, 64];
            packet.extend([7; 32]);
            packet
        } else {
            let length = ((20 + header + payload) as u16).to_be_bytes();
            vec![0x45, 0, length[0], length[1], 1, 255, 0x40, 0, 64, protocol, 0, 0, 10, 1, 0, 1, 192, 0, 2, 1]
        };
        packet.extend([0x9c, 0x40, 0, 7]);
        match protocol {
            TCP => {
                packet.extend([&[0, 0, 0xff, 0xfe, 0, 0, 0, 9, 0x80, 0x99, 1, 0, 0, 0, 0, 0][..], &[1; 12]].concat())
            }
            _ => packet.extend([rest[0], rest[1], 0, 0]),
        }
        packet.extend((0..payload).map(|number| number as u8));
        packet
    }

    #[test]
    fn pieces_have_the_payload_in_order_and_headers_of_their_own() {
        for (is_ipv6, protocol) in [(false, TCP), (false, UDP), (true, TCP), (true, UDP)] {
            // Payloads that are shorter than the headers, and longer.
            for (payload, segment) in [(10, 3), (200, 50), (200, 99), (200, 100), (1, 1), (121, 120)] {
                let whole = packet(is_ipv6, protocol, payload);
                let layout = Layout::of(&whole).expect("a packet");
                let mut used = whole.clone();
                let virtio = Virtio { partial: true, segment };
                let mut cut = Cut::new(&mut used, layout, virtio, 1400).expect("it can be cut");
                let (mut at, begin, transport) = (0, layout.payload, layout.transport);
                let segment = usize::from(segment);
                while let Some(Piece { packet, partial: true }) = cut.next_piece() {
                    let of = Layout::of(packet).expect("a whole packet");
                    assert_eq!(of, layout);
                    let is_last = at + segment >= payload;
                    assert_eq!(packet[begin..], whole[begin + at..begin + payload.min(at + segment)]);
                    assert_eq!(layout.addresses(packet), layout.addresses(&whole));
                    if !is_ipv6 && segment < payload {
                        assert_eq!(sum::fold(sum::add(0, &packet[..20])), 0xffff);
                        let number = u16::from_be_bytes([packet[4], packet[5]]);
                        assert_eq!(usize::from(number), 511 + at / segment);
                    }
                    let field = transport + layout.checksum_offset();
                    let sum = sum::pseudo(layout.addresses(packet), protocol) + (packet.len() - transport) as u64;
                    if segment < payload {
                        assert_eq!(packet[field..field + 2], sum::fold(sum).to_be_bytes());
                    }
                    if protocol == TCP {
                        let sequence =
                            u32::from_be_bytes(packet[transport + 4..transport + 8].try_into().expect("four"));
                        assert_eq!(sequence, 0xfffe + at as u32);
                        let flags = 0x10 | if is_last { 0x09 } else { 0 } | if at == 0 { 0x80 } else { 0 };
                        assert_eq!(packet[transport + 13], flags);
                        assert_eq!(packet[transport + 20..begin], [1; 12]);
                    }
                    at += packet.len() - begin;
                }
                assert_eq!(at, payload, "{is_ipv6} {protocol} {segment}");
            }
        }
    }
}
