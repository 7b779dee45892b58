//! Layouts of the events and flows that peer gateways share (`bpf/include/received.h`).

use super::{Flow, FlowKey};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Values of [`super::VerifierConfig::advertises_flows`].
pub mod advertises_flows {
    /// The program reports no flows.
    pub const NOTHING: u32 = 0;
    /// The program reports each flow when it is admitted, or when it is opened from inside.
    pub const ADMITTED: u32 = 1;
    /// The program at once reports a flow that is opened from inside. It reports an admitted flow when the flow has an
    /// inside address.
    pub const BOUND: u32 = 2;
}

/// Event: a flow has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlowNews {
    /// Key of the flow that has begun.
    pub key: FlowKey,
    /// Time of the event, nanoseconds since boot.
    pub time: u64,
}

/// A flow that another gateway reported. Its times are converted to this machine's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReceivedFlow {
    /// Key of the flow.
    pub key: FlowKey,
    /// State of the flow at the other gateway.
    pub flow: Flow,
    /// Expiry of the flow's grant, Unix seconds.
    pub expires: u32,
    /// 1 if the program has to add the flow when the table lacks it, otherwise 0.
    pub begins: u32,
}

/// Outcomes of taking over a flow that another gateway reported.
pub mod taken {
    /// The flow was added to the table.
    pub const NEW: u32 = 1;
    /// The flow was in the table and has been refreshed.
    pub const KNOWN: u32 = 2;
    /// Refused: the flow's grant is revoked, or the grant's session has ended.
    pub const REVOKED: u32 = 3;
    /// Refused: the table keeps the flow that it has between the same ends. Either that flow is at least as new, or
    /// that flow is open with another owner, or the reported flow consists only of answers from the inside.
    pub const OLDER: u32 = 4;
    /// Refused: the table does not have the flow (any more), and [`super::ReceivedFlow::begins`] is 0.
    pub const GONE: u32 = 5;
    /// Refused: a table is full, the limit of flows opened from inside is reached, or a core is changing the entry.
    pub const FULL: u32 = 6;
}

/// The inside address of a flow that another gateway reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReceivedAddress {
    /// The flow to which the address belongs.
    pub key: FlowKey,
    /// The inside address of the flow's client.
    pub inside: [u8; 16],
    /// The number of the person who has the address.
    pub person: u32,
    /// The current time, Unix seconds.
    pub now: u32,
    /// Result of the program: the slot of the address plus one, or 0 if the flow can't have the address on this
    /// gateway.
    pub slot: u32,
    /// The client's port as the inside sees it, big-endian.
    pub port: [u8; 2],
    /// Reserved; zero.
    pub reserved: u16,
}
