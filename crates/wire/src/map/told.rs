//! Layouts of what gateways that stand side by side share: what the programs tell of flows, and what they are told
//! (`bpf/include/told.h`).

use super::{Flow, FlowKey};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// When the programs tell of flows.
pub mod tells_flows {
    /// Never.
    pub const NOTHING: u32 = 0;
    /// Once they are admitted, or opened from inside.
    pub const ADMITTED: u32 = 1;
    /// The same, but admitted ones once they have an inside address.
    pub const BOUND: u32 = 2;
}

/// A flow has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlowNews {
    /// Which.
    pub key: FlowKey,
    /// When, nanoseconds since boot.
    pub time: u64,
}

/// A flow that another gateway told of, in this machine's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ToldFlow {
    /// Which.
    pub key: FlowKey,
    /// How it stands.
    pub flow: Flow,
    /// When its grant ends, Unix seconds.
    pub expires: u32,
    /// 1 if it is to be made where it is not there.
    pub begins: u32,
}

/// What became of a flow that was told of.
pub mod taken {
    /// It is in the table.
    pub const NEW: u32 = 1;
    /// It was there, and is refreshed.
    pub const KNOWN: u32 = 2;
    /// Its grant is revoked.
    pub const REVOKED: u32 = 3;
    /// There is another one between the same, which is younger.
    pub const OLDER: u32 = 4;
    /// It is over here.
    pub const GONE: u32 = 5;
    /// There is no room.
    pub const FULL: u32 = 6;
}

/// The inside address of a flow that another gateway told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ToldAddress {
    /// The flow.
    pub key: FlowKey,
    /// The address.
    pub inside: [u8; 16],
    /// The number of the person whose it is.
    pub person: u32,
    /// The time, Unix seconds.
    pub now: u32,
    /// Filled in: the address's slot and one more, 0 if the flow can't have it here.
    pub slot: u32,
    /// The client's port as the inside sees it, big-endian.
    pub port: [u8; 2],
    /// Zero.
    pub reserved: u16,
}
