//! One packet, explained.

use serde::Serialize;

use crate::content::Content;

/// What is known of one packet.
#[derive(Serialize)]
pub struct Explained {
    /// Counts from 1, as Wireshark does.
    pub number: u64,
    /// When it was captured, Unix seconds with nanoseconds as a fraction.
    pub time: String,
    /// Address and port of the sender.
    pub source: Option<String>,
    /// Address and port of the receiver.
    pub destination: Option<String>,
    /// `tcp`, `udp`, `icmp`, `icmpv6`, a protocol's number, or `not ip`.
    pub protocol: String,
    /// Of TCP: `SYN`, `ACK`, …
    pub tcp_flags: Vec<&'static str>,
    /// Bytes on the wire, with the link's header.
    pub length: usize,
    /// `tail` or `shim`.
    pub carrier: Option<&'static str>,
    /// How many of the bytes the carrier added.
    pub added: usize,
    /// What the packet carries of Vouchsafe.
    #[serde(flatten)]
    pub content: Option<Content>,
    /// The packet of this capture that opened the flow, if it did so with a token.
    pub flow: Option<u64>,
    /// What a verifier would object to, as far as that shows without keys.
    pub remarks: Vec<String>,
}
