//! The key exchange of one end: X25519 (RFC 7748), or none (wire.md §9.5, §9.6.1).

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use wire::seal::{Share, Shared};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The secret that an end of a tunnel keeps until it has the other end's share. The end must then drop the secret: an
/// exchange has no forward secrecy as long as the secret exists.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct ExchangeSecret {
    private: [u8; 32],
    share: Share,
    #[zeroize(skip)]
    forward: bool,
}

impl ExchangeSecret {
    /// Makes the secret from `chance`, 32 random bytes. With forward secrecy (`forward`), these bytes are the private
    /// key; without it, they are the share. Returns `None` if the cryptographic library fails.
    pub fn new(chance: [u8; 32], forward: bool) -> Option<Self> {
        if !forward {
            return Some(Self { private: [0; 32], share: chance, forward });
        }
        let public = PrivateKey::from_private_key(&X25519, &chance).ok()?.compute_public_key().ok()?;
        Some(Self { private: chance, share: public.as_ref().try_into().ok()?, forward })
    }

    /// Returns the share to send to the other end.
    pub const fn share(&self) -> &Share {
        &self.share
    }

    /// Computes the shared secret from this secret and the other end's share `theirs`. Without forward secrecy, returns
    /// [`Shared::none`]. Returns `None` if `theirs` is invalid because the shared secret would be zero.
    pub fn shared(&self, theirs: &Share) -> Option<Shared> {
        if !self.forward {
            return Some(Shared::none());
        }
        let private = PrivateKey::from_private_key(&X25519, &self.private).ok()?;
        let theirs = UnparsedPublicKey::new(&X25519, theirs);
        agree(&private, theirs, (), |common| Shared::new(common.try_into().map_err(drop)?).ok_or(())).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::ExchangeSecret;

    #[test]
    fn a_share_of_small_order_is_refused() {
        let secret = ExchangeSecret::new([7; 32], true).expect("a key");
        let mut one = [0; 32];
        one[0] = 1;
        // One less than the field's prime: a point of order two.
        let mut below = [0xff; 32];
        (below[0], below[31]) = (0xec, 0x7f);
        for share in [[0; 32], one, below] {
            assert!(secret.shared(&share).is_none());
        }
        assert!(secret.shared(&[9; 32]).is_some());
    }
}
