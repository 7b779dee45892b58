//! The carriers `tail`, a token after the payload of a first packet (wire.md §4.1, §4.2, §4.5), and `stream`, a token
//! in the first bytes of a TCP stream (§4.6).
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
/// Length of a block in bytes: the first bytes that identify it, and the token.
pub const BLOCK_LEN: usize = MAGIC.len() + TOKEN_LEN;

/// Returns the block with which `tail` carries a token.
pub fn block(token: &[u8; TOKEN_LEN]) -> [u8; BLOCK_LEN] {
    with_magic(MAGIC, token)
}

/// Returns the block with which `stream` carries a token.
pub fn stream_block(token: &[u8; TOKEN_LEN]) -> [u8; BLOCK_LEN] {
    with_magic(STREAM_MAGIC, token)
}

fn with_magic(magic: [u8; 4], token: &[u8; TOKEN_LEN]) -> [u8; BLOCK_LEN] {
    let mut block = [0; BLOCK_LEN];
    block[..4].copy_from_slice(&magic);
    block[4..].copy_from_slice(token);
    block
}

/// Returns the token in a packet's payload and its carrier, if there is a token.
pub fn find<'a>(frame: &'a [u8], packet: &Packet) -> Option<(&'a [u8; TOKEN_LEN], Carrier)> {
    if packet.form != Form::Whole || packet.fragment != Fragment::Whole || !fills_ip(frame, packet) {
        return None;
    }
    let payload = frame.get(packet.payload..packet.end)?;
    let (rest, token) = payload.split_last_chunk::<TOKEN_LEN>()?;
    match rest.last_chunk() {
        Some(&MAGIC) => Some((token, Carrier::Tail)),
        Some(&STREAM_MAGIC) if rest.len() == STREAM_MAGIC.len() && packet.opens() => Some((token, Carrier::Stream)),
        _ => None,
    }
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
/// length. Link padding is removed, too. If the carrier is `stream`, advances the sequence number past the block.
/// Returns `None` if there is no block.
pub fn strip(frame: &mut [u8], packet: &Packet) -> Option<usize> {
    let (_, carrier) = find(frame, packet)?;
    if carrier == Carrier::Stream {
        skip_block(frame, packet)?;
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
    Add(&'a [u8; BLOCK_LEN]),
    Remove(&'a [u8; BLOCK_LEN]),
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
