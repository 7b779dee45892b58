//! Joins consecutive packets of a flow into a super-packet; [`crate::cut`] does the opposite. Only packets with partial
//! checksums are joined. Payload is never copied.

use crate::device::{Device, VIRTIO_LEN};
use crate::packet::{Layout, TCP, UDP, Virtio};
use crate::sum;
use std::io::{self, IoSlice};
use wire::tail::{BLOCK_LEN, MAGIC};

const HEADERS_MAX: usize = 60 + 60;
/// Maximum number of packets in a super-packet: the number of records in a datagram of 64 KiB.
const PACKETS_MAX: usize = 64;
const BYTES_MAX: usize = 65_535;
const PSH: u8 = 0x08;
const FIN: u8 = 0x01;
const ACK: u8 = 0x10;

/// Writes packets to the device, joined into super-packets where possible.
pub struct Joiner<'d> {
    head: [u8; VIRTIO_LEN + HEADERS_MAX],
    open: Option<Open>,
    payloads: [&'d [u8]; PACKETS_MAX],
}

/// The super-packet to which packets are being added.
struct Open {
    layout: Layout,
    partial: bool,
    count: usize,
    segment: usize,
    /// Number of payload bytes so far.
    bytes: usize,
    is_complete: bool,
}

impl Default for Joiner<'_> {
    fn default() -> Self {
        Self { head: [0; VIRTIO_LEN + HEADERS_MAX], open: None, payloads: [&[]; PACKETS_MAX] }
    }
}

impl<'d> Joiner<'d> {
    /// Adds a packet. If the packet does not continue the current super-packet, first writes the super-packet to the
    /// device.
    ///
    /// # Errors
    ///
    /// Fails if the kernel did not accept the super-packet.
    pub fn push(&mut self, packet: &'d [u8], layout: Layout, partial: bool, device: &Device) -> io::Result<()> {
        if self.continues(packet, &layout, partial) {
            self.append(packet, &layout);
            return Ok(());
        }
        let written = self.flush(device);
        let headers = packet.get(..layout.payload).filter(|headers| headers.len() <= HEADERS_MAX);
        let (Some(headers), Some(payload)) = (headers, packet.get(layout.payload..)) else { return written };
        let begin = VIRTIO_LEN;
        self.head[begin..begin + headers.len()].copy_from_slice(headers);
        self.payloads[0] = payload;
        let flags = headers.get(layout.transport + 13).copied().unwrap_or(0);
        let is_complete = !partial
            || payload.is_empty()
            || match layout.protocol {
                TCP => flags & !PSH != ACK || flags & PSH != 0,
                // A packet with a token is not joined: the verifier has to find the token at the end of a packet.
                UDP => !device.joins_datagrams() || has_token(payload),
                _ => true,
            };
        let (segment, bytes) = (payload.len(), payload.len());
        self.open = Some(Open { layout, partial, count: 1, segment, bytes, is_complete });
        written
    }

    fn continues(&self, packet: &[u8], layout: &Layout, partial: bool) -> bool {
        let Some(open) = &self.open else { return false };
        let length = packet.len() - layout.payload;
        if open.is_complete
            || !partial
            || open.layout != *layout
            || open.count == PACKETS_MAX
            || length == 0
            || length > open.segment
            || layout.payload + open.bytes + length > BYTES_MAX
        {
            return false;
        }
        let begin = VIRTIO_LEN;
        let (ours, theirs) = (&self.head[begin..begin + layout.payload], &packet[..layout.payload]);
        // In IPv4, compare version, traffic class, flags, hop limit and protocol, but not length, identification and
        // checksum.
        let same_ip = if layout.is_ipv6 {
            ours[..4] == theirs[..4] && ours[6..40] == theirs[6..40]
        } else {
            ours[..2] == theirs[..2]
                && ours[6..10] == theirs[6..10]
                && ours[12..layout.transport] == theirs[12..layout.transport]
        };
        let (ours, theirs) = (&ours[layout.transport..], &theirs[layout.transport..]);
        if !same_ip || ours[..4] != theirs[..4] {
            return false;
        }
        if layout.protocol == UDP {
            return !has_token(&packet[layout.payload..]);
        }
        let sequence = |header: &[u8]| u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        sequence(ours).wrapping_add(open.bytes as u32) == sequence(theirs)
            && ours[8..13] == theirs[8..13]
            && theirs[13] & !(PSH | FIN) == ACK
            && ours[14..16] == theirs[14..16]
            && ours[18..] == theirs[18..]
    }

    fn append(&mut self, packet: &'d [u8], layout: &Layout) {
        let Some(open) = &mut self.open else { return };
        let payload = &packet[layout.payload..];
        self.payloads[open.count] = payload;
        open.count += 1;
        open.bytes += payload.len();
        open.is_complete = payload.len() < open.segment;
        if layout.protocol == TCP {
            let flags = packet[layout.transport + 13];
            self.head[VIRTIO_LEN + layout.transport + 13] |= flags;
            open.is_complete |= flags & (PSH | FIN) != 0;
        }
    }

    /// Writes the current super-packet to the device.
    ///
    /// # Errors
    ///
    /// Fails if the kernel did not accept the super-packet.
    pub fn flush(&mut self, device: &Device) -> io::Result<()> {
        let Some(Open { layout, partial, count, segment, bytes, .. }) = self.open.take() else { return Ok(()) };
        let is_super = count > 1;
        let virtio = Virtio { partial, segment: if is_super { segment as u16 } else { 0 } };
        let (front, ip) = self.head.split_at_mut(VIRTIO_LEN);
        front.copy_from_slice(&virtio.encode(&layout));
        let ip = &mut ip[..layout.payload];
        if is_super {
            set_length(ip, &layout, bytes);
        }
        let mut parts = [IoSlice::new(&[]); PACKETS_MAX + 1];
        parts[0] = IoSlice::new(&self.head[..VIRTIO_LEN + layout.payload]);
        for (part, payload) in parts[1..].iter_mut().zip(&self.payloads[..count]) {
            *part = IoSlice::new(payload);
        }
        device.write(&parts[..=count])
    }
}

/// Reports whether a payload seems to end with a token (wire.md §4.2).
fn has_token(payload: &[u8]) -> bool {
    payload.last_chunk::<BLOCK_LEN>().is_some_and(|block| block.starts_with(&MAGIC))
}

/// Sets the lengths and checksums in the headers for this many bytes of payload.
fn set_length(headers: &mut [u8], layout: &Layout, bytes: usize) {
    let (transport, length) = (layout.transport, layout.payload + bytes);
    let sum = sum::pseudo(layout.addresses(headers), layout.protocol) + (length - transport) as u64;
    if layout.is_ipv6 {
        headers[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
    } else {
        headers[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        headers[10..12].fill(0);
        let checksum = !sum::fold(sum::add(0, &headers[..transport]));
        headers[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    if layout.protocol == UDP {
        headers[transport + 4..transport + 6].copy_from_slice(&((length - transport) as u16).to_be_bytes());
    }
    let field = transport + layout.checksum_offset();
    headers[field..field + 2].copy_from_slice(&sum::fold(sum).to_be_bytes());
}
