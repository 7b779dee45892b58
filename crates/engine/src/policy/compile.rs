//! The policy in force, compiled into a rulebook that makes the decisions. The rulebook contains only numbers for
//! receivers, senders and terms. The policy says what the numbers stand for, how much a grant covers, and when the
//! grant ends. Policy and rulebook make the same decisions.

use super::lists::Lists;
use super::{Action, Decision, Policy, Request, When, Who};
use crate::policy::rulebook::{self, Entry, Packed, Rulebook, Ruling, Sender};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

/// Maximum number of entries of all receivers together; they take some 80 MB. The limit is necessary because a short
/// file can name thousands of people in each of thousands of receivers.
const MOST_ENTRIES: usize = 10_000_000;
/// Maximum number of prefixes of all receivers together, each counted once per service of its receiver; they take some
/// 100 MB.
const MOST_PLACES: usize = 1_000_000;

/// Number of earlier time windows with which a new time window is compared.
const WINDOWS_BACK: usize = 64;

/// A policy compiled for decisions.
pub struct Compiled {
    policy: Policy,
    book: Rulebook,
    subjects: Subjects,
    /// For each person, the groups of the policy that they are in.
    members: BTreeMap<String, Vec<Sender>>,
    windows: Vec<When>,
    networks: BTreeMap<String, Self>,
    lists: Lists,
}

/// Error: a valid policy that is too large to be put in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// The rules have more entries than can be in force. Contains the number of entries.
    #[error(
        "the policy is too large: its rules make {0} entries, one for each combination of a sender (person, group, \
         tag or address) and a receiver; at most {MOST_ENTRIES} can be in force. Name groups instead of persons, and \
         networks instead of addresses"
    )]
    Entries(usize),
    /// The receivers have more prefixes and services than can be in force. Contains their number.
    #[error(
        "the policy is too large: its receivers make {0} entries, one for each combination of a prefix and a service; \
         at most {MOST_PLACES} can be in force. Join services into ranges"
    )]
    Places(usize),
    /// The policy has more different terms, time windows or names than the rulebook can number.
    #[error("the policy is too large: it has more than 65 535 different terms or time windows")]
    Different,
}

/// The rulebook's senders that stand for the names in the policy.
#[derive(Default)]
struct Subjects {
    persons: BTreeMap<String, Sender>,
    groups: BTreeMap<String, Sender>,
    tags: BTreeMap<String, Sender>,
    count: u32,
}

impl Compiled {
    /// Compiles a policy.
    ///
    /// # Errors
    ///
    /// Fails if the policy is too large.
    pub fn new(policy: Policy) -> Result<Self, TooLarge> {
        let parts = || policy.networks.values().chain([&policy]);
        let places = |part: &Policy| {
            let places = part.receivers.iter().map(|receiver| receiver.prefixes.len() * receiver.services.len());
            places.fold(0, usize::saturating_add)
        };
        within(parts().map(places), MOST_PLACES).map_err(TooLarge::Places)?;
        let who = |part: &Policy| {
            let rules = (0..part.receivers.len()).flat_map(|receiver| part.index.rules_of(receiver));
            rules.map(|rule| part.rules[*rule].who.len()).fold(0, usize::saturating_add)
        };
        within(parts().map(who), MOST_ENTRIES).map_err(TooLarge::Entries)?;
        Self::of_part(policy)
    }

    fn of_part(policy: Policy) -> Result<Self, TooLarge> {
        let mut compiled = Self {
            policy: Policy::default(),
            book: Rulebook::default(),
            subjects: Subjects::default(),
            members: BTreeMap::new(),
            windows: Vec::new(),
            networks: BTreeMap::new(),
            lists: Lists::default(),
        };
        for (name, part) in &policy.networks {
            // The parsed policy keeps the networks' parts for explanations. The compiled parts make the decisions.
            compiled.networks.insert(name.clone(), Self::of_part(part.clone())?);
        }
        let said = compiled.say(&policy)?;
        for (group, sender) in &compiled.subjects.groups {
            let members = policy.groups.get(group).into_iter().flatten();
            members.for_each(|member| compiled.members.entry(member.clone()).or_default().push(*sender));
        }
        compiled.fill(&policy, &said)?;
        Ok(Self { policy, ..compiled })
    }

    /// Returns the policy that was compiled.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the compiled policy of a virtual network.
    pub fn network(&self, name: &str) -> Option<&Self> {
        self.networks.get(name)
    }

    /// Returns the rulebook that was made from the policy.
    pub fn rulebook(&self) -> &Rulebook {
        &self.book
    }

    /// Returns the lists in force.
    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    /// Puts lists in force, and returns the former ones. Decisions ignore lists that the policy does not name.
    pub fn set_lists(&mut self, lists: Lists) -> Lists {
        std::mem::replace(&mut self.lists, lists)
    }

    /// Decides about a request. If no rule matches, decides by the lists.
    pub fn decide(&self, request: &Request<'_>) -> Decision<'_> {
        let request = &request.normal();
        let subjects = self.subjects(request);
        let sought = rulebook::Request { subjects: &subjects, source: request.subject.source, to: request.to };
        let decision = self.said(request, self.book.decide(&sought, |window| self.open(window, request.now)).decision);
        self.policy.with_lists(decision, request, &self.lists)
    }

    /// Decides about several requests as [`Self::decide`] does, and returns the decisions in the order of the requests.
    pub fn decide_all(&self, requests: &[Request<'_>]) -> Vec<Decision<'_>> {
        let requests: Vec<_> = requests.iter().map(Request::normal).collect();
        let subjects: Vec<_> = requests.iter().map(|request| self.subjects(request)).collect();
        let sought = |(request, subjects)| {
            let Request { subject, to, .. }: &Request<'_> = request;
            rulebook::Request { subjects, source: subject.source, to: *to }
        };
        let all: Vec<_> = requests.iter().zip(subjects.iter().map(Vec::as_slice)).map(sought).collect();
        let mut decisions = Vec::with_capacity(requests.len());
        let open = |place: usize, window| self.open(window, requests[place].now);
        self.book.decide_all(&all, open, |place, evaluation| {
            decisions.push(self.said(&requests[place], evaluation.decision));
        });
        let decided = decisions.into_iter().zip(&requests);
        decided.map(|(decision, request)| self.policy.with_lists(decision, request, &self.lists)).collect()
    }

    /// Returns the rulebook's senders that stand for the request's subject, except those for addresses.
    fn subjects(&self, request: &Request<'_>) -> Vec<Sender> {
        let subject = request.subject;
        let Subjects { persons, groups, tags, .. } = &self.subjects;
        let by_policy = self.members.get(subject.person).map(Vec::as_slice).unwrap_or_default();
        // With this capacity, the list is allocated once.
        let most = by_policy.len() + subject.groups.len() + subject.tags.len() + 1;
        let mut subjects = Vec::with_capacity(most);
        subjects.extend_from_slice(by_policy);
        subjects.extend(subject.groups.iter().filter_map(|group| groups.get(group)));
        subjects.extend(subject.tags.iter().filter_map(|tag| tags.get(tag)));
        subjects.extend(persons.get(subject.person));
        subjects
    }

    fn open(&self, window: NonZeroU16, now: u64) -> bool {
        self.windows[usize::from(window.get()) - 1].covers(now)
    }

    /// Converts the rulebook's decision to a decision of the policy.
    fn said(&self, request: &Request<'_>, decision: rulebook::Decision) -> Decision<'_> {
        let named = |receiver: rulebook::Receiver| &self.policy.receivers[receiver.number as usize];
        match decision {
            rulebook::Decision::NoReceiver => Decision::NoReceiver,
            rulebook::Decision::DefaultDeny { receiver } => Decision::DefaultDeny { receiver: named(receiver) },
            rulebook::Decision::Decided(Ruling { of, entry, .. }) => {
                let (receiver, rule) = (named(of), self.policy.rule_numbered(entry.revision as usize));
                match rule.action {
                    Action::Deny => Decision::Denied { receiver, rule },
                    Action::Allow => Decision::Allowed(self.policy.permit(request, receiver, rule)),
                }
            }
        }
    }

    /// Returns the rulebook's entry for every rule and each of its subjects, in the order of the rules.
    fn say(&mut self, policy: &Policy) -> Result<Vec<(usize, Entry)>, TooLarge> {
        let mut different = Vec::new();
        let mut said = Vec::with_capacity(policy.rules.len());
        for rule in &policy.rules {
            let terms = number(&mut different, &rule.terms, usize::MAX)?;
            let window = match rule.when.is_always() {
                true => None,
                // Windows are slow to compare, and a file may have tens of thousands, so only recent ones are compared.
                // A window that is repeated after many others gets a second number.
                false => {
                    let number = number(&mut self.windows, &rule.when, WINDOWS_BACK)?;
                    NonZeroU16::new(number.checked_add(1).ok_or(TooLarge::Different)?)
                }
            };
            for who in &rule.who {
                let sender = self.sender(who)?;
                // Rules are numbered from 1, in their order.
                let (action, priority, revision) = (rule.action, rule.priority, rule.number as u64);
                said.push((rule.number, Entry { sender, action, priority, revision, terms, window }));
            }
        }
        Ok(said)
    }

    /// Adds every receiver to the rulebook.
    fn fill(&mut self, policy: &Policy, said: &[(usize, Entry)]) -> Result<(), TooLarge> {
        let of_rule = |rule: usize| said.partition_point(|(number, _)| *number < rule);
        let pack = |receiver: usize| {
            let rules = policy.index.rules_of(receiver).iter().map(|rule| policy.rules[*rule].number);
            let entries = rules.flat_map(|rule| &said[of_rule(rule)..of_rule(rule + 1)]);
            Packed::new(&entries.map(|(_, entry)| *entry).collect::<Vec<_>>())
        };
        let packed: Vec<_> = (0..policy.receivers.len()).map(pack).collect();
        let verifiers: BTreeSet<&str> = policy.receivers.iter().map(|receiver| receiver.verifier.as_str()).collect();
        let verifiers: BTreeMap<&str, u32> = verifiers.into_iter().zip(0..).collect();
        let mut prefixes: Vec<_> = (0..policy.receivers.len())
            .flat_map(|number| policy.receivers[number].prefixes.iter().map(move |prefix| (*prefix, number)))
            .collect();
        // Wider prefixes first, as the rulebook requires.
        prefixes.sort_by_key(|(prefix, _)| prefix.prefix_len());
        for (prefix, number) in prefixes {
            let receiver = &policy.receivers[number];
            let verifier = verifiers.get(receiver.verifier.as_str()).copied().unwrap_or_default();
            for service in &receiver.services {
                let number = u32::try_from(number).map_err(|_| TooLarge::Places(number))?;
                let receiver = rulebook::Receiver { prefix, service: *service, number, verifier };
                self.book.set_packed(receiver, packed[number as usize].clone());
            }
        }
        Ok(())
    }

    fn sender(&mut self, who: &Who) -> Result<Sender, TooLarge> {
        let Subjects { persons, groups, tags, count } = &mut self.subjects;
        let (names, name) = match who {
            Who::Everyone => return Ok(Sender::EVERYONE),
            Who::Address(prefix) => return Ok(self.book.network(*prefix)),
            Who::Person(name) => (persons, name),
            Who::Group(name) => (groups, name),
            Who::Tag(name) => (tags, name),
        };
        if let Some(sender) = names.get(name) {
            return Ok(*sender);
        }
        *count += 1;
        let sender = Sender::subject(*count).ok_or(TooLarge::Different)?;
        names.insert(name.clone(), sender);
        Ok(sender)
    }
}

/// Returns the sum of the counts; if it is more than `most`, returns it as an error.
fn within(counts: impl Iterator<Item = usize>, most: usize) -> Result<usize, usize> {
    let sum = counts.fold(0, usize::saturating_add);
    if sum <= most { Ok(sum) } else { Err(sum) }
}

/// Returns the index of `one` in `met`. Appends `one` first, unless it is among the last `most` elements.
fn number<T: PartialEq + Clone>(met: &mut Vec<T>, one: &T, most: usize) -> Result<u16, TooLarge> {
    let back = met.iter().rev().take(most).position(|other| other == one);
    let place = back.map_or(met.len(), |back| met.len() - 1 - back);
    if place == met.len() {
        met.push(one.clone());
    }
    u16::try_from(place).map_err(|_| TooLarge::Different)
}
