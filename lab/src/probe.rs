//! Probes that scanners, broken stacks and attackers send to find out whether a host is present. This module does no
//! I/O: it returns frames.

use std::net::IpAddr;

use crate::forge::{Packet, Tcp, VLAN, flag, protocol};

/// Source port of the first probe; later probes use the ports after it. These ports are below those that systems choose
/// for their own connections, so that probes differ from other traffic between the same hosts.
const FIRST_PORT: u16 = 20000;
const DNS: u16 = 53;
const ETHERNET: usize = 14;

/// Extension headers: types and bodies.
type Headers<'a> = &'a [(u8, &'a [u8])];
/// A way to break a frame: the probe's name, whether the frame is a SYN (otherwise a datagram), and the change to its
/// bytes.
type Breakage = (&'static str, bool, Box<dyn Fn(&mut Vec<u8>)>);

/// The service to probe, and the source of the probes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The probed address.
    pub address: IpAddr,
    /// The probed port.
    pub port: u16,
    /// The probed protocol; `None` stands for both TCP and UDP.
    pub protocol: Option<u8>,
    /// The source address of the probes.
    pub source: IpAddr,
    /// Hardware addresses on the first cable: the sender's, and the next hop's.
    pub macs: [[u8; 6]; 2],
    /// Whether the whole host is expected to be silent, and not just the port. If so, the suite also pings the host,
    /// and sends packets of protocols other than TCP, UDP and ICMP.
    pub whole_host: bool,
}

/// One probe.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Name of the probe in results.
    pub name: String,
    /// Protocol by which [`Target::protocol`] selects the probe: UDP for datagrams, and for ICMP errors that quote a
    /// datagram; TCP for all other probes.
    pub protocol: u8,
    /// The source port, unique among the probes of this protocol. ICMP queries use it as their identifier.
    pub source_port: u16,
    /// The frames, in the order of sending.
    pub frames: Vec<Vec<u8>>,
}

/// Returns all probes of the suite against one target.
pub fn suite(target: &Target) -> Vec<Probe> {
    let mut suite = Suite { target: *target, probes: Vec::new() };
    suite.tcp();
    suite.udp();
    suite.fragments();
    if target.address.is_ipv4() {
        suite.options();
    } else {
        suite.extensions();
    }
    suite.icmp();
    suite.malformed();
    if target.whole_host {
        suite.other_protocols();
    }
    suite.probes.retain(|probe| target.protocol.is_none_or(|only| probe.protocol == only));
    suite.probes
}

struct Suite {
    target: Target,
    probes: Vec<Probe>,
}

impl Suite {
    fn six(&self) -> bool {
        self.target.address.is_ipv6()
    }

    /// Returns the source port of the next probe.
    fn port(&self) -> u16 {
        FIRST_PORT + self.probes.len() as u16
    }

    fn add(&mut self, name: &str, frames: Vec<Vec<u8>>) {
        let is_udp = name.starts_with("UDP") || name.ends_with("UDP");
        let protocol = if is_udp { protocol::UDP } else { protocol::TCP };
        self.probes.push(Probe { name: name.to_owned(), protocol, source_port: self.port(), frames });
    }

    fn packet(&self) -> Packet {
        let [ours, next] = self.target.macs;
        Packet::new(self.target.source, self.target.address).ethernet(ours, next)
    }

    fn syn(&self) -> Packet {
        self.packet().tcp(Tcp::syn(self.port(), self.target.port))
    }

    fn datagram(&self) -> Packet {
        self.packet().udp(self.port(), self.target.port).payload(b"is anybody there?")
    }

    fn tcp(&mut self) {
        const URG: u8 = 0x20;
        const ECN: u8 = 0xc0;
        let kinds = [
            ("SYN", flag::SYN),
            ("SYN with ECN", flag::SYN | ECN),
            ("SYN+ACK", flag::SYN | flag::ACK),
            ("SYN+FIN", flag::SYN | flag::FIN),
            ("SYN+RST", flag::SYN | flag::RST),
            ("ACK", flag::ACK),
            ("FIN", flag::FIN),
            ("FIN+ACK", flag::FIN | flag::ACK),
            ("NULL", 0),
            ("XMAS", flag::FIN | flag::PSH | URG),
            ("all flags", 0xff),
            ("RST", flag::RST),
        ];
        for (name, flags) in kinds {
            let header = Tcp { acknowledgement: 1, ..Tcp::new(self.port(), self.target.port, flags) };
            self.add(&format!("TCP {name}"), vec![self.packet().tcp(header).frame()]);
        }
        self.add("TCP SYN with data", vec![self.syn().payload(b"GET / HTTP/1.0\r\n\r\n").frame()]);
        let block = [b"VSF1", &[0x13; 36][..]].concat();
        self.add("TCP SYN with a made-up token", vec![self.syn().payload(&block).frame()]);
        // MSS, window scale, SACK, timestamps, and a request for a fast open cookie (RFC 7413).
        let options = [2, 4, 5, 0xb4, 3, 3, 7, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 34, 2];
        let header = Tcp { options: options.to_vec(), ..Tcp::syn(self.port(), self.target.port) };
        self.add("TCP SYN with options and fast open", vec![self.packet().tcp(header).frame()]);
        self.add("TCP SYN with a wrong checksum", vec![self.syn().wrong_checksum().frame()]);
        let data = Tcp { acknowledgement: 1, ..Tcp::new(self.port(), self.target.port, flag::PSH | flag::ACK) };
        self.add("TCP data in mid-flow", vec![self.packet().tcp(data).payload(b"hello").frame()]);
        self.add("TCP SYN, TTL 1 on the last cable", vec![self.syn().hops(1).frame()]);
        self.add("TCP SYN in a VLAN", vec![self.syn().tag(VLAN, 7).frame()]);
        let from_dns = self.packet().tcp(Tcp::syn(DNS, self.target.port)).frame();
        self.add_from(DNS, "TCP SYN from port 53", vec![from_dns]);
    }

    fn add_from(&mut self, port: u16, name: &str, frames: Vec<Vec<u8>>) {
        self.add(name, frames);
        if let Some(probe) = self.probes.last_mut() {
            probe.source_port = port;
        }
    }

    fn udp(&mut self) {
        self.add("UDP", vec![self.datagram().frame()]);
        self.add("UDP, empty", vec![self.datagram().payload(b"").frame()]);
        self.add("UDP, large", vec![self.datagram().payload(&[b'x'; 1400]).frame()]);
        let block = [b"VSF1", &[0x13; 36][..]].concat();
        self.add("UDP with a made-up token", vec![self.datagram().payload(&block).frame()]);
        self.add("UDP with a wrong checksum", vec![self.datagram().wrong_checksum().frame()]);
        if !self.six() {
            self.add("UDP without a checksum", vec![self.datagram().no_checksum().frame()]);
        }
        // Send an answer to a query for `version.bind`, as a resolver would.
        let answer = b"\x12\x34\x81\x80\0\x01\0\0\0\0\0\0\x07version\x04bind\0\0\x10\0\x03";
        let from_dns = self.packet().udp(DNS, self.target.port).payload(answer).frame();
        self.add_from(DNS, "UDP from port 53", vec![from_dns]);
    }

    fn fragments(&mut self) {
        let number = |probe: usize| 0x5000 + probe as u32;
        let id = number(self.probes.len());
        self.add("TCP SYN in fragments of 8 bytes", self.syn().identification(id).fragments(8));
        let syn = self.syn().identification(number(self.probes.len())).payload(&[b'x'; 200]).fragments(24);
        self.add("TCP SYN, fragments in reverse", syn.into_iter().rev().collect());
        let cut = self.datagram().payload(&[b'x'; 3000]).identification(number(self.probes.len())).fragments(1024);
        self.add("UDP in fragments", cut);
        let cut = self.datagram().payload(&[b'x'; 3000]).identification(number(self.probes.len())).fragments(1024);
        self.add("UDP, the first fragment alone", cut[..1].to_vec());
        let cut = self.datagram().payload(&[b'x'; 3000]).identification(number(self.probes.len())).fragments(1024);
        self.add("UDP, later fragments alone", cut[1..].to_vec());
        self.overlap("TCP SYN, overlapping fragments", self.target.port);
        if self.target.whole_host {
            self.overlap("TCP SYN, overlapping fragments that change its port", 9);
        }
        if self.six() {
            self.add("TCP SYN in an atomic fragment", self.syn().identification(7).fragments(1024));
        }
    }

    /// Adds a SYN to the target's port whose fragments overlap the first fragment of a SYN to the port `other`.
    fn overlap(&mut self, name: &str, other: u16) {
        let id = 0x5000 + self.probes.len() as u32;
        let under = self.packet().tcp(Tcp::syn(self.port(), other)).identification(id).payload(&[0; 20]);
        let over = self.syn().identification(id).payload(&[0; 20]).fragments(8);
        self.add(name, [under.fragments(24)[..1].to_vec(), over].concat());
    }

    fn options(&mut self) {
        let address = match self.target.address {
            IpAddr::V4(address) => address.octets(),
            IpAddr::V6(_) => return,
        };
        let route = |kind: u8| [&[kind, 7, 4][..], &address].concat();
        let kinds = [
            ("no-operation", vec![1, 1, 1, 1]),
            ("record route", [&[7, 15, 4][..], &[0; 12]].concat()),
            ("timestamp", [&[68, 12, 5, 0][..], &[0; 8]].concat()),
            ("router alert", vec![148, 4, 0, 0]),
            ("loose source route", route(131)),
            ("strict source route", route(137)),
            ("security", vec![130, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            ("experiment 158", [&[158, 40, 4][..], &[0x13; 37]].concat()),
            ("40 bytes of them", vec![1; 40]),
            ("a broken length", vec![7, 200, 4, 0]),
        ];
        for (name, options) in kinds {
            let syn = self.syn().options(&options).frame();
            self.add(&format!("TCP SYN, IP options: {name}"), vec![syn]);
            let datagram = self.datagram().options(&options).frame();
            self.add(&format!("UDP, IP options: {name}"), vec![datagram]);
        }
    }

    fn extensions(&mut self) {
        use protocol::{DESTINATION_OPTIONS, HOP_BY_HOP, ROUTING};
        let alert = [5, 2, 0, 0, 1, 0];
        // An option that a receiver must answer by an ICMP error, also to a unicast (RFC 8200, 4.2: action 10).
        let must_answer = [0x9e, 4, 0, 0, 0, 0];
        let segments = |kind: u8| [&[kind, 1, 0, 0, 0, 0][..], &[0; 16]].concat();
        let kinds: [(&str, Headers<'_>); 10] = [
            ("hop by hop", &[(HOP_BY_HOP, &[1, 4, 0, 0, 0, 0])]),
            ("router alert", &[(HOP_BY_HOP, &alert)]),
            ("hop by hop, unknown option", &[(HOP_BY_HOP, &must_answer)]),
            ("destination options", &[(DESTINATION_OPTIONS, &[1, 4, 0, 0, 0, 0])]),
            ("destination options, unknown", &[(DESTINATION_OPTIONS, &must_answer)]),
            ("hop by hop second", &[(DESTINATION_OPTIONS, &[]), (HOP_BY_HOP, &[])]),
            ("routing type 0", &[(ROUTING, &segments(0))]),
            ("routing type 2", &[(ROUTING, &segments(2))]),
            ("segment routing", &[(ROUTING, &segments(4))]),
            ("routing type 200", &[(ROUTING, &segments(200))]),
        ];
        for (name, headers) in kinds {
            let with =
                |packet: Packet| headers.iter().fold(packet, |packet, (kind, body)| packet.extension(*kind, body));
            let syn = with(self.syn()).frame();
            self.add(&format!("TCP SYN, {name}"), vec![syn]);
            let datagram = with(self.datagram()).frame();
            self.add(&format!("UDP, {name}"), vec![datagram]);
        }
        let many = (0..20).fold(self.syn(), |packet, _| packet.extension(DESTINATION_OPTIONS, &[1, 4, 0, 0, 0, 0]));
        self.add("TCP SYN, 20 extension headers", vec![many.frame()]);
    }

    fn icmp(&mut self) {
        // The packet that the host would have had to send for these errors to be genuine.
        let quoted = |protocol: u8, suite: &Self| {
            let packet = Packet::new(suite.target.address, suite.target.source);
            match protocol {
                protocol::TCP => packet.tcp(Tcp::new(suite.target.port, suite.port(), flag::ACK)).ip(),
                _ => packet.udp(suite.target.port, suite.port()).payload(b"x").ip(),
            }
        };
        let errors: &[(&str, u8, u8)] = match self.six() {
            false => {
                &[("unreachable", 3, 3), ("too big", 3, 4), ("time exceeded", 11, 0), ("parameter problem", 12, 0)]
            }
            true => &[("unreachable", 1, 4), ("too big", 2, 0), ("time exceeded", 3, 0), ("parameter problem", 4, 0)],
        };
        for (name, kind, code) in errors {
            for (protocol, transport) in [(protocol::TCP, "TCP"), (protocol::UDP, "UDP")] {
                let error = self.packet().icmp(*kind, *code, [0, 0, 5, 0]).payload(&quoted(protocol, self)).frame();
                self.add(&format!("ICMP {name} about {transport}"), vec![error]);
            }
        }
        if !self.target.whole_host {
            return;
        }
        let queries: &[(&str, u8)] = match self.six() {
            false => &[("echo", 8), ("timestamp", 13), ("information", 15), ("address mask", 17), ("router", 10)],
            true => &[("echo", 128), ("node information", 139), ("listener query", 130), ("kind 200", 200)],
        };
        for (name, kind) in queries {
            let [high, low] = self.port().to_be_bytes();
            let query = self.packet().icmp(*kind, 0, [high, low, 0, 1]).payload(&[0; 16]).frame();
            self.add(&format!("ICMP {name} query"), vec![query]);
        }
    }

    fn malformed(&mut self) {
        let header = if self.six() { 40 } else { 20 };
        let (ip, transport) = (ETHERNET, ETHERNET + header);
        let length_at = if self.six() { ip + 4 } else { ip + 2 };
        let syn = |suite: &Suite| suite.syn().payload(b"data").frame();
        let set = |at: usize, bytes: &'static [u8]| {
            move |frame: &mut Vec<u8>| frame[at..at + bytes.len()].copy_from_slice(bytes)
        };
        let changes: Vec<Breakage> = vec![
            ("TCP SYN, IP length beyond the frame", true, Box::new(set(length_at, &[0x05, 0xdc]))),
            ("TCP SYN, IP length 0", true, Box::new(set(length_at, &[0, 0]))),
            ("TCP SYN, IP length within the header", true, Box::new(set(length_at, &[0, 10]))),
            (
                "TCP SYN, IP length within TCP's header",
                true,
                Box::new(set(length_at, if self.six() { &[0, 12] } else { &[0, 32] })),
            ),
            ("TCP SYN, IP version 5", true, Box::new(set(ip, &[0x55]))),
            ("TCP SYN, data offset 0", true, Box::new(set(transport + 12, &[0x00]))),
            ("TCP SYN, data offset beyond the packet", true, Box::new(set(transport + 12, &[0xf0]))),
            ("TCP SYN, cut in its header", true, Box::new(move |frame| frame.truncate(transport + 14))),
            ("TCP SYN, cut in its ports", true, Box::new(move |frame| frame.truncate(transport + 2))),
            ("IP header cut", true, Box::new(move |frame| frame.truncate(ip + 10))),
            ("UDP, length beyond the packet", false, Box::new(set(transport + 4, &[0x05, 0xdc]))),
            ("UDP, length 0", false, Box::new(set(transport + 4, &[0, 0]))),
            ("UDP, length 4", false, Box::new(set(transport + 4, &[0, 4]))),
            ("UDP, shorter than its packet", false, Box::new(set(transport + 4, &[0, 9]))),
            ("UDP, cut in its header", false, Box::new(move |frame| frame.truncate(transport + 5))),
        ];
        for (name, is_tcp, change) in changes {
            let mut frame = if is_tcp { syn(self) } else { self.datagram().frame() };
            change(&mut frame);
            self.add(name, vec![frame]);
        }
        if !self.six() {
            for (name, first) in [("4", 0x44), ("0", 0x40), ("15", 0x4f)] {
                let mut frame = syn(self);
                frame[ip] = first;
                self.add(&format!("TCP SYN, IP header length {name} words"), vec![frame]);
            }
        }
    }

    fn other_protocols(&mut self) {
        if self.six() {
            let unknown = self.syn().extension(253, &[]).frame();
            self.add("TCP SYN, unknown extension header", vec![unknown]);
        }
        let inner =
            Packet::new(self.target.source, self.target.address).tcp(Tcp::syn(self.port(), self.target.port)).ip();
        let carrier = if self.six() { 41 } else { 4 };
        self.add("SYN in an IP-in-IP tunnel", vec![self.packet().raw(carrier).payload(&inner).frame()]);
        for (name, number) in [
            ("IGMP", 2),
            ("DCCP", 33),
            ("GRE", 47),
            ("ESP", 50),
            ("AH", 51),
            ("SCTP", 132),
            ("UDP-Lite", 136),
            ("protocol 253", 253),
        ] {
            let [a, b] = self.port().to_be_bytes();
            let [c, d] = self.target.port.to_be_bytes();
            let body = [&[a, b, c, d][..], &[0; 28]].concat();
            self.add(name, vec![self.packet().raw(number).payload(&body).frame()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn probes(six: bool) -> Vec<Probe> {
        let (address, source) = if six { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
        let (address, source) = (address.parse().unwrap(), source.parse().unwrap());
        suite(&Target { address, port: 22, source, protocol: None, macs: [[2; 6], [4; 6]], whole_host: true })
    }

    #[test]
    fn each_probe_has_a_name_and_frames_of_its_own() {
        for six in [false, true] {
            let probes = probes(six);
            let names: BTreeSet<_> = probes.iter().map(|probe| &probe.name).collect();
            assert_eq!(names.len(), probes.len());
            assert!(probes.len() > 60, "{}", probes.len());
            assert!(probes.iter().all(|probe| !probe.frames.is_empty()));
        }
    }
}
