//! What a decision is asked about: who wants to send, where, and when.

use super::normal;
use std::net::IpAddr;
use wire::Destination;

/// Who wants to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subject<'s> {
    /// The person's name.
    pub person: &'s str,
    /// Groups that the session says they are in, besides those of the policy.
    pub groups: &'s [String],
    /// The tags of the device.
    pub tags: &'s [String],
    /// Where the authority sees them. Where it is not known, no rule about addresses matches.
    pub source: Option<IpAddr>,
}

impl<'s> Subject<'s> {
    /// A person of whom nothing else is known.
    pub fn person(person: &'s str) -> Self {
        Self { person, ..Self::default() }
    }

    /// The person's name, or words for whoever has none but a group.
    pub(super) fn words(&self) -> String {
        match self.groups {
            [_, ..] if self.person.is_empty() => format!("somebody in {}", self.groups.join(" and ")),
            _ => self.name().to_owned(),
        }
    }

    /// The person's name, or words for whoever has none.
    pub(super) fn name(&self) -> &'s str {
        if self.person.is_empty() { "anybody else" } else { self.person }
    }
}

/// A question to the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'s> {
    /// Who.
    pub subject: Subject<'s>,
    /// Where to. An IPv4 address is written as one, not mapped into IPv6.
    pub to: Destination,
    /// When, Unix seconds.
    pub now: u64,
}

impl Request<'_> {
    /// The same question, without the port that packets of the protocol don't have.
    pub(super) fn normal(&self) -> Self {
        Self { to: normal(&self.to), ..*self }
    }
}
