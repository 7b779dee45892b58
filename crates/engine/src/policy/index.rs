//! Index of a policy. It finds receivers by address, and rules by receiver, without a scan.

use super::{Receiver, Rule};
use crate::model::prefixes::Prefixes;
use ipnet::IpNet;
use std::cmp::Reverse;
use std::net::IpAddr;

/// Indices into a policy's receivers and rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// For each prefix, the receivers that have it, in the file's order.
    receivers: Prefixes<Vec<usize>>,
    /// For each receiver, the rules that name it, in descending precedence.
    rules: Vec<Vec<usize>>,
    /// Whether any rule has a time window.
    has_windows: bool,
    /// Whether any receiver is the service that accepts sealed tunnels.
    has_tunnels: bool,
}

impl Index {
    /// Creates the index of receivers, without rules.
    pub(super) fn new<'r>(receivers: impl IntoIterator<Item = &'r Receiver>) -> Self {
        let mut index = Self::default();
        for (number, receiver) in receivers.into_iter().enumerate() {
            index.rules.push(Vec::new());
            index.has_tunnels |= receiver.tunnel;
            receiver.prefixes.iter().for_each(|prefix| index.receivers.entry(prefix).push(number));
        }
        index
    }

    /// Records which receivers the rules name.
    pub(super) fn add_rules(&mut self, rules: &[Rule]) {
        for (number, rule) in rules.iter().enumerate() {
            rule.to.iter().for_each(|receiver| self.rules[*receiver].push(number));
            self.has_windows |= !rule.when.is_always();
        }
        for of_receiver in &mut self.rules {
            of_receiver.sort_by_key(|rule| Reverse(rules[*rule].order()));
            of_receiver.dedup();
        }
    }

    /// Returns the receivers that contain an address, longest prefix first. Receivers with equal prefixes are in the
    /// order of the policy file.
    pub(super) fn around(&self, address: IpAddr) -> impl Iterator<Item = usize> + '_ {
        self.around_prefix(IpNet::from(address))
    }

    /// Returns the receivers with a prefix that contains `prefix`, longest prefix first.
    pub(super) fn around_prefix(&self, prefix: IpNet) -> impl Iterator<Item = usize> + '_ {
        self.receivers.around(prefix).flatten().copied()
    }

    /// Returns the receivers with a prefix that overlaps `prefix`; a receiver may occur twice.
    pub(super) fn overlapping(&self, prefix: &IpNet) -> impl Iterator<Item = usize> + use<'_> {
        self.receivers.overlapping(prefix).flatten().copied()
    }

    /// Reports whether any rule has a time window. Without one, the rules decide the same at all times.
    pub(super) fn has_windows(&self) -> bool {
        self.has_windows
    }

    /// Reports whether any receiver is the service that accepts sealed tunnels.
    pub(super) fn has_tunnels(&self) -> bool {
        self.has_tunnels
    }

    /// Returns the rules that name a receiver, in descending precedence.
    pub(super) fn rules_of(&self, receiver: usize) -> &[usize] {
        &self.rules[receiver]
    }
}
