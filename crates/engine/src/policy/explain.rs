//! Decisions in words.

use super::text::protocol_name;
use super::{Decision, Permit, Request, has_ports};
use crate::api;
use std::fmt;
use wire::Destination;

impl Decision<'_> {
    /// The decision as the API explains it.
    pub fn explain(&self, request: &Request<'_>) -> api::Explanation {
        let person = request.subject.person;
        let (receiver, rule) = match self {
            Self::NoReceiver => (None, None),
            Self::DefaultDeny { receiver } => (Some(&receiver.name), None),
            Self::Denied { receiver, rule } | Self::Allowed(Permit { receiver, rule, .. }) => {
                (Some(&receiver.name), Some(rule.label()))
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

/// A destination as people write it.
pub(super) struct Place<'d>(pub(super) &'d Destination);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Destination { address, protocol, port } = self.0;
        match protocol_name(*protocol) {
            Some(name) if has_ports(*protocol) => write!(f, "{address} {name}/{port}"),
            Some(name) => write!(f, "{address} {name}"),
            None => write!(f, "{address} protocol {protocol}"),
        }
    }
}
