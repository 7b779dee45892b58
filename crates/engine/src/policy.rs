//! The receivers' policy: who may send where, and when. A decision is a pure function of policy and request, and what it
//! says carries the rule that decided. Reading the file is `text`'s; nothing here asks for the time or does IO.
//!
//! Among the rules that match, the one of the highest priority decides, and among those of one priority the last. Where no
//! rule matches, the answer is no.

mod asker;
mod compile;
pub mod diff;
mod expectation;
mod explain;
mod index;
mod reach;
mod request;
mod scope;
mod spans;
mod text;
mod trace;
mod window;

pub use asker::{Asker, destination};
pub use compile::{Compiled, TooLarge};
pub use expectation::{Expectation, Failure, Outcome};
pub use explain::{place, service};
pub use request::{Request, Subject};
pub use scope::Scope;
pub use text::{MOST_TEXT, name_is_valid};
pub use trace::{Reason, Trace};
pub use window::{When, instant, written};

use crate::api;
use crate::document::Faults;
use index::Index;
use ipnet::IpNet;
use spans::Spans;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::grant::mask;
use wire::{Carrier, Destination, Suite};

/// A valid policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    groups: Arc<BTreeMap<String, BTreeSet<String>>>,
    receivers: Vec<Receiver>,
    /// The receivers by name.
    names: BTreeMap<String, usize>,
    rules: Vec<Rule>,
    expectations: Vec<Expectation>,
    index: Index,
    /// What is said of the receivers of each virtual network.
    networks: BTreeMap<String, Policy>,
}

/// Something protected: addresses and services behind one verifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Its unique name.
    pub name: String,
    /// Its addresses and networks, host bits cleared.
    pub prefixes: Vec<IpNet>,
    /// What of them is protected.
    pub services: Vec<api::Service>,
    /// The id of the verifier in front of it; nothing in a virtual network, whose paths have several.
    pub verifier: String,
    /// The virtual network that its addresses are of.
    pub network: Option<String>,
    /// The services as spans of [`Spans`].
    spans: Spans,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its place in the file, from 1.
    pub number: usize,
    /// The line it begins on.
    pub line: usize,
    /// Its name, where it has one.
    pub name: Option<String>,
    label: Arc<str>,
    /// What it says.
    pub action: Action,
    /// Which of several matching rules decides: the highest; of equals, the last.
    pub priority: u16,
    /// Whom it is about.
    pub who: Vec<Who>,
    /// The receivers it is about: indices into the policy's.
    to: Vec<usize>,
    /// When it holds.
    pub when: When,
    /// How the grants it allows are made.
    pub terms: Terms,
}

/// Whether a rule allows or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Grants are given.
    Allow,
    /// Grants are refused.
    Deny,
}

impl Action {
    /// The priority of rules that name none: so that deny wins over allow.
    pub const fn default_priority(self) -> u16 {
        match self {
            Self::Allow => 100,
            Self::Deny => 200,
        }
    }
}

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Every person who is logged in.
    Everyone,
    /// The members of a group.
    Group(String),
    /// One person.
    Person(String),
    /// Whoever uses a device with this tag.
    Tag(String),
    /// Whoever asks from there.
    Address(IpNet),
}

/// How wide a grant is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// One protocol and port of one address.
    #[default]
    Application,
    /// All of one address.
    Host,
    /// All of the receiver's network.
    Network,
}

/// What a grant's tokens are made with (wire.md §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantSuite {
    /// A MAC over destination and time.
    Mac(Suite),
    /// The published scheme: a token opens everything behind the verifier.
    Sha224,
}

impl GrantSuite {
    /// Every suite, the default first.
    pub const ALL: [Self; 3] = [Self::Mac(Suite::Siphash), Self::Mac(Suite::AesCmac), Self::Sha224];

    /// Its number (wire.md §1.1).
    pub const fn number(self) -> u8 {
        match self {
            Self::Mac(suite) => suite as u8,
            Self::Sha224 => wire::ls::SUITE,
        }
    }

    /// The name used in configuration and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mac(suite) => suite.name(),
            Self::Sha224 => wire::ls::NAME,
        }
    }
}

/// How the grants that a rule allows are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How wide they are.
    pub granularity: Granularity,
    /// How long they live, seconds.
    pub lifetime: u32,
    /// One flow only.
    pub single: bool,
    /// With the sender's consent to packets from the receiver (wire.md §3.2 REPLY).
    pub reply: bool,
    /// Bound to the sender's address.
    pub bind_source: bool,
    /// What tokens are made with.
    pub suite: GrantSuite,
    /// How tokens travel to IPv4 destinations; to IPv6 it is always the tail.
    pub carrier: Carrier,
    /// What packet filters behind the verifier tell its packets apart by (docs/netfilter.md); 0 is none.
    pub class: u8,
}

/// What the policy says about one person and one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<'p> {
    /// Nothing is protected there.
    NoReceiver,
    /// A receiver is there and no rule matches.
    DefaultDeny {
        /// The receiver.
        receiver: &'p Receiver,
    },
    /// A rule denies it.
    Denied {
        /// The receiver that the rule names.
        receiver: &'p Receiver,
        /// The rule.
        rule: &'p Rule,
    },
    /// A rule allows it.
    Allowed(Permit<'p>),
}

/// Leave to send, with the rule that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit<'p> {
    /// The receiver.
    pub receiver: &'p Receiver,
    /// The rule.
    pub rule: &'p Rule,
    /// The rule's terms, but for its suite where a token of that would open more than the policy allows.
    pub terms: Terms,
    /// The destinations that a grant may cover.
    pub scope: Scope,
    /// When the policy says something else about them, if it does: the grant must end by then.
    pub until: Option<u64>,
}

impl Policy {
    /// Reads a policy file. Lifetimes are bounded by `max_lifetime` seconds. All faults are reported together.
    pub fn parse(text: &str, max_lifetime: u32) -> Result<Self, Faults> {
        text::parse(text, max_lifetime)
    }

    /// The same, of a file that is called otherwise than the one in force: rules are called by its name.
    #[must_use]
    pub fn in_file(mut self, name: &str) -> Self {
        let parts = self.networks.values_mut().flat_map(|part| &mut part.rules);
        self.rules.iter_mut().chain(parts).for_each(|rule| rule.label = rule.label_in(name));
        self
    }

    /// What the policy says, in plain words: receiver by receiver and rule by rule. The oracle of tests: what grants and what
    /// explains is [`Compiled::decide`], and tests hold the two together.
    #[doc(hidden)]
    pub fn decide(&self, request: &Request<'_>) -> Decision<'_> {
        let request = &request.normal();
        let mut receiver = None;
        let mut deciding: Option<(&Rule, usize)> = None;
        for index in self.index.around(request.to.address) {
            if !self.receivers[index].serves(&request.to) {
                continue;
            }
            receiver.get_or_insert(index);
            let rules = self.index.rules_of(index).iter().map(|rule| &self.rules[*rule]);
            let stronger = rules.take_while(|rule| deciding.is_none_or(|(other, _)| rule.beats(other)));
            let found = stronger.into_iter().find(|rule| self.holds(rule, request));
            deciding = found.map(|rule| (rule, index)).or(deciding);
        }
        let Some(receiver) = receiver else { return Decision::NoReceiver };
        match deciding {
            None => Decision::DefaultDeny { receiver: &self.receivers[receiver] },
            Some((rule, index)) => {
                let receiver = &self.receivers[index];
                match rule.action {
                    Action::Deny => Decision::Denied { receiver, rule },
                    Action::Allow => Decision::Allowed(self.permit(request, receiver, rule)),
                }
            }
        }
    }

    /// The next time at which some rule begins or ceases to hold.
    pub fn next_change(&self, after: u64) -> Option<u64> {
        self.rules.iter().filter_map(|rule| rule.when.next_change(after)).min()
    }

    /// What it says of a virtual network, where it has receivers there.
    pub fn network(&self, name: &str) -> Option<&Self> {
        self.networks.get(name)
    }

    /// The virtual networks that it has receivers in.
    pub fn networks(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.networks.iter().map(|(name, part)| (name.as_str(), part))
    }

    /// How many receivers it has, with those of virtual networks.
    pub fn receiver_count(&self) -> usize {
        self.receivers.len() + self.networks.values().map(|part| part.receivers.len()).sum::<usize>()
    }

    /// Every receiver, in the file's order, but for those of virtual networks.
    pub fn receivers(&self) -> &[Receiver] {
        &self.receivers
    }

    /// The class of the rule with this label; 0 if there is none any more.
    pub fn class_of(&self, label: &str) -> u8 {
        self.rules.iter().find(|rule| *rule.label == *label).map_or(0, |rule| rule.terms.class)
    }

    /// Every rule, in the file's order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// INVARIANT: the number is that of one of its rules, which are in the order of numbers; all are there but in the policy
    /// of a network.
    fn rule_numbered(&self, number: usize) -> &Rule {
        let own = self.rules.get(number - 1).filter(|rule| rule.number == number);
        own.unwrap_or_else(|| &self.rules[self.rules.partition_point(|rule| rule.number < number)])
    }

    /// The persons that groups and rules name.
    pub fn persons(&self) -> BTreeSet<&str> {
        let named = self.rules.iter().flat_map(|rule| &rule.who).filter_map(|who| match who {
            Who::Person(person) => Some(person.as_str()),
            _ => None,
        });
        self.groups.values().flatten().map(String::as_str).chain(named).collect()
    }

    /// Whether it has a group of this name.
    pub fn has_group(&self, group: &str) -> bool {
        self.groups.contains_key(group)
    }

    /// Whether somebody is in a group, by the policy or by their login.
    pub fn is_in(&self, subject: &Subject<'_>, group: &str) -> bool {
        subject.groups.iter().any(|own| own == group)
            || self.groups.get(group).is_some_and(|members| members.contains(subject.person))
    }

    /// Whether a rule is about the subject, at this time.
    fn holds(&self, rule: &Rule, request: &Request<'_>) -> bool {
        self.is_about(rule, &request.subject) && rule.when.covers(request.now)
    }

    fn is_about(&self, rule: &Rule, subject: &Subject<'_>) -> bool {
        self.is_among(subject, &rule.who)
    }

    /// Whether somebody is one of these.
    pub fn is_among(&self, subject: &Subject<'_>, these: &[Who]) -> bool {
        these.iter().any(|who| match who {
            Who::Everyone => true,
            Who::Person(named) => named == subject.person,
            Who::Group(group) => self.is_in(subject, group),
            Who::Tag(tag) => subject.tags.contains(tag),
            Who::Address(prefix) => subject.source.is_some_and(|source| prefix.contains(&source)),
        })
    }
}

impl Receiver {
    /// Whether a packet to `to` is for this receiver.
    pub fn covers(&self, to: &Destination) -> bool {
        self.prefix_of(to).is_some() && self.serves(to)
    }

    /// The receiver as the API shows it: one entry per prefix.
    pub fn entries(&self) -> impl Iterator<Item = api::Receiver> + '_ {
        let entry = |prefix: &IpNet| api::Receiver {
            name: self.name.clone(),
            prefix: *prefix,
            services: self.services.clone(),
        };
        self.prefixes.iter().map(entry)
    }

    /// The longest of its prefixes that `to` is in.
    fn prefix_of(&self, to: &Destination) -> Option<IpNet> {
        self.prefixes.iter().filter(|prefix| prefix.contains(&to.address)).max_by_key(|p| p.prefix_len()).copied()
    }

    /// Whether protocol and port are among its services.
    fn serves(&self, to: &Destination) -> bool {
        self.spans.covers(to.protocol, to.port)
    }

    fn protects_all(&self) -> bool {
        self.services.contains(&api::Service::ALL)
    }
}

impl Rule {
    /// What decides between rules: priority, then which comes later.
    fn order(&self) -> (u16, usize) {
        (self.priority, self.number)
    }

    fn beats(&self, other: &Self) -> bool {
        self.order() > other.order()
    }

    /// How the rule is called in answers and logs: `policy.toml:LINE name`, or its number where it has no name.
    pub fn label(&self) -> &Arc<str> {
        &self.label
    }

    fn label_in(&self, file: &str) -> Arc<str> {
        let line = self.line;
        match &self.name {
            Some(name) => format!("{file}:{line} {name}").into(),
            None => format!("{file}:{line} rule {}", self.number).into(),
        }
    }
}

/// Whether a protocol's packets name ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
pub fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 33 | 132 | 136)
}

/// The same destination, without the port that packets of the protocol don't have.
pub(crate) fn normal(to: &Destination) -> Destination {
    Destination { port: if has_ports(to.protocol) { to.port } else { 0 }, ..*to }
}

/// A prefix whose host bits are cleared, as the grant's key is made over it.
pub(crate) fn masked(prefix: IpNet) -> IpNet {
    IpNet::new(mask(prefix.addr(), prefix.prefix_len()), prefix.prefix_len()).unwrap_or(prefix)
}

#[cfg(test)]
mod tests;
