//! Keys and secrets of epochs.

use crate::ls::{SECRET_LEN, ServerSecret};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A verifier's key for one epoch; the array's index is the epoch's low 8 bits.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EpochKey {
    /// The epoch's full number; 0 if the entry is empty.
    pub epoch: u64,
    /// The siphash half.
    pub siphash: [u8; 16],
    /// The AES half.
    pub aes: [u8; 16],
}

/// A verifier's application server secret for one epoch; the array's index is the epoch's low 8 bits.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SecretEntry {
    /// The epoch's full number; 0 if the entry is empty.
    pub epoch: u64,
    /// The padded SHA-224 block whose hash is the client key, with seven zero bytes in place of the pair.
    pub block: [u8; 64],
}

impl SecretEntry {
    /// Builds the entry of a secret.
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
