//! How much one grant may open, and until when: its key opens all of its scope, so there must be nothing in it that the
//! policy denies, or allows on other terms.

use super::{Action, Granularity, Permit, Policy, Receiver, Request, Rule};
use ipnet::IpNet;

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
    /// What a grant under `rule`, which decides about `request` and names `receiver`, may cover. A wide grant is narrowed to
    /// the one application where another rule decides otherwise inside it. It ends before `rule` ceases to hold, and
    /// before a rule begins to hold that decides otherwise.
    pub(super) fn permit<'p>(&'p self, request: &Request<'_>, receiver: &'p Receiver, rule: &'p Rule) -> Permit<'p> {
        let host = IpNet::from(request.to.address);
        let narrow = Scope { prefix: host, service: Some((request.to.protocol, request.to.port)) };
        let wide = match rule.terms.granularity {
            Granularity::Application => None,
            Granularity::Host => Some(host),
            Granularity::Network => receiver.prefix_of(&request.to),
        };
        let wide = wide.map(|prefix| Scope { prefix, service: None });
        // INVARIANT: a rule with wide grants names receivers that protect every service, so it matches in all of the scope,
        // and only a rule that beats it can decide anything there.
        let scope =
            wide.filter(|wide| !self.differing(request, rule, wide).any(|other| other.when.covers(request.now)));
        let scope = scope.unwrap_or(narrow);
        let begins = self.differing(request, rule, &scope).filter(|other| !other.when.covers(request.now));
        let changes = begins.chain([rule]).filter_map(|rule| rule.when.next_change(request.now));
        Permit { receiver, rule, scope, until: changes.min() }
    }

    /// The rules that, whenever they hold, beat `rule` somewhere in `scope` and say something else about the subject.
    fn differing<'a>(
        &'a self,
        request: &'a Request<'_>,
        rule: &'a Rule,
        scope: &'a Scope,
    ) -> impl Iterator<Item = &'a Rule> + 'a {
        let inside = move |receiver: &usize| match scope.service {
            None => true,
            Some(_) => self.receivers[*receiver].serves(&request.to),
        };
        let receivers = self.index.overlapping(&scope.prefix).filter(inside);
        receivers.flat_map(move |receiver| {
            let rules = self.index.rules_of(receiver).iter().map(|other| &self.rules[*other]);
            rules.take_while(|other| other.beats(rule)).filter(|other| {
                (other.action == Action::Deny || other.terms != rule.terms) && self.is_about(other, &request.subject)
            })
        })
    }
}
