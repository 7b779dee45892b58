//! Parsing of `[[lists]]`: the limits within which the entries of lists count.

use super::delegations::{check_receivers, read_receivers, read_services, read_terms};
use super::{FILE, MOST_BY_BEGINNING, check_name, subject};
use crate::document::{Fields, Reader};
use crate::policy::lists::{ListRule, MOST_LISTS};
use crate::policy::spans::Spans;
use crate::policy::{Action, Policy, Rule, When};
use std::collections::BTreeSet;
use std::sync::Arc;

const KEYS: &[&str] = &["name", "to", "who", "services", "lifetime", "bind_source", "single", "class"];

/// Reads the lists. Must be called after the rules were read.
pub(super) fn read(reader: &mut Reader<'_>, root: &Fields<'_, '_>, policy: &mut Policy, max_lifetime: u32) {
    let mut names = BTreeSet::new();
    let tables = root.tables(reader, "lists", "a list", KEYS);
    if let Some(surplus) = tables.get(MOST_LISTS) {
        reader
            .fault(surplus.span(), format!("a policy has at most {MOST_LISTS} lists: one list can have many entries"));
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
        let who = fields.required_texts(reader, "who");
        let who = who.iter().filter_map(|word| subject(reader, word, policy)).collect();
        let services = read_services(reader, &fields, "open");
        let terms = read_terms(reader, &fields, max_lifetime);
        named.extend(to.iter().cloned());
        let Some(name) = name else { continue };
        check_name(reader, &name);
        let name = name.get_ref().to_string();
        if !names.insert(name.clone()) {
            reader.fault(fields.span(), format!("there is already a list `{name}`"));
        }
        let mut to: Vec<usize> = to.into_iter().map(|(index, _)| index).collect();
        to.sort_unstable();
        let mut rule = Rule {
            number: 0,
            line,
            name: Some(format!("list {name}")),
            label: Arc::default(),
            action: Action::Allow,
            priority: 0,
            who,
            to,
            when: When::default(),
            terms,
        };
        rule.label = rule.label_in(FILE);
        let spans = services.as_deref().map(Spans::new);
        policy.lists.push(ListRule { name, services, spans, rule });
    }
    check_receivers(reader, policy, &named, "a list");
}
