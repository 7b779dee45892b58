//! The room that one organisation's services may take in the entry of an address, which holds the services of all
//! organisations.

use anyhow::Result;
use engine::model::{Receiver, Service};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};

/// Visits the prefixes of these receivers, wider prefixes first, with the separate port ranges of each. The ranges of a
/// prefix include those of the wider prefixes around it. If a prefix has more ranges than `room` permits, calls
/// `crowded` with the prefix, the ranges and the room. The result of `crowded` replaces the ranges.
///
/// # Errors
///
/// Fails if `crowded` fails.
pub fn measure(
    receivers: &[Receiver],
    room: impl Fn(&IpNet) -> usize,
    mut crowded: impl FnMut(IpNet, Vec<Service>, usize) -> Result<Vec<Service>>,
) -> Result<()> {
    let mut own: BTreeMap<IpNet, Vec<Service>> = BTreeMap::new();
    for receiver in receivers {
        own.entry(receiver.prefix.trunc()).or_default().extend(&receiver.services);
    }
    let mut around: Vec<(IpNet, Vec<Service>)> = Vec::new();
    for (prefix, mut services) in own {
        while around.last().is_some_and(|(wider, _)| !wider.contains(&prefix)) {
            around.pop();
        }
        services.extend(around.last().map_or(&[][..], |(_, spans)| spans));
        let (spans, room) = (joined(services), room(&prefix));
        let spans = if spans.len() > room { crowded(prefix, spans, room)? } else { spans };
        around.push((prefix, spans));
    }
    Ok(())
}

/// Sorts port ranges, and joins overlapping and adjacent ranges of a protocol.
pub fn joined(mut spans: Vec<Service>) -> Vec<Service> {
    if spans.iter().any(|span| span.protocol == 0) {
        return vec![Service::ALL];
    }
    spans.sort_unstable();
    spans.dedup_by(|next, last| {
        let joins = last.protocol == next.protocol && next.first_port <= last.last_port.saturating_add(1);
        if joins {
            last.last_port = last.last_port.max(next.last_port);
        }
        joins
    });
    spans
}

/// Closes the smallest gaps between these joined ranges, until at most `room` ranges are left. Closes only gaps that
/// are within one of the ranges of `limits`. If that is not enough, returns `limits`.
pub fn with_gaps_closed(spans: &[Service], room: usize, limits: &[Service]) -> Vec<Service> {
    let given = |protocol: u8, port: u16| limits.iter().position(|limit| limit.covers(protocol, port));
    let closable = |at: &usize| {
        let (last, next) = (&spans[at - 1], &spans[*at]);
        last.protocol == next.protocol && given(last.protocol, last.last_port) == given(next.protocol, next.first_port)
    };
    let mut gaps: Vec<usize> = (1..spans.len()).filter(closable).collect();
    let surplus = spans.len().saturating_sub(room);
    if gaps.len() < surplus {
        return limits.to_vec();
    }
    gaps.sort_by_key(|at| spans[*at].first_port.saturating_sub(spans[at - 1].last_port));
    let closed: BTreeSet<usize> = gaps.into_iter().take(surplus).collect();
    let mut fewer: Vec<Service> = Vec::new();
    for (at, span) in spans.iter().enumerate() {
        match fewer.last_mut() {
            Some(last) if closed.contains(&at) => last.last_port = span.last_port,
            _ => fewer.push(*span),
        }
    }
    fewer
}

/// Returns the receivers that `networks` contain or overlap, for display.
pub fn within(receivers: &[Receiver], networks: &[IpNet]) -> Vec<String> {
    let overlaps = |one: &&Receiver| networks.iter().any(|network| overlap(network, &one.prefix));
    receivers.iter().filter(overlaps).map(|one| format!("{} ({})", one.name, one.prefix)).collect()
}

/// Reports whether one of the networks contains the other one.
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}
