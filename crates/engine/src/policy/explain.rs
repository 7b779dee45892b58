//! Decisions in words.

use super::text::protocol_name;
use super::{Decision, Permit, Request, has_ports};
use crate::api;
use std::fmt;
use wire::Destination;

impl Decision<'_> {
    /// The decision as the API explains it.
    pub fn explain(&self, request: &Request<'_>) -> api::Explanation {
        let person = request.subject.words();
        let (receiver, rule) = match self {
            Self::NoReceiver => (None, None),
            Self::DefaultDeny { receiver } => (Some(&receiver.name), None),
            Self::Denied { receiver, rule } | Self::Allowed(Permit { receiver, rule, .. }) => {
                (Some(&receiver.name), Some(rule.label().to_string()))
            }
        };
        let place = Place(&request.to);
        let text = match self {
            Self::NoReceiver => format!("nothing is protected at {place}: no receiver of the policy covers it"),
            Self::DefaultDeny { receiver } => {
                format!("no rule lets {person} reach {place} (receiver {})", receiver.name)
            }
            Self::Denied { receiver, rule } => {
                format!("{person} may not reach {place} (receiver {}): denied by {}", receiver.name, rule.label())
            }
            Self::Allowed(permit) => {
                let (receiver, rule) = (&permit.receiver.name, permit.rule.label());
                format!("{person} may reach {place} (receiver {receiver}): allowed by {rule}")
            }
        };
        let allowed = matches!(self, Self::Allowed(_));
        api::Explanation { allowed, receiver: receiver.cloned(), rule, text }
    }
}

/// A span of [`Spans`](super::spans::Spans) as people write services.
pub(super) fn service_words((first, last): (u32, u32)) -> Vec<String> {
    let (from, to) = ((first >> 16) as u8, (last >> 16) as u8);
    let (first_port, last_port) = (first as u16, last as u16);
    let name = |protocol: u8| protocol_name(protocol).map_or_else(|| protocol.to_string(), ToOwned::to_owned);
    let ports = |protocol: u8, first: u16, last: u16| match (first, last) {
        (0, u16::MAX) => name(protocol),
        (first, last) if first == last => format!("{}/{first}", name(protocol)),
        (first, last) => format!("{}/{first}-{last}", name(protocol)),
    };
    if from == to {
        return vec![ports(from, first_port, last_port)];
    }
    let (mut words, mut whole) = (Vec::new(), (u16::from(from), u16::from(to)));
    if first_port > 0 {
        words.push(ports(from, first_port, u16::MAX));
        whole.0 += 1;
    }
    let tail = (last_port < u16::MAX).then(|| ports(to, 0, last_port));
    whole.1 -= u16::from(tail.is_some());
    match whole {
        (1, 255) => words.push("all".into()),
        (first, last) if first == last => words.push(name(first as u8)),
        (first, last) if first < last => words.push(format!("protocols {first}-{last}")),
        _ => {}
    }
    words.extend(tail);
    words
}

/// A service as a policy has it.
pub fn service(service: &api::Service) -> String {
    let end = |port: u16| u32::from(service.protocol) << 16 | u32::from(port);
    match service.protocol {
        0 => "all".into(),
        _ => service_words((end(service.first_port), end(service.last_port))).join(", "),
    }
}

/// A destination as people write it, and as [`destination`](super::destination) reads it.
pub fn place(to: &Destination) -> String {
    Place(to).to_string()
}

/// A destination as people write it.
pub(super) struct Place<'d>(pub(super) &'d Destination);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Destination { address, protocol, port } = self.0;
        match protocol_name(*protocol) {
            Some(name) if has_ports(*protocol) => write!(f, "{address} {name}/{port}"),
            Some(name) => write!(f, "{address} {name}"),
            None => write!(f, "{address} {protocol}"),
        }
    }
}
