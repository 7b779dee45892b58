//! Lists: entries about who may reach which addresses, too many for a policy file. The entries come from the caller.
//! For each list, the policy names the receivers, people and services about which its entries count, and the terms of
//! the grants.
//!
//! A list counts only where no rule matches. So an entry never overrides a rule that denies, and never changes the
//! terms of a rule that allows. Among the entries of a list that match, the one with the highest priority decides.
//! Among entries of equal priority, the latest entry decides. If several entries are equally recent and one of them
//! denies, the entry that denies decides. If several lists concern a request, each list first decides by its own
//! priorities. If one of these decisions denies, the request is denied.

use super::rulebook::{self, Packed, Rulebook, Ruling, Sender};
use super::spans::Spans;
use super::window::written;
use super::{Action, Compiled, Decision, Permit, Policy, Receiver, Request, Rule, Scope, Subject};
use crate::model::Service;
use ipnet::IpNet;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::num::NonZeroU16;
use std::sync::{Arc, PoisonError, RwLock};

/// Maximum number of lists in a policy. The number is limited because a decision looks into each list that concerns the
/// destination.
pub const MOST_LISTS: usize = 64;
/// Maximum number of different groups in the entries of all lists. The number is limited because a decision looks for
/// the person in each group.
pub const MOST_GROUPS: usize = 256;

/// Maximum number of different times at which the entries of one list end.
pub const MOST_ENDS: usize = u16::MAX as usize;

/// The limits within which the entries of one list count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRule {
    /// Unique name of the list.
    pub name: String,
    /// The services that entries open; `None` for all services of each receiver.
    pub services: Option<Vec<Service>>,
    /// The services as [`Spans`].
    pub(super) spans: Option<Spans>,
    /// The label, the terms of grants, the receivers (as sorted indices), and the people about whom entries count. The
    /// rule is not one of the policy's rules.
    pub(super) rule: Rule,
}

/// An entry of a list, which says whether a sender may reach an address or network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The person, group or device tag whom the entry concerns, or everyone.
    pub sender: Sender,
    /// Whether the entry allows or denies.
    pub action: Action,
    /// Priority of the entry.
    pub priority: u16,
    /// Number of the change that made the entry. Among entries of equal priority, the one with the highest number
    /// decides.
    pub revision: u64,
    /// The time at which the entry ends, in Unix seconds; `None` if it does not end.
    pub until: Option<u64>,
}

/// Error: the entries of a list end at too many different times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the entries of a list can end at 65 535 different times at most: let entries end together, for example by day"
)]
pub struct TooManyEnds;

/// The numbers of the names in entries. Lists and their snapshots share the numbers, so a number is never given to
/// another name, even after [`Lists::set_names`].
#[derive(Default)]
pub struct Names(RwLock<Numbers>);

#[derive(Default)]
struct Numbers {
    by_name: HashMap<Box<str>, Sender>,
    /// The groups among the names.
    groups: Vec<(Box<str>, Sender)>,
}

/// The entries of one list. A clone is a snapshot and costs almost nothing.
#[derive(Clone)]
pub struct List {
    book: Rulebook,
    names: Arc<Names>,
    ends: Arc<Ends>,
    entries: usize,
}

/// The times at which entries end. The rulebook knows each of them as a window.
#[derive(Clone, Default)]
struct Ends {
    times: Vec<u64>,
    windows: HashMap<u64, NonZeroU16>,
}

/// The lists that are in force, by name. A clone is a snapshot and costs almost nothing.
#[derive(Clone, Default)]
pub struct Lists(BTreeMap<String, List>);

/// The entry that decides about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Name of the list.
    pub list: String,
    /// The address or network to which the entry applies.
    pub receiver: IpNet,
    /// The person, group or tag whom the entry concerns, such as `person:alice`, or `everyone`.
    pub who: String,
    /// Whether the entry allows or denies.
    pub action: Action,
    /// The time at which the entry ends, in Unix seconds.
    pub until: Option<u64>,
}

/// The deciding entry of one list.
#[derive(Clone, Copy)]
struct Deciding {
    receiver: IpNet,
    sender: Sender,
    action: Action,
    until: Option<u64>,
}

/// Returns the sender with this number in entries: 0 is everyone, and the other numbers are those of [`Names`].
pub const fn sender(number: u32) -> Option<Sender> {
    if number == 0 { Some(Sender::EVERYONE) } else { Sender::subject(number) }
}

impl Names {
    /// Adds a name. `sender` is its number in entries. The name is in the notation of entries, such as `person:alice`,
    /// `group:staff` or `tag:laptops`. The caller must not give one number to two names.
    pub fn insert(&self, sender: Sender, name: &str) {
        let mut numbers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = name.strip_prefix("group:")
            && !numbers.by_name.contains_key(name)
        {
            numbers.groups.push((group.into(), sender));
        }
        numbers.by_name.insert(name.into(), sender);
    }

    /// Returns the number of names.
    pub fn count(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_name.len()
    }

    /// Calls `each` with every sender that stands for the subject, with its kind (`person:`) and its name.
    fn about(&self, policy: &Policy, subject: &Subject<'_>, mut each: impl FnMut(Sender, &str, &str)) {
        let numbers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut key = String::with_capacity(80);
        let mut find = |kind: &'static str, name: &str| {
            key.clear();
            key.push_str(kind);
            key.push_str(name);
            if let Some(sender) = numbers.by_name.get(key.as_str()) {
                each(*sender, kind, name);
            }
        };
        if !subject.person.is_empty() {
            find("person:", subject.person);
        }
        subject.groups.iter().for_each(|group| find("group:", group));
        subject.tags.iter().for_each(|tag| find("tag:", tag));
        for (group, _) in &numbers.groups {
            let is_member = policy.groups.get(&**group).is_some_and(|members| members.contains(subject.person));
            if is_member && !subject.groups.iter().any(|own| **own == **group) {
                find("group:", group);
            }
        }
    }
}

impl List {
    /// Creates an empty list.
    pub fn new(names: Arc<Names>) -> Self {
        Self { book: Rulebook::default(), names, ends: Arc::default(), entries: 0 }
    }

    /// Sets the entries of an address or network that has none yet. Each sender may occur once.
    ///
    /// # Errors
    /// Fails if the entries end at too many different times.
    pub fn load(&mut self, receiver: IpNet, entries: &[Entry]) -> Result<(), TooManyEnds> {
        let mut packed = Vec::with_capacity(entries.len());
        for entry in entries {
            packed.push(self.entry(entry)?);
        }
        self.book.set_packed(place(receiver), Packed::new(&packed));
        self.entries += entries.len();
        Ok(())
    }

    /// Adds an entry for an address or network. Replaces its earlier entry about the same sender, if there is one.
    ///
    /// # Errors
    /// Fails if the entries end at too many different times.
    pub fn put(&mut self, receiver: IpNet, entry: &Entry) -> Result<(), TooManyEnds> {
        let (receiver, new) = (place(receiver), self.entry(entry)?);
        if let Some(old) = self.book.entry_about(&receiver, new.sender) {
            self.book.replace(&receiver, &old, new);
            return Ok(());
        }
        if !self.book.insert(&receiver, new) {
            self.book.set(receiver, &[new]);
        }
        self.entries += 1;
        Ok(())
    }

    /// Removes the entry of an address or network about a sender. Returns whether there was one.
    pub fn remove(&mut self, receiver: IpNet, sender: Sender) -> bool {
        let receiver = place(receiver);
        let Some(old) = self.book.entry_about(&receiver, sender) else { return false };
        let is_removed = self.book.remove(&receiver, &old);
        self.entries -= usize::from(is_removed);
        is_removed
    }

    /// Returns the number of entries, including those that have ended.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Reports whether the list has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Converts an entry to one of the rulebook. The number of different windows is limited.
    fn entry(&mut self, entry: &Entry) -> Result<rulebook::Entry, TooManyEnds> {
        let Entry { sender, action, priority, revision, until } = *entry;
        let window = match until {
            None => None,
            Some(until) => Some(match self.ends.windows.get(&until) {
                Some(window) => *window,
                None => {
                    let number = u16::try_from(self.ends.times.len() + 1).map_err(|_| TooManyEnds)?;
                    let window = NonZeroU16::new(number).ok_or(TooManyEnds)?;
                    let ends = Arc::make_mut(&mut self.ends);
                    ends.times.push(until);
                    ends.windows.insert(until, window);
                    window
                }
            }),
        };
        Ok(rulebook::Entry { sender, action, priority, revision, terms: 0, window })
    }

    fn end(&self, window: NonZeroU16) -> u64 {
        self.ends.times[usize::from(window.get()) - 1]
    }

    /// Returns the entry that decides about a request.
    fn deciding(&self, policy: &Policy, request: &Request<'_>) -> Option<Deciding> {
        let mut subjects = Vec::with_capacity(8);
        self.names.about(policy, &request.subject, |sender, _, _| subjects.push(sender));
        let sought = rulebook::Request { subjects: &subjects, source: None, to: request.to };
        match self.book.decide(&sought, |window| request.now < self.end(window)).decision {
            rulebook::Decision::Decided(Ruling { of, entry, .. }) => Some(Deciding {
                receiver: of.prefix,
                sender: entry.sender,
                action: entry.action,
                until: entry.window.map(|window| self.end(window)),
            }),
            _ => None,
        }
    }

    /// Returns the notation of a sender that stands for the subject.
    fn word(&self, policy: &Policy, subject: &Subject<'_>, sought: Sender) -> String {
        let mut word = "everyone".to_owned();
        self.names.about(policy, subject, |sender, kind, name| {
            if sender == sought {
                word = format!("{kind}{name}");
            }
        });
        word
    }
}

impl Lists {
    /// Returns the list with this name.
    pub fn get(&self, name: &str) -> Option<&List> {
        self.0.get(name)
    }

    /// Adds a list, or replaces the list that has this name.
    pub fn insert(&mut self, name: String, list: List) {
        self.0.insert(name, list);
    }

    /// Returns the list with this name, for a change. The snapshots that others have do not change.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut List> {
        self.0.get_mut(name)
    }

    /// Replaces the names by which all lists find people. The snapshots that others have keep the earlier names.
    pub fn set_names(&mut self, names: &Arc<Names>) {
        self.0.values_mut().for_each(|list| list.names = names.clone());
    }

    /// Removes the lists for whose names `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| keep(name));
    }

    /// Returns the names of the lists.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the number of entries in all lists.
    pub fn len(&self) -> usize {
        self.0.values().map(List::len).sum()
    }

    /// Reports whether there are no lists.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether an entry ends later than `since`, but no later than `now`. Entries that were removed count as
    /// well.
    pub fn any_ends(&self, since: u64, now: u64) -> bool {
        self.0.values().any(|list| list.ends.times.iter().any(|end| since < *end && *end <= now))
    }
}

impl fmt::Debug for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, list)| (name, list.len()))).finish()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { list, receiver, who, action, until } = self;
        write!(f, "entry of list {list}: {} {who} to {receiver}", action.name())?;
        match until {
            Some(until) => write!(f, " until {}", written(*until)),
            None => Ok(()),
        }
    }
}

impl ListRule {
    /// Returns the list's label in answers and logs, such as `policy.toml:40 list partners`.
    pub fn label(&self) -> &Arc<str> {
        self.rule.label()
    }

    /// Reports whether entries of the list may open a service.
    fn serves(&self, protocol: u8, port: u16) -> bool {
        self.spans.as_ref().is_none_or(|own| own.covers(protocol, port))
    }
}

impl Policy {
    /// Returns the lists that the policy uses, in the order of the policy file.
    pub fn lists(&self) -> &[ListRule] {
        &self.lists
    }

    /// Reports whether a list for this receiver covers the subject. Even then, the list possibly has no entry that
    /// allows the subject anything there.
    pub(super) fn may_be_listed(&self, subject: &Subject<'_>, receiver: usize) -> bool {
        self.lists
            .iter()
            .any(|list| list.rule.to.binary_search(&receiver).is_ok() && self.is_about(&list.rule, subject))
    }

    /// Returns the decision about a request with regard to lists, given the decision of the rules.
    pub(super) fn with_lists<'p>(
        &'p self,
        decision: Decision<'p>,
        request: &Request<'_>,
        lists: &Lists,
    ) -> Decision<'p> {
        if !matches!(decision, Decision::DefaultDeny { .. }) {
            return decision;
        }
        match self.deciding_in(lists, request) {
            None => decision,
            Some((list, receiver, Deciding { action: Action::Deny, .. })) => {
                Decision::Denied { receiver, rule: &list.rule }
            }
            Some((list, receiver, Deciding { until, .. })) => {
                Decision::Allowed(self.permit_listed(request, list, receiver, until))
            }
        }
    }

    /// Returns the entry that decides about a request for which no rule matches, with its list and its receiver.
    fn deciding_in<'p>(
        &'p self,
        lists: &Lists,
        request: &Request<'_>,
    ) -> Option<(&'p ListRule, &'p Receiver, Deciding)> {
        let mut allowing = None;
        for rule in &self.lists {
            let Some(list) = lists.get(&rule.name) else { continue };
            if !rule.serves(request.to.protocol, request.to.port) || !self.is_about(&rule.rule, &request.subject) {
                continue;
            }
            let mut here = self.index.around(request.to.address);
            let concerned =
                |place: &usize| rule.rule.to.binary_search(place).is_ok() && self.receivers[*place].serves(&request.to);
            let Some(receiver) = here.find(concerned).map(|place| &self.receivers[place]) else { continue };
            match list.deciding(self, request) {
                Some(found) if found.action == Action::Deny => return Some((rule, receiver, found)),
                Some(found) => allowing = allowing.or(Some((rule, receiver, found))),
                None => {}
            }
        }
        allowing
    }

    /// Returns the permit for a grant by a list, for a request about which no rule decides. The grant covers one
    /// service of one address. It ends with the entry, and before a rule about the subject begins to apply.
    fn permit_listed<'p>(
        &'p self,
        request: &Request<'_>,
        list: &'p ListRule,
        receiver: &'p Receiver,
        until: Option<u64>,
    ) -> Permit<'p> {
        let host = IpNet::from(request.to.address);
        let here = self.index.overlapping(&host).filter(|other| self.receivers[*other].serves(&request.to));
        let rules = here.flat_map(|other| self.index.rules_of(other)).map(|rule| &self.rules[*rule]);
        let later = rules.filter(|rule| self.is_about(rule, &request.subject) && !rule.when.covers(request.now));
        let begins = later.filter_map(|rule| rule.when.next_change(request.now));
        Permit {
            receiver,
            rule: &list.rule,
            terms: list.rule.terms,
            scope: Scope { prefix: host, service: Some((request.to.protocol, request.to.port)) },
            until: begins.chain(until).min(),
            consent: None,
        }
    }

    /// Returns the class of the grants of a list. `label` is the label of such a grant.
    pub(super) fn class_by_list(&self, label: &str) -> Option<u8> {
        self.lists.iter().find(|list| **list.label() == *label).map(|list| list.rule.terms.class)
    }
}

impl Compiled {
    /// Returns the entry of a list that decides about a request; `None` if a rule decides, or nothing matches.
    pub fn listed(&self, request: &Request<'_>) -> Option<Found> {
        let request = &request.normal();
        let (policy, lists) = (self.policy(), self.lists());
        let is_listed = match self.decide(request) {
            Decision::Denied { rule, .. } => rule.number == 0,
            Decision::Allowed(permit) => permit.rule.number == 0,
            Decision::NoReceiver | Decision::DefaultDeny { .. } => false,
        };
        let (rule, _, found) = policy.deciding_in(lists, request).filter(|_| is_listed)?;
        let Deciding { receiver, sender, action, until } = found;
        let who = lists.get(&rule.name)?.word(policy, &request.subject, sender);
        Some(Found { list: rule.name.clone(), receiver, who, action, until })
    }
}

/// Returns the rulebook's receiver for an address or network.
fn place(prefix: IpNet) -> rulebook::Receiver {
    rulebook::Receiver { prefix: prefix.trunc(), service: Service::ALL, number: 0, verifier: 0 }
}

#[cfg(test)]
mod tests;
