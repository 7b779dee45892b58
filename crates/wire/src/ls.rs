//! The scheme of LS (wire.md §5): its suite `sha224`, its client keys and its tokens.
//!
//! A client key is as powerful as a password for every service behind a verifier, because its tokens name neither a
//! destination nor a time.

use crate::grant::Handle;
use crate::key::VerifierKey;
use crate::mac;
use hkdf::Hkdf;
use sha2::{Digest, Sha224, Sha256};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Number of the suite `sha224` (wire.md §1.1).
pub const SUITE: u8 = 1;
/// Name of the suite in configuration and logs.
pub const NAME: &str = "sha224";
/// Length in bytes of a SHA-224 hash. Client keys and the tags of tokens have this length.
pub const HASH_LEN: usize = 28;
/// Length in bytes of a pair: a unique id and a nonce1.
pub const PAIR_LEN: usize = 7;
/// Length of a token of the suite `sha224`, in bytes.
pub const TOKEN_LEN: usize = 37;
/// Length of a key transfer in bytes.
pub const KEY_TRANSFER_LEN: usize = 35;
/// Half of the 65 536 values of nonce2 that a pair has. An agent's kernel program uses the lower half, and its
/// controller of switches the upper half (wire.md §5.8).
pub const SENDERS_NONCES: u32 = 1 << 15;
/// Length of an application server secret in bytes.
pub const SECRET_LEN: usize = 32;

const SECRET_SALT: &[u8] = b"vouchsafe application server secret v1";

/// Identifies a client key by its owner (the unique id) and by its number among the owner's keys (nonce1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair {
    /// Random number that identifies the owner; it reveals nothing about the subject to an outsider.
    pub unique_id: [u8; 5],
    /// Number of the client key among the owner's keys. The authority issues another key before the nonces of this key
    /// are used up.
    pub nonce1: [u8; 2],
}

impl Pair {
    /// Returns the handle of the grant that the pair stands for: the pair's seven bytes as a number (wire.md §5.7).
    pub const fn handle(self) -> Handle {
        let [a, b, c, d, e] = self.unique_id;
        let [f, g] = self.nonce1;
        Handle(u64::from_be_bytes([0, a, b, c, d, e, f, g]))
    }

    /// Builds a pair from seven bytes: the unique id, then the nonce1.
    pub const fn from_bytes(bytes: [u8; PAIR_LEN]) -> Self {
        let [a, b, c, d, e, f, g] = bytes;
        Self { unique_id: [a, b, c, d, e], nonce1: [f, g] }
    }

    /// Builds a pair from random bits. Ignores the most significant eight bits.
    pub const fn from_random(bits: u64) -> Self {
        let [_, pair @ ..] = bits.to_be_bytes();
        Self::from_bytes(pair)
    }

    /// Returns the unique id and the nonce1.
    pub const fn bytes(self) -> [u8; PAIR_LEN] {
        let [_, rest @ ..] = self.handle().0.to_be_bytes();
        rest
    }

    /// Returns the pair with this handle. Returns `None` if the handle belongs to a grant that is not a pair: only a
    /// pair's handle begins with a zero byte (wire.md §5.7).
    pub const fn of(handle: Handle) -> Option<Self> {
        match handle.0.to_be_bytes() {
            [0, pair @ ..] => Some(Self::from_bytes(pair)),
            _ => None,
        }
    }
}

/// The secret that the authority and a verifier share for one epoch. Client keys derive from it.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct ServerSecret([u8; SECRET_LEN]);

impl ServerSecret {
    /// Wraps the bytes of a secret.
    pub const fn new(bytes: [u8; SECRET_LEN]) -> Self {
        Self(bytes)
    }

    /// Derives the secret for the epoch of the verifier key `key` (wire.md §5.6). Returns `None` if the cryptographic
    /// library fails.
    pub fn of(key: &VerifierKey) -> Option<Self> {
        let mut secret = [0; SECRET_LEN];
        Hkdf::<Sha256>::new(Some(SECRET_SALT), key.bytes()).expand(&[], &mut secret).ok()?;
        Some(Self(secret))
    }

    /// Returns the secret's bytes, to be passed to the kernel program.
    pub const fn bytes(&self) -> &[u8; SECRET_LEN] {
        &self.0
    }
}

/// The secret with which a client makes tokens (wire.md §5.2).
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct ClientKey([u8; HASH_LEN]);

impl ClientKey {
    /// Wraps the bytes issued by the authority.
    pub const fn new(bytes: [u8; HASH_LEN]) -> Self {
        Self(bytes)
    }

    /// Derives the client key that `pair` identifies. `secret` is the application server's secret, of any length.
    pub fn of(pair: Pair, secret: &[u8]) -> Self {
        Self(sha224(&[&pair.unique_id, &pair.nonce1, secret]))
    }

    /// Returns the key's bytes, to be sent to its owner.
    pub const fn bytes(&self) -> &[u8; HASH_LEN] {
        &self.0
    }
}

/// A token of the suite `sha224`, which implements the LS scheme (wire.md §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LsToken {
    /// The pair of the client key that made the token.
    pub pair: Pair,
    /// A number that the sender never uses twice with the same pair.
    pub nonce2: u16,
    /// The hash that authenticates the token.
    pub tag: [u8; HASH_LEN],
}

impl LsToken {
    /// Makes the token for this pair and nonce2.
    pub fn new(pair: Pair, nonce2: u16, key: &ClientKey) -> Self {
        Self { pair, nonce2, tag: tag(pair, nonce2, key) }
    }

    /// Returns the 37 bytes on the wire.
    pub fn encode(&self) -> [u8; TOKEN_LEN] {
        let mut bytes = [0; TOKEN_LEN];
        bytes[..5].copy_from_slice(&self.pair.unique_id);
        bytes[5..7].copy_from_slice(&self.pair.nonce1);
        bytes[7..9].copy_from_slice(&self.nonce2.to_be_bytes());
        bytes[9..].copy_from_slice(&self.tag);
        bytes
    }

    /// Parses a token. Every sequence of 37 bytes is a well-formed token.
    pub fn decode(bytes: &[u8; TOKEN_LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, i, tag @ ..] = *bytes;
        let pair = Pair { unique_id: [a, b, c, d, e], nonce1: [f, g] };
        Self { pair, nonce2: u16::from_be_bytes([h, i]), tag }
    }

    /// Reports whether the tag is the one that `key` yields. The comparison takes constant time.
    pub fn proves(&self, key: &ClientKey) -> bool {
        mac::tags_equal(&self.tag, &tag(self.pair, self.nonce2, key))
    }
}

/// A client key that the authority sends to a client in band (wire.md §5.4).
#[derive(Clone)]
pub struct KeyTransfer {
    /// The client key.
    pub key: ClientKey,
    /// The pair of the client key.
    pub pair: Pair,
}

impl KeyTransfer {
    /// Returns the 35 bytes on the wire.
    pub fn encode(&self) -> [u8; KEY_TRANSFER_LEN] {
        let mut bytes = [0; KEY_TRANSFER_LEN];
        bytes[..28].copy_from_slice(self.key.bytes());
        bytes[28..33].copy_from_slice(&self.pair.unique_id);
        bytes[33..].copy_from_slice(&self.pair.nonce1);
        bytes
    }

    /// Parses a key transfer. Every sequence of 35 bytes is a well-formed key transfer.
    pub fn decode(bytes: &[u8; KEY_TRANSFER_LEN]) -> Self {
        let [key @ .., a, b, c, d, e, f, g] = *bytes;
        Self { key: ClientKey::new(key), pair: Pair { unique_id: [a, b, c, d, e], nonce1: [f, g] } }
    }
}

fn tag(pair: Pair, nonce2: u16, key: &ClientKey) -> [u8; HASH_LEN] {
    sha224(&[&pair.unique_id, &nonce2.to_be_bytes(), key.bytes()])
}

fn sha224(parts: &[&[u8]]) -> [u8; HASH_LEN] {
    let mut hash = Sha224::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}
