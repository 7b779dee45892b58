//! Tables of a tunnel endpoint (wire.md §8).

use super::address_bytes;
use crate::geneve::{ENCAPSULATION_MAX, Encapsulation};
use crate::inner::{Inner, Ports};
use crate::packet::{IPV4_LEN, IPV6_LEN, UDP};
use crate::routing::{Hops, ROUTING};
use crate::segment::{InterfaceId, PROOFS_MAX, Segment, SegmentFlags, Vni};
use crate::tail::{fold, sum};
use core::net::{IpAddr, Ipv6Addr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Room for the outer IP and UDP headers.
pub const OUTER_MAX: usize = 48;
/// Room for a routing header with as many hops as there can be.
pub const ROUTING_MAX: usize = ROUTE_LEN + 16 * HOPS_MAX;
/// Room for Geneve's header.
pub const GENEVE_MAX: usize = 128;
const HOPS_MAX: usize = PROOFS_MAX as usize;
const ROUTE_LEN: usize = 8;
const UDP_LEN: usize = 8;
const TTL: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;

const _: () = assert!(ENCAPSULATION_MAX <= GENEVE_MAX && IPV6_LEN + UDP_LEN <= OUTER_MAX);

/// The programs' settings, fixed when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SvtepConfig {
    /// The underlay's interface.
    pub underlay: u32,
    /// The longest packet there, bytes without its link header.
    pub mtu: u32,
    /// 1: the kernel takes a header of one family off a packet of the other.
    pub turns: u32,
    /// How many packets of one tenant are handed over in a second.
    pub reports: u32,
}

/// An interface behind which a tenant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Tenant {
    id: u32,
    second: u32,
    reported: u32,
    reserved: u32,
}

impl Tenant {
    /// The tenant with this interface id.
    pub const fn new(id: InterfaceId) -> Self {
        Self { id: id.0 as u32, second: 0, reported: 0, reserved: 0 }
    }
}

/// Where packets for an interface id go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Delivery {
    /// The interface; 0 if there is none.
    pub interface: u32,
    vni: [u8; 4],
    /// The tenant's hardware address, which the program finds out by itself; zeros until then.
    pub mac: [u8; 6],
    peer: u8,
    reserved: u8,
}

impl Delivery {
    /// Nowhere.
    pub const NONE: Self = Self { interface: 0, vni: [0; 4], mac: [0; 6], peer: 0, reserved: 0 };

    /// To an interface, of a tenant in this virtual network; `peer` if it is a cable whose end is in a namespace of its own.
    pub const fn new(interface: u32, vni: Vni, peer: bool) -> Self {
        let [a, b, c] = vni.bytes();
        Self { interface, vni: [0, a, b, c], mac: [0; 6], peer: peer as u8, reserved: 0 }
    }
}

/// Which packets of a tenant a segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentKey {
    /// The tenant's interface.
    pub interface: u32,
    family: u8,
    /// The protocol; 0 if it is for all services.
    pub protocol: u8,
    port: [u8; 2],
    other_port: [u8; 2],
    back: u8,
    reserved: [u8; 5],
    sender: [u8; 16],
    receiver: [u8; 16],
}

impl SegmentKey {
    /// Packets from this sender to this receiver behind `interface`, for all services.
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

    /// Those that this segment is for.
    pub fn of(interface: u32, sender: IpAddr, receiver: IpAddr, segment: &Segment) -> Self {
        Self {
            protocol: segment.protocol,
            port: segment.port.to_be_bytes(),
            other_port: segment.sender_port.to_be_bytes(),
            back: segment.flags.has(SegmentFlags::RETURN).into(),
            ..Self::new(interface, sender, receiver)
        }
    }

    /// Those of this packet's service.
    pub fn to_service(interface: u32, inner: &Inner) -> Self {
        let (_, port) = ports(inner);
        let all = Self::new(interface, inner.sender, inner.receiver);
        Self { protocol: inner.protocol, port: port.to_be_bytes(), ..all }
    }

    /// Under which segments a packet would be an answer: for its flow, its service, all services.
    pub fn answering(interface: u32, inner: &Inner) -> [Self; 3] {
        let (port, other) = ports(inner);
        let all = Self { back: 1, ..Self::new(interface, inner.sender, inner.receiver) };
        let service = Self { protocol: inner.protocol, port: port.to_be_bytes(), ..all };
        [Self { other_port: other.to_be_bytes(), ..service }, service, all]
    }

    /// Who sends.
    pub fn sender(&self) -> IpAddr {
        address(self.family, self.sender)
    }

    /// Whom to.
    pub fn receiver(&self) -> IpAddr {
        address(self.family, self.receiver)
    }

    /// The port at the service, and the one at the other end: 0 for whichever.
    pub const fn ports(&self) -> (u16, u16) {
        (u16::from_be_bytes(self.port), u16::from_be_bytes(self.other_port))
    }

    /// The same for whichever flow.
    pub const fn for_every_flow(self) -> Self {
        Self { other_port: [0; 2], ..self }
    }

    /// Whether it is for answers.
    pub const fn is_back(&self) -> bool {
        self.back != 0
    }

    /// A packet that it is for, without what it leaves open; none if that is the service.
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

    /// Whether it is for one flow.
    pub const fn is_for_one_flow(&self) -> bool {
        u16::from_be_bytes(self.other_port) != 0
    }
}

const fn ports(inner: &Inner) -> (u16, u16) {
    if let Ports::Shown(source, destination) = inner.ports { (source, destination) } else { (0, 0) }
}

/// What may be done with packets.
pub mod segment_state {
    /// There is no segment, and none is asked for until the time is over.
    pub const REFUSED: u8 = 0;
    /// They go under this segment.
    pub const GIVEN: u8 = 1;
    /// Flows have segments of their own.
    pub const BY_FLOW: u8 = 2;
}

/// What is put before packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentEntry {
    /// Until when, Unix seconds.
    pub until: u32,
    /// When the program used it last.
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
    /// There is no segment.
    pub const fn refused(until: u32) -> Self {
        Self::without_headers(segment_state::REFUSED, until)
    }

    /// Each flow has its own.
    pub const fn by_flow() -> Self {
        Self::without_headers(segment_state::BY_FLOW, u32::MAX)
    }

    const fn without_headers(state: u8, until: u32) -> Self {
        let (outer, route, geneve) = ([0; OUTER_MAX], [0; ROUTING_MAX], [0; GENEVE_MAX]);
        let reserved = [0; 3];
        Self { until, used: 0, state, family: 0, local: 0, length: 0, hops: 0, reserved, outer, route, geneve }
    }

    /// Packets go from one endpoint to the other under this segment. `None` if it can't be written, or the endpoints are of two
    /// families.
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

    /// The same along a fixed path (wire.md §8.12.1). `None` if it isn't a segment's over IPv6.
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

    /// One of [`segment_state`].
    pub const fn state(&self) -> u8 {
        self.state
    }

    /// Geneve's header.
    pub fn geneve(&self) -> &[u8] {
        self.geneve.get(..self.length.into()).unwrap_or_default()
    }

    /// From which endpoint to which; none where packets get no headers.
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
        // On a fixed path packets go to the first hop first; the last one stands first in the list.
        let receiving = if self.hops == 0 { read(&self.outer, at + length) } else { read(&self.route, ROUTE_LEN) };
        Some((read(&self.outer, at), receiving))
    }

    /// How many bytes a packet grows by.
    pub const fn grows(&self) -> usize {
        let route = if self.hops == 0 { 0 } else { ROUTE_LEN + 16 * self.hops as usize };
        (if self.family == 4 { IPV4_LEN } else { IPV6_LEN }) + route + UDP_LEN + self.length as usize
    }
}

/// A segment that came in and may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Consent {
    sending: [u8; 16],
    receiving: [u8; 16],
    /// When it ends, Unix seconds.
    pub expires: u32,
    family: u8,
    length: u8,
    hops: u8,
    reserved: u8,
    geneve: [u8; GENEVE_MAX],
    route: [[u8; 16]; HOPS_MAX],
}

impl Consent {
    /// What came in under this header from one endpoint at another. `None` if it can't be written.
    pub fn new(encapsulation: &Encapsulation<'_>, sending: IpAddr, receiving: IpAddr) -> Option<Self> {
        let mut geneve = [0; GENEVE_MAX];
        let length = encapsulation.encode(&mut geneve)? as u8;
        let (family, expires) = (if sending.is_ipv4() { 4 } else { 6 }, encapsulation.segment.expires);
        let [sending, receiving] = [sending, receiving].map(address_bytes);
        let route = [[0; 16]; HOPS_MAX];
        Some(Self { sending, receiving, expires, family, length, hops: 0, reserved: 0, geneve, route })
    }

    /// The same of a packet that came along a fixed path.
    pub fn along(mut self, hops: &Hops) -> Self {
        self.hops = hops.list().len() as u8;
        self.route.iter_mut().zip(hops.list()).for_each(|(room, hop)| *room = *hop);
        self
    }

    /// The hops of the path that it came along if that is fixed, first to last.
    pub fn hops(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.route.get(..self.hops.into()).unwrap_or_default().iter().rev().map(|hop| Ipv6Addr::from(*hop))
    }

    /// From which endpoint it came, and at which it came in.
    pub fn endpoints(&self) -> (IpAddr, IpAddr) {
        (address(self.family, self.sending), address(self.family, self.receiving))
    }

    /// Geneve's header as it was sent, with the pointer at the first verifier.
    pub fn geneve(&self) -> &[u8] {
        self.geneve.get(..self.length.into()).unwrap_or_default()
    }
}

/// An address out of a map.
fn address(family: u8, bytes: [u8; 16]) -> IpAddr {
    match bytes {
        [a, b, c, d, ..] if family == 4 => IpAddr::from([a, b, c, d]),
        _ => IpAddr::from(bytes),
    }
}

/// A tenant's packet that user space gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UnsentHeader {
    /// The tenant's interface.
    pub interface: u32,
    /// How long the frame was.
    pub length: u32,
    /// Payload bytes per segment, if it is several, else 0.
    pub segment: u32,
    /// The longest packet that would get through; 0 if no segment is there for it.
    pub limit: u32,
}

/// What the programs count.
pub mod svtep_counter {
    /// Packets that went into the tunnel.
    pub const SENT: u32 = 0;
    /// Packets without a segment, handed over.
    pub const UNKNOWN: u32 = 1;
    /// Packets that were to be handed over and found no room, or were too many.
    pub const UNREPORTED: u32 = 2;
    /// Packets for which there is no segment.
    pub const REFUSED: u32 = 3;
    /// Packets too long for the tunnel.
    pub const TOO_LONG: u32 = 4;
    /// Packets that don't travel because of their form.
    pub const MALFORMED: u32 = 5;
    /// Later fragments without a segment for all services.
    pub const FRAGMENT: u32 = 6;
    /// What is of the link only.
    pub const OTHER: u32 = 7;
    /// Questions for neighbours, answered.
    pub const NEIGHBOUR: u32 = 8;
    /// Packets that the kernel failed to change.
    pub const FAILED: u32 = 9;
    /// Packets that came out of the tunnel.
    pub const DELIVERED: u32 = 10;
    /// Packets with right proofs for no interface here, or with another verifier yet to come.
    pub const UNDELIVERED: u32 = 11;
    /// Segments noted that may be answered.
    pub const CONSENTS: u32 = 12;
    /// How many counters there are.
    pub const COUNT: u32 = 16;
}
