//! The parts of a packet that belong to Vouchsafe: tokens, client keys in transit, discovery records. Keys are never
//! shown.

use serde::Serialize;
use wire::ls::KeyTransfer;
use wire::packet::{Packet, UDP};
use wire::shim::{Content as Shim, SHIM_LEN};
use wire::tail::{self, BLOCK_LEN, FAST_OPEN_ADDS};
use wire::{Carrier, DropReason, Flags, LsToken, Token, shim};

const DNS: u16 = 53;
const RECORD: &[u8] = b"v=vouchsafe1";

/// The part of a packet that belongs to Vouchsafe.
#[derive(Serialize)]
#[serde(tag = "content", rename_all = "snake_case")]
pub enum Content {
    /// A token of wire.md §3.
    Token {
        suite: &'static str,
        flags: Vec<&'static str>,
        epoch: u8,
        prefix_length: u8,
        expires: u32,
        handle: String,
        time: u32,
        nonce: u32,
        tag: String,
    },
    /// A token of the published scheme (suite `sha224`).
    LsToken { unique_id: String, nonce1: String, nonce2: u16, tag: String },
    /// A client key in transit. Only its pair is shown.
    KeyTransfer { unique_id: String, nonce1: String },
    /// A support option: the sending agent accepts client keys in band.
    Support,
    /// A discovery record, which names an authority.
    Discovery { record: String },
    /// A packet with a carrier's mark that can't be read.
    Malformed { reason: &'static str },
}

/// Result of [`find`].
pub struct Found {
    pub carrier: Option<Carrier>,
    pub added: usize,
    pub content: Content,
    /// The packet inside the shim; without a shim, the whole packet.
    pub packet: Packet,
}

/// Returns the part of a frame that belongs to Vouchsafe; `None` if there is none. Sealed tunnels are not included. If
/// `in_datagram` is true, the frame is a segment that travelled as a UDP datagram (wire.md §4.8).
pub fn find(frame: &[u8], packet: &Packet, in_datagram: bool) -> Option<Found> {
    if let Some(opened) = shim::open(frame, packet) {
        let (packet, content) = match opened {
            Ok((inner, content)) => (inner, in_shim(&content, packet.ipv6())),
            Err(reason) => (*packet, malformed(reason)),
        };
        return Some(Found { carrier: Some(Carrier::Shim), added: SHIM_LEN, content, packet });
    }
    if let Some((bytes, carrier)) = tail::find(frame, packet)
        && (carrier == Carrier::TcpInUdp) == in_datagram
    {
        let content = Token::decode(bytes, packet.ipv6()).map_or_else(malformed, |token| token_content(&token));
        let added = if carrier == Carrier::FastOpen { FAST_OPEN_ADDS } else { BLOCK_LEN };
        return Some(Found { carrier: Some(carrier), added, content, packet: *packet });
    }
    let record = record(frame, packet)?;
    Some(Found { carrier: None, added: 0, content: Content::Discovery { record }, packet: *packet })
}

fn in_shim(content: &Shim, ipv6: bool) -> Content {
    match content {
        Shim::Support => Content::Support,
        Shim::KeyTransfer(bytes) => {
            let pair = KeyTransfer::decode(bytes).pair;
            Content::KeyTransfer { unique_id: hex::encode(pair.unique_id), nonce1: hex::encode(pair.nonce1) }
        }
        Shim::Ls(bytes) => {
            let LsToken { pair, nonce2, tag } = LsToken::decode(bytes);
            Content::LsToken {
                unique_id: hex::encode(pair.unique_id),
                nonce1: hex::encode(pair.nonce1),
                nonce2,
                tag: hex::encode(tag),
            }
        }
        Shim::Token(bytes) => Token::decode(bytes, ipv6).map_or_else(malformed, |token| token_content(&token)),
    }
}

fn token_content(token: &Token) -> Content {
    const NAMES: [(Flags, &str); 7] = [
        (Flags::PORT, "port"),
        (Flags::SOURCE, "source"),
        (Flags::REPLY, "reply"),
        (Flags::SINGLE, "single"),
        (Flags::BEARER, "bearer"),
        (Flags::IPV6, "ipv6"),
        (Flags::SEALED, "sealed"),
    ];
    let header = &token.header;
    Content::Token {
        suite: header.suite.name(),
        flags: NAMES.iter().filter(|(flag, _)| header.flags.has(*flag)).map(|(_, name)| *name).collect(),
        epoch: header.epoch,
        prefix_length: header.prefix_length,
        expires: header.expires,
        handle: header.handle.to_string(),
        time: token.time,
        nonce: token.nonce,
        tag: hex::encode(token.tag),
    }
}

fn malformed(reason: DropReason) -> Content {
    Content::Malformed { reason: reason.name() }
}

/// Returns a discovery record in a DNS answer: the character string that begins with the version (wire.md §7.1).
fn record(frame: &[u8], packet: &Packet) -> Option<String> {
    if packet.protocol != UDP || packet.source_port != DNS {
        return None;
    }
    let payload = frame.get(packet.payload..packet.end)?;
    let at = payload.windows(RECORD.len()).position(|window| window == RECORD)?;
    let length = usize::from(*payload.get(at.checked_sub(1)?)?);
    Some(String::from_utf8_lossy(payload.get(at..at + length)?).replace(char::is_control, "?"))
}
