//! Tables of a tunnel endpoint (wire.md §8).

use super::address_bytes;
use crate::checksum::{fold, sum};
use crate::geneve::{ENCAPSULATION_MAX, Encapsulation};
use crate::inner::{Inner, Ports};
use crate::packet::{IPV4_LEN, IPV6_LEN, UDP};
use crate::routing::{Hops, ROUTING};
use crate::segment::{InterfaceId, PROOFS_MAX, Segment, SegmentFlags, Vni};
use core::net::{IpAddr, Ipv6Addr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Maximum length of the outer IP and UDP headers together, in bytes.
pub const OUTER_MAX: usize = 48;
/// Length of a routing header with the maximum number of hops, in bytes.
pub const ROUTING_MAX: usize = ROUTE_LEN + 16 * HOPS_MAX;
/// Room for Geneve's header, in bytes.
pub const GENEVE_MAX: usize = 128;
const HOPS_MAX: usize = PROOFS_MAX as usize;
const ROUTE_LEN: usize = 8;
const UDP_LEN: usize = 8;
const TTL: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;

const _: () = assert!(ENCAPSULATION_MAX <= GENEVE_MAX && IPV6_LEN + UDP_LEN <= OUTER_MAX);

/// The settings of the programs of a tunnel endpoint, fixed when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SvtepConfig {
    /// Index of the underlay's interface.
    pub underlay: u32,
    /// MTU of the underlay: length of the longest packet in bytes, without the link header.
    pub mtu: u32,
    /// 1 if the kernel can remove an outer IPv4 header from an IPv6 packet, and an outer IPv6 header from an IPv4
    /// packet (Linux 6.3).
    pub turns: u32,
    /// Maximum number of one tenant's packets that the program passes to user space per second. Control packets have a
    /// limit of their own.
    pub reports: u32,
}

/// State of a tenant. The table has one entry for each tenant's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Tenant {
    id: u32,
    second: u32,
    reported: u32,
    controls: u32,
}

impl Tenant {
    /// Returns the state of a new tenant with this interface id.
    pub const fn new(id: InterfaceId) -> Self {
        Self { id: id.0 as u32, second: 0, reported: 0, controls: 0 }
    }
}

/// The interface at which the program delivers packets for an interface id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Delivery {
    /// Index of the interface; 0 if there is none.
    pub interface: u32,
    vni: [u8; 4],
    /// The tenant's hardware address, which the program learns from the tenant's frames; zeros until then.
    pub mac: [u8; 6],
    peer: u8,
    reserved: u8,
}

impl Delivery {
    /// The value for an interface id that belongs to no interface: the program delivers no packets for it.
    pub const NONE: Self = Self { interface: 0, vni: [0; 4], mac: [0; 6], peer: 0, reserved: 0 };

    /// Returns the value for delivery to this interface of a tenant in this virtual network. `peer` says whether the
    /// interface is a veth whose other end is in another network namespace.
    pub const fn new(interface: u32, vni: Vni, peer: bool) -> Self {
        let [a, b, c] = vni.bytes();
        Self { interface, vni: [0, a, b, c], mac: [0; 6], peer: peer as u8, reserved: 0 }
    }
}

/// Key of the table of segments. It describes the packets of a tenant to which one segment applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentKey {
    /// The tenant's interface.
    pub interface: u32,
    family: u8,
    /// The protocol; 0 if the segment is for all services.
    pub protocol: u8,
    port: [u8; 2],
    other_port: [u8; 2],
    back: u8,
    reserved: [u8; 5],
    sender: [u8; 16],
    receiver: [u8; 16],
}

impl SegmentKey {
    /// Returns the key for packets from this sender, which is behind `interface`, to this receiver, for all services.
    pub fn new(interface: u32, sender: IpAddr, receiver: IpAddr) -> Self {
        Self {
            interface,
            family: if sender.is_ipv4() { 4 } else { 6 },
            protocol: 0,
            port: [0; 2],
            other_port: [0; 2],
            back: 0,
            reserved: [0; 5],
            sender: address_bytes(sender),
            receiver: address_bytes(receiver),
        }
    }

    /// Returns the key of `segment` for packets from `sender`, which is behind `interface`, to `receiver`.
    pub fn of(interface: u32, sender: IpAddr, receiver: IpAddr, segment: &Segment) -> Self {
        Self {
            protocol: segment.protocol,
            port: segment.port.to_be_bytes(),
            other_port: segment.sender_port.to_be_bytes(),
            back: segment.flags.has(SegmentFlags::RETURN).into(),
            ..Self::new(interface, sender, receiver)
        }
    }

    /// Returns the key for the sender, the receiver and the service of this packet.
    pub fn to_service(interface: u32, inner: &Inner) -> Self {
        let (_, port) = ports(inner);
        let all = Self::new(interface, inner.sender, inner.receiver);
        Self { protocol: inner.protocol, port: port.to_be_bytes(), ..all }
    }

    /// Returns the keys of the segments under which this packet could be sent as an answer: for its flow, for its
    /// service, and for all services.
    pub fn answering(interface: u32, inner: &Inner) -> [Self; 3] {
        let (port, other) = ports(inner);
        let all = Self { back: 1, ..Self::new(interface, inner.sender, inner.receiver) };
        let service = Self { protocol: inner.protocol, port: port.to_be_bytes(), ..all };
        [Self { other_port: other.to_be_bytes(), ..service }, service, all]
    }

    /// Returns the sender's address.
    pub fn sender(&self) -> IpAddr {
        address(self.family, self.sender)
    }

    /// Returns the receiver's address.
    pub fn receiver(&self) -> IpAddr {
        address(self.family, self.receiver)
    }

    /// Returns the port of the service and the port at the other end of the flow; 0 means any port.
    pub const fn ports(&self) -> (u16, u16) {
        (u16::from_be_bytes(self.port), u16::from_be_bytes(self.other_port))
    }

    /// Returns the key that stands for all flows of this key's service.
    pub const fn for_every_flow(self) -> Self {
        Self { other_port: [0; 2], ..self }
    }

    /// Reports whether the key is for answers.
    pub const fn is_back(&self) -> bool {
        self.back != 0
    }

    /// Returns an example of a packet to which the key applies, or `None` if the key is for all services.
    pub fn example(&self) -> Option<Inner> {
        let (port, other) = (u16::from_be_bytes(self.port), u16::from_be_bytes(self.other_port));
        let (source, destination) = if self.is_back() { (port, other) } else { (other, port) };
        (self.protocol != 0).then(|| Inner {
            sender: address(self.family, self.sender),
            receiver: address(self.family, self.receiver),
            protocol: self.protocol,
            ports: Ports::Shown(source, destination),
        })
    }

    /// Reports whether the key is for one flow only.
    pub const fn is_for_one_flow(&self) -> bool {
        u16::from_be_bytes(self.other_port) != 0
    }
}

const fn ports(inner: &Inner) -> (u16, u16) {
    if let Ports::Shown(source, destination) = inner.ports { (source, destination) } else { (0, 0) }
}

/// States of a [`SegmentEntry`]: decisions about packets.
pub mod segment_state {
    /// There is no segment. The daemon of the tunnel endpoint requests no segment until the entry expires.
    pub const REFUSED: u8 = 0;
    /// State of a segment that the endpoint has got from the authority, and under which it sends packets.
    pub const GIVEN: u8 = 1;
    /// Each flow has a segment of its own.
    pub const BY_FLOW: u8 = 2;
}

/// Decision about a tenant's packets, with the headers that the program prepends to these packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentEntry {
    /// Expiry of the entry, Unix seconds.
    pub until: u32,
    /// Time when the program last used the entry, Unix seconds.
    pub used: u32,
    state: u8,
    family: u8,
    local: u8,
    length: u8,
    hops: u8,
    reserved: [u8; 3],
    outer: [u8; OUTER_MAX],
    route: [u8; ROUTING_MAX],
    geneve: [u8; GENEVE_MAX],
}

impl SegmentEntry {
    /// Returns an entry that refuses packets until `until`.
    pub const fn refused(until: u32) -> Self {
        Self::without_headers(segment_state::REFUSED, until)
    }

    /// Returns an entry that leaves the decision to the entries of the individual flows.
    pub const fn by_flow() -> Self {
        Self::without_headers(segment_state::BY_FLOW, u32::MAX)
    }

    const fn without_headers(state: u8, until: u32) -> Self {
        let (outer, route, geneve) = ([0; OUTER_MAX], [0; ROUTING_MAX], [0; GENEVE_MAX]);
        let reserved = [0; 3];
        Self { until, used: 0, state, family: 0, local: 0, length: 0, hops: 0, reserved, outer, route, geneve }
    }

    /// Returns an entry for sending packets from one endpoint to the other under this segment. Returns `None` if the
    /// header can't be encoded, or if the endpoints' addresses are of different families.
    pub fn given(encapsulation: &Encapsulation<'_>, sending: IpAddr, receiving: IpAddr) -> Option<Self> {
        let mut entry = Self::without_headers(segment_state::GIVEN, encapsulation.segment.expires);
        entry.length = encapsulation.encode(&mut entry.geneve)? as u8;
        entry.local = (sending == receiving).into();
        let udp = match (sending, receiving) {
            (IpAddr::V4(sending), IpAddr::V4(receiving)) => {
                entry.family = 4;
                let ip = &mut entry.outer[..IPV4_LEN];
                (ip[0], ip[6], ip[8], ip[9]) = (0x45, DONT_FRAGMENT, TTL, UDP);
                ip[12..16].copy_from_slice(&sending.octets());
                ip[16..20].copy_from_slice(&receiving.octets());
                let checksum = !fold(sum(ip, false));
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
                IPV4_LEN
            }
            (IpAddr::V6(sending), IpAddr::V6(receiving)) => {
                entry.family = 6;
                let ip = &mut entry.outer[..IPV6_LEN];
                (ip[0], ip[6], ip[7]) = (0x60, UDP, TTL);
                ip[8..24].copy_from_slice(&sending.octets());
                ip[24..40].copy_from_slice(&receiving.octets());
                IPV6_LEN
            }
            _ => return None,
        };
        entry.outer[udp + 2..udp + 4].copy_from_slice(&crate::geneve::PORT.to_be_bytes());
        Some(entry)
    }

    /// Returns the entry with a fixed path along these hops (wire.md §8.12.1). Returns `None` if the entry has no
    /// segment, or if its endpoints are not IPv6.
    pub fn along(mut self, hops: &Hops) -> Option<Self> {
        let list = hops.list();
        let (count, first) = (u8::try_from(list.len()).ok()?, list.last()?);
        if self.state != segment_state::GIVEN || self.family != 6 {
            return None;
        }
        let (fixed, room) = self.route.split_first_chunk_mut::<ROUTE_LEN>()?;
        *fixed = Hops::header(count, count.checked_sub(1)?);
        room.get_mut(..16 * list.len())?.copy_from_slice(list.as_flattened());
        self.outer[6] = ROUTING;
        self.outer[24..IPV6_LEN].copy_from_slice(first);
        (self.hops, self.local) = (count, 0);
        Some(self)
    }

    /// Returns the state of the entry: one of the constants in [`segment_state`].
    pub const fn state(&self) -> u8 {
        self.state
    }

    /// Returns Geneve's header, with the segment and its proofs.
    pub fn geneve(&self) -> &[u8] {
        self.geneve.get(..self.length.into()).unwrap_or_default()
    }

    /// Returns the sending and the receiving endpoint, or `None` if the entry adds no headers.
    pub fn endpoints(&self) -> Option<(IpAddr, IpAddr)> {
        let (length, at) = match self.family {
            4 => (4, 12),
            6 => (16, 8),
            _ => return None,
        };
        let read = |header: &[u8], at: usize| {
            let mut bytes = [0; 16];
            bytes[..length].copy_from_slice(&header[at..at + length]);
            address(self.family, bytes)
        };
        // On a fixed path, the outer destination is the first hop. The list is in reverse order, so it begins with the
        // receiving endpoint.
        let receiving = if self.hops == 0 { read(&self.outer, at + length) } else { read(&self.route, ROUTE_LEN) };
        Some((read(&self.outer, at), receiving))
    }

    /// Returns the hops of a fixed path, in the order of the path. Empty if the path is not fixed.
    pub fn hops(&self) -> impl Iterator<Item = Ipv6Addr> {
        let list = self.route.get(ROUTE_LEN..ROUTE_LEN + 16 * usize::from(self.hops)).unwrap_or_default();
        list.as_chunks::<16>().0.iter().rev().map(|hop| Ipv6Addr::from(*hop))
    }

    /// Returns the number of bytes that the headers add to a packet. The state of the entry must be
    /// [`segment_state::GIVEN`].
    pub const fn grows(&self) -> usize {
        let route = if self.hops == 0 { 0 } else { ROUTE_LEN + 16 * self.hops as usize };
        (if self.family == 4 { IPV4_LEN } else { IPV6_LEN }) + route + UDP_LEN + self.length as usize
    }
}

/// A received segment under which the receiver is allowed to send answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Consent {
    sending: [u8; 16],
    receiving: [u8; 16],
    /// Expiry of the received segment, Unix seconds.
    pub expires: u32,
    family: u8,
    length: u8,
    hops: u8,
    reserved: u8,
    geneve: [u8; GENEVE_MAX],
    route: [[u8; 16]; HOPS_MAX],
}

impl Consent {
    /// Returns the record of the segment in `encapsulation`. The encapsulated packet came from the endpoint `sending`
    /// to the endpoint `receiving`. Returns `None` if the header can't be encoded.
    pub fn new(encapsulation: &Encapsulation<'_>, sending: IpAddr, receiving: IpAddr) -> Option<Self> {
        let mut geneve = [0; GENEVE_MAX];
        let length = encapsulation.encode(&mut geneve)? as u8;
        let (family, expires) = (if sending.is_ipv4() { 4 } else { 6 }, encapsulation.segment.expires);
        let [sending, receiving] = [sending, receiving].map(address_bytes);
        let route = [[0; 16]; HOPS_MAX];
        Some(Self { sending, receiving, expires, family, length, hops: 0, reserved: 0, geneve, route })
    }

    /// Adds the hops of the fixed path along which the packet with the segment came.
    pub fn along(mut self, hops: &Hops) -> Self {
        self.hops = hops.list().len() as u8;
        self.route.iter_mut().zip(hops.list()).for_each(|(room, hop)| *room = *hop);
        self
    }

    /// Returns the hops of the fixed path along which the packet came, in the order of the path. Empty if the path is
    /// not fixed.
    pub fn hops(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.route.get(..self.hops.into()).unwrap_or_default().iter().rev().map(|hop| Ipv6Addr::from(*hop))
    }

    /// Returns the endpoint that sent the packet, and the endpoint that received it.
    pub fn endpoints(&self) -> (IpAddr, IpAddr) {
        (address(self.family, self.sending), address(self.family, self.receiving))
    }

    /// Returns Geneve's header as it was sent, with the pointer at the first verifier.
    pub fn geneve(&self) -> &[u8] {
        self.geneve.get(..self.length.into()).unwrap_or_default()
    }
}

/// Returns the address that a map's 16 bytes contain.
fn address(family: u8, bytes: [u8; 16]) -> IpAddr {
    match bytes {
        [a, b, c, d, ..] if family == 4 => IpAddr::from([a, b, c, d]),
        _ => IpAddr::from(bytes),
    }
}

/// Header of a packet that is passed to user space: a tenant's packet, or a control packet for the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UnsentHeader {
    /// The tenant's interface.
    pub interface: u32,
    /// Length of the frame in bytes.
    pub length: u32,
    /// Number of payload bytes of each segment if the packet is a super-packet (GSO), otherwise 0.
    pub segment: u32,
    /// The maximum length in bytes of a packet that fits the tunnel, if this packet was too long. 0 if there is no
    /// segment for the packet. [`Self::CONTROL`] if the packet is a control packet.
    pub limit: u32,
}

impl UnsentHeader {
    /// Value of `limit` for a control packet, which the endpoint does not deliver to a tenant (wire.md §8.15).
    pub const CONTROL: u32 = u32::MAX;
}

/// Indices of the programs' counters.
pub mod svtep_counter {
    /// Number of packets sent into the tunnel.
    pub const SENT: u32 = 0;
    /// Number of packets without a segment that were passed to user space.
    pub const UNKNOWN: u32 = 1;
    /// Number of packets that were not passed to user space because a buffer was full or because of the rate limit.
    pub const UNREPORTED: u32 = 2;
    /// Number of packets that were dropped because a request for their segment was refused.
    pub const REFUSED: u32 = 3;
    /// Number of packets that were passed to user space because they were too long for the tunnel.
    pub const TOO_LONG: u32 = 4;
    /// Number of packets that were dropped because of their form.
    pub const MALFORMED: u32 = 5;
    /// Number of later fragments that were dropped because there is no segment for all services.
    pub const FRAGMENT: u32 = 6;
    /// Number of frames that are meant only for the link, and not for the tunnel.
    pub const OTHER: u32 = 7;
    /// Number of neighbour solicitations and ARP requests that the program answered.
    pub const NEIGHBOUR: u32 = 8;
    /// Number of packets that were dropped because the kernel failed to change them.
    pub const FAILED: u32 = 9;
    /// Number of packets from the tunnel that were delivered to tenants.
    pub const DELIVERED: u32 = 10;
    /// Number of packets with a valid proof that were not delivered: this endpoint has no interface for them, another
    /// verifier has to check them first, they came with a VLAN tag, they contain no inner packet, or they are control
    /// packets that are too long.
    pub const UNDELIVERED: u32 = 11;
    /// Number of received segments that were recorded because the receiver is allowed to answer.
    pub const CONSENTS: u32 = 12;
    /// Number of control packets that were passed to user space.
    pub const CONTROL: u32 = 13;
    /// Number of entries in the table of counters.
    pub const COUNT: u32 = 16;
}
