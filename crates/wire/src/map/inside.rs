//! Layouts of the maps of inside addresses, which a gateway assigns (`bpf/include/nat.h`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A gateway's pool of inside addresses, fixed when its programs are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NatConfig {
    /// Number of IPv4 addresses, which come first in the pool.
    pub pool4: u32,
    /// Number of IPv6 addresses.
    pub pool6: u32,
}

/// State of an inside address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PoolSlot {
    /// The address.
    pub address: [u8; 16],
    /// Time when a flow of the address last began or ended, nanoseconds since boot; 0 if it never had one.
    pub last: u64,
    /// The number of the person who had the address last.
    pub person: u32,
    /// Number of flows that use the address.
    pub flows: u32,
    /// Time since when this person has the address, Unix seconds.
    pub since: u32,
    /// Zero.
    pub reserved: u32,
}

/// Key of a lease: a person and an address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LeaseKey {
    /// The person's number.
    pub person: u32,
    /// 4 or 6.
    pub family: u32,
}

/// The person behind a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Bearer {
    /// The person's number.
    pub person: u32,
    /// Expiry of the grant, Unix seconds.
    pub expires: u32,
}

/// A person's name, padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PersonName {
    /// The name.
    pub bytes: [u8; 64],
}

/// Outside address and port of a client that the inside sees under another address and perhaps another port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WayBack {
    /// The client's address.
    pub client: [u8; 16],
    /// Its port, big-endian.
    pub client_port: [u8; 2],
    /// Zero.
    pub reserved: u16,
    /// The inside address's slot.
    pub slot: u32,
    /// Time when the translation began, Unix seconds.
    pub since: u32,
    /// Zero.
    pub reserved2: u32,
}

/// An address of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Member {
    /// The address.
    pub address: [u8; 16],
    /// 4 or 6.
    pub family: u32,
    /// Zero.
    pub reserved: u32,
}

/// Event that a gateway's programs report about inside addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NatNews {
    /// Handle of the grant, if the event concerns one.
    pub handle: u64,
    /// One of [`nat_news`].
    pub kind: u32,
    /// The person's number.
    pub person: u32,
    /// The address's slot.
    pub slot: u32,
    /// Time of the event, Unix seconds.
    pub time: u32,
}

/// Kinds of [`NatNews`].
pub mod nat_news {
    /// The person behind a grant is not known.
    pub const UNKNOWN: u32 = 1;
    /// An address was assigned to a person.
    pub const GIVEN: u32 = 2;
    /// The last flow of an address has ended.
    pub const IDLE: u32 = 3;
}
