//! Protected services, looked up by longest prefix.

use core::net::IpAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Maximum number of port ranges that are protected in one prefix.
pub const SERVICES_MAX: usize = 32;

/// A range of ports of one protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Service {
    /// The protocol; 0 matches every protocol.
    pub protocol: u8,
    /// 1 if the service belongs to another authority of this verifier, and not to the authority to which the table
    /// belongs; otherwise 0.
    pub foreign: u8,
    /// The first port of the range.
    pub first_port: u16,
    /// The last port of the range.
    pub last_port: u16,
}

/// The protected services of one prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Services {
    /// Number of the ranges in `spans` that are used.
    pub count: u32,
    /// The port ranges. Ranges beyond `count` have no meaning.
    pub spans: [Service; SERVICES_MAX],
}

impl Services {
    /// Returns the ranges that are used.
    pub fn spans(&self) -> &[Service] {
        self.spans.get(..self.count as usize).unwrap_or(&self.spans)
    }

    /// Reports whether a packet of `protocol` to `port` is protected.
    pub fn covers(&self, protocol: u8, port: u16) -> bool {
        self.spans().iter().any(|span| {
            span.protocol == 0 || span.protocol == protocol && span.first_port <= port && port <= span.last_port
        })
    }

    /// Reports whether a packet of `protocol` to `port` is protected, and only another authority may admit it.
    pub fn is_foreign(&self, protocol: u8, port: u16) -> bool {
        let covers = |span: &&Service| {
            span.protocol == 0 || span.protocol == protocol && (span.first_port..=span.last_port).contains(&port)
        };
        let mut spans = self.spans().iter().filter(covers).peekable();
        spans.peek().is_some() && spans.all(|span| span.foreign != 0)
    }

    /// Reports whether any port of `protocol` is protected. The caller needs this for packets that don't contain their
    /// port, such as later fragments.
    pub fn covers_some(&self, protocol: u8) -> bool {
        self.spans().iter().any(|span| span.protocol == 0 || span.protocol == protocol)
    }
}

/// The key of the map of optional receivers: a TCP service that everybody may reach (wire.md §6.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OptionalService {
    /// The address; an IPv4 address is in the first four bytes.
    pub address: [u8; 16],
    /// The port, big-endian.
    pub port: [u8; 2],
    /// The address family: 4 for IPv4, 6 for IPv6.
    pub family: u8,
    /// Reserved; zero.
    pub reserved: u8,
}

impl OptionalService {
    /// Returns the key for a service.
    pub fn new(address: IpAddr, port: u16) -> Self {
        let mut bytes = [0; 16];
        let family = match address.to_canonical() {
            IpAddr::V4(address) => {
                bytes[..4].copy_from_slice(&address.octets());
                4
            }
            IpAddr::V6(address) => {
                bytes = address.octets();
                6
            }
        };
        Self { address: bytes, port: port.to_be_bytes(), family, reserved: 0 }
    }

    /// Returns the service's address and port.
    pub fn service(&self) -> (IpAddr, u16) {
        let [a, b, c, d, ..] = self.address;
        let address = if self.family == 4 { IpAddr::from([a, b, c, d]) } else { IpAddr::from(self.address) };
        (address, u16::from_be_bytes(self.port))
    }
}

/// The key of a longest-prefix map of IPv4 networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Prefix4 {
    /// Prefix length in bits.
    pub length: u32,
    /// Network address.
    pub address: [u8; 4],
}

/// The key of a longest-prefix map of IPv6 networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Prefix6 {
    /// Prefix length in bits.
    pub length: u32,
    /// Network address.
    pub address: [u8; 16],
}
