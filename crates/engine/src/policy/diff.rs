//! Comparison of two policies: finds out which subjects gain or lose access to which destinations. The comparison is
//! exact, not sampled. It divides destinations, times and subjects into classes within which neither policy makes a
//! difference. Then it evaluates one member of each class.
//!
//! Of the rules that match a subject by name, by a group of the login, by a tag or by the address, the strongest
//! decides. So in each policy one attribute of the subject decides, and at most two attributes matter for a difference
//! between two policies. Therefore it is enough to evaluate subjects that have at most two groups and tags.

mod outcome;
mod people;
mod places;
mod tables;
mod times;

pub use tables::{FieldChange, TableChange, TableKind, compare_tables};

use super::{Policy, Rule};
use outcome::Said;
use people::People;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of questions that a comparison evaluates. This many questions take some seconds.
const MOST_QUESTIONS: usize = 20_000_000;
/// Maximum number of names in the result. This many names take some 100 MB.
const MOST_NAMES: usize = 1_000_000;

/// A change for some subjects, at some destinations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Whether the subjects gain access, lose it, keep it on other terms, or see no change.
    pub kind: Kind,
    /// The subjects concerned: persons by name, together with the groups, tags and addresses that the change requires.
    pub who: Vec<String>,
    /// Destinations to which the change applies.
    pub to: Vec<DestinationSet>,
    /// Examples of times at which the change applies, one for each set of rules that hold at the same time; empty if
    /// the change applies at all times.
    pub at: Vec<String>,
    /// Decision of the old policy, in words.
    pub old: String,
    /// Decision of the new policy, in words.
    pub new: String,
}

/// The effect of a change on the access of the subjects concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The subjects had no access and get it.
    Gains,
    /// The subjects had access and lose it.
    Loses,
    /// The subjects keep access on other terms, or a grant becomes necessary, or is no longer necessary.
    Terms,
    /// Nothing changes for the subjects, although something changes for the same persons with fewer of these groups,
    /// tags or addresses.
    Stays,
}

/// A set of destinations within which neither policy makes a difference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DestinationSet {
    /// Names of the receivers to which the destinations belong.
    pub receivers: Vec<String>,
    /// Addresses of the destinations, as prefixes.
    pub prefixes: Vec<String>,
    /// Services of the destinations, in the notation of the policy file.
    pub services: Vec<String>,
}

/// Error: the policies are too large to be compared exactly. The text names the quantity that exceeds its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge(&'static str);

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(what) = self;
        write!(f, "these policies are too large to be compared exactly ({what}): ")?;
        f.write_str("compare a part of them, or use `policy replay`")
    }
}

impl std::error::Error for TooLarge {}

/// Compares two policies from `now` on, each virtual network separately.
///
/// # Errors
///
/// Fails if the policies are too large to be compared exactly.
pub fn compare(old: &Policy, new: &Policy, now: u64) -> Result<Vec<Change>, TooLarge> {
    let mut changes = compare_parts(old, new, now)?;
    let names: BTreeSet<&str> =
        [old, new].iter().flat_map(|policy| policy.networks.keys()).map(String::as_str).collect();
    for name in names {
        let parts = [old.network(name), new.network(name)];
        let [before, after] = [0, 1].map(|side| match parts {
            // If a network is missing in one policy, that policy counts as one whose rules allow nothing there.
            [Some(other), None] | [None, Some(other)] if parts[side].is_none() => other.without_rules(),
            _ => parts[side].cloned().unwrap_or_default(),
        });
        changes.extend(compare_parts(&before, &after, now)?);
    }
    Ok(changes)
}

fn compare_parts(old: &Policy, new: &Policy, now: u64) -> Result<Vec<Change>, TooLarge> {
    let people = People::of([old, new])?;
    let times = times::of([old, new], now)?;
    let mut questions = 0;
    // The places of each change, where a change includes its subjects and times. A place is a class of addresses and a
    // span of services.
    let mut found: BTreeMap<(Verdict, BTreeSet<usize>, Vec<u64>), places::Spans> = BTreeMap::new();
    let places = places::Places::of([old, new]);
    for (class, span, to) in places.cells() {
        let rules = [old, new].map(|policy| policy.rules_at(&to));
        let kinds_of_time = times::distinct(&times, &rules);
        questions += kinds_of_time.len() * people.cost();
        if questions > MOST_QUESTIONS {
            return Err(TooLarge("too many people, destinations and times"));
        }
        let mut verdicts: BTreeMap<(usize, Verdict), Vec<u64>> = BTreeMap::new();
        for time in &kinds_of_time {
            for (profile, verdict) in people.verdicts(&rules, *time) {
                verdicts.entry((profile, verdict)).or_default().push(*time);
            }
        }
        let mut by_verdict: BTreeMap<(Verdict, Vec<u64>), BTreeSet<usize>> = BTreeMap::new();
        for ((profile, verdict), at) in verdicts {
            let at = if at.len() == kinds_of_time.len() { Vec::new() } else { at };
            by_verdict.entry((verdict, at)).or_default().insert(profile);
        }
        for ((verdict, at), who) in by_verdict {
            found.entry((verdict, who, at)).or_default().add(class, span);
        }
    }
    if found.keys().map(|(_, who, _)| people.count(who)).sum::<usize>() > MOST_NAMES {
        return Err(TooLarge("access changes for too many people"));
    }
    let changes = found.into_iter().map(|((verdict, who, at), spans)| Change {
        kind: verdict.kind,
        who: people.names(&who),
        to: places.named(&spans),
        at: at.into_iter().map(super::written).collect(),
        old: verdict.old.in_words(old),
        new: verdict.new.in_words(new),
    });
    Ok(changes.collect())
}

/// Kind and outcomes of a change, without its subjects and places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Verdict {
    kind: Kind,
    old: Said,
    new: Said,
}

/// Rules of one policy that apply to a place, the strongest first; `None` if nothing is protected at the place.
type Here<'p> = Option<Vec<&'p Rule>>;

impl Policy {
    fn without_rules(&self) -> Self {
        let index = super::Index::new(&self.receivers);
        Self { rules: Vec::new(), index, ..self.clone() }
    }

    fn rules_at(&self, to: &wire::Destination) -> Here<'_> {
        let mut receivers = self.index.around(to.address).filter(|index| self.receivers[*index].serves(to)).peekable();
        receivers.peek()?;
        let rules: BTreeSet<usize> = receivers.flat_map(|index| self.index.rules_of(index).iter().copied()).collect();
        let mut rules: Vec<_> = rules.into_iter().map(|index| &self.rules[index]).collect();
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.order()));
        Some(rules)
    }
}

#[cfg(test)]
mod tests;
