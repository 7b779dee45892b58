//! The receivers' policy: who may send where. A decision is a pure function of policy, person and destination, and what
//! it says carries the rule that decided. Reading the file is `text`'s; nothing here asks for the time or does IO.
//!
//! Deny wins over allow among the matching rules; where no rule matches, the answer is no.

mod text;

pub use text::name_is_valid;

use crate::api;
use crate::document::Faults;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use wire::grant::mask;
use wire::{Destination, Suite};

/// A valid policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    groups: BTreeMap<String, BTreeSet<String>>,
    receivers: Vec<Receiver>,
    rules: Vec<Rule>,
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
    /// The id of the verifier in front of it.
    pub verifier: String,
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
    /// What it says.
    pub action: Action,
    /// Whom it is about.
    pub who: Vec<Who>,
    /// The receivers it is about: indices into the policy's.
    to: Vec<usize>,
    /// How the grants it allows are made.
    pub terms: Terms,
}

/// Whether a rule allows or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Grants are given.
    Allow,
    /// Grants are refused, whatever other rules say.
    Deny,
}

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Every person with an account.
    Everyone,
    /// The members of a group.
    Group(String),
    /// One person.
    Person(String),
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

/// How the grants that a rule allows are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How wide they are.
    pub granularity: Granularity,
    /// How long they live, seconds.
    pub lifetime: u32,
    /// One flow only.
    pub single: bool,
    /// Bound to the sender's address.
    pub bind_source: bool,
    /// The MAC suite.
    pub suite: Suite,
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
    /// The destinations that a grant may cover.
    pub scope: Scope,
}

/// The destinations that a grant covers (wire.md §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The addresses.
    pub prefix: IpNet,
    /// The one protocol and port, or all of them.
    pub service: Option<(u8, u16)>,
}

impl Scope {
    /// Whether everything in `other` is in this scope.
    pub fn covers(&self, other: &Self) -> bool {
        self.prefix.contains(&other.prefix) && (self.service.is_none() || self.service == other.service)
    }
}

impl Policy {
    /// Reads a policy file. Lifetimes are bounded by `max_lifetime` seconds. All faults are reported together.
    pub fn parse(text: &str, max_lifetime: u32) -> Result<Self, Faults> {
        text::parse(text, max_lifetime)
    }

    /// What the policy says about `person` sending to `to`.
    pub fn decide(&self, person: &str, to: &Destination) -> Decision<'_> {
        let to = &Destination { port: if has_ports(to.protocol) { to.port } else { 0 }, ..*to };
        let here = |index: &usize| self.receivers[*index].covers(to);
        let Some(receiver) = self.most_specific((0..self.receivers.len()).filter(here), to) else {
            return Decision::NoReceiver;
        };
        let mut allowed: Option<(u8, usize, &Rule)> = None;
        for rule in self.rules.iter().filter(|rule| self.is_about(rule, person)) {
            let Some(named) = self.most_specific(rule.to.iter().copied().filter(here), to) else { continue };
            if rule.action == Action::Deny {
                return Decision::Denied { receiver: &self.receivers[named], rule };
            }
            let length = self.receivers[named].prefix_of(to).map_or(0, |prefix| prefix.prefix_len());
            if allowed.is_none_or(|(longest, ..)| length > longest) {
                allowed = Some((length, named, rule));
            }
        }
        let Some((_, index, rule)) = allowed else {
            return Decision::DefaultDeny { receiver: &self.receivers[receiver] };
        };
        let receiver = &self.receivers[index];
        Decision::Allowed(Permit { receiver, rule, scope: self.scope(person, receiver, rule, to) })
    }

    /// The receivers that some rule lets `person` reach and none keeps them from altogether.
    pub fn destinations(&self, person: &str) -> Vec<&Receiver> {
        let rules: Vec<_> = self.rules.iter().filter(|rule| self.is_about(rule, person)).collect();
        let named = |action: Action, test: &dyn Fn(usize) -> bool| {
            rules.iter().any(|rule| rule.action == action && rule.to.iter().any(|index| test(*index)))
        };
        let reachable = |index: &usize| {
            let receiver = &self.receivers[*index];
            named(Action::Allow, &|other| self.receivers[other].overlaps(receiver))
                && !named(Action::Deny, &|other| self.receivers[other].contains(receiver))
        };
        (0..self.receivers.len()).filter(reachable).map(|index| &self.receivers[index]).collect()
    }

    /// Every receiver, in the file's order.
    pub fn receivers(&self) -> &[Receiver] {
        &self.receivers
    }

    /// Every rule, in the file's order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The persons that groups and rules name.
    pub fn persons(&self) -> BTreeSet<&str> {
        let named = self.rules.iter().flat_map(|rule| &rule.who).filter_map(|who| match who {
            Who::Person(person) => Some(person.as_str()),
            _ => None,
        });
        self.groups.values().flatten().map(String::as_str).chain(named).collect()
    }

    fn is_about(&self, rule: &Rule, person: &str) -> bool {
        rule.who.iter().any(|who| match who {
            Who::Everyone => true,
            Who::Person(named) => named == person,
            Who::Group(group) => self.groups.get(group).is_some_and(|members| members.contains(person)),
        })
    }

    /// The receiver with the longest prefix around `to`; the first of those that tie.
    fn most_specific(&self, indices: impl Iterator<Item = usize>, to: &Destination) -> Option<usize> {
        let length = |index: &usize| self.receivers[*index].prefix_of(to).map_or(0, |prefix| prefix.prefix_len());
        indices.min_by_key(|index| u8::MAX - length(index))
    }

    /// What a grant under `rule` may cover. A wide grant is narrowed to the one application where another rule denies the
    /// person anything inside it, or allows it on other terms and would decide there: its key would open that, too.
    fn scope(&self, person: &str, receiver: &Receiver, rule: &Rule, to: &Destination) -> Scope {
        let host = IpNet::from(to.address);
        let narrow = Scope { prefix: host, service: Some((to.protocol, to.port)) };
        let outer = receiver.prefix_of(to).unwrap_or(host);
        let prefix = match rule.terms.granularity {
            Granularity::Application => return narrow,
            Granularity::Host => host,
            Granularity::Network => outer,
        };
        let interferes = |other: &Rule, inner: &IpNet| match other.action {
            Action::Deny => overlap(inner, &prefix),
            Action::Allow => {
                other.terms != rule.terms && inner.prefix_len() >= outer.prefix_len() && overlap(inner, &prefix)
            }
        };
        let narrowed = self.rules.iter().filter(|other| self.is_about(other, person)).any(|other| {
            other.to.iter().flat_map(|index| &self.receivers[*index].prefixes).any(|inner| interferes(other, inner))
        });
        if narrowed { narrow } else { Scope { prefix, service: None } }
    }
}

impl Receiver {
    /// Whether a packet to `to` is for this receiver.
    pub fn covers(&self, to: &Destination) -> bool {
        self.prefix_of(to).is_some() && self.services.iter().any(|service| service.covers(to.protocol, to.port))
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

    /// Whether some packet is for both.
    fn overlaps(&self, other: &Self) -> bool {
        let prefixes = self.prefixes.iter().any(|one| other.prefixes.iter().any(|two| overlap(one, two)));
        prefixes && self.services.iter().any(|one| other.services.iter().any(|two| services_overlap(one, two)))
    }

    /// Whether every packet for `other` is for this one. Spans that only together cover a span don't count.
    fn contains(&self, other: &Self) -> bool {
        other.prefixes.iter().all(|inner| self.prefixes.iter().any(|outer| outer.contains(inner)))
            && other.services.iter().all(|inner| {
                self.services.iter().any(|outer| {
                    outer.protocol == 0
                        || outer.covers(inner.protocol, inner.first_port)
                            && outer.covers(inner.protocol, inner.last_port)
                })
            })
    }

    fn protects_all(&self) -> bool {
        self.services.contains(&api::Service::ALL)
    }
}

impl Rule {
    /// How the rule is called in answers and logs: `policy.toml:LINE name`, or its number where it has no name.
    pub fn label(&self) -> String {
        match &self.name {
            Some(name) => format!("policy.toml:{} {name}", self.line),
            None => format!("policy.toml:{} rule {}", self.line, self.number),
        }
    }
}

impl Decision<'_> {
    /// The decision as the API explains it.
    pub fn explain(&self, person: &str, to: &Destination) -> api::Explanation {
        let (receiver, rule) = match self {
            Self::NoReceiver => (None, None),
            Self::DefaultDeny { receiver } => (Some(&receiver.name), None),
            Self::Denied { receiver, rule } | Self::Allowed(Permit { receiver, rule, .. }) => {
                (Some(&receiver.name), Some(rule.label()))
            }
        };
        let place = Place(to);
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
struct Place<'d>(&'d Destination);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Destination { address, protocol, port } = self.0;
        match text::protocol_name(*protocol) {
            Some(name) if has_ports(*protocol) => write!(f, "{address} {name}/{port}"),
            Some(name) => write!(f, "{address} {name}"),
            None => write!(f, "{address} protocol {protocol}"),
        }
    }
}

/// Whether a protocol's packets name ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
pub fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 33 | 132 | 136)
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

fn services_overlap(one: &api::Service, other: &api::Service) -> bool {
    let protocol = one.protocol == 0 || other.protocol == 0 || one.protocol == other.protocol;
    let ports = one.first_port <= other.last_port && other.first_port <= one.last_port;
    protocol && (ports || one.protocol == 0 || other.protocol == 0)
}

/// A prefix whose host bits are cleared, as the grant's key is made over it.
pub(crate) fn masked(prefix: IpNet) -> IpNet {
    IpNet::new(mask(prefix.addr(), prefix.prefix_len()), prefix.prefix_len()).unwrap_or(prefix)
}

#[cfg(test)]
mod tests;
