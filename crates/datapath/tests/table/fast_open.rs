//! Tokens in SYNs to whose header the sender has added a Fast Open option (wire.md §4.7).

use super::{CLIENT_PORT, Case, First, Transport, syn_options};
use crate::world::{Family, Grant, families};
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp, flag};
use wire::tail::{block, fast_open_block, fast_open_option, stream_block};
use wire::{DropReason, Flags};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in families() {
        admitted(&mut cases, &family);
        refused(&mut cases, &family);
    }
    cases
}

fn syn(family: &Family, port: u16, options: Vec<u8>) -> Packet {
    Packet::new(family.client, family.server).tcp(Tcp { options, ..Tcp::syn(port, 22) })
}

/// Returns a SYN with these options, a token and the option that goes with it.
fn opened(family: &Family, port: u16, mut options: Vec<u8>, token: &[u8; 36]) -> Vec<u8> {
    options.extend(fast_open_option(token));
    syn(family, port, options).payload(&fast_open_block(token)).frame()
}

fn token(family: &Family, nonce: u32) -> [u8; 36] {
    Transport::Tcp.first(family, &Grant::new(family, 80), CLIENT_PORT, nonce).token
}

fn admitted(cases: &mut Vec<Case>, family: &Family) {
    let token = token(family, 1);
    // The client's own Fast Open option, which asks for a cookie, stays.
    let asks = [&syn_options()[..], &[34, 2, 1, 1]].concat();
    for (options, name) in [
        (syn_options(), "the server gets the SYN that the client sent"),
        (Vec::new(), "a SYN without options of its own"),
        (vec![1; 28], "the longest header"),
        (asks, "a SYN that asks for a cookie"),
    ] {
        let (sent, got) =
            (opened(family, CLIENT_PORT, options.clone(), &token), syn(family, CLIENT_PORT, options).frame());
        cases.push(Case::new(family, "§4.7", name).becomes(sent, Outcome::Token, got));
    }
    let [sent, got] =
        [opened(family, CLIENT_PORT, syn_options(), &token), syn(family, CLIENT_PORT, syn_options()).frame()];
    let [mut partial, mut partial_got] = [sent.clone(), got.clone()];
    super::tokens::make_partial(&mut partial);
    super::tokens::make_partial(&mut partial_got);
    let name = "a checksum that is left to the network card stays so";
    cases.push(Case::new(family, "§4.7", name).becomes(partial, Outcome::Token, partial_got));
    let [mut wrong, mut wrong_got] = [sent.clone(), got.clone()];
    for frame in [&mut wrong, &mut wrong_got] {
        let field = wire::packet::Packet::parse(frame).transport + 16;
        let checksum = u16::from_be_bytes([frame[field], frame[field + 1]]);
        let changed = wire::checksum::fold(u32::from(checksum) + 0x0123);
        frame[field..field + 2].copy_from_slice(&changed.to_be_bytes());
    }
    let name = "a wrong checksum stays as wrong as it was";
    cases.push(Case::new(family, "§4.7", name).becomes(wrong, Outcome::Token, wrong_got));
    // Only the form of the option counts: a box may have replaced the cookie.
    let mut other = sent.clone();
    let cookie = other.len() - 40 - 10;
    other[cookie..cookie + 8].fill(0xa5);
    let got_other = syn(family, CLIENT_PORT, syn_options()).frame();
    let fixed = refit(&other);
    cases.push(Case::new(family, "§4.7.2", "another cookie").becomes(fixed, Outcome::Token, got_other));
}

/// Gives a frame the checksum that fits its bytes.
fn refit(frame: &[u8]) -> Vec<u8> {
    let packet = wire::packet::Packet::parse(frame);
    let mut fitted = frame.to_vec();
    let field = packet.transport + 16;
    fitted[field..field + 2].fill(0);
    let length = (packet.end - packet.transport) as u16;
    let sum = wire::checksum::pseudo_header(&packet, length)
        + wire::checksum::sum(&fitted[packet.transport..packet.end], false);
    fitted[field..field + 2].copy_from_slice(&(!wire::checksum::fold(sum)).to_be_bytes());
    fitted
}

fn refused(cases: &mut Vec<Case>, family: &Family) {
    let mut dropped = |clause, name: &str, frame: Vec<u8>, reason| {
        cases.push(Case::new(family, clause, name).frame(frame, Outcome::Drop(reason)));
    };
    let good = token(family, 1);
    let block_of_option = fast_open_block(&good);
    let mut wrong = good;
    wrong[35] ^= 1;
    let with = |options: Vec<u8>, payload: &[u8]| syn(family, CLIENT_PORT, options).payload(payload).frame();
    let option = fast_open_option(&good).to_vec();
    let behind = |last: &[u8]| [&syn_options()[..], last].concat();
    dropped("§3.7", "a wrong tag", opened(family, CLIENT_PORT, syn_options(), &wrong), DropReason::BadTag);
    let bearer = Grant { flags: Flags::PORT.with(Flags::BEARER), ..Grant::new(family, 80) };
    let bearer = Transport::Tcp.first(family, &bearer, CLIENT_PORT, 1).token;
    dropped("§3.2", "a BEARER grant", opened(family, CLIENT_PORT, syn_options(), &bearer), DropReason::Malformed);
    let no_token = DropReason::NoToken;
    dropped("§4.7.2", "the block without the option", with(syn_options(), &block_of_option), no_token);
    dropped("§4.7.2", "no options at all", with(Vec::new(), &block_of_option), no_token);
    let cut = [&option[..10], &[1, 1, 1, 1, 1, 1]].concat();
    dropped("§4.7.2", "an option that is not the last one", with(behind(&cut), &block_of_option), no_token);
    dropped("§4.7.2", "an option that a box has blanked", with(behind(&[1; 12]), &block_of_option), no_token);
    let experimental = [&[254], &option[1..]].concat();
    dropped("§4.7.2", "an option of another kind", with(behind(&experimental), &block_of_option), no_token);
    let longer = [&[34, 12], &option[2..10], &[1, 2]].concat();
    dropped("§4.7.2", "an option of another length", with(behind(&longer), &block_of_option), no_token);
    let with_data = [&block_of_option[..], b"GET /"].concat();
    dropped("§4.7.2", "a block with data behind it", with(behind(&option), &with_data), no_token);
    let after_data = [&b"x"[..], &block_of_option].concat();
    dropped("§4.7.2", "a block with data in front of it", with(behind(&option), &after_data), no_token);
    let datagram = Packet::new(family.client, family.server).udp(CLIENT_PORT, 443).payload(&block_of_option);
    dropped("§4.7.2", "a block in a datagram", datagram.frame(), no_token);
    let answer = Tcp { options: behind(&option), ..Tcp::new(CLIENT_PORT, 22, flag::SYN | flag::ACK) };
    let answer = Packet::new(family.client, family.server).tcp(answer).payload(&block_of_option).frame();
    dropped("§4.7.2", "a block in a SYN with ACK", answer, DropReason::NoFlow);

    // The option with the block of another carrier is the client's own.
    let kept = syn(family, CLIENT_PORT, behind(&option));
    let case = Case::new(family, "§4.7.2", "the client's own cookie stays");
    cases.push(case.becomes(kept.clone().payload(&block(&good)).frame(), Outcome::Token, kept.frame()));
    let replayed = Outcome::Drop(DropReason::Replayed);
    let tail = First { token: good, ..Transport::Tcp.first(family, &Grant::new(family, 80), CLIENT_PORT + 2, 1) };
    let sent = opened(family, CLIENT_PORT, syn_options(), &good);
    let streamed = syn(family, CLIENT_PORT + 1, syn_options()).payload(&stream_block(&good)).frame();
    cases.push(
        Case::new(family, "§6.4", "copies of a token, by each carrier")
            .becomes(sent.clone(), Outcome::Token, syn(family, CLIENT_PORT, syn_options()).frame())
            .frame(sent, replayed)
            .frame(streamed, replayed)
            .frame(tail.frame(), replayed),
    );
}
