//! Parses frames into the fields that tests make assertions about.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::forge::{SERVICE_VLAN, Tcp, VLAN, checksum, protocol, transport_checksum};

/// A parsed frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Hardware addresses: source, destination.
    pub macs: [[u8; 6]; 2],
    /// VLAN tags, outermost first, each with EtherType and control. A packet socket strips the outermost tag.
    pub tags: Vec<(u16, u16)>,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// TTL or hop limit.
    pub hops: u8,
    /// Type of service or traffic class.
    pub class: u8,
    /// IPv4 options.
    pub options: Vec<u8>,
    /// Types of the IPv6 extension headers, except the fragment header.
    pub extensions: Vec<u8>,
    /// Offset in bytes and whether more fragments follow, if the packet is a fragment.
    pub fragment: Option<(u16, bool)>,
    /// Protocol number after the IP headers and extensions.
    pub protocol: u8,
    /// Source and destination port, if the packet is TCP or UDP.
    pub ports: Option<(u16, u16)>,
    /// The TCP header, if the packet is TCP.
    pub tcp: Option<Tcp>,
    /// Type and code, if the packet is ICMP or ICMPv6.
    pub icmp: Option<(u8, u8)>,
    /// Bytes after the transport header, or after the IP headers if the transport is unknown.
    pub payload: Vec<u8>,
    /// Whether the checksums of IPv4 and of the transport are correct. They are incorrect in packets whose checksum a
    /// local sender left to the (virtual) hardware. The transport checksum of a fragment is not verified.
    pub checksums_right: bool,
}

impl Seen {
    /// Parses a frame that begins with an Ethernet header; `None` if it does not contain a complete IPv4 or IPv6
    /// packet.
    pub fn frame(frame: &[u8]) -> Option<Self> {
        let (macs, mut rest) = frame.split_at_checked(12)?;
        let mut tags = Vec::new();
        while let VLAN | SERVICE_VLAN = short(rest, 0)? {
            tags.push((short(rest, 0)?, short(rest, 2)?));
            rest = rest.get(4..)?;
        }
        let mut seen = Self::ip(rest.get(2..)?)?;
        seen.macs = [macs[6..].try_into().ok()?, macs[..6].try_into().ok()?];
        seen.tags = tags;
        Some(seen)
    }

    /// Parses a packet that begins with an IP header. Bytes beyond its length (Ethernet's padding) are ignored.
    pub fn ip(bytes: &[u8]) -> Option<Self> {
        let mut seen = Self {
            macs: [[0; 6]; 2],
            tags: Vec::new(),
            source: Ipv4Addr::UNSPECIFIED.into(),
            destination: Ipv4Addr::UNSPECIFIED.into(),
            hops: 0,
            class: 0,
            options: Vec::new(),
            extensions: Vec::new(),
            fragment: None,
            protocol: 0,
            ports: None,
            tcp: None,
            icmp: None,
            payload: Vec::new(),
            checksums_right: true,
        };
        let segment = match bytes.first()? >> 4 {
            4 => seen.ipv4(bytes)?,
            6 => seen.ipv6(bytes)?,
            _ => return None,
        };
        seen.transport(segment)?;
        Some(seen)
    }

    fn ipv4<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let size = usize::from(bytes[0] & 15) * 4;
        let bytes = bytes.get(..usize::from(short(bytes, 2)?))?;
        let header = bytes.get(..size.max(20))?;
        self.class = header[1];
        self.hops = header[8];
        self.protocol = header[9];
        self.source = Ipv4Addr::from(<[u8; 4]>::try_from(&header[12..16]).ok()?).into();
        self.destination = Ipv4Addr::from(<[u8; 4]>::try_from(&header[16..20]).ok()?).into();
        self.options = header[20..].to_vec();
        self.checksums_right = checksum(&[header]) == 0;
        let word = short(header, 6)?;
        self.place((word & 0x1fff) * 8, word & 0x2000 != 0);
        bytes.get(header.len()..)
    }

    fn ipv6<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let header = bytes.get(..40)?;
        self.class = (short(header, 0)? >> 4) as u8;
        self.hops = header[7];
        self.protocol = header[6];
        self.source = Ipv6Addr::from(<[u8; 16]>::try_from(&header[8..24]).ok()?).into();
        self.destination = Ipv6Addr::from(<[u8; 16]>::try_from(&header[24..40]).ok()?).into();
        let mut rest = bytes.get(40..40 + usize::from(short(header, 4)?))?;
        loop {
            let size = match self.protocol {
                protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                    self.extensions.push(self.protocol);
                    (usize::from(*rest.get(1)?) + 1) * 8
                }
                protocol::FRAGMENT => {
                    let word = short(rest, 2)?;
                    self.place(word & !7, word & 1 != 0);
                    8
                }
                _ => return Some(rest),
            };
            self.protocol = *rest.first()?;
            rest = rest.get(size..)?;
            if self.fragment.is_some_and(|(offset, _)| offset > 0) {
                return Some(rest);
            }
        }
    }

    fn place(&mut self, offset: u16, more: bool) {
        self.fragment = (offset > 0 || more).then_some((offset, more));
    }

    fn transport(&mut self, segment: &[u8]) -> Option<()> {
        if self.fragment.is_some_and(|(offset, _)| offset > 0) {
            self.payload = segment.to_vec();
            return Some(());
        }
        let header = match self.protocol {
            protocol::TCP => {
                let size = usize::from(*segment.get(12)? >> 4) * 4;
                let tcp = Tcp {
                    source: short(segment, 0)?,
                    destination: short(segment, 2)?,
                    sequence: long(segment, 4)?,
                    acknowledgement: long(segment, 8)?,
                    flags: *segment.get(13)?,
                    window: short(segment, 14)?,
                    options: segment.get(20..size)?.to_vec(),
                };
                self.ports = Some((tcp.source, tcp.destination));
                self.tcp = Some(tcp);
                size
            }
            protocol::UDP => {
                self.ports = Some((short(segment, 0)?, short(segment, 2)?));
                8
            }
            protocol::ICMP | protocol::ICMPV6 => {
                self.icmp = Some((*segment.first()?, *segment.get(1)?));
                8
            }
            _ => 0,
        };
        self.payload = segment.get(header..)?.to_vec();
        // UDP over IPv4 may omit the checksum (RFC 768).
        let absent = self.protocol == protocol::UDP && self.source.is_ipv4() && short(segment, 6)? == 0;
        if header > 0 && self.fragment.is_none() && !absent {
            self.checksums_right &= transport_checksum(self.source, self.destination, self.protocol, segment) == 0;
        }
        Some(())
    }
}

/// Returns source and destination address of an IPv4 or IPv6 frame without a VLAN tag, even if the rest is malformed.
pub fn addresses(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let four = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?));
    let six = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?));
    match short(frame, 12)? {
        0x0800 => four(26).zip(four(30)),
        0x86dd => six(22).zip(six(38)),
        _ => None,
    }
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
