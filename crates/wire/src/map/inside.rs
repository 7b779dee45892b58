//! Layouts of the maps of inside addresses, which a gateway assigns (`bpf/include/nat.h`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The size of a gateway's pool of inside addresses, fixed when the gateway's programs are loaded.
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
    /// The inside address, which belongs to the gateway's pool.
    pub address: [u8; 16],
    /// Time when a flow of the address last began or ended, in nanoseconds since boot; 0 if the address never had a
    /// flow.
    pub last: u64,
    /// The number of the person who had the address last.
    pub person: u32,
    /// Number of flows that use the address.
    pub flows: u32,
    /// Time since which this person has had the address, Unix seconds.
    pub since: u32,
    /// Reserved; zero.
    pub reserved: u32,
}

/// Key of the table `leases`: a person and an address family. The entry is the slot of the inside address of this
/// family that the person had last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LeaseKey {
    /// The person's number.
    pub person: u32,
    /// The address family: 4 or 6.
    pub family: u32,
}

/// The person to whom a grant was issued, and the end of the grant.
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
    /// The person's name, in UTF-8.
    pub bytes: [u8; 64],
}

/// The outside address and port of a client that has another address, and possibly another port, on the inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WayBack {
    /// The client's address.
    pub client: [u8; 16],
    /// The client's port, big-endian.
    pub client_port: [u8; 2],
    /// Reserved; zero.
    pub reserved: u16,
    /// The slot of the inside address in the pool.
    pub slot: u32,
    /// Time when the translation began, Unix seconds.
    pub since: u32,
    /// Reserved; zero.
    pub reserved2: u32,
}

/// An address of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Member {
    /// The inside address.
    pub address: [u8; 16],
    /// The address family: 4 or 6.
    pub family: u32,
    /// Reserved; zero.
    pub reserved: u32,
}

/// An event about inside addresses that a gateway's programs report to user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NatNews {
    /// Handle of the grant that the event concerns; 0 if it concerns no grant.
    pub handle: u64,
    /// Kind of the event: one of the constants in [`nat_news`].
    pub kind: u32,
    /// The person's number.
    pub person: u32,
    /// The slot of the address in the pool.
    pub slot: u32,
    /// Time of the event, Unix seconds.
    pub time: u32,
}

/// Kinds of [`NatNews`].
pub mod nat_news {
    /// The program does not know the person to whom a grant was issued.
    pub const UNKNOWN: u32 = 1;
    /// An address was assigned to a person.
    pub const GIVEN: u32 = 2;
    /// The last flow of an address has ended.
    pub const IDLE: u32 = 3;
}
