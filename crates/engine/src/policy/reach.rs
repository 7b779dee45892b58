//! The receivers that a subject can reach at least in part. The agent requests grants only for these.

use super::{Action, Policy, Receiver, Rule, Subject};
use crate::model::Treatment;
use std::collections::BTreeSet;

impl Policy {
    /// Returns the receivers that the subject is allowed to reach at least in part at this time, in the order of the
    /// policy file. The result can contain a receiver to which the subject may send nothing, in two cases. In the first
    /// case, a list about the subject concerns the receiver, but no entry of the list allows anything. The function
    /// does not look at entries. In the second case, several deny rules together exclude the whole receiver, but no
    /// single rule excludes it.
    pub fn destinations(&self, subject: &Subject<'_>, now: u64) -> Vec<&Receiver> {
        let about: Vec<_> =
            self.rules.iter().map(|rule| self.is_about(rule, subject) && rule.when.covers(now)).collect();
        let strongest = |receiver: usize, action: Action| {
            let rules = self.index.rules_of(receiver).iter();
            rules.copied().find(|rule| about[*rule] && self.rules[*rule].action == action)
        };
        let strongest =
            |action| (0..self.receivers.len()).map(|receiver| strongest(receiver, action)).collect::<Vec<_>>();
        let (allows, denies) = (strongest(Action::Allow), strongest(Action::Deny));
        let order = |rule: &usize| self.rules[*rule].order();
        let reachable = |receiver: &usize| {
            if self.may_be_listed(subject, *receiver) {
                return true;
            }
            let receiver = &self.receivers[*receiver];
            let near = receiver.prefixes.iter().flat_map(|prefix| self.index.overlapping(prefix));
            let near = near.filter(|other| self.receivers[*other].spans.overlaps(&receiver.spans));
            let allow = near.filter_map(|other| allows[other].as_ref()).max_by_key(|rule| order(rule));
            let around = self.around(receiver).into_iter();
            let around = around.filter(|other| self.receivers[*other].spans.contains(&receiver.spans));
            let deny = around.filter_map(|other| denies[other].as_ref()).max_by_key(|rule| order(rule));
            allow.is_some_and(|allow| deny.is_none_or(|deny| order(allow) > order(deny)))
        };
        (0..self.receivers.len()).filter(reachable).map(|index| &self.receivers[index]).collect()
    }

    /// Returns the treatment that a subject's packets to a receiver need until a grant states more. It is the treatment
    /// of the strongest rule that allows the subject anything there at this time. If the receiver is a service that
    /// accepts sealed tunnels, it is [`Treatment::None`].
    pub fn demanded(&self, receiver: &Receiver, subject: &Subject<'_>, now: u64) -> Treatment {
        let near = receiver.prefixes.iter().flat_map(|prefix| self.index.overlapping(prefix));
        let near = near.filter(|other| self.receivers[*other].spans.overlaps(&receiver.spans));
        let rules = near.flat_map(|other| self.index.rules_of(other)).map(|rule| &self.rules[*rule]);
        let allows =
            rules.filter(|rule| rule.action == Action::Allow && self.is_about(rule, subject) && rule.when.covers(now));
        let strongest = allows.max_by_key(|rule| rule.order()).filter(|_| !receiver.tunnel);
        strongest.map_or(Treatment::None, |rule| rule.terms.sealing.treatment)
    }

    /// Returns the receivers to which the subject is not allowed to send anything now, although at other times a rule
    /// allows it in a sealed tunnel. Packets to these receivers must never be sent outside of a tunnel.
    pub fn closed(&self, subject: &Subject<'_>, now: u64) -> Vec<&Receiver> {
        let sealed = |rule: &&Rule| {
            rule.action == Action::Allow && rule.terms.sealing.is_sealed() && self.is_about(rule, subject)
        };
        let named: BTreeSet<usize> =
            self.rules.iter().filter(sealed).flat_map(|rule| rule.to.iter().copied()).collect();
        if named.is_empty() {
            return Vec::new();
        }
        let open: BTreeSet<&str> =
            self.destinations(subject, now).into_iter().map(|receiver| receiver.name.as_str()).collect();
        let receivers = named.into_iter().map(|index| &self.receivers[index]);
        receivers.filter(|receiver| !open.contains(receiver.name.as_str())).collect()
    }

    /// Returns the indices of the receivers that contain all addresses of `receiver`.
    fn around(&self, receiver: &Receiver) -> Vec<usize> {
        let mut prefixes = receiver.prefixes.iter();
        let Some(first) = prefixes.next() else { return Vec::new() };
        let mut all: Vec<_> = self.index.around_prefix(*first).collect();
        for prefix in prefixes {
            let mut these: Vec<_> = self.index.around_prefix(*prefix).collect();
            these.sort_unstable();
            all.retain(|receiver| these.binary_search(receiver).is_ok());
        }
        all
    }
}
