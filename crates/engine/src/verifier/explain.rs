//! Explains whether a packet would pass. Makes the decision with an observer, and does not change the tables.

use super::Outcome;
use super::decide::Decision;
use super::observer::Observer;
use super::overlay::Overlay;
use super::tables::Tables;
use std::net::{IpAddr, SocketAddr};
use wire::DropReason;
use wire::packet::{ICMP, ICMPV6, TCP, UDP, tcp_flags};

/// A check that a packet passed or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Name of the check.
    pub name: &'static str,
    /// Whether the packet passed the check.
    pub passed: bool,
    /// The finding of the check, in words.
    pub text: String,
}

/// An observer that collects the checks.
#[derive(Clone, Debug, Default)]
pub struct Trace(Vec<Check>);

impl Observer for Trace {
    fn check(&mut self, name: &'static str, passed: bool, text: impl FnOnce() -> String) {
        self.0.push(Check { name, passed, text: text() });
    }
}

/// The outcome that a packet would have, and the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Outcome of the decision.
    pub outcome: Outcome,
    /// The checks in the order in which they were made. If the packet is dropped, the last check that failed shows the
    /// reason.
    pub checks: Vec<Check>,
    /// Whether a verifier that only observes or marks drops this packet, too, if the outcome is a drop (wire.md
    /// §4.6.3).
    pub is_never_spared: bool,
}

impl Explanation {
    /// Returns the explanation in one sentence.
    pub fn text(&self) -> String {
        let failed = self.checks.iter().rev().find(|check| !check.passed);
        match self.outcome {
            Outcome::NotOurs => "the packet passes: its destination is not protected".into(),
            Outcome::Flow => "the packet passes: it belongs to an admitted flow".into(),
            Outcome::Token => "the packet passes, and its token is valid and removed".into(),
            Outcome::Consumed => {
                "the packet contains only a token: its flow is admitted, and the packet is not passed on".into()
            }
            Outcome::IcmpError => "the packet passes: it is an ICMP error about an admitted flow".into(),
            Outcome::Stranger => {
                "the packet passes without a token: everybody may send to its destination, and its sender is not known"
                    .into()
            }
            Outcome::Drop(reason) => match failed {
                Some(check) => format!("the packet is dropped ({reason}): {}: {}", check.name, check.text),
                None => format!("the packet is dropped ({reason})"),
            },
        }
    }
}

/// Explains the decision about an Ethernet frame, or an IP packet out of a sealed tunnel, at `now` (Unix seconds). The
/// tables do not change.
pub fn explain(tables: &impl Tables, frame: &[u8], now: u32) -> Explanation {
    let (mut overlay, mut trace) = (Overlay::new(tables), Trace::default());
    let mut decision = Decision::new(&mut overlay, &mut trace, now);
    let (outcome, is_never_spared) = (decision.outcome(&mut frame.to_vec()), decision.is_never_spared);
    Explanation { outcome, checks: trace.0, is_never_spared }
}

/// Explains the decision about a packet without a token that goes from the address `from` to the address `to`. If their
/// flow is admitted, the packet is a later packet of the flow, otherwise a first packet. Returns `None` if one address
/// is IPv4 and the other IPv6.
pub fn explain_flow(
    tables: &impl Tables,
    from: SocketAddr,
    to: SocketAddr,
    protocol: u8,
    now: u32,
) -> Option<Explanation> {
    let link = if tables.in_tunnel() { ETHERNET_LEN } else { 0 };
    let of = |flags| Some(frame(from, to, protocol, flags)?.split_off(link));
    let later = explain(tables, &of(tcp_flags::ACK)?, now);
    if later.outcome != Outcome::Drop(DropReason::NoFlow) {
        return Some(later);
    }
    let mut first = explain(tables, &of(tcp_flags::SYN)?, now);
    // For a SYN, the flow is not looked up. Include the check that explains why a later packet would not pass either.
    let behind_destination = first.checks.len().saturating_sub(1);
    let flow = later.checks.into_iter().filter(|check| check.name == "flow");
    first.checks.splice(behind_destination..behind_destination, flow);
    Some(first)
}

const ETHERNET_LEN: usize = 14;

/// Returns the shortest packet between these addresses, with these flags if it is TCP.
fn frame(from: SocketAddr, to: SocketAddr, protocol: u8, flags: u8) -> Option<Vec<u8>> {
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let transport = match protocol {
        TCP => [&ports[..], &[0; 8], &[0x50, flags], &[0; 6]].concat(),
        UDP => [&ports[..], &[0, 8, 0, 0]].concat(),
        ICMP => vec![8, 0, 0, 0, 0, 0, 0, 0],
        ICMPV6 => vec![128, 0, 0, 0, 0, 0, 0, 0],
        _ => Vec::new(),
    };
    let length = transport.len() as u16;
    let ip = match (from.ip().to_canonical(), to.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let length = (20 + length).to_be_bytes();
            let head = [0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, protocol, 0, 0];
            [&[0x08, 0x00], &head[..], &from.octets(), &to.octets()].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = length.to_be_bytes();
            let head = [0x60, 0, 0, 0, length[0], length[1], protocol, 64];
            [&[0x86, 0xdd], &head[..], &from.octets(), &to.octets()].concat()
        }
        _ => return None,
    };
    Some([&[0; 12], &ip[..], &transport].concat())
}
