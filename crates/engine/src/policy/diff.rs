//! Who gains and who loses what between two policies. Exact, not sampled: destinations, times and subjects are cut into
//! classes in which neither policy tells one from another, and one of each class is asked about.
//!
//! What decides about somebody is the strongest of the rules that match by their name, by a group of their login, by a tag
//! or by their address. So what two policies say differs only by the two things that decide, one in each: whoever has
//! more groups and tags than two is decided about like somebody who has just those.

mod outcome;
mod places;
mod times;

use super::{Policy, Rule, Subject, Who};
use outcome::{Outcome, Said};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Questions that are asked at most; some seconds.
const MOST_QUESTIONS: usize = 20_000_000;
/// Different people at most.
const MOST_ASKERS: usize = 50_000;
/// Prefixes that people ask from, at most.
const MOST_SOURCES: usize = 300;

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

/// The policies are too large to be compared exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "these policies are too large to be compared exactly: compare a part of them, or use `policy replay`",
        )
    }
}

impl std::error::Error for TooLarge {}

/// Compares two policies from `now` on.
pub fn compare(old: &Policy, new: &Policy, now: u64) -> Result<Vec<Change>, TooLarge> {
    let people = People::of([old, new])?;
    let times = times::of([old, new], now)?;
    let mut asked = 0;
    // By change, who and time: the places, each as addresses and a span of services.
    let mut found: BTreeMap<(Verdict, BTreeSet<usize>, Vec<u64>), places::Spans> = BTreeMap::new();
    let places = places::Places::of([old, new]);
    for (class, span, to) in places.cells() {
        let rules = [old, new].map(|policy| policy.rules_at(&to));
        let kinds_of_time = times::distinct(&times, &rules);
        asked += kinds_of_time.len() * people.askers.len();
        if asked > MOST_QUESTIONS {
            return Err(TooLarge);
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
    fn rules_at(&self, to: &wire::Destination) -> Here<'_> {
        let mut receivers = self.index.around(to.address).filter(|index| self.receivers[*index].serves(to)).peekable();
        receivers.peek()?;
        let rules: BTreeSet<usize> = receivers.flat_map(|index| self.index.rules_of(index).iter().copied()).collect();
        let mut rules: Vec<_> = rules.into_iter().map(|index| &self.rules[index]).collect();
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.order()));
        Some(rules)
    }
}

/// Everybody whom rules tell apart.
struct People {
    /// By what rules may match somebody, and which do: those of the old policy, those of the new.
    traits: Vec<[Vec<bool>; 2]>,
    /// Who may ask.
    askers: Vec<Asking>,
}

/// Somebody: a class of persons, and what else is known of them.
struct Asking {
    names: Vec<String>,
    /// Indices into the traits.
    traits: Vec<usize>,
    /// Those who are the same but for one thing less, and the one who is just the person, last.
    parents: Vec<usize>,
}

/// Those of whom somebody is a part are told different things: what holds has to be told.
struct Ambiguous;

impl People {
    fn of(policies: [&Policy; 2]) -> Result<Self, TooLarge> {
        let matching = |test: &dyn Fn(&Policy, &Rule) -> bool| {
            policies.map(|policy| policy.rules.iter().map(|rule| test(policy, rule)).collect::<Vec<_>>())
        };
        let mut classes: BTreeMap<[Vec<bool>; 2], Vec<String>> = BTreeMap::new();
        let persons: BTreeSet<_> = policies.iter().flat_map(|policy| policy.persons()).chain([""]).collect();
        for person in persons {
            let subject = Subject::person(person);
            let class = classes.entry(matching(&|policy, rule| policy.is_about(rule, &subject))).or_default();
            class.push(subject.name().into());
        }
        let mut traits: Vec<_> = classes.keys().cloned().collect();
        let mut askers: Vec<_> = classes
            .into_values()
            .enumerate()
            .map(|(class, names)| Asking { names, traits: vec![class], parents: Vec::new() })
            .collect();
        let classes = askers.len();
        let mut more = Vec::new();
        let qualities = qualities(policies)?;
        if classes * (1 + qualities.len() * (qualities.len() + 1) / 2) > MOST_ASKERS {
            return Err(TooLarge);
        }
        for (who, name) in qualities {
            traits.push(matching(&|_, rule| rule.who.iter().any(|other| who.is_met_by(other))));
            more.push((traits.len() - 1, name, matches!(who, Quality::Source(_))));
        }
        for class in 0..classes {
            let mut with_one = Vec::new();
            for (index, name, source) in &more {
                askers.push(askers[class].with(&[(*index, name)], vec![class]));
                with_one.push((askers.len() - 1, *index, name, *source));
            }
            for (at, (one, first, first_name, first_source)) in with_one.iter().enumerate() {
                // Nobody asks from two addresses at a time.
                for (two, second, second_name, _) in with_one[at + 1..].iter().filter(|two| !(*first_source && two.3)) {
                    let both = [(*first, *first_name), (*second, *second_name)];
                    askers.push(askers[class].with(&both, vec![*one, *two, class]));
                }
            }
        }
        // Strangers, whom no rule is about.
        askers.push(Asking { names: vec!["whoever is not logged in".into()], traits: Vec::new(), parents: Vec::new() });
        Ok(Self { traits, askers })
    }

    /// What changes for whom at a time, but for what is the same as for those of whom they are a part.
    fn verdicts(&self, rules: &[Here<'_>; 2], time: u64) -> Vec<(usize, Verdict)> {
        let strongest = |side: usize| -> Option<Vec<Option<&Rule>>> {
            let holding: Vec<_> = rules[side].as_ref()?.iter().filter(|rule| rule.when.covers(time)).collect();
            let of_trait =
                |about: &[Vec<bool>; 2]| holding.iter().find(|rule| about[side][rule.number - 1]).map(|rule| **rule);
            Some(self.traits.iter().map(of_trait).collect())
        };
        let strongest = [strongest(0), strongest(1)];
        let outcomes: Vec<_> = self
            .askers
            .iter()
            .map(|asker| {
                [0, 1].map(|side| match &strongest[side] {
                    None => Outcome::Unprotected,
                    Some(rules) => {
                        let deciding =
                            asker.traits.iter().filter_map(|index| rules[*index]).max_by_key(|rule| rule.order());
                        Outcome::of(deciding)
                    }
                })
            })
            .collect();
        let mut told = Vec::new();
        for (index, asker) in self.askers.iter().enumerate() {
            let kind = Outcome::kind(&outcomes[index]);
            let verdict = |kind| {
                let [old, new] = outcomes[index].each_ref().map(Outcome::said);
                (index, Verdict { kind, old, new })
            };
            let implied = asker.implied(&outcomes);
            match kind {
                Some(_) if implied.as_ref().is_ok_and(|implied| *implied == Some(&outcomes[index])) => {}
                Some(kind) => told.push(verdict(kind)),
                None if implied.map_or(true, |implied| implied.and_then(Outcome::kind).is_some()) => {
                    told.push(verdict(Kind::Stays));
                }
                None => {}
            }
        }
        told
    }

    fn names(&self, who: &BTreeSet<usize>) -> Vec<String> {
        who.iter().flat_map(|asker| &self.askers[*asker].names).cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl Asking {
    /// What a reader takes to hold for somebody of whom nothing is told: what is told of the part of them that makes a
    /// difference.
    fn implied<'o, 'p>(&self, outcomes: &'o [[Outcome<'p>; 2]]) -> Result<Option<&'o [Outcome<'p>; 2]>, Ambiguous> {
        let Some((person, parts)) = self.parents.split_last() else { return Ok(None) };
        let person = &outcomes[*person];
        let mut differing = parts.iter().map(|part| &outcomes[*part]).filter(|outcome| *outcome != person);
        let Some(one) = differing.next() else { return Ok(Some(person)) };
        if differing.all(|other| other == one) { Ok(Some(one)) } else { Err(Ambiguous) }
    }

    fn with(&self, more: &[(usize, &String)], parents: Vec<usize>) -> Self {
        let addition: String = more.iter().map(|(_, name)| format!(", {name}")).collect();
        let names = self.names.iter().map(|name| format!("{name}{addition}")).collect();
        Self {
            names,
            traits: self.traits.iter().copied().chain(more.iter().map(|(index, _)| *index)).collect(),
            parents,
        }
    }
}

/// What may be known of somebody besides the name.
enum Quality {
    Group(String),
    Tag(String),
    Source(IpAddr),
}

impl Quality {
    fn is_met_by(&self, who: &Who) -> bool {
        match (self, who) {
            (Self::Group(name), Who::Group(other)) | (Self::Tag(name), Who::Tag(other)) => name == other,
            (Self::Source(source), Who::Address(prefix)) => prefix.contains(source),
            _ => false,
        }
    }
}

/// The groups by login, tags and classes of addresses that rules name.
fn qualities(policies: [&Policy; 2]) -> Result<Vec<(Quality, String)>, TooLarge> {
    let who = || policies.into_iter().flat_map(|policy| &policy.rules).flat_map(|rule| &rule.who);
    let groups: BTreeSet<_> =
        who().filter_map(|who| if let Who::Group(name) = who { Some(name) } else { None }).collect();
    let tags: BTreeSet<_> = who().filter_map(|who| if let Who::Tag(name) = who { Some(name) } else { None }).collect();
    let prefixes: BTreeSet<_> =
        who().filter_map(|who| if let Who::Address(prefix) = who { Some(*prefix) } else { None }).collect();
    if prefixes.len() > MOST_SOURCES {
        return Err(TooLarge);
    }
    let groups = groups.into_iter().map(|name| (Quality::Group(name.clone()), format!("in {name} by login")));
    let tags = tags.into_iter().map(|name| (Quality::Tag(name.clone()), format!("on {name}")));
    let sources = places::classes(&prefixes.into_iter().collect::<Vec<_>>());
    let sources = sources
        .into_iter()
        .map(|(first, addresses)| (Quality::Source(first), format!("from {}", addresses.join(" or "))));
    Ok(groups.chain(tags).chain(sources).collect())
}

#[cfg(test)]
mod tests;
