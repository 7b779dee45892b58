//! Control messages between the ends of a tunnel, in control records (wire.md §9.8).

use super::Share;
use super::record::Index;
use core::num::NonZeroU32;

const REKEY: u8 = 1;
const PING: u8 = 2;
const PONG: u8 = 3;
const CLOSE: u8 = 4;
const HAVE: u8 = 1;

/// Maximum length of a control message, in bytes.
pub const LEN_MAX: usize = 44;

/// Reason for closing a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Close {
    /// The end no longer needs the tunnel, or another tunnel replaced it.
    Ended = 1,
    /// The grant was revoked, or its session ended.
    Revoked = 2,
    /// The grant has ended.
    Expired = 3,
    /// A limit of wire.md §9.10 was reached.
    Limit = 4,
}

impl Close {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Ended, Self::Revoked, Self::Expired, Self::Limit];

    /// Returns the name used in logs and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Revoked => "revoked",
            Self::Expired => "expired",
            Self::Limit => "limit",
        }
    }
}

/// The body of a control record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// A share for the next phase (wire.md §9.9).
    Rekey {
        /// Whether the sender of this message already has the other end's share.
        have: bool,
        /// Number of the phase for which the share is.
        phase: NonZeroU32,
        /// The index that the sender of this message assigns to the phase.
        index: Index,
        /// The sender's share.
        share: Share,
    },
    /// A request to send these bytes back.
    Ping([u8; 8]),
    /// The answer to a ping.
    Pong([u8; 8]),
    /// The sender of this message closes the tunnel, for this reason.
    Close(Close),
}

/// An encoded control message of at most [`LEN_MAX`] bytes.
#[derive(Clone, Copy)]
pub struct Body {
    bytes: [u8; LEN_MAX],
    len: usize,
}

impl Body {
    /// Returns the bytes of the encoded message.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn new<const N: usize>(head: [u8; 4], rest: [u8; N]) -> Self {
        const { assert!(4 + N <= LEN_MAX, "there is room for the longest") };
        let mut bytes = [0; LEN_MAX];
        let (start, room) = bytes.split_at_mut(4);
        start.copy_from_slice(&head);
        room[..N].copy_from_slice(&rest);
        Self { bytes, len: 4 + N }
    }
}

impl Control {
    /// Encodes the message.
    pub fn encode(&self) -> Body {
        match self {
            Self::Rekey { have, phase, index, share } => {
                let mut rest = [0; 40];
                rest[..4].copy_from_slice(&phase.get().to_be_bytes());
                rest[4..8].copy_from_slice(&index.get().to_be_bytes());
                rest[8..].copy_from_slice(share);
                Body::new([REKEY, if *have { HAVE } else { 0 }, 0, 0], rest)
            }
            Self::Ping(bytes) => Body::new([PING, 0, 0, 0], *bytes),
            Self::Pong(bytes) => Body::new([PONG, 0, 0, 0], *bytes),
            Self::Close(reason) => Body::new([CLOSE, *reason as u8, 0, 0], []),
        }
    }

    /// Parses the body of a control record. Returns `None` if it is `malformed`. Every message has exactly one
    /// encoding, except that an unknown reason for closing is read as `Ended`.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let (head, rest) = body.split_first_chunk::<4>()?;
        match (*head, rest.len()) {
            ([REKEY, flags, 0, 0], 40) if flags & !HAVE == 0 => {
                let (phase, rest) = rest.split_first_chunk()?;
                let (index, share) = rest.split_first_chunk()?;
                Some(Self::Rekey {
                    have: flags == HAVE,
                    phase: NonZeroU32::new(u32::from_be_bytes(*phase))?,
                    index: Index::new(u32::from_be_bytes(*index))?,
                    share: share.try_into().ok()?,
                })
            }
            ([PING, 0, 0, 0], 8) => Some(Self::Ping(rest.try_into().ok()?)),
            ([PONG, 0, 0, 0], 8) => Some(Self::Pong(rest.try_into().ok()?)),
            ([CLOSE, reason, 0, 0], 0) => {
                let known = Close::ALL.into_iter().find(|known| *known as u8 == reason);
                Some(Self::Close(known.unwrap_or(Close::Ended)))
            }
            _ => None,
        }
    }
}
