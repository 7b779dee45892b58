//! Packets that come out of a sealed tunnel, and packets that would have to (wire.md §6.11).

use super::{CLIENT_PORT, Case, First, Step, TRANSPORTS, Transport};
use crate::world::{Family, Grant, families};
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp, flag};
use wire::tail::{fast_open_block, fast_open_option, stream_block};
use wire::{DropReason, Flags, Holder};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in families() {
        for transport in TRANSPORTS {
            sides(&mut cases, &family, transport);
            ends(&mut cases, &family, transport);
        }
        strangers(&mut cases, &family);
        connections(&mut cases, &family);
        fragments(&mut cases, &family);
        errors(&mut cases, &family);
    }
    cases
}

/// Returns a grant that admits inside a tunnel only.
fn sealed(family: &Family, handle: u64) -> Grant {
    let grant = Grant::new(family, handle);
    Grant { flags: grant.flags.with(Flags::SEALED), ..grant }
}

/// A grant and a flow are of one side.
fn sides(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let grants = [sealed(family, 90), Grant::new(family, 91)];
    let first = |grant: &Grant, nonce| transport.first(family, grant, CLIENT_PORT, nonce);
    let [of_sealed, plain] = [first(&grants[0], 1), first(&grants[1], 1)];
    let later = || transport.later(family, CLIENT_PORT).payload(b"data");
    let unsealed = Outcome::Drop(DropReason::Unsealed);
    let unknown = Outcome::Drop(transport.unknown());
    let case = |clause, what: &str| Case::new(family, clause, &format!("{}: {what}", transport.name()));
    cases.push(
        case("§6.11.3", "a sealed grant admits inside, and outside its token isn't even used up")
            .frame(of_sealed.frame(), unsealed)
            .admitted_inside(&of_sealed)
            .inside(later().ip(), Outcome::Flow)
            .frame(of_sealed.frame(), unsealed),
    );
    cases.push(
        case("§6.11.3", "a grant without SEALED admits inside, too, and once on both sides")
            .admitted_inside(&plain)
            .inside(later().ip(), Outcome::Flow)
            .frame(plain.frame(), Outcome::Drop(DropReason::Replayed)),
    );
    for (what, first) in [("a sealed grant's", &of_sealed), ("any", &plain)] {
        cases.push(
            case("§6.11.2", &format!("nobody outside rides on {what} flow of the inside"))
                .admitted_inside(first)
                .frame(later().frame(), unknown)
                .inside(later().ip(), Outcome::Flow)
                .frame(later().frame(), unknown),
        );
    }
    cases.push(
        case("§6.11.2", "nobody inside rides on a flow of the outside")
            .admitted(&plain)
            .inside(later().ip(), unknown)
            .frame(later().frame(), Outcome::Flow),
    );
    let again = first(&grants[1], 2);
    cases.push(
        case("§6.11.2", "the same ends have a flow on each side")
            .admitted(&plain)
            .admitted_inside(&again)
            .inside(later().ip(), Outcome::Flow)
            .frame(later().frame(), Outcome::Flow),
    );
    let forged = of_sealed.with_token(|token| token[35] ^= 1);
    cases.push(
        case("§6.11.3", "a forged token is told before the treatment")
            .frame(forged.frame(), Outcome::Drop(DropReason::BadTag))
            .inside(forged.frame().split_off(14), Outcome::Drop(DropReason::BadTag)),
    );
}

/// Revocation, the end of a session and replay hold inside, too.
fn ends(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let first = transport.first(family, &sealed(family, 92), CLIENT_PORT, 1);
    let later = transport.later(family, CLIENT_PORT).ip();
    let packet = first.frame().split_off(14);
    let dropped = Outcome::Drop;
    let case = |clause, what: &str| Case::new(family, clause, &format!("{}: {what}", transport.name()));
    cases.push(
        case("§6.4.4", "a revoked grant's flow ends inside, and it opens no other")
            .admitted_inside(&first)
            .step(Step::Revoke(92))
            .step(Step::Sweep)
            .inside(later.clone(), dropped(transport.unknown()))
            .inside(packet.clone(), dropped(DropReason::Revoked)),
    );
    let holder = Holder::new(5, 3).expect("small");
    let held = Grant { flags: sealed(family, 0).flags, ..Grant::of(family, holder, 7) };
    let of_session = transport.first(family, &held, CLIENT_PORT, 1);
    cases.push(
        case("§6.4.4", "flows of the inside end with their session")
            .admitted_inside(&of_session)
            .step(Step::End(holder))
            .step(Step::Sweep)
            .inside(later, dropped(transport.unknown())),
    );
    cases.push(
        case("§6.4.1", "a token admits once inside")
            .admitted_inside(&first)
            .inside(packet, dropped(DropReason::Replayed)),
    );
}

/// Nothing is open inside: the tunnel leads to what is protected, and to nothing else.
fn strangers(cases: &mut Vec<Case>, family: &Family) {
    let no_token = Outcome::Drop(DropReason::NoToken);
    let to = |address| Packet::new(family.client, address);
    let rows = [
        ("a SYN to an open host", to(family.open).tcp(Tcp::syn(CLIENT_PORT, 22)).ip(), no_token),
        ("a segment to an open host", to(family.open).tcp(Tcp::new(CLIENT_PORT, 22, flag::ACK)).ip(), no_token),
        ("a datagram to an open port", to(family.server).udp(CLIENT_PORT, 5353).ip(), no_token),
        ("a SYN without a token", to(family.server).tcp(Tcp::syn(CLIENT_PORT, 22)).ip(), no_token),
        ("another protocol", to(family.fortress).raw(47).payload(&[0; 8]).ip(), no_token),
        ("an echo request to an open host", to(family.open).icmp(echo(family), 0, [0; 4]).ip(), no_token),
        ("no IP version", vec![0x20; 60], no_token),
    ];
    for (what, packet, outcome) in rows.into_iter().take(6) {
        cases.push(Case::new(family, "§6.11.1", &format!("{what} inside")).inside(packet, outcome));
    }
    if family.server.is_ipv6() {
        let advertised = to(family.server).hops(255).icmp(136, 0, [0; 4]).payload(&[0; 20]).ip();
        cases.push(Case::new(family, "§6.11.1", "neighbour discovery inside").inside(advertised, no_token));
    }
    let mut short = to(family.server).tcp(Tcp::syn(CLIENT_PORT, 22)).ip();
    short.truncate(short.len() - 8);
    let malformed = Outcome::Drop(DropReason::Malformed);
    cases.push(Case::new(family, "§6.5", "a packet cut short inside").inside(short, malformed));
    let first = Transport::Tcp.first(family, &Grant::new(family, 93), CLIENT_PORT, 1);
    let streamed = First { payload: stream_block(&first.token).to_vec(), ..first };
    let case = Case::new(family, "§6.11.1", "a token in a stream inside");
    cases.push(case.inside(streamed.plain().split_off(14), no_token));
    let token = Transport::Tcp.first(family, &Grant::new(family, 93), CLIENT_PORT, 1).token;
    let header = Tcp { options: fast_open_option(&token).to_vec(), ..Tcp::syn(CLIENT_PORT, 22) };
    let opened = to(family.server).tcp(header).payload(&fast_open_block(&token)).ip();
    cases.push(Case::new(family, "§6.11.1", "a token behind an option inside").inside(opened, no_token));
}

fn echo(family: &Family) -> u8 {
    if family.server.is_ipv6() { 128 } else { 8 }
}

/// A connection ends on its own side alone.
fn connections(cases: &mut Vec<Case>, family: &Family) {
    let [inside, outside] =
        [sealed(family, 94), Grant::new(family, 95)].map(|grant| Transport::Tcp.first(family, &grant, CLIENT_PORT, 1));
    let segment = |flags, sequence| {
        Packet::new(family.client, family.server).tcp(Tcp { sequence, ..Tcp::new(CLIENT_PORT, 22, flags) })
    };
    let next = 1 + sequence_of(&inside);
    cases.push(
        Case::new(family, "§6.11.2", "a RST outside ends no connection inside")
            .admitted_inside(&inside)
            .inside(segment(flag::ACK, next).ip(), Outcome::Flow)
            .frame(segment(flag::RST, next).frame(), Outcome::Drop(DropReason::NoFlow))
            .step(Step::Wait(60))
            .inside(segment(flag::ACK, next).ip(), Outcome::Flow),
    );
    cases.push(
        Case::new(family, "§6.3.3", "a RST inside ends the connection inside alone")
            .admitted(&outside)
            .admitted_inside(&inside)
            .frame(segment(flag::ACK, next).frame(), Outcome::Flow)
            .inside(segment(flag::ACK, next).ip(), Outcome::Flow)
            .inside(segment(flag::RST, next).ip(), Outcome::Flow)
            .step(Step::Wait(60))
            .frame(segment(flag::ACK, next).frame(), Outcome::Flow)
            .inside(segment(flag::ACK, next).ip(), Outcome::Drop(DropReason::NoFlow)),
    );
}

fn sequence_of(first: &First) -> u32 {
    wire::packet::Packet::parse(&first.plain()).sequence
}

fn fragments(cases: &mut Vec<Case>, family: &Family) {
    let first = Transport::Udp.first(family, &sealed(family, 96), CLIENT_PORT, 1);
    let parts = |port, id| {
        let packet = Packet::new(family.client, family.server).udp(CLIENT_PORT, port).identification(id);
        packet.payload(&[5; 3000]).fragments(1400)
    };
    let [whole, open] = [parts(443, 7), parts(5353, 8)];
    let ip = |frame: &Vec<u8>| frame[14..].to_vec();
    cases.push(
        Case::new(family, "§6.5.2", "fragments of a flow inside pass inside")
            .admitted_inside(&first)
            .frame(whole[0].clone(), Outcome::Drop(DropReason::Fragment))
            .inside(ip(&whole[0]), Outcome::Flow)
            .frame(whole[1].clone(), Outcome::Drop(DropReason::Fragment))
            .inside(ip(&whole[1]), Outcome::Flow),
    );
    cases.push(
        Case::new(family, "§6.11.1", "fragments to an open port pass outside only")
            .inside(ip(&open[0]), Outcome::Drop(DropReason::NoToken))
            .frame(open[1].clone(), Outcome::Drop(DropReason::Fragment))
            .frame(open[0].clone(), Outcome::NotOurs)
            .frame(open[1].clone(), Outcome::NotOurs)
            .inside(ip(&open[1]), Outcome::Drop(DropReason::NoToken)),
    );
}

/// An ICMP error passes on the side of the flow that it is about.
fn errors(cases: &mut Vec<Case>, family: &Family) {
    let first = Transport::Udp.first(family, &sealed(family, 97), CLIENT_PORT, 1);
    let about = |server, port| {
        let quoted = Packet::new(server, family.client).udp(port, CLIENT_PORT).ip();
        let kind = if family.server.is_ipv6() { 1 } else { 3 };
        Packet::new(family.client, family.server).icmp(kind, 0, [0; 4]).payload(&quoted)
    };
    cases.push(
        Case::new(family, "§6.11.2", "an error about a flow inside passes inside only")
            .admitted_inside(&first)
            .frame(about(family.server, 443).frame(), Outcome::Drop(DropReason::NoFlow))
            .inside(about(family.server, 443).ip(), Outcome::IcmpError),
    );
    cases.push(
        Case::new(family, "§6.11.1", "an error about what isn't protected is dropped inside")
            .inside(about(family.open, 443).ip(), Outcome::Drop(DropReason::NoToken)),
    );
}
