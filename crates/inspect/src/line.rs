//! Parts of the line of text that describes a packet.

use std::net::{IpAddr, SocketAddr};

use wire::packet::{Form, ICMP, ICMPV6, Packet, TCP, UDP, tcp_flags};

/// Formats the source or the destination of a packet: `ADDRESS:PORT`, or `ADDRESS` if the packet has no ports. Returns
/// `None` if `address` is `None`.
pub fn end(packet: &Packet, address: Option<IpAddr>, port: u16) -> Option<String> {
    address.map(|address| match matches!(packet.protocol, TCP | UDP) && port > 0 {
        true => SocketAddr::new(address, port).to_string(),
        false => address.to_string(),
    })
}

/// Returns the name of a packet's protocol.
pub fn protocol(packet: &Packet) -> String {
    match (packet.form, packet.protocol) {
        (Form::NotIp, _) => "not ip".to_owned(),
        (_, TCP) => "tcp".to_owned(),
        (_, UDP) => "udp".to_owned(),
        (_, ICMP) => "icmp".to_owned(),
        (_, ICMPV6) => "icmpv6".to_owned(),
        (_, other) => format!("protocol {other}"),
    }
}

/// Returns the names of the TCP flags that are set.
pub fn names(flags: u8) -> Vec<&'static str> {
    const NAMES: [(u8, &str); 6] = [
        (tcp_flags::SYN, "SYN"),
        (tcp_flags::ACK, "ACK"),
        (tcp_flags::PSH, "PSH"),
        (tcp_flags::FIN, "FIN"),
        (tcp_flags::RST, "RST"),
        (tcp_flags::URG, "URG"),
    ];
    NAMES.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect()
}
