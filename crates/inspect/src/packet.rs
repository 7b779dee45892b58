//! The explanation of one packet.

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
    /// `tcp`, `udp`, `icmp`, `icmpv6`, `protocol N` with the number of another protocol, or `not ip`.
    pub protocol: String,
    /// TCP flags: `SYN`, `ACK`, …
    pub tcp_flags: Vec<&'static str>,
    /// Bytes on the wire, with the link-layer header.
    pub length: usize,
    /// Whether this is a TCP segment that travelled as a UDP datagram (wire.md §4.8). Protocol and flags are the
    /// segment's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub datagram: bool,
    /// The carrier: `tail`, `stream`, `fast_open`, `tcp_in_udp` or `shim`.
    pub carrier: Option<&'static str>,
    /// Number of bytes that the carrier added to the packet.
    pub added: usize,
    /// The part of the packet that belongs to Vouchsafe; `None` if there is none.
    #[serde(flatten)]
    pub content: Option<Content>,
    /// The message of a sealed tunnel that the packet carries, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Sealed>,
    /// Number, in this capture, of the packet that opened the flow; `None` unless that packet had a token.
    pub flow: Option<u64>,
    /// Reasons for which a verifier would object to the packet, as far as they can be determined without keys.
    pub remarks: Vec<String>,
}
