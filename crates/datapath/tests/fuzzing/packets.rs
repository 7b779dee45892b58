//! Random and mutated packets.

use super::chance::Chance;
use super::given::Given;
use crate::table::{syn_options, tokens};
use crate::world::{Family, families};
use lab::forge::{Packet, Tcp};
use std::net::IpAddr;
use wire::shim::Content;
use wire::{Destination, checksum, tail};

/// Returns the packet in a shim.
fn in_shim(chance: &mut Chance, packet: &Packet, token: Option<[u8; 36]>, given: &Given) -> Vec<u8> {
    let pair = given.any_pair(chance);
    let mut option = match token {
        Some(token) if chance.one_in(2) => Content::Token(token),
        _ if chance.one_in(20) => chance.pick(&[Content::Support, Content::KeyTransfer([9; 35])]),
        _ => Content::Ls(pair.token(chance.below(300) as u16)),
    }
    .encode();
    if chance.one_in(10) {
        option[chance.below(40)] ^= 1 << chance.below(8);
    }
    packet.shimmed(&option).frame()
}

/// Returns a random packet, more often than not a first packet with a token.
pub fn packet(chance: &mut Chance, now: u32, given: &mut Given) -> Vec<u8> {
    let [v4, v6] = families();
    let family = chance.pick(&[v4, v6]);
    let source = chance.pick(&[family.client, family.client, family.stranger]);
    let address = chance.pick(&[family.server, family.server, family.fortress, family.neighbour, family.open]);
    let client_port = 40000 + chance.below(6) as u16;
    let port = chance.pick(&[22, 443, 8000, 53]);
    let mut packet = Packet::new(source, address).identification(chance.below(4) as u32);
    for _ in 0..chance.below(8).saturating_sub(5) {
        packet = packet.tag(chance.pick(&[0x8100, 0x88a8]), chance.below(4000) as u16);
    }
    if chance.one_in(8) {
        packet = decorate(chance, packet, &family);
    }
    let flags = chance.pick(&[2, 2, 2, 16, 24, 17, 4, 20, 18, 0, 41, 3]);
    let protocol = chance.pick(&[6, 6, 17, 17, 17, 0, 1, 47]);
    let mut header = None;
    packet = match protocol {
        6 => {
            let sequence = chance.pick(&[0, 1, 1, 1, 6, 41, u32::MAX, 1 << 18, 1 << 19]);
            let options = if chance.one_in(2) { syn_options() } else { Vec::new() };
            let tcp = Tcp { sequence, options, ..Tcp::new(client_port, port, flags) };
            header = Some(tcp.clone());
            packet.tcp(tcp)
        }
        17 => packet.udp(client_port, port),
        0 => return error(chance, &family),
        1 => packet.icmp(chance.pick(&[8, 3, 128, 135]), 0, [0; 4]),
        other => packet.raw(other),
    };
    let length = chance.pick(&[0, 0, 1, 5, 40, 100, 999]);
    let mut payload = chance.bytes(length);
    let shimmed = family.server.is_ipv4() && chance.one_in(6);
    let mut made = None;
    if chance.below(3) != 0 && matches!(protocol, 6 | 17) {
        let to = Destination { address, protocol, port };
        let time = now + 28 - chance.below(56) as u32;
        let time = if chance.one_in(30) { now + 40 } else { time };
        let token = match given.last {
            Some(token) if chance.one_in(12) => token,
            _ => given.any(chance, &family, now).token(&to, time, chance.next() as u32),
        };
        given.last = Some(token);
        made = Some(token);
        if !shimmed && protocol == 6 && chance.one_in(4) {
            payload.truncate(chance.pick(&[0, 0, 0, 1]));
            payload.extend(tail::stream_block(&token));
        } else if let Some(mut tcp) = header.filter(|_| !shimmed && chance.one_in(4)) {
            tcp.options.extend(tail::fast_open_option(&token));
            if chance.one_in(6) {
                let at = chance.below(tcp.options.len());
                tcp.options[at] ^= 1 << chance.below(8);
            }
            payload.truncate(chance.pick(&[0, 0, 0, 1]));
            payload.extend(tail::fast_open_block(&token));
            packet = packet.tcp(tcp);
        } else if !shimmed {
            payload.extend(tail::block(&token));
        }
    }
    packet = packet.payload(&payload);
    if shimmed {
        return in_shim(chance, &packet, made, given);
    }
    if chance.one_in(12) {
        let parts = packet.fragments(8 * (1 + chance.below(40)));
        if !parts.is_empty() {
            return parts[chance.below(parts.len())].clone();
        }
    }
    let mut frame = packet.frame();
    if chance.one_in(10) && checksum::is_partial(&frame, &wire::packet::Packet::parse(&frame)).is_some() {
        tokens::make_partial(&mut frame);
    }
    frame
}

fn decorate(chance: &mut Chance, packet: Packet, family: &Family) -> Packet {
    let hop: Vec<u8> = match chance.pick(&[family.server, family.open]) {
        IpAddr::V4(hop) => hop.octets().to_vec(),
        IpAddr::V6(hop) => hop.octets().to_vec(),
    };
    if family.server.is_ipv4() {
        let mut options = match chance.below(3) {
            0 => vec![1; 1 + chance.below(40)],
            1 => [vec![chance.pick(&[131, 137]), 7, chance.pick(&[4, 8, 3])], hop].concat(),
            _ => {
                let words = 1 + chance.below(10);
                chance.bytes(4 * words)
            }
        };
        options.truncate(40);
        return packet.options(&options);
    }
    (0..1 + chance.below(9)).fold(packet, |packet, _| match chance.below(4) {
        0 => packet.extension(0, &[1, 4, 0, 0, 0, 0]),
        1 => {
            let mut body = vec![chance.pick(&[0, 2, 3, 4]), chance.below(2) as u8, 0, 0, 0, 0];
            body.extend(&hop);
            packet.extension(43, &body)
        }
        2 => packet.extension(44, &[0, chance.pick(&[0, 0, 1, 8]), 0, 0, 0, chance.below(4) as u8]),
        _ => packet.extension(60, &chance.bytes(6)),
    })
}

/// Returns an ICMP error about a packet of the server.
fn error(chance: &mut Chance, family: &Family) -> Vec<u8> {
    let server = chance.pick(&[family.server, family.fortress, family.open]);
    let client_port = 40000 + chance.below(6) as u16;
    let back = Packet::new(server, family.client);
    let quote = match chance.below(3) {
        0 => back.tcp(Tcp::new(22, client_port, 16)).ip(),
        1 => back.udp(443, client_port).ip(),
        _ => chance.bytes(60),
    };
    let kind = if server.is_ipv6() { 1 + chance.below(5) as u8 } else { chance.pick(&[3, 11, 12, 5]) };
    let keep = chance.below(quote.len() + 1);
    let source = family.stranger;
    Packet::new(source, server).icmp(kind, 0, [0; 4]).payload(&quote[..keep]).frame()
}

/// Occasionally changes a few bytes, or truncates or extends the frame.
pub fn mutate(chance: &mut Chance, frame: &mut Vec<u8>) {
    if !chance.one_in(3) {
        return;
    }
    for _ in 0..1 + chance.below(3) {
        let reach = if chance.one_in(2) { frame.len().min(90) } else { frame.len() };
        let at = chance.below(reach);
        frame[at] = match chance.below(3) {
            0 => chance.next() as u8,
            1 => frame[at] ^ (1 << chance.below(8)),
            _ => chance.pick(&[0, 1, 4, 6, 17, 44, 255]),
        };
    }
    match chance.below(12) {
        0 => frame.truncate(14 + chance.below(frame.len() - 13)),
        1 => {
            let more = 1 + chance.below(20);
            frame.extend(chance.bytes(more));
        }
        _ => {}
    }
}
