//! IP packets and the virtio header in front of them, as far as tunnels have to understand them.

use crate::device::VIRTIO_LEN;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Number of TCP.
pub const TCP: u8 = 6;
/// Number of UDP.
pub const UDP: u8 = 17;

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const TCP_LEN: usize = 20;

// linux/virtio_net.h
const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr`, little-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Virtio {
    /// Whether the transport checksum is only begun.
    pub partial: bool,
    /// Payload bytes of each packet of a super-packet; 0 for a packet.
    pub segment: u16,
}

impl Virtio {
    /// Reads the header; `None` if it is of another kind than this module knows.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let [flags, kind, _, _, low, high, ..] = *bytes.first_chunk::<VIRTIO_LEN>()?;
        let segment = u16::from_le_bytes([low, high]);
        match kind & !GSO_ECN {
            GSO_NONE => Some(Self { partial: flags & NEEDS_CSUM != 0, segment: 0 }),
            GSO_TCPV4 | GSO_TCPV6 | GSO_UDP_L4 if segment > 0 => Some(Self { partial: true, segment }),
            _ => None,
        }
    }

    /// Returns the header in front of a packet of this layout.
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

/// Where the parts of an IP packet begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Whether it is IPv6.
    pub is_ipv6: bool,
    /// The transport protocol; of a packet with extension headers, the first of them.
    pub protocol: u8,
    /// Begin of the transport header.
    pub transport: usize,
    /// Begin of the payload. As `transport` if the protocol is neither TCP nor UDP, or the packet is a fragment.
    pub payload: usize,
    /// Whether the packet is a fragment.
    pub is_fragment: bool,
}

impl Layout {
    /// Finds the parts of an IP packet whose length is that of its header; `None` if it is none.
    pub fn of(packet: &[u8]) -> Option<Self> {
        let (is_ipv6, protocol, transport, is_fragment, length) = match packet.first()? >> 4 {
            4 => {
                let header = packet.first_chunk::<IPV4_LEN>()?;
                let transport = usize::from(header[0] & 15) * 4;
                let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
                if transport < IPV4_LEN {
                    return None;
                }
                (false, header[9], transport, is_fragment, usize::from(u16::from_be_bytes([header[2], header[3]])))
            }
            6 => {
                let header = packet.first_chunk::<IPV6_LEN>()?;
                let length = IPV6_LEN + usize::from(u16::from_be_bytes([header[4], header[5]]));
                (true, header[6], IPV6_LEN, false, length)
            }
            _ => return None,
        };
        if length != packet.len() || transport > length {
            return None;
        }
        let mut layout = Self { is_ipv6, protocol, transport, payload: transport, is_fragment };
        if !is_fragment && layout.has_ports() {
            let header = packet.get(transport..)?;
            let bytes = match protocol {
                UDP => UDP_LEN,
                _ => usize::from(header.get(12)? >> 4) * 4,
            };
            if bytes < if protocol == TCP { TCP_LEN } else { UDP_LEN } || bytes > header.len() {
                return None;
            }
            layout.payload += bytes;
        }
        Some(layout)
    }

    /// Reports whether the transport is TCP or UDP.
    pub const fn has_ports(&self) -> bool {
        matches!(self.protocol, TCP | UDP)
    }

    /// Returns the checksum's place in the transport header.
    pub const fn checksum_offset(&self) -> usize {
        if self.protocol == UDP { 6 } else { 16 }
    }

    /// Returns both addresses as they are in the packet.
    pub fn addresses<'p>(&self, packet: &'p [u8]) -> &'p [u8] {
        packet.get(if self.is_ipv6 { 8..40 } else { 12..20 }).unwrap_or_default()
    }

    /// Returns the source.
    pub fn source(&self, packet: &[u8]) -> IpAddr {
        self.address(packet, false)
    }

    /// Returns the destination.
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

    /// Returns the ports: the source's, then the destination's; 0 where there are none.
    pub fn ports(&self, packet: &[u8]) -> (u16, u16) {
        match packet.get(self.transport..).and_then(|header| header.first_chunk()) {
            Some(&[a, b, c, d]) if self.payload > self.transport => {
                (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
            }
            _ => (0, 0),
        }
    }
}
