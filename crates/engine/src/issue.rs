//! Makes a grant on a rule's terms: header and key (wire.md §3). Handle, time and key are passed in.

use crate::api;
use crate::policy::{Permit, Scope, Terms};
use std::fmt;
use std::net::IpAddr;
use wire::{Carrier, Destination, Epoch, Flags, GrantHeader, GrantKey, Handle, VerifierKey};

/// A verifier judges lifetimes by its own clock (wire.md §6.4); grants stay this much below the maximum, seconds, or half of
/// it where that is less.
pub const CLOCK_MARGIN: u32 = 30;

/// What a grant is made of.
pub struct Issue<'a> {
    /// The terms on which it may be made.
    pub terms: Terms,
    /// The destinations that it may cover.
    pub scope: Scope,
    /// When it has to end, if its terms alone don't say so.
    pub until: Option<u64>,
    /// What was asked for.
    pub to: Destination,
    /// The requester's address as the authority sees it.
    pub source: IpAddr,
    /// A fresh random handle.
    pub handle: Handle,
    /// Unix seconds.
    pub now: u64,
    /// Seconds an epoch lasts.
    pub epoch_length: u32,
    /// The longest lifetime that verifiers accept, seconds.
    pub max_lifetime: u32,
    /// The key of the receiver's verifier for the epoch of `now`.
    pub verifier_key: &'a VerifierKey,
}

/// A grant. Has no `Debug`: it holds the key.
pub struct Issued {
    /// The fields that travel.
    pub header: GrantHeader,
    /// The secret.
    pub key: GrantKey,
    /// The destinations it covers.
    pub scope: Scope,
    /// How its tokens travel.
    pub carrier: Carrier,
}

/// Why a permitted grant can't be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssueError {
    /// The rule binds grants to the source address, and the requester came over the other address family.
    SourceFamily,
    /// The time doesn't fit the format's 32 bits.
    Time,
}

impl fmt::Display for IssueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SourceFamily => {
                "the rule binds grants to your address: reach the authority over the receiver's address family"
            }
            Self::Time => "the authority's clock is beyond what grants can express",
        })
    }
}

impl std::error::Error for IssueError {}

impl Issue<'_> {
    /// Makes the grant.
    pub fn issue(&self) -> Result<Issued, IssueError> {
        let (terms, scope) = (self.terms, self.scope);
        if terms.bind_source && self.source.is_ipv4() != self.to.address.is_ipv4() {
            return Err(IssueError::SourceFamily);
        }
        let lifetime = terms.lifetime.min(self.max_lifetime - CLOCK_MARGIN.min(self.max_lifetime / 2));
        let expires = self.now.saturating_add(lifetime.into());
        let expires = self.until.map_or(expires, |until| until.min(expires));
        let expires = u32::try_from(expires).map_err(|_| IssueError::Time)?;
        let flags = [
            (scope.service.is_some(), Flags::PORT),
            (terms.bind_source, Flags::SOURCE),
            (terms.reply, Flags::REPLY),
            (terms.single, Flags::SINGLE),
            (self.to.address.is_ipv6(), Flags::IPV6),
        ];
        let header = GrantHeader {
            suite: terms.suite,
            flags: flags.iter().filter(|(set, _)| *set).fold(Flags::default(), |all, (_, flag)| all.with(*flag)),
            epoch: Epoch::at(self.now, self.epoch_length).on_wire(),
            prefix_length: scope.prefix.prefix_len(),
            expires,
            handle: self.handle,
        };
        // A protocol without ports has port 0 in every packet's destination block.
        let port = scope.service.map_or(self.to.port, |(_, port)| port);
        let key = header.key(self.verifier_key, &Destination { port, ..self.to }, self.source);
        // A shim is IPv4's.
        let carrier = if self.to.address.is_ipv4() { terms.carrier } else { Carrier::Tail };
        Ok(Issued { header, key, scope, carrier })
    }
}

impl Issued {
    /// The grant as the API hands it to its holder.
    pub fn answer(&self, permit: &Permit<'_>, now: u64) -> api::Grant {
        api::Grant {
            header: hex::encode(self.header.encode()),
            key: hex::encode(self.key.bytes()),
            prefix: self.scope.prefix,
            receiver: permit.receiver.name.clone(),
            rule: permit.rule.label(),
            carrier: self.carrier.name().into(),
            expires: self.header.expires.into(),
            now,
        }
    }

    /// Whose the grant is, as the verifier is told.
    pub fn owner(&self, permit: &Permit<'_>, person: &str, device: &str, now: u64) -> api::GrantOwner {
        api::GrantOwner {
            handle: self.header.handle.0,
            person: person.into(),
            device: device.into(),
            receiver: permit.receiver.name.clone(),
            rule: permit.rule.label(),
            issued: now,
            expires: self.header.expires.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Decision, Policy, Request, Subject};
    use wire::{MasterKey, Suite, Token};

    const NOW: u64 = 1_800_000_000;

    fn policy(terms: &str) -> Policy {
        let text = format!(
            "[[receivers]]\nname = \"lab\"\naddress = [\"203.0.113.0/28\", \"2001:db8::/64\"]\nservices = \"all\"\n\
             verifier = \"edge\"\n[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \"lab\"\n{terms}"
        );
        Policy::parse(&text, 3600).unwrap()
    }

    fn issue(terms: &str, to: &str, source: &str) -> Result<(Issued, VerifierKey, Destination), IssueError> {
        issue_within(3600, terms, to, source)
    }

    fn issue_within(
        max_lifetime: u32,
        terms: &str,
        to: &str,
        source: &str,
    ) -> Result<(Issued, VerifierKey, Destination), IssueError> {
        let policy = policy(terms);
        let to = Destination { address: to.parse().unwrap(), protocol: 6, port: 22 };
        let request = Request { subject: Subject::person("alice"), to, now: NOW };
        let Decision::Allowed(permit) = policy.decide(&request) else { panic!() };
        let verifier_key = MasterKey::new([7; 32]).verifier_key("edge", Epoch::at(NOW, 3600)).unwrap();
        let issue = Issue {
            terms: permit.rule.terms,
            scope: permit.scope,
            until: permit.until,
            to,
            source: source.parse().unwrap(),
            handle: Handle(0x1234),
            now: NOW,
            epoch_length: 3600,
            max_lifetime,
            verifier_key: &verifier_key,
        };
        Ok((issue.issue()?, verifier_key, to))
    }

    #[test]
    fn a_verifier_recomputes_the_grants_key_from_its_header() {
        for (terms, address, source) in [
            ("", "203.0.113.3", "192.0.2.1"),
            ("granularity = \"host\"\nbind_source = true", "2001:db8::5", "2001:db8:9::1"),
            ("granularity = \"network\"\nsuite = \"aes-cmac\"\nsingle = true", "203.0.113.3", "192.0.2.1"),
            ("granularity = \"flow\"\nreply = true", "203.0.113.3", "192.0.2.1"),
        ] {
            let (issued, verifier_key, to) = issue(terms, address, source).unwrap();
            let token = Token::new(issued.header, &issued.key, NOW as u32, 1, &to);
            let read = Token::decode(&token.encode(), to.address.is_ipv6()).unwrap();
            assert!(read.proves(&read.header.key(&verifier_key, &to, source.parse().unwrap()), &to), "{terms}");
        }
    }

    #[test]
    fn flags_and_prefix_follow_the_terms() {
        let (plain, ..) = issue("", "203.0.113.3", "192.0.2.1").unwrap();
        assert_eq!((plain.header.flags, plain.header.prefix_length), (Flags::PORT, 32));
        assert_eq!((plain.header.suite, plain.header.expires), (Suite::Siphash, NOW as u32 + 300));
        let (wide, ..) = issue("granularity = \"network\"\nsingle = true", "2001:db8::5", "192.0.2.1").unwrap();
        assert_eq!((wide.header.flags, wide.header.prefix_length), (Flags::SINGLE.with(Flags::IPV6), 64));
        let (flow, ..) = issue("granularity = \"flow\"\nreply = true", "203.0.113.3", "192.0.2.1").unwrap();
        let expected = Flags::PORT.with(Flags::SINGLE).with(Flags::REPLY);
        assert_eq!((flow.header.flags, flow.header.prefix_length), (expected, 32));
    }

    #[test]
    fn tokens_travel_as_the_rule_says_and_to_ipv6_by_tail() {
        for (terms, address, carrier) in [
            ("", "203.0.113.3", Carrier::Tail),
            ("carrier = \"tail\"", "203.0.113.3", Carrier::Tail),
            ("carrier = \"shim\"", "203.0.113.3", Carrier::Shim),
            ("carrier = \"shim\"", "2001:db8::5", Carrier::Tail),
        ] {
            let (issued, ..) = issue(terms, address, "192.0.2.1").unwrap();
            assert_eq!(issued.carrier, carrier, "{terms} {address}");
        }
    }

    #[test]
    fn a_grant_stays_below_the_verifiers_maximum() {
        let (issued, ..) = issue("lifetime = \"1h\"", "203.0.113.3", "192.0.2.1").unwrap();
        assert_eq!(u64::from(issued.header.expires), NOW + 3570);
        for (maximum, lifetime) in [(20, 10), (60, 30), (90, 60)] {
            let (issued, ..) = issue_within(maximum, "lifetime = \"1h\"", "203.0.113.3", "192.0.2.1").unwrap();
            assert_eq!(u64::from(issued.header.expires), NOW + lifetime, "of {maximum}");
        }
    }

    #[test]
    fn a_grant_ends_with_the_window_of_its_rule() {
        // NOW is 08:00:00 UTC of a Friday.
        for (hours, lifetime) in [("08:00-08:02", 120), ("07:00-09:00", 300), ("08:00-08:05", 300)] {
            let terms = format!("when = {{ hours = \"{hours}\" }}");
            let (issued, ..) = issue(&terms, "203.0.113.3", "192.0.2.1").unwrap();
            assert_eq!(u64::from(issued.header.expires), NOW + lifetime, "{hours}");
        }
    }

    #[test]
    fn a_source_of_the_other_family_cant_be_bound() {
        let bound = issue("bind_source = true", "203.0.113.3", "2001:db8:9::1");
        assert_eq!(bound.err(), Some(IssueError::SourceFamily));
    }
}
