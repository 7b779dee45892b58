//! Protected services, by longest prefix.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most spans of ports that one protected prefix may have.
pub const SERVICES_MAX: usize = 32;

/// A span of ports of one protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Service {
    /// The protocol; 0 matches every protocol.
    pub protocol: u8,
    /// Zero.
    pub reserved: u8,
    /// The first port.
    pub first_port: u16,
    /// The last port.
    pub last_port: u16,
}

/// The protected services of one prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Services {
    /// Number of spans in use.
    pub count: u32,
    /// The spans.
    pub spans: [Service; SERVICES_MAX],
}

impl Services {
    /// Returns the spans in use.
    pub fn spans(&self) -> &[Service] {
        self.spans.get(..self.count as usize).unwrap_or(&self.spans)
    }

    /// Reports whether a packet of `protocol` to `port` is protected.
    pub fn covers(&self, protocol: u8, port: u16) -> bool {
        self.spans().iter().any(|span| {
            span.protocol == 0 || span.protocol == protocol && span.first_port <= port && port <= span.last_port
        })
    }

    /// Reports whether any port of `protocol` is protected: for packets that don't show their port.
    pub fn covers_some(&self, protocol: u8) -> bool {
        self.spans().iter().any(|span| span.protocol == 0 || span.protocol == protocol)
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
