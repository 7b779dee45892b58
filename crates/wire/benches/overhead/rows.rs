//! The encapsulations that the bench compares, and the sizes of their headers. The headers of our own encapsulations
//! are written by the crate's codec.

use std::fmt::Write;
use std::net::IpAddr;
use wire::geneve::{ENCAPSULATION_MAX, Encapsulation, OPTION_HEADER_LEN, Payload};
use wire::segment::PROOFS_MAX;
use wire::{InterfaceId, Segment, SegmentFlags, Suite, Vni};

/// MTUs of the networks that the figures are computed for.
pub const MTUS: [usize; 2] = [1500, 9000];

pub const ETHERNET: usize = 14;
pub const IPV4: usize = 20;
pub const IPV6: usize = 40;
pub const UDP: usize = 8;
const TCP: usize = 20;
/// Bytes of VXLAN's header (RFC 7348).
const VXLAN: usize = 8;
/// Bytes of a segment routing header (RFC 8754), without segments and TLVs.
const SEGMENT_ROUTING: usize = 8;
const SEGMENT: usize = 16;
const TLV_HEADER: usize = 2;
/// Bytes that Ethernet adds around a frame: preamble, start, check sequence, and the gap between frames.
const AROUND_FRAME: usize = 7 + 1 + 4 + 12;

/// One encapsulation of an IPv4 packet with TCP, both without options.
pub struct Row {
    /// Name of the encapsulation in the output of the bench.
    pub name: String,
    /// Name of the encapsulation in the Markdown table.
    pub title: String,
    /// Number of bytes in front of TCP's payload in a frame.
    pub header: usize,
}

impl Row {
    fn new(name: impl Into<String>, title: impl Into<String>, between: usize) -> Self {
        Self { name: name.into(), title: title.into(), header: ETHERNET + between + IPV4 + TCP }
    }

    /// Returns the number of bytes that the encapsulation adds to a frame.
    pub fn added(&self) -> usize {
        self.header - ETHERNET - IPV4 - TCP
    }

    /// Returns the maximum length of TCP's payload in one packet, in bytes, on a network with this MTU.
    pub fn payload(&self, mtu: usize) -> usize {
        ETHERNET + mtu - self.header
    }

    /// Returns the share of TCP's payload in the bytes that Ethernet transmits, 0 to 1, if every packet is as long as
    /// the MTU permits.
    pub fn goodput(&self, mtu: usize) -> f64 {
        self.payload(mtu) as f64 / (AROUND_FRAME + ETHERNET + mtu) as f64
    }
}

/// Returns an encoded Geneve header that carries a segment and `proofs` proofs.
pub fn geneve(payload: Payload, proofs: u8) -> Vec<u8> {
    let authority: IpAddr = [192, 0, 2, 1].into();
    let segment = Segment {
        suite: Suite::AesCmac,
        count: proofs,
        pointer: 0,
        flags: SegmentFlags::PORT,
        protocol: 6,
        epoch: 0,
        expires: 0,
        interface: InterfaceId(1),
        port: 443,
        sender_port: 0,
        authority,
    };
    let proofs = vec![[0; 16]; proofs.into()];
    let vni = Vni::new(1).expect("24 bits");
    let mut room = [0; ENCAPSULATION_MAX];
    let length =
        Encapsulation { control: false, payload, vni, segment, proofs: &proofs }.encode(&mut room).expect("room");
    room[..length].to_vec()
}

/// Returns the length of our option's data with this number of proofs. The published header carries the same data.
fn data(proofs: u8) -> usize {
    geneve(Payload::Ipv4, proofs).len() - wire::geneve::HEADER_LEN - OPTION_HEADER_LEN
}

fn in_routing_header(proofs: u8) -> usize {
    // The routing header has one segment per verifier, and its length is a multiple of 8.
    IPV6 + SEGMENT_ROUTING + SEGMENT * usize::from(proofs) + (TLV_HEADER + data(proofs)).next_multiple_of(8)
}

/// Returns all encapsulations that the bench compares.
pub fn rows() -> Vec<Row> {
    let mut rows = vec![
        Row::new("ethernet", "Ethernet", 0),
        Row::new("vxlan", "VXLAN over IPv4", IPV4 + UDP + VXLAN + ETHERNET),
        Row::new("published_ip", "as published, between IP and TCP, 2 proofs", data(2)),
        Row::new("published_srv6", "as published, in a routing header of IPv6, 2 proofs", in_routing_header(2)),
    ];
    for proofs in [1, 2, 3, PROOFS_MAX] {
        let title = format!("Geneve over IPv4, {proofs} {}", if proofs == 1 { "proof" } else { "proofs" });
        let between = IPV4 + UDP + geneve(Payload::Ipv4, proofs).len();
        rows.push(Row::new(format!("geneve_{proofs}"), title, between));
    }
    let over_ipv6 = IPV6 + UDP + geneve(Payload::Ipv4, 2).len();
    rows.push(Row::new("geneve6_2", "Geneve over IPv6, 2 proofs", over_ipv6));
    let routing = SEGMENT_ROUTING + 2 * SEGMENT;
    rows.push(Row::new("geneve6_routed_2", "Geneve over IPv6 with a fixed path, 2 proofs", over_ipv6 + routing));
    let frames = IPV4 + UDP + geneve(Payload::Ethernet, 2).len() + ETHERNET;
    rows.push(Row::new("geneve_ethernet_2", "Geneve over IPv4 with Ethernet inside, 2 proofs", frames));
    rows
}

/// Returns `rows` as a Markdown table.
pub fn table(rows: &[Row]) -> String {
    let mut table = "| | headers | added | payload at 1500 | goodput | payload at 9000 | goodput |\n".to_owned();
    table.push_str("|---|---|---|---|---|---|---|\n");
    for row in rows {
        write!(table, "| {} | {} B | {} B |", row.title, row.header, row.added()).expect("a string takes everything");
        for mtu in MTUS {
            let (payload, goodput) = (row.payload(mtu), 100.0 * row.goodput(mtu));
            write!(table, " {payload} B | {goodput:.1} % |").expect("a string takes everything");
        }
        table.push('\n');
    }
    table
}
