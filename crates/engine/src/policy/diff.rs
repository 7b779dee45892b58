//! Who gains and who loses what between two policies. Exact, not sampled: destinations, times and subjects are cut into
//! classes in which neither policy tells one from another, and one of each class is asked about.
//!
//! What decides about somebody is the strongest of the rules that match by their name, by a group of their login, by a tag
//! or by their address. So what two policies say differs only by the two things that decide, one in each: whoever has
//! more groups and tags than two is decided about like somebody who has just those.

mod outcome;
mod people;
mod places;
mod times;

use super::{Policy, Rule};
use outcome::Said;
use people::People;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Questions that are asked at most; some seconds.
const MOST_QUESTIONS: usize = 20_000_000;
/// Names that are told at most; some 100 MB.
const MOST_NAMES: usize = 1_000_000;

/// A change for some people at some places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What kind of change.
    pub kind: Kind,
    /// Who: persons by name, with the groups, tags and addresses that it takes.
    pub who: Vec<String>,
    /// Where.
    pub to: Vec<Place>,
    /// Times at which it is so, one of each kind; none where it is so at all times.
    pub at: Vec<String>,
    /// What the old policy says.
    pub old: String,
    /// What the new one says.
    pub new: String,
}

/// Kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// They could not go there and can.
    Gains,
    /// They could go there and can't.
    Loses,
    /// They could and can, on other terms; or a grant is needed that was not, or the other way round.
    Terms,
    /// Nothing changes for them, other than for those that they are a part of.
    Stays,
}

/// Destinations that both policies treat alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The receivers' names.
    pub receivers: Vec<String>,
    /// The addresses, as prefixes.
    pub prefixes: Vec<String>,
    /// The services.
    pub services: Vec<String>,
}

/// The policies are too large to be compared exactly: of what there is too much.
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

/// Compares two policies from `now` on, each network by itself.
pub fn compare(old: &Policy, new: &Policy, now: u64) -> Result<Vec<Change>, TooLarge> {
    let mut changes = compare_parts(old, new, now)?;
    let names: BTreeSet<&str> =
        [old, new].iter().flat_map(|policy| policy.networks.keys()).map(String::as_str).collect();
    for name in names {
        let parts = [old.network(name), new.network(name)];
        let [before, after] = [0, 1].map(|side| match parts {
            // Nobody gets anywhere in a network that a policy doesn't have.
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
    let mut asked = 0;
    // By change, who and time: the places, each as addresses and a span of services.
    let mut found: BTreeMap<(Verdict, BTreeSet<usize>, Vec<u64>), places::Spans> = BTreeMap::new();
    let places = places::Places::of([old, new]);
    for (class, span, to) in places.cells() {
        let rules = [old, new].map(|policy| policy.rules_at(&to));
        let kinds_of_time = times::distinct(&times, &rules);
        asked += kinds_of_time.len() * people.cost();
        if asked > MOST_QUESTIONS {
            return Err(TooLarge("too many people, places and times"));
        }
        let mut verdicts: BTreeMap<(usize, Verdict), Vec<u64>> = BTreeMap::new();
        for time in &kinds_of_time {
            for (asker, verdict) in people.verdicts(&rules, *time) {
                verdicts.entry((asker, verdict)).or_default().push(*time);
            }
        }
        let mut by_verdict: BTreeMap<(Verdict, Vec<u64>), BTreeSet<usize>> = BTreeMap::new();
        for ((asker, verdict), at) in verdicts {
            let at = if at.len() == kinds_of_time.len() { Vec::new() } else { at };
            by_verdict.entry((verdict, at)).or_default().insert(asker);
        }
        for ((verdict, at), who) in by_verdict {
            found.entry((verdict, who, at)).or_default().add(class, span);
        }
    }
    if found.keys().map(|(_, who, _)| people.count(who)).sum::<usize>() > MOST_NAMES {
        return Err(TooLarge("too many people gain or lose something"));
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

/// What changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Verdict {
    kind: Kind,
    old: Said,
    new: Said,
}

/// The rules of one policy that are about a place, the strongest first; `None` where nothing is protected.
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
