//! The carrier `tcp_in_udp` (wire.md §4.8): the fields of a TCP header, in another order, form a UDP header of eight
//! bytes and twelve bytes of payload. The packet keeps its length, because UDP's length and checksum take the room of
//! TCP's checksum and urgent pointer.
//!
//! `bpf/include/tcp_in_udp.h` has the same rules.

use crate::checksum::replace;
use crate::packet::{Form, Fragment, IPV4_LEN, IPV6_LEN, Packet, TCP, UDP, tcp_flags};
use crate::tail::{BLOCK_LEN, TCP_IN_UDP_MAGIC};

/// Length of a TCP header without options, in either order.
const HEADER_LEN: usize = 20;
const ETHERNET_LEN: usize = 14;

/// Reports whether a packet has the form that the carrier `tcp_in_udp` requires: it is whole, is not behind a VLAN tag,
/// and has an IP header without options and extension headers.
pub fn is_plain(packet: &Packet) -> bool {
    let ip = if packet.ipv6() { IPV6_LEN } else { IPV4_LEN };
    packet.form == Form::Whole
        && packet.fragment == Fragment::Whole
        && packet.network == ETHERNET_LEN
        && packet.transport == ETHERNET_LEN + ip
}

/// Returns the flags of the TCP segment that a datagram carries, if the datagram has the form of such a segment.
pub fn flags(frame: &[u8], packet: &Packet) -> Option<u8> {
    if !is_plain(packet) || packet.protocol != UDP {
        return None;
    }
    let datagram = frame.get(packet.transport..packet.end)?;
    let header: &[u8; HEADER_LEN] = datagram.first_chunk()?;
    let (length, header_len) = (u16::from_be_bytes([header[4], header[5]]), usize::from(header[8] >> 4) * 4);
    let has_form = usize::from(length) == datagram.len()
        && (HEADER_LEN..=datagram.len()).contains(&header_len)
        && header[6..8] != [0; 2]
        && header[9] & tcp_flags::URG == 0;
    has_form.then_some(header[9])
}

/// Reports whether a segment with these flags opens a connection.
pub const fn opens(flags: u8) -> bool {
    flags & (tcp_flags::SYN | tcp_flags::ACK) == tcp_flags::SYN
}

/// Reports whether a datagram that carries a SYN ends in a block of the carrier `tcp_in_udp`.
pub fn ends_in_block(frame: &[u8], packet: &Packet) -> bool {
    if !flags(frame, packet).is_some_and(opens) {
        return false;
    }
    let header_len = frame.get(packet.transport + 8).map_or(0, |offset| usize::from(offset >> 4) * 4);
    let data = frame.get(packet.transport + header_len..packet.end).unwrap_or_default();
    data.last_chunk::<BLOCK_LEN>().is_some_and(|block| block.starts_with(&TCP_IN_UDP_MAGIC))
}

/// Turns a datagram into the segment that it carries. Returns `None` if it carries none.
pub fn to_tcp(frame: &mut [u8], packet: &Packet) -> Option<()> {
    flags(frame, packet)?;
    let header: &mut [u8; HEADER_LEN] = frame.get_mut(packet.transport..)?.first_chunk_mut()?;
    let [p0, p1, p2, p3, l0, l1, c0, c1, o, f, w0, w1, s0, s1, s2, s3, a0, a1, a2, a3] = *header;
    let sum = replace(u16::from_be_bytes([c0, c1]), u16::from_be_bytes([l0, l1]), 0);
    let [c0, c1] = replace(sum, UDP.into(), TCP.into()).to_be_bytes();
    *header = [p0, p1, p2, p3, s0, s1, s2, s3, a0, a1, a2, a3, o, f, w0, w1, c0, c1, 0, 0];
    set_protocol(frame, packet, TCP)
}

/// Turns a segment with a complete checksum into a datagram. The segment loses its urgent pointer. Returns `None` if
/// the packet can't travel as a datagram.
pub fn to_udp(frame: &mut [u8], packet: &Packet) -> Option<()> {
    if !is_plain(packet) || packet.protocol != TCP {
        return None;
    }
    let length = u16::try_from(packet.end - packet.transport).ok()?;
    let header: &mut [u8; HEADER_LEN] = frame.get_mut(packet.transport..)?.first_chunk_mut()?;
    let [p0, p1, p2, p3, s0, s1, s2, s3, a0, a1, a2, a3, o, f, w0, w1, c0, c1, u0, u1] = *header;
    let cleared = f & !tcp_flags::URG;
    let sum = replace(u16::from_be_bytes([c0, c1]), u16::from_be_bytes([u0, u1]), length);
    let sum = replace(sum, u16::from_be_bytes([o, f]), u16::from_be_bytes([o, cleared]));
    let [c0, c1] = match replace(sum, TCP.into(), UDP.into()) {
        0 => [0xff; 2],
        sum => sum.to_be_bytes(),
    };
    let [l0, l1] = length.to_be_bytes();
    *header = [p0, p1, p2, p3, l0, l1, c0, c1, o, cleared, w0, w1, s0, s1, s2, s3, a0, a1, a2, a3];
    set_protocol(frame, packet, UDP)
}

/// Writes the protocol's number into the IP header.
fn set_protocol(frame: &mut [u8], packet: &Packet, protocol: u8) -> Option<()> {
    let ip = frame.get_mut(packet.network..)?;
    if packet.ipv6() {
        *ip.get_mut(6)? = protocol;
        return Some(());
    }
    let header: &mut [u8; IPV4_LEN] = ip.first_chunk_mut()?;
    let before = u16::from_be_bytes([header[8], header[9]]);
    header[9] = protocol;
    let after = u16::from_be_bytes([header[8], header[9]]);
    let checksum = replace(u16::from_be_bytes([header[10], header[11]]), before, after);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Some(())
}
