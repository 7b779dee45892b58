//! Flows: wire.md §6.1 to §6.3.

use super::{CLIENT_PORT, Case, First, Step, Transport};
use crate::world::{Family, Grant, NOW, families};
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp, flag};
use wire::DropReason;

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in families() {
        not_ours(&mut cases, &family);
        tcp(&mut cases, &family);
        udp(&mut cases, &family);
    }
    cases
}

fn not_ours(cases: &mut Vec<Case>, family: &Family) {
    let mut open = |what: &str, packet: Packet| {
        cases.push(Case::new(family, "§6.2", what).frame(packet.frame(), Outcome::NotOurs));
    };
    let to = |address| Packet::new(family.client, address);
    open("a SYN to an open host", to(family.open).tcp(Tcp::syn(CLIENT_PORT, 22)));
    open("an ACK to an open host", to(family.open).tcp(Tcp::new(CLIENT_PORT, 22, flag::ACK)));
    open("a datagram to an open host", to(family.open).udp(CLIENT_PORT, 443));
    open("a SYN to an open port", to(family.server).tcp(Tcp::syn(CLIENT_PORT, 23)));
    open("a datagram to the port of the other protocol", to(family.server).udp(CLIENT_PORT, 22));
    open("an open host beside the protected network", to(family.open).tcp(Tcp::syn(CLIENT_PORT, 8000)));
    open("another protocol to a host with protected ports", to(family.server).raw(47).payload(&[0; 8]));
    let grant = Grant::new(family, 10);
    let first = Transport::Tcp.first(family, &grant, CLIENT_PORT, 1);
    let elsewhere = First { packet: to(family.open).tcp(Tcp::syn(CLIENT_PORT, 22)), ..first };
    cases.push(
        Case::new(family, "§6.2", "a token to an open host is none of ours").frame(elsewhere.frame(), Outcome::NotOurs),
    );
}

fn tcp(cases: &mut Vec<Case>, family: &Family) {
    let grant = Grant::new(family, 11);
    let first = Transport::Tcp.first(family, &grant, CLIENT_PORT, 1);
    let segment = |flags: u8| {
        Packet::new(family.client, family.server).tcp(Tcp::new(CLIENT_PORT, 22, flags)).payload(b"data").frame()
    };
    let kinds = [
        ("ACK", flag::ACK),
        ("FIN", flag::FIN),
        ("RST", flag::RST),
        ("NULL", 0),
        ("XMAS", flag::FIN | flag::PSH | 32),
        ("SYN and ACK", flag::SYN | flag::ACK),
        ("FIN and ACK", flag::FIN | flag::ACK),
        ("PSH and ACK", flag::PSH | flag::ACK),
    ];
    for (name, flags) in kinds {
        let unknown = Case::new(family, "§6.4", &format!("{name} of an unknown flow"));
        cases.push(unknown.frame(segment(flags), Outcome::Drop(DropReason::NoFlow)));
        let known = Case::new(family, "§6.3", &format!("{name} of an admitted flow"));
        cases.push(known.admitted(&first).frame(segment(flags), Outcome::Flow));
    }
    for (name, flags) in
        [("SYN", flag::SYN), ("SYN and FIN", flag::SYN | flag::FIN), ("SYN and RST", flag::SYN | flag::RST)]
    {
        let case = Case::new(family, "§6.3", &format!("{name} is never part of a flow"));
        cases.push(case.admitted(&first).frame(segment(flags), Outcome::Drop(DropReason::NoToken)));
    }
    let other_port = Packet::new(family.client, family.server).tcp(Tcp::new(CLIENT_PORT + 1, 22, flag::ACK));
    let other_host = Packet::new(family.stranger, family.server).tcp(Tcp::new(CLIENT_PORT, 22, flag::ACK));
    let unknown = Outcome::Drop(DropReason::NoFlow);
    cases.push(
        Case::new(family, "§6.3", "another port of the same address does not ride along")
            .admitted(&first)
            .frame(other_port.frame(), unknown),
    );
    cases.push(
        Case::new(family, "§6.3", "the same port of another address does not ride along")
            .admitted(&first)
            .frame(other_host.frame(), unknown),
    );
    let idle = |seconds, outcome| {
        Case::new(family, "§6.3", &format!("a flow idle for {seconds} s"))
            .admitted(&first)
            .frame(segment(flag::ACK), Outcome::Flow)
            .step(Step::Wait(seconds))
            .frame(segment(flag::ACK), outcome)
    };
    cases.push(idle(86_400, Outcome::Flow));
    cases.push(idle(86_401, unknown));
    let bare = |flags: u8| Packet::new(family.client, family.server).tcp(Tcp::new(CLIENT_PORT, 22, flags)).frame();
    let opening = |seconds, outcome| {
        Case::new(family, "§6.3", &format!("{seconds} s after a SYN that nothing followed"))
            .admitted(&first)
            .step(Step::Wait(seconds))
            .frame(segment(flag::ACK), outcome)
    };
    cases.push(opening(30, Outcome::Flow));
    cases.push(opening(31, unknown));
    cases.push(
        Case::new(family, "§6.3", "payload after a forged FIN keeps the flow open")
            .admitted(&first)
            .frame(bare(flag::FIN | flag::ACK), Outcome::Flow)
            .frame(segment(flag::ACK), Outcome::Flow)
            .step(Step::Wait(3600))
            .frame(bare(flag::ACK), Outcome::Flow),
    );
    let again = Transport::Tcp.first(family, &grant, CLIENT_PORT, 2);
    cases.push(
        Case::new(family, "§6.4.5", "another SYN of the grant begins its flow anew")
            .admitted(&first)
            .frame(segment(flag::ACK), Outcome::Flow)
            .step(Step::Wait(20))
            .admitted(&again)
            .frame(segment(flag::ACK), Outcome::Flow),
    );
    let closing = |seconds, outcome| {
        Case::new(family, "§6.3", &format!("{seconds} s after the client's FIN and last ACK"))
            .admitted(&first)
            .frame(segment(flag::FIN | flag::ACK), Outcome::Flow)
            .frame(bare(flag::ACK), Outcome::Flow)
            .step(Step::Wait(seconds))
            .frame(segment(flag::ACK), outcome)
    };
    cases.push(closing(30, Outcome::Flow));
    cases.push(closing(31, unknown));
    cases.push(
        Case::new(family, "§6.3", "a stray RST does not end a flow that goes on")
            .admitted(&first)
            .frame(segment(flag::RST), Outcome::Flow)
            .frame(segment(flag::ACK), Outcome::Flow)
            .step(Step::Wait(3600))
            .frame(segment(flag::ACK), Outcome::Flow),
    );
    cases.push(
        Case::new(family, "§6.3", "a flow outlives its grant")
            .admitted(&first)
            .frame(segment(flag::ACK), Outcome::Flow)
            .step(Step::Wait(3000))
            .step(Step::Sweep)
            .frame(segment(flag::ACK), Outcome::Flow),
    );
    let later = First {
        token: Grant { expires: NOW + 1200, ..grant }.token(&Transport::Tcp.destination(family), NOW + 900, 2),
        ..first.clone()
    };
    cases.push(
        Case::new(family, "§6.3", "a renewed grant opens the flow again")
            .admitted(&first)
            .step(Step::Wait(900))
            .admitted(&later)
            .frame(segment(flag::ACK), Outcome::Flow),
    );
}

fn udp(cases: &mut Vec<Case>, family: &Family) {
    let grant = Grant::new(family, 12);
    let first = |nonce| Transport::Udp.first(family, &grant, CLIENT_PORT, nonce);
    let datagram = |payload: &[u8]| Transport::Udp.later(family, CLIENT_PORT).payload(payload).frame();
    cases.push(
        Case::new(family, "§6.3", "a datagram of an admitted flow")
            .admitted(&first(1))
            .frame(datagram(b"more"), Outcome::Flow),
    );
    cases.push(
        Case::new(family, "§6.3", "an empty datagram of an admitted flow")
            .admitted(&first(1))
            .frame(datagram(b""), Outcome::Flow),
    );
    let idle = |seconds, outcome| {
        Case::new(family, "§6.3", &format!("a conversation idle for {seconds} s"))
            .admitted(&first(1))
            .step(Step::Wait(seconds))
            .frame(datagram(b"more"), outcome)
    };
    cases.push(idle(60, Outcome::Flow));
    cases.push(idle(61, Outcome::Drop(DropReason::NoToken)));
    cases.push(
        Case::new(family, "§4.1", "a later token of the flow is taken off too").admitted(&first(1)).admitted(&first(2)),
    );
    cases.push(
        Case::new(family, "§6.4", "a token twice on its own flow")
            .admitted(&first(1))
            .frame(first(1).frame(), Outcome::Drop(DropReason::Replayed)),
    );
    let looks = |change: fn(&mut [u8; 36])| first(2).with_token(change).frame();
    for (name, change) in [
        ("version", (|token| token[0] = 0x93) as fn(&mut [u8; 36])),
        ("suite", |token| token[0] = 0x1f),
        ("flags", |token| token[1] = 0xff),
        ("prefix length", |token| token[3] = 200),
    ] {
        let case = Case::new(family, "§6.3", &format!("payload that looks like a token but for its {name}"));
        cases.push(case.admitted(&first(1)).frame(looks(change), Outcome::Flow));
    }
    cases.push(
        Case::new(family, "§6.4", "a forged token on an admitted flow")
            .admitted(&first(1))
            .frame(looks(|token| token[30] ^= 1), Outcome::Drop(DropReason::BadTag)),
    );
    let from_53 = Packet::new(family.client, family.server).udp(53, 443).payload(b"answer").frame();
    cases.push(
        Case::new(family, "§6.3", "a datagram from port 53 needs a token like any other")
            .frame(from_53, Outcome::Drop(DropReason::NoToken)),
    );
    // RFC 9868: bytes after the datagram's end; a token there does not count.
    let mut short = first(1).frame();
    let at = wire::packet::Packet::parse(&short).transport + 4;
    short[at..at + 2].copy_from_slice(&13u16.to_be_bytes());
    cases.push(
        Case::new(family, "§4.1", "a token behind the datagram's end").frame(short, Outcome::Drop(DropReason::NoToken)),
    );
}
