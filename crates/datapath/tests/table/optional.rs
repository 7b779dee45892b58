//! Optional receivers, which everybody may reach: wire.md §6.12.

use super::{CLIENT_PORT, Case, First, Step, syn_options};
use crate::world::{Family, Grant, NOW, OPTIONAL, families};
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp, flag};
use wire::packet::TCP;
use wire::tail::{BLOCK_LEN, block, stream_block};
use wire::{Destination, DropReason};

const SEQUENCE: u32 = 7000;

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in families() {
        strangers(&mut cases, &family);
        tokens(&mut cases, &family);
        names(&mut cases, &family);
    }
    cases
}

fn to(family: &Family) -> Destination {
    Destination { address: family.neighbour, protocol: TCP, port: OPTIONAL }
}

fn syn(family: &Family) -> Packet {
    let tcp = Tcp { sequence: SEQUENCE, options: syn_options(), ..Tcp::syn(CLIENT_PORT, OPTIONAL) };
    Packet::new(family.client, family.neighbour).tcp(tcp)
}

fn segment(family: &Family, sequence: u32, flags: u8) -> Packet {
    Packet::new(family.client, family.neighbour).tcp(Tcp { sequence, ..Tcp::new(CLIENT_PORT, OPTIONAL, flags) })
}

fn first(family: &Family, nonce: u32) -> First {
    let token = Grant::new(family, 90).token(&to(family), NOW, nonce);
    First { packet: syn(family), payload: Vec::new(), token }
}

fn dropped(reason: DropReason) -> Outcome {
    Outcome::Drop(reason)
}

fn strangers(cases: &mut Vec<Case>, family: &Family) {
    let case = |name: &str| Case::new(family, "§6.12", name);
    let name = "a connection without a token passes whole, and no flow is kept";
    cases.push(
        case(name)
            .frame(syn(family).frame(), Outcome::Stranger)
            .frame(segment(family, SEQUENCE + 1, flag::ACK).payload(b"hello").frame(), Outcome::Stranger)
            .frame(segment(family, SEQUENCE + 6, flag::FIN | flag::ACK).frame(), Outcome::Stranger)
            .frame(segment(family, SEQUENCE + 7, flag::RST).frame(), Outcome::Stranger)
            .frame(syn(family).payload(b"early data").frame(), Outcome::Stranger),
    );
    let elsewhere = |what: &str, packet: Packet, reason| case(what).frame(packet.frame(), dropped(reason));
    let at = |address, port| Packet::new(family.client, address).tcp(Tcp::syn(CLIENT_PORT, port));
    cases.push(elsewhere("another port of the address", at(family.neighbour, OPTIONAL + 1), DropReason::NoToken));
    cases.push(elsewhere("the port of another address", at(family.fortress, OPTIONAL), DropReason::NoToken));
    let datagram = Packet::new(family.client, family.fortress).udp(CLIENT_PORT, OPTIONAL);
    cases.push(elsewhere("a datagram", datagram, DropReason::NoToken));
    let fragment = syn(family).identification(9).fragments(8).swap_remove(0);
    cases.push(case("a SYN in fragments").frame(fragment, dropped(DropReason::Fragment)));
    if family.server.is_ipv6() {
        let whole = [0, 0, 0, 0, 0, 9];
        for (name, kind, body) in [("fragment", 44, &whole[..]), ("destination", 60, &[1, 4, 0, 0, 0, 0][..])] {
            let hidden = |packet: Packet| packet.extension(kind, body).frame();
            cases.push(
                case(&format!("a stranger's packets with a {name} header"))
                    .frame(
                        hidden(syn(family)),
                        dropped(if kind == 44 { DropReason::Fragment } else { DropReason::NoToken }),
                    )
                    .frame(
                        hidden(segment(family, SEQUENCE + 1, flag::ACK)),
                        dropped(if kind == 44 { DropReason::Fragment } else { DropReason::NoFlow }),
                    ),
            );
        }
    }
    let back = Packet::new(family.neighbour, family.client).tcp(Tcp::new(OPTIONAL, CLIENT_PORT, flag::ACK));
    let error = |back: Packet| {
        let packet = Packet::new(family.stranger, family.neighbour);
        let too_big = if family.server.is_ipv6() { packet.icmp(2, 0, [0; 4]) } else { packet.icmp(3, 4, [0; 4]) };
        too_big.payload(&back.ip()).frame()
    };
    cases.push(case("an error about a stranger's connection").frame(error(back), Outcome::Stranger));
    let other = Packet::new(family.neighbour, family.client).tcp(Tcp::new(OPTIONAL + 1, CLIENT_PORT, flag::ACK));
    cases.push(case("an error about another connection").frame(error(other), dropped(DropReason::NoFlow)));
    let inside = case("out of a sealed tunnel, everybody needs a token");
    cases.push(inside.inside(syn(family).ip(), dropped(DropReason::NoToken)));
}

/// A token that is there must be right, however it came.
fn tokens(cases: &mut Vec<Case>, family: &Family) {
    let case = |name: &str| Case::new(family, "§6.12", name);
    let known = first(family, 1);
    let next = segment(family, SEQUENCE + 1, flag::ACK).payload(b"hello").frame();
    cases.push(case("whoever brings a token is known").admitted(&known).frame(next.clone(), Outcome::Flow));
    let refused = |name: &str, frame, reason| case(name).frame(frame, dropped(reason));
    let forged = known.with_token(|token| token[35] ^= 1).frame();
    cases.push(refused("a forged token is dropped", forged, DropReason::BadTag));
    let broken = known.with_token(|token| token[0] = 0).frame();
    cases.push(refused("a token of no form is dropped", broken, DropReason::Malformed));
    cases.push(
        case("a copied token is dropped, from another port, too")
            .admitted(&known)
            .frame(known.frame(), dropped(DropReason::Replayed)),
    );
    let revoked = case("a revoked person is dropped").step(Step::Revoke(90));
    cases.push(revoked.frame(known.frame(), dropped(DropReason::Revoked)));
    let token = known.token;
    let streamed = syn(family).payload(&stream_block(&token)).frame();
    let tcp = Tcp { sequence: SEQUENCE + BLOCK_LEN as u32, options: syn_options(), ..Tcp::syn(CLIENT_PORT, OPTIONAL) };
    let got = Packet::new(family.client, family.neighbour).tcp(tcp).frame();
    cases.push(case("a token in the stream").becomes(streamed, Outcome::Token, got));
    let mut forged = token;
    forged[35] ^= 1;
    let streamed = syn(family).payload(&stream_block(&forged)).frame();
    cases.push(refused("a forged token in the stream never reaches the application", streamed, DropReason::BadTag));
    let late = segment(family, SEQUENCE + 1, flag::ACK).payload(&block(&token)).frame();
    cases.push(case("a block in a later segment is data").frame(late, Outcome::Stranger));
}

/// Nobody gets another's name, and nobody can take a name away.
fn names(cases: &mut Vec<Case>, family: &Family) {
    let case = |name: &str| Case::new(family, "§6.12", name);
    let open = |name: &str| {
        let next = segment(family, SEQUENCE + 1, flag::ACK).payload(b"hello").frame();
        case(name).admitted(&first(family, 1)).frame(next, Outcome::Flow)
    };
    let stranger = || syn(family).frame();
    let taken = dropped(DropReason::NoToken);
    cases.push(
        open("a SYN without a token does not get in beside a flow, which goes on")
            .frame(stranger(), taken)
            .frame(segment(family, SEQUENCE + 6, flag::ACK).frame(), Outcome::Flow),
    );
    cases.push(
        case("nor beside a flow of which only the SYN came").admitted(&first(family, 1)).frame(stranger(), taken),
    );
    let end = || segment(family, SEQUENCE + 6, flag::FIN | flag::ACK).frame();
    cases.push(
        open("when the flow has ended and is forgotten, its port is free")
            .frame(end(), Outcome::Flow)
            .step(Step::Wait(30))
            .frame(stranger(), taken)
            .step(Step::Wait(1))
            .frame(stranger(), Outcome::Stranger),
    );
    cases.push(
        open("a revoked person's connection loses its name")
            .step(Step::Revoke(90))
            .step(Step::Sweep)
            .frame(segment(family, SEQUENCE + 6, flag::ACK).frame(), Outcome::Stranger)
            .frame(first(family, 2).frame(), dropped(DropReason::Revoked)),
    );
    let other = Packet::new(family.stranger, family.neighbour)
        .tcp(Tcp { options: syn_options(), ..Tcp::syn(CLIENT_PORT, OPTIONAL) });
    cases.push(open("the same port of another address").frame(other.frame(), Outcome::Stranger));
}
