//! Destinations in classes. Two destinations are in the same class if they belong to the same receivers in both
//! policies, by their addresses and by their services.

use super::DestinationSet;
use crate::policy::explain::service_words;
use crate::policy::{Policy, Receiver};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::Destination;

/// Address family (true for IPv6), and the first and the last address as numbers.
type Range = (bool, u128, u128);

/// The highest number of a span of services, plus one.
const END: u32 = 1 << 24;

pub(super) struct Places<'p> {
    classes: Vec<Class<'p>>,
}

struct Class<'p> {
    ranges: Vec<Range>,
    receivers: Vec<&'p Receiver>,
}

/// Spans of services, by class of addresses.
#[derive(Default)]
pub(super) struct Spans(BTreeMap<usize, Vec<(u32, u32)>>);

impl Spans {
    pub(super) fn add(&mut self, class: usize, (first, last): (u32, u32)) {
        let spans = self.0.entry(class).or_default();
        match spans.last_mut() {
            Some((_, end)) if *end + 1 == first => *end = last,
            _ => spans.push((first, last)),
        }
    }
}

impl<'p> Places<'p> {
    pub(super) fn of(policies: [&'p Policy; 2]) -> Self {
        let prefixes: Vec<_> =
            policies.iter().flat_map(|policy| &policy.receivers).flat_map(|r| &r.prefixes).copied().collect();
        let mut classes: BTreeMap<[BTreeSet<usize>; 2], Vec<Range>> = BTreeMap::new();
        for range in ranges(&prefixes) {
            let around = policies.map(|policy| policy.index.around(address(range.0, range.1)).collect::<BTreeSet<_>>());
            if around.iter().any(|receivers| !receivers.is_empty()) {
                classes.entry(around).or_default().push(range);
            }
        }
        let named = |around: &[BTreeSet<usize>; 2]| {
            let of_policy = |side: usize| around[side].iter().map(move |index| &policies[side].receivers[*index]);
            of_policy(0).chain(of_policy(1)).collect()
        };
        let classes = classes.into_iter().map(|(around, ranges)| Class { receivers: named(&around), ranges });
        Self { classes: classes.collect() }
    }

    /// Returns every class of addresses with every span of services, and one destination in each.
    pub(super) fn cells(&self) -> impl Iterator<Item = (usize, (u32, u32), Destination)> + '_ {
        self.classes.iter().enumerate().flat_map(|(number, class)| {
            // Begin with protocol 1: 0 does not stand for one protocol but for all.
            let bounds: BTreeSet<_> = class.receivers.iter().flat_map(|receiver| receiver.spans.bounds()).collect();
            let bounds: BTreeSet<_> = bounds.into_iter().map(|bound| bound.clamp(1 << 16, END)).collect();
            let bounds: Vec<_> = bounds.into_iter().collect();
            let spans = bounds.windows(2).map(|pair| (pair[0], pair[1] - 1)).collect::<Vec<_>>();
            let address = address(class.ranges[0].0, class.ranges[0].1);
            let to = move |first: u32| Destination { address, protocol: (first >> 16) as u8, port: first as u16 };
            let served = move |to: &Destination| class.receivers.iter().any(|receiver| receiver.serves(to));
            spans.into_iter().map(move |span| (number, span, to(span.0))).filter(move |(_, _, to)| served(to))
        })
    }

    pub(super) fn named(&self, spans: &Spans) -> Vec<DestinationSet> {
        let mut places: Vec<_> = spans
            .0
            .iter()
            .map(|(class, spans)| {
                let class = &self.classes[*class];
                let served = |receiver: &&&Receiver| {
                    spans.iter().any(|(first, _)| receiver.spans.covers((first >> 16) as u8, *first as u16))
                };
                let receivers: BTreeSet<_> =
                    class.receivers.iter().filter(served).map(|receiver| receiver.name.clone()).collect();
                DestinationSet {
                    receivers: receivers.into_iter().collect(),
                    prefixes: class.ranges.iter().flat_map(|range| subnets(*range)).collect(),
                    services: spans.iter().flat_map(|span| service_words(*span)).collect(),
                }
            })
            .collect();
        places.sort();
        places
    }
}

/// Divides addresses into classes, so that the same prefixes contain all addresses of a class. For each class inside at
/// least one prefix, returns one of its addresses and a description of the class.
pub(super) fn classes(prefixes: &[IpNet]) -> Vec<(IpAddr, Vec<String>)> {
    let mut classes: BTreeMap<Vec<bool>, Vec<Range>> = BTreeMap::new();
    for range in ranges(prefixes) {
        let first = address(range.0, range.1);
        let around: Vec<_> = prefixes.iter().map(|prefix| prefix.contains(&first)).collect();
        if around.contains(&true) {
            classes.entry(around).or_default().push(range);
        }
    }
    let written =
        |ranges: Vec<Range>| (address(ranges[0].0, ranges[0].1), ranges.into_iter().flat_map(subnets).collect());
    classes.into_values().map(written).collect()
}

/// Returns the ranges of addresses between the ends of prefixes, for both families.
fn ranges(prefixes: &[IpNet]) -> Vec<Range> {
    let mut bounds: BTreeSet<(bool, u128)> = BTreeSet::new();
    for prefix in prefixes {
        let (v6, first, last) = (prefix.addr().is_ipv6(), number(prefix.network()), number(prefix.broadcast()));
        bounds.insert((v6, first));
        bounds.extend(last.checked_add(1).map(|next| (v6, next)));
    }
    let mut ranges = Vec::new();
    for (v6, first) in &bounds {
        let most = if *v6 { u128::MAX } else { u32::MAX.into() };
        let next = bounds.range((*v6, first.saturating_add(1))..).next().filter(|(other, _)| other == v6);
        let last = next.map_or(most, |(_, next)| next - 1);
        if *first <= most {
            ranges.push((*v6, *first, last));
        }
    }
    ranges
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn address(v6: bool, number: u128) -> IpAddr {
    if v6 { Ipv6Addr::from(number).into() } else { Ipv4Addr::from(number as u32).into() }
}

/// Writes a range as prefixes.
fn subnets((v6, first, last): Range) -> Vec<String> {
    let (mut first, most) = (first, if v6 { 128 } else { 32 });
    let mut written = Vec::new();
    loop {
        // The largest block that begins at the same address and does not pass the end.
        let fits = |bits: u32| {
            let size = if bits == 128 { u128::MAX } else { (1u128 << bits) - 1 };
            first & size == 0 && first.checked_add(size).is_some_and(|end| end <= last)
        };
        let bits = (0..=most).rev().find(|bits| fits(*bits)).unwrap_or(0);
        let length = most - bits;
        let text = address(v6, first);
        written.push(if bits == 0 { text.to_string() } else { format!("{text}/{length}") });
        let size = if bits == 128 { u128::MAX } else { (1u128 << bits) - 1 };
        match first.checked_add(size).and_then(|end| end.checked_add(1)) {
            Some(next) if next <= last => first = next,
            _ => return written,
        }
    }
}
