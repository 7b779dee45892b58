//! Grants: header, flags, scope and key (wire.md §3.1 to §3.5).

use crate::drop_reason::DropReason;
use crate::key::{GrantKey, VerifierKey};
use crate::mac::Suite;
use core::net::IpAddr;

/// Length of a grant header in bytes.
pub const HEADER_LEN: usize = 16;
/// The format version that this crate implements.
pub const VERSION: u8 = 1;

/// A grant's identifier. It looks random and reveals nothing about the subject to an outsider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

impl core::fmt::Display for Handle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Error: the text is not 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoHandle;

impl core::fmt::Display for NoHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a handle is 16 hex digits")
    }
}

impl core::error::Error for NoHandle {}

impl core::str::FromStr for Handle {
    type Err = NoHandle;

    /// Parses the form in which `Display` formats a handle.
    fn from_str(text: &str) -> Result<Self, NoHandle> {
        let is_handle = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(text, 16).ok().filter(|_| is_handle).map(Self).ok_or(NoHandle)
    }
}

/// The flags of a grant (wire.md §3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// The grant is for one protocol and port.
    pub const PORT: Self = Self(1);
    /// The grant is bound to the sender's address as the verifier sees it.
    pub const SOURCE: Self = Self(2);
    /// The sender consents to packets from the receiver.
    pub const REPLY: Self = Self(4);
    /// The grant is for one flow only.
    pub const SINGLE: Self = Self(8);
    /// The grant key itself travels as the proof in every packet. A token with this flag is malformed.
    pub const BEARER: Self = Self(16);
    /// The addresses of sender and receiver are IPv6.
    pub const IPV6: Self = Self(32);
    /// The grant admits packets only inside a sealed tunnel (wire.md §6.11).
    pub const SEALED: Self = Self(64);
    const RESERVED: u8 = 0x80;

    /// Reports whether every flag of `other` is set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the flags that are set in `self` or in `other`.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Destination of a packet, in the parts that MACs cover: address, protocol, port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// The receiver's address.
    pub address: IpAddr,
    /// The IP protocol number.
    pub protocol: u8,
    /// The destination port; 0 for protocols without ports.
    pub port: u16,
}

/// A block of data that a MAC covers: the scope of a grant, the source of a grant, or the destination of a packet. It
/// is 8 to 24 bytes long (wire.md §3.3, §3.4, §3.7).
#[derive(Clone, Copy)]
pub struct Block {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl Block {
    pub(crate) const MAX: usize = 24;

    fn new(address: IpAddr, rest: &[u8]) -> Self {
        let mut block = Self { bytes: [0; Self::MAX], len: 0 };
        match address {
            IpAddr::V4(a) => block.push(&a.octets()),
            IpAddr::V6(a) => block.push(&a.octets()),
        }
        block.push(rest);
        block
    }

    fn push(&mut self, part: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + part.len()) {
            room.copy_from_slice(part);
            self.len += part.len();
        }
    }

    /// Builds the destination block of a packet (wire.md §3.7).
    pub fn destination(to: &Destination) -> Self {
        let [high, low] = to.port.to_be_bytes();
        let rest = [to.protocol, 0, high, low, 0, 0, 0, 0];
        Self::new(to.address, if to.address.is_ipv4() { &rest[..4] } else { &rest })
    }

    /// Builds the source block of a grant that is bound to `source` (wire.md §3.4).
    pub fn source(source: IpAddr) -> Self {
        Self::new(source, if source.is_ipv4() { &[0; 4] } else { &[] })
    }

    /// Returns the bytes that the MAC covers.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Returns `address` with all bits after the first `prefix_length` bits cleared.
pub fn mask(address: IpAddr, prefix_length: u8) -> IpAddr {
    match address {
        IpAddr::V4(a) => {
            let keep = u32::MAX.checked_shl(32 - u32::from(prefix_length.min(32))).unwrap_or(0);
            IpAddr::V4((a.to_bits() & keep).into())
        }
        IpAddr::V6(a) => {
            let keep = u128::MAX.checked_shl(128 - u32::from(prefix_length.min(128))).unwrap_or(0);
            IpAddr::V6((a.to_bits() & keep).into())
        }
    }
}

/// The fields of a grant that travel in tokens (wire.md §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantHeader {
    /// The MAC suite with which the grant's key and the tags of its tokens are made.
    pub suite: Suite,
    /// The grant's flags.
    pub flags: Flags,
    /// The low 8 bits of the number of the epoch whose verifier key yields the grant's key.
    pub epoch: u8,
    /// Number of leading bits of the destination address that are the same for all destinations of the grant.
    pub prefix_length: u8,
    /// Expiry of the grant, Unix seconds.
    pub expires: u32,
    /// The grant's handle.
    pub handle: Handle,
}

impl GrantHeader {
    /// Returns the 16 bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = VERSION << 4 | self.suite as u8;
        bytes[1] = self.flags.0;
        bytes[2] = self.epoch;
        bytes[3] = self.prefix_length;
        bytes[4..8].copy_from_slice(&self.expires.to_be_bytes());
        bytes[8..].copy_from_slice(&self.handle.0.to_be_bytes());
        bytes
    }

    /// Parses a header. The form is checked before the suite, in the order of wire.md §6.4.
    ///
    /// # Errors
    ///
    /// Returns `Malformed` if version, reserved flags or prefix length are wrong. If these are right, returns
    /// `UnknownSuite` if the suite is unknown.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, DropReason> {
        let [first, flags, epoch, prefix_length, e0, e1, e2, e3, handle @ ..] = *bytes;
        let flags = Flags(flags);
        let longest = if flags.has(Flags::IPV6) { 128 } else { 32 };
        if first >> 4 != VERSION || flags.0 & Flags::RESERVED != 0 || prefix_length > longest {
            return Err(DropReason::Malformed);
        }
        Ok(Self {
            suite: Suite::from_number(first & 15).ok_or(DropReason::UnknownSuite)?,
            flags,
            epoch,
            prefix_length,
            expires: u32::from_be_bytes([e0, e1, e2, e3]),
            handle: Handle(u64::from_be_bytes(handle)),
        })
    }

    /// Derives the grant's key for packets from `source` to `to` (wire.md §3.5). The key does not depend on the address
    /// bits after the prefix. It depends on protocol and port only with [`Flags::PORT`], and on `source` only with
    /// [`Flags::SOURCE`].
    pub fn key(&self, verifier_key: &VerifierKey, to: &Destination, source: IpAddr) -> GrantKey {
        let fixed = self.flags.has(Flags::PORT);
        let scope = Block::destination(&Destination {
            address: mask(to.address, self.prefix_length),
            protocol: if fixed { to.protocol } else { 0 },
            port: if fixed { to.port } else { 0 },
        });
        let mut message = [0; HEADER_LEN + 2 * Block::MAX];
        let mut len = 0;
        let mut push = |part: &[u8]| {
            message[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        };
        push(&self.encode());
        push(scope.bytes());
        if self.flags.has(Flags::SOURCE) {
            push(Block::source(source).bytes());
        }
        GrantKey::new(self.suite.mac(verifier_key.of(self.suite), &[&message[..len]]))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn a_handle_is_read_as_it_is_written_and_in_no_other_form() {
        let text = std::format!("{}", Handle(0xabc));
        assert_eq!((&*text, text.parse()), ("0000000000000abc", Ok(Handle(0xabc))));
        for text in ["", "abc", "+000000000000abc", "0000000000000abg", "00000000000000abc"] {
            assert_eq!(text.parse::<Handle>(), Err(NoHandle), "{text}");
        }
    }
}
