//! The receivers' policy. It says which subjects are allowed to send to which receivers, and when. A decision depends
//! only on the policy and the request, and contains the rule that decided. The module `text` parses the file. This
//! module does not read the clock and does no IO.
//!
//! Of the matching rules, the rule with the highest priority decides. Among rules of equal priority, the last one in
//! the file decides. If no rule matches, the policy denies. [`Compiled`] makes the decisions, with a [`rulebook`].

mod compile;
pub mod delegation;
pub mod diff;
mod expectation;
mod explain;
pub mod holder;
mod index;
pub mod lists;
pub mod networks;
mod notation;
pub mod preference;
mod reach;
mod request;
pub mod rulebook;
mod scope;
mod spans;
mod text;
mod trace;
mod window;

pub use compile::{Compiled, TooLarge};
pub use expectation::{Expectation, Failure, Outcome};
pub use explain::{Explanation, place, service};
pub use notation::{OwnedSubject, destination};
pub use request::{Request, Subject};
pub use scope::Scope;
pub use text::{MOST_TEXT, name_is_valid, parse_service};
pub use trace::{Reason, Trace};
pub use window::{When, instant, written};

use crate::document::Faults;
use crate::model;
use delegation::{Consented, Delegation};
use index::Index;
use ipnet::IpNet;
use lists::ListRule;
use spans::Spans;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use wire::grant::mask;
use wire::{Carrier, Destination, Suite};

/// A valid policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    groups: Arc<BTreeMap<String, BTreeSet<String>>>,
    receivers: Vec<Receiver>,
    /// Indices of the receivers, by name.
    names: BTreeMap<String, usize>,
    rules: Vec<Rule>,
    /// Rights to decide for receivers of this policy. Virtual networks have none.
    delegations: Vec<Delegation>,
    /// The limits of lists. Virtual networks have none.
    lists: Vec<ListRule>,
    expectations: Vec<Expectation>,
    index: Index,
    /// The policies for the receivers of virtual networks, by the network's name.
    networks: BTreeMap<String, Policy>,
}

/// A protected receiver: addresses and services behind one verifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Unique name of the receiver.
    pub name: String,
    /// Addresses and networks of the receiver, host bits cleared.
    pub prefixes: Vec<IpNet>,
    /// Services that are protected at the receiver's addresses.
    pub services: Vec<model::Service>,
    /// The id of the verifier in front of the receiver; empty in a virtual network, whose paths have several verifiers.
    pub verifier: String,
    /// The virtual network that the addresses belong to, if any.
    pub network: Option<String>,
    /// Whether the receiver is the service that accepts a verifier's sealed tunnels (wire.md §9.1).
    pub tunnel: bool,
    /// The services as [`Spans`].
    spans: Spans,
}

/// A rule of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Position of the rule in the file, from 1.
    pub number: usize,
    /// The line on which the rule begins.
    pub line: usize,
    /// Name of the rule, if it has one.
    pub name: Option<String>,
    label: Arc<str>,
    /// Whether the rule allows or denies.
    pub action: Action,
    /// Priority of the rule: the matching rule with the highest priority decides; among equal priorities, the last
    /// rule.
    pub priority: u16,
    /// Subjects to which the rule applies.
    pub who: Vec<Who>,
    /// Receivers to which the rule applies, as indices into the policy's receivers.
    to: Vec<usize>,
    /// Times at which the rule applies.
    pub when: When,
    /// Terms of the grants that the rule allows.
    pub terms: Terms,
}

/// Whether a rule allows or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// The rule allows grants.
    Allow,
    /// The rule denies grants.
    Deny,
}

impl Action {
    /// Returns the default priority of rules with this action. Deny has a higher default priority than allow.
    pub const fn default_priority(self) -> u16 {
        match self {
            Self::Allow => 100,
            Self::Deny => 200,
        }
    }
}

/// Subjects to which a rule applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Every logged-in person.
    Everyone,
    /// The members of the group with this name.
    Group(String),
    /// The person with this name.
    Person(String),
    /// Every user of a device with this tag.
    Tag(String),
    /// Every client whose request comes from this network.
    Address(IpNet),
}

/// Width of a grant: the destinations that it covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// One protocol and port of one address.
    #[default]
    Application,
    /// All protocols and ports of one address.
    Host,
    /// All protocols and ports of the receiver's network.
    Network,
}

/// Suite of a grant's tokens (wire.md §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantSuite {
    /// The MAC of this suite over destination and time.
    Mac(Suite),
    /// The published scheme, in which a token opens every service behind the verifier.
    Sha224,
}

impl GrantSuite {
    /// Every suite, the default first.
    pub const ALL: [Self; 3] = [Self::Mac(Suite::Siphash), Self::Mac(Suite::AesCmac), Self::Sha224];

    /// Returns the number of the suite (wire.md §1.1).
    pub const fn number(self) -> u8 {
        match self {
            Self::Mac(suite) => suite as u8,
            Self::Sha224 => wire::ls::SUITE,
        }
    }

    /// Returns the name used in configuration and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mac(suite) => suite.name(),
            Self::Sha224 => wire::ls::NAME,
        }
    }
}

/// Terms of the grants that a rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Width of the grants.
    pub granularity: Granularity,
    /// Lifetime of the grants, in seconds.
    pub lifetime: u32,
    /// Whether a grant admits one flow only.
    pub single: bool,
    /// Whether a grant states that the sender consents to packets from the receiver (the flag REPLY of wire.md §3.2).
    pub reply: bool,
    /// Whether a grant is bound to the sender's address.
    pub bind_source: bool,
    /// Suite of the tokens.
    pub suite: GrantSuite,
    /// Carrier of tokens to IPv4 destinations. Tokens to IPv6 destinations always travel as tail.
    pub carrier: Carrier,
    /// Number by which packet filters behind the verifier recognise the packets (docs/netfilter.md); 0 is none.
    pub class: u8,
    /// The protection that the rule demands in a sealed tunnel.
    pub sealing: model::Sealing,
}

/// The policy's decision about one person and one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<'p> {
    /// The destination is not protected.
    NoReceiver,
    /// The destination belongs to a receiver, but no rule matches.
    DefaultDeny {
        /// The receiver to which the destination belongs.
        receiver: &'p Receiver,
    },
    /// A rule denies the request.
    Denied {
        /// The receiver that the rule names.
        receiver: &'p Receiver,
        /// The rule that denies the request.
        rule: &'p Rule,
    },
    /// A rule allows the request.
    Allowed(Permit<'p>),
}

/// Permission to send, with the rule that allows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit<'p> {
    /// The receiver to which the permission applies.
    pub receiver: &'p Receiver,
    /// The rule that allows the sender to send.
    pub rule: &'p Rule,
    /// The rule's terms, with two exceptions. The terms have another suite if tokens of the rule's suite can't travel
    /// to the destination, or would admit the sender to more than the policy allows. The terms demand no sealed tunnel
    /// if the destination is itself a service that accepts sealed tunnels.
    pub terms: Terms,
    /// Destinations that a grant is allowed to cover.
    pub scope: Scope,
    /// The next time at which the policy's decision about a part of `scope` can change; `None` if it never changes. The
    /// grant must end by then.
    pub until: Option<u64>,
    /// The consent that allows the request; `None` if a rule or a list allows it. If a consent or a list allows the
    /// request, `rule` is the rule of the delegation or list, which is not one of the policy's rules.
    pub consent: Option<Consented>,
}

impl Policy {
    /// Parses a policy file. Lifetimes are limited to `max_lifetime` seconds.
    ///
    /// # Errors
    ///
    /// Returns the faults of the file, at most 100.
    pub fn parse(text: &str, max_lifetime: u32) -> Result<Self, Faults> {
        text::parse(text, max_lifetime)
    }

    /// Uses `name` as the file name in the labels of the policy's rules, in place of the name of the policy file in
    /// force.
    #[must_use]
    pub fn in_file(mut self, name: &str) -> Self {
        let parts = self.networks.values_mut().flat_map(|part| &mut part.rules);
        let delegated = self.delegations.iter_mut().map(|delegation| &mut delegation.rule);
        let listed = self.lists.iter_mut().map(|list| &mut list.rule);
        let rules = self.rules.iter_mut().chain(parts).chain(delegated).chain(listed);
        rules.for_each(|rule| rule.label = rule.label_in(name));
        self
    }

    /// Decides in the simplest way: receiver by receiver and rule by rule. Tests compare this decision with the
    /// decision of [`Compiled::decide`], which the authority uses for grants and explanations.
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

    /// Returns the first time after `after` at which a rule begins or ceases to apply; `None` if there is no such time.
    pub fn next_change(&self, after: u64) -> Option<u64> {
        self.rules.iter().filter_map(|rule| rule.when.next_change(after)).min()
    }

    /// Returns the policy of a virtual network, if this policy has receivers in that network.
    pub fn network(&self, name: &str) -> Option<&Self> {
        self.networks.get(name)
    }

    /// Returns the virtual networks with receivers, and their policies.
    pub fn networks(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.networks.iter().map(|(name, part)| (name.as_str(), part))
    }

    /// Returns the number of receivers, including those of virtual networks.
    pub fn receiver_count(&self) -> usize {
        self.receivers.len() + self.networks.values().map(|part| part.receivers.len()).sum::<usize>()
    }

    /// Returns the receivers in the order of the policy file, except the receivers of virtual networks.
    pub fn receivers(&self) -> &[Receiver] {
        &self.receivers
    }

    /// Returns the class of the rule, consent or list with this label, or 0 if there is none.
    pub fn class_of(&self, label: &str) -> u8 {
        let of_rule = self.rules.iter().find(|rule| *rule.label == *label).map(|rule| rule.terms.class);
        of_rule.or_else(|| self.class_by_consent(label)).or_else(|| self.class_by_list(label)).unwrap_or(0)
    }

    /// Returns all rules in the order of the policy file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the rule with this number. INVARIANT: this policy has a rule with this number. The rules are sorted by
    /// number, and numbers are missing only in the policy of a virtual network.
    fn rule_numbered(&self, number: usize) -> &Rule {
        let own = self.rules.get(number - 1).filter(|rule| rule.number == number);
        own.unwrap_or_else(|| &self.rules[self.rules.partition_point(|rule| rule.number < number)])
    }

    /// Returns the persons that groups, rules, delegations and lists name.
    pub fn persons(&self) -> BTreeSet<&str> {
        let named = self.rules.iter().flat_map(|rule| &rule.who).filter_map(|who| match who {
            Who::Person(person) => Some(person.as_str()),
            _ => None,
        });
        let delegated = self.delegations.iter().flat_map(|of| of.who().iter().chain(&of.delegates));
        let delegated = delegated.chain(self.lists.iter().flat_map(|list| &list.rule.who));
        let delegated = delegated.filter_map(|who| match who {
            Who::Person(person) => Some(person.as_str()),
            _ => None,
        });
        self.groups.values().flatten().map(String::as_str).chain(named).chain(delegated).collect()
    }

    /// Returns the addresses and ports at which a verifier accepts sealed tunnels, at most one for each address family.
    pub fn tunnels_of(&self, verifier: &str) -> Vec<SocketAddr> {
        let receiver = self.receivers.iter().find(|receiver| receiver.tunnel && receiver.verifier == verifier);
        let ends = receiver.into_iter().flat_map(|receiver| {
            let port = receiver.services.first().map_or(0, |service| service.first_port);
            receiver.prefixes.iter().map(move |prefix| SocketAddr::new(prefix.addr(), port))
        });
        ends.collect()
    }

    /// Reports whether a destination is the service that accepts a verifier's sealed tunnels.
    fn is_tunnel(&self, to: &Destination) -> bool {
        let is_one = |index: usize| self.receivers[index].tunnel && self.receivers[index].serves(to);
        self.index.has_tunnels() && self.index.around(to.address).any(is_one)
    }

    /// Reports whether there is a group of this name.
    pub fn has_group(&self, group: &str) -> bool {
        self.groups.contains_key(group)
    }

    /// Reports whether the subject is in a group. The policy or the subject's login can put the subject into the group.
    pub fn is_in(&self, subject: &Subject<'_>, group: &str) -> bool {
        subject.groups.iter().any(|own| own == group)
            || self.groups.get(group).is_some_and(|members| members.contains(subject.person))
    }

    /// Reports whether a rule applies to the request's subject at the request's time.
    fn holds(&self, rule: &Rule, request: &Request<'_>) -> bool {
        self.is_about(rule, &request.subject) && rule.when.covers(request.now)
    }

    fn is_about(&self, rule: &Rule, subject: &Subject<'_>) -> bool {
        self.is_among(subject, &rule.who)
    }

    /// Reports whether the subject is one of `these`.
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
    /// Reports whether a packet to `to` is for this receiver.
    pub fn covers(&self, to: &Destination) -> bool {
        self.prefix_of(to).is_some() && self.serves(to)
    }

    /// Returns the receiver as agents and verifiers use it: one [`model::Receiver`] per prefix.
    pub fn entries(&self) -> impl Iterator<Item = model::Receiver> + '_ {
        let entry = |prefix: &IpNet| model::Receiver {
            name: self.name.clone(),
            prefix: *prefix,
            services: self.services.clone(),
        };
        self.prefixes.iter().map(entry)
    }

    /// Returns the longest prefix of the receiver that contains `to`.
    fn prefix_of(&self, to: &Destination) -> Option<IpNet> {
        self.prefixes.iter().filter(|prefix| prefix.contains(&to.address)).max_by_key(|p| p.prefix_len()).copied()
    }

    /// Reports whether the receiver's services include the protocol and port.
    fn serves(&self, to: &Destination) -> bool {
        self.spans.covers(to.protocol, to.port)
    }

    fn protects_all(&self) -> bool {
        self.services.contains(&model::Service::ALL)
    }
}

impl Rule {
    /// Returns the key by which rules are ordered: priority, then position in the file.
    fn order(&self) -> (u16, usize) {
        (self.priority, self.number)
    }

    fn beats(&self, other: &Self) -> bool {
        self.order() > other.order()
    }

    /// Returns the rule's label in answers and logs: `policy.toml:LINE NAME`, or `policy.toml:LINE rule N` if the rule
    /// has no name.
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

/// Reports whether packets of a protocol have ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
pub fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 33 | 132 | 136)
}

/// Returns the destination with port 0 if packets of its protocol have no ports.
pub(crate) fn normal(to: &Destination) -> Destination {
    Destination { port: if has_ports(to.protocol) { to.port } else { 0 }, ..*to }
}

/// Returns the prefix with host bits cleared. The computation of the grant's key needs the prefix in this form.
pub(crate) fn masked(prefix: IpNet) -> IpNet {
    IpNet::new(mask(prefix.addr(), prefix.prefix_len()), prefix.prefix_len()).unwrap_or(prefix)
}

#[cfg(test)]
mod tests;
