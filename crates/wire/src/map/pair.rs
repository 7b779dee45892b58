//! Pairs of the scheme of LS.

use crate::holder::Holder;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A pair that the authority announced (wire.md §5.5). The key in the map is the pair's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LsGrant {
    /// The epoch of the application server secret from which the client key derives.
    pub epoch: u64,
    /// Expiry of the pair, Unix seconds.
    pub expires: u32,
    /// Holder of the pair; 0 if the authority has not named the holder.
    pub holder: u32,
    /// One bit for each nonce2. The bit is set if the nonce2 was used.
    pub used: [u64; 1024],
}

impl LsGrant {
    /// Returns a pair with no nonce used.
    pub const fn new(epoch: u64, expires: u32, holder: Holder) -> Self {
        Self { epoch, expires, holder: holder.0, used: [0; 1024] }
    }

    /// Reports whether a nonce2 was used.
    pub fn is_used(&self, nonce2: u16) -> bool {
        self.used.get(usize::from(nonce2 >> 6)).is_none_or(|word| word >> (nonce2 & 63) & 1 == 1)
    }

    /// Marks a nonce2 as used. Returns `true` if it was not marked before.
    pub fn take(&mut self, nonce2: u16) -> bool {
        let fresh = !self.is_used(nonce2);
        if let Some(word) = self.used.get_mut(usize::from(nonce2 >> 6)) {
            *word |= 1 << (nonce2 & 63);
        }
        fresh
    }
}
