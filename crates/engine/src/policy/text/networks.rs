//! Receivers of virtual networks. The receivers and rules of each network form a policy of their own, because several
//! networks can use the same addresses.

use crate::policy::index::Index;
use crate::policy::{Policy, Receiver, Rule};
use std::collections::BTreeMap;
use std::ops::Range;

/// Calls `show` once for each network with the network's receivers and their spans, and once with the receivers outside
/// of networks.
pub(super) fn each(
    receivers: &[Receiver],
    spans: &[Range<usize>],
    mut show: impl FnMut(&[&Receiver], &[&Range<usize>]),
) {
    let mut parts: BTreeMap<Option<&str>, (Vec<_>, Vec<_>)> = BTreeMap::new();
    for (receiver, span) in receivers.iter().zip(spans) {
        let (receivers, spans) = parts.entry(receiver.network.as_deref()).or_default();
        receivers.push(receiver);
        spans.push(span);
    }
    parts.values().for_each(|(receivers, spans)| show(receivers, spans));
}

/// Moves the receivers of networks out of a policy. Each network gets a policy of its own, with the rules that name its
/// receivers. The original policy keeps all rules, so that a rule's position is still its number.
pub(super) fn divide(mut policy: Policy) -> Policy {
    let mut parts: BTreeMap<String, Policy> = BTreeMap::new();
    let mut places: Vec<(Option<String>, usize)> = Vec::new();
    policy.names.clear();
    for receiver in std::mem::take(&mut policy.receivers) {
        let part = match &receiver.network {
            None => &mut policy,
            Some(network) => parts
                .entry(network.clone())
                .or_insert_with(|| Policy { groups: policy.groups.clone(), ..Policy::default() }),
        };
        places.push((receiver.network.clone(), part.receivers.len()));
        part.names.insert(receiver.name.clone(), part.receivers.len());
        part.receivers.push(receiver);
    }
    for rule in &mut policy.rules {
        let mut of_parts: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut own = Vec::new();
        for receiver in std::mem::take(&mut rule.to) {
            match &places[receiver] {
                (None, place) => own.push(*place),
                (Some(network), place) => of_parts.entry(network).or_default().push(*place),
            }
        }
        for (network, to) in of_parts {
            if let Some(part) = parts.get_mut(network) {
                part.rules.push(Rule { to, ..rule.clone() });
            }
        }
        rule.to = own;
    }
    // The parser has reported delegations and lists about receivers of networks.
    let delegated = policy.delegations.iter_mut().map(|delegation| &mut delegation.rule);
    for rule in delegated.chain(policy.lists.iter_mut().map(|list| &mut list.rule)) {
        let to = std::mem::take(&mut rule.to).into_iter().map(|receiver| &places[receiver]);
        rule.to = to.filter(|(network, _)| network.is_none()).map(|(_, place)| *place).collect();
    }
    for part in parts.values_mut().chain([&mut policy]) {
        part.index = Index::new(&part.receivers);
        part.index.add_rules(&part.rules);
    }
    policy.networks = parts;
    policy
}
