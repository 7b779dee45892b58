//! Scope and end of a grant. The holder of a grant's key can send to the whole scope. Therefore the policy must not
//! deny any part of the scope, and must not allow a part on other terms.

use super::{Action, GrantSuite, Granularity, Permit, Policy, Receiver, Request, Rule, Terms};
use crate::model::Sealing;
use ipnet::IpNet;
use wire::Suite;

/// The destinations that a grant covers (wire.md §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The addresses that the grant covers.
    pub prefix: IpNet,
    /// The only protocol and port that the grant covers; `None` if the grant covers all.
    pub service: Option<(u8, u16)>,
}

impl Scope {
    /// Reports whether everything in `other` is in this scope.
    pub fn covers(&self, other: &Self) -> bool {
        self.prefix.contains(&other.prefix) && (self.service.is_none() || self.service == other.service)
    }
}

impl Policy {
    /// Returns the permit for a grant under `rule`, the rule that decides about `request` and names `receiver`. A wide
    /// grant is narrowed to one protocol and port if another rule decides otherwise for a part of its scope. The grant
    /// ends before `rule` ceases to apply, and before another rule begins to apply that decides otherwise.
    pub(super) fn permit<'p>(&'p self, request: &Request<'_>, receiver: &'p Receiver, rule: &'p Rule) -> Permit<'p> {
        if rule.terms.suite == GrantSuite::Sha224
            && let Some(permit) = self.permit_pair(request, receiver, rule)
        {
            return permit;
        }
        let host = IpNet::from(request.to.address);
        let narrow = Scope { prefix: host, service: Some((request.to.protocol, request.to.port)) };
        let wide = match rule.terms.granularity {
            Granularity::Application => None,
            Granularity::Host => Some(host),
            Granularity::Network => receiver.prefix_of(&request.to),
        };
        let wide = wide.map(|prefix| Scope { prefix, service: None });
        // INVARIANT: a rule with wide grants names only receivers that protect every service. So the rule matches in
        // all of the scope, and only a rule that beats it can decide anything there.
        let scope =
            wide.filter(|wide| !self.differing(request, rule, wide).any(|other| other.when.covers(request.now)));
        let scope = scope.unwrap_or(narrow);
        let timed = self.index.has_windows().then(|| self.differing(request, rule, &scope));
        let until = ends(timed.into_iter().flatten(), rule, request.now);
        let suite = match rule.terms.suite {
            GrantSuite::Sha224 => GrantSuite::Mac(Suite::Siphash),
            suite => suite,
        };
        // A tunnel can't travel in a tunnel, even if a rule for all services of its address demands this.
        let sealing = if self.is_tunnel(&request.to) { Sealing::NONE } else { rule.terms.sealing };
        Permit { receiver, rule, terms: Terms { suite, sealing, ..rule.terms }, scope, until, consent: None }
    }

    /// Returns the permit for a pair, which covers all of the receiver's network. Returns `None` if another rule
    /// decides otherwise anywhere behind the verifier, because the pair's tokens open everything there. Also returns
    /// `None` if the destination is not IPv4, because pairs need a shim.
    fn permit_pair<'p>(&'p self, request: &Request<'_>, receiver: &'p Receiver, rule: &'p Rule) -> Option<Permit<'p>> {
        // INVARIANT: a rule that issues pairs names every receiver behind the verifier, so only a rule that beats it
        // can decide anything there.
        let behind = || {
            let receivers = self.receivers.iter().enumerate().filter(|(_, other)| other.verifier == receiver.verifier);
            receivers.flat_map(|(index, _)| self.differing_at(request, rule, index))
        };
        if request.to.address.is_ipv6() || behind().any(|other| other.when.covers(request.now)) {
            return None;
        }
        let scope = Scope { prefix: receiver.prefix_of(&request.to)?, service: None };
        let until = ends(behind(), rule, request.now);
        Some(Permit { receiver, rule, terms: rule.terms, scope, until, consent: None })
    }

    /// Returns the rules that take precedence over `rule` for part of `scope` and decide otherwise for the subject, at
    /// whatever time they apply.
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
        receivers.flat_map(move |receiver| self.differing_at(request, rule, receiver))
    }

    /// Returns the rules that take precedence over `rule` at one receiver and decide otherwise for the subject, at
    /// whatever time they apply.
    fn differing_at<'a>(
        &'a self,
        request: &'a Request<'_>,
        rule: &'a Rule,
        receiver: usize,
    ) -> impl Iterator<Item = &'a Rule> + 'a {
        let rules = self.index.rules_of(receiver).iter().map(|other| &self.rules[*other]);
        rules.take_while(|other| other.beats(rule)).filter(|other| {
            (other.action == Action::Deny || other.terms != rule.terms) && self.is_about(other, &request.subject)
        })
    }
}

/// Returns the time by which a grant under `rule` must end: when `rule` ceases to apply, or when the first of `others`
/// begins to apply. `None` if neither happens.
fn ends<'a>(others: impl Iterator<Item = &'a Rule>, rule: &'a Rule, now: u64) -> Option<u64> {
    let begins = others.filter(|other| !other.when.covers(now));
    begins.chain([rule]).filter_map(|rule| rule.when.next_change(now)).min()
}
