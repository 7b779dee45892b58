//! Verifier keys and application server secrets, by epoch.

use crate::ls::{SECRET_LEN, ServerSecret};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A verifier's key for one epoch. The entry's index in the table is the low 8 bits of the epoch.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EpochKey {
    /// The epoch's full number; 0 if the entry is empty.
    pub epoch: u64,
    /// The half for the suite siphash.
    pub siphash: [u8; 16],
    /// The half for the suite aes-cmac.
    pub aes: [u8; 16],
}

/// A verifier's application server secret for one epoch. The entry's index in the table is the low 8 bits of the epoch.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SecretEntry {
    /// The epoch's full number; 0 if the entry is empty.
    pub epoch: u64,
    /// The padded block from which a client key is computed. The place of the pair's seven bytes contains zeros. If a
    /// pair is written there, the SHA-224 hash of the block is the pair's client key.
    pub block: [u8; 64],
}

impl SecretEntry {
    /// Builds the table entry for a secret.
    pub fn new(epoch: u64, secret: &ServerSecret) -> Self {
        const PAIR_LEN: usize = 7;
        const LEN: usize = PAIR_LEN + SECRET_LEN;
        let mut block = [0; 64];
        block[PAIR_LEN..LEN].copy_from_slice(secret.bytes());
        block[LEN] = 0x80;
        block[56..].copy_from_slice(&(LEN as u64 * 8).to_be_bytes());
        Self { epoch, block }
    }
}
