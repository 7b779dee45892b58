//! Replaces an address in a packet and updates the checksums. If the packet is an ICMP error, also replaces the address
//! in the packet that it quotes.

use crate::packet::{Layout, TCP, UDP};
use crate::sum;
use std::net::IpAddr;
use std::ops::Range;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Length of an ICMP header in bytes; the quoted packet follows it.
const ICMP_LEN: usize = 8;

/// One of the two addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
}

impl Side {
    const fn place(self, is_ipv6: bool) -> Range<usize> {
        match (self, is_ipv6) {
            (Self::Source, false) => 12..16,
            (Self::Destination, false) => 16..20,
            (Self::Source, true) => 8..24,
            (Self::Destination, true) => 24..40,
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Source => Self::Destination,
            Self::Destination => Self::Source,
        }
    }
}

/// The bytes of an address.
#[derive(Clone, Copy)]
struct Octets {
    bytes: [u8; 16],
    len: usize,
}

impl Octets {
    fn of(address: IpAddr) -> Self {
        let mut bytes = [0; 16];
        match address {
            IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes = address.octets(),
        }
        Self { bytes, len: if address.is_ipv4() { 4 } else { 16 } }
    }

    fn get(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Replaces an address by `new`. `partial` means that the transport checksum is partial. Returns `None` if the address
/// families differ or the packet is too short; the packet must then not be used.
pub fn translate(packet: &mut [u8], layout: &Layout, side: Side, new: IpAddr, partial: bool) -> Option<()> {
    if layout.is_ipv6 != new.is_ipv6() {
        return None;
    }
    let old = match side {
        Side::Source => layout.source(packet),
        Side::Destination => layout.destination(packet),
    };
    if old == new {
        return Some(());
    }
    let (old, new) = (Octets::of(old), Octets::of(new));
    put_address(packet, layout.is_ipv6, side, &old, &new)?;
    if layout.is_fragment && !is_first_fragment(packet, layout) {
        return Some(());
    }
    let transport = packet.get_mut(layout.transport..)?;
    match layout.protocol {
        TCP | UDP => {
            let field: &mut [u8; 2] = transport.get_mut(layout.checksum_offset()..)?.first_chunk_mut()?;
            // A sender of UDP over IPv4 may omit the checksum.
            if layout.protocol == UDP && !partial && *field == [0; 2] {
                return Some(());
            }
            let sum = sum::update(u16::from_be_bytes(*field), old.get(), new.get(), partial);
            *field = if sum == 0 && layout.protocol == UDP && !partial { [0xff; 2] } else { sum.to_be_bytes() };
            Some(())
        }
        ICMPV6 if layout.is_ipv6 => {
            update(transport, 2, old.get(), new.get(), partial)?;
            // An error's type is below 128.
            if *transport.first()? < 128 { quoted(transport, true, side.other(), &old, &new) } else { Some(()) }
        }
        ICMP if !layout.is_ipv6 && matches!(transport.first()?, 3 | 11 | 12) => {
            quoted(transport, false, side.other(), &old, &new)
        }
        _ => Some(()),
    }
}

fn put_address(packet: &mut [u8], is_ipv6: bool, side: Side, old: &Octets, new: &Octets) -> Option<()> {
    packet.get_mut(side.place(is_ipv6))?.copy_from_slice(new.get());
    if is_ipv6 { Some(()) } else { update(packet, 10, old.get(), new.get(), false) }
}

/// Updates the checksum at the offset `at`.
fn update(bytes: &mut [u8], at: usize, old: &[u8], new: &[u8], partial: bool) -> Option<()> {
    let field: &mut [u8; 2] = bytes.get_mut(at..)?.first_chunk_mut()?;
    *field = sum::update(u16::from_be_bytes(*field), old, new, partial).to_be_bytes();
    Some(())
}

/// Replaces the address in the packet that an ICMP error quotes. Leaves the checksum of the quoted transport unchanged,
/// because nobody verifies it and it is often cut off.
fn quoted(icmp: &mut [u8], is_ipv6: bool, side: Side, old: &Octets, new: &Octets) -> Option<()> {
    let Some(quoted) = icmp.get_mut(ICMP_LEN..) else { return Some(()) };
    if quoted.get(side.place(is_ipv6)) != Some(old.get()) {
        // The error quotes a packet with another address, which the receiver will not recognise.
        return Some(());
    }
    let before = if is_ipv6 { None } else { quoted.get(10..12).and_then(|sum| <[u8; 2]>::try_from(sum).ok()) };
    put_address(quoted, is_ipv6, side, old, new)?;
    let after = before.and(quoted.get(10..12).and_then(|sum| <[u8; 2]>::try_from(sum).ok()));
    update(icmp, 2, old.get(), new.get(), false)?;
    if let (Some(before), Some(after)) = (before, after) {
        update(icmp, 2, &before, &after, false)?;
    }
    Some(())
}

fn is_first_fragment(packet: &[u8], layout: &Layout) -> bool {
    !layout.is_ipv6 && packet.get(6..8).is_some_and(|field| field[0] & 0x1f == 0 && field[1] == 0)
}
