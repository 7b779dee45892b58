//! Issues grants on a rule's terms: a grant's header and key (wire.md §3), or a pair and its client key (§5).
//! Randomness, time and keys are arguments.

use crate::model::Secret;
use crate::policy::{GrantSuite, Scope, Terms};
use std::fmt;
use std::net::IpAddr;
use wire::{
    Carrier, ClientKey, Destination, Epoch, Flags, GrantHeader, Handle, Holder, Pair, ServerSecret, VerifierKey,
};

/// Number of seconds by which a grant's lifetime stays below the maximum that verifiers accept. The margin is needed
/// because a verifier checks lifetimes by its own clock (wire.md §6.4). The margin is at most half of the maximum.
pub const CLOCK_MARGIN: u32 = 30;

/// A request for a grant, with the data from which the grant is issued.
pub struct Issue<'a> {
    /// The terms on which the policy allows the grant.
    pub terms: Terms,
    /// Destinations that the grant is allowed to cover.
    pub scope: Scope,
    /// The latest time at which the grant may end. The terms can end it earlier. `None` if only the terms limit its
    /// lifetime.
    pub until: Option<u64>,
    /// The destination to which the requester wants to send.
    pub to: Destination,
    /// The requester's address as the authority sees it.
    pub source: IpAddr,
    /// Account and session of the grant's holder. Only the verifier can read them from the handle.
    pub holder: Holder,
    /// New random bits, for the handle.
    pub chance: u64,
    /// The current time, in Unix seconds.
    pub now: u64,
    /// Length of an epoch, in seconds.
    pub epoch_length: u32,
    /// The longest lifetime that verifiers accept, in seconds.
    pub max_lifetime: u32,
    /// The key of the receiver's verifier for the epoch of `now`.
    pub verifier_key: &'a VerifierKey,
}

/// A grant that was issued. Has no `Debug` because it contains the key.
pub struct Issued {
    secret: Secret,
    /// When the grant expires, in Unix seconds.
    pub expires: u32,
    /// The epoch of the verifier key from which the grant's key derives.
    pub epoch: Epoch,
    /// Account and session of the grant's holder.
    pub holder: Holder,
    /// Destinations that the grant covers.
    pub scope: Scope,
    /// Carrier of the grant's tokens.
    pub carrier: Carrier,
}

/// Reason why a permitted grant can't be issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssueError {
    /// The rule binds grants to the source address, but the requester's address and the destination are of different
    /// families.
    SourceFamily,
    /// The rule demands a sealed tunnel, but its suite is `sha224`, whose pairs can't contain this demand.
    SealedPair,
    /// The time does not fit into the 32 bits that the format has.
    Time,
}

impl fmt::Display for IssueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SourceFamily => {
                "the rule binds grants to your address, but you reach the authority over another IP version than the \
                 receiver: reach both over IPv4 or both over IPv6"
            }
            Self::SealedPair => {
                "the rule demands a sealed tunnel, but tokens of suite \"sha224\" can't carry this demand"
            }
            Self::Time => "the authority's clock is later than the latest time that a grant can express",
        })
    }
}

impl std::error::Error for IssueError {}

impl Issue<'_> {
    /// Returns the longest time for which the grant can be valid, in seconds.
    pub fn lifetime(&self) -> u32 {
        self.terms.lifetime.min(self.max_lifetime - CLOCK_MARGIN.min(self.max_lifetime / 2))
    }

    /// Returns the flags that the grant gets if it is not a pair. A pair has no flags.
    pub fn flags(&self) -> Flags {
        let (terms, scope) = (&self.terms, &self.scope);
        let flags = [
            (scope.service.is_some(), Flags::PORT),
            (terms.bind_source, Flags::SOURCE),
            (terms.reply, Flags::REPLY),
            (terms.single, Flags::SINGLE),
            (self.to.address.is_ipv6(), Flags::IPV6),
            (terms.sealing.is_sealed(), Flags::SEALED),
        ];
        flags.iter().filter(|(set, _)| *set).fold(Flags::default(), |all, (_, flag)| all.with(*flag))
    }

    /// Issues the grant.
    ///
    /// # Errors
    ///
    /// Returns the reason why the grant can't be issued.
    pub fn issue(&self) -> Result<Issued, IssueError> {
        let (terms, scope) = (self.terms, self.scope);
        if terms.bind_source && self.source.is_ipv4() != self.to.address.is_ipv4() {
            return Err(IssueError::SourceFamily);
        }
        let expires = self.now.saturating_add(self.lifetime().into());
        let expires = self.until.map_or(expires, |until| until.min(expires));
        let expires = u32::try_from(expires).map_err(|_| IssueError::Time)?;
        let epoch = Epoch::at(self.now, self.epoch_length);
        let suite = match terms.suite {
            GrantSuite::Mac(suite) => suite,
            // A pair's tokens could not say that they are for a tunnel only.
            GrantSuite::Sha224 if terms.sealing.is_sealed() => return Err(IssueError::SealedPair),
            GrantSuite::Sha224 => {
                let pair = Pair::from_random(self.chance);
                let secret = ServerSecret::of(self.verifier_key).ok_or(IssueError::Time)?;
                let secret = Secret::Pair(pair, ClientKey::of(pair, secret.bytes()));
                return Ok(Issued { secret, expires, epoch, holder: self.holder, scope, carrier: Carrier::Shim });
            }
        };
        let header = GrantHeader {
            suite,
            flags: self.flags(),
            epoch: epoch.on_wire(),
            prefix_length: scope.prefix.prefix_len(),
            expires,
            handle: self.holder.handle(self.verifier_key, self.chance as u32),
        };
        // For a protocol without ports, every packet's destination block has port 0.
        let port = scope.service.map_or(self.to.port, |(_, port)| port);
        let key = header.key(self.verifier_key, &Destination { port, ..self.to }, self.source);
        // A shim works over IPv4 only.
        let carrier = if self.to.address.is_ipv4() { terms.carrier } else { Carrier::Tail };
        Ok(Issued { secret: Secret::Grant(header, key), expires, epoch, holder: self.holder, scope, carrier })
    }
}

impl Issued {
    /// Returns the grant's handle.
    pub fn handle(&self) -> Handle {
        match &self.secret {
            Secret::Grant(header, _) => header.handle,
            Secret::Pair(pair, _) => pair.handle(),
        }
    }

    /// Returns the grant's flags; a pair has none.
    pub fn flags(&self) -> Flags {
        match &self.secret {
            Secret::Grant(header, _) => header.flags,
            Secret::Pair(..) => Flags::default(),
        }
    }

    /// Returns the secret from which the grant's holder makes tokens.
    pub const fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Returns the pair if the grant is a pair. The verifier accepts a pair's tokens only after the authority has
    /// announced the pair. Other grants need no announcement.
    pub const fn pair(&self) -> Option<Pair> {
        match self.secret {
            Secret::Pair(pair, _) => Some(pair),
            Secret::Grant(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Decision, Policy, Request, Subject};
    use wire::{LsToken, MasterKey, Suite, Token};

    const NOW: u64 = 1_800_000_000;
    const HOLDER: Holder = Holder(0x0000_0503);

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
            terms: permit.terms,
            scope: permit.scope,
            until: permit.until,
            to,
            source: source.parse().unwrap(),
            holder: HOLDER,
            chance: 0x1234,
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
            let Secret::Grant(header, key) = &issued.secret else { panic!() };
            let token = Token::new(*header, key, NOW as u32, 1, &to);
            let read = Token::decode(&token.encode(), to.address.is_ipv6()).unwrap();
            assert!(read.proves(&read.header.key(&verifier_key, &to, source.parse().unwrap()), &to), "{terms}");
        }
    }

    impl Issued {
        fn prefix_length(&self) -> u8 {
            let Secret::Grant(header, _) = &self.secret else { panic!() };
            header.prefix_length
        }
    }

    #[test]
    fn flags_and_prefix_follow_the_terms() {
        let (plain, ..) = issue("", "203.0.113.3", "192.0.2.1").unwrap();
        assert_eq!((plain.flags(), plain.prefix_length()), (Flags::PORT, 32));
        let Secret::Grant(header, _) = &plain.secret else { panic!() };
        assert_eq!((header.suite, header.expires), (Suite::Siphash, NOW as u32 + 300));
        let (wide, ..) = issue("granularity = \"network\"\nsingle = true", "2001:db8::5", "192.0.2.1").unwrap();
        assert_eq!((wide.flags(), wide.prefix_length()), (Flags::SINGLE.with(Flags::IPV6), 64));
        let (flow, ..) = issue("granularity = \"flow\"\nreply = true", "203.0.113.3", "192.0.2.1").unwrap();
        let expected = Flags::PORT.with(Flags::SINGLE).with(Flags::REPLY);
        assert_eq!((flow.flags(), flow.prefix_length()), (expected, 32));
    }

    #[test]
    fn a_rule_that_demands_a_treatment_gives_grants_for_the_tunnel_only() {
        let way = "[[receivers]]\nname = \"way\"\naddress = \"192.0.2.1\"\nservices = \"udp/4499\"\nverifier = \"edge\"\n\
                   tunnel = true\n[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \"way\"\n";
        for treatment in ["authenticate", "encrypt"] {
            let (sealed, verifier_key, to) =
                issue(&format!("treatment = \"{treatment}\"\n{way}"), "203.0.113.3", "192.0.2.1").unwrap();
            assert_eq!(sealed.flags(), Flags::PORT.with(Flags::SEALED));
            let Secret::Grant(header, key) = &sealed.secret else { panic!() };
            assert_eq!(header.key(&verifier_key, &to, "10.0.0.1".parse().unwrap()).bytes(), key.bytes());
        }
        let (open, ..) = issue(&format!("treatment = \"none\"\n{way}"), "203.0.113.3", "192.0.2.1").unwrap();
        assert_eq!(open.flags(), Flags::PORT);
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
    fn a_verifier_recomputes_a_pairs_key_from_what_it_is_told() {
        let (issued, verifier_key, _) = issue("suite = \"sha224\"", "203.0.113.3", "192.0.2.1").unwrap();
        let Secret::Pair(pair, key) = &issued.secret else { panic!() };
        assert_eq!(
            (issued.handle(), issued.epoch, issued.expires),
            (Handle(0x1234), Epoch(NOW / 3600), NOW as u32 + 300)
        );
        assert_eq!((issued.pair(), Pair::of(issued.handle())), (Some(*pair), Some(*pair)));
        let secret = ServerSecret::of(&verifier_key).unwrap();
        assert!(LsToken::new(*pair, 7, key).proves(&ClientKey::of(*pair, secret.bytes())));
        assert_eq!((issued.carrier, issued.flags()), (Carrier::Shim, Flags::default()));
        assert_eq!(issued.holder, HOLDER);
    }

    #[test]
    fn the_verifier_alone_reads_in_a_handle_whose_the_grant_is() {
        let (issued, verifier_key, _) = issue("suite = \"aes-cmac\"", "203.0.113.3", "192.0.2.1").unwrap();
        assert_eq!(Holder::of(issued.handle(), &verifier_key), HOLDER);
        assert_ne!(Holder::of(issued.handle(), &VerifierKey::new([8; 32])), HOLDER);
    }

    #[test]
    fn no_other_grant_has_the_handle_of_a_pair() {
        let (issued, ..) = issue("", "203.0.113.3", "192.0.2.1").unwrap();
        assert_eq!((Pair::of(issued.handle()), issued.pair()), (None, None));
        assert_eq!(Pair::from_random(u64::MAX).handle(), Handle(u64::MAX >> 8));
    }

    #[test]
    fn to_ipv6_a_pair_gives_way_to_a_grant() {
        let (issued, ..) = issue("suite = \"sha224\"", "2001:db8::5", "192.0.2.1").unwrap();
        assert_eq!((issued.pair(), issued.carrier), (None, Carrier::Tail));
    }

    #[test]
    fn a_grant_stays_below_the_verifiers_maximum() {
        let (issued, ..) = issue("lifetime = \"1h\"", "203.0.113.3", "192.0.2.1").unwrap();
        assert_eq!(u64::from(issued.expires), NOW + 3570);
        for (maximum, lifetime) in [(20, 10), (60, 30), (90, 60)] {
            let (issued, ..) = issue_within(maximum, "lifetime = \"1h\"", "203.0.113.3", "192.0.2.1").unwrap();
            assert_eq!(u64::from(issued.expires), NOW + lifetime, "of {maximum}");
        }
    }

    #[test]
    fn a_grant_ends_with_the_window_of_its_rule() {
        // NOW is 08:00:00 UTC on a Friday.
        for (hours, lifetime) in [("08:00-08:02", 120), ("07:00-09:00", 300), ("08:00-08:05", 300)] {
            let terms = format!("when = {{ hours = \"{hours}\" }}");
            let (issued, ..) = issue(&terms, "203.0.113.3", "192.0.2.1").unwrap();
            assert_eq!(u64::from(issued.expires), NOW + lifetime, "{hours}");
        }
    }

    #[test]
    fn a_source_of_the_other_family_cant_be_bound() {
        let bound = issue("bind_source = true", "203.0.113.3", "2001:db8:9::1");
        assert_eq!(bound.err(), Some(IssueError::SourceFamily));
    }
}
