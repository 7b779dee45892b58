//! Initiations and responses (wire.md §9.5). Keys that come of them are [`super::schedule`]'s.

use super::Share;
use super::record::Index;
use super::suite::Suites;
use crate::drop_reason::DropReason;
use crate::grant::{Block, Destination, Flags, GrantHeader, VERSION};
use crate::key::GrantKey;
use crate::mac::{self, MAC_LEN};

/// Bytes of an initiation.
pub const INITIATION_LEN: usize = 80;
/// Bytes of a response.
pub const RESPONSE_LEN: usize = 64;
const _: () = assert!(RESPONSE_LEN <= INITIATION_LEN, "an answer is no longer than what asked for it");
/// Bytes of a response that its tag is made of.
pub(super) const RESPONSE_HEAD_LEN: usize = RESPONSE_LEN - MAC_LEN;
const HEAD_LEN: usize = INITIATION_LEN - MAC_LEN;

pub(super) const INITIATION: u8 = 1;
pub(super) const RESPONSE: u8 = 2;
const FORWARD: u8 = 1;

/// What an end says of itself in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Keys come of an exchange of X25519, too: forward secrecy.
    pub forward: bool,
    /// The suites that it can open: at least one bit.
    pub suites: Suites,
    /// Those of them that its hardware helps with.
    pub helped: Suites,
}

impl Offer {
    fn encode(&self, kind: u8) -> [u8; 4] {
        let flags = if self.forward { FORWARD } else { 0 };
        [kind, VERSION << 4 | flags, self.suites.0, self.helped.0]
    }

    fn decode([version, suites, helped]: [u8; 3]) -> Option<Self> {
        let is_one = version & !FORWARD == VERSION << 4 && suites != 0 && helped & !suites == 0;
        let forward = version & FORWARD != 0;
        is_one.then_some(Self { forward, suites: Suites(suites), helped: Suites(helped) })
    }
}

/// What asks for a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initiation {
    /// The initiator's suites, and whether it exchanges keys.
    pub offer: Offer,
    /// The initiator's index for phase 1.
    pub index: Index,
    /// When it was made, Unix seconds by the initiator's clock.
    pub time: u32,
    /// The grant for the tunnel's service.
    pub grant: GrantHeader,
    /// The initiator's share.
    pub share: Share,
}

impl Initiation {
    /// As it travels, under the key of its grant, to the tunnel's service at `to`.
    pub fn seal(&self, key: &GrantKey, to: &Destination) -> [u8; INITIATION_LEN] {
        let mut bytes = [0; INITIATION_LEN];
        bytes[..4].copy_from_slice(&self.offer.encode(INITIATION));
        bytes[4..8].copy_from_slice(&self.index.get().to_be_bytes());
        bytes[8..12].copy_from_slice(&self.time.to_be_bytes());
        bytes[16..32].copy_from_slice(&self.grant.encode());
        bytes[32..HEAD_LEN].copy_from_slice(&self.share);
        let tag = tag(&bytes, &self.grant, key, to);
        bytes[HEAD_LEN..].copy_from_slice(&tag);
        bytes
    }

    /// Reads one that came in an IPv6 (or not) datagram. Nothing of it is proved: see [`Self::is_proved`].
    ///
    /// # Errors
    /// `Malformed` and `UnknownSuite`, in the order of wire.md §9.5.5.
    pub fn read(bytes: &[u8; INITIATION_LEN], ipv6: bool) -> Result<Self, DropReason> {
        let [INITIATION, version, suites, helped, i0, i1, i2, i3, t0, t1, t2, t3, 0, 0, 0, 0, rest @ ..] = *bytes
        else {
            return Err(DropReason::Malformed);
        };
        let (Some(grant), Some(share)) = (rest.first_chunk(), rest[16..].first_chunk()) else {
            return Err(DropReason::Malformed);
        };
        let flags = Flags(grant[1]);
        if flags.has(Flags::BEARER) || flags.has(Flags::IPV6) != ipv6 {
            return Err(DropReason::Malformed);
        }
        Ok(Self {
            offer: Offer::decode([version, suites, helped]).ok_or(DropReason::Malformed)?,
            index: Index::new(u32::from_be_bytes([i0, i1, i2, i3])).ok_or(DropReason::Malformed)?,
            time: u32::from_be_bytes([t0, t1, t2, t3]),
            grant: GrantHeader::decode(grant)?,
            share: *share,
        })
    }

    /// Whether its tag is the one that the grant's key gives; constant time, one MAC (wire.md §9.5.1). `self` was read from
    /// these bytes.
    pub fn is_proved(&self, bytes: &[u8; INITIATION_LEN], key: &GrantKey, to: &Destination) -> bool {
        mac::tags_equal(&bytes[HEAD_LEN..], &tag(bytes, &self.grant, key, to))
    }
}

fn tag(bytes: &[u8; INITIATION_LEN], grant: &GrantHeader, key: &GrantKey, to: &Destination) -> [u8; MAC_LEN] {
    let block = Block::destination(to);
    let mut message = [0; HEAD_LEN + Block::MAX];
    let len = HEAD_LEN + block.bytes().len();
    message[..HEAD_LEN].copy_from_slice(&bytes[..HEAD_LEN]);
    message[HEAD_LEN..len].copy_from_slice(block.bytes());
    grant.suite.mac(key.bytes(), &[&message[..len]])
}

/// Why there is no tunnel: a numbered list that only grows (wire.md §9.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The ends have no suite in common.
    NoSuite = 1,
    /// The grant's account has as many tunnels as it may, or the table is full.
    Limit = 2,
    /// The grant was revoked, or its session ended.
    Revoked = 3,
}

impl Refusal {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::NoSuite, Self::Limit, Self::Revoked];

    /// The name in logs and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSuite => "no_suite",
            Self::Limit => "limit",
            Self::Revoked => "revoked",
        }
    }
}

/// The answer to an initiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The responder's suites; whether keys are exchanged is as the initiation has it.
    pub offer: Offer,
    /// The initiator's index, from the initiation.
    pub to: Index,
    /// The responder's index for phase 1 and its share, or why there is no tunnel.
    pub given: Result<(Index, Share), Refusal>,
}

impl Response {
    pub(super) fn head(&self) -> [u8; RESPONSE_HEAD_LEN] {
        let mut bytes = [0; RESPONSE_HEAD_LEN];
        bytes[..4].copy_from_slice(&self.offer.encode(RESPONSE));
        bytes[4..8].copy_from_slice(&self.to.get().to_be_bytes());
        match &self.given {
            Ok((index, share)) => {
                bytes[8..12].copy_from_slice(&index.get().to_be_bytes());
                bytes[16..].copy_from_slice(share);
            }
            Err(refusal) => bytes[12] = *refusal as u8,
        }
        bytes
    }

    /// Reads one; `None` if it is `malformed`. Nothing of it is proved: that takes [`super::Handshake::take`].
    pub fn read(bytes: &[u8; RESPONSE_LEN]) -> Option<Self> {
        let [RESPONSE, version, suites, helped, t0, t1, t2, t3, i0, i1, i2, i3, refusal, _, _, _, rest @ ..] = *bytes
        else {
            return None;
        };
        let given = match refusal {
            0 => Ok((Index::new(u32::from_be_bytes([i0, i1, i2, i3]))?, *rest.first_chunk()?)),
            number => Err(Refusal::ALL.into_iter().find(|refusal| *refusal as u8 == number)?),
        };
        let offer = Offer::decode([version, suites, helped])?;
        let response = Self { offer, to: Index::new(u32::from_be_bytes([t0, t1, t2, t3]))?, given };
        // Reserved bytes, and those that a refusal leaves, are zero.
        bytes.starts_with(&response.head()).then_some(response)
    }
}
