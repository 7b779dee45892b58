//! Builds packets by hand: Ethernet, VLAN tags, IPv4 and IPv6 with options, extension headers and fragments, TCP, UDP,
//! ICMP.
//!
//! Lengths and checksums are correct unless the caller asks for wrong ones. This module does no I/O: [`crate::Port`]
//! sends frames, and [`crate::seen`] parses them. Arguments and fields are in host byte order; the frames have them in
//! network byte order.

use std::net::IpAddr;

/// EtherType of a customer's VLAN tag (802.1Q).
pub const VLAN: u16 = 0x8100;
/// EtherType of a provider's VLAN tag (802.1ad).
pub const SERVICE_VLAN: u16 = 0x88a8;

/// Protocol numbers, including those of IPv6 extension headers.
pub mod protocol {
    #![allow(missing_docs, reason = "the names say it")]
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const IP_IN_IP: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const ICMPV6: u8 = 58;
    pub const NO_NEXT_HEADER: u8 = 59;
    pub const DESTINATION_OPTIONS: u8 = 60;
}

/// TCP flags.
pub mod flag {
    #![allow(missing_docs, reason = "the names say it")]
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
}

/// A TCP header. Options are padded with zeros to 32-bit words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "RFC 9293, 3.1")]
pub struct Tcp {
    pub source: u16,
    pub destination: u16,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub window: u16,
    pub options: Vec<u8>,
}

impl Tcp {
    /// Makes a header with these ports, these [`flag`]s and the sequence number 1.
    pub fn new(source: u16, destination: u16, flags: u8) -> Self {
        Self { source, destination, sequence: 1, acknowledgement: 0, flags, window: 64240, options: Vec::new() }
    }

    /// Makes the header of a SYN with the sequence number 0. A segment made by [`Self::new`] with the same ports
    /// continues the connection that this SYN begins.
    pub fn syn(source: u16, destination: u16) -> Self {
        Self { sequence: 0, ..Self::new(source, destination, flag::SYN) }
    }
}

/// The protocol and headers after the IP headers.
#[derive(Clone, Debug)]
enum Transport {
    Tcp(Tcp),
    Udp { source: u16, destination: u16 },
    Icmp { kind: u8, code: u8, rest: [u8; 4] },
    Raw(u8),
}

/// A packet under construction.
#[derive(Clone, Debug)]
pub struct Packet {
    macs: [[u8; 6]; 2],
    tags: Vec<[u8; 4]>,
    source: IpAddr,
    destination: IpAddr,
    hops: u8,
    class: u8,
    identification: u32,
    dont_fragment: bool,
    options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
    transport: Transport,
    payload: Vec<u8>,
    checksum: Checksum,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Checksum {
    Right,
    Wrong,
    Absent,
}

impl Packet {
    /// Makes an empty packet between two addresses, with TTL 64.
    ///
    /// # Panics
    /// Panics if one address is IPv4 and the other is IPv6.
    pub fn new(source: IpAddr, destination: IpAddr) -> Self {
        assert_eq!(source.is_ipv4(), destination.is_ipv4(), "one packet, one family");
        Self {
            macs: [[0; 6]; 2],
            tags: Vec::new(),
            source,
            destination,
            hops: 64,
            class: 0,
            identification: 0,
            dont_fragment: false,
            options: Vec::new(),
            extensions: Vec::new(),
            transport: Transport::Raw(if source.is_ipv4() { 255 } else { protocol::NO_NEXT_HEADER }),
            payload: Vec::new(),
            checksum: Checksum::Right,
        }
    }

    /// Sets the hardware addresses, source first.
    pub fn ethernet(mut self, source: [u8; 6], destination: [u8; 6]) -> Self {
        self.macs = [destination, source];
        self
    }

    /// Adds a VLAN tag inside the existing ones: `kind` is [`VLAN`] or [`SERVICE_VLAN`], `control` holds priority and
    /// id.
    pub fn tag(mut self, kind: u16, control: u16) -> Self {
        let ([a, b], [c, d]) = (kind.to_be_bytes(), control.to_be_bytes());
        self.tags.push([a, b, c, d]);
        self
    }

    /// Sets the TTL or hop limit.
    pub fn hops(mut self, hops: u8) -> Self {
        self.hops = hops;
        self
    }

    /// Sets the type of service or traffic class, including ECN.
    pub fn class(mut self, class: u8) -> Self {
        self.class = class;
        self
    }

    /// Sets the IP identification. An IPv4 packet has its low 16 bits; an IPv6 packet has it only in fragments.
    pub fn identification(mut self, identification: u32) -> Self {
        self.identification = identification;
        self
    }

    /// Sets the flag "don't fragment" of an IPv4 packet.
    pub fn dont_fragment(mut self) -> Self {
        self.dont_fragment = true;
        self
    }

    /// Sets the IPv4 options, at most 40 bytes, padded with zeros to 32-bit words.
    pub fn options(mut self, options: &[u8]) -> Self {
        assert!(self.source.is_ipv4() && options.len() <= 40, "options of an IPv4 header");
        self.options = padded(options, 4, 0);
        self
    }

    /// Appends an IPv6 extension header of type `kind`. `body` is the part after the two bytes of type and length; it
    /// is padded with zeros to the next multiple of 8. A zero byte is also the padding option Pad1: Linux accepts 7 of
    /// them in a row and drops a packet with more.
    pub fn extension(mut self, kind: u8, body: &[u8]) -> Self {
        assert!(self.source.is_ipv6(), "extension headers are IPv6's");
        self.extensions.push((kind, padded(body, 8, 2)));
        self
    }

    /// Makes the packet TCP.
    pub fn tcp(mut self, header: Tcp) -> Self {
        self.transport = Transport::Tcp(header);
        self
    }

    /// Makes the packet UDP.
    pub fn udp(mut self, source: u16, destination: u16) -> Self {
        self.transport = Transport::Udp { source, destination };
        self
    }

    /// Makes the packet ICMP, or ICMPv6 between IPv6 addresses. `rest` is the second 32-bit word of the header.
    pub fn icmp(mut self, kind: u8, code: u8, rest: [u8; 4]) -> Self {
        self.transport = Transport::Icmp { kind, code, rest };
        self
    }

    /// Makes the payload follow the IP headers directly. `protocol` is the protocol number in these headers.
    pub fn raw(mut self, protocol: u8) -> Self {
        self.transport = Transport::Raw(protocol);
        self
    }

    /// Wraps the IPv4 packet in another IPv4 header with the same fields. The inner header gets the given options.
    pub fn shimmed(&self, options: &[u8]) -> Self {
        let inner = self.clone().options(options).ip();
        Self { options: Vec::new(), transport: Transport::Raw(protocol::IP_IN_IP), payload: inner, ..self.clone() }
    }

    /// Sets the payload.
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// Makes the checksum of TCP, UDP or ICMP wrong.
    pub fn wrong_checksum(mut self) -> Self {
        self.checksum = Checksum::Wrong;
        self
    }

    /// Sets the checksum of TCP, UDP or ICMP to zero, which UDP over IPv4 allows.
    pub fn no_checksum(mut self) -> Self {
        self.checksum = Checksum::Absent;
        self
    }

    /// Returns the whole frame, beginning with its Ethernet header.
    pub fn frame(&self) -> Vec<u8> {
        self.framed(&self.ip())
    }

    /// Returns the packet, beginning with its IP header.
    pub fn ip(&self) -> Vec<u8> {
        let segment = self.segment();
        let mut bytes = self.ip_header(segment.len(), None);
        bytes.extend(segment);
        bytes
    }

    /// Cuts the packet into fragments and returns their frames. Every fragment repeats the IP headers, with all IPv4
    /// options or IPv6 extensions. After them it carries `size` bytes (a multiple of 8); the last fragment can carry
    /// fewer.
    pub fn fragments(&self, size: usize) -> Vec<Vec<u8>> {
        assert!(size > 0 && size.is_multiple_of(8), "a fragment's offset counts in units of 8 bytes");
        let segment = self.segment();
        let cut = |(index, part): (usize, &[u8])| {
            let offset = u16::try_from(index * size).expect("a packet has at most 64 KiB");
            let more = usize::from(offset) + part.len() < segment.len();
            let mut bytes = self.ip_header(part.len(), Some((offset, more)));
            bytes.extend(part);
            self.framed(&bytes)
        };
        segment.chunks(size).enumerate().map(cut).collect()
    }

    fn framed(&self, ip: &[u8]) -> Vec<u8> {
        let kind: u16 = if self.source.is_ipv4() { 0x0800 } else { 0x86dd };
        [&self.macs.concat(), &self.tags.concat(), &kind.to_be_bytes()[..], ip].concat()
    }

    fn protocol(&self) -> u8 {
        match self.transport {
            Transport::Tcp(_) => protocol::TCP,
            Transport::Udp { .. } => protocol::UDP,
            Transport::Icmp { .. } if self.source.is_ipv4() => protocol::ICMP,
            Transport::Icmp { .. } => protocol::ICMPV6,
            Transport::Raw(protocol) => protocol,
        }
    }

    /// Returns the IP header, options and extensions of a packet with `length` bytes of segment. `fragment` is the
    /// fragment's offset in bytes and whether more fragments follow.
    fn ip_header(&self, length: usize, fragment: Option<(u16, bool)>) -> Vec<u8> {
        let short = |length: usize| u16::try_from(length).expect("a packet has at most 64 KiB").to_be_bytes();
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let size = 20 + self.options.len();
                let (offset, more) = fragment.unwrap_or_default();
                let flags = (u16::from(self.dont_fragment) << 14) | (u16::from(more) << 13) | (offset / 8);
                let mut header = vec![0x40 | (size / 4) as u8, self.class];
                header.extend(short(size + length));
                header.extend((self.identification as u16).to_be_bytes());
                header.extend(flags.to_be_bytes());
                header.extend([self.hops, self.protocol(), 0, 0]);
                header.extend(source.octets());
                header.extend(destination.octets());
                header.extend(&self.options);
                let sum = checksum(&[&header]);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                header
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut kinds: Vec<u8> = self.extensions.iter().map(|(kind, _)| *kind).collect();
                let mut bodies: Vec<Vec<u8>> = Vec::new();
                for (_, body) in &self.extensions {
                    let units = (body.len() + 2) / 8 - 1;
                    bodies.push(
                        [&[u8::try_from(units).expect("an extension has at most 2048 bytes")], &body[..]].concat(),
                    );
                }
                if let Some((offset, more)) = fragment {
                    kinds.push(protocol::FRAGMENT);
                    let word = (offset | u16::from(more)).to_be_bytes();
                    bodies.push([&[0], &word[..], &self.identification.to_be_bytes()].concat());
                }
                kinds.push(self.protocol());
                let chain: Vec<u8> =
                    bodies.iter().zip(&kinds[1..]).flat_map(|(body, next)| [&[*next], &body[..]].concat()).collect();
                let mut header = ((6 << 28) | (u32::from(self.class) << 20)).to_be_bytes().to_vec();
                header.extend(short(chain.len() + length));
                header.extend([kinds[0], self.hops]);
                header.extend(source.octets());
                header.extend(destination.octets());
                header.extend(chain);
                header
            }
            _ => unreachable!("INVARIANT: new() lets no mixed families in"),
        }
    }

    /// Returns transport header and payload, with the checksum in place.
    fn segment(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let at = match &self.transport {
            Transport::Tcp(tcp) => {
                let options = padded(&tcp.options, 4, 0);
                assert!(options.len() <= 40, "TCP options have at most 40 bytes");
                bytes.extend(tcp.source.to_be_bytes());
                bytes.extend(tcp.destination.to_be_bytes());
                bytes.extend(tcp.sequence.to_be_bytes());
                bytes.extend(tcp.acknowledgement.to_be_bytes());
                bytes.extend([(((20 + options.len()) / 4) << 4) as u8, tcp.flags]);
                bytes.extend(tcp.window.to_be_bytes());
                bytes.extend([0; 4]);
                bytes.extend(options);
                16
            }
            Transport::Udp { source, destination } => {
                let length = u16::try_from(8 + self.payload.len()).expect("a datagram has at most 64 KiB");
                bytes.extend([*source, *destination, length, 0].map(u16::to_be_bytes).concat());
                6
            }
            Transport::Icmp { kind, code, rest } => {
                bytes.extend([*kind, *code, 0, 0]);
                bytes.extend(rest);
                2
            }
            Transport::Raw(_) => return self.payload.clone(),
        };
        bytes.extend(&self.payload);
        if self.checksum != Checksum::Absent {
            let mut sum = transport_checksum(self.source, self.destination, self.protocol(), &bytes);
            if self.checksum == Checksum::Wrong {
                sum ^= 0x5555;
            }
            // In UDP, zero means that the packet has no checksum (RFC 768).
            if sum == 0 && self.protocol() == protocol::UDP {
                sum = 0xffff;
            }
            bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }
}

/// Returns the Internet checksum (RFC 1071) of `parts`. All parts except the last must have even lengths.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns the checksum of a TCP, UDP, ICMP or ICMPv6 `segment`; zero if the segment contains its correct checksum.
pub fn transport_checksum(source: IpAddr, destination: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let tail = [(segment.len() as u32).to_be_bytes(), u32::from(protocol).to_be_bytes()].concat();
    match (source, destination) {
        _ if protocol == protocol::ICMP => checksum(&[segment]),
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            checksum(&[&source.octets(), &destination.octets(), &tail, segment])
        }
        (source, destination) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            checksum(&[&octets(source), &octets(destination), &tail, segment])
        }
    }
}

/// Returns `bytes` padded with zeros until `before + length` is a multiple of `unit`.
fn padded(bytes: &[u8], unit: usize, before: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize((bytes.len() + before).next_multiple_of(unit) - before, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seen::Seen;

    fn between(source: &str, destination: &str) -> Packet {
        Packet::new(source.parse().unwrap(), destination.parse().unwrap())
    }

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // The example in RFC 1071, section 3.
        assert_eq!(checksum(&[&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
    }

    #[test]
    fn a_known_packet_comes_out_byte_for_byte() {
        let packet = between("192.0.2.1", "192.0.2.2").identification(0x1234).dont_fragment();
        let bytes = packet.udp(1000, 2000).payload(b"hi").ip();
        let expected = "4500001e123440004011a497c0000201c0000202" /* IPv4 */.to_owned()
            + "03e807d0000a07b5" /* UDP */ + "6869";
        assert_eq!(hex::encode(bytes), expected);
    }

    #[test]
    fn what_is_built_is_read_back() {
        let tcp = Tcp { sequence: 7, acknowledgement: 9, options: vec![2, 4, 5, 0xb4], ..Tcp::syn(1, 2) };
        let frame = between("10.0.0.1", "10.0.0.2")
            .ethernet([2; 6], [4; 6])
            .tag(SERVICE_VLAN, 5)
            .tag(VLAN, 7)
            .options(&[1, 1, 1])
            .hops(3)
            .tcp(tcp.clone())
            .payload(b"odd")
            .frame();
        let seen = Seen::frame(&frame).unwrap();
        assert_eq!((seen.macs, &seen.tags[..]), ([[2; 6], [4; 6]], &[(SERVICE_VLAN, 5), (VLAN, 7)][..]));
        assert_eq!((seen.hops, seen.tcp, &seen.payload[..]), (3, Some(tcp), &b"odd"[..]));
        assert!(seen.checksums_right);
    }

    #[test]
    fn extension_headers_are_chained() {
        let packet =
            between("fd00::1", "fd00::2").extension(protocol::HOP_BY_HOP, &[]).extension(60, &[1, 7, 0, 0, 0, 0, 0]);
        let frame = packet.udp(5, 6).payload(b"x").frame();
        let seen = Seen::frame(&frame).unwrap();
        assert_eq!((&seen.extensions[..], seen.protocol), (&[0, 60][..], protocol::UDP));
        assert_eq!((seen.ports, &seen.payload[..]), (Some((5, 6)), &b"x"[..]));
        assert_eq!(frame.len(), 14 + 40 + 8 + 16 + 8 + 1);
        assert!(seen.checksums_right);
    }

    #[test]
    fn fragments_add_up_to_the_packet() {
        for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let packet = between(source, destination).identification(77).udp(5, 6).payload(&[9; 100]);
            let parts: Vec<_> = packet.fragments(40).iter().map(|frame| Seen::frame(frame).unwrap()).collect();
            let places: Vec<_> = parts.iter().map(|part| part.fragment.unwrap()).collect();
            assert_eq!(places, [(0, true), (40, true), (80, false)]);
            assert_eq!(parts[0].ports, Some((5, 6)));
            assert_eq!(parts[1].ports, None);
            assert_eq!(parts.iter().map(|part| part.payload.len()).sum::<usize>(), 100);
        }
    }

    #[test]
    fn a_checksum_is_wrong_or_absent_when_asked() {
        let packet = between("10.0.0.1", "10.0.0.2").udp(5, 6).payload(b"x");
        assert!(!Seen::frame(&packet.clone().wrong_checksum().frame()).unwrap().checksums_right);
        assert!(Seen::frame(&packet.no_checksum().frame()).unwrap().checksums_right);
        let packet = between("10.0.0.1", "10.0.0.2").tcp(Tcp::syn(1, 2)).no_checksum();
        assert!(!Seen::frame(&packet.frame()).unwrap().checksums_right);
    }
}
