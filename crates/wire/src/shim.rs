//! The `shim` carrier: the packet in another IPv4 header, the token in an option of the inner header (wire.md §4.3 to
//! §4.5).
//!
//! The 60 bytes of the inner header lie between the outer header and the transport header. Stripping the shim cuts them
//! out and restores the length, protocol and checksum of the outer header.

use crate::checksum::{fold, replace, sum};
use crate::drop_reason::DropReason;
use crate::ls;
use crate::packet::{Form, Fragment, Packet};
use crate::token;

/// Protocol number of IPv4 in IP.
pub const IPIP: u8 = 4;
/// Bytes that the carrier adds: the length of the inner header.
pub const SHIM_LEN: usize = IPV4_LEN + OPTION_LEN;
/// Bytes of the inner header's options.
pub const OPTION_LEN: usize = 40;
/// The option's type: copied, class 0, experimental number 30 (RFC 4727).
pub const OPTION_TYPE: u8 = 0x9e;

const IPV4_LEN: usize = 20;

/// Kinds of the option (wire.md §4.4).
pub mod kind {
    /// The sender's network supports the scheme.
    pub const SUPPORT: u8 = 1;
    /// A client key.
    pub const KEY_TRANSFER: u8 = 2;
    /// A token of the scheme of LS.
    pub const LS_TOKEN: u8 = 3;
    /// A token of wire.md §3.
    pub const TOKEN: u8 = 4;
}

/// Content of the option.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// No data: the sender's network supports the scheme.
    Support,
    /// A client key.
    KeyTransfer([u8; ls::KEY_TRANSFER_LEN]),
    /// A token of the scheme of LS.
    Ls([u8; ls::TOKEN_LEN]),
    /// A token of wire.md §3.
    Token([u8; token::TOKEN_LEN]),
}

/// Shows the kind only, since a key transfer contains a client key.
impl core::fmt::Debug for Content {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Support => "Support",
            Self::KeyTransfer(_) => "KeyTransfer",
            Self::Ls(_) => "Ls",
            Self::Token(_) => "Token",
        })
    }
}

impl Content {
    /// Returns the 40 bytes of options.
    pub fn encode(&self) -> [u8; OPTION_LEN] {
        let (kind, data): (u8, &[u8]) = match self {
            Self::Support => (kind::SUPPORT, &[]),
            Self::KeyTransfer(data) => (kind::KEY_TRANSFER, data),
            Self::Ls(data) => (kind::LS_TOKEN, data),
            Self::Token(data) => (kind::TOKEN, data),
        };
        let mut bytes = [0; OPTION_LEN];
        bytes[..3].copy_from_slice(&[OPTION_TYPE, 3 + data.len() as u8, kind]);
        bytes[3..3 + data.len()].copy_from_slice(data);
        bytes
    }

    /// Parses the 40 bytes of options: `Malformed` unless they are one of the four kinds, padded with zeros.
    pub fn decode(bytes: &[u8; OPTION_LEN]) -> Result<Self, DropReason> {
        let [_, _, kind, data @ ..] = bytes;
        let first = |length: usize| data.get(..length).unwrap_or_default();
        let content = match *kind {
            kind::SUPPORT => Some(Self::Support),
            kind::KEY_TRANSFER => first(ls::KEY_TRANSFER_LEN).try_into().ok().map(Self::KeyTransfer),
            kind::LS_TOKEN => Some(Self::Ls(*data)),
            kind::TOKEN => first(token::TOKEN_LEN).try_into().ok().map(Self::Token),
            _ => None,
        };
        content.filter(|content| content.encode() == *bytes).ok_or(DropReason::Malformed)
    }
}

/// Looks for a shim. Returns `None` if the packet has none: it is an ordinary IP-in-IP packet, or not IP-in-IP at all.
/// Otherwise returns the content of the option and the packet as it was before the shim was added: same addresses, its
/// own protocol and ports, with a header that is 80 bytes long. Returns `Malformed` if the shim is invalid.
pub fn open(frame: &[u8], packet: &Packet) -> Option<Result<(Packet, Content), DropReason>> {
    let plain = packet.form == Form::Whole && packet.fragment == Fragment::Whole && packet.protocol == IPIP;
    if !plain || packet.ipv6() || packet.transport != packet.network + IPV4_LEN {
        return None;
    }
    let inner: &[u8; SHIM_LEN] = frame.get(packet.transport..packet.end)?.first_chunk()?;
    if inner[0] != 0x4f || inner[IPV4_LEN] != OPTION_TYPE {
        return None;
    }
    Some(read(frame, packet, inner).ok_or(DropReason::Malformed))
}

fn read(frame: &[u8], packet: &Packet, inner: &[u8; SHIM_LEN]) -> Option<(Packet, Content)> {
    let outer: &[u8; IPV4_LEN] = frame.get(packet.network..)?.first_chunk()?;
    // Behind an address translator, the sender would be mistaken for another host: the inner addresses must equal the
    // outer ones.
    let same_ends = inner.get(12..IPV4_LEN) == outer.get(12..);
    let len = usize::from(u16::from_be_bytes([inner[2], inner[3]]));
    let fragment = u16::from_be_bytes([inner[6], inner[7]]) & 0x3fff;
    if !same_ends || len != packet.end - packet.transport || fragment != 0 {
        return None;
    }
    let content = Content::decode(inner.last_chunk()?).ok()?;
    let mut opened = Packet { protocol: inner[9], transport: packet.transport + SHIM_LEN, ..*packet };
    opened.form = opened.transport_header(frame.get(..packet.end)?)?;
    Some((opened, content))
}

/// Removes the shim: restores the length, protocol and checksum of the original packet in `frame` and returns the
/// frame's new length (link padding is removed too). `opened` is the packet that [`open`] returned.
pub fn strip(frame: &mut [u8], opened: &Packet) -> Option<usize> {
    let end = opened.end.checked_sub(SHIM_LEN)?;
    let start = opened.network + IPV4_LEN;
    change_header(frame.get_mut(opened.network..)?.first_chunk_mut()?, opened.protocol, end - opened.network)?;
    frame.get(start + SHIM_LEN..opened.end)?;
    frame.copy_within(start + SHIM_LEN..opened.end, start);
    Some(end)
}

/// Reports whether a packet can carry a shim: it is IPv4, not a fragment, has no options of its own, and stays short
/// enough for its length field.
pub fn fits(packet: &Packet) -> bool {
    packet.form == Form::Whole
        && packet.fragment == Fragment::Whole
        && !packet.ipv6()
        && packet.transport == packet.network + IPV4_LEN
        && packet.end - packet.network + SHIM_LEN <= usize::from(u16::MAX)
}

/// Adds a shim to the packet: `frame` must have room for [`SHIM_LEN`] bytes behind `packet.end`, with nothing else in
/// that room. Returns the frame's new length.
pub fn insert(frame: &mut [u8], packet: &Packet, content: &Content) -> Option<usize> {
    let end = packet.end + SHIM_LEN;
    if !fits(packet) || frame.len() < end {
        return None;
    }
    let start = packet.transport;
    let mut inner = [0; SHIM_LEN];
    inner[..IPV4_LEN].copy_from_slice(frame.get(packet.network..start)?);
    inner[IPV4_LEN..].copy_from_slice(&content.encode());
    inner[0] = 0x4f;
    inner[2..4].copy_from_slice(&((packet.end - packet.network + OPTION_LEN) as u16).to_be_bytes());
    inner[10..12].fill(0);
    let checksum = !fold(sum(&inner, false));
    inner[10..12].copy_from_slice(&checksum.to_be_bytes());
    frame.copy_within(start..packet.end, start + SHIM_LEN);
    frame.get_mut(start..start + SHIM_LEN)?.copy_from_slice(&inner);
    change_header(frame.get_mut(packet.network..)?.first_chunk_mut()?, IPIP, end - packet.network)?;
    Some(end)
}

/// Changes the protocol and length of an IPv4 header. A checksum that was wrong stays wrong.
fn change_header(header: &mut [u8; IPV4_LEN], protocol: u8, len: usize) -> Option<()> {
    let len = u16::try_from(len).ok()?;
    let word = |at: usize, header: &[u8; IPV4_LEN]| u16::from_be_bytes([header[at], header[at + 1]]);
    let (old_len, old_protocol) = (word(2, header), word(8, header));
    let checksum = replace(word(10, header), old_len, len);
    header[9] = protocol;
    let checksum = replace(checksum, old_protocol, word(8, header));
    header[2..4].copy_from_slice(&len.to_be_bytes());
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Some(())
}
