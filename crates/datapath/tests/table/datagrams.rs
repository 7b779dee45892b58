//! Segments that travel as datagrams (wire.md §4.8). A verifier at XDP does not take them.

use super::{CLIENT_PORT, Case, First, Transport};
use crate::world::{Family, Grant, NOW, families};
use datapath::hook::Hook;
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp, flag};
use wire::packet::{TCP, UDP};
use wire::tail::{block, tcp_in_udp_block};
use wire::{Destination, DropReason, reorder};

/// Returns the rows for a verifier at this hook that is configured to take the carrier.
pub fn cases(hook: Hook) -> Vec<Case> {
    let mut cases = Vec::new();
    for family in families() {
        if hook == Hook::Xdp {
            let sent = as_datagram(&opening(&family, CLIENT_PORT, 1).0);
            let case = Case::new(&family, "§4.8.5", "not taken at XDP");
            // UDP is not protected at this port.
            cases.push(case.frame(sent, Outcome::NotOurs));
            continue;
        }
        admitted(&mut cases, &family);
        refused(&mut cases, &family);
        beside_datagrams(&mut cases, &family);
    }
    cases
}

fn as_datagram(segment: &[u8]) -> Vec<u8> {
    let mut datagram = segment.to_vec();
    reorder::to_udp(&mut datagram, &wire::packet::Packet::parse(segment)).expect("a segment");
    datagram
}

/// Returns a SYN with a block of this carrier, the same SYN without it, and the token.
fn opening(family: &Family, port: u16, nonce: u32) -> (Vec<u8>, Vec<u8>, [u8; 36]) {
    let First { packet, token, .. } = Transport::Tcp.first(family, &Grant::new(family, 80), port, nonce);
    (packet.clone().payload(&tcp_in_udp_block(&token)).frame(), packet.frame(), token)
}

fn later(family: &Family, flags: u8, payload: &[u8]) -> Vec<u8> {
    let header = Tcp { acknowledgement: 1, ..Tcp::new(CLIENT_PORT, 22, flags) };
    Packet::new(family.client, family.server).tcp(header).payload(payload).frame()
}

fn admitted(cases: &mut Vec<Case>, family: &Family) {
    let (syn, plain, token) = opening(family, CLIENT_PORT, 1);
    let data = later(family, flag::PSH | flag::ACK, b"SSH-2.0-x\r\n");
    let end = later(family, flag::FIN | flag::ACK, b"");
    let begun = |name: &str| {
        let case = Case::new(family, "§4.8", name);
        case.becomes(as_datagram(&syn), Outcome::Token, plain.clone())
    };
    cases.push(
        begun("a connection whose segments are datagrams")
            .becomes(as_datagram(&data), Outcome::Flow, data.clone())
            .becomes(as_datagram(&end), Outcome::Flow, end),
    );
    let no_flow = Outcome::Drop(DropReason::NoFlow);
    cases.push(begun("a segment that came as such is of no such flow").frame(data.clone(), no_flow));
    let replayed = Outcome::Drop(DropReason::Replayed);
    let tail = First { token, ..Transport::Tcp.first(family, &Grant::new(family, 80), CLIENT_PORT, 1) };
    cases.push(
        begun("copies of a token").becomes(as_datagram(&syn), replayed, syn.clone()).frame(tail.frame(), replayed),
    );
    let mut padded = as_datagram(&syn);
    padded.extend([0; 6]);
    cases.push(Case::new(family, "§4.5", "bytes of the link layer").becomes(padded, Outcome::Token, plain.clone()));
    let with_data = |tail: &[u8]| {
        let First { packet, .. } = Transport::Tcp.first(family, &Grant::new(family, 80), CLIENT_PORT, 1);
        packet.payload(&[b"GET /", tail].concat()).frame()
    };
    let sent = as_datagram(&with_data(&tcp_in_udp_block(&token)));
    cases.push(Case::new(family, "§4.8.1", "a SYN with data").becomes(sent, Outcome::Token, with_data(&[])));
    // On each side, the connection that the client begins is another one.
    let other = Transport::Tcp.first(family, &Grant::new(family, 80), CLIENT_PORT, 2);
    cases.push(
        begun("both sides at once")
            .admitted(&other)
            .becomes(as_datagram(&data), Outcome::Flow, data.clone())
            .frame(data.clone(), Outcome::Flow),
    );
    cases.push(
        begun("no segment of the connection")
            .frame(urgent(&as_datagram(&data)), Outcome::Drop(DropReason::NoToken))
            .frame(without_checksum(&as_datagram(&data)), Outcome::Drop(DropReason::NoToken))
            .frame(as_datagram(&later(family, flag::SYN, b"")), Outcome::Drop(DropReason::NoToken)),
    );
}

fn refused(cases: &mut Vec<Case>, family: &Family) {
    let (syn, _, token) = opening(family, CLIENT_PORT, 1);
    let no_token = Outcome::Drop(DropReason::NoToken);
    let mut dropped = |clause, name: &str, frame: Vec<u8>| {
        cases.push(Case::new(family, clause, name).frame(frame, no_token));
    };
    let First { packet, .. } = Transport::Tcp.first(family, &Grant::new(family, 80), CLIENT_PORT, 1);
    let with = |payload: &[u8]| packet.clone().payload(payload).frame();
    dropped("§4.8.4", "a SYN without a block", as_datagram(&with(&[])));
    dropped("§4.8.1", "the block of another carrier", as_datagram(&with(&block(&token))));
    let behind = [&tcp_in_udp_block(&token)[..], b"x"].concat();
    dropped("§4.8.1", "data behind the block", as_datagram(&with(&behind)));
    dropped("§4.8.1", "the block in a SYN that came as such", syn.clone());
    dropped("§4.8.4", "a segment of no flow", as_datagram(&later(family, flag::ACK, b"data")));
    let datagram = Packet::new(family.client, family.server).udp(CLIENT_PORT, 22).payload(b"hello");
    dropped("§4.8.4", "a datagram to the port of a TCP service", datagram.frame());
    dropped("§4.8.4", "an empty one", Packet::new(family.client, family.server).udp(CLIENT_PORT, 22).frame());
    dropped("§4.8.2", "a SYN without a checksum", without_checksum(&as_datagram(&syn)));
    dropped("§4.8.2", "a SYN with the urgent flag", urgent(&as_datagram(&syn)));
    let mut wrong = token;
    wrong[35] ^= 1;
    let wrong = with(&tcp_in_udp_block(&wrong));
    let case = Case::new(family, "§3.7", "a wrong tag");
    cases.push(case.becomes(as_datagram(&wrong), Outcome::Drop(DropReason::BadTag), wrong));
    // The token is for TCP. Another protocol's token is not.
    let to = Destination { address: family.server, protocol: UDP, port: 22 };
    let of_udp = with(&tcp_in_udp_block(&Grant::new(family, 80).token(&to, NOW, 1)));
    let case = Case::new(family, "§4.8.3", "a token for datagrams");
    cases.push(case.becomes(as_datagram(&of_udp), Outcome::Drop(DropReason::BadTag), of_udp));
    let answer = later(family, flag::SYN | flag::ACK, &tcp_in_udp_block(&token));
    let case = Case::new(family, "§4.8.1", "a block in a SYN with ACK");
    cases.push(case.frame(as_datagram(&answer), no_token));
}

/// Where every service is protected, the same ports may carry datagrams.
fn beside_datagrams(cases: &mut Vec<Case>, family: &Family) {
    let [tcp, udp] = [TCP, UDP].map(|protocol| Destination { address: family.fortress, protocol, port: 22 });
    let grant = Grant { handle: 81, ..Grant::new(family, 81) };
    let packet = Packet::new(family.client, family.fortress);
    let (of_tcp, of_udp) = (grant.token(&tcp, NOW, 1), grant.token(&udp, NOW, 2));
    let plain = packet.clone().tcp(Tcp::syn(CLIENT_PORT, 22));
    let syn = as_datagram(&plain.clone().payload(&tcp_in_udp_block(&of_tcp)).frame());
    let first = First { packet: packet.clone().udp(CLIENT_PORT, 22), payload: b"hello".to_vec(), token: of_udp };
    let datagram = packet.udp(CLIENT_PORT, 22).payload(b"hello").frame();
    let no_token = Outcome::Drop(DropReason::NoToken);
    cases.push(
        Case::new(family, "§4.8.4", "the ports of a flow of datagrams are that flow's")
            .admitted(&first)
            .frame(syn.clone(), no_token)
            .frame(datagram.clone(), Outcome::Flow),
    );
    cases.push(
        Case::new(family, "§4.8.4", "the ports of a connection in datagrams are the connection's")
            .becomes(syn, Outcome::Token, plain.frame())
            .frame(first.frame(), no_token)
            .frame(datagram, no_token),
    );
}

/// Sets the urgent flag in a datagram, and corrects its checksum.
fn urgent(datagram: &[u8]) -> Vec<u8> {
    let mut changed = datagram.to_vec();
    let at = wire::packet::Packet::parse(datagram).transport;
    let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let before = word(&changed, at + 8);
    changed[at + 9] |= wire::packet::tcp_flags::URG;
    let sum = wire::checksum::replace(word(&changed, at + 6), before, word(&changed, at + 8));
    changed[at + 6..at + 8].copy_from_slice(&sum.to_be_bytes());
    changed
}

fn without_checksum(datagram: &[u8]) -> Vec<u8> {
    let mut changed = datagram.to_vec();
    let at = wire::packet::Packet::parse(datagram).transport;
    changed[at + 6..at + 8].fill(0);
    changed
}
