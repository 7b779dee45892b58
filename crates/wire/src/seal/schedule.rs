//! Key schedule of a tunnel: from the grant's key to the keys of records (wire.md §9.6, §9.9.1).

use super::Share;
use super::handshake::{INITIATION_LEN, RESPONSE_HEAD_LEN, RESPONSE_LEN, Refusal, Response};
use super::record::{Counter, Index, Treatment};
use super::suite::Suite;
use crate::grant::{Block, Destination};
use crate::key::GrantKey;
use crate::mac::{self, MAC_LEN};
use core::num::NonZeroU32;
use hkdf::Hkdf;
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

const SALT: &[u8] = b"vouchsafe seal v1";
const IV_LEN: usize = 12;
const KEY_LEN_MAX: usize = 32;

/// Direction of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Direction {
    /// The record goes from the initiator (the agent) to the responder.
    FromInitiator = 0,
    /// The record goes from the responder (the verifier) to the initiator.
    FromResponder = 1,
}

impl Direction {
    /// Returns the opposite direction.
    pub const fn back(self) -> Self {
        match self {
            Self::FromInitiator => Self::FromResponder,
            Self::FromResponder => Self::FromInitiator,
        }
    }
}

/// The secret that X25519 computes from the two ends' shares.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Shared([u8; 32]);

impl Shared {
    /// Wraps the result of X25519. Returns `None` if the result is zero: then the share of the other end was invalid
    /// (RFC 7748 §6.1).
    pub fn new(bytes: [u8; 32]) -> Option<Self> {
        let shared = Self(bytes);
        (!mac::tags_equal(&shared.0, &[0; 32])).then_some(shared)
    }

    /// Returns the constant that takes the place of this secret in a tunnel without forward secrecy.
    pub const fn none() -> Self {
        Self([0; 32])
    }
}

/// The secret of a phase. Everybody who has it can open and make all records of the phase, in both directions.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct PhaseSecret([u8; 32]);

/// The key and IV of one phase, direction, treatment and suite.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct RecordKey {
    material: [u8; KEY_LEN_MAX + IV_LEN],
    #[zeroize(skip)]
    key_len: usize,
}

impl RecordKey {
    /// Returns the AEAD's key, in the length that its suite requires.
    pub fn key(&self) -> &[u8] {
        self.material.get(..self.key_len).unwrap_or_default()
    }

    /// Returns the IV from which each nonce is made.
    pub fn iv(&self) -> [u8; IV_LEN] {
        let mut iv = [0; IV_LEN];
        for (to, from) in iv.iter_mut().zip(self.material.iter().skip(self.key_len)) {
            *to = *from;
        }
        iv
    }
}

/// Returns the nonce of the record with this counter (wire.md §9.3.4).
pub fn nonce(iv: &[u8; IV_LEN], counter: Counter) -> [u8; IV_LEN] {
    let mut nonce = *iv;
    for (byte, count) in nonce.iter_mut().skip(4).zip(counter.bytes()) {
        *byte ^= count;
    }
    nonce
}

impl PhaseSecret {
    /// Wraps 32 bytes as a phase's secret. Use this function only to read records with a secret from a log. The ends of
    /// a tunnel get the secret from a handshake or from [`Self::next`].
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the secret. Everybody who has it can read all records of the phase. Use this function only to export
    /// keys for debugging (wire.md §9.14).
    pub const fn danger_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Derives the key for records of this direction, treatment and suite (wire.md §9.6.3). Returns `None` if the
    /// cryptographic library fails.
    pub fn record_key(&self, direction: Direction, treatment: Treatment, suite: Suite) -> Option<RecordKey> {
        let mut key = RecordKey { material: [0; KEY_LEN_MAX + IV_LEN], key_len: suite.key_len() };
        let room = key.material.get_mut(..suite.key_len() + IV_LEN)?;
        expand_into(&self.0, &[b"key", &[direction as u8, treatment as u8, suite as u8]], room)?;
        Some(key)
    }

    /// Derives the secret of the next phase (wire.md §9.9.1). `phase` is the number of that phase; `initiator` and
    /// `responder` are the indices and shares of the two ends for that phase. Returns `None` if the cryptographic
    /// library fails.
    pub fn next(
        &self,
        shared: &Shared,
        phase: NonZeroU32,
        initiator: (Index, &Share),
        responder: (Index, &Share),
    ) -> Option<Self> {
        let mut hash = Sha256::new();
        hash.update(phase.get().to_be_bytes());
        for (index, share) in [initiator, responder] {
            hash.update(index.get().to_be_bytes());
            hash.update(share);
        }
        let joint = extract(&*expand::<32>(&self.0, &[b"next"])?, &shared.0);
        Some(Self(*expand(&joint, &[b"phase", &hash.finalize()])?))
    }
}

/// The state of a handshake, which both ends compute from the grant's key and the initiation.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Handshake {
    root: [u8; 32],
    /// Hash of the initiation and of the tunnel's service.
    begun: [u8; 32],
}

impl Handshake {
    /// Begins a handshake with an authenticated initiation to the tunnel's service at `to`.
    pub fn new(key: &GrantKey, initiation: &[u8; INITIATION_LEN], to: &Destination) -> Self {
        let begun = sha256(&[initiation, Block::destination(to).bytes()]);
        Self { root: *extract(SALT, key.bytes()), begun }
    }

    /// Derives the secret of phase 0, for early records. Returns `None` if the cryptographic library fails.
    pub fn early(&self) -> Option<PhaseSecret> {
        Some(PhaseSecret(*expand(&self.root, &[b"early", &self.begun])?))
    }

    /// Returns the encoded response and the secret of phase 1. `shared` is the result of X25519 for the responder's own
    /// share and the share in the initiation. Returns `None` if the response is a refusal, or if the cryptographic
    /// library fails.
    pub fn respond(&self, response: &Response, shared: &Shared) -> Option<([u8; RESPONSE_LEN], PhaseSecret)> {
        response.given.ok()?;
        self.sealed(response, shared)
    }

    /// Returns the encoded response. Returns `None` if the response is no refusal, or if the cryptographic library
    /// fails.
    pub fn refuse(&self, response: &Response) -> Option<[u8; RESPONSE_LEN]> {
        response.given.err()?;
        Some(self.sealed(response, &Shared::none())?.0)
    }

    fn sealed(&self, response: &Response, shared: &Shared) -> Option<([u8; RESPONSE_LEN], PhaseSecret)> {
        let head = response.head();
        let (tag, secret) = self.join(&head, shared)?;
        let mut bytes = [0; RESPONSE_LEN];
        bytes[..RESPONSE_HEAD_LEN].copy_from_slice(&head);
        bytes[RESPONSE_HEAD_LEN..].copy_from_slice(&tag);
        Some((bytes, secret))
    }

    /// Returns the secret of phase 1, for the initiator. Returns `None` if the response does not have the right tag, or
    /// if the cryptographic library fails. `shared` is the result of X25519 for the initiator's own share and the share
    /// in the response.
    pub fn take(&self, bytes: &[u8; RESPONSE_LEN], shared: &Shared) -> Option<PhaseSecret> {
        let (head, tag) = bytes.split_first_chunk()?;
        let (right, secret) = self.join(head, shared)?;
        mac::tags_equal(tag, &right).then_some(secret)
    }

    /// Returns the reason for refusing the tunnel, if the bytes are a refusal with the right tag.
    pub fn is_refused(&self, bytes: &[u8; RESPONSE_LEN]) -> Option<Refusal> {
        let refusal = Response::read(bytes)?.given.err()?;
        self.take(bytes, &Shared::none()).map(|_| refusal)
    }

    fn join(&self, head: &[u8; RESPONSE_HEAD_LEN], shared: &Shared) -> Option<([u8; MAC_LEN], PhaseSecret)> {
        let joint = extract(&*expand::<32>(&self.root, &[b"join", &self.begun])?, &shared.0);
        let whole = sha256(&[&self.begun, head]);
        let tag = *expand(&joint, &[b"confirm", &whole])?;
        Some((tag, PhaseSecret(*expand(&joint, &[b"phase", &whole])?)))
    }
}

fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

fn extract(salt: &[u8], ikm: &[u8]) -> Zeroizing<[u8; 32]> {
    Zeroizing::new(Hkdf::<Sha256>::extract(Some(salt), ikm).0.into())
}

fn expand<const N: usize>(key: &[u8; 32], info: &[&[u8]]) -> Option<Zeroizing<[u8; N]>> {
    let mut out = Zeroizing::new([0; N]);
    expand_into(key, info, &mut *out)?;
    Some(out)
}

fn expand_into(key: &[u8; 32], info: &[&[u8]], out: &mut [u8]) -> Option<()> {
    Hkdf::<Sha256>::from_prk(key).ok()?.expand_multi_info(info, out).ok()
}
