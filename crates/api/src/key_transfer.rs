//! Messages between an authority and the process that sends client keys in band for it (wire.md §5.4.1): the authority
//! itself runs without the privileges that kernel programs require.

use serde::{Deserialize, Serialize};
use std::net::SocketAddrV4;

/// Default socket path of the process that sends client keys in band.
pub const DEFAULT_SOCKET: &str = "/run/vouchsafe-transfer/socket";

/// A request to send this key on this flow. Has no `Debug`: it holds the key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOver {
    /// The client's end of the connection.
    pub client: SocketAddrV4,
    /// The authority's end of the connection.
    pub server: SocketAddrV4,
    /// The 35 bytes of wire.md §5.4, in hex. Secret.
    pub content: String,
}

/// The response to a [`HandOver`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandedOver {
    /// The next suitable packet of the flow carries the key.
    Yes,
    /// The flow's client did not announce that it accepts keys, or an earlier key still waits for its packet.
    No,
    /// The transfer failed, for this reason.
    Failed(String),
}
