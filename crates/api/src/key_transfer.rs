//! Messages between the authority and the process that sends client keys in band for the authority (wire.md §5.4.1).
//! The process and the authority are separate because the authority runs without the privileges that kernel programs
//! require.

use serde::{Deserialize, Serialize};
use std::net::SocketAddrV4;

/// Default socket path of the process that sends client keys in band.
pub const DEFAULT_SOCKET: &str = "/run/vouchsafe-transfer/socket";

/// A request to the process that sends client keys in band. The process puts the client key in `content` into a packet
/// of the connection between `client` and `server`. The type does not implement `Debug`, because it contains the key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOver {
    /// Address and port of the client's end of the connection.
    pub client: SocketAddrV4,
    /// Address and port of the authority's end of the connection.
    pub server: SocketAddrV4,
    /// The client key and its pair: the 35 bytes of wire.md §5.4, in hex. Secret.
    pub content: String,
}

/// The response to a [`HandOver`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandedOver {
    /// The process has accepted the key: the next suitable packet of the connection will carry it.
    Yes,
    /// The process did not accept the key. Either the client did not announce that it accepts keys in band, or an
    /// earlier key still waits for a packet of the same connection.
    No,
    /// The transfer failed; the text is the reason.
    Failed(String),
}
