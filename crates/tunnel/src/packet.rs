//! The parts of IP packets that tunnels need, and the virtio header before them.

use crate::device::VIRTIO_LEN;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::packet::{Form, Fragment, Packet};

pub use wire::packet::{TCP, UDP};

// Constants of linux/virtio_net.h.
const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// The fields of `struct virtio_net_hdr` that tunnels need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Virtio {
    /// Whether the transport checksum is partial: the checksum field contains only the sum of the pseudo-header.
    pub partial: bool,
    /// Payload bytes of each packet in a super-packet; 0 for a single packet.
    pub segment: u16,
}

impl Virtio {
    /// Parses a virtio header. Returns `None` if it is of a kind that this module does not know.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let [flags, kind, _, _, low, high, ..] = *bytes.first_chunk::<VIRTIO_LEN>()?;
        let segment = u16::from_le_bytes([low, high]);
        match kind & !GSO_ECN {
            GSO_NONE => Some(Self { partial: flags & NEEDS_CSUM != 0, segment: 0 }),
            GSO_TCPV4 | GSO_TCPV6 | GSO_UDP_L4 if segment > 0 => Some(Self { partial: true, segment }),
            _ => None,
        }
    }

    /// Returns the virtio header for a packet with this layout.
    pub fn encode(&self, layout: &Layout) -> [u8; VIRTIO_LEN] {
        let mut bytes = [0; VIRTIO_LEN];
        if self.partial {
            bytes[0] = NEEDS_CSUM;
            bytes[6..8].copy_from_slice(&(layout.transport as u16).to_le_bytes());
            bytes[8..].copy_from_slice(&(layout.checksum_offset() as u16).to_le_bytes());
        }
        if self.segment > 0 {
            bytes[1] = match (layout.protocol, layout.is_ipv6) {
                (UDP, _) => GSO_UDP_L4,
                (_, true) => GSO_TCPV6,
                (_, false) => GSO_TCPV4,
            };
            bytes[2..4].copy_from_slice(&(layout.payload as u16).to_le_bytes());
            bytes[4..6].copy_from_slice(&self.segment.to_le_bytes());
        }
        bytes
    }
}

/// Offsets of the parts of an IP packet, from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Whether the packet is IPv6.
    pub is_ipv6: bool,
    /// The transport protocol, after all extension headers.
    pub protocol: u8,
    /// Offset of the transport header.
    pub transport: usize,
    /// Offset of the payload. It equals `transport` if the protocol is neither TCP nor UDP, or if the packet is a
    /// fragment.
    pub payload: usize,
    /// Whether the packet is a fragment.
    pub is_fragment: bool,
}

impl Layout {
    /// Finds the parts of an IP packet. Returns `None` if `packet` is not an IP packet, or if its length differs from
    /// the length in its header.
    pub fn of(packet: &[u8]) -> Option<Self> {
        Self::plain(packet).or_else(|| Self::parsed(packet))
    }

    /// Finds the parts of most packets: TCP or UDP right behind an IP header without options, and no fragment. Returns
    /// `None` for all other packets, which can be valid IP packets nevertheless. This function runs for every record,
    /// so it has to be fast.
    fn plain(packet: &[u8]) -> Option<Self> {
        let number = |high, low| usize::from(u16::from_be_bytes([high, low]));
        let (is_ipv6, length, protocol) = match *packet.first()? {
            0x45 => {
                let [_, _, high, low, _, _, fragment, offset, _, protocol, ..] = *packet.first_chunk::<20>()?;
                if fragment & 0x3f | offset != 0 {
                    return None;
                }
                (false, number(high, low), protocol)
            }
            first if first >> 4 == 6 => {
                let [_, _, _, _, high, low, protocol, ..] = *packet.first_chunk::<40>()?;
                (true, 40 + number(high, low), protocol)
            }
            _ => return None,
        };
        let transport = if is_ipv6 { 40 } else { 20 };
        let rest = packet.get(transport..).filter(|_| length == packet.len())?;
        let header = match protocol {
            TCP => {
                let header = usize::from(rest.first_chunk::<20>()?[12] >> 4) * 4;
                (20..=rest.len()).contains(&header).then_some(header)?
            }
            UDP => {
                let [_, _, _, _, high, low, ..] = *rest.first_chunk::<8>()?;
                (8..=rest.len()).contains(&number(high, low)).then_some(8)?
            }
            _ => return None,
        };
        Some(Self { is_ipv6, protocol, transport, payload: transport + header, is_fragment: false })
    }

    fn parsed(packet: &[u8]) -> Option<Self> {
        let parsed = Packet::parse_ip(packet);
        if parsed.form != Form::Whole || parsed.end != packet.len() {
            return None;
        }
        let is_fragment = parsed.fragment != Fragment::Whole;
        let has_ports = !is_fragment && matches!(parsed.protocol, TCP | UDP);
        Some(Self {
            is_ipv6: parsed.ipv6(),
            protocol: parsed.protocol,
            transport: parsed.transport,
            payload: if has_ports { parsed.payload } else { parsed.transport },
            is_fragment,
        })
    }

    /// Reports whether the packet contains ports: it is TCP or UDP, and not a fragment.
    pub const fn has_ports(&self) -> bool {
        self.payload > self.transport
    }

    /// Returns the offset of the checksum in the transport header.
    pub const fn checksum_offset(&self) -> usize {
        if self.protocol == UDP { 6 } else { 16 }
    }

    /// Returns the bytes of both addresses in the packet: source, then destination.
    pub fn addresses<'p>(&self, packet: &'p [u8]) -> &'p [u8] {
        packet.get(if self.is_ipv6 { 8..40 } else { 12..20 }).unwrap_or_default()
    }

    /// Returns the source address.
    pub fn source(&self, packet: &[u8]) -> IpAddr {
        self.address(packet, false)
    }

    /// Returns the destination address.
    pub fn destination(&self, packet: &[u8]) -> IpAddr {
        self.address(packet, true)
    }

    fn address(&self, packet: &[u8], second: bool) -> IpAddr {
        let both = self.addresses(packet);
        let half = both.get(if second { both.len() / 2..both.len() } else { 0..both.len() / 2 }).unwrap_or_default();
        match (<[u8; 4]>::try_from(half), <[u8; 16]>::try_from(half)) {
            (Ok(bytes), _) => Ipv4Addr::from(bytes).into(),
            (_, Ok(bytes)) => Ipv6Addr::from(bytes).into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    /// Returns the source port and the destination port; 0 if the packet has no ports.
    pub fn ports(&self, packet: &[u8]) -> (u16, u16) {
        match packet.get(self.transport..).and_then(|header| header.first_chunk()) {
            Some(&[a, b, c, d]) if self.has_ports() => (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])),
            _ => (0, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A packet of 8 bytes of payload behind this transport's header.
    fn packet(is_ipv6: bool, protocol: u8) -> Vec<u8> {
        let header = if protocol == TCP { 20 } else { 8 };
        let mut packet =
            if is_ipv6 { vec![0x60, 0, 0, 0, 0, header + 8, protocol] } else { vec![0x45, 0, 0, 28 + header] };
        packet.resize(if is_ipv6 { 40 } else { 20 }, 0);
        if !is_ipv6 {
            packet[9] = protocol;
        }
        let transport = packet.len();
        packet.resize(transport + usize::from(header) + 8, 0);
        match protocol {
            TCP => packet[transport + 12] = 0x50,
            _ => packet[transport + 5] = 16,
        }
        packet
    }

    #[test]
    fn most_packets_take_the_short_way() {
        for (is_ipv6, protocol) in [(false, TCP), (false, UDP), (true, TCP), (true, UDP)] {
            let packet = packet(is_ipv6, protocol);
            let layout = Layout::plain(&packet).expect("a plain packet");
            assert_eq!((layout.is_ipv6, layout.protocol, packet.len() - layout.payload), (is_ipv6, protocol, 8));
            assert_eq!(Layout::parsed(&packet), Some(layout));
        }
    }

    proptest! {
        #[test]
        fn the_short_way_finds_what_the_parser_finds(
            is_ipv6: bool, is_tcp: bool, changes in prop::collection::vec((0usize..60, any::<u8>()), 0..4), less in 0usize..30,
        ) {
            let mut packet = packet(is_ipv6, if is_tcp { TCP } else { UDP });
            let length = packet.len();
            for (at, value) in changes {
                packet[at % length] = value;
            }
            packet.truncate(length - less / 2);
            if let Some(layout) = Layout::plain(&packet) {
                prop_assert_eq!(Layout::parsed(&packet), Some(layout));
            }
        }
    }
}
