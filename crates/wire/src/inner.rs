//! The inner packet of an encapsulation: the fields that a verifier of proofs reads (wire.md §8.7).
//!
//! This parser is stricter than [`crate::packet`]. It rejects IPv4 packets with options, and IPv6 packets with any
//! extension header other than one fragment header.

use crate::drop_reason::DropReason;
use crate::geneve::Payload;
use crate::packet::{TCP, UDP};
use core::net::IpAddr;

const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const FRAGMENT: u8 = 44;

/// The ports of an inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Source and destination port; 0 for a protocol that is neither TCP nor UDP.
    Shown(u16, u16),
    /// The packet is a fragment other than the first.
    Hidden,
    /// The packet ends before the ports.
    Cut,
}

/// Sender, receiver, protocol and ports of an inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner {
    /// The sender's address.
    pub sender: IpAddr,
    /// The receiver's address.
    pub receiver: IpAddr,
    /// The protocol's number.
    pub protocol: u8,
    /// The source and destination port, as far as they can be read.
    pub ports: Ports,
}

impl Inner {
    /// Parses the packet that follows Geneve's options.
    ///
    /// # Errors
    ///
    /// Returns `Malformed` unless the packet conforms to wire.md §8.7.
    pub fn parse(payload: Payload, bytes: &[u8]) -> Result<Self, DropReason> {
        let inner = match payload {
            Payload::Ipv4 => Self::ipv4(bytes),
            Payload::Ipv6 => Self::ipv6(bytes),
            Payload::Ethernet => bytes.split_first_chunk::<ETHERNET_LEN>().and_then(|(link, rest)| match link[12..] {
                [0x08, 0x00] => Self::ipv4(rest),
                [0x86, 0xdd] => Self::ipv6(rest),
                _ => None,
            }),
        };
        inner.ok_or(DropReason::Malformed)
    }

    fn ipv4(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; IPV4_LEN] = bytes.first_chunk()?;
        let [first, _, l0, l1, _, _, f0, f1, _, protocol, _, _, s0, s1, s2, s3, r0, r1, r2, r3] = *header;
        let transport = bytes.get(..u16::from_be_bytes([l0, l1]).into())?.get(IPV4_LEN..)?;
        let later = u16::from_be_bytes([f0, f1]) & 0x1fff != 0;
        (first == 0x45).then_some(Self {
            sender: [s0, s1, s2, s3].into(),
            receiver: [r0, r1, r2, r3].into(),
            protocol,
            ports: ports(protocol, later, transport),
        })
    }

    fn ipv6(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<IPV6_LEN>()?;
        let mut transport = rest.get(..u16::from_be_bytes([header[4], header[5]]).into())?;
        let (mut protocol, mut later) = (header[6], false);
        if protocol == FRAGMENT {
            let (fragment, rest) = transport.split_first_chunk::<8>()?;
            protocol = fragment[0];
            later = u16::from_be_bytes([fragment[2], fragment[3]]) & 0xfff8 != 0;
            transport = rest;
        }
        // Hop-by-hop, routing, fragment, authentication, destination options.
        let plain = header[0] >> 4 == 6 && !matches!(protocol, 0 | 43 | FRAGMENT | 51 | 60);
        plain.then_some(Self {
            sender: header[8..].first_chunk::<16>().copied()?.into(),
            receiver: header[24..].first_chunk::<16>().copied()?.into(),
            protocol,
            ports: ports(protocol, later, transport),
        })
    }
}

fn ports(protocol: u8, later: bool, transport: &[u8]) -> Ports {
    match transport {
        _ if later => Ports::Hidden,
        _ if !matches!(protocol, TCP | UDP) => Ports::Shown(0, 0),
        [s0, s1, d0, d1, ..] => Ports::Shown(u16::from_be_bytes([*s0, *s1]), u16::from_be_bytes([*d0, *d1])),
        _ => Ports::Cut,
    }
}
