//! The rules of a switch: what it sends up to the controller, and what it forwards by itself.

use super::matching::{Masked, Match, spans};
use super::message::{Command, FlowMod, port};
use crate::discovery::message::DNS_PORT;
use crate::model::protected::Protected;
use ipnet::IpNet;
use std::net::IpAddr;
use wire::packet::{Packet, TCP, UDP, tcp_flags};

/// Marks the controller's own rules: "VS". The bits below hold the kind and the generation of a rule.
const OURS: u64 = 0x5653 << 48;
const OURS_MASK: u64 = 0xffff << 48;
/// Standing rules: those that send packets up, and the default rule below them all.
const STANDING: u64 = OURS | 1 << 40;
/// Rules for one flow.
const FLOW: u64 = OURS | 2 << 40;
/// Standing rules that send up copies of name servers' answers.
const ANSWERS: u64 = STANDING | 2 << 40;
const KIND_MASK: u64 = OURS_MASK | 0xff << 40;
/// The bits that identify a standing rule of any kind. Rules for flows differ in them.
const STANDING_MASK: u64 = OURS_MASK | 1 << 40;

const PRIORITY_REST: u16 = 0;
const PRIORITY_ANSWERS: u16 = 500;
const PRIORITY_PROTECTED: u16 = 1000;
const PRIORITY_FLOW: u16 = 2000;
/// Higher than rules for flows, because a SYN never belongs to an existing flow.
const PRIORITY_SYN: u16 = 3000;

/// Seconds without a packet after which a flow's rules expire; the next packet installs them again.
const IDLE: u16 = 60;
/// Seconds after which a rule for a flow of datagrams expires, so that the next datagram comes up and gets a token
/// (wire.md §4.1).
const DATAGRAMS: u16 = 15;
/// Seconds after which the rule expires that was installed with a flow's first datagram, whose token may have been
/// lost.
const DATAGRAMS_FIRST: u16 = 2;

const ONLY_SYN: Masked = Masked { value: tcp_flags::SYN as u16, mask: (tcp_flags::SYN | tcp_flags::ACK) as u16 };

/// Returns the standing rules for these protected prefixes. Install them before removing the rules of earlier
/// generations, so that a rule is in force at every moment.
pub fn standing(protected: &[Protected], generation: u16) -> Vec<FlowMod> {
    let add = |priority, matching, to| FlowMod {
        command: Command::Add,
        cookie: STANDING | u64::from(generation),
        cookie_mask: 0,
        priority,
        idle_timeout: 0,
        hard_timeout: 0,
        matching,
        to: Some(to),
        copy: false,
    };
    let mut rules = vec![add(PRIORITY_REST, Match::default(), port::NORMAL)];
    for entry in protected {
        let services = entry.services.spans.iter().take(entry.services.count as usize);
        for service in services {
            let protocols: &[u8] = match service.protocol {
                0 => &[TCP, UDP],
                TCP => &[TCP],
                UDP => &[UDP],
                // Packets of other protocols carry no token.
                _ => &[],
            };
            for (protocol, ports) in protocols.iter().flat_map(|protocol| {
                let every = service.protocol == 0;
                let spans = if every { spans(0, u16::MAX) } else { spans(service.first_port, service.last_port) };
                spans.into_iter().map(move |ports| (*protocol, ports))
            }) {
                let matching = Match {
                    destination: Some(entry.prefix),
                    protocol: Some(protocol),
                    destination_port: Some(ports),
                    ..Match::default()
                };
                if protocol == TCP {
                    let syn = Match { tcp_flags: Some(ONLY_SYN), ..matching.clone() };
                    rules.push(add(PRIORITY_SYN, syn, port::CONTROLLER));
                }
                rules.push(add(PRIORITY_PROTECTED, matching, port::CONTROLLER));
            }
        }
    }
    rules
}

/// Returns the rules that send up name servers' answers while the switch also forwards them, without waiting for the
/// controller.
pub fn answers(generation: u16) -> impl Iterator<Item = FlowMod> {
    let families = [IpNet::from(IpAddr::from([0; 4])), IpNet::from(IpAddr::from([0; 16]))];
    families.into_iter().map(move |family| FlowMod {
        command: Command::Add,
        cookie: ANSWERS | u64::from(generation),
        cookie_mask: 0,
        priority: PRIORITY_ANSWERS,
        idle_timeout: 0,
        hard_timeout: 0,
        matching: Match {
            destination: IpNet::new(family.addr(), 0).ok(),
            protocol: Some(UDP),
            source_port: Some(Masked::exactly(DNS_PORT)),
            ..Match::default()
        },
        to: Some(port::NORMAL),
        copy: true,
    })
}

/// Reports whether a rule with this cookie sends up copies of answers.
pub fn is_for_answers(cookie: u64) -> bool {
    cookie & KIND_MASK == ANSWERS
}

/// Returns messages that remove the standing rules of every other generation. There is one for each bit, which removes
/// the generations that differ from this one in that bit.
pub fn without_other_generations(generation: u16) -> impl Iterator<Item = FlowMod> {
    (0..u16::BITS).map(move |bit| FlowMod {
        command: Command::Delete,
        cookie: STANDING | u64::from(generation ^ 1 << bit),
        cookie_mask: STANDING_MASK | 1 << bit,
        priority: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        matching: Match::default(),
        to: None,
        copy: false,
    })
}

/// Reports whether a rule with this cookie is the controller's own.
pub fn is_ours(cookie: u64) -> bool {
    cookie & OURS_MASK == OURS
}

/// Returns rules for both directions of a packet's flow, so that the switch forwards the rest of the flow by itself.
/// Returns `None` unless the packet is TCP or UDP. `known` says that a datagram is not the first of its flow.
pub fn flow(packet: &Packet, known: bool) -> Option<[FlowMod; 2]> {
    let (source, destination) = (packet.source?, packet.destination?);
    if packet.protocol != TCP && packet.protocol != UDP {
        return None;
    }
    let hard = match (packet.protocol, known) {
        (TCP, _) => 0,
        (_, true) => DATAGRAMS,
        (_, false) => DATAGRAMS_FIRST,
    };
    let rule = |from: (IpAddr, u16), to: (IpAddr, u16), hard_timeout| FlowMod {
        command: Command::Add,
        cookie: FLOW,
        cookie_mask: 0,
        priority: PRIORITY_FLOW,
        idle_timeout: IDLE,
        hard_timeout,
        matching: Match {
            source: Some(IpNet::from(from.0)),
            destination: Some(IpNet::from(to.0)),
            protocol: Some(packet.protocol),
            source_port: Some(Masked::exactly(from.1)),
            destination_port: Some(Masked::exactly(to.1)),
            ..Match::default()
        },
        to: Some(port::NORMAL),
        copy: false,
    };
    let (client, server) = ((source, packet.source_port), (destination, packet.destination_port));
    Some([rule(client, server, hard), rule(server, client, 0)])
}
