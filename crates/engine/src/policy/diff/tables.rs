//! Comparison of the parts of two policies that leave decisions to others: `[[delegations]]` and `[[lists]]`. The
//! decisions themselves (consents, and entries of lists) are no part of a policy. So this comparison names the fields
//! that differ, and not the people who gain or lose access.

use crate::document::duration;
use crate::policy::{Policy, Rule, Who, service};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of members of a group that are named.
const MOST_MEMBERS: usize = 20;

/// A difference between two policies in one of their delegations or lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableChange {
    /// The key of the table in the policy file: `delegations` or `lists`.
    pub table: &'static str,
    /// Name of the delegation or list.
    pub name: String,
    /// Whether the old policy, the new policy or both have the delegation or list.
    pub kind: TableKind,
    /// The fields that differ. If only one policy has the delegation or list, these are all of its fields.
    pub fields: Vec<FieldChange>,
}

/// The policies that have a delegation or list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TableKind {
    /// Only the new policy has it.
    Added,
    /// Only the old policy has it.
    Removed,
    /// Both policies have it, with different fields.
    Changed,
}

impl TableKind {
    /// Returns the name of the kind of change, as lists of differences show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
        }
    }
}

/// A field of a delegation or list that differs between two policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldChange {
    /// The key in the policy file, or `members of group:NAME` for a group that the delegation or list names.
    pub field: String,
    /// The value in the old policy; absent if that policy does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The value in the new policy; absent if that policy does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

/// A delegation or list in words.
struct Table<'p> {
    fields: BTreeMap<&'static str, String>,
    groups: BTreeMap<&'p str, &'p BTreeSet<String>>,
}

/// Compares the delegations and the lists of two policies.
pub fn compare_tables(old: &Policy, new: &Policy) -> Vec<TableChange> {
    let delegations = [old, new].map(|policy| {
        let of = policy.delegations.iter().map(|of| {
            let mut table = Table::new(policy, &of.rule, of.services.as_deref(), of.delegates.iter().chain(of.who()));
            table.fields.insert("delegates", joined(of.delegates.iter().map(ToString::to_string)));
            table.fields.insert("lifetime_max", duration(of.lifetime_max));
            (of.name.as_str(), table)
        });
        of.collect::<BTreeMap<_, _>>()
    });
    let lists = [old, new].map(|policy| {
        let of = policy.lists.iter().map(|of| {
            let table = Table::new(policy, &of.rule, of.services.as_deref(), of.rule.who.iter());
            (of.name.as_str(), table)
        });
        of.collect::<BTreeMap<_, _>>()
    });
    let compared = [("delegations", delegations), ("lists", lists)].into_iter();
    compared.flat_map(|(table, [old, new])| differences(table, &old, &new)).collect()
}

/// The delegations or the lists of a policy, by name.
type Tables<'p> = BTreeMap<&'p str, Table<'p>>;

fn differences(table: &'static str, old: &Tables<'_>, new: &Tables<'_>) -> Vec<TableChange> {
    let names: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    let changes = names.into_iter().filter_map(|name| {
        let (before, after) = (old.get(name), new.get(name));
        let kind = match (before, after) {
            (None, _) => TableKind::Added,
            (_, None) => TableKind::Removed,
            _ => TableKind::Changed,
        };
        let fields = Table::changed(before, after);
        (!fields.is_empty()).then(|| TableChange { table, name: name.to_owned(), kind, fields })
    });
    changes.collect()
}

impl<'p> Table<'p> {
    fn new(
        policy: &'p Policy,
        rule: &Rule,
        services: Option<&[crate::model::Service]>,
        who: impl Iterator<Item = &'p Who>,
    ) -> Self {
        let receivers = rule.to.iter().map(|index| policy.receivers[*index].name.clone());
        let services = services.map_or_else(|| "all".to_owned(), |own| joined(own.iter().map(service)));
        let terms = rule.terms;
        let fields = BTreeMap::from([
            ("to", joined(receivers)),
            ("who", joined(rule.who.iter().map(ToString::to_string))),
            ("services", services),
            ("lifetime", duration(terms.lifetime)),
            ("bind_source", terms.bind_source.to_string()),
            ("single", terms.single.to_string()),
            ("class", terms.class.to_string()),
        ]);
        let groups = who.filter_map(|who| match who {
            Who::Group(name) => policy.groups.get_key_value(name).map(|(name, members)| (name.as_str(), members)),
            _ => None,
        });
        Self { fields, groups: groups.collect() }
    }

    /// Returns the fields that differ, first those of the table, then the members of groups.
    fn changed(old: Option<&Self>, new: Option<&Self>) -> Vec<FieldChange> {
        let both = [old, new];
        let keys: BTreeSet<&str> = both.iter().flatten().flat_map(|of| of.fields.keys().copied()).collect();
        let fields = keys.into_iter().filter_map(|key| {
            let [old, new] = both.map(|of| of.and_then(|of| of.fields.get(key)).cloned());
            (old != new).then(|| FieldChange { field: key.to_owned(), old, new })
        });
        let groups: BTreeSet<&str> = both.iter().flatten().flat_map(|of| of.groups.keys().copied()).collect();
        let members = groups.into_iter().filter_map(|group| {
            let [before, after] = both.map(|of| of.and_then(|of| of.groups.get(group)).copied());
            // A group that only one of them names is in the field itself.
            let (before, after) = (before?, after?);
            (before != after).then(|| FieldChange {
                field: format!("members of group:{group}"),
                old: Some(members_of(before, after)),
                new: Some(members_of(after, before)),
            })
        });
        fields.chain(members).collect()
    }
}

/// Writes the members of a group. If there are too many, names only some of the members that the group does not have in
/// the other policy.
fn members_of(of: &BTreeSet<String>, other: &BTreeSet<String>) -> String {
    if of.is_empty() {
        return "nobody".to_owned();
    }
    if of.len() <= MOST_MEMBERS {
        return joined(of.iter().cloned());
    }
    let own: Vec<_> = of.difference(other).take(MOST_MEMBERS).map(String::as_str).collect();
    match own[..] {
        [] => format!("{} members", of.len()),
        _ => format!("{} members, among them {}", of.len(), own.join(", ")),
    }
}

/// Joins words in the order of the alphabet, each once.
fn joined(words: impl Iterator<Item = String>) -> String {
    let words: BTreeSet<String> = words.collect();
    words.into_iter().collect::<Vec<_>>().join(", ")
}
