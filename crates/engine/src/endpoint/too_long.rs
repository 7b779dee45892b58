//! The ICMP error for the sender of a packet that is too long for the tunnel: "fragmentation needed" (RFC 1191) or
//! "packet too big" (ICMPv6, RFC 4443). Its source is the receiver's address, because the endpoint has no address in
//! the tenant's network.

use super::ETHERNET_LEN;
use wire::checksum::{fold, sum};
use wire::packet::{Form, Packet};

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const ICMP_LEN: usize = 8;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Maximum length of the ICMP error in bytes, which every link can carry (RFC 1812, 4.3.2.3; RFC 4443, 2.4).
const MOST4: usize = 576;
const MOST6: usize = 1280;
const HOPS: u8 = 64;

/// Builds the frame that carries the ICMP error to the sender of `frame`. `limit` is the length in bytes of the longest
/// packet that fits the tunnel. Returns `None` if `frame` contains no IP packet, or contains an ICMP error.
pub fn tell(frame: &[u8], limit: u32) -> Option<Vec<u8>> {
    let (link, quoted) = frame.split_at_checked(ETHERNET_LEN)?;
    let four = link[12..] == [0x08, 0x00];
    if !four && link[12..] != [0x86, 0xdd] || is_error(frame) {
        return None;
    }
    let header = if four { IPV4_LEN } else { IPV6_LEN };
    let quoted = &quoted[..quoted.len().min(if four { MOST4 } else { MOST6 } - header - ICMP_LEN)];
    let addresses = if four { quoted.get(12..20)? } else { quoted.get(8..40)? };
    let (sender, receiver) = addresses.split_at(addresses.len() / 2);
    let length = u16::try_from(ICMP_LEN + quoted.len()).ok()?;
    let mut icmp = vec![if four { 3 } else { 2 }, if four { 4 } else { 0 }, 0, 0];
    // In ICMP, the limit is in the last 16 bits of the second word.
    icmp.extend(if four { limit.min(u16::MAX.into()) } else { limit }.to_be_bytes());
    icmp.extend(quoted);
    let pseudo = if four { 0 } else { sum(addresses, false) + u32::from(length) + u32::from(ICMPV6) };
    let checksum = !fold(pseudo + sum(&icmp, false));
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut told = [&link[6..12], &link[..6], &link[12..]].concat();
    if four {
        let [l0, l1] = (length + IPV4_LEN as u16).to_be_bytes();
        let mut ip = [&[0x45, 0, l0, l1, 0, 0, 0, 0, HOPS, ICMP, 0, 0], receiver, sender].concat();
        let checksum = !fold(sum(&ip, false));
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        told.extend(ip);
    } else {
        let [l0, l1] = length.to_be_bytes();
        told.extend([&[0x60, 0, 0, 0, l0, l1, ICMPV6, HOPS], receiver, sender].concat());
    }
    told.extend(icmp);
    Some(told)
}

/// Reports whether the frame is an ICMP error: errors about errors are never sent. A frame that was cut short counts as
/// no error.
fn is_error(frame: &[u8]) -> bool {
    let packet = Packet::parse(frame);
    if packet.form != Form::Whole {
        // An error is never so long that it is cut short.
        return false;
    }
    let kind = frame.get(packet.transport).copied().unwrap_or_default();
    match packet.protocol {
        ICMP => matches!(kind, 3 | 4 | 5 | 11 | 12),
        ICMPV6 => kind < 128,
        _ => false,
    }
}
