//! Pairs of the scheme of LS.

use crate::holder::Holder;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A pair that the authority told of (wire.md §5.5); the map's key is its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LsGrant {
    /// The epoch whose secret its client key is made with.
    pub epoch: u64,
    /// When it ends, Unix seconds.
    pub expires: u32,
    /// Whose it is; 0 if the authority names nobody.
    pub holder: u32,
    /// A bit for each nonce2 that was used.
    pub used: [u64; 1024],
}

impl LsGrant {
    /// A pair none of whose nonces was used.
    pub const fn new(epoch: u64, expires: u32, holder: Holder) -> Self {
        Self { epoch, expires, holder: holder.0, used: [0; 1024] }
    }

    /// Whether a nonce2 was used.
    pub fn is_used(&self, nonce2: u16) -> bool {
        self.used.get(usize::from(nonce2 >> 6)).is_none_or(|word| word >> (nonce2 & 63) & 1 == 1)
    }

    /// Notes that a nonce2 was used; whether it was for the first time.
    pub fn take(&mut self, nonce2: u16) -> bool {
        let fresh = !self.is_used(nonce2);
        if let Some(word) = self.used.get_mut(usize::from(nonce2 >> 6)) {
            *word |= 1 << (nonce2 & 63);
        }
        fresh
    }
}
