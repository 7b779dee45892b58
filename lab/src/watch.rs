//! What comes of probes: sent through a port, and everything that has to do with them heard at another.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;

use crate::forge::protocol;
use crate::port::Port;
use crate::probe::{Probe, Target, suite};
use crate::seen::Seen;

/// Between two probes, so that none is lost in a queue on the way.
const PACE: Duration = Duration::from_micros(500);

/// One probe, and what came of it.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The probe's name.
    pub name: String,
    /// What came back, one line per packet.
    pub answers: Vec<String>,
}

/// Sends the suite out of `port` and says for each probe what came back at `port`; listens for `patience` at the end.
pub fn run(port: &Port, target: &Target, patience: Duration) -> Result<Vec<Finding>> {
    let probes = suite(target);
    for probe in &probes {
        for frame in &probe.frames {
            // A cable's own limits (a frame without its IP header, for instance) are not the target's doing.
            let _ = port.send(frame);
        }
        std::thread::sleep(PACE);
    }
    let mut answers: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut others = Vec::new();
    port.receive(patience, |frame| {
        let (asked, words) = answer(target, &probes, frame)?;
        match asked {
            Some(index) => answers.entry(index).or_default().push(words),
            None => others.push(words),
        }
        None::<()>
    });
    let named = probes.into_iter().enumerate();
    let mut findings: Vec<_> = named
        .map(|(index, probe)| Finding { name: probe.name, answers: answers.remove(&index).unwrap_or_default() })
        .collect();
    if !others.is_empty() {
        findings.push(Finding { name: "any of these".into(), answers: others });
    }
    Ok(findings)
}

/// Whether `frame` is an answer to some probe: to which, if that can be told, and what it is.
fn answer(target: &Target, probes: &[Probe], frame: &[u8]) -> Option<(Option<usize>, String)> {
    let seen = Seen::frame(frame)?;
    if seen.destination != target.source || seen.is_neighbour_discovery() {
        return None;
    }
    let by_port = |port: u16| probes.iter().position(|probe| probe.source_port == port);
    if let Some(quoted) = seen.quoted() {
        // Whoever complains about a probe, the target or a router before it, gives something away.
        return (quoted.destination == target.address).then(|| (quoted.source_port.and_then(by_port), words(&seen)));
    }
    if seen.source != target.address {
        return None;
    }
    match seen.ports {
        Some((_, port)) => {
            let of_protocol = |index: usize| probes[index].name.starts_with("UDP") == (seen.protocol == protocol::UDP);
            let same_port =
                probes.iter().enumerate().filter(|(_, probe)| probe.source_port == port).map(|(index, _)| index);
            let found = same_port.clone().find(|index| of_protocol(*index)).or_else(|| same_port.clone().next())?;
            Some((Some(found), words(&seen)))
        }
        None => Some((None, words(&seen))),
    }
}

/// Everything that has come to `port` from the probing host and belongs to no connection of its own: what a verifier
/// let through. Call it before the probes leave, and ask at the end.
pub fn came_through(port: &Port, target: &Target) -> Vec<String> {
    let mut through = Vec::new();
    let probes = suite(target);
    port.receive(Duration::ZERO, |frame| {
        let seen = Seen::frame(frame)?;
        let is_probe = seen.ports.is_none_or(|(port, _)| probes.iter().any(|probe| probe.source_port == port));
        if seen.source == target.source
            && seen.destination == target.address
            && is_probe
            && !seen.is_neighbour_discovery()
        {
            through.push(words(&seen));
        }
        None::<()>
    });
    through
}

/// A packet in one line.
pub fn words(seen: &Seen) -> String {
    let what = match (seen.protocol, seen.icmp, &seen.tcp) {
        (_, Some((kind, code)), _) => format!("ICMP {kind}/{code}"),
        (_, _, Some(tcp)) => format!("TCP {} to {} flags {:#04x}", tcp.source, tcp.destination, tcp.flags),
        (protocol::UDP, _, _) => seen.ports.map_or("UDP".into(), |(from, to)| format!("UDP {from} to {to}")),
        (number, _, _) => format!("protocol {number}"),
    };
    format!("{what} from {} ({} bytes of payload)", seen.source, seen.payload.len())
}

/// What an ICMP error is about.
pub struct Quoted {
    /// Who sent what the error is about.
    pub source_port: Option<u16>,
    /// Where that went.
    pub destination: IpAddr,
}

impl Seen {
    /// Whether it is one of IPv6's neighbour discovery, without which nobody is reached at all.
    pub fn is_neighbour_discovery(&self) -> bool {
        self.protocol == protocol::ICMPV6 && self.icmp.is_some_and(|(kind, _)| (133..=137).contains(&kind))
    }

    /// The beginning of the packet that an ICMP error quotes.
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
        Some(Quoted { source_port: port, destination })
    }
}
