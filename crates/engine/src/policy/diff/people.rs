//! All subjects that the rules of two policies distinguish: persons in classes, with further attributes. To save
//! memory, each name is stored only once, and the profiles, of which there are many, refer to rules by number.

use super::outcome::Outcome;
use super::{Here, Kind, TooLarge, Verdict, places};
use crate::policy::{Policy, Rule, Subject, Who};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Maximum number of different subjects.
const MOST_ASKERS: usize = 50_000;
/// Maximum number of rules that apply to classes of persons, added up over all classes.
const MOST_MATCHES: usize = 4_000_000;
/// Maximum number of prefixes for subjects' addresses.
const MOST_SOURCES: usize = 300;
/// Number of rules of a class whose evaluation costs as much as one question about a subject.
const MATCH: usize = 8;

/// All subjects that rules distinguish.
pub(super) struct People<'p> {
    sides: [Side<'p>; 2],
    /// Classes of persons to whom the same rules apply.
    classes: Vec<Vec<&'p str>>,
    /// Descriptions of the further attributes.
    qualities: Vec<String>,
    /// The rules of each policy that apply to a class or to a further attribute, as positions in the order of strength.
    /// The classes come first, then `qualities`. Rules for everyone are left out.
    traits: Vec<[Vec<usize>; 2]>,
    profiles: Vec<Profile>,
}

/// The rules of one policy.
struct Side<'p> {
    /// The rules, the strongest first.
    ranked: Vec<&'p Rule>,
    /// The position in `ranked` of each rule, by the rule's number minus 1.
    rank: Vec<usize>,
}

/// A subject: a class of persons with further attributes, or somebody who is not logged in.
struct Profile {
    class: Option<usize>,
    /// The further attributes, as indices into `qualities`.
    more: Vec<usize>,
    /// Indices of the profiles of the same class with fewer of these attributes. The last index is that of the class
    /// without further attributes.
    parents: Vec<usize>,
}

/// The outcomes of a profile's parents contradict each other, so the profile's own outcome must be reported.
struct Ambiguous;

/// An attribute of a subject in addition to the name.
enum Quality<'p> {
    Group(&'p str),
    Tag(&'p str),
    Source(IpAddr),
}

/// The attributes by which rules of each policy may match a person: groups of the file, by number, and the name.
type Membership<'p> = [(Vec<usize>, Option<&'p str>); 2];

impl<'p> People<'p> {
    pub(super) fn of(policies: [&'p Policy; 2]) -> Result<Self, TooLarge> {
        let sides = policies.map(Side::of);
        let known = qualities(policies)?;
        let (classes, mut traits): (Vec<_>, Vec<_>) =
            classes(policies, &sides)?.into_iter().map(|(rules, persons)| (persons, rules)).unzip();
        if classes.len() * (1 + known.len() * (known.len() + 1) / 2) > MOST_ASKERS {
            return Err(TooLarge("too many people with different sets of rules"));
        }
        let mut profiles: Vec<_> =
            (0..classes.len()).map(|class| Profile { class: Some(class), more: vec![], parents: vec![] }).collect();
        let mut qualities = Vec::new();
        for (quality, words) in &known {
            let about = |rule: &&Rule| rule.who.iter().any(|who| quality.is_met_by(who));
            traits.push(
                sides
                    .each_ref()
                    .map(|side| (0..side.ranked.len()).filter(|rank| about(&side.ranked[*rank])).collect::<Vec<_>>()),
            );
            qualities.push(words.clone());
        }
        for class in 0..classes.len() {
            let first = profiles.len();
            let with = |more: Vec<usize>, parents| Profile { class: Some(class), more, parents };
            profiles.extend((0..known.len()).map(|quality| with(vec![quality], vec![class])));
            let is_source = |quality: usize| matches!(known[quality].0, Quality::Source(_));
            for one in 0..known.len() {
                // A subject has only one address at a time.
                for two in (one + 1..known.len()).filter(|two| !(is_source(one) && is_source(*two))) {
                    profiles.push(with(vec![one, two], vec![first + one, first + two, class]));
                }
            }
        }
        // Subjects that are not logged in: no rule applies to them.
        profiles.push(Profile { class: None, more: vec![], parents: vec![] });
        Ok(Self { sides, classes, qualities, traits, profiles })
    }

    /// Returns the cost of evaluating all subjects, as a number of decisions.
    pub(super) fn cost(&self) -> usize {
        self.profiles.len() + self.traits.iter().flatten().map(Vec::len).sum::<usize>() / MATCH
    }

    /// Returns, for each profile, how its outcome differs between the two policies at `time`. Omits a profile if its
    /// parents' outcomes already imply its own. A profile whose outcome stays is included, as [`Kind::Stays`], if its
    /// parents' outcomes imply a change or contradict each other.
    pub(super) fn verdicts(&self, rules: &[Here<'p>; 2], time: u64) -> Vec<(usize, Verdict)> {
        let strongest = [0, 1].map(|side| self.strongest(side, rules[side].as_deref()?, time).into());
        let outcomes: Vec<_> = self
            .profiles
            .iter()
            .map(|profile| {
                strongest.each_ref().map(|rules: &Option<Vec<Option<&Rule>>>| match rules {
                    None => Outcome::Unprotected,
                    Some(rules) => {
                        let own = self.traits_of(profile).filter_map(|index| rules[index]);
                        Outcome::of(own.max_by_key(|rule| rule.order()))
                    }
                })
            })
            .collect();
        let mut verdicts = Vec::new();
        for (index, profile) in self.profiles.iter().enumerate() {
            let kind = Outcome::kind(&outcomes[index]);
            let verdict = |kind| {
                let [old, new] = outcomes[index].each_ref().map(Outcome::said);
                (index, Verdict { kind, old, new })
            };
            let implied = profile.implied(&outcomes);
            match kind {
                Some(_) if implied.as_ref().is_ok_and(|implied| *implied == Some(&outcomes[index])) => {}
                Some(kind) => verdicts.push(verdict(kind)),
                None if implied.map_or(true, |implied| implied.and_then(Outcome::kind).is_some()) => {
                    verdicts.push(verdict(Kind::Stays));
                }
                None => {}
            }
        }
        verdicts
    }

    /// Returns the number of names that are needed to list these profiles.
    pub(super) fn count(&self, who: &BTreeSet<usize>) -> usize {
        who.iter().map(|profile| self.profiles[*profile].class.map_or(1, |class| self.classes[class].len())).sum()
    }

    pub(super) fn names(&self, who: &BTreeSet<usize>) -> Vec<String> {
        let mut names = BTreeSet::new();
        for profile in who {
            let Profile { class, more, .. } = &self.profiles[*profile];
            let Some(class) = class else {
                names.insert("anyone who is not logged in".to_owned());
                continue;
            };
            let more: String = more.iter().map(|quality| format!(", {}", self.qualities[*quality])).collect();
            names.extend(self.classes[*class].iter().map(|name| format!("{name}{more}")));
        }
        names.into_iter().collect()
    }

    /// For each trait, returns the strongest rule that applies to it and holds at a place and a time.
    fn strongest(&self, side: usize, here: &[&'p Rule], time: u64) -> Vec<Option<&'p Rule>> {
        let Side { ranked, rank } = &self.sides[side];
        let mut holds = vec![false; ranked.len()];
        let mut of_everyone: Option<&Rule> = None;
        for rule in here.iter().copied().filter(|rule| rule.when.covers(time)) {
            holds[rank[rule.number - 1]] = true;
            if rule.who.contains(&Who::Everyone) {
                of_everyone = of_everyone.into_iter().chain([rule]).max_by_key(|rule| rule.order());
            }
        }
        let own = |about: &[Vec<usize>; 2]| about[side].iter().find(|rank| holds[**rank]).map(|rank| ranked[*rank]);
        let mut strongest: Vec<_> = self.traits.iter().map(own).collect();
        for rule in &mut strongest[..self.classes.len()] {
            *rule = rule.iter().copied().chain(of_everyone).max_by_key(|rule| rule.order());
        }
        strongest
    }

    fn traits_of<'a>(&self, profile: &'a Profile) -> impl Iterator<Item = usize> + use<'a> {
        let classes = self.classes.len();
        profile.class.into_iter().chain(profile.more.iter().map(move |quality| classes + quality))
    }
}

impl<'p> Side<'p> {
    fn of(policy: &'p Policy) -> Self {
        let mut ranked: Vec<_> = policy.rules.iter().collect();
        ranked.sort_by_key(|rule| Reverse(rule.order()));
        let mut rank = vec![0; ranked.len()];
        ranked.iter().enumerate().for_each(|(place, rule)| rank[rule.number - 1] = place);
        Self { ranked, rank }
    }

    /// Returns the rules, by rank, that name each person, and those that name each group.
    fn named(&self) -> [BTreeMap<&'p str, Vec<usize>>; 2] {
        let (mut persons, mut groups) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
        for (place, rule) in self.ranked.iter().enumerate() {
            for who in &rule.who {
                match who {
                    Who::Person(name) => persons.entry(name.as_str()).or_default().push(place),
                    Who::Group(name) => groups.entry(name.as_str()).or_default().push(place),
                    Who::Everyone | Who::Tag(_) | Who::Address(_) => {}
                }
            }
        }
        [persons, groups]
    }
}

/// Groups persons into classes by the rules that apply to them, rules for everyone left out.
fn classes<'p>(
    policies: [&'p Policy; 2],
    sides: &[Side<'p>; 2],
) -> Result<BTreeMap<[Vec<usize>; 2], Vec<&'p str>>, TooLarge> {
    let named = sides.each_ref().map(Side::named);
    // Group by groups and names first: there are far fewer of them than of rules about them.
    let mut by_person: BTreeMap<&str, Membership<'p>> = BTreeMap::new();
    for side in [0, 1] {
        let [persons, groups] = &named[side];
        for person in policies[side].persons() {
            by_person.entry(person).or_default()[side].1 = persons.contains_key(person).then_some(person);
        }
        for (number, group) in groups.keys().enumerate() {
            for person in policies[side].groups.get(*group).into_iter().flatten() {
                by_person.entry(person).or_default()[side].0.push(number);
            }
        }
    }
    by_person.entry("").or_default();
    let mut by_membership: BTreeMap<Membership<'p>, Vec<&str>> = BTreeMap::new();
    for (person, membership) in by_person {
        by_membership.entry(membership).or_default().push(Subject::person(person).name());
    }
    if by_membership.len() > MOST_ASKERS {
        return Err(TooLarge("too many people with different sets of rules"));
    }
    let rules_of_groups = named.each_ref().map(|[_, groups]| groups.values().collect::<Vec<_>>());
    let mut matches = 0;
    let mut classes: BTreeMap<[Vec<usize>; 2], Vec<&str>> = BTreeMap::new();
    for (membership, persons) in by_membership {
        let mut rules = [Vec::new(), Vec::new()];
        for (side, (groups, name)) in membership.into_iter().enumerate() {
            let own = name.and_then(|name| named[side][0].get(name));
            for list in groups.into_iter().map(|group| rules_of_groups[side][group]).chain(own) {
                matches += list.len();
                if matches > MOST_MATCHES {
                    return Err(TooLarge("too many rules for each of too many people"));
                }
                rules[side].extend_from_slice(list);
            }
            rules[side].sort_unstable();
            rules[side].dedup();
        }
        classes.entry(rules).or_default().extend(persons);
    }
    Ok(classes)
}

impl Profile {
    /// Returns the outcome that a reader assumes for a profile without an entry of its own. If a parent's outcome
    /// differs from the outcome of the person without attributes, it is the parent's outcome. If no parent's outcome
    /// differs, it is the outcome of the person without attributes.
    fn implied<'o, 'p>(&self, outcomes: &'o [[Outcome<'p>; 2]]) -> Result<Option<&'o [Outcome<'p>; 2]>, Ambiguous> {
        let Some((person, parts)) = self.parents.split_last() else { return Ok(None) };
        let person = &outcomes[*person];
        let mut differing = parts.iter().map(|part| &outcomes[*part]).filter(|outcome| *outcome != person);
        let Some(one) = differing.next() else { return Ok(Some(person)) };
        if differing.all(|other| other == one) { Ok(Some(one)) } else { Err(Ambiguous) }
    }
}

impl Quality<'_> {
    fn is_met_by(&self, who: &Who) -> bool {
        match (self, who) {
            (Self::Group(name), Who::Group(other)) | (Self::Tag(name), Who::Tag(other)) => name == other,
            (Self::Source(source), Who::Address(prefix)) => prefix.contains(source),
            _ => false,
        }
    }
}

/// Returns the groups by login, tags and classes of addresses that rules name.
fn qualities<'p>(policies: [&'p Policy; 2]) -> Result<Vec<(Quality<'p>, String)>, TooLarge> {
    let who = || policies.into_iter().flat_map(|policy| &policy.rules).flat_map(|rule| &rule.who);
    let groups: BTreeSet<_> =
        who().filter_map(|who| if let Who::Group(name) = who { Some(name) } else { None }).collect();
    let tags: BTreeSet<_> = who().filter_map(|who| if let Who::Tag(name) = who { Some(name) } else { None }).collect();
    let prefixes: BTreeSet<_> =
        who().filter_map(|who| if let Who::Address(prefix) = who { Some(*prefix) } else { None }).collect();
    if prefixes.len() > MOST_SOURCES {
        return Err(TooLarge("too many source prefixes"));
    }
    // Each pair of a group and a tag, of two groups or of two tags makes a subject.
    if groups.len() + tags.len() > MOST_ASKERS {
        return Err(TooLarge("too many groups and tags"));
    }
    let groups = groups.into_iter().map(|name| (Quality::Group(name), format!("in {name} by login")));
    let tags = tags.into_iter().map(|name| (Quality::Tag(name), format!("on {name}")));
    let sources = places::classes(&prefixes.into_iter().collect::<Vec<_>>());
    let sources = sources
        .into_iter()
        .map(|(first, addresses)| (Quality::Source(first), format!("from {}", addresses.join(" or "))));
    Ok(groups.chain(tags).chain(sources).collect())
}
