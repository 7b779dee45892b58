//! Answers to clients whose segments came as datagrams (wire.md §4.8), in the kernel: which packets of a server leave in
//! the same way.

#[allow(dead_code, reason = "the table's rows are its other user")]
mod table;
#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::Spot;
use datapath::hook::Hook;
use datapath::tcp_in_udp::{Answers, Devices};
use lab::forge::{Packet, Tcp, flag};
use lab::net::Namespace;
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use table::{CLIENT_PORT, Transport};
use wire::map::VerifierConfig;
use wire::{Carrier, reorder, tail};
use world::{Deciders, Grant, NOW, families};

const UNSPEC: u32 = u32::MAX;
const REDIRECT: u32 = 7;

/// A client can forge the address that its first datagram comes from. The protected host or a host behind the gateway may
/// then begin a connection between the same ports, and its packets must leave as TCP.
#[test]
fn kernel_turns_answers_into_datagrams_and_no_syn_of_the_inside() {
    let namespace = Namespace::new("answers").unwrap();
    setns(File::open(namespace.path()).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
    let devices = Devices::set_up("answers").unwrap();
    let config = world::config();
    let config = VerifierConfig { carriers: config.carriers | Carrier::TcpInUdp as u16, ..config };
    let deciders = Deciders::new(Hook::Tc, config, &world::receivers());
    deciders.set_clock(NOW);
    let answers = Answers::load(&deciders.kernel, &devices, None).unwrap_or_else(|error| panic!("{error:#}"));
    for family in families() {
        let sent = |port: u16, flags: u8| {
            let packet = Packet::new(family.server, family.client).tcp(Tcp::new(22, port, flags));
            answers.run(Spot::Answers, &packet.frame()).expect("it runs").code
        };
        assert_eq!(sent(CLIENT_PORT, flag::SYN | flag::ACK), UNSPEC, "{}: there is no such flow", family.name);
        let first = Transport::Tcp.first(&family, &Grant::new(&family, 80), CLIENT_PORT, 1);
        let syn = first.packet.clone().payload(&tail::tcp_in_udp_block(&first.token)).frame();
        let mut datagram = syn.clone();
        reorder::to_udp(&mut datagram, &wire::packet::Packet::parse(&syn)).expect("a segment");
        assert_eq!(deciders.kernel.run(&datagram, 1).expect("it runs").code, Hook::Tc.code(true), "{}", family.name);
        let fin = flag::FIN | flag::ACK;
        for flags in [flag::SYN | flag::ACK, flag::ACK, flag::PSH | flag::ACK, fin, flag::RST | flag::ACK, flag::RST] {
            assert_eq!(sent(CLIENT_PORT, flags), REDIRECT, "{}: {flags:#x}", family.name);
        }
        for flags in [flag::SYN, flag::SYN | flag::PSH, flag::SYN | flag::FIN] {
            assert_eq!(sent(CLIENT_PORT, flags), UNSPEC, "{}: {flags:#x}", family.name);
        }
        assert_eq!(sent(CLIENT_PORT + 1, flag::ACK), UNSPEC, "{}: of another connection", family.name);
    }
}
