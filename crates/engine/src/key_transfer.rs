//! What an authority and the process that sends client keys in band for it say to each other (wire.md §5.4.1): the authority
//! itself runs without the privileges that kernel programs take.

use serde::{Deserialize, Serialize};
use std::net::SocketAddrV4;

/// Where that process listens unless it is told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/vouchsafe-transfer/socket";

/// Send this key on this flow. Has no `Debug`: it holds the key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOver {
    /// The client's end of the connection.
    pub client: SocketAddrV4,
    /// The authority's end.
    pub server: SocketAddrV4,
    /// The 35 bytes of wire.md §5.4, hex. Secret.
    pub content: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandedOver {
    /// The next packet on the flow that fits has it.
    Yes,
    /// The flow's client did not say that it takes keys, or an earlier one still waits for its packet.
    No,
    /// It could not be done, and why.
    Failed(String),
}
