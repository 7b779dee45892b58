//! Packets that are too long for a record on the path. The sender of such a packet gets the ICMP error that a router
//! would send (RFC 1191, RFC 8201). A packet that its sender cannot make shorter travels in several records.

use crate::packet::{Layout, UDP};
use crate::sum;
use std::net::IpAddr;
use wire::tail::{BLOCK_LEN, MAGIC};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const HOP_LIMIT: u8 = 64;
/// Types of ICMP messages that are errors (RFC 792). Of ICMPv6, all below 128 are.
const ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
/// Maximum lengths of ICMP errors over IPv4 and over IPv6, with the IP header (RFC 1812 §4.3.2.3, RFC 4443 §2.4).
const LONGEST: (usize, usize) = (576, 1280);

/// Returns the length in bytes up to which the tunnel has to carry a packet, even if the path's datagrams are too short
/// for it: 576, or 1280 for IPv6 and for a UDP datagram with a token. Nobody may ask the sender of an IPv6 packet of
/// 1280 bytes for a shorter one (RFC 8200 §5). If the agent added a token to a datagram, the sender knows nothing of
/// the token and can't make the datagram shorter.
pub fn carried(packet: &[u8], layout: &Layout) -> usize {
    let has_token = || {
        let block = packet.last_chunk::<BLOCK_LEN>();
        layout.protocol == UDP && block.is_some_and(|block| block.starts_with(&MAGIC))
    };
    if layout.is_ipv6 || has_token() { 1280 } else { 576 }
}

/// Returns a block in the LZ4 format without compression, as one sequence of literals. So the length of the records
/// reveals only the length of the block.
pub fn stored(block: &[u8]) -> Vec<u8> {
    const LONG: usize = 15;
    let mut bytes = Vec::with_capacity(block.len() + block.len() / 255 + 2);
    if block.len() < LONG {
        bytes.push((block.len() << 4) as u8);
    } else {
        bytes.push((LONG << 4) as u8);
        let rest = block.len() - LONG;
        bytes.resize(bytes.len() + rest / 255, 255);
        bytes.push((rest % 255) as u8);
    }
    bytes.extend(block);
    bytes
}

/// Returns the ICMP error that tells a packet's sender that packets of up to `mtu` bytes fit. The source of the error
/// is the packet's destination. `addresses` are the packet's addresses as the sender wrote them. Returns `None` if
/// nobody may answer the packet with an error (RFC 1122 §3.2.2, RFC 4443 §2.4).
pub fn answer(packet: &[u8], layout: &Layout, addresses: &[u8], mtu: usize) -> Option<Vec<u8>> {
    if !may_be_answered(packet, layout) {
        return None;
    }
    let (from, to) = addresses.split_at_checked(addresses.len() / 2)?;
    let (header, longest) = if layout.is_ipv6 { (40, LONGEST.1) } else { (20, LONGEST.0) };
    let quoted = packet.get(..packet.len().min(longest - header - 8))?;
    let mut message = vec![0; header + 8];
    message.extend(quoted);
    // The error quotes what its receiver sent, not what became of it on the way here.
    let at = header + 8 + if layout.is_ipv6 { 8 } else { 12 };
    message.get_mut(at..at + addresses.len())?.copy_from_slice(addresses);
    let length = message.len();
    if layout.is_ipv6 {
        message[0] = 0x60;
        message[4..6].copy_from_slice(&((length - header) as u16).to_be_bytes());
        (message[6], message[7]) = (ICMPV6, HOP_LIMIT);
        message.get_mut(8..24)?.copy_from_slice(to);
        message.get_mut(24..40)?.copy_from_slice(from);
        message[40] = 2;
        message[44..48].copy_from_slice(&u32::try_from(mtu).ok()?.to_be_bytes());
        let sum = sum::pseudo(addresses, ICMPV6) + (length - header) as u64;
        let checksum = !sum::fold(sum::add(sum, &message[header..]));
        message[42..44].copy_from_slice(&checksum.to_be_bytes());
    } else {
        message[0] = 0x45;
        message[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        (message[8], message[9]) = (HOP_LIMIT, ICMP);
        message.get_mut(12..16)?.copy_from_slice(to);
        message.get_mut(16..20)?.copy_from_slice(from);
        let checksum = !sum::fold(sum::add(0, &message[..header]));
        message[10..12].copy_from_slice(&checksum.to_be_bytes());
        (message[20], message[21]) = (3, 4);
        message[26..28].copy_from_slice(&u16::try_from(mtu).unwrap_or(u16::MAX).to_be_bytes());
        let checksum = !sum::fold(sum::add(0, &message[header..]));
        message[22..24].copy_from_slice(&checksum.to_be_bytes());
    }
    Some(message)
}

fn may_be_answered(packet: &[u8], layout: &Layout) -> bool {
    let is_later_fragment = !layout.is_ipv6
        && packet.get(6..8).and_then(|field| field.try_into().ok()).is_some_and(|field| {
            // The offset of a fragment is in the lower 13 bits.
            u16::from_be_bytes(field) & 0x1fff != 0
        });
    let kind = packet.get(layout.transport).copied().unwrap_or_default();
    let is_error = match layout.protocol {
        ICMP => ERRORS.contains(&kind),
        ICMPV6 => kind < 128,
        _ => false,
    };
    let is_one = |address: IpAddr| !address.is_multicast() && !address.is_unspecified();
    !is_later_fragment && !is_error && is_one(layout.source(packet)) && is_one(layout.destination(packet))
}

#[cfg(test)]
mod tests {
    use super::*;
    use seal::Decompressor;
    use wire::seal::{BlockHead, Compression};

    fn datagram(is_ipv6: bool, length: usize) -> Vec<u8> {
        let mut packet = if is_ipv6 {
            let mut packet = vec![0x60, 0, 0, 0, 0, 0, UDP, 64];
            packet.extend([0xfd, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            packet.extend([0xfd, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
            packet[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
            packet
        } else {
            let mut packet = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, UDP, 0, 0, 10, 1, 0, 1, 192, 0, 2, 1];
            packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            packet
        };
        let udp = (length - packet.len()) as u16;
        packet.extend([0x9c, 0x40, 0, 7]);
        packet.extend(udp.to_be_bytes());
        packet.resize(length, 7);
        packet
    }

    #[test]
    fn an_answer_names_the_length_and_quotes_the_packet() {
        for is_ipv6 in [false, true] {
            let packet = datagram(is_ipv6, 1500);
            let layout = Layout::of(&packet).expect("a packet");
            let mut translated = packet.clone();
            let last = if is_ipv6 { 39 } else { 19 };
            translated[last] = 99;
            let answer = answer(&translated, &layout, layout.addresses(&packet), 1300).expect("an answer");
            let about = Layout::of(&answer).expect("a packet");
            assert_eq!(about.source(&answer), layout.destination(&packet));
            assert_eq!(about.destination(&answer), layout.source(&packet));
            let (header, kind, mtu) = if is_ipv6 { (40, [2, 0], 46) } else { (20, [3, 4], 26) };
            assert_eq!(answer[header..header + 2], kind);
            assert_eq!(answer[mtu..mtu + 2], 1300u16.to_be_bytes());
            assert_eq!(answer.len(), if is_ipv6 { 1280 } else { 576 });
            assert!(packet.starts_with(&answer[header + 8..]), "the addresses are those that the sender wrote");
            let pseudo = if is_ipv6 {
                sum::pseudo(layout.addresses(&packet), ICMPV6) + (answer.len() - header) as u64
            } else {
                assert_eq!(sum::fold(sum::add(0, &answer[..header])), 0xffff);
                0
            };
            assert_eq!(sum::fold(sum::add(pseudo, &answer[header..])), 0xffff);
        }
    }

    #[test]
    fn errors_later_fragments_and_packets_to_many_are_not_answered() {
        let packet = datagram(false, 1500);
        let answered = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut packet = packet.clone();
            change(&mut packet);
            let layout = Layout::of(&packet).expect("a packet");
            answer(&packet, &layout, layout.addresses(&packet), 1300).is_some()
        };
        assert!(answered(&|_| {}));
        assert!(answered(&|packet| packet[6] = 0x20), "the first fragment");
        assert!(!answered(&|packet| packet[7] = 10), "a later fragment");
        assert!(!answered(&|packet| packet[16] = 224), "multicast");
        assert!(!answered(&|packet| (packet[9], packet[20]) = (ICMP, 3)), "an error");
        assert!(answered(&|packet| (packet[9], packet[20]) = (ICMP, 8)), "an echo");
    }

    #[test]
    fn what_is_stored_comes_back_and_is_no_shorter() {
        let mut decompressor = Decompressor::new().expect("memory");
        for length in [1, 10, 11, 12, 13, 200, 265, 266, 267, 520, 521, 1280, 9000] {
            let packet = vec![7; length];
            let mut block = BlockHead { segment: 0, partial: true }.encode().to_vec();
            block.extend(&packet);
            let stored = stored(&block);
            assert!(stored.len() > block.len());
            let (head, back) = decompressor.decompress(Compression::Lz4, &stored).expect("a block");
            assert!(head.partial && back == packet, "{length}");
        }
    }

    #[test]
    fn only_packets_that_no_sender_could_shorten_have_to_be_carried() {
        for (is_ipv6, has_token, length) in
            [(false, false, 576), (false, true, 1280), (true, false, 1280), (true, true, 1280)]
        {
            let mut packet = datagram(is_ipv6, 1200);
            if has_token {
                packet[1200 - BLOCK_LEN..][..4].copy_from_slice(&MAGIC);
            }
            let layout = Layout::of(&packet).expect("a packet");
            assert_eq!(carried(&packet, &layout), length);
        }
    }
}
