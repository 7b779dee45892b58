//! Both ends of sealed tunnels (wire.md §9), without IO: [`Initiator`] is the agent's end of one tunnel, [`Responder`]
//! holds a verifier's ends of all its tunnels. Time and randomness are arguments; datagrams to send are returned as
//! values.
//!
//! An end fails closed: it refuses a packet that it can't seal, and no function returns a packet unsealed. A responder
//! stores nothing about an initiation until it has verified the tag.

mod initiator;
mod limits;
mod link;
mod phase;
mod recent;
mod responder;

pub use initiator::{Initiator, Terms};
pub use limits::Limits;
pub use responder::{NotTaken, Outgoing, Responder, TunnelId, TunnelInfo};

use seal::Joined;
use wire::seal::{Close, Index, Refusal, Suite, Suites, Treatment};

/// Milliseconds of a clock that is never set back, and that advances while the machine sleeps.
pub type Millis = u64;

/// Default age at which a phase is re-keyed; a rule may set another (wire.md §9.10).
pub const REKEY_AFTER: Millis = 120_000;
/// Time beyond the re-keying age during which an end may still send in a phase (wire.md §9.10.1).
pub const REKEY_GRACE: Millis = 60_000;
/// Time for which an end opens records of the previous phase, and early records after phase 1 began (wire.md §9.5.8,
/// §9.9.2).
pub const LINGER: Millis = 10_000;
/// First and longest interval after which an unanswered message is sent again (wire.md §9.5.7, §9.9).
pub const RESEND: (Millis, Millis) = (250, 8_000);
/// Time after which an unanswered initiation is replaced by a new one (wire.md §9.5.7).
pub const ATTEMPT: Millis = 20_000;
/// Time without sending after which an initiator that has flows sends a ping (wire.md §9.10.2).
pub const KEEP_ALIVE: Millis = 20_000;
/// If nothing was sent or received for this long, an end discards keys that it can derive again.
pub const REST: Millis = 5_000;
/// Maximum number of units sealed in one phase and direction (wire.md §9.10).
pub const UNITS_MAX: u64 = 1 << 35;
/// Maximum number of records of one phase that may fail to open (wire.md §9.10).
pub const FAILED_MAX: u64 = 1 << 36;

/// A source of random bytes.
pub trait Chance {
    /// Returns 32 unpredictable bytes.
    fn bytes(&mut self) -> [u8; 32];

    /// Returns a random index.
    fn index(&mut self) -> Index {
        loop {
            let [a, b, c, d, ..] = self.bytes();
            if let Some(index) = Index::new(u32::from_be_bytes([a, b, c, d])) {
                return index;
            }
        }
    }
}

/// Reason why a tunnel's record was dropped (wire.md §9.13). The reasons for initiations are [`wire::DropReason`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dropped {
    /// The datagram is not a message, or a message that violates its format.
    Malformed,
    /// No tunnel has this index.
    NoTunnel,
    /// The record was not sealed with the key of this phase, direction, treatment and suite.
    BadTag,
    /// The counter was seen before, or is so old that this is not known.
    Replayed,
    /// A limit of wire.md §9.10 is reached, or there is no room.
    Limit,
}

impl Dropped {
    /// All reasons.
    pub const ALL: [Self; 5] = [Self::Malformed, Self::NoTunnel, Self::BadTag, Self::Replayed, Self::Limit];

    /// Returns the name in metrics and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::NoTunnel => "no_tunnel",
            Self::BadTag => "bad_tag",
            Self::Replayed => "replayed",
            Self::Limit => "limit",
        }
    }
}

/// Reason why a packet was not sealed. The packet must not be sent in any other way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSealed {
    /// There is no tunnel yet, and the packet does not fit behind an initiation. The caller may try again later.
    Waits,
    /// There is no tunnel, the tunnel is over, or a limit of wire.md §9.10 was reached.
    Over,
    /// The other end opens none of the suites that the rule allows.
    NoSuite,
    /// The packet is empty, the lane does not exist, or the cryptographic library failed.
    Impossible,
}

/// A packet to be sealed.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'p> {
    /// Treatment that the rule requires, or a stronger one.
    pub treatment: Treatment,
    /// The suites that the rule allows.
    pub suites: Suites,
    /// Lane whose counter the record uses; less than [`wire::seal::record::LANES`]. Each queue or core that seals uses
    /// a lane of its own.
    pub lane: u8,
    /// Whether the transport checksum is partial.
    pub partial: bool,
    /// The IP packet, as parts that are joined.
    pub parts: &'p [&'p [u8]],
}

/// Result of a received datagram.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<'d> {
    /// The record carried a packet.
    Packet {
        /// Treatment of the packet. The caller has to check that the rule does not require a stronger one.
        treatment: Treatment,
        /// AEAD that sealed the packet. The caller has to check that the rule allows it.
        suite: Suite,
        /// Whether the transport checksum is partial.
        partial: bool,
        /// Whether the packet was sealed before there was a response: it has no forward secrecy.
        early: bool,
        /// The IP packet, decrypted in the datagram's buffer.
        packet: &'d mut [u8],
    },
    /// The datagram brought the last missing part of a block. The caller has to decompress the block.
    Block {
        /// AEAD that sealed the part.
        suite: Suite,
        /// The joined block.
        block: Joined,
    },
    /// The tunnel has just been opened.
    Open,
    /// The verifier refused the tunnel.
    Refused(Refusal),
    /// The other end closed the tunnel.
    Closed(Close),
    /// The datagram concerned only the tunnel itself.
    Nothing,
}

#[cfg(test)]
mod tests;
