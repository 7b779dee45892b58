//! Both ends of sealed tunnels (wire.md §9), without IO: [`Initiator`] is the agent's, [`Responder`] all of a verifier's. Time and
//! chance are arguments; datagrams to send come out as values.
//!
//! An end fails closed: what it can't seal it refuses, and there is no call that gives a packet back unsealed. A responder keeps
//! nothing of an initiation before its tag was right.

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

/// Milliseconds of a clock that is never set back, and that goes on while the machine sleeps.
pub type Millis = u64;

/// Until a phase gives way to the next, unless the rule says otherwise (wire.md §9.10).
pub const REKEY_AFTER: Millis = 120_000;
/// How much older than that a phase may be sent in (wire.md §9.10.1).
pub const REKEY_GRACE: Millis = 60_000;
/// How long records of the phase before are opened, and early ones after phase 1 began (wire.md §9.5.8, §9.9.2).
pub const LINGER: Millis = 10_000;
/// Until an unanswered message is sent again, for the first time and at most (wire.md §9.5.7, §9.9).
pub const RESEND: (Millis, Millis) = (250, 8_000);
/// When an unanswered initiation gives way to another (wire.md §9.5.7).
pub const ATTEMPT: Millis = 20_000;
/// After how much silence an initiator with flows pings (wire.md §9.10.2).
pub const KEEP_ALIVE: Millis = 20_000;
/// After how much silence in both directions keys that can be derived again are forgotten.
pub const REST: Millis = 5_000;
/// Units that may be sealed in one phase and direction (wire.md §9.10).
pub const UNITS_MAX: u64 = 1 << 35;
/// Records of one phase that may fail to open (wire.md §9.10).
pub const FAILED_MAX: u64 = 1 << 36;

/// Where random bytes come from.
pub trait Chance {
    /// 32 bytes that nobody can guess.
    fn bytes(&mut self) -> [u8; 32];

    /// A random index.
    fn index(&mut self) -> Index {
        loop {
            let [a, b, c, d, ..] = self.bytes();
            if let Some(index) = Index::new(u32::from_be_bytes([a, b, c, d])) {
                return index;
            }
        }
    }
}

/// Why a datagram in a tunnel was dropped (wire.md §9.13). Those of initiations are [`wire::DropReason`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dropped {
    /// No message, or one that breaks its form.
    Malformed,
    /// An index that nobody has.
    NoTunnel,
    /// It was not sealed with the key of this phase, direction, treatment and suite.
    BadTag,
    /// The counter was there before, or is too old to tell.
    Replayed,
    /// A limit of wire.md §9.10, or no room.
    Limit,
}

impl Dropped {
    /// All.
    pub const ALL: [Self; 5] = [Self::Malformed, Self::NoTunnel, Self::BadTag, Self::Replayed, Self::Limit];

    /// The name in metrics and documents.
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

/// Why a packet was not sealed. It must not be sent otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSealed {
    /// There is no tunnel yet, and it does not fit behind an initiation: it may be tried again.
    Waits,
    /// There is no tunnel, or it is over, or a limit of wire.md §9.10 was reached.
    Over,
    /// The other end opens none of the suites that the rule allows.
    NoSuite,
    /// It is empty, the lane is none, or the library failed.
    Impossible,
}

/// What is to be sealed.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'p> {
    /// What the rule asks for, or more.
    pub treatment: Treatment,
    /// The suites that the rule allows.
    pub suites: Suites,
    /// Which queue or core seals, below [`wire::seal::record::LANES`].
    pub lane: u8,
    /// The transport checksum is only begun.
    pub partial: bool,
    /// The IP packet, in parts that are joined.
    pub parts: &'p [&'p [u8]],
}

/// What a datagram brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<'d> {
    /// A packet.
    Packet {
        /// What was done for it: the rule may ask for more.
        treatment: Treatment,
        /// The AEAD it came by: the rule may not allow it.
        suite: Suite,
        /// The transport checksum is only begun.
        partial: bool,
        /// It came before there was a response: it has no forward secrecy.
        early: bool,
        /// The IP packet, in the datagram's place.
        packet: &'d mut [u8],
    },
    /// The last missing part of a block, which is to be unpacked.
    Block {
        /// The AEAD it came by.
        suite: Suite,
        /// The block.
        block: Joined,
    },
    /// There is a tunnel now.
    Open,
    /// There will be none.
    Refused(Refusal),
    /// The other end ended it.
    Closed(Close),
    /// Nothing for others than the tunnel.
    Nothing,
}

#[cfg(test)]
mod tests;
