//! Random and mutated packets: the Rust decisions and the kernel programs must agree on every one of them.
//!
//! `VOUCHSAFE_FUZZ_PACKETS` sets how many (default a million), `VOUCHSAFE_FUZZ_SEED` where to begin. A failure names
//! both, and the packet.

#[allow(dead_code, reason = "the table's rows are its other user")]
mod agents;
#[allow(dead_code, reason = "the table's rows are its other user")]
mod table;
#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::hook::Hook;
use datapath::kernel_tables::KernelTables;
use engine::verifier::{Outcome, explain};
use lab::forge::{Packet, Tcp};
use std::net::IpAddr;
use table::syn_options;
use wire::map::counter;
use wire::shim::{self, Content};
use wire::{Destination, Epoch, Flags, Suite, tail};
use world::{Deciders, Family, Grant, LsPair, NOW, families};

/// xorshift64*: fast, and the same everywhere.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn grant(chance: &mut Chance, family: &Family, now: u32) -> Grant {
    let current = Epoch::at(now.into(), world::EPOCH_LENGTH);
    let mut grant = Grant::new(family, 1 + chance.below(40) as u64);
    grant.epoch = current;
    grant.expires = now + 1 + chance.below(3000) as u32;
    if chance.one_in(3) {
        grant.suite = Suite::AesCmac;
    }
    if chance.one_in(4) {
        grant.flags = grant.flags.with(chance.pick(&[Flags::SOURCE, Flags::REPLY, Flags::SINGLE]));
    }
    if chance.one_in(8) {
        grant.flags = Flags(grant.flags.0 & !Flags::PORT.0);
        grant.prefix_length = chance.below(usize::from(grant.prefix_length) + 1) as u8;
    }
    match chance.below(40) {
        0 => grant.epoch = Epoch(current.0 - 1),
        1 => grant.epoch = Epoch(current.0 + 1),
        2 => grant.epoch = Epoch(current.0 - 2),
        3 => grant.expires = now,
        4 => grant.expires = now + 3601,
        5 => grant.source = family.stranger,
        _ => {}
    }
    grant
}

/// The last token made, to come back as a replay.
type Last = Option<[u8; 36]>;

/// Pairs of the scheme of LS, of which the authority tells again and again.
const PAIRS: u8 = 6;

/// The packet in a shim.
fn in_shim(chance: &mut Chance, packet: &Packet, token: Option<[u8; 36]>, now: u32) -> Vec<u8> {
    let pair = pair(chance.below(usize::from(PAIRS) + 1) as u8, now);
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

/// Some pairs' secret is that of the epoch before.
fn pair(number: u8, now: u32) -> LsPair {
    let current = Epoch::at(now.into(), world::EPOCH_LENGTH);
    LsPair { epoch: Epoch(current.0 - u64::from(number % 2)), expires: now + 120, ..LsPair::new(number) }
}

fn packet(chance: &mut Chance, now: u32, last: &mut Last) -> Vec<u8> {
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
    packet = match protocol {
        6 => {
            let sequence = chance.pick(&[0, 1, 1, 1, 6, 41, u32::MAX, 1 << 18, 1 << 19]);
            let options = if chance.one_in(2) { syn_options() } else { Vec::new() };
            packet.tcp(Tcp { sequence, options, ..Tcp::new(client_port, port, flags) })
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
        let token = match last {
            Some(token) if chance.one_in(12) => *token,
            _ => grant(chance, &family, now).token(&to, time, chance.next() as u32),
        };
        *last = Some(token);
        made = Some(token);
        if !shimmed {
            payload.extend(tail::block(&token));
        }
    }
    packet = packet.payload(&payload);
    if shimmed {
        return in_shim(chance, &packet, made, now);
    }
    if chance.one_in(12) {
        let parts = packet.fragments(8 * (1 + chance.below(40)));
        if !parts.is_empty() {
            return parts[chance.below(parts.len())].clone();
        }
    }
    let mut frame = packet.frame();
    if chance.one_in(10) && tail::checksum_is_partial(&frame, &wire::packet::Packet::parse(&frame)).is_some() {
        table::tokens::make_partial(&mut frame);
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

/// An ICMP error about a packet on its way back.
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

/// Now and then a few bytes change, or the frame ends early or late.
fn mutate(chance: &mut Chance, frame: &mut Vec<u8>) {
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

const BATCH: u64 = 512;

#[test]
fn kernel_at_xdp_and_rust_agree_on_random_packets() {
    agree_on_random_packets(Hook::Xdp);
}

#[test]
fn kernel_at_tc_and_rust_agree_on_random_packets() {
    agree_on_random_packets(Hook::Tc);
}

fn agree_on_random_packets(hook: Hook) {
    let packets = setting("VOUCHSAFE_FUZZ_PACKETS", 1_000_000);
    let seed = setting("VOUCHSAFE_FUZZ_SEED", 0x5eed_f10e_0000_0001);
    let mut chance = Chance(seed | 1);
    let mut deciders = Deciders::new(hook, world::config_with_shims(), &world::receivers());
    let mut last = None;
    let mut now = NOW;
    let mut tally = [0u64; counter::COUNT as usize];
    let mut unwrapped = [0u64; 2];
    for number in 0..packets {
        if number % BATCH == 0 {
            now += chance.below(70) as u32;
            keep_up(&mut deciders, &mut chance, now);
        }
        let mut frame = packet(&mut chance, now, &mut last);
        mutate(&mut chance, &mut frame);
        if !world::runs(hook, &frame) {
            continue;
        }
        let explained = explain(&KernelTables::with_room(&deciders.kernel), &frame, now);
        let mut modelled = frame.clone();
        let outcome = deciders.model.judge(&mut modelled, now);
        // Each time, or the second ends meanwhile on a slow machine.
        deciders.set_clock(now);
        let ran = deciders.kernel.run(&frame, 1).expect("the program runs");
        tally[outcome.counter() as usize] += 1;
        if matches!(outcome, Outcome::Token | Outcome::Consumed) {
            match shim::open(&frame, &wire::packet::Packet::parse(&frame)) {
                Some(Ok((_, Content::Token(_)))) => unwrapped[0] += 1,
                Some(Ok((_, Content::Ls(_)))) => unwrapped[1] += 1,
                _ => {}
            }
        }
        let code = hook.code(outcome.passes(false));
        let place = || format!("packet {number} of seed {seed:#x} at {now}, {outcome:?}: {}", hex::encode(&frame));
        assert_eq!(ran.code, code, "{}", place());
        assert_eq!(explained.outcome, outcome, "{}\n{explained:?}", place());
        assert!(
            ran.frame == modelled,
            "{}\nrust   {}\nkernel {}",
            place(),
            hex::encode(&modelled),
            hex::encode(&ran.frame)
        );
        if number % BATCH == BATCH - 1 {
            compare(&deciders, &tally, &format!("packets up to {number} of seed {seed:#x}"));
        }
    }
    // Inside addresses are given behind this decision.
    let reasons = wire::DropReason::ALL.iter().filter(|reason| **reason != wire::DropReason::NoAddress);
    let missing: Vec<_> = reasons.filter(|reason| tally[**reason as usize] == 0).collect();
    println!("{packets} packets: {tally:?}; out of shims: {unwrapped:?}");
    assert!(packets < 100_000 || unwrapped.iter().all(|count| *count > 10), "few shims were taken: {unwrapped:?}");
    assert!(packets < 100_000 || missing.is_empty(), "never came up: {missing:?}");
}

/// What happens beside packets: time, upkeep, revocation.
fn keep_up(deciders: &mut Deciders, chance: &mut Chance, now: u32) {
    deciders.set_clock(now);
    let epoch = Epoch::at(now.into(), world::EPOCH_LENGTH);
    for number in epoch.0 - 1..=epoch.0 + 2 {
        deciders.learn(Epoch(number));
    }
    deciders.sweep(now);
    if chance.one_in(3) {
        let pair = pair(chance.below(usize::from(PAIRS)) as u8, now);
        deciders.tell(&pair);
    }
    if chance.one_in(4) {
        deciders.revoke(1 + chance.below(40) as u64, now + 100 + chance.below(300) as u32);
    }
}

fn compare(deciders: &Deciders, tally: &[u64], place: &str) {
    for index in (0..counter::COUNT).filter(|index| *index != counter::SAMPLES_LOST) {
        let counted = deciders.kernel.count(index).expect("counters");
        assert_eq!(counted, tally[index as usize], "{place}: counter {index} ({:?})", outcome(index));
    }
    let flows: std::collections::BTreeMap<_, _> = deciders.kernel.flows.entries().into_iter().collect();
    assert!(flows == deciders.model.flows, "{place}: the flow tables differ");
    let grants: std::collections::BTreeMap<_, _> =
        deciders.kernel.grants.entries().into_iter().map(|(handle, used)| (wire::Handle(handle), used)).collect();
    assert!(grants == deciders.model.grants, "{place}: the grant tables differ");
    let pairs: std::collections::BTreeMap<_, _> =
        deciders.kernel.ls_grants.entries().into_iter().map(|(handle, pair)| (wire::Handle(handle), pair)).collect();
    assert!(pairs == deciders.model.ls_grants, "{place}: the tables of pairs differ");
}

fn outcome(index: u32) -> Option<Outcome> {
    (index < counter::SAMPLES_LOST && !(14..16).contains(&index) && index > 0).then(|| world::outcome_of(index))
}

#[test]
fn kernel_and_rust_insert_the_same_into_random_packets() {
    let packets = setting("VOUCHSAFE_FUZZ_PACKETS", 1_000_000) / 10;
    let seed = setting("VOUCHSAFE_FUZZ_SEED", 0x5eed_f10e_0000_0002);
    let mut chance = Chance(seed | 1);
    let rows = table::agent::rows();
    let mut agents = agents::Agents::new();
    for number in 0..packets {
        if number % 64 == 0 {
            agents.know(&rows[chance.below(rows.len())]);
        }
        let mut frame = packet(&mut chance, NOW, &mut None);
        mutate(&mut chance, &mut frame);
        let parsed = wire::packet::Packet::parse(&frame);
        // A test run takes no frame without a whole IP header, and none whose checksum is left to the
        // network card: that only a real sender can ask for.
        if frame.len() < 54 || tail::checksum_is_partial(&frame, &parsed) == Some(true) {
            continue;
        }
        let [modelled, emitted] = agents.insert(&frame, NOW);
        assert!(
            modelled == emitted,
            "packet {number} of seed {seed:#x}: {}\n{modelled:x?}\n{emitted:x?}",
            hex::encode(&frame)
        );
    }
}
