//! Layouts of the maps for transferring keys in band: the agent's (`bpf/include/key_transfer.h`) and the authority's
//! (`bpf/key_transfer.bpf.c`).

use crate::ls::{ClientKey, HASH_LEN, KEY_TRANSFER_LEN, KeyTransfer};
use core::net::SocketAddrV4;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An authority that transfers keys in band.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AuthorityEnd {
    /// Its address.
    pub address: [u8; 4],
    /// Its port, big-endian.
    pub port: [u8; 2],
    /// Zero.
    pub reserved: u16,
}

impl From<SocketAddrV4> for AuthorityEnd {
    fn from(address: SocketAddrV4) -> Self {
        Self { address: address.ip().octets(), port: address.port().to_be_bytes(), reserved: 0 }
    }
}

/// A client key received in band. Has no `Debug`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TakenKey {
    /// The key, padded with zeros.
    pub bytes: [u8; 32],
}

impl TakenKey {
    /// Returns the key.
    pub fn key(&self) -> ClientKey {
        let [key @ .., _, _, _, _] = self.bytes;
        const { assert!(HASH_LEN + 4 == 32) };
        ClientKey::new(key)
    }
}

/// A key transfer that waits for a packet of its flow. Has no `Debug`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Transfer {
    /// Time after which the transfer is no longer sent, nanoseconds since boot.
    pub until: u64,
    /// The 35 bytes of the option, padded with zeros.
    pub data: [u8; 40],
}

impl Transfer {
    /// Builds a transfer to be sent until `until`.
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
    /// Zero.
    pub reserved: u32,
}

/// Indices of the counters of the authority's programs.
pub mod transfer_counter {
    /// Flows whose sender accepts keys in band.
    pub const SUPPORT: u32 = 0;
    /// Keys sent.
    pub const HANDED: u32 = 1;
    /// Packets that could not be changed, and were dropped.
    pub const FAILED: u32 = 2;
}
