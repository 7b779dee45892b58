//! Initiations and responses (wire.md §9.5). [`super::schedule`] derives the keys.

use super::Share;
use super::record::Index;
use super::suite::Suites;
use crate::drop_reason::DropReason;
use crate::grant::{Block, Destination, Flags, GrantHeader, VERSION};
use crate::key::GrantKey;
use crate::mac::{self, MAC_LEN};

/// Length of an initiation in bytes.
pub const INITIATION_LEN: usize = 80;
/// Length of a response in bytes.
pub const RESPONSE_LEN: usize = 64;
const _: () = assert!(RESPONSE_LEN <= INITIATION_LEN, "a response is no longer than an initiation");
/// Number of bytes of a response that its tag covers.
pub(super) const RESPONSE_HEAD_LEN: usize = RESPONSE_LEN - MAC_LEN;
const HEAD_LEN: usize = INITIATION_LEN - MAC_LEN;

pub(super) const INITIATION: u8 = 1;
pub(super) const RESPONSE: u8 = 2;
const FORWARD: u8 = 1;

/// The capabilities of one end of a tunnel, as this end announces them in its initiation or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Whether the keys also depend on an X25519 exchange, which gives forward secrecy.
    pub forward: bool,
    /// The suites that the end can open; at least one.
    pub suites: Suites,
    /// The subset of `suites` that the end's hardware accelerates.
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

/// A request for a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initiation {
    /// The initiator's suites, and whether the initiator requests an X25519 exchange.
    pub offer: Offer,
    /// The initiator's index for phase 1.
    pub index: Index,
    /// Time when the initiation was made, Unix seconds by the initiator's clock.
    pub time: u32,
    /// The header of the grant for the tunnel's service.
    pub grant: GrantHeader,
    /// The initiator's share.
    pub share: Share,
}

impl Initiation {
    /// Encodes an initiation to the tunnel's service at `to`, and authenticates it with the key of the initiation's
    /// grant.
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

    /// Parses an initiation from a datagram; `ipv6` says whether the datagram is IPv6. Nothing in the initiation is
    /// authenticated until [`Self::is_proved`] has returned true.
    ///
    /// # Errors
    ///
    /// Returns `Malformed` or `UnknownSuite`, in the order of wire.md §9.5.5.
    pub fn read(bytes: &[u8; INITIATION_LEN], ipv6: bool) -> Result<Self, DropReason> {
        let [INITIATION, version, suites, helped, i0, i1, i2, i3, t0, t1, t2, t3, 0, 0, 0, 0, rest @ ..] = *bytes
        else {
            return Err(DropReason::Malformed);
        };
        let (Some(grant), Some(share)) = (rest.first_chunk(), rest[16..].first_chunk()) else {
            return Err(DropReason::Malformed);
        };
        let flags = Flags(grant[1]);
        // A tunnel can't be inside another tunnel.
        if flags.has(Flags::BEARER) || flags.has(Flags::SEALED) || flags.has(Flags::IPV6) != ipv6 {
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

    /// Reports whether the initiation's tag is the one that the grant's key yields (wire.md §9.5.1). The comparison
    /// takes constant time and one MAC computation. `self` must have been read from `bytes`.
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

/// Reason for refusing a tunnel: a numbered, append-only list (wire.md §9.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The ends have no suite in common.
    NoSuite = 1,
    /// The grant's account has reached its limit of tunnels, or the table is full.
    Limit = 2,
    /// The grant was revoked, or its session ended.
    Revoked = 3,
}

impl Refusal {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::NoSuite, Self::Limit, Self::Revoked];

    /// Returns the name used in logs and documents.
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
    /// The suites that the responder can open. `forward` has the same value as in the initiation.
    pub offer: Offer,
    /// The initiator's index, copied from the initiation.
    pub to: Index,
    /// If the responder accepts the tunnel: the responder's index for phase 1, and its share. Otherwise the reason for
    /// refusing the tunnel.
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

    /// Parses a response. Returns `None` if it is `malformed`. Nothing in the response is authenticated until
    /// [`super::Handshake::take`] has succeeded.
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
        // Reserved bytes, and those that a refusal does not use, are zero.
        bytes.starts_with(&response.head()).then_some(response)
    }
}
