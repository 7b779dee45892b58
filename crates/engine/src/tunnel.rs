//! Both ends of sealed tunnels (wire.md §9), without IO. [`Initiator`] is the agent's end of one tunnel; [`Responder`]
//! holds a verifier's ends of all its tunnels. Time and randomness are arguments, and the datagrams to send are return
//! values.
//!
//! An end never sends a packet unsealed. If it can't seal a packet, it refuses the packet. A responder stores nothing
//! about an initiation until it has verified the tag.

mod export;
mod initiator;
mod limits;
mod link;
mod phase;
mod recent;
mod responder;
mod watch;

pub use export::Opens;
pub use initiator::{Initiator, Terms};
pub use limits::Limits;
pub use responder::{NotTaken, Outgoing, Responder, TunnelId, TunnelInfo};

use seal::Joined;
use wire::seal::{Close, Index, Refusal, Suite, Suites, Treatment};

/// Milliseconds of a clock that is never set back, and that advances while the machine sleeps.
pub type Millis = u64;

/// Default age at which a phase is re-keyed; a rule can set another age (wire.md §9.10).
pub const REKEY_AFTER: Millis = 120_000;
/// Time beyond the re-keying age during which an end is still allowed to send in a phase (wire.md §9.10.1).
pub const REKEY_GRACE: Millis = 60_000;
/// Time after the beginning of a phase during which an end still opens older records: records of the previous phase or,
/// in phase 1, early records (wire.md §9.5.8, §9.9.2).
pub const LINGER: Millis = 10_000;
/// First and longest interval, in milliseconds, after which an unanswered message is sent again (wire.md §9.5.7, §9.9).
pub const RESEND: (Millis, Millis) = (250, 8_000);
/// Time after which an unanswered initiation is replaced by a new one (wire.md §9.5.7).
pub const ATTEMPT: Millis = 20_000;
/// Time without a sent record after which an initiator that has flows sends a ping (wire.md §9.10.2).
pub const KEEP_ALIVE: Millis = 20_000;
/// Time without traffic after which an end discards keys that it can derive again.
pub const REST: Millis = 5_000;
/// Maximum number of units that an end seals in one phase and direction. A record counts as one unit, plus one unit for
/// each 16 bytes of its body, rounded up (wire.md §9.10).
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

/// Reason why a record of a tunnel was dropped (wire.md §9.13). An initiation is dropped for a [`wire::DropReason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dropped {
    /// The datagram is not a message of a tunnel, or violates its format.
    Malformed,
    /// No tunnel has this index.
    NoTunnel,
    /// The record's tag is not valid under the key of its phase, direction, treatment and suite.
    BadTag,
    /// The record's counter was used before, or is older than the window of remembered counters.
    Replayed,
    /// A limit of wire.md §9.10 is reached, or this end has no room for the record.
    Limit,
}

impl Dropped {
    /// Every reason for which a record is dropped.
    pub const ALL: [Self; 5] = [Self::Malformed, Self::NoTunnel, Self::BadTag, Self::Replayed, Self::Limit];

    /// Returns the reason's name in metrics and documents.
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

/// Reason why a packet was not sealed. The caller must not send the packet in any other way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSealed {
    /// There is no tunnel yet, and the packet does not fit behind an initiation. The caller can try again later.
    Waits,
    /// There is no tunnel, the tunnel has ended, or a limit of wire.md §9.10 was reached.
    Over,
    /// The other end opens none of the suites that the rule allows.
    NoSuite,
    /// The packet is empty, the lane does not exist, or the cryptographic library failed.
    Impossible,
}

/// A packet to be sealed.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'p> {
    /// The treatment that the rule requires, or a stronger treatment.
    pub treatment: Treatment,
    /// The suites that the rule allows.
    pub suites: Suites,
    /// Lane whose counter the record uses; less than [`wire::seal::record::LANES`]. Each queue or core that seals uses
    /// a separate lane.
    pub lane: u8,
    /// Whether the packet's transport checksum is still incomplete (checksum offload).
    pub partial: bool,
    /// The IP packet, split into parts, in their order.
    pub parts: &'p [&'p [u8]],
}

/// Result of a received datagram.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<'d> {
    /// The record carried a packet.
    Packet {
        /// Treatment of the packet. The caller has to check that the rule does not demand a stronger treatment.
        treatment: Treatment,
        /// AEAD with which the packet was sealed. The caller has to check that the rule allows it.
        suite: Suite,
        /// Whether the packet's transport checksum is still incomplete (checksum offload).
        partial: bool,
        /// Whether the packet was sealed before the response arrived. Such a packet has no forward secrecy.
        early: bool,
        /// The IP packet, decrypted in the datagram's buffer.
        packet: &'d mut [u8],
    },
    /// The datagram contained the last missing part of a block. The caller has to decompress the block.
    Block {
        /// AEAD with which the last part was sealed.
        suite: Suite,
        /// The block, joined from its parts.
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
