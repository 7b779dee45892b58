//! Delegations: the policy gives some people the right to decide who may reach a receiver. Their consents add to what
//! the rules allow.
//!
//! A consent counts only where no rule matches. So it never overrides a rule that denies, and it never changes the
//! terms of a rule that allows. Each decision checks the consent against the delegation that is in force then. So a
//! consent never exceeds its delegation, even if the delegation was narrowed later.

use super::spans::Spans;
use super::{Compiled, Decision, Permit, Policy, Receiver, Request, Rule, Scope, Subject, Trace, Who, has_ports};
use crate::model::{self, Service};
use ipnet::IpNet;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use wire::Destination;

/// Maximum number of delegations in a policy. The number is limited because a decision looks for each consent's
/// delegation among all of them.
pub const MOST_DELEGATIONS: usize = 256;
/// Maximum number of services that a request for access names.
pub const MOST_SERVICES: usize = 16;

/// Number of seconds by which the clocks of a cluster's members may differ.
const CLOCK_SKEW_MAX: u64 = 30;
/// The text between the label of a delegation and the number of a consent, in the labels of grants.
const CONSENT: &str = ", consent ";

/// The right to decide who may reach some receivers, within limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegation {
    /// Unique name of the delegation. Consents refer to it.
    pub name: String,
    /// The people who may decide.
    pub delegates: Vec<Who>,
    /// The services that consents may cover; `None` for all services of each receiver.
    pub services: Option<Vec<Service>>,
    /// The longest time for which a consent lasts, in seconds.
    pub lifetime_max: u32,
    /// The label, the terms of grants, the receivers, and the people to whom consents may be given. The rule is not one
    /// of the policy's rules.
    pub(super) rule: Rule,
}

/// The number of a request for access. A consent has the number of the request that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub NonZeroU32);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for RequestId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_number = text.len() == 8 && text.chars().all(|digit| digit.is_ascii_hexdigit());
        let number = u32::from_str_radix(text, 16).ok().filter(|_| is_number).and_then(NonZeroU32::new);
        let fault = || format!("`{}` is not the number of a request: write 8 hex digits", text.escape_debug());
        number.map(Self).ok_or_else(fault)
    }
}

/// A consent: somebody who may decide for a receiver allows a person, a group or a device tag to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consent {
    /// The number of the request that the consent answers, or a number of its own.
    pub id: RequestId,
    /// Name of the receiver (the protected destination) that the person may reach.
    pub receiver: String,
    /// The services that the person may reach.
    pub services: Vec<Service>,
    /// Name of the delegation that gave the right to this consent.
    pub delegation: String,
    /// The person who gave the consent.
    pub by: Arc<str>,
    /// Time from which the consent counts, in Unix seconds.
    pub from: u64,
    /// Time at which the consent ends, in Unix seconds.
    pub until: u64,
}

/// Consents by their [holder](super::holder::Holder): the person, the group or the tag to which they were given.
#[derive(Clone, Debug, Default)]
pub struct Consents {
    by_person: HashMap<String, Vec<Consent>>,
    by_group: BTreeMap<String, Vec<Consent>>,
    by_tag: HashMap<String, Vec<Consent>>,
    /// Number of seconds by which each consent counts before its recorded start, because the clock of the member that
    /// recorded the consent may have been ahead.
    early: u64,
}

impl Consents {
    /// Returns the consents that were given to a person by name.
    pub fn of(&self, person: &str) -> &[Consent] {
        self.by_person.get(person).map_or(&[], Vec::as_slice)
    }

    /// Returns all consents.
    pub fn all(&self) -> impl Iterator<Item = &Consent> {
        self.by_person.values().chain(self.by_group.values()).chain(self.by_tag.values()).flatten()
    }

    /// Returns these consents for decisions about past requests, in which no consent counts before its recorded start.
    #[must_use]
    pub fn of_the_past(self) -> Self {
        Self { early: 0, ..self }
    }
}

impl FromIterator<(String, Consent)> for Consents {
    fn from_iter<T: IntoIterator<Item = (String, Consent)>>(all: T) -> Self {
        let mut consents = Self { early: CLOCK_SKEW_MAX, ..Self::default() };
        for (holder, consent) in all {
            let own = match holder.split_once(':') {
                Some(("group", name)) => consents.by_group.entry(name.to_owned()).or_default(),
                Some(("tag", name)) => consents.by_tag.entry(name.to_owned()).or_default(),
                _ => consents.by_person.entry(holder).or_default(),
            };
            own.push(consent);
        }
        consents
    }
}

/// The person who asks for access, or the holder of a consent for which nobody asked. Contains the data on which a
/// decision depends.
#[derive(Clone, Copy, Debug)]
pub struct Applicant<'a> {
    /// The person, with the groups that they have now, and the tags that any of their devices has now.
    pub subject: Subject<'a>,
    /// Names of the delegations that covered the person when they asked. `None` if this is not known, because an
    /// earlier version recorded the request.
    pub delegations: Option<&'a [String]>,
    /// Whether nobody asked for the consent. If so, any address in `who` of the delegation counts, because each use of
    /// the consent checks the address.
    pub is_unasked: bool,
}

/// The author of a decision about a request for access.
#[derive(Clone, Copy, Debug)]
pub enum Decider<'a> {
    /// A person, who decides by the delegations that name them. Their tags and address do not count.
    Delegate(&'a Subject<'a>),
    /// An operator of the authority, who decides by any delegation.
    Operator,
}

/// The reason why a consent would exceed what is delegated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeds {
    /// No delegation of the decider covers these services of the receiver for this holder.
    NotCovered,
    /// The delegation allows consents for this number of seconds at most.
    TooLong(u32),
}

/// The consent that allowed a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consented {
    /// The number of the consent.
    pub id: RequestId,
    /// The person who gave the consent.
    pub by: Arc<str>,
}

impl Delegation {
    /// Returns the delegation's label in answers and logs, such as `policy.toml:40 delegation dba`.
    pub fn label(&self) -> &Arc<str> {
        self.rule.label()
    }

    /// Returns the people to whom consents may be given.
    pub fn who(&self) -> &[Who] {
        &self.rule.who
    }

    /// Reports whether consents may cover these services of a receiver.
    fn covers(&self, receiver: &Receiver, services: &[Service]) -> bool {
        let spans = Spans::new(services);
        let within = self.services.as_ref().is_none_or(|own| Spans::new(own).contains(&spans));
        within && receiver.spans.contains(&spans)
    }

    /// Returns the services of a receiver that consents may cover: the delegation's services that lie within the
    /// receiver's services, and the receiver's services that lie within the delegation's services. If the delegation
    /// names no services, returns all services of the receiver.
    pub fn services_of(&self, receiver: &Receiver) -> Vec<Service> {
        let Some(own) = &self.services else { return receiver.services.clone() };
        let spans = |service: &Service| Spans::new(std::slice::from_ref(service));
        let narrower = own.iter().filter(|service| receiver.spans.contains(&spans(service)));
        let within = Spans::new(own);
        let wider = receiver.services.iter().filter(|service| within.contains(&spans(service)));
        let mut both: Vec<Service> = narrower.copied().collect();
        for service in wider {
            if !both.contains(service) {
                both.push(*service);
            }
        }
        both
    }
}

impl Policy {
    /// Returns all delegations in the order of the policy file.
    pub fn delegations(&self) -> &[Delegation] {
        &self.delegations
    }

    /// Returns the receiver with this name that is in no virtual network.
    pub fn receiver(&self, name: &str) -> Option<&Receiver> {
        self.names.get(name).map(|index| &self.receivers[*index])
    }

    /// Returns the addresses of the receiver with this name that is in no virtual network.
    pub fn prefixes_of(&self, name: &str) -> Option<Vec<IpNet>> {
        self.receiver(name).map(|receiver| receiver.prefixes.clone())
    }

    /// Returns the receivers that a delegation concerns.
    pub fn receivers_of<'p>(&'p self, delegation: &'p Delegation) -> impl Iterator<Item = &'p Receiver> + 'p {
        delegation.rule.to.iter().map(|index| &self.receivers[*index])
    }

    /// Reports whether a delegation concerns a receiver.
    pub fn concerns(&self, delegation: &Delegation, receiver: &str) -> bool {
        self.receivers_of(delegation).any(|own| own.name == receiver)
    }

    /// Reports whether consents by a delegation may cover these services of a receiver.
    pub fn may_cover(&self, delegation: &Delegation, receiver: &str, services: &[Service]) -> bool {
        self.receiver(receiver).is_some_and(|of| self.concerns(delegation, receiver) && delegation.covers(of, services))
    }

    /// Returns the delegations that give a subject the right to decide. The subject's tags and address do not count.
    pub fn delegated_to<'p>(&'p self, subject: &'p Subject<'p>) -> impl Iterator<Item = &'p Delegation> + 'p {
        self.delegations_of(Decider::Delegate(subject))
    }

    /// Returns the delegations by which somebody may decide.
    fn delegations_of<'p>(&'p self, decider: Decider<'p>) -> impl Iterator<Item = &'p Delegation> + 'p {
        self.delegations.iter().filter(move |delegation| match decider {
            Decider::Delegate(subject) => self.is_among(subject, &delegation.delegates),
            Decider::Operator => true,
        })
    }

    /// Returns the receivers to which a subject may request access, by name. Each comes with the services that the
    /// subject may request.
    pub fn requestable(&self, subject: &Subject<'_>) -> BTreeMap<&str, Vec<Service>> {
        let mut all: BTreeMap<&str, Vec<Service>> = BTreeMap::new();
        for delegation in self.delegations.iter().filter(|delegation| self.is_about(&delegation.rule, subject)) {
            for receiver in self.receivers_of(delegation) {
                let services = all.entry(&receiver.name).or_default();
                for service in delegation.services_of(receiver) {
                    if !services.contains(&service) {
                        services.push(service);
                    }
                }
            }
        }
        all.retain(|_, services| !services.is_empty());
        all
    }

    /// Reports whether a single delegation permits somebody to allow the subject all these services of a receiver.
    pub fn may_ask(&self, subject: &Subject<'_>, receiver: &str, services: &[Service]) -> bool {
        let Some(of) = self.receiver(receiver) else { return false };
        self.delegations.iter().any(|delegation| {
            self.is_about(&delegation.rule, subject)
                && self.concerns(delegation, receiver)
                && delegation.covers(of, services)
        })
    }

    /// Returns the names of the delegations that permit somebody to allow the subject any of these services of a
    /// receiver.
    pub fn delegations_about(&self, subject: &Subject<'_>, receiver: &str, services: &[Service]) -> Vec<String> {
        let wanted = Spans::new(services);
        let about = self.delegations.iter().filter(|delegation| {
            self.is_about(&delegation.rule, subject)
                && self.concerns(delegation, receiver)
                && delegation.services.as_ref().is_none_or(|own| Spans::new(own).overlaps(&wanted))
        });
        about.map(|delegation| delegation.name.clone()).collect()
    }

    /// Returns the delegations by which `decider` may decide about a request for a receiver, whatever its services are.
    /// If it is known which delegations covered the person when they asked, returns only these.
    pub fn delegations_for<'p>(
        &'p self,
        decider: Decider<'p>,
        applicant: Applicant<'p>,
        receiver: &'p str,
    ) -> impl Iterator<Item = &'p Delegation> + 'p {
        let among = move |name: &String| applicant.delegations.is_none_or(|known| known.contains(name));
        let own = self.delegations_of(decider).filter(move |delegation| among(&delegation.name));
        own.filter(move |delegation| self.concerns(delegation, receiver))
    }

    /// Returns the delegation by which `decider` may allow these services of a receiver to the person who asks. If
    /// there are several, returns the one with the longest lifetime of consents.
    fn delegation_for<'p>(
        &'p self,
        decider: Decider<'p>,
        applicant: Applicant<'p>,
        receiver: &'p str,
        services: &[Service],
    ) -> Option<&'p Delegation> {
        let of = self.receiver(receiver)?;
        let able =
            |delegation: &&Delegation| delegation.covers(of, services) && self.still_covers(delegation, applicant);
        self.delegations_for(decider, applicant, receiver).filter(able).max_by_key(|delegation| delegation.lifetime_max)
    }

    /// Returns the delegation that permits a consent to these services of a receiver for `lifetime` seconds. The
    /// authority calls this function for every consent, whether a delegate or an operator gives it, and whether or not
    /// somebody asked.
    ///
    /// # Errors
    ///
    /// Fails if the consent would exceed what is delegated to `decider`.
    pub fn permitted<'p>(
        &'p self,
        decider: Decider<'p>,
        applicant: Applicant<'p>,
        receiver: &'p str,
        services: &[Service],
        lifetime: u32,
    ) -> Result<&'p Delegation, Exceeds> {
        let delegation = self.delegation_for(decider, applicant, receiver, services).ok_or(Exceeds::NotCovered)?;
        if lifetime > delegation.lifetime_max {
            return Err(Exceeds::TooLong(delegation.lifetime_max));
        }
        Ok(delegation)
    }

    /// Returns all services of a receiver that one delegation lets `decider` allow. If there are several delegations,
    /// the one with the longest lifetime of consents counts.
    pub fn delegable(&self, decider: Decider<'_>, applicant: Applicant<'_>, receiver: &str) -> Vec<Service> {
        let Some(of) = self.receiver(receiver) else { return Vec::new() };
        let able = self.delegations_for(decider, applicant, receiver).filter(|own| self.still_covers(own, applicant));
        able.max_by_key(|own| own.lifetime_max).map(|own| own.services_of(of)).unwrap_or_default()
    }

    /// Returns the receiver and the service for which the subject of a request can ask. A consent to them would allow
    /// the request. They are among [`Self::requestable`], so the subject learns nothing new from them.
    pub fn askable(&self, request: &Request<'_>) -> Option<(&Receiver, Service)> {
        let request = &request.normal();
        let Destination { address, protocol, port } = request.to;
        let (first_port, last_port) = if has_ports(protocol) { (port, port) } else { (0, u16::MAX) };
        let service = Service { protocol, first_port, last_port };
        let mut here = self.index.around(address).map(|index| &self.receivers[index]);
        let may_ask = |name| self.may_ask(&request.subject, name, std::slice::from_ref(&service));
        let found = here.find(|receiver| receiver.serves(&request.to) && may_ask(&receiver.name));
        found.map(|receiver| (receiver, service))
    }

    /// Reports whether a delegation still covers the person who asked. A decision is about the person, so a tag of any
    /// of their devices counts, and an address counts as it was at the request. Each use of the consent checks the tags
    /// and the address of the device.
    fn still_covers(&self, delegation: &Delegation, applicant: Applicant<'_>) -> bool {
        let has_now = |who: &Who| self.is_among(&applicant.subject, std::slice::from_ref(who));
        let is_known = applicant.is_unasked || applicant.delegations.is_some();
        delegation.who().iter().any(|who| match who {
            Who::Address(_) => is_known,
            Who::Tag(_) => is_known && has_now(who),
            Who::Everyone | Who::Person(_) | Who::Group(_) => has_now(who),
        })
    }

    /// Returns the delegation on which a consent rests, the consent's receiver, and the time at which the consent ends.
    /// Returns `None` if the consent does not count for the subject at this time.
    fn effect(
        &self,
        consent: &Consent,
        subject: &Subject<'_>,
        now: u64,
        early: u64,
    ) -> Option<(&Delegation, &Receiver, u64)> {
        let delegation = self.delegations.iter().find(|delegation| delegation.name == consent.delegation)?;
        let receiver = self.receiver(&consent.receiver)?;
        let until = self.end_of(consent, delegation);
        let is_now = consent.from <= now.saturating_add(early) && now < until;
        let counts = is_now && self.concerns(delegation, &consent.receiver) && self.is_about(&delegation.rule, subject);
        counts.then_some((delegation, receiver, until))
    }

    /// Returns the consents that concern a subject: those of the person, and those of groups and tags that the subject
    /// has. A consent to a group or a tag does not concern its author, because nobody decides about themselves.
    fn consents_about<'c>(
        &'c self,
        subject: &'c Subject<'c>,
        consents: &'c Consents,
    ) -> impl Iterator<Item = &'c Consent> + 'c {
        let groups = consents.by_group.iter().filter(move |(name, _)| self.is_in(subject, name));
        let tags = subject.tags.iter().filter_map(move |tag| consents.by_tag.get(tag));
        let shared = groups.map(|(_, given)| given).chain(tags).flatten();
        consents.of(subject.person).iter().chain(shared.filter(move |consent| *consent.by != *subject.person))
    }

    /// Returns the decision about a request with regard to consents, given the decision of the rules.
    fn with_consents<'p>(&'p self, decision: Decision<'p>, request: &Request<'_>, consents: &Consents) -> Decision<'p> {
        if !matches!(decision, Decision::DefaultDeny { .. }) {
            return decision;
        }
        let request = &request.normal();
        let given = self.consents_about(&request.subject, consents);
        let permits = given.filter_map(|consent| self.permit_by(request, consent, consents.early));
        let latest = permits.max_by_key(|permit| (permit.until, permit.consent.as_ref().map(|consent| consent.id)));
        latest.map_or(decision, Decision::Allowed)
    }

    /// Returns the permit for a grant by a consent, for a request about which no rule decides. The grant covers one
    /// service of one address, and ends before a rule about the subject begins to apply.
    fn permit_by<'p>(&'p self, request: &Request<'_>, consent: &Consent, early: u64) -> Option<Permit<'p>> {
        let (delegation, receiver, until) = self.effect(consent, &request.subject, request.now, early)?;
        let Destination { address, protocol, port } = request.to;
        let within = delegation.services.as_ref().is_none_or(|own| Spans::new(own).covers(protocol, port));
        if !within || !receiver.covers(&request.to) || !Spans::new(&consent.services).covers(protocol, port) {
            return None;
        }
        let host = IpNet::from(address);
        let here = self.index.overlapping(&host).filter(|other| self.receivers[*other].serves(&request.to));
        let rules = here.flat_map(|other| self.index.rules_of(other)).map(|rule| &self.rules[*rule]);
        let later = rules.filter(|rule| self.is_about(rule, &request.subject) && !rule.when.covers(request.now));
        let begins = later.filter_map(|rule| rule.when.next_change(request.now)).min();
        Some(Permit {
            receiver,
            rule: &delegation.rule,
            terms: delegation.rule.terms,
            scope: Scope { prefix: host, service: Some((protocol, port)) },
            until: Some(begins.map_or(until, |begins| begins.min(until))),
            consent: Some(Consented { id: consent.id, by: consent.by.clone() }),
        })
    }

    /// Returns the receivers that a subject can reach at this time because of consents. There is one entry for each
    /// prefix of a receiver. It contains the services that the consents, the delegation and the receiver have in
    /// common.
    pub fn consented(&self, subject: &Subject<'_>, consents: &Consents, now: u64) -> Vec<model::Receiver> {
        let mut all: BTreeMap<&str, (&Receiver, Vec<Service>)> = BTreeMap::new();
        for consent in self.consents_about(subject, consents) {
            let Some((delegation, receiver, _)) = self.effect(consent, subject, now, consents.early) else { continue };
            let mut open = Spans::new(&consent.services).common(&receiver.spans);
            if let Some(own) = &delegation.services {
                open = open.common(&Spans::new(own));
            }
            let (_, services) = all.entry(&receiver.name).or_insert_with(|| (receiver, Vec::new()));
            services.extend(open.services());
        }
        all.retain(|_, (_, services)| !services.is_empty());
        let entries = all.into_values().flat_map(|(receiver, services)| {
            let services = Spans::new(&services).services();
            let narrowed = move |entry: model::Receiver| model::Receiver { services: services.clone(), ..entry };
            receiver.entries().map(narrowed)
        });
        entries.collect()
    }

    /// Returns the time at which a consent ends: at its own end, or earlier if the delegation allows less.
    fn end_of(&self, consent: &Consent, delegation: &Delegation) -> u64 {
        consent.until.min(consent.from.saturating_add(delegation.lifetime_max.into()))
    }

    /// Returns the numbers of the consents that have ended at `now`, and the time at which the next one ends.
    pub fn ended_consents(&self, consents: &Consents, now: u64) -> (Vec<RequestId>, Option<u64>) {
        let by_name: HashMap<&str, &Delegation> = self.delegations.iter().map(|of| (of.name.as_str(), of)).collect();
        let (mut ended, mut next) = (Vec::new(), None);
        for consent in consents.all() {
            let delegation = by_name.get(consent.delegation.as_str());
            let end = delegation.map_or(consent.until, |delegation| self.end_of(consent, delegation));
            if end <= now {
                ended.push(consent.id);
            } else {
                next = Some(next.map_or(end, |next: u64| next.min(end)));
            }
        }
        (ended, next)
    }

    /// Returns the class of the grants of a delegation. `label` is the label of such a grant.
    pub(super) fn class_by_consent(&self, label: &str) -> Option<u8> {
        let (delegation, _) = label.rsplit_once(CONSENT)?;
        let found = self.delegations.iter().find(|other| **other.label() == *delegation)?;
        Some(found.rule.terms.class)
    }
}

impl Permit<'_> {
    /// Returns the label of the rule that allows the request. If a consent allows it, returns the label of the
    /// delegation with the number of the consent: `policy.toml:40 delegation dba, consent 0a1b2c3d`.
    pub fn label(&self) -> Arc<str> {
        match &self.consent {
            None => self.rule.label().clone(),
            Some(Consented { id, .. }) => format!("{}{CONSENT}{id}", self.rule.label()).into(),
        }
    }
}

impl Compiled {
    /// Decides about a request as [`Self::decide`] does. If no rule matches, decides by the person's consents.
    pub fn decide_with(&self, request: &Request<'_>, consents: &Consents) -> Decision<'_> {
        self.policy().with_consents(self.decide(request), request, consents)
    }

    /// Decides about several requests as [`Self::decide_with`] does, in the order of the requests.
    pub fn decide_all_with(&self, requests: &[Request<'_>], consents: &Consents) -> Vec<Decision<'_>> {
        let decided = self.decide_all(requests).into_iter().zip(requests);
        decided.map(|(decision, request)| self.policy().with_consents(decision, request, consents)).collect()
    }

    /// Decides about a request as [`Self::decide_with`] does, and returns the reasons.
    pub fn trace_with(&self, request: &Request<'_>, consents: &Consents) -> Trace {
        let request = &request.normal();
        self.policy().reasons(request, &self.decide_with(request, consents))
    }
}
