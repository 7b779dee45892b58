//! Parses `policy.toml` into a valid [`Policy`]: resolves names, masks prefixes, and reports contradictions.

mod delegations;
mod expectations;
mod lists;
mod networks;
mod sealing;
mod when;

use super::index::Index;
use super::spans::Spans;
use super::{Action, GrantSuite, Granularity, Policy, Receiver, Rule, Terms, Who, has_ports, masked};
use crate::document::{Faults, Fields, Reader, hint, texts};
use crate::model::Service;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use toml::Spanned;
use wire::{Carrier, Suite};

/// Name of the file that contains the policy in force.
const FILE: &str = "policy.toml";
const RECEIVER_KEYS: &[&str] = &["name", "address", "services", "verifier", "network", "tunnel"];
const RULE_KEYS: &[&str] = &[
    "name",
    "action",
    "priority",
    "who",
    "to",
    "when",
    "granularity",
    "lifetime",
    "single",
    "reply",
    "bind_source",
    "suite",
    "carrier",
    "class",
    "treatment",
    "compress",
    "suites",
    "forward_secrecy",
    "rekey",
];
/// Keys for the terms of grants.
const TERMS_KEYS: &[&str] = &[
    "granularity",
    "lifetime",
    "single",
    "reply",
    "bind_source",
    "suite",
    "carrier",
    "class",
    "treatment",
    "compress",
    "suites",
    "forward_secrecy",
    "rekey",
];
/// Maximum number of receivers that words with `*` name in all rules together. All delegations together, and all lists
/// together, have the same limit. It is needed because a short text must not become a policy that fills the memory.
const MOST_BY_BEGINNING: usize = 1_000_000;
const PROTOCOLS: &[(&str, u8)] = &[
    ("icmp", 1),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("gre", 47),
    ("esp", 50),
    ("icmpv6", 58),
    ("sctp", 132),
    ("udplite", 136),
];
/// Common names of services, and their notation in a policy.
const KNOWN_SERVICES: &[(&str, &str)] = &[
    ("ssh", "tcp/22"),
    ("smtp", "tcp/25"),
    ("dns", "udp/53"),
    ("http", "tcp/80"),
    ("ntp", "udp/123"),
    ("ldap", "tcp/389"),
    ("https", "tcp/443"),
    ("smb", "tcp/445"),
    ("ldaps", "tcp/636"),
    ("nfs", "tcp/2049"),
    ("mysql", "tcp/3306"),
    ("rdp", "tcp/3389"),
    ("postgresql", "tcp/5432"),
    ("vnc", "tcp/5900"),
];
/// Lifetime of a grant whose rule states none, seconds.
const DEFAULT_LIFETIME: u32 = 300;
/// Maximum length of a policy, in bytes: room for tens of thousands of receivers and rules.
pub const MOST_TEXT: usize = 4 << 20;
/// Maximum number of receivers whose prefixes contain a prefix. It limits the cost of a decision and of the check for
/// overlaps.
const MOST_AROUND: usize = 256;
/// Minimum lifetime, in seconds: a shorter grant would end before a slow connection is established.
const LEAST_LIFETIME: u32 = 10;

pub(super) fn parse(text: &str, max_lifetime: u32) -> Result<Policy, Faults> {
    if text.len() > MOST_TEXT {
        let size = text.len();
        return Err(Faults::whole(format!("the policy is {size} bytes long; the maximum is {MOST_TEXT}")));
    }
    Reader::read(text, &["groups", "receivers", "rules", "delegations", "lists", "tests"], |reader, root| {
        let mut policy = Policy::default();
        read_groups(reader, root, &mut policy);
        let verifier_spans = read_receivers(reader, root, &mut policy);
        networks::each(&policy.receivers, &verifier_spans, |receivers, spans| {
            check_overlaps(reader, receivers, spans);
        });
        read_rules(reader, root, &mut policy, max_lifetime);
        delegations::read(reader, root, &mut policy, max_lifetime);
        lists::read(reader, root, &mut policy, max_lifetime);
        expectations::read(reader, root, &mut policy);
        Some(networks::divide(policy))
    })
}

/// Returns the number of an IP protocol, given by name or in digits.
pub(super) fn protocol_number(name: &str) -> Option<u8> {
    let by_name = PROTOCOLS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    by_name.or_else(|| name.parse().ok().filter(|number| *number > 0))
}

/// Parses a port number. The number must be one that a packet can have.
pub(super) fn port_of(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0)
}

/// Returns the name of an IP protocol, if the policy file has a word for this protocol.
pub(super) fn protocol_name(protocol: u8) -> Option<&'static str> {
    PROTOCOLS.iter().find(|(_, number)| *number == protocol).map(|(name, _)| *name)
}

/// Reports whether this is a valid name of a person, group, receiver or verifier: 1 to 64 ASCII letters, digits, `.`,
/// `_`, `@`, `+` or `-`. The first character has to be a letter or digit.
pub fn name_is_valid(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || "._@+-".contains(c);
    name.len() <= 64 && name.chars().all(letter) && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn check_name(reader: &mut Reader<'_>, name: &Spanned<&str>) -> bool {
    let valid = name_is_valid(name.get_ref());
    if !valid {
        let rule = "names have 1 to 64 letters, digits, `.`, `_`, `@`, `+` or `-`, and begin with a letter or digit";
        reader.fault(name.span(), format!("`{}` is not a valid name: {rule}", name.get_ref().escape_debug()));
    }
    valid
}

fn read_groups(reader: &mut Reader<'_>, root: &Fields<'_, '_>, policy: &mut Policy) {
    let Some(value) = root.value("groups") else { return };
    let Some(table) = value.get_ref().as_table() else {
        return reader.fault(value.span(), "groups must be a table: [groups], then lines such as staff = [\"alice\"]");
    };
    for (name, members) in table {
        check_name(reader, &Spanned::new(name.span(), name.get_ref().as_ref()));
        let members = texts(reader, members);
        let members = members.iter().filter(|member| check_name(reader, member)).map(|m| m.get_ref().to_string());
        let members = members.collect();
        Arc::make_mut(&mut policy.groups).insert(name.get_ref().to_string(), members);
    }
}

/// Reads the receivers. Returns, for each receiver, where the text names its verifier (or its network).
fn read_receivers(reader: &mut Reader<'_>, root: &Fields<'_, '_>, policy: &mut Policy) -> Vec<std::ops::Range<usize>> {
    let mut verifier_spans = Vec::new();
    for fields in root.tables(reader, "receivers", "a receiver", RECEIVER_KEYS) {
        if reader.is_full() {
            break;
        }
        let name = fields.required_text(reader, "name");
        let addresses = fields.required_texts(reader, "address");
        let services = fields.required_texts(reader, "services");
        let network = fields.text(reader, "network");
        let verifier = match (&network, fields.value("verifier")) {
            (Some(network), Some(verifier)) => {
                let why = format!("networks.toml defines the verifiers for network `{}`", network.get_ref());
                reader.fault(verifier.span(), format!("{}: remove `verifier`", why.escape_debug()));
                None
            }
            (Some(network), None) => Some(Spanned::new(network.span(), "")),
            (None, _) => fields.required_text(reader, "verifier"),
        };
        let prefixes: Vec<_> = addresses.iter().filter_map(|address| prefix(reader, address)).collect();
        let services: Vec<_> = services.iter().filter_map(|text| service(reader, text)).collect();
        let spans = Spans::new(&services);
        let (Some(name), Some(verifier)) = (name, verifier) else { continue };
        check_name(reader, &name);
        check_name(reader, network.as_ref().unwrap_or(&verifier));
        if policy.names.insert(name.get_ref().to_string(), policy.receivers.len()).is_some() {
            reader.fault(name.span(), format!("there is already a receiver `{}`", name.get_ref()));
        }
        let tunnel =
            sealing::read_tunnel(reader, &fields, policy, (&verifier, network.is_some()), (&prefixes, &services));
        verifier_spans.push(verifier.span());
        policy.receivers.push(Receiver {
            name: name.get_ref().to_string(),
            prefixes,
            services,
            verifier: verifier.get_ref().to_string(),
            network: network.map(|network| network.get_ref().to_string()),
            tunnel,
            spans,
        });
    }
    verifier_spans
}

/// Checks that each destination has only one verifier. With several, it would be unclear which verifier's key is the
/// key for a grant.
fn check_overlaps(reader: &mut Reader<'_>, receivers: &[&Receiver], verifier_spans: &[&std::ops::Range<usize>]) {
    let index = Index::new(receivers.iter().copied());
    let mut reported = BTreeSet::new();
    for (number, (one, span)) in receivers.iter().zip(verifier_spans).enumerate() {
        if reader.is_full() {
            return;
        }
        if let Some(prefix) = one.prefixes.iter().find(|prefix| index.around_prefix(**prefix).count() > MOST_AROUND) {
            let why = format!("more than {MOST_AROUND} receivers contain {prefix}, the last of them `{}`", one.name);
            reader.fault((*span).clone(), format!("{why}; merge some: a receiver may have many services"));
            return;
        }
        let mut near: Vec<_> = one.prefixes.iter().flat_map(|prefix| index.around_prefix(*prefix)).collect();
        near.sort_unstable();
        near.dedup();
        for other in near {
            let pair = (number.max(other), number.min(other));
            let (one, other) = (receivers[pair.0], receivers[pair.1]);
            let span = verifier_spans[pair.0];
            if one.verifier != other.verifier && one.spans.overlaps(&other.spans) && reported.insert(pair) {
                let (one, other, verifier) = (&one.name, &other.name, &other.verifier);
                let why = format!("`{one}` overlaps `{other}`, which is behind verifier `{verifier}`");
                reader.fault(span.clone(), format!("{why}; an address and service can have only one verifier"));
            }
        }
    }
}

fn prefix(reader: &mut Reader<'_>, text: &Spanned<&str>) -> Option<IpNet> {
    let read = text.get_ref().parse::<IpNet>().ok().or_else(|| text.get_ref().parse::<IpAddr>().ok().map(IpNet::from));
    let Some(prefix) = read else {
        let way_out = "write an address (203.0.113.10, 2001:db8::1) or a prefix (203.0.113.0/28)";
        reader.fault(text.span(), format!("`{}` is not an address: {way_out}", text.get_ref().escape_debug()));
        return None;
    };
    let whole = masked(prefix);
    if whole != prefix {
        reader.fault(text.span(), format!("`{prefix}` has bits set after its prefix length; write {whole}"));
    }
    Some(whole)
}

fn service(reader: &mut Reader<'_>, text: &Spanned<&str>) -> Option<Service> {
    parse_service(text.get_ref()).map_err(|fault| reader.fault(text.span(), fault)).ok()
}

/// Parses a service, such as `tcp/22`, `udp/443-450`, `icmp` or `all`.
///
/// # Errors
///
/// Returns a message that says what is wrong with the text, and how to write a service.
pub fn parse_service(word: &str) -> Result<Service, String> {
    if word == "all" {
        return Ok(Service::ALL);
    }
    let (name, ports) = word.split_once('/').map_or((word, None), |(name, ports)| (name, Some(ports)));
    let Some(protocol) = protocol_number(name) else {
        if let Some((_, service)) = KNOWN_SERVICES.iter().find(|(known, _)| *known == word) {
            return Err(format!("`{word}` is not a protocol; write \"{service}\""));
        }
        let hint = hint(name, PROTOCOLS.iter().map(|(known, _)| *known).chain(["all"]));
        return Err(format!("`{}` is not a protocol{hint}", name.escape_debug()));
    };
    let Some(ports) = ports else {
        return Ok(Service { protocol, first_port: 0, last_port: u16::MAX });
    };
    if !has_ports(protocol) {
        return Err(format!("{name} has no ports; write \"{name}\""));
    }
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    match (port_of(first), port_of(last)) {
        (Some(first_port), Some(last_port)) if first_port <= last_port => {
            Ok(Service { protocol, first_port, last_port })
        }
        _ => {
            let ports = ports.escape_debug();
            Err(format!("`{ports}` is not a port or port range, such as 22 or 443-450"))
        }
    }
}

fn read_rules(reader: &mut Reader<'_>, root: &Fields<'_, '_>, policy: &mut Policy, max_lifetime: u32) {
    let mut names = BTreeMap::new();
    let mut demands = Vec::new();
    let mut room = MOST_BY_BEGINNING;
    for (index, fields) in root.tables(reader, "rules", "a rule", RULE_KEYS).into_iter().enumerate() {
        if reader.is_full() {
            break;
        }
        let name = fields.text(reader, "name");
        let line = reader.place(fields.span().start).0;
        if let Some(name) = &name
            && let Some(other) = names.insert(name.get_ref().to_string(), line)
        {
            reader.fault(name.span(), format!("the rule on line {other} has the same name"));
        }
        if name.as_ref().is_some_and(|name| name.get_ref().len() > 128 || name.get_ref().contains(char::is_control)) {
            reader.fault(fields.span(), "a rule's name must be one line of at most 128 bytes");
        }
        let action = fields.required_text(reader, "action");
        let actions = [("allow", Action::Allow), ("deny", Action::Deny)];
        let said = action.and_then(|word| choice(reader, &word, &actions));
        let action = said.unwrap_or(Action::Deny);
        let priority = fields.number(reader, "priority", action.default_priority().into(), 0, u16::MAX.into());
        let who = fields.required_texts(reader, "who");
        let who = who.iter().filter_map(|word| subject(reader, word, policy)).collect();
        let to = fields.required_texts(reader, "to");
        let to: Vec<_> = to.iter().flat_map(|word| receivers(reader, word, policy, &mut room)).collect();
        let terms = read_terms(reader, &fields, max_lifetime);
        // If the action is neither `allow` nor `deny`, it is unknown which other keys the rule may have.
        if said == Some(Action::Deny) {
            for key in TERMS_KEYS {
                if let Some(value) = fields.value(key) {
                    reader.fault(value.span(), format!("a rule with action deny issues no grant: remove `{key}`"));
                }
            }
        } else if said.is_some() && to.iter().any(|(index, _)| policy.receivers[*index].network.is_some()) {
            check_segment_terms(reader, &fields);
            check_width(reader, &to, policy, terms);
        } else if said.is_some() && terms.suite == GrantSuite::Sha224 {
            check_pair_receivers(reader, &to, policy);
        } else if terms.sealing.is_sealed() {
            check_width(reader, &to, policy, terms);
            let span = fields.value("treatment").map_or_else(|| fields.span(), Spanned::span);
            demands.push(sealing::Demand { rule: index, span, wide: terms.granularity != Granularity::Application });
        } else if said.is_some() {
            check_width(reader, &to, policy, terms);
        }
        let mut rule = Rule {
            number: index + 1,
            line,
            label: Arc::default(),
            name: name.map(|name| name.get_ref().to_string()),
            action,
            priority: u16::try_from(priority).unwrap_or(u16::MAX),
            who,
            when: when::read(reader, &fields),
            to: to.into_iter().map(|(index, _)| index).collect(),
            terms,
        };
        rule.label = rule.label_in(FILE);
        policy.rules.push(rule);
    }
    sealing::check(reader, policy, &demands);
}

fn read_terms(reader: &mut Reader<'_>, fields: &Fields<'_, '_>, max_lifetime: u32) -> Terms {
    let widths = [
        ("network", (Granularity::Network, false)),
        ("host", (Granularity::Host, false)),
        ("application", (Granularity::Application, false)),
        ("flow", (Granularity::Application, true)),
    ];
    let suites = GrantSuite::ALL.map(|suite| (suite.name(), suite));
    let granularity = fields.text(reader, "granularity").and_then(|word| choice(reader, &word, &widths));
    // Clients without privileges choose `stream` themselves.
    let carriers = [Carrier::Tail, Carrier::Shim].map(|carrier| (carrier.name(), carrier));
    let carrier = fields.text(reader, "carrier").and_then(|word| choice(reader, &word, &carriers));
    let suite = fields.text(reader, "suite").and_then(|word| choice(reader, &word, &suites));
    let suite = suite.unwrap_or(GrantSuite::Mac(Suite::Siphash));
    if suite == GrantSuite::Sha224 {
        check_pair_terms(reader, fields, carrier);
    }
    let (granularity, flow) = granularity.unwrap_or_default();
    let default = DEFAULT_LIFETIME.min(max_lifetime);
    Terms {
        granularity,
        lifetime: fields.seconds(reader, "lifetime", default, LEAST_LIFETIME, max_lifetime),
        single: fields.yes(reader, "single") || flow,
        reply: fields.yes(reader, "reply"),
        bind_source: fields.yes(reader, "bind_source"),
        suite,
        carrier: if suite == GrantSuite::Sha224 { Carrier::Shim } else { carrier.unwrap_or_default() },
        class: fields.number(reader, "class", 0, 0, u8::MAX.into()) as u8,
        sealing: sealing::read(reader, fields, suite),
    }
}

/// Checks that the rule states no terms for tokens. Path segments have no tokens, and are always bound to their sender.
fn check_segment_terms(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) {
    for key in ["bind_source", "suite", "carrier", "class", "treatment"] {
        if let Some(value) = fields.value(key) {
            let way_out = "remove it, or write a separate rule for the receivers of networks";
            reader.fault(value.span(), format!("`{key}` applies to tokens, but path segments have none: {way_out}"));
        }
    }
}

/// Checks that the rule binds its grants neither to a destination nor to a sender's address, because a token of the
/// published scheme contains neither.
fn check_pair_terms(reader: &mut Reader<'_>, fields: &Fields<'_, '_>, carrier: Option<Carrier>) {
    for key in ["granularity", "single", "reply", "bind_source"] {
        if let Some(value) = fields.value(key) {
            reader.fault(
                value.span(),
                format!("tokens of suite \"sha224\" open every service and cannot carry terms: remove `{key}`"),
            );
        }
    }
    if let Some(value) = fields.value("carrier").filter(|_| carrier == Some(Carrier::Tail)) {
        reader.fault(
            value.span(),
            "tokens of suite \"sha224\" require the carrier shim: remove `carrier`, or choose another suite",
        );
    }
}

/// Checks that the rule allows everything behind the verifier, because a token of the published scheme opens everything
/// there.
fn check_pair_receivers(reader: &mut Reader<'_>, to: &[(usize, std::ops::Range<usize>)], policy: &Policy) {
    let named: BTreeSet<_> = to.iter().map(|(index, _)| *index).collect();
    let mut reported = BTreeSet::new();
    for (index, span) in to {
        let verifier = policy.receivers[*index].verifier.as_str();
        let others = policy.receivers.iter().enumerate().filter(|(_, receiver)| receiver.verifier == verifier);
        let left_out = others.into_iter().find(|(index, _)| !named.contains(index));
        if let Some((_, Receiver { name, .. })) = left_out
            && reported.insert(verifier)
        {
            let why = format!(
                "tokens of suite \"sha224\" open every service behind `{verifier}`, but the rule does not name `{name}`"
            );
            reader.fault(span.clone(), format!("{why}: name it, too, or choose another suite"));
        }
    }
}

/// Checks that wide grants are only for receivers that protect all services. A grant names one protocol and port, or
/// all of them (wire.md §3.3), so for other receivers a wide grant would cover more services than they have.
fn check_width(reader: &mut Reader<'_>, to: &[(usize, std::ops::Range<usize>)], policy: &Policy, terms: Terms) {
    if terms.granularity == Granularity::Application {
        return;
    }
    for (index, span) in to {
        let receiver = &policy.receivers[*index];
        if !receiver.protects_all() {
            let name = &receiver.name;
            let why = format!("host and network grants cover all services, but `{name}` protects only some");
            let way_out = "use granularity = \"application\", or services = [\"all\"] in the receiver";
            reader.fault(span.clone(), format!("{why}: {way_out}"));
        }
    }
}

fn choice<T: Copy>(reader: &mut Reader<'_>, word: &Spanned<&str>, choices: &[(&str, T)]) -> Option<T> {
    let found = choices.iter().find(|(name, _)| name == word.get_ref()).map(|(_, value)| *value);
    if found.is_none() {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        reader.fault(word.span(), format!("`{}` is not one of {}", word.get_ref().escape_debug(), names.join(", ")));
    }
    found
}

fn subject(reader: &mut Reader<'_>, word: &Spanned<&str>, policy: &Policy) -> Option<Who> {
    let text = *word.get_ref();
    let who = match text.split_once(':') {
        None if text == "everyone" => return Some(Who::Everyone),
        Some(("group", name)) if policy.groups.contains_key(name) => return Some(Who::Group(name.to_string())),
        Some(("person", name)) if name_is_valid(name) => return Some(Who::Person(name.to_string())),
        Some(("tag", name)) if name_is_valid(name) => return Some(Who::Tag(name.to_string())),
        Some(("address", text)) => return prefix(reader, &Spanned::new(word.span(), text)).map(Who::Address),
        _ if text.parse::<IpNet>().is_ok() || text.parse::<IpAddr>().is_ok() => format!("write \"address:{text}\""),
        Some(("group", name)) => format!("no group `{name}`{}", hint(name, policy.groups.keys().map(String::as_str))),
        _ if policy.groups.contains_key(text) => format!("write \"group:{text}\""),
        None if name_is_valid(text) && !text.starts_with("every") => format!("write \"person:{text}\""),
        _ => {
            let kinds = "\"group:NAME\", \"person:NAME\", \"tag:NAME\", \"address:PREFIX\", \"everyone\"";
            format!("`{}` is not one of {kinds}", text.escape_debug())
        }
    };
    reader.fault(word.span(), who);
    None
}

/// Returns the receivers that a word of `to` names, each with the place of the word: one receiver or, if the word ends
/// with `*`, all receivers whose names begin with the text before it. `room` is the number of receivers that words with
/// `*` can still name.
fn receivers(
    reader: &mut Reader<'_>,
    word: &Spanned<&str>,
    policy: &Policy,
    room: &mut usize,
) -> Vec<(usize, std::ops::Range<usize>)> {
    let text = *word.get_ref();
    let Some(begin) = text.strip_suffix('*').filter(|begin| !begin.is_empty()) else {
        return receiver(reader, word, policy).into_iter().map(|index| (index, word.span())).collect();
    };
    let named = policy.names.range(begin.to_owned()..).take_while(|(name, _)| name.starts_with(begin));
    let mut found: Vec<_> = named.take(*room + 1).map(|(_, index)| (*index, word.span())).collect();
    if found.is_empty() {
        reader.fault(word.span(), format!("no receiver's name begins with `{}`", begin.escape_debug()));
    }
    if found.len() > *room {
        let way_out = "define receivers with several addresses each, and name these receivers";
        let why = format!("names that end in `*` stand for more than {MOST_BY_BEGINNING} receivers");
        reader.fault(word.span(), format!("{why}: {way_out}"));
        found.clear();
    }
    *room -= found.len();
    found.sort_unstable_by_key(|(index, _)| *index);
    found
}

fn receiver(reader: &mut Reader<'_>, word: &Spanned<&str>, policy: &Policy) -> Option<usize> {
    let found = policy.names.get(*word.get_ref()).copied();
    if found.is_none() {
        let hint = hint(word.get_ref(), policy.receivers.iter().map(|receiver| receiver.name.as_str()));
        reader.fault(word.span(), format!("no receiver `{}`{hint}", word.get_ref().escape_debug()));
    }
    found
}
