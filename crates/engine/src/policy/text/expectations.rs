//! Parsing of the tests in a policy file.

use super::choice;
use crate::document::{Fields, Reader, hint, text};
use crate::model::Treatment;
use crate::policy::{Expectation, Outcome, OwnedSubject, Policy, destination, instant};
use std::collections::BTreeSet;
use toml::Spanned;
use toml::de::DeValue;

const KEYS: &[&str] = &["name", "who", "from", "to", "at", "expect", "rule", "network", "treatment"];

pub(super) fn read(reader: &mut Reader<'_>, root: &Fields<'_, '_>, policy: &mut Policy) {
    let timed = policy.rules.iter().any(|rule| !rule.when.is_always());
    let rules: BTreeSet<_> = policy.rules.iter().filter_map(|rule| rule.name.as_deref()).collect();
    let groups: BTreeSet<_> = policy.groups.keys().map(String::as_str).collect();
    let networks: BTreeSet<_> = policy.receivers.iter().filter_map(|receiver| receiver.network.as_deref()).collect();
    let mut expectations = Vec::new();
    for fields in root.tables(reader, "tests", "a test", KEYS) {
        if reader.is_full() {
            break;
        }
        let who = who(reader, &fields, &groups);
        let to = fields
            .required_text(reader, "to")
            .and_then(|word| destination(word.get_ref()).map_err(|why| reader.fault(word.span(), why)).ok());
        let at = fields.value("at").map(|value| at(reader, value));
        if at.is_none() && timed {
            reader.fault(
                fields.span(),
                "rules of this policy have time windows, so a test must set `at`, such as at = 2026-03-02T09:00:00Z",
            );
        }
        let outcome = fields.required_text(reader, "expect").and_then(|word| choice(reader, &word, &Outcome::WORDS));
        let rule = fields.text(reader, "rule");
        if let Some(rule) = rule.as_ref().filter(|rule| !rules.contains(rule.get_ref())) {
            let hint = hint(rule.get_ref(), rules.iter().copied());
            reader.fault(rule.span(), format!("no rule has the name `{}`{hint}", rule.get_ref().escape_debug()));
        }
        let network = fields.text(reader, "network");
        if let Some(network) = network.as_ref().filter(|network| !networks.contains(network.get_ref())) {
            let hint = hint(network.get_ref(), networks.iter().copied());
            reader.fault(
                network.span(),
                format!("no receiver is in a network `{}`{hint}", network.get_ref().escape_debug()),
            );
        }
        let treatments = Treatment::ALL.map(|treatment| (treatment.name(), treatment));
        let treatment = fields.text(reader, "treatment").and_then(|word| {
            if outcome != Some(Outcome::Allow) {
                reader.fault(
                    word.span(),
                    "only an allowed request has a treatment: remove `treatment`, or expect \"allow\"",
                );
            }
            choice(reader, &word, &treatments)
        });
        let name = fields.text(reader, "name");
        let (Some(to), Some(outcome)) = (to, outcome) else { continue };
        expectations.push(Expectation {
            line: reader.place(fields.span().start).0,
            name: name.map(|name| name.get_ref().to_string()),
            who,
            to,
            at: at.flatten().unwrap_or(0),
            outcome,
            rule: rule.map(|rule| rule.get_ref().to_string()),
            network: network.map(|network| network.get_ref().to_string()),
            treatment,
        });
    }
    policy.expectations = expectations;
}

fn who(reader: &mut Reader<'_>, fields: &Fields<'_, '_>, groups: &BTreeSet<&str>) -> OwnedSubject {
    let mut subject = OwnedSubject::default();
    for word in fields.required_texts(reader, "who") {
        if let Err(why) = subject.add(word.get_ref()) {
            reader.fault(word.span(), why);
        } else if let Some(unknown) = word.get_ref().strip_prefix("group:").filter(|name| !groups.contains(name)) {
            let hint = hint(unknown, groups.iter().copied());
            reader.fault(word.span(), format!("no group `{unknown}`{hint}"));
        }
    }
    if let Some(from) = fields.text(reader, "from")
        && let Err(why) = subject.add(&format!("address:{}", from.get_ref()))
    {
        reader.fault(from.span(), why);
    }
    subject
}

fn at(reader: &mut Reader<'_>, value: &Spanned<DeValue<'_>>) -> Option<u64> {
    let written = match value.get_ref() {
        DeValue::Datetime(date) => date.to_string(),
        _ => text(reader, value)?.get_ref().to_string(),
    };
    let read = instant(&written);
    if read.is_none() {
        reader.fault(
            value.span(),
            "`at` must be a time with its offset: 2026-03-02T09:00:00Z or 2026-03-02T09:00:00+01:00",
        );
    }
    read
}
