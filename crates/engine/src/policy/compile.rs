//! A policy as a rulebook: the form for who holds more receivers and entries than a file of rules can. Both decide alike.

use super::{Policy, Receiver, Request, Rule, When, Who};
use crate::rulebook::{self, Entry, Packed, Rulebook, Ruling, Sender};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

/// A policy in a rulebook, with the names that the rulebook's numbers stand for.
pub struct Compiled<'p> {
    policy: &'p Policy,
    book: Rulebook,
    subjects: BTreeMap<Named<'p>, Sender>,
    windows: Vec<&'p When>,
}

/// Who may be called by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Named<'p> {
    Person(&'p str),
    Group(&'p str),
    Tag(&'p str),
}

impl Policy {
    /// The policy as a rulebook: receivers, rules, terms and windows under their numbers. `None` where there are more of
    /// them than a rulebook has numbers for: 65 535 different terms, or as many windows.
    pub fn compile(&self) -> Option<Compiled<'_>> {
        let mut compiled =
            Compiled { policy: self, book: Rulebook::default(), subjects: BTreeMap::new(), windows: Vec::new() };
        let mut terms = Vec::new();
        let mut said = Vec::with_capacity(self.rules.len());
        for rule in &self.rules {
            let terms = u16::try_from(place(&mut terms, rule.terms)).ok()?;
            let window = match rule.when.is_always() {
                true => None,
                false => Some(NonZeroU16::new(u16::try_from(1 + place(&mut compiled.windows, &rule.when)).ok()?)?),
            };
            for who in &rule.who {
                let sender = compiled.sender(who)?;
                let (action, priority, fresh) = (rule.action, rule.priority, rule.number as u64);
                said.push((rule.number, Entry { sender, action, priority, fresh, terms, window }));
            }
        }
        let verifiers: BTreeSet<&str> = self.receivers.iter().map(|receiver| receiver.verifier.as_str()).collect();
        let mut prefixes: Vec<_> = (0..self.receivers.len())
            .flat_map(|number| self.receivers[number].prefixes.iter().map(move |prefix| (*prefix, number)))
            .collect();
        // The wider first, as rulebooks want it.
        prefixes.sort_by_key(|(prefix, _)| prefix.prefix_len());
        for (prefix, number) in prefixes {
            let of_rule = |rule: usize| said.partition_point(|(number, _)| *number < rule);
            let rules = self.index.rules_of(number).iter().map(|rule| self.rules[*rule].number);
            let entries: Vec<_> =
                rules.flat_map(|rule| &said[of_rule(rule)..of_rule(rule + 1)]).map(|(_, entry)| *entry).collect();
            let receiver = &self.receivers[number];
            let verifier = verifiers.range(..receiver.verifier.as_str()).count();
            let entries = Packed::new(&entries);
            for service in &receiver.services {
                let (number, verifier) = (u32::try_from(number).ok()?, u32::try_from(verifier).ok()?);
                let receiver = rulebook::Receiver { prefix, service: *service, number, verifier };
                compiled.book.set_packed(receiver, entries.clone());
            }
        }
        Some(compiled)
    }
}

impl<'p> Compiled<'p> {
    /// The rulebook.
    pub fn rulebook(&self) -> &Rulebook {
        &self.book
    }

    /// The most specific receiver at the destination, and the deciding rule, if there are any.
    pub fn decide(&self, request: &Request<'_>) -> (Option<&'p Receiver>, Option<&'p Rule>) {
        let subject = request.subject;
        let of_file = self.policy.groups.iter().filter(|(_, members)| members.contains(subject.person));
        let groups = of_file.map(|(group, _)| group).chain(subject.groups);
        let names = groups.map(|group| Named::Group(group)).chain(subject.tags.iter().map(|tag| Named::Tag(tag)));
        let names = names.chain([Named::Person(subject.person)]);
        let subjects: Vec<_> = names.filter_map(|name| self.subjects.get(&name).copied()).collect();
        let open = |window: NonZeroU16| self.windows[usize::from(window.get()) - 1].covers(request.now);
        let asked = rulebook::Request { subjects: &subjects, source: subject.source, to: request.to };
        let receiver = |receiver: rulebook::Receiver| Some(&self.policy.receivers[receiver.number as usize]);
        match self.book.decide(&asked, open).decision {
            rulebook::Decision::NoReceiver => (None, None),
            rulebook::Decision::DefaultDeny { receiver: most_specific } => (receiver(most_specific), None),
            rulebook::Decision::Decided(Ruling { receiver: most_specific, entry, .. }) => {
                (receiver(most_specific), self.policy.rules.get(entry.fresh as usize - 1))
            }
        }
    }

    fn sender(&mut self, who: &'p Who) -> Option<Sender> {
        let name = match who {
            Who::Everyone => return Some(Sender::EVERYONE),
            Who::Address(prefix) => return Some(self.book.network(*prefix)),
            Who::Person(name) => Named::Person(name),
            Who::Group(name) => Named::Group(name),
            Who::Tag(name) => Named::Tag(name),
        };
        let next = Sender::subject(u32::try_from(self.subjects.len()).ok()? + 1)?;
        Some(*self.subjects.entry(name).or_insert(next))
    }
}

/// Where `one` stands among those met so far, to which it is added if it is new.
fn place<T: PartialEq>(met: &mut Vec<T>, one: T) -> usize {
    met.iter().position(|other| *other == one).unwrap_or_else(|| {
        met.push(one);
        met.len() - 1
    })
}
