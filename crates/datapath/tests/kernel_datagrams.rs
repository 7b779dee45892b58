//! The agent's connections whose segments travel as datagrams (wire.md §4.8), in the kernel: which ones do, when they begin to,
//! and who may use their ports.

mod held;
#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::agent::Agent;
use held::SUBJECT;
use lab::forge::{Packet, Tcp, flag};
use wire::map::{
    Conversation, DatagramFlow, FlowKey, GrantSlot, HelpingDevices, KEEPS_FLOWS, Ladder, Steered, agent_counter,
};
use wire::packet::{TCP, UDP};
use wire::{Carrier, Destination, reorder, tail};
use world::{Family, Grant, NOW, families};

/// Devices to which packets are only sent when a program has ended.
const HELPING: HelpingDevices = HelpingDevices { out: 998, back: 997 };
const TUNNEL_DEVICE: u32 = 999;
const UNSPEC: u32 = u32::MAX;
const REDIRECT: u32 = 7;
const SHOT: u32 = 2;
/// Numbers of rungs.
const TCP_IN_UDP: u32 = 2;
const TUNNEL: u32 = 3;
/// States of a connection.
const WAITING: u32 = 0;
const CHOSEN: u32 = 1;
const LOST: u32 = 2;
const CLOSING: u32 = 3;
/// The sequence number of each SYN.
const SYN: u32 = 0x8000_0000;

/// The programs, on a machine whose user 0 is logged in, has a grant, and begins connections with this rung.
fn agent(family: &Family, rung: u32) -> Agent {
    let kernel = held::logged_in(KEEPS_FLOWS, TUNNEL_DEVICE);
    kernel.set_helping_devices(&HELPING).expect("devices");
    let (to, grant) = (Destination { address: family.server, protocol: TCP, port: 22 }, Grant::new(family, 30));
    kernel.grants.set(&GrantSlot::new(SUBJECT, &to), &held::entry(&grant, &to, NOW + 100)).expect("grants");
    begin_with(&kernel, family, rung);
    kernel
}

fn begin_with(kernel: &Agent, family: &Family, rung: u32) {
    let to = Destination { address: family.server, protocol: TCP, port: 22 };
    kernel.ladders.set(&GrantSlot::new(SUBJECT, &to), &Ladder { rung, ..Ladder::default() }).expect("a table");
}

fn key(family: &Family) -> FlowKey {
    FlowKey::new(family.client, 1000, family.server, 22, TCP)
}

fn segment(family: &Family, flags: u8, payload: &[u8]) -> Vec<u8> {
    let sequence = if flags & flag::SYN != 0 { SYN } else { SYN + 1 };
    let header = Tcp { sequence, ..Tcp::new(1000, 22, flags) };
    Packet::new(family.client, family.server).tcp(header).payload(payload).frame()
}

fn answer(family: &Family, flags: u8, acknowledgement: u32) -> Vec<u8> {
    let header = Tcp { acknowledgement, options: vec![2, 4, 5, 180], ..Tcp::new(22, 1000, flags) };
    Packet::new(family.server, family.client).tcp(header).frame()
}

fn as_datagram(segment: &[u8]) -> Vec<u8> {
    let mut datagram = segment.to_vec();
    reorder::to_udp(&mut datagram, &wire::packet::Packet::parse(segment)).expect("a segment");
    datagram
}

fn send(kernel: &Agent, frame: &[u8]) -> u32 {
    kernel.run(frame, 1).expect("it runs").code
}

/// Passes an answer to the ingress program, and returns its verdict and the frame.
fn receive(kernel: &Agent, frame: &[u8]) -> (u32, Vec<u8>) {
    let ran = kernel.run_answer(frame, 1).expect("it runs");
    (ran.code, ran.frame)
}

fn known(kernel: &Agent, family: &Family) -> Option<DatagramFlow> {
    kernel.datagram_flows.get(&key(family)).expect("a table")
}

fn state(kernel: &Agent, family: &Family) -> Option<u32> {
    known(kernel, family).map(|known| known.state)
}

const ANSWER: u8 = flag::SYN | flag::ACK;

#[test]
fn kernel_sends_a_connection_as_datagrams_once_its_first_answer_came_as_one() {
    for family in families() {
        let kernel = agent(&family, TCP_IN_UDP);
        let ran = kernel.run(&segment(&family, flag::SYN, b""), 1).expect("it runs");
        assert_eq!(ran.code, REDIRECT, "{}", family.name);
        let found = tail::find(&ran.frame, &wire::packet::Packet::parse(&ran.frame));
        assert_eq!(found.map(|(_, carrier)| carrier), Some(Carrier::TcpInUdp));
        assert_eq!(state(&kernel, &family), Some(WAITING));
        assert_eq!(kernel.count(agent_counter::WATCHED).expect("a counter"), 1);
        // Nothing but the answer to the SYN begins it: no data, and no answer of somebody who has not seen the SYN.
        assert_eq!(receive(&kernel, &as_datagram(&answer(&family, flag::ACK, SYN + 1))).0, SHOT);
        for blind in [0, SYN, SYN + 4096, !SYN] {
            assert_eq!(receive(&kernel, &as_datagram(&answer(&family, ANSWER, blind))).0, SHOT);
        }
        assert_eq!(
            (state(&kernel, &family), send(&kernel, &segment(&family, flag::ACK, b""))),
            (Some(WAITING), UNSPEC)
        );
        let answered = answer(&family, ANSWER, SYN + 1);
        assert_eq!(receive(&kernel, &as_datagram(&answered)), (UNSPEC, answered), "{}", family.name);
        assert_eq!(state(&kernel, &family), Some(CHOSEN));
        let first = kernel.first_packets.get(&key(&family)).expect("a table").expect("an entry");
        assert!(first.datagram >= first.sent && first.outside == 0 && first.inside == 0);
        assert_eq!(send(&kernel, &segment(&family, flag::ACK, b"data")), REDIRECT);
        let data = answer(&family, flag::ACK | flag::PSH, SYN + 5);
        assert_eq!(receive(&kernel, &as_datagram(&data)), (UNSPEC, data));
        // A datagram that is no segment is not for an application either.
        let datagram = Packet::new(family.server, family.client).udp(22, 1000).payload(b"hello").frame();
        assert_eq!(receive(&kernel, &datagram).0, SHOT);
        assert_eq!(send(&kernel, &segment(&family, flag::FIN | flag::ACK, b"")), REDIRECT);
        assert_eq!(state(&kernel, &family), Some(CLOSING));
        assert_eq!(send(&kernel, &segment(&family, flag::ACK, b"")), REDIRECT, "it goes on to its end");
    }
}

#[test]
fn kernel_reorders_complete_segments_and_lowers_their_size() {
    for family in families() {
        let kernel = agent(&family, TCP_IN_UDP);
        assert_eq!(send(&kernel, &segment(&family, flag::SYN, b"")), REDIRECT);
        let data = segment(&family, flag::ACK | flag::PSH, b"some data");
        let ran = kernel.run_reordering(&data).expect("it runs");
        assert_eq!((ran.code, ran.frame), (REDIRECT, as_datagram(&data)), "{}", family.name);
        let with = |size: u16| {
            let [high, low] = size.to_be_bytes();
            let header = Tcp { sequence: SYN, options: vec![2, 4, high, low], ..Tcp::syn(1000, 22) };
            Packet::new(family.client, family.server).tcp(header).frame()
        };
        let most = if family.server.is_ipv4() { 1240 } else { 1220 };
        for (size, sent) in [(1460, most), (most, most), (536, 536)] {
            let ran = kernel.run_reordering(&with(size)).expect("it runs");
            assert_eq!((ran.code, ran.frame), (REDIRECT, as_datagram(&with(sent))), "{} {size}", family.name);
        }
        // Of another connection, or no segment.
        let other = Packet::new(family.client, family.server).tcp(Tcp::new(1001, 22, flag::ACK)).frame();
        let datagram = Packet::new(family.client, family.server).udp(1000, 22).payload(b"x").frame();
        for frame in [other, datagram] {
            assert_eq!(kernel.run_reordering(&frame).expect("it runs").code, SHOT);
        }
    }
}

#[test]
fn kernel_lets_the_first_answer_win_whatever_comes_later() {
    for family in families() {
        let kernel = agent(&family, TCP_IN_UDP);
        let answered = answer(&family, ANSWER, SYN + 1);
        assert_eq!(send(&kernel, &segment(&family, flag::SYN, b"")), REDIRECT);
        assert_eq!(receive(&kernel, &answered), (UNSPEC, answered.clone()));
        assert_eq!(receive(&kernel, &as_datagram(&answered)).0, SHOT);
        assert_eq!(state(&kernel, &family), Some(LOST), "{}", family.name);
        assert_eq!(send(&kernel, &segment(&family, flag::ACK, b"data")), UNSPEC);
        // The tunnel was tried, too.
        let kernel = agent(&family, TCP_IN_UDP);
        assert_eq!(send(&kernel, &segment(&family, flag::SYN, b"")), REDIRECT);
        let steered = kernel.steered_flows().expect("a table");
        let raced = Steered { subject: SUBJECT, wish: Steered::LADDER | Steered::LADDER_TREATMENT };
        steered.set(&key(&family), &raced).expect("a table");
        assert_eq!(receive(&kernel, &as_datagram(&answered)).0, UNSPEC);
        assert_eq!(steered.get(&key(&family)).expect("a table"), None);
        let kernel = agent(&family, TCP_IN_UDP);
        assert_eq!(send(&kernel, &segment(&family, flag::SYN, b"")), REDIRECT);
        let steered = kernel.steered_flows().expect("a table");
        steered.set(&key(&family), &Steered { wish: raced.wish | Steered::ANSWERED, ..raced }).expect("a table");
        assert_eq!(receive(&kernel, &as_datagram(&answered)).0, SHOT);
        assert_eq!(state(&kernel, &family), Some(LOST));
    }
}

#[test]
fn kernel_keeps_applications_datagrams_off_the_ports_of_a_connection() {
    for family in families() {
        let kernel = agent(&family, TCP_IN_UDP);
        let datagram = Packet::new(family.client, family.server).udp(1000, 22).payload(b"data").frame();
        assert_eq!(send(&kernel, &datagram), UNSPEC);
        assert_eq!(send(&kernel, &segment(&family, flag::SYN, b"")), REDIRECT);
        assert_eq!(send(&kernel, &datagram), SHOT);
        assert_eq!(kernel.count(agent_counter::RIDER).expect("a counter"), 1);
        let entry = known(&kernel, &family).expect("an entry");
        for (old, code) in [(CHOSEN, SHOT), (CLOSING, UNSPEC)] {
            let seen = NOW - 1000;
            kernel.datagram_flows.set(&key(&family), &DatagramFlow { state: old, seen, ..entry }).expect("a table");
            assert_eq!(send(&kernel, &datagram), code, "{} {old}", family.name);
        }
        assert_eq!(known(&kernel, &family), None, "the ports are free again");
        // The other way round.
        let flow = FlowKey { protocol: UDP, ..key(&family) };
        let conversation = Conversation { token: NOW, answered: 1, sent: 1, subject: SUBJECT, seen: NOW - 5 };
        kernel.conversations.set(&flow, &conversation).expect("conversations");
        assert_eq!(send(&kernel, &segment(&family, flag::SYN, b"")), SHOT);
        assert_eq!(known(&kernel, &family), None);
    }
}

#[test]
fn kernel_begins_a_new_connection_between_the_same_ports_anew() {
    for family in families() {
        let kernel = agent(&family, TCP_IN_UDP);
        assert_eq!(send(&kernel, &segment(&family, flag::SYN, b"")), REDIRECT);
        assert_eq!(receive(&kernel, &as_datagram(&answer(&family, ANSWER, SYN + 1))).0, UNSPEC);
        for rung in [0, TUNNEL] {
            begin_with(&kernel, &family, rung);
            let entry = DatagramFlow { state: CHOSEN, sequence: SYN + 9, ..DatagramFlow::default() };
            kernel.datagram_flows.set(&key(&family), &entry).expect("a table");
            let code = if rung == 0 { UNSPEC } else { REDIRECT };
            assert_eq!(send(&kernel, &segment(&family, flag::SYN, b"")), code, "{}", family.name);
            assert_eq!(known(&kernel, &family), None);
        }
    }
}

#[test]
fn kernel_sends_no_datagrams_unless_user_space_has_made_the_devices() {
    let [family, _] = families();
    let kernel = agent(&family, TCP_IN_UDP);
    kernel.set_helping_devices(&HelpingDevices::default()).expect("devices");
    assert_eq!(send(&kernel, &segment(&family, flag::SYN, b"")), SHOT);
    let answered = as_datagram(&answer(&family, ANSWER, SYN + 1));
    assert_eq!(receive(&kernel, &answered), (UNSPEC, answered), "a datagram as any other");
    for slot in kernel.grants.keys() {
        kernel.grants.remove(&slot).expect("grants");
    }
    kernel.set_helping_devices(&HELPING).expect("devices");
    kernel.datagram_flows.keys().iter().for_each(|key| kernel.datagram_flows.remove(key).expect("a table"));
    assert_eq!(send(&kernel, &segment(&family, flag::SYN, b"")), SHOT, "its grant is missing, and nobody takes it");
    assert_eq!(known(&kernel, &family), None, "a sender without a grant takes no entry");
}
