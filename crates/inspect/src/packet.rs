//! One packet, explained.

use serde::Serialize;

use crate::content::Content;
use crate::tunnel::Sealed;

/// The explanation of one packet.
#[derive(Serialize)]
pub struct Explained {
    /// Number of the packet, starting from 1, as in Wireshark.
    pub number: u64,
    /// Time of capture, in Unix seconds with nanoseconds as a fraction.
    pub time: String,
    /// Address and port of the sender.
    pub source: Option<String>,
    /// Address and port of the receiver.
    pub destination: Option<String>,
    /// `tcp`, `udp`, `icmp`, `icmpv6`, a protocol's number, or `not ip`.
    pub protocol: String,
    /// TCP flags: `SYN`, `ACK`, …
    pub tcp_flags: Vec<&'static str>,
    /// Bytes on the wire, with the link-layer header.
    pub length: usize,
    /// `tail` or `shim`.
    pub carrier: Option<&'static str>,
    /// Number of bytes that the carrier added.
    pub added: usize,
    /// Content of the packet that belongs to Vouchsafe.
    #[serde(flatten)]
    pub content: Option<Content>,
    /// The message of a sealed tunnel, if the packet is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Sealed>,
    /// The packet of this capture that opened the flow, if it did so with a token.
    pub flow: Option<u64>,
    /// Objections that a verifier would have, as far as they can be told without keys.
    pub remarks: Vec<String>,
}
