//! MAC suites (wire.md §1). The MACs themselves come from libraries; this module selects the library for each suite.

use crate::cmac::cmac;
use core::hash::Hasher;
use siphasher::sip128::{Hasher128, SipHasher24};
use subtle::ConstantTimeEq;

/// Length of a whole MAC in bytes.
pub const MAC_LEN: usize = 16;
/// Length in bytes of a token's tag, which is a prefix of the MAC (wire.md §1.2).
pub const TAG_LEN: usize = 12;

/// A MAC suite for tokens and proofs (wire.md §1.1). The suite with number 1, `sha224`, is not in this list: see
/// [`crate::ls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Suite {
    /// AES-128-CMAC, RFC 4493.
    AesCmac = 2,
    /// SipHash-2-4 with 128-bit output; the default for tokens.
    Siphash = 3,
}

impl Suite {
    /// Returns the token suite with this number, if there is one.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            2 => Some(Self::AesCmac),
            3 => Some(Self::Siphash),
            _ => None,
        }
    }

    /// Returns the name used in configuration and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AesCmac => "aes-cmac",
            Self::Siphash => "siphash",
        }
    }

    /// Computes the MAC of the concatenated parts.
    pub fn mac(self, key: &[u8; MAC_LEN], parts: &[&[u8]]) -> [u8; MAC_LEN] {
        match self {
            Self::AesCmac => cmac(key, parts),
            Self::Siphash => {
                let mut hasher = SipHasher24::new_with_key(key);
                // If there is one part, the library reads whole words. If there are several, it buffers the rest of
                // each part.
                if let [message] = parts {
                    return hasher.hash(message).as_bytes();
                }
                for part in parts {
                    hasher.write(part);
                }
                hasher.finish128().as_bytes()
            }
        }
    }
}

/// Compares two tags in constant time (wire.md §1.2).
pub fn tags_equal(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}
