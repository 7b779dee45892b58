//! Parsing of `[[delegations]]`: the rights to decide who may reach a receiver.

use super::{DEFAULT_LIFETIME, FILE, LEAST_LIFETIME, MOST_BY_BEGINNING, check_name, receivers, service, subject};
use crate::document::{Fields, Reader, texts};
use crate::model::{Sealing, Service};
use crate::policy::delegation::{Delegation, MOST_DELEGATIONS};
use crate::policy::index::Index;
use crate::policy::{Action, GrantSuite, Granularity, Policy, Rule, Terms, When, Who};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use wire::{Carrier, Suite};

const KEYS: &[&str] =
    &["name", "to", "delegates", "who", "services", "lifetime_max", "lifetime", "bind_source", "single", "class"];
/// The shortest and the longest time that `lifetime_max` can be, in seconds.
const LIFETIMES: (u32, u32) = (60, 366 * 86_400);

/// Reads the delegations. Must be called after the rules were read.
pub(super) fn read(reader: &mut Reader<'_>, root: &Fields<'_, '_>, policy: &mut Policy, max_lifetime: u32) {
    let mut names = BTreeSet::new();
    let tables = root.tables(reader, "delegations", "a delegation", KEYS);
    if let Some(surplus) = tables.get(MOST_DELEGATIONS) {
        let way_out = "a delegation can name many receivers and groups";
        reader.fault(surplus.span(), format!("a policy has at most {MOST_DELEGATIONS} delegations: {way_out}"));
        return;
    }
    let (mut named, mut room) = (Vec::new(), MOST_BY_BEGINNING);
    for fields in tables {
        if reader.is_full() {
            return;
        }
        let line = reader.place(fields.span().start).0;
        let name = fields.required_text(reader, "name");
        let to = read_receivers(reader, &fields, policy, &mut room);
        let delegates = read_delegates(reader, &fields, policy);
        let who = fields.required_texts(reader, "who");
        let who = who.iter().filter_map(|word| subject(reader, word, policy)).collect();
        let services = read_services(reader, &fields, "delegate");
        let (least, most) = LIFETIMES;
        fields.required(reader, "lifetime_max");
        let lifetime_max = fields.seconds(reader, "lifetime_max", least, least, most);
        let terms = read_terms(reader, &fields, max_lifetime);
        named.extend(to.iter().cloned());
        let Some(name) = name else { continue };
        check_name(reader, &name);
        let name = name.get_ref().to_string();
        if !names.insert(name.clone()) {
            reader.fault(fields.span(), format!("there is already a delegation `{name}`"));
        }
        let mut rule = Rule {
            number: 0,
            line,
            name: Some(format!("delegation {name}")),
            label: Arc::default(),
            action: Action::Allow,
            priority: 0,
            who,
            to: to.into_iter().map(|(index, _)| index).collect(),
            when: When::default(),
            terms,
        };
        rule.label = rule.label_in(FILE);
        policy.delegations.push(Delegation { name, delegates, services, lifetime_max, rule });
    }
    check_receivers(reader, policy, &named, "consent");
}

/// Reads `to`. Returns the indices of the receivers, each with the place of its name in the text. `room` is the number
/// of receivers that words with `*` can still name.
pub(super) fn read_receivers(
    reader: &mut Reader<'_>,
    fields: &Fields<'_, '_>,
    policy: &Policy,
    room: &mut usize,
) -> Vec<(usize, Range<usize>)> {
    let words: Vec<_> = fields.required_texts(reader, "to");
    words.iter().flat_map(|word| receivers(reader, word, policy, room)).collect()
}

/// Reads `services`; `None` if there is no such field, which means all services. If the field is empty, the message
/// recommends removing it to `verb` all services.
pub(super) fn read_services(reader: &mut Reader<'_>, fields: &Fields<'_, '_>, verb: &str) -> Option<Vec<Service>> {
    let value = fields.value("services")?;
    let words = texts(reader, value);
    if words.is_empty() {
        reader.fault(value.span(), format!("`services` is empty: remove it to {verb} all services"));
    }
    Some(words.iter().filter_map(|word| service(reader, word)).collect())
}

fn read_delegates(reader: &mut Reader<'_>, fields: &Fields<'_, '_>, policy: &Policy) -> Vec<Who> {
    let mut delegates = Vec::new();
    for word in fields.required_texts(reader, "delegates") {
        match subject(reader, &word, policy) {
            Some(who @ (Who::Person(_) | Who::Group(_))) => delegates.push(who),
            // Nobody can ask everybody, a device or an address for the reason of a decision.
            Some(_) => reader.fault(word.span(), "a delegate must be \"person:NAME\" or \"group:NAME\""),
            None => {}
        }
    }
    delegates
}

/// Reads the terms of grants. Grants on these terms cover one service of one address, and demand no sealed tunnel.
pub(super) fn read_terms(reader: &mut Reader<'_>, fields: &Fields<'_, '_>, max_lifetime: u32) -> Terms {
    let default = DEFAULT_LIFETIME.min(max_lifetime);
    Terms {
        granularity: Granularity::Application,
        lifetime: fields.seconds(reader, "lifetime", default, LEAST_LIFETIME, max_lifetime),
        single: fields.yes(reader, "single"),
        reply: false,
        bind_source: fields.yes(reader, "bind_source"),
        suite: GrantSuite::Mac(Suite::Siphash),
        carrier: Carrier::default(),
        class: fields.number(reader, "class", 0, 0, u8::MAX.into()) as u8,
        sealing: Sealing::NONE,
    }
}

/// Checks the receivers `named` by a delegation or list. Refuses receivers for which only rules can allow grants. These
/// are receivers in a virtual network, the services of verifiers' tunnels, and receivers to which a rule demands a
/// sealed tunnel. A grant by consent or by a list can't demand a tunnel. Messages call such grants "grants by `by`".
pub(super) fn check_receivers(reader: &mut Reader<'_>, policy: &Policy, named: &[(usize, Range<usize>)], by: &str) {
    if named.is_empty() {
        return;
    }
    let index = Index::new(&policy.receivers);
    let sealing = policy.rules.iter().filter(|rule| rule.terms.sealing.is_sealed());
    let sealed: BTreeSet<usize> = sealing.flat_map(|rule| rule.to.iter().copied()).collect();
    for (number, span) in named {
        let receiver = &policy.receivers[*number];
        let name = &receiver.name;
        let near = receiver.prefixes.iter().flat_map(|prefix| index.overlapping(prefix));
        let mut demanded = near.filter(|other| sealed.contains(other)).map(|other| &policy.receivers[other]);
        let fault = if receiver.network.is_some() {
            format!("`{name}` is in a virtual network, where only rules give consent: write a rule")
        } else if receiver.tunnel {
            format!("`{name}` is the service of a verifier's tunnels: write a rule")
        } else if let Some(other) = demanded.find(|other| other.spans.overlaps(&receiver.spans)) {
            let why = format!("a rule demands a sealed tunnel to `{}`", other.name);
            format!("{why}, and grants by {by} can't demand one: write rules for `{name}`")
        } else {
            continue;
        };
        reader.fault(span.clone(), fault);
    }
}
