//! The rules that the controller installs in a switch: they determine which packets the switch sends up to the
//! controller, and which it forwards by itself.

use super::matching::{Masked, Match, spans};
use super::message::{Command, FlowMod, port};
use crate::discovery::message::DNS_PORT;
use crate::model::protected::Protected;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use wire::packet::{Packet, TCP, UDP, tcp_flags};
use wire::shim::IPIP;

/// Cookie of the controller's own rules: the text "VS" in the highest bits. The lower bits hold the rule's kind and
/// generation.
const OURS: u64 = 0x5653 << 48;
const OURS_MASK: u64 = 0xffff << 48;
/// Cookie of standing rules: the rules that send packets up, and the default rule with the lowest priority.
const STANDING: u64 = OURS | 1 << 40;
/// Cookie of rules for one flow.
const FLOW: u64 = OURS | 2 << 40;
/// Cookie of standing rules that send up copies of name servers' answers.
const ANSWERS: u64 = STANDING | 2 << 40;
const KIND_MASK: u64 = OURS_MASK | 0xff << 40;
/// Mask for the cookies of standing rules of every kind, which excludes rules for flows.
const STANDING_MASK: u64 = OURS_MASK | 1 << 40;

const PRIORITY_REST: u16 = 0;
const PRIORITY_ANSWERS: u16 = 500;
const PRIORITY_PROTECTED: u16 = 1000;
const PRIORITY_FLOW: u16 = 2000;
/// Priority of rules for SYNs. It is higher than that of rules for flows, because a SYN never belongs to an existing
/// flow.
const PRIORITY_SYN: u16 = 3000;

/// Seconds without a packet after which a flow's rules expire. The next packet makes the controller install them again.
const IDLE: u16 = 60;
/// Seconds after which a rule for a UDP flow expires, so that the switch sends the next datagram up, which then gets a
/// token (wire.md §4.1).
const DATAGRAMS: u16 = 15;
/// Seconds after which the rule for a flow's first datagram expires. The time is short because the token in this
/// datagram may have been lost.
const DATAGRAMS_FIRST: u16 = 2;

const ONLY_SYN: Masked = Masked { value: tcp_flags::SYN as u16, mask: (tcp_flags::SYN | tcp_flags::ACK) as u16 };

/// Seconds for which the switch sends up the authority's answer to the SYN of a device.
const ANSWER: u16 = 30;
const SYN_ACK: Masked = Masked {
    value: (tcp_flags::SYN | tcp_flags::ACK) as u16,
    mask: (tcp_flags::SYN | tcp_flags::ACK | tcp_flags::RST) as u16,
};

/// Returns the standing rules for these protected prefixes, and for connections to these authorities. The caller must
/// install these rules before it removes the rules of earlier generations, so that packets always match a rule.
pub fn standing(protected: &[Protected], authorities: &[SocketAddrV4], generation: u16) -> Vec<FlowMod> {
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
    for end in authorities {
        let syn = Match {
            destination: Some(IpNet::from(IpAddr::from(*end.ip()))),
            protocol: Some(TCP),
            destination_port: Some(Masked::exactly(end.port())),
            tcp_flags: Some(ONLY_SYN),
            ..Match::default()
        };
        rules.push(add(PRIORITY_SYN, syn, port::CONTROLLER));
    }
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

/// Returns the standing rules that send copies of name servers' answers up. The switch forwards the answers without
/// waiting for the controller.
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

/// Returns messages that remove the standing rules of all generations other than `generation`. Each message is for one
/// bit of a generation's number. It removes the rules of all generations whose number differs from `generation` in this
/// bit.
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

/// Returns a rule that sends up the authority's answer to the SYN of a device.
pub fn answer_to(authority: SocketAddrV4, client: SocketAddrV4) -> FlowMod {
    let matching = Match {
        source_port: Some(Masked::exactly(authority.port())),
        destination_port: Some(Masked::exactly(client.port())),
        tcp_flags: Some(SYN_ACK),
        ..between(*authority.ip(), *client.ip(), TCP)
    };
    FlowMod { priority: PRIORITY_SYN, hard_timeout: ANSWER, ..up(matching) }
}

/// Returns a rule that sends up packets of protocol 4 from an authority to a client. The rule applies to packets that
/// come through the port `in_port`, and lasts for `seconds` seconds.
pub fn transfers(authority: Ipv4Addr, client: Ipv4Addr, in_port: u32, seconds: u16) -> FlowMod {
    let matching = Match { in_port: Some(in_port), ..between(authority, client, IPIP) };
    FlowMod { hard_timeout: seconds, ..up(matching) }
}

/// Returns a message that removes the rules of [`transfers`] for this authority and client.
pub fn without_transfers(authority: Ipv4Addr, client: Ipv4Addr) -> FlowMod {
    FlowMod { command: Command::Delete, cookie_mask: KIND_MASK, to: None, ..up(between(authority, client, IPIP)) }
}

fn between(from: Ipv4Addr, to: Ipv4Addr, protocol: u8) -> Match {
    let host = |address: Ipv4Addr| Some(IpNet::from(IpAddr::from(address)));
    Match { source: host(from), destination: host(to), protocol: Some(protocol), ..Match::default() }
}

fn up(matching: Match) -> FlowMod {
    FlowMod {
        command: Command::Add,
        cookie: FLOW,
        cookie_mask: 0,
        priority: PRIORITY_FLOW,
        idle_timeout: 0,
        hard_timeout: 0,
        matching,
        to: Some(port::CONTROLLER),
        copy: false,
    }
}

/// Returns rules for both directions of a packet's flow, so that the switch forwards the rest of the flow by itself.
/// Returns `None` unless the packet is TCP or UDP. If the packet is a datagram, `known` says whether an earlier
/// datagram belonged to the same flow.
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
