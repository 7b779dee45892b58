//! Keys and epochs (wire.md §2, §8.2). Keys have no `Debug` and are wiped when dropped.

use crate::cmac::PreparedKey;
use crate::mac::{MAC_LEN, Suite};
use core::net::IpAddr;
use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

const VERIFIER_KEY_SALT: &[u8] = b"vouchsafe verifier key v1";
const PROOF_KEY_SALT: &[u8] = b"vouchsafe proof key v1";
const PEER_SALT: &[u8] = b"vouchsafe peer v1";
/// Maximum length of a verifier's id, in bytes.
pub const VERIFIER_ID_MAX: usize = 64;

/// The number of a key period: Unix time divided by the epoch length (wire.md §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Returns the epoch that contains the time `now` (Unix seconds). `length` is in seconds and must not be 0.
    pub const fn at(now: u64, length: u32) -> Self {
        Self(if length == 0 { 0 } else { now / length as u64 })
    }

    /// Returns the low 8 bits, which identify the epoch on the wire (wire.md §2.3).
    pub const fn on_wire(self) -> u8 {
        self.0 as u8
    }

    /// Returns the epoch whose low 8 bits are `low`, if it is the epoch before `self`, `self`, or the epoch after
    /// `self` (wire.md §2.3). Otherwise returns `None`.
    pub const fn from_wire(self, low: u8) -> Option<Self> {
        let around = [self.0.saturating_sub(1), self.0, self.0.saturating_add(1)];
        let mut index = 0;
        while index < around.len() {
            if around[index] as u8 == low {
                return Some(Self(around[index]));
            }
            index += 1;
        }
        None
    }
}

/// The authority's master key. The authority never sends it to anybody.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct MasterKey([u8; 32]);

impl MasterKey {
    /// Wraps 32 random bytes as the master key.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Derives the key of one verifier for one epoch (wire.md §2.2). Returns `None` if the id is longer than
    /// [`VERIFIER_ID_MAX`].
    pub fn verifier_key(&self, verifier: &str, epoch: Epoch) -> Option<VerifierKey> {
        if verifier.len() > VERIFIER_ID_MAX {
            return None;
        }
        let epoch = epoch.0.to_be_bytes();
        let mut key = [0; 32];
        Hkdf::<Sha256>::new(Some(VERIFIER_KEY_SALT), &self.0)
            .expand_multi_info(&[verifier.as_bytes(), &[0], &epoch], &mut key)
            .ok()?;
        Some(VerifierKey(key))
    }

    /// Derives one verifier's key for the proofs that the authority at this address issues in one epoch (wire.md §8.2).
    /// Returns `None` if the id is longer than [`VERIFIER_ID_MAX`].
    pub fn proof_key(&self, verifier: &str, authority: IpAddr, epoch: Epoch) -> Option<ProofKey> {
        if verifier.len() > VERIFIER_ID_MAX {
            return None;
        }
        let authority = match authority {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let epoch = epoch.0.to_be_bytes();
        let mut key = [0; 32];
        Hkdf::<Sha256>::new(Some(PROOF_KEY_SALT), &self.0)
            .expand_multi_info(&[verifier.as_bytes(), &[0], &authority, &epoch], &mut key)
            .ok()?;
        Some(ProofKey::new(key))
    }
}

/// A verifier's key for one epoch: 16 bytes for siphash, then 16 for AES (wire.md §2.2).
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct VerifierKey([u8; 32]);

impl VerifierKey {
    /// Wraps the 32 bytes issued by the authority.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns all 32 bytes, to be sent to the verifier that owns the key.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Derives the seed of the key by which a gateway proves to the other gateways of a verifier that it belongs to the
    /// same verifier (wire.md §2.4). Returns `None` if the cryptographic library fails.
    pub fn peer_seed(&self) -> Option<Zeroizing<[u8; 32]>> {
        let mut seed = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(Some(PEER_SALT), &self.0).expand(&[], &mut *seed).ok()?;
        Some(seed)
    }

    /// Returns the half of the key that `suite` uses.
    pub fn of(&self, suite: Suite) -> &[u8; MAC_LEN] {
        half(&self.0, suite)
    }
}

/// A verifier's key for the proofs that one authority issues in one epoch. It consists of two halves, like a
/// [`VerifierKey`] (wire.md §8.2).
#[derive(Clone, ZeroizeOnDrop)]
pub struct ProofKey {
    bytes: [u8; 32],
    /// The half for `aes-cmac`. It wipes itself.
    #[zeroize(skip)]
    aes: PreparedKey,
}

impl ProofKey {
    /// Wraps the 32 bytes issued by the authority.
    pub fn new(bytes: [u8; 32]) -> Self {
        let aes = PreparedKey::new(half(&bytes, Suite::AesCmac));
        Self { bytes, aes }
    }

    /// Returns all 32 bytes, to be sent to the verifier that owns the key.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// Returns the half of the key that `suite` uses.
    pub fn of(&self, suite: Suite) -> &[u8; MAC_LEN] {
        half(&self.bytes, suite)
    }

    /// Computes the MAC of a message, with the half of the key that `suite` uses.
    pub(crate) fn mac(&self, suite: Suite, message: &[u8]) -> [u8; MAC_LEN] {
        match suite {
            Suite::AesCmac => self.aes.cmac(&[message]),
            Suite::Siphash => suite.mac(self.of(suite), &[message]),
        }
    }
}

fn half(key: &[u8; 32], suite: Suite) -> &[u8; MAC_LEN] {
    let [siphash, aes] = key.as_chunks::<MAC_LEN>().0 else {
        return &[0; MAC_LEN];
    };
    match suite {
        Suite::Siphash => siphash,
        Suite::AesCmac => aes,
    }
}

/// The secret of a grant (wire.md §3.5). Everybody who has it can make the grant's tokens.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct GrantKey([u8; MAC_LEN]);

impl GrantKey {
    /// Wraps the 16 bytes issued by the authority.
    pub const fn new(bytes: [u8; MAC_LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the key's bytes, to be sent to the grant's holder.
    pub const fn bytes(&self) -> &[u8; MAC_LEN] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Epoch;

    #[test]
    fn only_three_epochs_are_known() {
        let now = Epoch(500_000);
        assert_eq!(now.from_wire(now.on_wire()), Some(now));
        assert_eq!(now.from_wire(Epoch(499_999).on_wire()), Some(Epoch(499_999)));
        assert_eq!(now.from_wire(Epoch(500_001).on_wire()), Some(Epoch(500_001)));
        assert_eq!(now.from_wire(Epoch(499_998).on_wire()), None);
        assert_eq!(Epoch(256).from_wire(255), Some(Epoch(255)));
    }
}
