//! Random whole packets, built without the crate's own code except for the sums.

use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::checksum;
use wire::packet::{Packet, TCP, UDP};

/// Content of the transport's checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The complete checksum.
    Whole,
    /// The pseudo-header's sum, which the network card would complete.
    Partial,
    /// Zero, which UDP allows.
    Absent,
}

/// A packet to build.
#[derive(Clone, Debug)]
pub struct Plan {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub ports: (u16, u16),
    pub tcp: bool,
    pub tags: usize,
    /// 32-bit words of IPv4 options, or IPv6 extension headers.
    pub extras: usize,
    pub tcp_options: usize,
    pub payload: Vec<u8>,
    pub padding: usize,
    pub checksum: Checksum,
}

pub fn frames() -> impl Strategy<Value = Plan> {
    let ends = prop_oneof![
        any::<[u32; 2]>().prop_map(|[a, b]| (IpAddr::V4(Ipv4Addr::from(a)), IpAddr::V4(Ipv4Addr::from(b)))),
        any::<[u128; 2]>().prop_map(|[a, b]| (IpAddr::V6(Ipv6Addr::from(a)), IpAddr::V6(Ipv6Addr::from(b)))),
    ];
    let shape = (any::<bool>(), 0usize..3, 0usize..4, 0usize..11, 0usize..20, 0usize..3);
    let payload = proptest::collection::vec(any::<u8>(), 0..120);
    (ends, any::<(u16, u16)>(), shape, payload).prop_map(
        |((source, destination), ports, (tcp, tags, extras, tcp_options, padding, kind), payload)| {
            let checksum = match kind {
                0 => Checksum::Whole,
                1 => Checksum::Partial,
                _ if tcp || destination.is_ipv6() => Checksum::Whole,
                _ => Checksum::Absent,
            };
            Plan { source, destination, ports, tcp, tags, extras, tcp_options, payload, padding, checksum }
        },
    )
}

/// Builds the Ethernet frame.
pub fn frame(plan: &Plan) -> Vec<u8> {
    let transport = transport(plan);
    let mut frame = vec![2; 12];
    for tag in 0..plan.tags {
        frame.extend([0x81, 0, 0, tag as u8]);
    }
    match (plan.source, plan.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            frame.extend([8, 0]);
            let header_len = 20 + plan.extras * 4;
            let mut header = vec![0x40 | (header_len / 4) as u8, 0];
            header.extend(((header_len + transport.len()) as u16).to_be_bytes());
            header.extend([0x12, 0x34, 0x40, 0, 64, protocol(plan), 0, 0]);
            header.extend(source.octets());
            header.extend(destination.octets());
            header.extend(vec![1; plan.extras * 4]);
            let sum = !checksum::fold(checksum::sum(&header, false));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.extend(header);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(((plan.extras * 8 + transport.len()) as u16).to_be_bytes());
            let next = |extra| if extra < plan.extras { 60 } else { protocol(plan) };
            frame.extend([next(0), 64]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
            for extra in 0..plan.extras {
                frame.extend([next(extra + 1), 0, 1, 4, 0, 0, 0, 0]);
            }
        }
        _ => unreachable!("a plan has one family"),
    }
    frame.extend(transport);
    frame.extend(vec![0xee; plan.padding]);
    frame
}

/// Returns the folded sum of pseudo-header and transport: 0xffff if the checksum is right.
pub fn transport_sum(frame: &[u8], packet: &Packet) -> u16 {
    let transport = &frame[packet.transport..packet.end];
    checksum::fold(checksum::pseudo_header(packet, transport.len() as u16) + checksum::sum(transport, false))
}

fn protocol(plan: &Plan) -> u8 {
    if plan.tcp { TCP } else { UDP }
}

fn transport(plan: &Plan) -> Vec<u8> {
    let mut bytes = [plan.ports.0.to_be_bytes(), plan.ports.1.to_be_bytes()].concat();
    let field = if plan.tcp {
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 0, ((5 + plan.tcp_options) << 4) as u8, 2, 0xfa, 0xf0, 0, 0, 0, 0]);
        bytes.extend(vec![1; plan.tcp_options * 4]);
        16
    } else {
        bytes.extend(((8 + plan.payload.len()) as u16).to_be_bytes());
        bytes.extend([0, 0]);
        6
    };
    bytes.extend(&plan.payload);
    let address = |address| match address {
        IpAddr::V4(a) => checksum::sum(&a.octets(), false),
        IpAddr::V6(a) => checksum::sum(&a.octets(), false),
    };
    let pseudo = address(plan.source) + address(plan.destination) + u32::from(protocol(plan)) + bytes.len() as u32;
    let checksum = match plan.checksum {
        Checksum::Whole => match !checksum::fold(pseudo + checksum::sum(&bytes, false)) {
            0 if !plan.tcp => 0xffff,
            checksum => checksum,
        },
        Checksum::Partial => checksum::fold(pseudo),
        Checksum::Absent => 0,
    };
    bytes[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    bytes
}
