//! The `shim` carrier: the packet is wrapped in another IPv4 header, and the token is in an option of the inner header
//! (wire.md §4.3 to §4.5).
//!
//! The 60 bytes of the inner header lie between the outer header and the transport header. A verifier removes a shim by
//! cutting out these 60 bytes and restoring the original length, protocol and checksum of the outer header.

use crate::checksum::{fold, replace, sum};
use crate::drop_reason::DropReason;
use crate::ls;
use crate::packet::{Form, Fragment, Packet};
use crate::token;

/// IP protocol number for IPv4 in IP.
pub const IPIP: u8 = 4;
/// Number of bytes that the carrier adds: the length of the inner header.
pub const SHIM_LEN: usize = IPV4_LEN + OPTION_LEN;
/// Length of the inner header's options in bytes.
pub const OPTION_LEN: usize = 40;
/// Type of the option in the inner header: copied, class 0, experimental number 30 (RFC 4727).
pub const OPTION_TYPE: u8 = 0x9e;

const IPV4_LEN: usize = 20;

/// Kinds of content of the option in the inner header (wire.md §4.4).
pub mod kind {
    /// An announcement of the sender that it accepts client keys in band.
    pub const SUPPORT: u8 = 1;
    /// A client key.
    pub const KEY_TRANSFER: u8 = 2;
    /// A token of the scheme of LS.
    pub const LS_TOKEN: u8 = 3;
    /// A token as in wire.md §3.
    pub const TOKEN: u8 = 4;
}

/// Content of the option in the inner header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// No data. With this option, the sender announces that it accepts client keys in band.
    Support,
    /// A client key.
    KeyTransfer([u8; ls::KEY_TRANSFER_LEN]),
    /// A token of the scheme of LS.
    Ls([u8; ls::TOKEN_LEN]),
    /// A token of wire.md §3.
    Token([u8; token::TOKEN_LEN]),
}

/// Shows only the kind, because a key transfer contains a client key.
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
    /// Encodes the content as the 40 bytes of options of the inner header.
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

    /// Parses the 40 bytes of options.
    ///
    /// # Errors
    ///
    /// Returns `Malformed` unless the options are of one of the four kinds and padded with zeros.
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

/// Looks for a shim. Returns `None` if the packet has no shim, because it is an ordinary IP-in-IP packet or not
/// IP-in-IP at all. Otherwise returns the content of the option, and the fields of the packet as they were before the
/// shim was added. These fields include the original protocol and ports. Offsets refer to `frame`, which still contains
/// the shim: from the start of the IP header to the transport header, there are 80 bytes. Returns `Malformed` if the
/// shim is invalid.
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
    // The inner addresses must equal the outer ones. Otherwise, the verifier would mistake a sender behind a NAT for
    // another host.
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

/// Removes the shim: restores the length, protocol and checksum of the original packet in `frame`, and returns the
/// frame's new length. Link padding is removed, too. `opened` must be the packet that [`open`] returned. Returns `None`
/// if `opened` does not fit `frame`.
pub fn strip(frame: &mut [u8], opened: &Packet) -> Option<usize> {
    let end = opened.end.checked_sub(SHIM_LEN)?;
    let start = opened.network + IPV4_LEN;
    change_header(frame.get_mut(opened.network..)?.first_chunk_mut()?, opened.protocol, end - opened.network)?;
    frame.get(start + SHIM_LEN..opened.end)?;
    frame.copy_within(start + SHIM_LEN..opened.end, start);
    Some(end)
}

/// Reports whether a packet can carry a shim. A shim fits into an IPv4 packet that has no options and is not a
/// fragment, if the length with the shim fits into the length field.
pub fn fits(packet: &Packet) -> bool {
    packet.form == Form::Whole
        && packet.fragment == Fragment::Whole
        && !packet.ipv6()
        && packet.transport == packet.network + IPV4_LEN
        && packet.end - packet.network + SHIM_LEN <= usize::from(u16::MAX)
}

/// Adds a shim to the packet and returns the frame's new length. After `packet.end`, `frame` must have [`SHIM_LEN`]
/// bytes of room and nothing else. Returns `None` if the packet can't carry a shim, or if `frame` has too little room.
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

/// Changes the protocol and length of an IPv4 header and updates its checksum. A wrong checksum stays wrong.
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
