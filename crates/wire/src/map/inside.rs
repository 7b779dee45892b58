//! Layouts of the maps of inside addresses, which a gateway gives (`bpf/include/nat.h`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A gateway's pool of inside addresses, fixed when its programs are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NatConfig {
    /// IPv4 addresses, which come first.
    pub pool4: u32,
    /// IPv6 addresses.
    pub pool6: u32,
}

/// An inside address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PoolSlot {
    /// The address.
    pub address: [u8; 16],
    /// When a flow came or went last, nanoseconds since boot; 0 if none ever did.
    pub last: u64,
    /// Whose it was last.
    pub person: u32,
    /// How many flows it has.
    pub flows: u32,
    /// Since when it is theirs, Unix seconds.
    pub since: u32,
    /// Zero.
    pub reserved: u32,
}

/// Whose lease of which family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LeaseKey {
    /// The person's number.
    pub person: u32,
    /// 4 or 6.
    pub family: u32,
}

/// Who is behind a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Bearer {
    /// The person's number.
    pub person: u32,
    /// When the grant ends, Unix seconds.
    pub expires: u32,
}

/// A person's name, zeros behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PersonName {
    /// The name.
    pub bytes: [u8; 64],
}

/// What a client is outside, whom the inside knows by another address and perhaps port.
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
    /// Since when, Unix seconds.
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

/// What a gateway's programs tell of inside addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NatNews {
    /// The grant, if it is about one.
    pub handle: u64,
    /// One of [`nat_news`].
    pub kind: u32,
    /// The person's number.
    pub person: u32,
    /// The address's slot.
    pub slot: u32,
    /// When, Unix seconds.
    pub time: u32,
}

/// Kinds of [`NatNews`].
pub mod nat_news {
    /// Whose grant is this?
    pub const UNKNOWN: u32 = 1;
    /// An address is somebody's from here on.
    pub const GIVEN: u32 = 2;
    /// The last flow of an address is gone.
    pub const IDLE: u32 = 3;
}
