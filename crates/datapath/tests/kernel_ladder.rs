//! The agent's ladder in the kernel: by which rung first packets go, and on which side the first answer leaves a flow.

mod held;
#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::agent::Agent;
use engine::model::protected;
use held::SUBJECT;
use lab::forge::{Packet, Tcp, flag};
use wire::map::{FirstPacket, FlowKey, GrantSlot, KEEPS_FLOWS, Ladder, Steered, agent_counter};
use wire::packet::TCP;
use wire::{Carrier, Destination, tail};
use world::{Family, Grant, NOW, families};

/// The tunnels' device. The packet is only sent there when the program has ended.
const DEVICE: u32 = 999;
const UNSPEC: u32 = u32::MAX;
const REDIRECT: u32 = 7;
const SHOT: u32 = 2;
/// Numbers of rungs.
const FAST_OPEN: u32 = 1;
const TUNNEL: u32 = 3;
const CHOSEN: u32 = Steered::LADDER | Steered::LADDER_TREATMENT;

/// The programs, on a machine whose user 0 is logged in and has a grant.
fn agent(family: &Family) -> Agent {
    let kernel = held::logged_in(KEEPS_FLOWS, DEVICE);
    let (to, grant) = (Destination { address: family.server, protocol: TCP, port: 22 }, Grant::new(family, 30));
    kernel.grants.set(&GrantSlot::new(SUBJECT, &to), &held::entry(&grant, &to, NOW + 100)).expect("grants");
    kernel
}

fn begin_with(kernel: &Agent, family: &Family, rung: u32, every: u32) {
    let to = Destination { address: family.server, protocol: TCP, port: 22 };
    let ladder = Ladder { rung, every, ..Ladder::default() };
    kernel.ladders.set(&GrantSlot::new(SUBJECT, &to), &ladder).expect("a table");
}

fn key(family: &Family, port: u16) -> FlowKey {
    FlowKey::new(family.client, port, family.server, 22, TCP)
}

/// The sequence number of each SYN.
const SYN: u32 = 0x8000_0000;

fn send(kernel: &Agent, family: &Family, port: u16, flags: u8) -> u32 {
    let sequence = if flags & flag::SYN != 0 { SYN } else { SYN + 1 };
    let frame = Packet::new(family.client, family.server).tcp(Tcp { sequence, ..Tcp::new(port, 22, flags) }).frame();
    kernel.run(&frame, 1).expect("it runs").code
}

fn answer(kernel: &Agent, family: &Family, port: u16, flags: u8) -> u32 {
    answer_to(kernel, family, port, flags, SYN + 1)
}

fn answer_to(kernel: &Agent, family: &Family, port: u16, flags: u8, acknowledgement: u32) -> u32 {
    let tcp = Tcp { acknowledgement, ..Tcp::new(22, port, flags) };
    let frame = Packet::new(family.server, family.client).tcp(tcp).frame();
    kernel.run_answer(&frame, 1).expect("it runs").code
}

fn first(kernel: &Agent, family: &Family, port: u16) -> Option<FirstPacket> {
    kernel.first_packets.get(&key(family, port)).expect("a table")
}

fn steered(kernel: &Agent, family: &Family, port: u16) -> Option<u32> {
    let flows = kernel.steered_flows().expect("a table");
    flows.get(&key(family, port)).expect("a table").map(|entry| entry.wish)
}

#[test]
fn kernel_watches_first_packets_of_destinations_with_several_rungs_only() {
    for family in families() {
        let kernel = agent(&family);
        assert_eq!(send(&kernel, &family, 1000, flag::SYN), UNSPEC);
        assert_eq!(first(&kernel, &family, 1000), None, "{}", family.name);
        begin_with(&kernel, &family, 0, 0);
        assert_eq!(send(&kernel, &family, 1001, flag::SYN), UNSPEC);
        let sent = first(&kernel, &family, 1001).expect("an entry");
        assert!(sent.sent > 0 && sent.outside == 0 && sent.inside == 0);
        assert_eq!(answer(&kernel, &family, 1001, flag::ACK), UNSPEC);
        assert_eq!(first(&kernel, &family, 1001).map(|first| first.outside), Some(0), "no answer to a SYN");
        assert_eq!(answer(&kernel, &family, 1001, flag::SYN | flag::ACK), UNSPEC);
        assert!(first(&kernel, &family, 1001).is_some_and(|first| first.outside >= sent.sent), "{}", family.name);
        assert_eq!(kernel.count(agent_counter::WATCHED).expect("a counter"), 1);
        assert_eq!(steered(&kernel, &family, 1001), None);
    }
}

/// The options that Linux sends.
fn options() -> Vec<u8> {
    vec![2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]
}

#[test]
fn kernel_adds_an_option_to_syns_without_data() {
    for family in families() {
        let kernel = agent(&family);
        begin_with(&kernel, &family, FAST_OPEN, 0);
        let syn =
            |options: Vec<u8>| Packet::new(family.client, family.server).tcp(Tcp { options, ..Tcp::syn(1000, 22) });
        for options in [options(), Vec::new(), vec![1; 28]] {
            let plain = syn(options).frame();
            let ran = kernel.run(&plain, 1).expect("it runs");
            assert_eq!(ran.code, UNSPEC);
            let (token, carrier) = tail::find(&ran.frame, &wire::packet::Packet::parse(&ran.frame)).expect("a token");
            assert_eq!(carrier, Carrier::FastOpen, "{}", family.name);
            let mut expected = plain.clone();
            expected.resize(plain.len() + tail::FAST_OPEN_ADDS, 0);
            let parsed = wire::packet::Packet::parse(&plain);
            assert_eq!(tail::append_with_option(&mut expected, &parsed, token), Some(expected.len()));
            assert_eq!(ran.frame, expected, "{}", family.name);
            let mut stripped = ran.frame.clone();
            let length = tail::strip(&mut stripped, &wire::packet::Packet::parse(&ran.frame));
            assert_eq!(length, Some(plain.len()));
            assert_eq!(stripped[..plain.len()], plain);
        }
        // No room, or data of its own.
        for packet in [syn(vec![1; 32]), syn(options()).payload(b"GET /")] {
            let ran = kernel.run(&packet.frame(), 1).expect("it runs");
            let (_, carrier) = tail::find(&ran.frame, &wire::packet::Packet::parse(&ran.frame)).expect("a token");
            assert_eq!(carrier, Carrier::Tail, "{}", family.name);
        }
        assert_eq!(kernel.count(agent_counter::WATCHED).expect("a counter"), 5);
        assert!(first(&kernel, &family, 1000).is_some() && steered(&kernel, &family, 1000).is_none());
    }
}

#[test]
fn kernel_keeps_a_flow_in_the_tunnel_once_its_client_went_on_there() {
    for family in families() {
        let kernel = agent(&family);
        begin_with(&kernel, &family, TUNNEL, 0);
        assert_eq!(send(&kernel, &family, 1000, flag::SYN), REDIRECT);
        assert_eq!(steered(&kernel, &family, 1000), Some(CHOSEN), "{}", family.name);
        assert_eq!(send(&kernel, &family, 1000, flag::ACK), REDIRECT);
        assert_eq!(steered(&kernel, &family, 1000), Some(CHOSEN | Steered::ANSWERED));
        assert!(first(&kernel, &family, 1000).is_some_and(|first| first.inside > 0));
        // An answer from outside comes too late, and must not be mixed with the flow in the tunnel.
        for flags in [flag::SYN | flag::ACK, flag::RST | flag::ACK, flag::ACK] {
            assert_eq!(answer(&kernel, &family, 1000, flags), SHOT);
        }
        assert_eq!(send(&kernel, &family, 1000, flag::ACK), REDIRECT);
        // A new connection between the same ports begins anew.
        begin_with(&kernel, &family, 0, 0);
        assert_eq!(send(&kernel, &family, 1000, flag::SYN), UNSPEC);
        assert_eq!(steered(&kernel, &family, 1000), None);
    }
}

#[test]
fn kernel_takes_a_flow_out_of_the_tunnel_if_the_first_answer_comes_from_outside() {
    for family in families() {
        let kernel = agent(&family);
        begin_with(&kernel, &family, TUNNEL, 0);
        assert_eq!(send(&kernel, &family, 1000, flag::SYN), REDIRECT);
        // Data or an acknowledgement alone answers no SYN, and neither does a reset, which a box on the way may send.
        for flags in [flag::ACK, flag::RST, flag::RST | flag::ACK] {
            assert_eq!(answer(&kernel, &family, 1000, flags), SHOT);
        }
        // A sender who has not seen the SYN does not know its number.
        for blind in [0, SYN, SYN + 4096, !SYN] {
            assert_eq!(answer_to(&kernel, &family, 1000, flag::SYN | flag::ACK, blind), SHOT);
        }
        assert_eq!(first(&kernel, &family, 1000).map(|first| first.outside), Some(0), "{}", family.name);
        assert_eq!(answer(&kernel, &family, 1000, flag::SYN | flag::ACK), UNSPEC);
        assert_eq!(steered(&kernel, &family, 1000), None, "{}", family.name);
        assert_eq!(send(&kernel, &family, 1000, flag::ACK), UNSPEC);
    }
}

#[test]
fn kernel_counts_only_answers_to_the_first_packet_as_such() {
    for family in families() {
        let kernel = agent(&family);
        begin_with(&kernel, &family, 0, 0);
        assert_eq!(send(&kernel, &family, 1000, flag::SYN), UNSPEC);
        let outside = || first(&kernel, &family, 1000).expect("an entry").outside;
        // They reach the client's machine, which judges them by itself.
        for flags in [flag::RST, flag::RST | flag::ACK] {
            assert_eq!(answer(&kernel, &family, 1000, flags), UNSPEC);
        }
        for blind in [0, SYN, SYN + 4096, !SYN] {
            assert_eq!(answer_to(&kernel, &family, 1000, flag::SYN | flag::ACK, blind), UNSPEC);
        }
        assert_eq!(outside(), 0, "{}", family.name);
        // The server also acknowledges data in the SYN.
        assert_eq!(answer_to(&kernel, &family, 1000, flag::SYN | flag::ACK, SYN + 65), UNSPEC);
        assert!(outside() > 0, "{}", family.name);
    }
}

#[test]
fn kernel_never_leads_a_sealed_flow_outside() {
    for family in families() {
        let kernel = agent(&family);
        let protected = protected::entries(&world::receivers()).expect("few spans");
        let entries: Vec<_> =
            protected.iter().map(|entry| (entry.prefix.network(), entry.prefix.prefix_len(), entry.services)).collect();
        kernel.seal(&entries).expect("maps take prefixes");
        for rung in [0, FAST_OPEN, TUNNEL] {
            begin_with(&kernel, &family, rung, 0);
            assert_eq!(send(&kernel, &family, 1000, flag::SYN), REDIRECT, "{}", family.name);
            assert_eq!(answer(&kernel, &family, 1000, flag::SYN | flag::ACK), SHOT);
            assert_eq!(send(&kernel, &family, 1000, flag::ACK), REDIRECT);
        }
        assert_eq!(kernel.count(agent_counter::WATCHED).expect("a counter"), 0);
    }
}

#[test]
fn kernel_tries_the_first_rung_again_once_in_every_few_connections() {
    let [family, _] = families();
    let kernel = agent(&family);
    begin_with(&kernel, &family, TUNNEL, 50);
    let codes: Vec<_> = (0..100).map(|number| send(&kernel, &family, 1000 + number, flag::SYN)).collect();
    let outside: Vec<_> = (0..100).filter(|number| codes[*number] == UNSPEC).collect();
    assert_eq!(outside, [49, 99]);
    assert!(codes.iter().all(|code| [UNSPEC, REDIRECT].contains(code)));
}

#[test]
fn kernel_notes_nothing_for_senders_without_a_grant() {
    let [family, _] = families();
    let kernel = agent(&family);
    begin_with(&kernel, &family, TUNNEL, 0);
    for slot in kernel.grants.keys() {
        kernel.grants.remove(&slot).expect("grants");
    }
    for port in 1000..1100 {
        assert_eq!(send(&kernel, &family, port, flag::SYN), SHOT, "its grant is missing, and nobody takes it");
    }
    assert!(kernel.first_packets.keys().is_empty());
}
