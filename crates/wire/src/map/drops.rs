//! Counters of the verifier's program, and samples of dropped packets.

use super::FlowKey;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A dropped packet, as the verifier's program reports it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DropSample {
    /// The grant's handle if the token was readable, else 0.
    pub handle: u64,
    /// The packet's flow, as far as it was readable.
    pub flow: FlowKey,
    /// The interface's index.
    pub interface: u32,
    /// The packet's length.
    pub length: u16,
    /// The drop reason's number.
    pub reason: u8,
    /// 1 if the packet passed because the verifier only observes.
    pub observed: u8,
}

/// Indices of the verifier's counters that follow those of the drop reasons; a drop reason's counter is at its number.
pub mod counter {
    /// Packets to destinations that are not protected.
    pub const NOT_OURS: u32 = 16;
    /// Packets of admitted flows.
    pub const FLOW: u32 = 17;
    /// Packets admitted by their token.
    pub const TOKEN: u32 = 18;
    /// Datagrams that carried a token alone and were consumed.
    pub const CONSUMED: u32 = 19;
    /// ICMP errors that quoted an admitted flow.
    pub const ICMP_ERROR: u32 = 20;
    /// Drop samples that did not fit the ring or the rate.
    pub const SAMPLES_LOST: u32 = 21;
    /// Flows that the inside of a gateway has opened.
    pub const OUTBOUND: u32 = 22;
    /// Flows that the inside of a gateway failed to open because the table was full.
    pub const OUTBOUND_FULL: u32 = 23;
    /// Packets from the inside to an inside address that is not assigned.
    pub const UNCLAIMED: u32 = 24;
    /// Number of counters.
    pub const COUNT: u32 = 32;
}
