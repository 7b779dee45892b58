//! Requests to the policy: subject, destination and time.

use super::normal;
use std::net::IpAddr;
use wire::Destination;

/// The subject of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subject<'s> {
    /// The person's name; empty for somebody of whom only the other fields are known.
    pub person: &'s str,
    /// Groups from the session's login, in addition to those of the policy.
    pub groups: &'s [String],
    /// Tags of the device from which the person asks.
    pub tags: &'s [String],
    /// The subject's address as the authority sees it. If it is not known, no rule about addresses matches.
    pub source: Option<IpAddr>,
}

impl<'s> Subject<'s> {
    /// Returns a subject of which only the name is known.
    pub fn person(person: &'s str) -> Self {
        Self { person, ..Self::default() }
    }

    /// Returns the person's name. For a subject without a name, returns a description, which contains the subject's
    /// group if there is one.
    pub(super) fn words(&self) -> String {
        match self.groups {
            [_, ..] if self.person.is_empty() => format!("a person in {}", self.groups.join(" and ")),
            _ => self.name().to_owned(),
        }
    }

    /// Returns the person's name. For a subject without a name, returns a description.
    pub(super) fn name(&self) -> &'s str {
        if self.person.is_empty() { "anyone else" } else { self.person }
    }
}

/// A request for a decision of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'s> {
    /// The subject that wants to send.
    pub subject: Subject<'s>,
    /// The destination. An IPv4 address must not be mapped into IPv6.
    pub to: Destination,
    /// The time for which to decide, in Unix seconds.
    pub now: u64,
}

impl Request<'_> {
    /// Returns the request with port 0 if packets of its protocol have no ports.
    pub(super) fn normal(&self) -> Self {
        Self { to: normal(&self.to), ..*self }
    }
}
