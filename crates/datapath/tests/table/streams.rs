//! Tokens as the first bytes of a TCP stream (wire.md §4.6).

use super::{CLIENT_PORT, Case, First, Transport, syn_options};
use crate::world::{Family, Grant, families};
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp, flag};
use wire::tail::{BLOCK_LEN, block, stream_block};
use wire::{DropReason, Flags};

/// The sequence number of the SYNs: adding the block's length carries into the upper half.
const SEQUENCE: u32 = 0x0001_fff0;

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in families() {
        admitted(&mut cases, &family);
        connections(&mut cases, &family);
        refused(&mut cases, &family);
    }
    cases
}

fn syn(family: &Family, port: u16, sequence: u32) -> Packet {
    let options = syn_options();
    Packet::new(family.client, family.server).tcp(Tcp { sequence, options, ..Tcp::syn(port, 22) })
}

fn segment(family: &Family, sequence: u32, flags: u8) -> Packet {
    Packet::new(family.client, family.server).tcp(Tcp { sequence, ..Tcp::new(CLIENT_PORT, 22, flags) })
}

/// Returns a SYN with a token in its stream, and the SYN that the server gets.
fn streamed(family: &Family, port: u16, sequence: u32, token: &[u8; 36]) -> [Vec<u8>; 2] {
    let sent = syn(family, port, sequence).payload(&stream_block(token)).frame();
    [sent, syn(family, port, sequence.wrapping_add(BLOCK_LEN as u32)).frame()]
}

fn token(family: &Family, nonce: u32) -> [u8; 36] {
    Transport::Tcp.first(family, &Grant::new(family, 80), CLIENT_PORT, nonce).token
}

fn admitted(cases: &mut Vec<Case>, family: &Family) {
    for (sequence, name) in [
        (SEQUENCE, "the server gets the SYN behind its token"),
        (u32::MAX - 20, "a sequence number that wraps around at the token"),
        (0, "the first sequence number"),
    ] {
        let [sent, got] = streamed(family, CLIENT_PORT, sequence, &token(family, 1));
        cases.push(Case::new(family, "§4.6", name).becomes(sent, Outcome::Token, got));
    }
    let [mut sent, mut got] = streamed(family, CLIENT_PORT, SEQUENCE, &token(family, 1));
    super::tokens::make_partial(&mut sent);
    super::tokens::make_partial(&mut got);
    let name = "a checksum that is left to the network card stays so";
    cases.push(Case::new(family, "§4.6", name).becomes(sent, Outcome::Token, got));
    let [mut sent, mut got] = streamed(family, CLIENT_PORT, SEQUENCE, &token(family, 1));
    for frame in [&mut sent, &mut got] {
        let field = wire::packet::Packet::parse(frame).transport + 16;
        let checksum = u16::from_be_bytes([frame[field], frame[field + 1]]);
        let wrong = wire::checksum::fold(u32::from(checksum) + 0x0123);
        frame[field..field + 2].copy_from_slice(&wrong.to_be_bytes());
    }
    let name = "a wrong checksum stays as wrong as it was";
    cases.push(Case::new(family, "§4.6", name).becomes(sent, Outcome::Token, got));
}

/// The verifier follows the numbers that the server's stack sees.
fn connections(cases: &mut Vec<Case>, family: &Family) {
    let next = SEQUENCE + BLOCK_LEN as u32 + 1;
    let [sent, got] = streamed(family, CLIENT_PORT, SEQUENCE, &token(family, 1));
    let opened = |name: &str| {
        Case::new(family, "§4.6", name)
            .becomes(sent.clone(), Outcome::Token, got.clone())
            .frame(segment(family, next, flag::ACK).payload(b"hello").frame(), Outcome::Flow)
    };
    cases.push(
        opened("the connection goes on behind the token, to its end")
            .frame(segment(family, next + 5, flag::FIN | flag::ACK).frame(), Outcome::Flow)
            .frame(segment(family, next + 6, flag::ACK).frame(), Outcome::Flow),
    );
    let again = syn(family, CLIENT_PORT, SEQUENCE).frame();
    cases.push(
        Case::new(family, "§4.6.2", "a SYN that the stack sends again without data has no token")
            .becomes(sent.clone(), Outcome::Token, got.clone())
            .frame(again, Outcome::Drop(DropReason::NoToken))
            .frame(segment(family, next, flag::ACK).frame(), Outcome::Flow),
    );
    let data = stream_block(&token(family, 2));
    cases.push(
        opened("a block later in the stream is data")
            .frame(segment(family, next + 5, flag::ACK).payload(&data).frame(), Outcome::Flow),
    );
}

fn refused(cases: &mut Vec<Case>, family: &Family) {
    let mut dropped = |clause, name: &str, frame: Vec<u8>, reason| {
        cases.push(Case::new(family, clause, name).frame(frame, Outcome::Drop(reason)));
    };
    let good = token(family, 1);
    let with = |payload: &[u8]| syn(family, CLIENT_PORT, SEQUENCE).payload(payload).frame();
    let mut wrong = good;
    wrong[35] ^= 1;
    dropped("§3.7", "a wrong tag in a stream", with(&stream_block(&wrong)), DropReason::BadTag);
    let bearer = Grant { flags: Flags::PORT.with(Flags::BEARER), ..Grant::new(family, 80) };
    let bearer = Transport::Tcp.first(family, &bearer, CLIENT_PORT, 1).token;
    dropped("§3.2", "a BEARER grant in a stream", with(&stream_block(&bearer)), DropReason::Malformed);
    let behind = [&stream_block(&good)[..], b"GET /"].concat();
    dropped("§4.6.1", "a block with data behind it", with(&behind), DropReason::NoToken);
    let before = [&b"x"[..], &stream_block(&good)].concat();
    dropped("§4.6.1", "a block with data in front of it", with(&before), DropReason::NoToken);
    dropped("§4.6.1", "half a block", with(&stream_block(&good)[..20]), DropReason::NoToken);
    let both = [stream_block(&good), block(&wrong)].concat();
    dropped("§4.1", "a stream's block in front of a tail's", with(&both), DropReason::BadTag);
    let datagram = Packet::new(family.client, family.server).udp(CLIENT_PORT, 443).payload(&stream_block(&good));
    dropped("§4.6.1", "a stream's block in a datagram", datagram.frame(), DropReason::NoToken);
    let answer = segment(family, SEQUENCE, flag::SYN | flag::ACK).payload(&stream_block(&good));
    dropped("§4.6.1", "a stream's block in a SYN with ACK", answer.frame(), DropReason::NoFlow);

    let replayed = Outcome::Drop(DropReason::Replayed);
    let [sent, got] = streamed(family, CLIENT_PORT, SEQUENCE, &good);
    let [elsewhere, _] = streamed(family, CLIENT_PORT + 1, SEQUENCE, &good);
    let tail = First { token: good, ..Transport::Tcp.first(family, &Grant::new(family, 80), CLIENT_PORT + 2, 1) };
    cases.push(
        Case::new(family, "§6.4", "copies of a stream's token, in a stream and in a tail")
            .becomes(sent.clone(), Outcome::Token, got)
            .frame(sent, replayed)
            .frame(elsewhere, replayed)
            .frame(tail.frame(), replayed),
    );
}
