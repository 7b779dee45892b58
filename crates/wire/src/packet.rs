//! Parser of frames: Ethernet, VLAN tags, IPv4 and IPv6 with options and extension headers, and transport headers.
//!
//! This parser reads only the fields that a verifier needs to decide about a packet (wire.md §6.5). The kernel programs
//! parse in the same way (`bpf/include/parse.h`). The case table and the differential fuzzer compare the two parsers.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// TCP's protocol number.
pub const TCP: u8 = 6;
/// UDP's protocol number.
pub const UDP: u8 = 17;
/// ICMP's protocol number.
pub const ICMP: u8 = 1;
/// ICMPv6's protocol number.
pub const ICMPV6: u8 = 58;

/// TCP flag bits.
pub mod tcp_flags {
    /// FIN: the sender has no more data.
    pub const FIN: u8 = 1;
    /// SYN: synchronises sequence numbers.
    pub const SYN: u8 = 2;
    /// RST: resets the connection.
    pub const RST: u8 = 4;
    /// PSH: asks the receiver to pass the data on at once.
    pub const PSH: u8 = 8;
    /// ACK: the acknowledgement number is valid.
    pub const ACK: u8 = 16;
    /// URG: the urgent pointer is valid.
    pub const URG: u8 = 32;
}

const ETHERNET_LEN: usize = 14;
const VLAN_TAGS_MAX: usize = 2;
pub(crate) const IPV4_LEN: usize = 20;
pub(crate) const IPV6_LEN: usize = 40;
const EXTENSION_HEADERS_MAX: usize = 8;
/// Maximum number of addresses of a source route that are examined. If a route has more, [`Route::unknown`] is set.
pub const ROUTE_MAX: usize = 9;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

/// Fragmentation state of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragment {
    /// The packet is a whole datagram.
    #[default]
    Whole,
    /// The packet is the first fragment of a datagram with this identification.
    First(u32),
    /// The packet is a later fragment, without a transport header, of a datagram with this identification.
    Later(u32),
}

/// The remaining addresses of a source route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    addresses: [IpAddr; ROUTE_MAX],
    len: usize,
    /// Whether the route has more addresses than were examined, or has addresses that can't be read.
    pub unknown: bool,
}

impl Default for Route {
    fn default() -> Self {
        Self { addresses: [IpAddr::V4(Ipv4Addr::UNSPECIFIED); ROUTE_MAX], len: 0, unknown: false }
    }
}

impl Route {
    /// Returns the remaining addresses, as far as they were examined.
    pub fn addresses(&self) -> &[IpAddr] {
        self.addresses.get(..self.len).unwrap_or_default()
    }

    fn push(&mut self, address: IpAddr) {
        match self.addresses.get_mut(self.len) {
            Some(room) => {
                *room = address;
                self.len += 1;
            }
            None => self.unknown = true,
        }
    }
}

/// Result of parsing a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The frame contains neither IPv4 nor IPv6.
    NotIp,
    /// The packet violates its format or is cut short. [`Packet::destination`] can be set nevertheless.
    Broken,
    /// All required fields were read.
    Whole,
}

/// Parsed fields of one frame. Offsets are in bytes from the start of the frame.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Result of parsing. If the parser stopped early, only the fields that it had read by then are set.
    pub form: Form,
    /// Start of the IP header.
    pub network: usize,
    /// Start of the transport header.
    pub transport: usize,
    /// Start of the transport's payload.
    pub payload: usize,
    /// End of the IP packet. Link padding can follow.
    pub end: usize,
    /// The sender's address, if it was read.
    pub source: Option<IpAddr>,
    /// The receiver's address, if it was read.
    pub destination: Option<IpAddr>,
    /// Number of the transport protocol.
    pub protocol: u8,
    /// The sender's port; 0 if the protocol is neither TCP nor UDP, or if the packet is a later fragment.
    pub source_port: u16,
    /// The receiver's port; 0 if the protocol is neither TCP nor UDP, or if the packet is a later fragment.
    pub destination_port: u16,
    /// Flag bits of the TCP header; 0 for other protocols and for fragments.
    pub tcp_flags: u8,
    /// TCP's sequence number.
    pub sequence: u32,
    /// TCP's acknowledgement number.
    pub acknowledgement: u32,
    /// Time to live or hop limit.
    pub hop_limit: u8,
    /// Type of the ICMP or ICMPv6 message.
    pub icmp_type: u8,
    /// Fragmentation state: whole, first fragment or later fragment.
    pub fragment: Fragment,
    /// Whether the packet has a fragment header although it is whole (RFC 6946).
    pub atomic: bool,
    /// Remaining destinations of a source route.
    pub route: Route,
}

impl Packet {
    /// Parses an Ethernet frame.
    pub fn parse(frame: &[u8]) -> Self {
        let mut packet = Self::unread();
        if let Some(form) = packet.link(frame) {
            packet.form = form;
        }
        packet
    }

    /// Parses a packet that begins with its IP header, as on a link without a header of its own.
    pub fn parse_ip(packet: &[u8]) -> Self {
        let mut parsed = Self::unread();
        let form = match packet.first().map(|first| first >> 4) {
            Some(4) => parsed.ipv4(packet, 0),
            Some(6) => parsed.ipv6_header(packet, 0),
            _ => Some(Form::NotIp),
        };
        parsed.form = form.unwrap_or(Form::Broken);
        parsed
    }

    fn unread() -> Self {
        Self {
            form: Form::Broken,
            network: 0,
            transport: 0,
            payload: 0,
            end: 0,
            source: None,
            destination: None,
            protocol: 0,
            source_port: 0,
            destination_port: 0,
            tcp_flags: 0,
            sequence: 0,
            acknowledgement: 0,
            hop_limit: 0,
            icmp_type: 0,
            fragment: Fragment::Whole,
            atomic: false,
            route: Route::default(),
        }
    }

    /// Parses the packet that an ICMP error quotes at the offset `at`. Sets only source, destination, protocol and
    /// ports. The quoted packet need not be complete after its ports.
    pub fn parse_quoted(frame: &[u8], at: usize, end: usize, ipv6: bool) -> Self {
        let mut packet = Self::unread();
        let form = frame.get(..end).and_then(|frame| packet.quoted(frame, at, ipv6));
        packet.form = form.unwrap_or(Form::Broken);
        packet
    }

    /// Reports whether the addresses are IPv6.
    pub fn ipv6(&self) -> bool {
        matches!(self.destination, Some(IpAddr::V6(_)))
    }

    /// Reports whether this is a TCP SYN without ACK.
    pub fn opens(&self) -> bool {
        self.protocol == TCP && self.tcp_flags & (tcp_flags::SYN | tcp_flags::ACK) == tcp_flags::SYN
    }

    /// Reports whether this is an ICMP error of type 3, 11 or 12, or an ICMPv6 error of type 1 to 4. These errors quote
    /// a packet.
    pub fn icmp_error(&self) -> bool {
        match self.protocol {
            ICMP => !self.ipv6() && matches!(self.icmp_type, 3 | 11 | 12),
            ICMPV6 => self.ipv6() && matches!(self.icmp_type, 1..=4),
            _ => false,
        }
    }

    /// Reports whether this is an ICMP echo reply.
    pub fn icmp_echo_reply(&self) -> bool {
        match self.protocol {
            ICMP => !self.ipv6() && self.icmp_type == 0,
            ICMPV6 => self.ipv6() && self.icmp_type == 129,
            _ => false,
        }
    }

    /// Reports whether this is a packet of neighbour discovery that was sent on the same link. The hop limit of 255
    /// shows this (RFC 4861).
    pub fn neighbour_discovery(&self) -> bool {
        self.protocol == ICMPV6 && self.ipv6() && matches!(self.icmp_type, 133..=137) && self.hop_limit == 255
    }

    fn link(&mut self, frame: &[u8]) -> Option<Form> {
        if frame.len() < ETHERNET_LEN {
            return Some(Form::NotIp);
        }
        let mut at = ETHERNET_LEN;
        let mut ether_type = u16_at(frame, 12)?;
        let mut tags = 0;
        while matches!(ether_type, 0x8100 | 0x88a8) {
            if tags == VLAN_TAGS_MAX {
                return None;
            }
            ether_type = u16_at(frame, at + 2)?;
            at += 4;
            tags += 1;
        }
        self.network = at;
        match ether_type {
            0x0800 => self.ipv4(frame, at),
            0x86dd => self.ipv6_header(frame, at),
            _ => Some(Form::NotIp),
        }
    }

    fn ipv4(&mut self, frame: &[u8], at: usize) -> Option<Form> {
        let header: &[u8; IPV4_LEN] = frame.get(at..)?.first_chunk()?;
        self.source = Some(ipv4_at(header, 12)?);
        self.destination = Some(ipv4_at(header, 16)?);
        self.hop_limit = header[8];
        let header_len = usize::from(header[0] & 15) * 4;
        let total_len = usize::from(u16_at(header, 2)?);
        if header[0] >> 4 != 4 || header_len < IPV4_LEN || total_len < header_len || frame.len() - at < total_len {
            return None;
        }
        self.end = at + total_len;
        self.ipv4_options(frame.get(at + IPV4_LEN..at + header_len)?)?;
        let fragment = u16_at(header, 6)?;
        let id = u32::from(u16_at(header, 4)?);
        if fragment & 0x1fff != 0 {
            self.fragment = Fragment::Later(id);
        } else if fragment & 0x2000 != 0 {
            self.fragment = Fragment::First(id);
        }
        self.after_ip(frame, at + header_len, header[9])
    }

    fn ipv4_options(&mut self, mut options: &[u8]) -> Option<()> {
        while let Some((&kind, rest)) = options.split_first() {
            match kind {
                0 => return Some(()),
                1 => options = rest,
                _ => {
                    let len = usize::from(*rest.first()?);
                    let option = options.get(..len).filter(|option| option.len() >= 2)?;
                    if matches!(kind, 131 | 137) {
                        self.ipv4_route(option);
                    }
                    options = options.get(len..)?;
                }
            }
        }
        Some(())
    }

    /// Parses a loose or strict source route (RFC 791). The option's pointer counts bytes from 1, and the first address
    /// is at 4.
    fn ipv4_route(&mut self, option: &[u8]) {
        let pointer = option.get(2).copied().map_or(0, usize::from);
        if option.len() < 3 || pointer < 4 {
            self.route.unknown = true;
            return;
        }
        if pointer > option.len() {
            return;
        }
        for address in option.get(3..).unwrap_or_default().as_chunks::<4>().0 {
            self.route.push(IpAddr::V4((*address).into()));
        }
    }

    fn ipv6_header(&mut self, frame: &[u8], at: usize) -> Option<Form> {
        let header: &[u8; IPV6_LEN] = frame.get(at..)?.first_chunk()?;
        self.source = Some(ipv6_at(header, 8)?);
        self.destination = Some(ipv6_at(header, 24)?);
        self.hop_limit = header[7];
        let payload_len = usize::from(u16_at(header, 4)?);
        if header[0] >> 4 != 6 || frame.len() - at - IPV6_LEN < payload_len {
            return None;
        }
        self.end = at + IPV6_LEN + payload_len;
        self.after_ip(frame, at + IPV6_LEN, header[6])
    }

    /// Skips extension headers (and AH, which also occurs in IPv4), then parses the transport header.
    fn after_ip(&mut self, frame: &[u8], mut at: usize, mut next: u8) -> Option<Form> {
        let frame = frame.get(..self.end)?;
        let ipv6 = self.ipv6();
        let mut headers = 0;
        while matches!(self.fragment, Fragment::Whole | Fragment::First(_))
            && (next == AUTHENTICATION || ipv6 && matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS))
        {
            if headers == EXTENSION_HEADERS_MAX {
                return None;
            }
            headers += 1;
            let header: &[u8; 8] = frame.get(at..)?.first_chunk()?;
            let kind = core::mem::replace(&mut next, header[0]);
            let len = match kind {
                FRAGMENT => 8,
                AUTHENTICATION => (usize::from(header[1]) + 2) * 4,
                _ => (usize::from(header[1]) + 1) * 8,
            };
            match kind {
                FRAGMENT => self.ipv6_fragment(header),
                ROUTING => self.ipv6_route(frame, at, header),
                _ => {}
            }
            at += len;
            if at > frame.len() {
                return None;
            }
        }
        self.transport = at;
        self.protocol = next;
        self.transport_header(frame)
    }

    fn ipv6_fragment(&mut self, header: &[u8; 8]) {
        let [_, _, high, low, id @ ..] = *header;
        let id = u32::from_be_bytes(id);
        let field = u16::from_be_bytes([high, low]);
        if field & 0xfff8 != 0 {
            self.fragment = Fragment::Later(id);
        } else if field & 1 != 0 {
            self.fragment = Fragment::First(id);
        } else {
            self.atomic = true;
        }
    }

    /// Parses a routing header. A type 4 header lists whole addresses after its first eight bytes (RFC 8754). The route
    /// of any other type counts as unknown. Hosts answer types 0 and 2 with an error. If only some addresses of such a
    /// route were silent, the silence would reveal which addresses are protected.
    fn ipv6_route(&mut self, frame: &[u8], at: usize, header: &[u8; 8]) {
        let [_, len, kind, segments_left, ..] = *header;
        if segments_left == 0 {
            return;
        }
        let count = usize::from(len) / 2;
        if kind != 4 || count > ROUTE_MAX {
            self.route.unknown = true;
            return;
        }
        let addresses = frame.get(at + 8..).unwrap_or_default();
        for index in 0..count {
            match ipv6_at(addresses, index * 16) {
                Some(address) => self.route.push(address),
                None => self.route.unknown = true,
            }
        }
    }

    /// Parses the header at `transport` of a frame that ends with its IP packet.
    pub(crate) fn transport_header(&mut self, frame: &[u8]) -> Option<Form> {
        if matches!(self.fragment, Fragment::Later(_)) {
            return Some(Form::Whole);
        }
        let transport = frame.get(self.transport..)?;
        self.payload = self.transport;
        let first = matches!(self.fragment, Fragment::First(_));
        match self.protocol {
            TCP | UDP if first => {
                self.source_port = u16_at(transport, 0)?;
                self.destination_port = u16_at(transport, 2)?;
                self.payload = self.transport + 8;
            }
            TCP => {
                let header: &[u8; 20] = transport.first_chunk()?;
                let header_len = usize::from(header[12] >> 4) * 4;
                if header_len < 20 || transport.len() < header_len {
                    return None;
                }
                self.source_port = u16_at(header, 0)?;
                self.destination_port = u16_at(header, 2)?;
                self.tcp_flags = header[13];
                self.sequence = u32_at(header, 4)?;
                self.acknowledgement = u32_at(header, 8)?;
                self.payload = self.transport + header_len;
            }
            UDP => {
                let header: &[u8; 8] = transport.first_chunk()?;
                let len = usize::from(u16_at(header, 4)?);
                if len < 8 || transport.len() < len {
                    return None;
                }
                self.source_port = u16_at(header, 0)?;
                self.destination_port = u16_at(header, 2)?;
                self.payload = self.transport + 8;
            }
            ICMP | ICMPV6 => {
                let header: &[u8; 8] = transport.first_chunk()?;
                self.icmp_type = header[0];
                self.payload = self.transport + 8;
            }
            _ => {}
        }
        Some(Form::Whole)
    }

    fn quoted(&mut self, frame: &[u8], at: usize, ipv6: bool) -> Option<Form> {
        let ports = if ipv6 {
            let header: &[u8; IPV6_LEN] = frame.get(at..)?.first_chunk()?;
            self.source = Some(ipv6_at(header, 8)?);
            self.destination = Some(ipv6_at(header, 24)?);
            let (protocol, transport) = quoted_transport(frame, at + IPV6_LEN, header[6])?;
            self.protocol = protocol;
            transport
        } else {
            let header: &[u8; IPV4_LEN] = frame.get(at..)?.first_chunk()?;
            let header_len = usize::from(header[0] & 15) * 4;
            if header_len < IPV4_LEN || u16_at(header, 6)? & 0x1fff != 0 {
                return None;
            }
            self.source = Some(ipv4_at(header, 12)?);
            self.destination = Some(ipv4_at(header, 16)?);
            self.protocol = header[9];
            at + header_len
        };
        if matches!(self.protocol, TCP | UDP) {
            self.source_port = u16_at(frame, ports)?;
            self.destination_port = u16_at(frame, ports + 2)?;
        }
        Some(Form::Whole)
    }
}

/// Returns the transport protocol of a quoted IPv6 packet and its offset, or `None` if the extension headers can't be
/// followed to a transport header.
fn quoted_transport(frame: &[u8], mut at: usize, mut next: u8) -> Option<(u8, usize)> {
    for _ in 0..=EXTENSION_HEADERS_MAX {
        if !matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS) {
            return Some((next, at));
        }
        let header: &[u8; 8] = frame.get(at..)?.first_chunk()?;
        at += match next {
            FRAGMENT if u16_at(header, 2)? & 0xfff8 != 0 => return None,
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(header[1]) + 2) * 4,
            _ => (usize::from(header[1]) + 1) * 8,
        };
        if at > frame.len() {
            return None;
        }
        next = header[0];
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

fn ipv4_at(bytes: &[u8], at: usize) -> Option<IpAddr> {
    bytes.get(at..)?.first_chunk::<4>().map(|bytes| IpAddr::V4(Ipv4Addr::from(*bytes)))
}

fn ipv6_at(bytes: &[u8], at: usize) -> Option<IpAddr> {
    bytes.get(at..)?.first_chunk::<16>().map(|bytes| IpAddr::V6(Ipv6Addr::from(*bytes)))
}
