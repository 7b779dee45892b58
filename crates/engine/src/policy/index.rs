//! Index that finds receivers by address and rules by receiver without scanning all.

use super::{Receiver, Rule};
use ipnet::IpNet;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Indices into a policy's receivers and rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    v4: Prefixes,
    v6: Prefixes,
    /// For each receiver, the rules that name it, in descending precedence.
    rules: Vec<Vec<usize>>,
}

/// The prefixes of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Prefixes {
    /// By first address and length: the receivers that have this prefix, in the file's order.
    receivers: BTreeMap<(u128, u8), Vec<usize>>,
    lengths: BTreeSet<Reverse<u8>>,
}

impl Index {
    /// Creates the index of receivers, without rules.
    pub(super) fn new<'r>(receivers: impl IntoIterator<Item = &'r Receiver>) -> Self {
        let mut index = Self::default();
        for (number, receiver) in receivers.into_iter().enumerate() {
            index.rules.push(Vec::new());
            receiver.prefixes.iter().for_each(|prefix| index.add(prefix, number));
        }
        index
    }

    /// Records which receivers the rules name.
    pub(super) fn add_rules(&mut self, rules: &[Rule]) {
        for (number, rule) in rules.iter().enumerate() {
            rule.to.iter().for_each(|receiver| self.rules[*receiver].push(number));
        }
        for of_receiver in &mut self.rules {
            of_receiver.sort_by_key(|rule| Reverse(rules[*rule].order()));
            of_receiver.dedup();
        }
    }

    fn add(&mut self, prefix: &IpNet, receiver: usize) {
        let (family, bits, length) = self.family_mut(prefix);
        family.lengths.insert(Reverse(length));
        family.receivers.entry((bits, length)).or_default().push(receiver);
    }

    /// Returns the receivers that contain an address, those with the longest prefixes first, then in the file's order.
    pub(super) fn around(&self, address: IpAddr) -> impl Iterator<Item = usize> + '_ {
        self.around_prefix(IpNet::from(address))
    }

    /// Returns the receivers with a prefix that contains `prefix`, the longest first.
    pub(super) fn around_prefix(&self, prefix: IpNet) -> impl Iterator<Item = usize> + '_ {
        let (family, bits, most, longest) = self.family(&prefix);
        let lengths = family.lengths.range(Reverse(longest)..);
        lengths.flat_map(move |Reverse(length)| {
            let first = bits & leading_ones(*length, most);
            family.receivers.get(&(first, *length)).into_iter().flatten().copied()
        })
    }

    /// Returns the receivers with a prefix that overlaps `prefix`; some of them twice.
    pub(super) fn overlapping(&self, prefix: &IpNet) -> impl Iterator<Item = usize> + use<'_> {
        let (family, bits, most, length) = self.family(prefix);
        let last = bits | !leading_ones(length, most) & leading_ones(most, most);
        let within = family.receivers.range((bits, length)..=(last, most));
        let within =
            within.filter(move |((_, other), _)| *other > length).flat_map(|(_, receivers)| receivers).copied();
        self.around_prefix(*prefix).chain(within)
    }

    /// Returns the rules that name a receiver, in descending precedence.
    pub(super) fn rules_of(&self, receiver: usize) -> &[usize] {
        &self.rules[receiver]
    }

    fn family(&self, prefix: &IpNet) -> (&Prefixes, u128, u8, u8) {
        match prefix.network() {
            IpAddr::V4(first) => (&self.v4, u32::from(first).into(), 32, prefix.prefix_len()),
            IpAddr::V6(first) => (&self.v6, first.into(), 128, prefix.prefix_len()),
        }
    }

    fn family_mut(&mut self, prefix: &IpNet) -> (&mut Prefixes, u128, u8) {
        match prefix.network() {
            IpAddr::V4(first) => (&mut self.v4, u32::from(first).into(), prefix.prefix_len()),
            IpAddr::V6(first) => (&mut self.v6, first.into(), prefix.prefix_len()),
        }
    }
}

/// Returns a mask of `most` bits whose first `length` bits are ones.
fn leading_ones(length: u8, most: u8) -> u128 {
    let ones = |count: u8| if count == 0 { 0 } else { u128::MAX >> (128 - u32::from(count)) };
    ones(most) & !ones(most - length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_the_heads_of_addresses() {
        assert_eq!(leading_ones(0, 32), 0);
        assert_eq!(leading_ones(24, 32), 0xffff_ff00);
        assert_eq!(leading_ones(32, 32), 0xffff_ffff);
        assert_eq!(leading_ones(64, 128), u128::MAX << 64);
        assert_eq!(leading_ones(128, 128), u128::MAX);
    }

    #[test]
    fn prefixes_are_found_around_and_inside_another() {
        let mut index = Index::default();
        for (number, prefix) in ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "10.2.0.0/16", "::/0"].iter().enumerate() {
            index.add(&prefix.parse().unwrap(), number);
        }
        let around = |address: &str| index.around(address.parse().unwrap()).collect::<Vec<_>>();
        assert_eq!(around("10.1.2.3"), [2, 1, 0]);
        assert_eq!(around("10.9.9.9"), [0]);
        assert_eq!(around("11.0.0.0"), [0; 0]);
        assert_eq!(around("::a01:203"), [4]);
        let overlapping = |prefix: &str| index.overlapping(&prefix.parse().unwrap()).collect::<Vec<_>>();
        assert_eq!(overlapping("10.1.0.0/16"), [1, 0, 2]);
        assert_eq!(overlapping("0.0.0.0/0"), [0, 1, 2, 3]);
        assert_eq!(overlapping("10.3.0.0/16"), [0]);
        assert_eq!(overlapping("2001:db8::/32"), [4]);
    }
}
