//! Counters of the verifier's program, and samples of dropped packets.

use super::FlowKey;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A dropped packet, as the verifier's program reports it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DropSample {
    /// The handle of the grant that the token names, if the token could be read, otherwise 0.
    pub handle: u64,
    /// The packet's flow, as far as it could be read.
    pub flow: FlowKey,
    /// Index of the interface on which the packet arrived.
    pub interface: u32,
    /// Length of the frame in bytes, at most 65 535.
    pub length: u16,
    /// Number of the drop reason.
    pub reason: u8,
    /// 1 if the packet passed because the verifier only observes.
    pub observed: u8,
}

/// Indices of the verifier's counters, except the counters of drop reasons. The index of a drop reason's counter is the
/// number of the drop reason.
pub mod counter {
    /// Number of packets to destinations that are not protected.
    pub const NOT_OURS: u32 = 16;
    /// Number of packets of flows that had been admitted before.
    pub const FLOW: u32 = 17;
    /// Number of packets that were admitted by their token.
    pub const TOKEN: u32 = 18;
    /// Number of packets whose token the program accepted, but that it did not pass on: datagrams that contained only a
    /// token, and merged datagrams.
    pub const CONSUMED: u32 = 19;
    /// Number of ICMP errors that quoted an admitted flow.
    pub const ICMP_ERROR: u32 = 20;
    /// Number of drop samples that were lost because the ring was full or because of the rate limit.
    pub const SAMPLES_LOST: u32 = 21;
    /// Number of flows that were opened from inside a gateway.
    pub const OUTBOUND: u32 = 22;
    /// Number of flows that could not be opened from inside a gateway because the table was full.
    pub const OUTBOUND_FULL: u32 = 23;
    /// Number of packets from the inside to an inside address that is assigned to nobody.
    pub const UNCLAIMED: u32 = 24;
    /// Number of strangers' packets to an optional receiver, and of ICMP errors about such packets.
    pub const STRANGER: u32 = 25;
    /// Number of entries in the table of counters.
    pub const COUNT: u32 = 32;
}
