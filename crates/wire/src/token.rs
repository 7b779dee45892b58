//! Tokens. With a token, a first packet proves a grant (wire.md §3.6 to §3.8).

use crate::drop_reason::DropReason;
use crate::grant::{Block, Destination, Flags, GrantHeader, HEADER_LEN};
use crate::key::GrantKey;
use crate::mac::{self, TAG_LEN};

/// Length of a token in bytes.
pub const TOKEN_LEN: usize = 36;

/// A token. It consists of header, time, nonce and tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Header of the grant that the token proves.
    pub header: GrantHeader,
    /// Time when the token was made, Unix seconds by the sender's clock.
    pub time: u32,
    /// A number that a sender never uses twice with the same handle and time (wire.md §3.8).
    pub nonce: u32,
    /// The first bytes of the MAC, which prove that the token was made with the grant's key.
    pub tag: [u8; TAG_LEN],
}

impl Token {
    /// Makes the token for one packet with the destination `to`.
    pub fn new(header: GrantHeader, key: &GrantKey, time: u32, nonce: u32, to: &Destination) -> Self {
        let tag = tag(&header, key, time, nonce, to);
        Self { header, time, nonce, tag }
    }

    /// Returns the 36 bytes on the wire.
    pub fn encode(&self) -> [u8; TOKEN_LEN] {
        let mut bytes = [0; TOKEN_LEN];
        bytes[..HEADER_LEN].copy_from_slice(&self.header.encode());
        bytes[16..20].copy_from_slice(&self.time.to_be_bytes());
        bytes[20..24].copy_from_slice(&self.nonce.to_be_bytes());
        bytes[24..].copy_from_slice(&self.tag);
        bytes
    }

    /// Parses a token from a packet; `ipv6` says whether the packet is IPv6.
    ///
    /// # Errors
    ///
    /// Returns `Malformed` if the header's form or address family is wrong, or if the grant is a bearer grant (wire.md
    /// §3.2). Otherwise, returns `UnknownSuite` if the suite is unknown.
    pub fn decode(bytes: &[u8; TOKEN_LEN], ipv6: bool) -> Result<Self, DropReason> {
        let (Some(header), Some(time), Some(nonce), Some(tag)) =
            (bytes.first_chunk(), bytes[16..].first_chunk(), bytes[20..].first_chunk(), bytes.last_chunk())
        else {
            return Err(DropReason::Malformed);
        };
        let flags = Flags(header[1]);
        if flags.has(Flags::BEARER) || flags.has(Flags::IPV6) != ipv6 {
            return Err(DropReason::Malformed);
        }
        Ok(Self {
            header: GrantHeader::decode(header)?,
            time: u32::from_be_bytes(*time),
            nonce: u32::from_be_bytes(*nonce),
            tag: *tag,
        })
    }

    /// Reports whether the tag is the one that `key` yields for a packet with the destination `to`. The comparison
    /// takes constant time.
    pub fn proves(&self, key: &GrantKey, to: &Destination) -> bool {
        mac::tags_equal(&self.tag, &tag(&self.header, key, self.time, self.nonce, to))
    }
}

fn tag(header: &GrantHeader, key: &GrantKey, time: u32, nonce: u32, to: &Destination) -> [u8; TAG_LEN] {
    let whole =
        header.suite.mac(key.bytes(), &[&time.to_be_bytes(), &nonce.to_be_bytes(), Block::destination(to).bytes()]);
    let mut tag = [0; TAG_LEN];
    tag.copy_from_slice(&whole[..TAG_LEN]);
    tag
}
