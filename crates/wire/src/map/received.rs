//! Layouts of the events and flows that peer gateways share (`bpf/include/received.h`).

use super::{Flow, FlowKey};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Settings for when the programs report flows.
pub mod advertises_flows {
    /// Never.
    pub const NOTHING: u32 = 0;
    /// Report flows once they are admitted, or opened from inside.
    pub const ADMITTED: u32 = 1;
    /// Report flows opened from inside at once, and admitted flows once they have an inside address.
    pub const BOUND: u32 = 2;
}

/// Event: a flow has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlowNews {
    /// The flow.
    pub key: FlowKey,
    /// Time of the event, nanoseconds since boot.
    pub time: u64,
}

/// A flow that another gateway reported, in this machine's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReceivedFlow {
    /// The flow.
    pub key: FlowKey,
    /// State of the flow.
    pub flow: Flow,
    /// Expiry of the flow's grant, Unix seconds.
    pub expires: u32,
    /// 1 if the flow is to be created if it is missing.
    pub begins: u32,
}

/// Outcomes of taking over a flow that another gateway reported.
pub mod taken {
    /// The flow was added to the table.
    pub const NEW: u32 = 1;
    /// The flow was in the table and has been refreshed.
    pub const KNOWN: u32 = 2;
    /// The flow's grant is revoked.
    pub const REVOKED: u32 = 3;
    /// A younger flow between the same ends exists.
    pub const OLDER: u32 = 4;
    /// The flow has ended on this gateway.
    pub const GONE: u32 = 5;
    /// The table is full.
    pub const FULL: u32 = 6;
}

/// The inside address of a flow that another gateway reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReceivedAddress {
    /// The flow.
    pub key: FlowKey,
    /// The address.
    pub inside: [u8; 16],
    /// The number of the person who has the address.
    pub person: u32,
    /// The time, Unix seconds.
    pub now: u32,
    /// Result: the address's slot plus one, or 0 if the flow can't have the address on this gateway.
    pub slot: u32,
    /// The client's port as the inside sees it, big-endian.
    pub port: [u8; 2],
    /// Zero.
    pub reserved: u16,
}
