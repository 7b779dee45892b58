//! A session's receivers, with an index that finds the receiver of a destination without a scan. The index is needed
//! because every queued packet needs the look-up, and an authority that a user chose can list thousands of receivers.

use crate::model::prefixes::Prefixes;
use crate::model::work::examined;
use crate::model::{Receiver, Service};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use wire::Destination;

/// Receivers that the person may reach.
pub(super) struct Receivers {
    all: Vec<Receiver>,
    index: Prefixes<Spans>,
    /// For each receiver, the index of the first receiver with the same name. A receiver with several prefixes occurs
    /// once per prefix. Indices are compared instead of names because names may be long.
    namesakes: Vec<usize>,
    /// The width of the latest grant for a receiver. The key is the index of the first receiver with the same name.
    widths: BTreeMap<usize, Width>,
    /// Names of the receivers whose packets must travel in a sealed tunnel.
    sealed: BTreeSet<String>,
}

/// Prefix length of a grant, and whether the grant covers one service only.
type Width = (u8, bool);

impl Receivers {
    pub fn new(all: Vec<Receiver>, sealed: BTreeSet<String>) -> Self {
        let mut services: Prefixes<Vec<(Service, usize)>> = Prefixes::default();
        for (number, receiver) in all.iter().enumerate() {
            let of_prefix = services.entry(&receiver.prefix);
            of_prefix.extend(receiver.services.iter().map(|service| (*service, number)));
        }
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        let namesakes = all.iter().enumerate().map(|(number, one)| *names.entry(&one.name).or_insert(number)).collect();
        Self { index: services.map(|services| Spans::new(&services)), namesakes, widths: BTreeMap::new(), sealed, all }
    }

    /// Returns the receivers in the order in which the authority listed them.
    pub fn all(&self) -> &[Receiver] {
        &self.all
    }

    /// Returns the receiver to which a destination belongs. If several receivers contain the destination, returns the
    /// one with the longest prefix; among equal prefixes, the one that the authority listed last.
    pub fn of(&self, place: &Destination) -> Option<&Receiver> {
        self.all.get(self.number_of(place)?)
    }

    /// Returns the names of the receivers whose packets must travel in a sealed tunnel.
    pub fn sealed(&self) -> &BTreeSet<String> {
        &self.sealed
    }

    /// Reports whether packets to this destination must travel in a sealed tunnel (wire.md §6.11.6).
    pub fn are_sealed(&self, place: &Destination) -> bool {
        !self.sealed.is_empty() && self.of(place).is_some_and(|receiver| self.sealed.contains(&receiver.name))
    }

    /// Reports whether this network contains a receiver, or a receiver contains this network.
    pub fn overlap(&self, network: &IpNet) -> bool {
        self.index.overlapping(network).next().is_some()
    }

    /// Returns the prefix length of the latest grant for the receiver to which this destination belongs, and whether
    /// the grant covers one service only. Returns `None` if there was no grant for the receiver yet.
    pub fn width(&self, place: &Destination) -> Option<Width> {
        self.widths.get(self.namesakes.get(self.number_of(place)?)?).copied()
    }

    pub fn set_width(&mut self, place: &Destination, width: Width) {
        if let Some(first) = self.number_of(place).and_then(|number| self.namesakes.get(number)) {
            self.widths.insert(*first, width);
        }
    }

    fn number_of(&self, place: &Destination) -> Option<usize> {
        self.index.around(place.address.into()).find_map(|spans| spans.at(place.protocol, place.port))
    }
}

/// Disjoint ranges of numbers, each of which stands for a protocol and port: the first number of each range, and the
/// range's receiver.
#[derive(Default)]
struct Spans(Vec<(u32, Option<usize>)>);

impl Spans {
    fn new(services: &[(Service, usize)]) -> Self {
        // For each number, the receivers with a span that begins (1) or ends (-1) there.
        let mut changes: BTreeMap<u32, Vec<(usize, i32)>> = BTreeMap::new();
        for (service, receiver) in services {
            let (first, last) = match service.protocol {
                0 => (0, number(u8::MAX, u16::MAX)),
                protocol => (number(protocol, service.first_port), number(protocol, service.last_port)),
            };
            if first <= last {
                changes.entry(first).or_default().push((*receiver, 1));
                changes.entry(last + 1).or_default().push((*receiver, -1));
            }
        }
        // The receivers that cover the current number, each with the number of its spans that do.
        let mut covering: BTreeMap<usize, i32> = BTreeMap::new();
        let mut spans = Vec::with_capacity(changes.len());
        for (first, changes) in changes {
            for (receiver, change) in changes {
                *covering.entry(receiver).or_default() += change;
                if covering[&receiver] == 0 {
                    covering.remove(&receiver);
                }
            }
            spans.push((first, covering.last_key_value().map(|(receiver, _)| *receiver)));
        }
        Self(spans)
    }

    fn at(&self, protocol: u8, port: u16) -> Option<usize> {
        let wanted = number(protocol, port);
        let after = self.0.partition_point(|(first, _)| {
            examined();
            *first <= wanted
        });
        self.0.get(after.checked_sub(1)?)?.1
    }
}

fn number(protocol: u8, port: u16) -> u32 {
    u32::from(protocol) << 16 | u32::from(port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::packet::{TCP, UDP};

    #[test]
    fn the_longest_prefix_decides_and_then_the_last_receiver() {
        let receiver = |prefix: &str, services: &[(u8, u16, u16)]| Receiver {
            name: String::new(),
            prefix: prefix.parse().expect("a prefix"),
            services: services
                .iter()
                .map(|&(protocol, first_port, last_port)| Service { protocol, first_port, last_port })
                .collect(),
        };
        let all = vec![
            receiver("192.0.2.0/24", &[(0, 0, 65535)]),
            receiver("192.0.2.1/32", &[(TCP, 1, 100), (TCP, 50, 60), (UDP, 53, 53)]),
            receiver("192.0.2.1/32", &[(TCP, 80, 80), (TCP, 90, 85)]),
            receiver("192.0.2.9/16", &[(TCP, 22, 22)]),
            receiver("2001:db8::/32", &[(TCP, 65535, 65535)]),
        ];
        let receivers = Receivers::new(all.clone(), BTreeSet::new());
        for address in ["192.0.2.1", "192.0.2.2", "192.0.9.1", "198.51.100.1", "2001:db8::1"] {
            for protocol in [0, 1, TCP, UDP, 255] {
                for port in [0, 1, 22, 49, 53, 60, 61, 79, 80, 81, 87, 100, 101, 65535] {
                    let place = Destination { address: address.parse().expect("an address"), protocol, port };
                    let covers = |receiver: &&Receiver| {
                        receiver.prefix.contains(&place.address)
                            && receiver.services.iter().any(|service| service.covers(protocol, port))
                    };
                    let scanned = all.iter().filter(covers).max_by_key(|receiver| receiver.prefix.prefix_len());
                    assert_eq!(receivers.of(&place), scanned, "{place:?}");
                }
            }
        }
    }
}
