//! Layouts of the maps for transferring keys in band: the agent's maps (`bpf/include/key_transfer.h`) and the
//! authority's maps (`bpf/key_transfer.bpf.c`).

use crate::ls::{ClientKey, HASH_LEN, KEY_TRANSFER_LEN, KeyTransfer};
use core::net::SocketAddrV4;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The address and port at which an authority transfers keys in band.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AuthorityEnd {
    /// The authority's IPv4 address.
    pub address: [u8; 4],
    /// The authority's port, big-endian.
    pub port: [u8; 2],
    /// Reserved; zero.
    pub reserved: u16,
}

impl From<SocketAddrV4> for AuthorityEnd {
    fn from(address: SocketAddrV4) -> Self {
        Self { address: address.ip().octets(), port: address.port().to_be_bytes(), reserved: 0 }
    }
}

/// A client key received in band. The type does not implement `Debug`, because it contains a secret.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TakenKey {
    /// The key, padded with zeros.
    pub bytes: [u8; 32],
}

impl TakenKey {
    /// Returns the client key.
    pub fn key(&self) -> ClientKey {
        let [key @ .., _, _, _, _] = self.bytes;
        const { assert!(HASH_LEN + 4 == 32) };
        ClientKey::new(key)
    }
}

/// A key transfer that the authority's program will put into a packet of the transfer's flow. Has no `Debug`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Transfer {
    /// Time after which the program no longer sends the transfer, in nanoseconds since boot.
    pub until: u64,
    /// The 35 bytes of the option, padded with zeros.
    pub data: [u8; 40],
}

impl Transfer {
    /// Builds a transfer that the program sends until the time `until`, which is in nanoseconds since boot.
    pub fn new(content: &KeyTransfer, until: u64) -> Self {
        let mut data = [0; 40];
        data[..KEY_TRANSFER_LEN].copy_from_slice(&content.encode());
        Self { until, data }
    }
}

/// The settings of the authority's programs, fixed when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TransferConfig {
    /// The authority's port.
    pub port: u32,
    /// Reserved; zero.
    pub reserved: u32,
}

/// Indices of the counters of the authority's programs.
pub mod transfer_counter {
    /// Number of flows whose sender accepts keys in band.
    pub const SUPPORT: u32 = 0;
    /// Number of keys that the programs put into packets.
    pub const HANDED: u32 = 1;
    /// Number of packets that were dropped because a key or the support option could not be inserted or removed.
    pub const FAILED: u32 = 2;
}
