//! Explains decisions of the policy in words.

use super::delegation::Consented;
use super::text::protocol_name;
use super::{Decision, Request, has_ports};
use crate::model::Service;
use std::fmt;
use wire::Destination;

/// A decision of the policy, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Whether the authority would issue a grant.
    pub allowed: bool,
    /// Name of the receiver, if the destination belongs to one.
    pub receiver: Option<String>,
    /// Label of the rule, list or consent that decided; `None` if none matched.
    pub rule: Option<String>,
    /// The decision and its reason, in one sentence.
    pub text: String,
}

impl Decision<'_> {
    /// Explains this decision about `request` in words.
    pub fn explain(&self, request: &Request<'_>) -> Explanation {
        let person = request.subject.words();
        let (receiver, rule) = match self {
            Self::NoReceiver => (None, None),
            Self::DefaultDeny { receiver } => (Some(&receiver.name), None),
            Self::Denied { receiver, rule } => (Some(&receiver.name), Some(rule.label().to_string())),
            Self::Allowed(permit) => (Some(&permit.receiver.name), Some(permit.label().to_string())),
        };
        let place = DestinationText(&request.to);
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
                let by = match &permit.consent {
                    None => rule.to_string(),
                    Some(Consented { id, by }) => format!("consent {id} of {by} ({rule})"),
                };
                format!("{person} may reach {place} (receiver {receiver}): allowed by {by}")
            }
        };
        let allowed = matches!(self, Self::Allowed(_));
        Explanation { allowed, receiver: receiver.cloned(), rule, text }
    }
}

/// Writes a span of [`Spans`](super::spans::Spans) in the notation for services.
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

/// Writes a service in the notation of the policy file.
pub fn service(service: &Service) -> String {
    let end = |port: u16| u32::from(service.protocol) << 16 | u32::from(port);
    match service.protocol {
        0 => "all".into(),
        _ => service_words((end(service.first_port), end(service.last_port))).join(", "),
    }
}

/// Writes a destination in the notation that [`destination`](super::destination) reads.
pub fn place(to: &Destination) -> String {
    DestinationText(to).to_string()
}

/// A destination that displays in readable notation.
pub(super) struct DestinationText<'d>(pub(super) &'d Destination);

impl fmt::Display for DestinationText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Destination { address, protocol, port } = self.0;
        match protocol_name(*protocol) {
            Some(name) if has_ports(*protocol) => write!(f, "{address} {name}/{port}"),
            Some(name) => write!(f, "{address} {name}"),
            None => write!(f, "{address} {protocol}"),
        }
    }
}
