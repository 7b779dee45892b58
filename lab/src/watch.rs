//! Sends probes through a port and records the packets that come back, or the probes that reach another port.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;

use crate::forge::protocol;
use crate::port::Port;
use crate::probe::{Probe, Target, suite};
use crate::seen::{Seen, addresses};

/// Pause between two probes, so that none is lost in a queue on the way.
const PACE: Duration = Duration::from_micros(500);

/// One probe and the packets that came back because of it.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The probe's name.
    pub name: String,
    /// Packets that the target sent back, one line each.
    pub answers: Vec<String>,
    /// ICMP errors about the probe from other hosts: routers on the path, or a gateway before the target.
    pub remarks: Vec<String>,
}

/// Returns the findings of the probes that the target answered.
pub fn answered(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    findings.iter().filter(|finding| !finding.answers.is_empty())
}

/// Sends all probes of the suite out of `port`, and then listens there for the time `patience`. Returns, for each
/// probe, the packets that came back. Packets that belong to the suite, but to no single probe, are in a last finding
/// with the name `any of these`.
pub fn run(port: &Port, target: &Target, patience: Duration) -> Result<Vec<Finding>> {
    let probes = suite(target);
    for probe in &probes {
        for frame in &probe.frames {
            // Errors of the cable itself, for instance for a frame without an IP header, say nothing about the target.
            let _ = port.try_send(frame);
        }
        std::thread::sleep(PACE);
    }
    let name = |probe: Probe| Finding { name: probe.name.clone(), answers: Vec::new(), remarks: Vec::new() };
    let mut findings: Vec<_> = probes.iter().cloned().map(name).collect();
    findings.push(Finding { name: "any of these".into(), answers: Vec::new(), remarks: Vec::new() });
    port.receive(patience, |frame| {
        let seen = Seen::frame(frame).filter(|seen| seen.destination == target.source)?;
        let index = cause(target, &probes, &seen)?;
        let finding = &mut findings[index.unwrap_or(probes.len())];
        if seen.source == target.address { &mut finding.answers } else { &mut finding.remarks }.push(words(&seen));
        None::<()>
    });
    findings.pop_if(|others| others.answers.is_empty() && others.remarks.is_empty());
    Ok(findings)
}

/// Returns the index of the probe that a packet is related to; the outer `None` if it is unrelated to the suite, and
/// the inner `None` if it is related to the suite but not to one known probe.
fn cause(target: &Target, probes: &[Probe], seen: &Seen) -> Option<Option<usize>> {
    if seen.is_neighbour_discovery() {
        return None;
    }
    let from_port = |port: u16, protocol: u8| {
        let right = probes.iter().position(|probe| (probe.source_port, probe.protocol) == (port, protocol));
        right.or_else(|| probes.iter().position(|probe| probe.source_port == port))
    };
    if let Some(quoted) = seen.quoted() {
        let ours = quoted.destination == target.address;
        return ours.then(|| quoted.source_port.and_then(|port| from_port(port, quoted.protocol)));
    }
    if seen.source != target.address {
        return None;
    }
    match seen.ports {
        // A packet to another port belongs to other traffic.
        Some((_, port)) => from_port(port, seen.protocol).map(Some),
        None => Some(None),
    }
}

/// Returns the probes that reached `port`, which is behind a verifier: those that the verifier let through. The caller
/// has to open `port` before it sends the probes.
pub fn came_through(port: &Port, target: &Target) -> Vec<String> {
    let mut through = Vec::new();
    let probes = suite(target);
    port.receive(Duration::ZERO, |frame| {
        if addresses(frame) != Some((target.source, target.address)) {
            return None::<()>;
        }
        let Some(seen) = Seen::frame(frame) else {
            through.push(format!("unreadable: {}", hex::encode(frame)));
            return None;
        };
        let is_probe = seen.ports.is_none_or(|(port, _)| probes.iter().any(|probe| probe.source_port == port));
        if is_probe && !seen.is_neighbour_discovery() {
            through.push(words(&seen));
        }
        None
    });
    through
}

/// Describes a packet in one line.
pub fn words(seen: &Seen) -> String {
    let what = match (seen.protocol, seen.icmp, &seen.tcp) {
        (_, Some((kind, code)), _) => format!("ICMP {kind}/{code}"),
        (_, _, Some(tcp)) => format!("TCP {} to {} flags {:#04x}", tcp.source, tcp.destination, tcp.flags),
        (protocol::UDP, _, _) => seen.ports.map_or("UDP".into(), |(from, to)| format!("UDP {from} to {to}")),
        (number, _, _) => format!("protocol {number}"),
    };
    format!("{what} from {} ({} bytes of payload)", seen.source, seen.payload.len())
}

/// Beginning of the packet that an ICMP error quotes.
pub struct Quoted {
    /// Source port of the quoted packet.
    pub source_port: Option<u16>,
    /// Destination address of the quoted packet.
    pub destination: IpAddr,
    /// Protocol of the quoted packet; for IPv6 the next header of the first header, which can be an extension.
    pub protocol: u8,
}

impl Seen {
    /// Reports whether the packet belongs to IPv6's neighbour discovery. Without neighbour discovery, no host can be
    /// reached.
    pub fn is_neighbour_discovery(&self) -> bool {
        self.protocol == protocol::ICMPV6 && self.icmp.is_some_and(|(kind, _)| (133..=137).contains(&kind))
    }

    /// Returns the beginning of the packet that an ICMP error quotes.
    pub fn quoted(&self) -> Option<Quoted> {
        let (kind, _) = self.icmp?;
        let six = self.source.is_ipv6();
        let is_error = if six { (1..=4).contains(&kind) } else { matches!(kind, 3 | 4 | 11 | 12) };
        let quote = Some(&self.payload).filter(|_| is_error)?;
        let (header, destination) = if six {
            (40, IpAddr::from(<[u8; 16]>::try_from(quote.get(24..40)?).ok()?))
        } else {
            (usize::from(quote.first()? & 15) * 4, IpAddr::from(<[u8; 4]>::try_from(quote.get(16..20)?).ok()?))
        };
        let port = quote.get(header..header + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        let protocol = *quote.get(if six { 6 } else { 9 })?;
        Some(Quoted { source_port: port, destination, protocol })
    }
}
