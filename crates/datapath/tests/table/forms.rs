//! Odd packets: wire.md §6.5.

use super::{CLIENT_PORT, Case, Transport};
use crate::world::{Family, Grant, families};
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp, flag};
use std::net::IpAddr;
use wire::DropReason;

const MALFORMED: Outcome = Outcome::Drop(DropReason::Malformed);
const FRAGMENT: Outcome = Outcome::Drop(DropReason::Fragment);

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in families() {
        fragments(&mut cases, &family);
        icmp(&mut cases, &family);
        broken(&mut cases, &family);
        if family.server.is_ipv4() {
            options(&mut cases, &family);
        } else {
            extensions(&mut cases, &family);
        }
    }
    cases
}

fn fragments(cases: &mut Vec<Case>, family: &Family) {
    let grant = Grant::new(family, 20);
    let first = Transport::Udp.first(family, &grant, CLIENT_PORT, 1);
    let identified = 0x1234_0000 + u32::from(family.server.is_ipv6());
    let datagram = |id: u32| Transport::Udp.later(family, CLIENT_PORT).identification(id).payload(&[5; 3000]);
    let parts = datagram(identified & 0xffff).fragments(1400);
    let case = |what: &str| Case::new(family, "§6.5", what);
    let admitted = parts.iter().fold(case("fragments of an admitted flow").admitted(&first), |case, part| {
        case.frame(part.clone(), Outcome::Flow)
    });
    cases.push(admitted);
    cases.push(case("a first fragment of an unknown flow").frame(datagram(2).fragments(1400)[0].clone(), FRAGMENT));
    cases.push(case("a later fragment of an unknown flow").frame(datagram(3).fragments(1400)[1].clone(), FRAGMENT));
    cases.push(
        case("a later fragment of an admitted flow that comes first")
            .admitted(&first)
            .frame(datagram(4).fragments(1400)[1].clone(), FRAGMENT),
    );
    cases.push(
        case("a later fragment half a minute after the first")
            .admitted(&first)
            .frame(datagram(5).fragments(1400)[0].clone(), Outcome::Flow)
            .step(super::Step::Wait(31))
            .frame(datagram(5).fragments(1400)[2].clone(), FRAGMENT),
    );
    let mut payload = vec![0; 1000];
    payload.extend(wire::tail::block(&first.token));
    let tokened = Transport::Udp.later(family, CLIENT_PORT).identification(6).payload(&payload).fragments(504);
    let whole =
        tokened.iter().fold(case("a token cut into fragments"), |case, part| case.frame(part.clone(), FRAGMENT));
    cases.push(whole);
    let syn = Packet::new(family.client, family.server).tcp(Tcp::syn(CLIENT_PORT, 22)).identification(7);
    cases.push(case("a SYN in a first fragment").frame(syn.payload(&[0; 64]).fragments(40)[0].clone(), FRAGMENT));
    let tcp = Transport::Tcp.first(family, &grant, CLIENT_PORT, 2);
    for (what, size) in [("", 40), (" that shows no flags", 8), (" of a whole header", 24)] {
        let name = format!("a SYN of an admitted flow in fragments, the first{what}");
        let parts =
            Packet::new(family.client, family.server).tcp(Tcp::syn(CLIENT_PORT, 22)).identification(70 + size as u32);
        let parts = parts.payload(&[0; 200]).fragments(size);
        let row = parts.into_iter().fold(case(&name).admitted(&tcp), |case, part| case.frame(part, FRAGMENT));
        cases.push(row);
    }
    let open = Packet::new(family.client, family.open).udp(CLIENT_PORT, 443).identification(8).payload(&[0; 3000]);
    for (index, part) in open.fragments(1400).into_iter().enumerate() {
        cases.push(case(&format!("fragment {index} to an open host")).frame(part, Outcome::NotOurs));
    }
    let port = Packet::new(family.client, family.server).udp(CLIENT_PORT, 5353).identification(9).payload(&[0; 3000]);
    cases.push(case("a first fragment to an open port").frame(port.fragments(1400)[0].clone(), Outcome::NotOurs));
    cases.push(
        case("a later fragment that might be for the protected port").frame(port.fragments(1400)[1].clone(), FRAGMENT),
    );
    let other = Packet::new(family.client, family.server).raw(47).identification(10).payload(&[0; 3000]);
    cases.push(
        case("a later fragment of a protocol without protected ports")
            .frame(other.fragments(1400)[1].clone(), Outcome::NotOurs),
    );
    let fortress = Packet::new(family.client, family.fortress).raw(47).identification(11).payload(&[0; 3000]);
    cases.push(case("a first fragment to a fortress").frame(fortress.fragments(1400)[0].clone(), FRAGMENT));
    cases.push(case("a later fragment to a fortress").frame(fortress.fragments(1400)[1].clone(), FRAGMENT));
    let mut tiny = datagram(12).fragments(8)[0].clone();
    let keep = tiny.len() - 6;
    tiny.truncate(keep);
    shorten(&mut tiny, 6);
    cases.push(case("a first fragment too short for its ports").frame(tiny, MALFORMED));
}

/// Reduces the length in the IP header.
fn shorten(frame: &mut [u8], by: u16) {
    let at = if frame[12] == 8 { 16 } else { 18 };
    let length = u16::from_be_bytes([frame[at], frame[at + 1]]) - by;
    frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
}

fn icmp(cases: &mut Vec<Case>, family: &Family) {
    let ipv6 = family.server.is_ipv6();
    let router: IpAddr = if ipv6 { "2001:db8:9::1".parse() } else { "192.0.2.1".parse() }.expect("an address");
    let (too_big, unreachable, exceeded, problem, echo) = if ipv6 { (2, 1, 3, 4, 128) } else { (3, 3, 11, 12, 8) };
    let grant = Grant::new(family, 21);
    let first = Transport::Tcp.first(family, &grant, CLIENT_PORT, 1);
    let sent_back = |port: u16| {
        let sent = Packet::new(family.server, family.client).tcp(Tcp::new(22, port, flag::ACK)).payload(&[1; 32]).ip();
        sent[..if ipv6 { 48 } else { 28 }].to_vec()
    };
    let error =
        |to: IpAddr, kind: u8, quote: &[u8]| Packet::new(router, to).icmp(kind, 0, [0, 0, 5, 0]).payload(quote).frame();
    let case = |what: &str| Case::new(family, "§6.5", what);
    for (name, kind) in
        [("too big", too_big), ("unreachable", unreachable), ("time exceeded", exceeded), ("problem", problem)]
    {
        cases.push(
            case(&format!("{name} about an admitted flow"))
                .admitted(&first)
                .frame(error(family.server, kind, &sent_back(CLIENT_PORT)), Outcome::IcmpError),
        );
        cases.push(
            case(&format!("{name} about an unknown flow"))
                .admitted(&first)
                .frame(error(family.server, kind, &sent_back(CLIENT_PORT + 1)), Outcome::Drop(DropReason::NoFlow)),
        );
    }
    let outbound = Packet::new(family.server, family.client).tcp(Tcp::new(50000, 443, flag::ACK)).ip();
    cases.push(
        case("an error about a flow from an open port")
            .frame(error(family.server, too_big, &outbound), Outcome::NotOurs),
    );
    let outbound = Packet::new(family.fortress, family.client).tcp(Tcp::new(50000, 443, flag::ACK)).ip();
    cases.push(
        case("an error about an unknown flow of a fortress")
            .frame(error(family.fortress, too_big, &outbound), Outcome::Drop(DropReason::NoFlow)),
    );
    cases.push(case("an error that quotes too little").frame(error(family.server, too_big, &[0x45; 12]), MALFORMED));
    let gre = Packet::new(family.server, family.client).raw(47).payload(&[0; 8]).ip();
    cases.push(
        case("an error about another protocol's packet").frame(error(family.server, too_big, &gre), Outcome::NotOurs),
    );
    let gre = Packet::new(family.fortress, family.client).raw(47).payload(&[0; 8]).ip();
    cases.push(
        case("an error about another protocol's packet of a fortress")
            .frame(error(family.fortress, too_big, &gre), Outcome::Drop(DropReason::NoFlow)),
    );
    let large = Packet::new(router, family.server).icmp(too_big, 0, [0; 4]).identification(90).payload(&[0; 200]);
    for (part, outcome) in large.fragments(104).into_iter().zip([FRAGMENT, Outcome::NotOurs]) {
        cases.push(case("an error in fragments").frame(part, outcome));
    }
    cases.push(case("an error to an open host").frame(error(family.open, too_big, &[0; 4]), Outcome::NotOurs));
    let ping = |to: IpAddr| Packet::new(family.client, to).icmp(echo, 0, [0, 1, 0, 1]).payload(b"ping").frame();
    cases.push(case("an echo request to a host with protected ports").frame(ping(family.server), Outcome::NotOurs));
    for (to, outcome) in [(family.fortress, FRAGMENT), (family.open, Outcome::NotOurs)] {
        let large = Packet::new(family.client, to).icmp(echo, 0, [0; 4]).identification(91).payload(&[0; 2000]);
        for part in large.fragments(1400) {
            cases.push(case("an echo request in fragments").frame(part, outcome));
        }
    }
    cases.push(case("an echo request to a fortress").frame(ping(family.fortress), Outcome::Drop(DropReason::NoToken)));
    if ipv6 {
        let quote = |packet: Packet| packet.tcp(Tcp::new(22, CLIENT_PORT, flag::ACK)).payload(&[1; 32]).ip();
        let back = || Packet::new(family.server, family.client);
        let options = |packet: Packet| packet.extension(60, &[1, 4, 0, 0, 0, 0]);
        let chain = |length: usize| (0..length).fold(back(), |packet, _| options(packet));
        let no_flow = Outcome::Drop(DropReason::NoFlow);
        for (name, quoted, known, unknown) in [
            ("options", quote(options(back())), Outcome::IcmpError, no_flow),
            ("options of the path", quote(back().extension(0, &[1, 4, 0, 0, 0, 0])), Outcome::IcmpError, no_flow),
            ("a first fragment", quote(back().extension(44, &[0, 1, 0, 0, 0, 9])), Outcome::IcmpError, no_flow),
            ("a later fragment", quote(back().extension(44, &[0, 9, 0, 0, 0, 9])), MALFORMED, MALFORMED),
            ("eight headers", quote(chain(8)), Outcome::IcmpError, no_flow),
            ("nine headers", quote(chain(9)), MALFORMED, MALFORMED),
        ] {
            let frame = error(family.server, too_big, &quoted);
            let row = case(&format!("an error about an admitted flow's packet with {name}")).admitted(&first);
            cases.push(row.frame(frame.clone(), known));
            cases.push(case(&format!("an error about an unknown flow's packet with {name}")).frame(frame, unknown));
        }
        for (name, hops, outcome) in [
            ("neighbour solicitation on the link", 255, Outcome::NotOurs),
            ("neighbour solicitation from afar", 254, Outcome::Drop(DropReason::NoToken)),
        ] {
            let packet = Packet::new(router, family.fortress).icmp(135, 0, [0; 4]).hops(hops).payload(&[0; 16]);
            cases.push(case(name).frame(packet.frame(), outcome));
        }
    }
}

fn broken(cases: &mut Vec<Case>, family: &Family) {
    let ip = 14;
    let header = if family.server.is_ipv6() { 40 } else { 20 };
    let syn = |to: IpAddr| Packet::new(family.client, to).tcp(Tcp::syn(CLIENT_PORT, 22)).frame();
    let udp = |to: IpAddr| Packet::new(family.client, to).udp(CLIENT_PORT, 443).payload(b"data").frame();
    let mut both = |what: &str, make: &dyn Fn(IpAddr) -> Vec<u8>| {
        cases.push(Case::new(family, "§6.5", what).frame(make(family.server), MALFORMED));
        let open = format!("{what}, to an open host");
        cases.push(Case::new(family, "§6.5", &open).frame(make(family.open), Outcome::NotOurs));
    };
    let change = |mut frame: Vec<u8>, at: usize, value: u8| {
        frame[at] = value;
        frame
    };
    let cut = |mut frame: Vec<u8>, length: usize| {
        frame.truncate(length);
        frame
    };
    both("another IP version in the header", &|to| change(syn(to), ip, 0x55));
    both("cut off in the TCP header", &|to| cut(syn(to), ip + header + 19));
    both("cut off behind the IP header", &|to| cut(syn(to), ip + header));
    both("a TCP header of 16 bytes", &|to| change(syn(to), ip + header + 12, 0x40));
    both("a TCP header longer than the packet", &|to| change(syn(to), ip + header + 12, 0xf0));
    both("a UDP length of 7", &|to| change(udp(to), ip + header + 5, 7));
    both("a UDP length longer than the packet", &|to| change(udp(to), ip + header + 5, 200));
    if family.server.is_ipv4() {
        both("an IP header of 16 bytes", &|to| change(syn(to), ip, 0x44));
        both("an IP header longer than the packet", &|to| change(change(syn(to), ip, 0x4f), ip + 3, 50));
        both("a total length shorter than the header", &|to| change(syn(to), ip + 3, 19));
        both("a total length longer than the frame", &|to| change(syn(to), ip + 3, 200));
    } else {
        both("a payload length longer than the frame", &|to| change(syn(to), ip + 5, 200));
        both("a jumbo payload length of 0", &|to| change(change(syn(to), ip + 5, 0), ip + 6, 6));
    }
    let mut whole = |what: &str, frame: Vec<u8>, outcome| {
        cases.push(Case::new(family, "§6.5", what).frame(frame, outcome));
    };
    whole("cut off before the destination", cut(syn(family.open), ip + header - 2), MALFORMED);
    let tags = |count: u16| (0..count).fold(Packet::new(family.client, family.open), |p, id| p.tag(0x8100, id));
    whole("three VLAN tags", tags(3).tcp(Tcp::syn(CLIENT_PORT, 22)).frame(), MALFORMED);
    whole("two VLAN tags to an open host", tags(2).tcp(Tcp::syn(CLIENT_PORT, 22)).frame(), Outcome::NotOurs);
    let tagged = Packet::new(family.client, family.server).tag(0x8100, 5).tcp(Tcp::syn(CLIENT_PORT, 22));
    whole("a VLAN tag hides nothing", tagged.frame(), Outcome::Drop(DropReason::NoToken));
    whole("a VLAN tag and nothing behind it", cut(tagged.frame(), 16), MALFORMED);
    let mut arp = vec![0; 42];
    arp[12..14].copy_from_slice(&[8, 6]);
    whole("ARP", arp, Outcome::NotOurs);
    let gre = Packet::new(family.client, family.fortress).raw(47).payload(&[0; 8]).frame();
    whole("another protocol to a fortress", gre, Outcome::Drop(DropReason::NoToken));
}

fn options(cases: &mut Vec<Case>, family: &Family) {
    let syn = |to: IpAddr, options: &[u8]| {
        Packet::new(family.client, to).options(options).tcp(Tcp::syn(CLIENT_PORT, 22)).frame()
    };
    let mut case = |what: &str, frame: Vec<u8>, outcome| {
        cases.push(Case::new(family, "§6.5", what).frame(frame, outcome));
    };
    let no_token = Outcome::Drop(DropReason::NoToken);
    case("options hide nothing", syn(family.server, &[1, 1, 1, 0]), no_token);
    case("the longest options", syn(family.server, &[1; 40]), no_token);
    case("what is behind the end of options does not matter", syn(family.server, &[0, 7, 1, 1]), no_token);
    case("an option of length 1", syn(family.server, &[7, 1, 0, 0]), MALFORMED);
    case("an option of length 0", syn(family.server, &[7, 0, 0, 0]), MALFORMED);
    case("an option longer than the header", syn(family.server, &[7, 5, 0, 0]), MALFORMED);
    case("an option without length", syn(family.server, &[1, 1, 1, 7]), MALFORMED);
    case("a broken option to an open host", syn(family.open, &[7, 0, 0, 0]), Outcome::NotOurs);
    let route = |kind: u8, pointer: u8, hop: IpAddr| {
        let IpAddr::V4(hop) = hop else { panic!("IPv4") };
        let mut option = vec![kind, 7, pointer];
        option.extend(hop.octets());
        option.push(0);
        option
    };
    case("a loose route to something protected", syn(family.open, &route(131, 4, family.server)), MALFORMED);
    case("a strict route to something protected", syn(family.open, &route(137, 4, family.server)), MALFORMED);
    case("a loose route elsewhere", syn(family.open, &route(131, 4, family.open)), Outcome::NotOurs);
    case("a route at its end", syn(family.open, &route(131, 8, family.server)), Outcome::NotOurs);
    case("a route with an impossible pointer", syn(family.open, &route(131, 1, family.open)), MALFORMED);
    case("a route without pointer", syn(family.open, &[131, 2, 0, 0]), MALFORMED);
    let ah = Packet::new(family.client, family.server).raw(51).payload(&authenticated(6, &[]));
    case("AH hides nothing", ah.frame(), no_token);
    let ah = Packet::new(family.client, family.open).raw(51).payload(&authenticated(6, &[]));
    case("AH to an open host", ah.frame(), Outcome::NotOurs);
}

/// Returns an authentication header and a SYN.
fn authenticated(next: u8, before: &[u8]) -> Vec<u8> {
    let mut bytes = before.to_vec();
    bytes.extend([next, 4, 0, 0]);
    bytes.extend([0; 20]);
    let mut tcp = vec![0; 20];
    tcp[..4].copy_from_slice(&[0x9c, 0x40, 0, 22]);
    tcp[12..14].copy_from_slice(&[0x50, flag::SYN]);
    bytes.extend(tcp);
    bytes
}

fn extensions(cases: &mut Vec<Case>, family: &Family) {
    let to = |address: IpAddr| Packet::new(family.client, address).tcp(Tcp::syn(CLIENT_PORT, 22));
    let mut case = |what: &str, frame: Vec<u8>, outcome| {
        cases.push(Case::new(family, "§6.5", what).frame(frame, outcome));
    };
    let no_token = Outcome::Drop(DropReason::NoToken);
    let pad = [1, 4, 0, 0, 0, 0];
    let chain = |address, count: usize| (0..count).fold(to(address), |packet, _| packet.extension(60, &pad));
    case("destination options hide nothing", chain(family.server, 1).frame(), no_token);
    case("hop-by-hop options hide nothing", to(family.server).extension(0, &pad).frame(), no_token);
    case("eight extension headers", chain(family.server, 8).frame(), no_token);
    case("nine extension headers", chain(family.server, 9).frame(), MALFORMED);
    case("nine extension headers to an open host", chain(family.open, 9).frame(), Outcome::NotOurs);
    let mut long = chain(family.server, 1).frame();
    long[14 + 40 + 1] = 200;
    case("an extension header longer than the packet", long, MALFORMED);
    let mut cut = chain(family.server, 1).frame();
    cut.truncate(14 + 40 + 4);
    cut[18..20].copy_from_slice(&4u16.to_be_bytes());
    case("an extension header cut off", cut, MALFORMED);
    let route = |kind: u8, left: u8, hops: &[IpAddr]| {
        let mut body = vec![kind, left, 0, 0, 0, 0];
        for hop in hops {
            let IpAddr::V6(hop) = hop else { panic!("IPv6") };
            body.extend(hop.octets());
        }
        body
    };
    let routed = |kind, left, hops: &[IpAddr]| to(family.open).extension(43, &route(kind, left, hops)).frame();
    case("a segment route to something protected", routed(4, 1, &[family.server]), MALFORMED);
    case("its last segment is protected", routed(4, 1, &[family.server, family.open]), MALFORMED);
    case("a type 0 route to something protected", routed(0, 1, &[family.server]), MALFORMED);
    case("a home address route to something protected", routed(2, 1, &[family.server]), MALFORMED);
    case("a type 0 route elsewhere", routed(0, 1, &[family.open]), MALFORMED);
    case("a home address route elsewhere", routed(2, 1, &[family.open]), MALFORMED);
    case("a segment route elsewhere", routed(4, 1, &[family.open]), Outcome::NotOurs);
    case("a segment route at its end", routed(4, 0, &[family.server]), Outcome::NotOurs);
    case("a compressed route that can't be read", routed(3, 1, &[family.open]), MALFORMED);
    case("a route of ten segments", routed(4, 1, &[family.open; 10]), MALFORMED);
    let ended = to(family.server).extension(43, &route(4, 0, &[family.open])).frame();
    case("a route at its end hides nothing", ended, no_token);
    let grant = Grant::new(family, 22);
    atomic_fragments(cases, family, &grant);
    let ah = Packet::new(family.client, family.server).raw(51).payload(&authenticated(6, &[])).frame();
    cases.push(Case::new(family, "§6.5", "AH hides nothing").frame(ah, no_token));
    let none = Packet::new(family.client, family.fortress).raw(59).frame();
    cases.push(Case::new(family, "§6.5", "no next header, to a fortress").frame(none, no_token));
}

/// Packets that are whole although they have a fragment header.
fn atomic_fragments(cases: &mut Vec<Case>, family: &Family, grant: &Grant) {
    let atomic = |packet: Packet| packet.extension(44, &[0, 0, 0, 0, 0, 9]);
    let case = |what: &str| Case::new(family, "§6.5.2", what);
    let datagram = Transport::Udp.first(family, grant, CLIENT_PORT, 1).with_packet(atomic);
    let later = atomic(Transport::Udp.later(family, CLIENT_PORT)).payload(b"data").frame();
    cases.push(case("UDP in an atomic fragment is a whole packet").admitted(&datagram).frame(later, Outcome::Flow));
    let syn = Transport::Tcp.first(family, grant, CLIENT_PORT, 2);
    let hidden = [
        ("a SYN in an atomic fragment", syn.with_packet(atomic)),
        ("a SYN in two atomic fragments", syn.with_packet(|packet| atomic(atomic(packet)))),
        (
            "a SYN in an atomic fragment between options",
            syn.with_packet(|packet| {
                atomic(packet.extension(60, &[1, 4, 0, 0, 0, 0])).extension(60, &[1, 4, 0, 0, 0, 0])
            }),
        ),
    ];
    for (what, first) in hidden {
        let row = case(&format!("{what}: its token isn't used up"));
        cases.push(row.frame(first.frame(), FRAGMENT).admitted(&syn));
    }
    let segment = |flags| atomic(Packet::new(family.client, family.server).tcp(Tcp::new(CLIENT_PORT, 22, flags)));
    let segments = [flag::ACK, flag::ACK | flag::PSH, flag::FIN | flag::ACK, flag::RST, flag::SYN];
    cases.push(segments.into_iter().fold(case("an admitted flow in atomic fragments").admitted(&syn), |row, flags| {
        row.frame(segment(flags).payload(b"data").frame(), FRAGMENT)
    }));
    let open = |port| atomic(Packet::new(family.client, family.server).tcp(Tcp::syn(CLIENT_PORT, port))).frame();
    cases.push(case("TCP to an open port in an atomic fragment").frame(open(8080), Outcome::NotOurs));
}
