//! The Internet checksum (RFC 1071). The transport checksum of an arriving frame is complete or partial. It is partial
//! if a local sender left the computation to its network card: the checksum field then holds only the sum of the
//! pseudo-header.

use crate::packet::{Packet, TCP};

/// Reports whether the transport's checksum field contains only the sum of the pseudo-header. A complete checksum can
/// happen to have the same value; to recognise it, the function also computes the checksum of the whole packet. Returns
/// `None` if the packet has no transport checksum.
pub fn is_partial(frame: &[u8], packet: &Packet) -> Option<bool> {
    let field = packet.transport + if packet.protocol == TCP { 16 } else { 6 };
    let len = u16::try_from(packet.end - packet.transport).ok()?;
    let pseudo = pseudo_header(packet, len);
    let found = frame.get(field..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))?;
    if found != fold(pseudo) {
        return Some(false);
    }
    Some(fold(pseudo + sum(frame.get(packet.transport..packet.end)?, false)) != 0xffff)
}

/// Returns the sum of the pseudo-header (RFC 9293, RFC 8200) of `packet`. `len` is the length of transport header and
/// payload together, in bytes.
pub fn pseudo_header(packet: &Packet, len: u16) -> u32 {
    let address = |address| match address {
        Some(core::net::IpAddr::V4(a)) => sum(&a.octets(), false),
        Some(core::net::IpAddr::V6(a)) => sum(&a.octets(), false),
        None => 0,
    };
    address(packet.source) + address(packet.destination) + u32::from(packet.protocol) + u32::from(len)
}

/// Returns the sum of the big-endian 16-bit words in `bytes`. If `odd`, the first byte is the low byte of a word.
pub fn sum(bytes: &[u8], odd: bool) -> u32 {
    bytes
        .iter()
        .enumerate()
        .map(|(index, byte)| u32::from(*byte) << if (index % 2 == 0) != odd { 8 } else { 0 })
        .fold(0, u32::wrapping_add)
}

/// Folds a sum to 16 bits in one's complement arithmetic.
pub const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Updates a checksum after one 16-bit word has changed from `old` to `new` (RFC 1624, equation 3).
pub const fn replace(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(!checksum as u32 + !old as u32 + new as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071, section 3.
    const WORDS: [u8; 8] = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];

    #[test]
    fn a_sum_is_that_of_the_rfc_and_does_not_depend_on_where_it_is_cut() {
        assert_eq!(fold(sum(&WORDS, false)), 0xddf2);
        for cut in 0..=WORDS.len() {
            let (first, second) = WORDS.split_at(cut);
            assert_eq!(fold(sum(first, false) + sum(second, cut % 2 == 1)), 0xddf2);
        }
    }

    #[test]
    fn a_replaced_word_gives_the_checksum_of_the_whole() {
        let before = !fold(sum(&WORDS, false));
        let mut changed = WORDS;
        changed[2..4].copy_from_slice(&[0x12, 0x34]);
        assert_eq!(replace(before, 0xf203, 0x1234), !fold(sum(&changed, false)));
    }
}
