//! Three carriers (wire.md §4.1, §4.2, §4.5 to §4.7). `tail` puts a token after the payload of a first packet. `stream`
//! puts the token into the first bytes of a TCP stream. `fast_open` puts it behind an option that the sender adds. A
//! SYN of the carrier `tcp_in_udp` ends in a block, like a first packet of `tail` (§4.8).
//!
//! A transport checksum stays in the form in which it arrived, complete or partial (see [`crate::checksum`]).

use crate::carrier::Carrier;
use crate::checksum::{fold, is_partial, pseudo_header, replace, sum};
use crate::packet::{Form, Fragment, Packet, TCP, UDP};
use crate::token::TOKEN_LEN;

/// The first bytes of the block of `tail`.
pub const MAGIC: [u8; 4] = *b"VSF1";
/// The first bytes of the block of `stream`.
pub const STREAM_MAGIC: [u8; 4] = *b"VSS1";
/// The first bytes of the block of `fast_open`.
pub const FAST_OPEN_MAGIC: [u8; 4] = *b"VSO1";
/// The first bytes of the block of `tcp_in_udp`.
pub const TCP_IN_UDP_MAGIC: [u8; 4] = *b"VSU1";
/// Length of the option that `fast_open` adds to the TCP header, including its padding, in bytes.
pub const FAST_OPEN_LEN: usize = 12;
/// Length of the longest TCP header.
const TCP_HEADER_MAX: usize = 60;
/// Length of a TCP header without options.
const TCP_HEADER_MIN: usize = 20;
/// Length of a block in bytes: the first bytes that identify it, and the token.
pub const BLOCK_LEN: usize = MAGIC.len() + TOKEN_LEN;
/// Number of bytes that `fast_open` adds to a packet.
pub const FAST_OPEN_ADDS: usize = FAST_OPEN_LEN + BLOCK_LEN;

/// Returns the block with which `tail` carries a token.
pub fn block(token: &[u8; TOKEN_LEN]) -> [u8; BLOCK_LEN] {
    with_magic(MAGIC, token)
}

/// Returns the block with which `stream` carries a token.
pub fn stream_block(token: &[u8; TOKEN_LEN]) -> [u8; BLOCK_LEN] {
    with_magic(STREAM_MAGIC, token)
}

/// Returns the block with which `fast_open` carries a token.
pub fn fast_open_block(token: &[u8; TOKEN_LEN]) -> [u8; BLOCK_LEN] {
    with_magic(FAST_OPEN_MAGIC, token)
}

/// Returns the block with which `tcp_in_udp` carries a token.
pub fn tcp_in_udp_block(token: &[u8; TOKEN_LEN]) -> [u8; BLOCK_LEN] {
    with_magic(TCP_IN_UDP_MAGIC, token)
}

/// Returns the option that `fast_open` adds: a TCP Fast Open option (RFC 7413) with the first bytes of the tag in place
/// of a cookie, and padding.
pub fn fast_open_option(token: &[u8; TOKEN_LEN]) -> [u8; FAST_OPEN_LEN] {
    let mut option = [34, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    option[2..10].copy_from_slice(&token[24..32]);
    option
}

fn with_magic(magic: [u8; 4], token: &[u8; TOKEN_LEN]) -> [u8; BLOCK_LEN] {
    let mut block = [0; BLOCK_LEN];
    block[..4].copy_from_slice(&magic);
    block[4..].copy_from_slice(token);
    block
}

/// Returns the token in a packet's payload and its carrier, if there is a token. The caller has to check that the
/// packet came as a UDP datagram if and only if the carrier is `tcp_in_udp`.
pub fn find<'a>(frame: &'a [u8], packet: &Packet) -> Option<(&'a [u8; TOKEN_LEN], Carrier)> {
    if packet.form != Form::Whole || packet.fragment != Fragment::Whole || !fills_ip(frame, packet) {
        return None;
    }
    let payload = frame.get(packet.payload..packet.end)?;
    let (rest, token) = payload.split_last_chunk::<TOKEN_LEN>()?;
    match rest.last_chunk() {
        Some(&MAGIC) => Some((token, Carrier::Tail)),
        Some(&TCP_IN_UDP_MAGIC) if packet.opens() => Some((token, Carrier::TcpInUdp)),
        Some(&STREAM_MAGIC) if rest.len() == STREAM_MAGIC.len() && packet.opens() => Some((token, Carrier::Stream)),
        Some(&FAST_OPEN_MAGIC)
            if rest.len() == FAST_OPEN_MAGIC.len() && packet.opens() && ends_with_option(frame, packet) =>
        {
            Some((token, Carrier::FastOpen))
        }
        _ => None,
    }
}

/// Reports whether a TCP header ends with the option that `fast_open` adds.
fn ends_with_option(frame: &[u8], packet: &Packet) -> bool {
    let header = frame.get(packet.transport + TCP_HEADER_MIN..packet.payload);
    let option = header.and_then(<[u8]>::last_chunk::<FAST_OPEN_LEN>);
    option.is_some_and(|option| option.starts_with(&[34, 10]) && option.ends_with(&[1, 1]))
}

/// Reports whether the transport's data ends where the IP packet ends. UDP's own length field may be shorter (RFC
/// 9868).
fn fills_ip(frame: &[u8], packet: &Packet) -> bool {
    match packet.protocol {
        TCP => true,
        UDP => be16(frame, packet.transport + 4).is_some_and(|len| usize::from(len) == packet.end - packet.transport),
        _ => false,
    }
}

/// Removes the block: restores the lengths and checksums of the original packet in `frame`, and returns the frame's new
/// length. Link padding is removed, too. If the carrier is `stream`, advances the sequence number past the block. If it
/// is `fast_open`, removes the option as well. Returns `None` if there is no block.
pub fn strip(frame: &mut [u8], packet: &Packet) -> Option<usize> {
    let (_, carrier) = find(frame, packet)?;
    if carrier == Carrier::Stream {
        skip_block(frame, packet)?;
    }
    if carrier == Carrier::FastOpen {
        let start = packet.payload.checked_sub(FAST_OPEN_LEN)?;
        let added = *frame.get(start..packet.end)?.first_chunk::<FAST_OPEN_ADDS>()?;
        lengthen_header(frame, packet, -(FAST_OPEN_LEN as i16))?;
        resize(frame, packet, start, Change::Remove(&added))?;
        return Some(start);
    }
    let start = packet.end.checked_sub(BLOCK_LEN)?;
    let mut block = [0; BLOCK_LEN];
    block.copy_from_slice(frame.get(start..packet.end)?);
    resize(frame, packet, start, Change::Remove(&block))?;
    Some(start)
}

/// Appends the block to the payload and returns the frame's new length. After `packet.end`, `frame` must have
/// [`BLOCK_LEN`] bytes of room and nothing else. Returns `None` if the packet can't carry a block, or if `frame` has
/// too little room.
pub fn append(frame: &mut [u8], packet: &Packet, block: &[u8; BLOCK_LEN]) -> Option<usize> {
    if packet.form != Form::Whole || packet.fragment != Fragment::Whole || !fills_ip(frame, packet) {
        return None;
    }
    let end = packet.end.checked_add(BLOCK_LEN)?;
    frame.get_mut(packet.end..end)?.copy_from_slice(block);
    resize(frame, packet, end, Change::Add(block))?;
    Some(end)
}

/// Adds a Fast Open option to the header of a SYN without data, and a block with the token behind it. Returns the
/// frame's new length. After `packet.end`, `frame` must have room for both and nothing else. Returns `None` if the
/// packet can't carry both, or if `frame` has too little room.
pub fn append_with_option(frame: &mut [u8], packet: &Packet, token: &[u8; TOKEN_LEN]) -> Option<usize> {
    let longest = packet.transport.checked_add(TCP_HEADER_MAX - FAST_OPEN_LEN)?;
    if packet.form != Form::Whole || !packet.opens() || packet.payload != packet.end || packet.payload > longest {
        return None;
    }
    let mut added = [0; FAST_OPEN_ADDS];
    added[..FAST_OPEN_LEN].copy_from_slice(&fast_open_option(token));
    added[FAST_OPEN_LEN..].copy_from_slice(&fast_open_block(token));
    let end = packet.end.checked_add(added.len())?;
    frame.get_mut(packet.end..end)?.copy_from_slice(&added);
    lengthen_header(frame, packet, FAST_OPEN_LEN as i16)?;
    resize(frame, packet, end, Change::Add(&added))?;
    Some(end)
}

/// Adds `by` bytes to the length that the TCP header states for itself.
fn lengthen_header(frame: &mut [u8], packet: &Packet, by: i16) -> Option<()> {
    let partial = is_partial(frame, packet)?;
    let (at, field) = (packet.transport + 12, packet.transport + 16);
    let before = be16(frame, at)?;
    // The field is in the upper four bits, and counts words of four bytes.
    let after = before.wrapping_add_signed((by / 4) << 12);
    put16(frame, at, after)?;
    if partial { Some(()) } else { put16(frame, field, replace(be16(frame, field)?, before, after)) }
}

/// Advances the sequence number past the block.
fn skip_block(frame: &mut [u8], packet: &Packet) -> Option<()> {
    let partial = is_partial(frame, packet)?;
    let (at, field) = (packet.transport + 4, packet.transport + 16);
    let moved = packet.sequence.wrapping_add(BLOCK_LEN as u32).to_be_bytes();
    let mut checksum = be16(frame, field)?;
    for (half, new) in [[moved[0], moved[1]], [moved[2], moved[3]]].into_iter().map(u16::from_be_bytes).enumerate() {
        checksum = replace(checksum, be16(frame, at + 2 * half)?, new);
    }
    *frame.get_mut(at..)?.first_chunk_mut()? = moved;
    if partial { Some(()) } else { put16(frame, field, checksum) }
}

enum Change<'a> {
    Add(&'a [u8]),
    Remove(&'a [u8]),
}

fn resize(frame: &mut [u8], packet: &Packet, end: usize, change: Change<'_>) -> Option<()> {
    let partial = is_partial(frame, packet)?;
    let old_len = u16::try_from(packet.end - packet.transport).ok()?;
    let new_len = u16::try_from(end.checked_sub(packet.transport)?).ok()?;
    let field = packet.transport + if packet.protocol == TCP { 16 } else { 6 };
    let old = be16(frame, field)?;
    if !(packet.protocol == UDP && old == 0) {
        let checksum = if partial {
            fold(pseudo_header(packet, new_len))
        } else {
            let odd = (packet.end.min(end) - packet.transport) % 2 == 1;
            let (added, removed) = match change {
                Change::Add(block) => (sum(block, odd), 0),
                Change::Remove(block) => (0, sum(block, odd)),
            };
            let mut changed = replace(old, old_len, new_len);
            if packet.protocol == UDP {
                // UDP's length counts twice: in its header and in the pseudo-header.
                changed = replace(changed, old_len, new_len);
            }
            changed = replace(changed, fold(removed), fold(added));
            if packet.protocol == UDP && changed == 0 { 0xffff } else { changed }
        };
        put16(frame, field, checksum)?;
    }
    if packet.protocol == UDP {
        put16(frame, packet.transport + 4, new_len)?;
    }
    let ip_len = u16::try_from(end.checked_sub(packet.network)?).ok()?;
    if packet.ipv6() {
        put16(frame, packet.network + 4, ip_len.checked_sub(40)?)
    } else {
        let old_ip_len = be16(frame, packet.network + 2)?;
        let checksum = replace(be16(frame, packet.network + 10)?, old_ip_len, ip_len);
        put16(frame, packet.network + 10, checksum)?;
        put16(frame, packet.network + 2, ip_len)
    }
}

fn be16(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn put16(frame: &mut [u8], at: usize, value: u16) -> Option<()> {
    *frame.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}
