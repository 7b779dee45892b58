//! `diff` reports the same differences between random policies as decisions of both policies show.

use super::reference::{Chance, Question, World, address};
use crate::policy::diff::{Change, DestinationSet, Kind, compare};
use crate::policy::*;
use std::net::IpAddr;
use wire::Destination;

/// First and last protocol and port, each pair as one number.
type Span = (u32, u32);

/// A change, with its places parsed for comparison.
struct Told<'c> {
    change: &'c Change,
    places: Vec<(Vec<IpNet>, Vec<Span>)>,
}

impl<'c> Told<'c> {
    fn new(change: &'c Change) -> Self {
        let prefix = |text: &String| text.parse().unwrap_or_else(|_| IpNet::from(text.parse::<IpAddr>().unwrap()));
        let place = |place: &DestinationSet| {
            (place.prefixes.iter().map(prefix).collect(), place.services.iter().map(|word| span(word)).collect())
        };
        Self { change, places: change.to.iter().map(place).collect() }
    }

    fn is_at(&self, to: &Destination) -> bool {
        let number = u32::from(to.protocol) << 16 | u32::from(to.port);
        self.places.iter().any(|(prefixes, spans)| {
            spans.iter().any(|(first, last)| (*first..=*last).contains(&number))
                && prefixes.iter().any(|prefix| prefix.contains(&to.address))
        })
    }
}

/// Parses a span of services such as `all`, `protocols 2-5`, `udp`, `tcp/22`, `tcp/20-30`.
fn span(word: &str) -> Span {
    let numbers = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        (first.parse::<u32>().unwrap(), last.parse::<u32>().unwrap())
    };
    let whole = |(first, last): (u32, u32)| (first << 16, last << 16 | 0xffff);
    if word == "all" {
        return whole((1, 255));
    }
    if let Some(protocols) = word.strip_prefix("protocols ") {
        return whole(numbers(protocols));
    }
    let (name, ports) = word.split_once('/').map_or((word, None), |(name, ports)| (name, Some(ports)));
    let named = [
        ("icmp", 1),
        ("tcp", 6),
        ("udp", 17),
        ("dccp", 33),
        ("gre", 47),
        ("esp", 50),
        ("icmpv6", 58),
        ("sctp", 132),
        ("udplite", 136),
    ];
    let protocol =
        named.iter().find(|(known, _)| *known == name).map_or_else(|| name.parse().unwrap(), |(_, number)| *number);
    match ports.map(numbers) {
        Some((first, last)) => (protocol << 16 | first, protocol << 16 | last),
        None => whole((protocol, protocol)),
    }
}

/// Returns the change for a subject: by its own entry, or else by the entries for the same person with fewer
/// attributes.
fn said(changes: &[&Change], name: &str, more: &[String]) -> Option<Kind> {
    let full: String = more.iter().fold(name.to_owned(), |text, word| format!("{text}, {word}"));
    let own: Vec<_> = changes.iter().filter(|change| change.who.contains(&full)).collect();
    assert!(own.len() < 2, "{full} is told of twice: {own:?}");
    match (own.first(), more) {
        (Some(change), _) => Some(change.kind).filter(|kind| *kind != Kind::Stays),
        (None, []) => None,
        (None, [_]) => said(changes, name, &[]),
        (None, [one, two]) => {
            let person = said(changes, name, &[]);
            let parts = [one, two].map(|part| said(changes, name, std::slice::from_ref(part)));
            let differing: Vec<_> = parts.into_iter().filter(|kind| *kind != person).collect();
            assert!(differing.windows(2).all(|pair| pair[0] == pair[1]), "{full} is not told of");
            differing.first().copied().unwrap_or(person)
        }
        _ => panic!("more than two"),
    }
}

#[test]
fn differences_are_those_that_asking_both_policies_shows() {
    let mut chance = Chance(23);
    let mut seen = [0; 4];
    for _ in 0..60 {
        let texts = [World::random(&mut chance).text(), World::random(&mut chance).text()];
        let [old, new] = texts.each_ref().map(|text| Policy::parse(text, 3600).unwrap());
        let now = Question::random(&mut chance).minute * 60;
        let changes = compare(&old, &new, now).unwrap();
        let told: Vec<_> = changes.iter().map(Told::new).collect();
        for _ in 0..250 {
            let mut question = Question::random(&mut chance);
            // At most two attributes besides the name, as in the comparison: one group or tag, and the source.
            question.groups.sort_unstable();
            question.groups.dedup();
            question.tags.sort_unstable();
            question.tags.dedup();
            while question.groups.len() + question.tags.len() > 1 {
                if question.groups.pop().is_none() {
                    question.tags.pop();
                }
            }
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            let (groups, tags) = (owned(&question.groups), owned(&question.tags));
            let source = address(question.source);
            let subject = Subject { person: question.person, groups: &groups, tags: &tags, source: Some(source) };
            let to = Destination { address: address(question.to), protocol: question.protocol, port: question.port };
            let decided = [&old, &new].map(|policy| policy.decide(&Request { subject, to, now }));
            let open = decided
                .each_ref()
                .map(|decision| !matches!(decision, Decision::DefaultDeny { .. } | Decision::Denied { .. }));
            let terms = decided
                .each_ref()
                .map(|decision| decision.rule().filter(|rule| rule.action == Action::Allow).map(|rule| rule.terms));
            let expected = match open {
                [false, true] => Some(Kind::Gains),
                [true, false] => Some(Kind::Loses),
                [true, true] if terms[0] != terms[1] => Some(Kind::Terms),
                _ => None,
            };
            seen[expected.map_or(0, |kind| 1 + kind as usize)] += 1;

            let at = written(now);
            let here = told.iter().filter(|told| told.is_at(&to)).map(|told| told.change);
            let here: Vec<_> = here.filter(|change| change.at.is_empty() || change.at.contains(&at)).collect();
            let named = old.persons().contains(question.person) || new.persons().contains(question.person);
            let name = if named { question.person } else { "anyone else" };
            // Groups, tags and addresses that no rule names make no difference.
            let words = [&old, &new]
                .map(|policy| policy.rules().iter().flat_map(|rule| rule.who.clone()).collect::<Vec<_>>())
                .concat();
            let groups = groups
                .iter()
                .filter(|group| words.contains(&Who::Group((*group).clone())))
                .map(|group| format!("in {group} by login"));
            let tags =
                tags.iter().filter(|tag| words.contains(&Who::Tag((*tag).clone()))).map(|tag| format!("on {tag}"));
            let prefixes: Vec<_> = changes
                .iter()
                .flat_map(|change| &change.who)
                .filter_map(|who| who.rsplit_once("from "))
                .map(|(_, text)| text.to_owned())
                .collect();
            let from = prefixes.iter().find(|text| {
                text.split(" or ").any(|one| {
                    one.parse::<IpNet>()
                        .map_or_else(|_| one.parse::<IpAddr>() == Ok(source), |net| net.contains(&source))
                })
            });
            let more: Vec<_> = groups.chain(tags).chain(from.map(|text| format!("from {text}"))).collect();
            assert_eq!(
                said(&here, name, &more),
                expected,
                "{subject} to {to:?}\n{}\n---\n{}\n{changes:#?}",
                texts[0],
                texts[1]
            );
        }
    }
    assert!(seen.iter().all(|count| *count > 300), "{seen:?}");
}
