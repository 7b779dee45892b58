use super::*;
use crate::policy::Outcome;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};
use wire::Destination;

const NOW: u64 = 1_772_000_000;

const POLICY: &str = r#"
[groups]
staff = ["alice", "bob", "carol"]
ops = ["bob"]

[[receivers]]
name = "lab"
address = "203.0.113.0/24"
services = ["tcp/22", "tcp/5432", "udp/53"]
verifier = "edge-1"

[[receivers]]
name = "web"
address = "198.51.100.1"
services = ["tcp/443"]
verifier = "edge-2"

[[rules]]
action = "deny"
priority = 0
who = "person:mallory"
to = "lab"

[[rules]]
action = "allow"
who = "group:ops"
to = "lab"
lifetime = "1h"
when = { from = 2026-06-01T00:00:00Z }

[[lists]]
name = "partners"
to = ["lab"]
who = ["group:staff", "person:mallory", "person:dan"]
services = ["tcp/5432"]
lifetime = "2m"
bind_source = true
class = 9
"#;

fn compiled(text: &str) -> Compiled {
    Compiled::new(Policy::parse(text, 3600).unwrap_or_else(|faults| panic!("{faults}"))).unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse::<IpNet>().unwrap_or_else(|_| text.parse::<IpAddr>().unwrap().into())
}

fn at(address: &str, port: u16) -> Destination {
    Destination { address: address.parse().unwrap(), protocol: 6, port }
}

const WORDS: [&str; 7] =
    ["everyone", "person:alice", "person:bob", "person:mallory", "group:staff", "group:away", "tag:laptops"];

fn names() -> Arc<Names> {
    let names = Arc::<Names>::default();
    for (number, word) in (0..).zip(WORDS).skip(1) {
        names.insert(sender(number).unwrap(), word);
    }
    names
}

fn who(word: &str) -> Sender {
    sender(WORDS.iter().position(|other| *other == word).unwrap() as u32).unwrap()
}

fn allow(word: &str) -> Entry {
    Entry { sender: who(word), action: Action::Allow, priority: 100, revision: 1, until: None }
}

/// Returns the policy with a list of these entries in force.
fn with(entries: &[(&str, Entry)]) -> Compiled {
    let mut list = List::new(names());
    entries.iter().for_each(|(receiver, entry)| list.put(net(receiver), entry).unwrap());
    let (mut policy, mut lists) = (compiled(POLICY), Lists::default());
    lists.insert("partners".into(), list);
    policy.set_lists(lists);
    policy
}

fn asks<'a>(person: &'a str, to: Destination, now: u64) -> Request<'a> {
    Request { subject: Subject::person(person), to, now }
}

#[test]
fn an_entry_opens_its_address_within_the_limits_of_the_list() {
    let policy = with(&[("203.0.113.7", allow("person:alice"))]);
    let ask = asks("alice", at("203.0.113.7", 5432), NOW);
    let Decision::Allowed(permit) = policy.decide(&ask) else { panic!() };
    assert_eq!((permit.receiver.name.as_str(), permit.terms.lifetime, permit.terms.bind_source), ("lab", 120, true));
    assert_eq!((permit.scope.prefix, permit.scope.service), (net("203.0.113.7/32"), Some((6, 5432))));
    assert_eq!((&*permit.label().to_string(), permit.until), ("policy.toml:31 list partners", None));
    assert_eq!(policy.policy().class_of(&permit.label()), 9);
    let found = policy.listed(&ask).unwrap();
    assert_eq!(found.to_string(), "entry of list partners: allow person:alice to 203.0.113.7/32");
    for (person, to) in [
        ("alice", at("203.0.113.8", 5432)),
        ("alice", at("203.0.113.7", 22)),
        ("bob", at("203.0.113.7", 5432)),
        ("alice", at("198.51.100.1", 443)),
    ] {
        let ask = asks(person, to, NOW);
        assert!(matches!(policy.decide(&ask), Decision::DefaultDeny { .. }), "{person} {to:?}");
        assert_eq!(policy.listed(&ask), None);
    }
    let names = |person: &str| {
        let all = policy.policy().destinations(&Subject::person(person), NOW).into_iter();
        all.map(|receiver| receiver.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!((names("alice"), names("eve")), (vec!["lab".to_owned()], Vec::new()));
}

#[test]
fn a_list_never_overrides_a_rule_and_never_exceeds_its_people() {
    let policy = with(&[("203.0.113.0/24", Entry { priority: u16::MAX, ..allow("everyone") })]);
    assert!(matches!(policy.decide(&asks("mallory", at("203.0.113.7", 5432), NOW)), Decision::Denied { rule, .. }
        if rule.number == 1));
    assert!(matches!(policy.decide(&asks("eve", at("203.0.113.7", 5432), NOW)), Decision::DefaultDeny { .. }));
    // The grant ends before the rule about bob begins to apply, which has other terms.
    let Decision::Allowed(permit) = policy.decide(&asks("bob", at("203.0.113.7", 5432), NOW)) else { panic!() };
    assert_eq!(permit.until, super::super::instant("2026-06-01T00:00:00Z"));
    let later = super::super::instant("2026-06-02T00:00:00Z").unwrap();
    let Decision::Allowed(permit) = policy.decide(&asks("bob", at("203.0.113.7", 5432), later)) else { panic!() };
    assert_eq!((permit.rule.number, permit.terms.lifetime), (2, 3600));
}

#[test]
fn an_entry_that_denies_has_the_label_of_its_list() {
    let deny = Entry { action: Action::Deny, priority: 200, ..allow("person:alice") };
    let policy = with(&[("203.0.113.0/24", allow("group:staff")), ("203.0.113.7", deny)]);
    let ask = asks("alice", at("203.0.113.7", 5432), NOW);
    assert!(matches!(policy.decide(&ask), Decision::Denied { .. }));
    let trace = policy.trace(&ask);
    let rule = trace.rule.unwrap();
    assert_eq!((trace.allowed, rule.rule.as_str(), rule.action), (false, "policy.toml:31 list partners", "deny"));
    assert!(policy.listed(&ask).unwrap().to_string().contains("deny person:alice to 203.0.113.7/32"));
    let other = asks("alice", at("203.0.113.8", 5432), NOW);
    assert!(policy.listed(&other).unwrap().to_string().contains("allow group:staff to 203.0.113.0/24"));
}

#[test]
fn an_entry_ends_and_the_grant_with_it() {
    let policy = with(&[("203.0.113.7", Entry { until: Some(NOW + 60), ..allow("person:alice") })]);
    let Decision::Allowed(permit) = policy.decide(&asks("alice", at("203.0.113.7", 5432), NOW + 59)) else { panic!() };
    assert_eq!(permit.until, Some(NOW + 60));
    let ended = asks("alice", at("203.0.113.7", 5432), NOW + 60);
    assert!(matches!(policy.decide(&ended), Decision::DefaultDeny { .. }));
    let ends = |since, now| policy.lists().any_ends(since, now);
    assert!(ends(NOW, NOW + 60) && !ends(NOW, NOW + 59) && !ends(NOW + 60, NOW + 99));
}

#[test]
fn a_change_leaves_earlier_snapshots_alone() {
    let mut list = List::new(names());
    list.put(net("203.0.113.7"), &allow("person:alice")).unwrap();
    let before = list.clone();
    assert!(list.remove(net("203.0.113.7"), who("person:alice")));
    assert!(!list.remove(net("203.0.113.7"), who("person:alice")));
    assert_eq!((list.len(), before.len()), (0, 1));
    let (mut policy, mut lists) = (compiled(POLICY), Lists::default());
    lists.insert("partners".into(), before);
    policy.set_lists(lists);
    assert!(matches!(policy.decide(&asks("alice", at("203.0.113.7", 5432), NOW)), Decision::Allowed(_)));
}

#[test]
fn a_list_has_a_limit_of_ends() {
    let mut list = List::new(names());
    let ends = |until| Entry { until: Some(until), ..allow("person:alice") };
    for until in 1..=65_535 {
        list.put(net("203.0.113.7"), &ends(until)).unwrap();
    }
    assert_eq!(list.put(net("203.0.113.7"), &ends(65_536)), Err(TooManyEnds));
    list.put(net("203.0.113.7"), &ends(7)).unwrap();
    assert_eq!(list.len(), 1);
}

#[test]
fn lists_are_refused_where_their_grants_would_be_wrong() {
    let fault = |from: &str, to: &str| {
        let text = POLICY.replace(from, to);
        assert_ne!(text, POLICY);
        Policy::parse(&text, 3600).unwrap_err().to_string()
    };
    for (from, to, expected) in [
        ("to = [\"lab\"]", "to = [\"lap\"]", "no receiver `lap`"),
        ("name = \"partners\"\n", "", "name"),
        ("class = 9", "granularity = \"host\"", "granularity"),
        ("services = [\"tcp/5432\"]", "services = []", "`services` is empty"),
        ("lifetime = \"2m\"", "lifetime = \"2h\"", "lifetime"),
        ("who = \"group:ops\"\nto = \"lab\"\n", "who = \"group:ops\"\nto = \"lab\"\nseal = \"encrypt\"\n", "seal"),
    ] {
        let fault = fault(from, to);
        assert!(fault.contains(expected), "{expected}: {fault}");
    }
    let twice = format!("{POLICY}\n{}", &POLICY[POLICY.find("[[lists]]").unwrap()..]);
    assert!(Policy::parse(&twice, 3600).unwrap_err().to_string().contains("already a list"));
}

/// A step of the property test: an address or network, a word, and the new entry; `None` removes.
type Step = (usize, usize, Option<(bool, u16, Option<u64>)>);

const PLACES: [&str; 5] = ["203.0.113.7/32", "203.0.113.8/32", "203.0.113.0/28", "203.0.113.0/24", "0.0.0.0/0"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let entry = (any::<bool>(), 0_u16..3, proptest::option::of(NOW..NOW + 4));
    proptest::collection::vec((0..PLACES.len(), 0..WORDS.len(), proptest::option::weighted(0.7, entry)), 1..120)
}

proptest! {
    /// A list decides as a plain set of entries does, which is searched from end to end.
    #[test]
    fn a_list_is_a_set_of_entries(steps in steps(), bulk in 0_usize..60) {
        let mut plain: BTreeMap<(usize, usize), Entry> = BTreeMap::new();
        let mut list = List::new(names());
        for (number, (place, word, entry)) in steps.iter().enumerate() {
            if number == bulk {
                // A restart of the authority loads the same entries at once.
                list = List::new(names());
                for (place, receiver) in PLACES.iter().enumerate() {
                    let own = plain.iter().filter(|((other, _), _)| *other == place);
                    list.load(net(receiver), &own.map(|(_, entry)| *entry).collect::<Vec<_>>()).unwrap();
                }
            }
            let sender = who(WORDS[*word]);
            match entry {
                None => {
                    let there = plain.remove(&(*place, *word)).is_some();
                    prop_assert_eq!(list.remove(net(PLACES[*place]), sender), there);
                }
                Some((denies, priority, until)) => {
                    let action = if *denies { Action::Deny } else { Action::Allow };
                    let revision = number as u64 / 3;
                    let entry = Entry { sender, action, priority: *priority, revision, until: *until };
                    plain.insert((*place, *word), entry);
                    list.put(net(PLACES[*place]), &entry).unwrap();
                }
            }
            prop_assert_eq!(list.len(), plain.len());
        }
        let (mut policy, mut lists) = (compiled(POLICY), Lists::default());
        lists.insert("partners".into(), list);
        policy.set_lists(lists);
        let (groups, tags) = (["away".to_owned()], ["laptops".to_owned()]);
        for person in ["alice", "bob", "dan", "eve"] {
            for (host, now, extra) in (0..4_u8).flat_map(|host| (0..4).map(move |late| (host, NOW + late, late % 2 == 0))) {
                let address = Ipv4Addr::new(203, 0, 113, [7, 8, 9, 99][usize::from(host)]);
                let to = Destination { address: address.into(), protocol: 6, port: 5432 };
                let mut subject = Subject::person(person);
                if extra {
                    subject = Subject { groups: &groups, tags: &tags, ..subject };
                }
                let mine = |word: &str| match word {
                    "everyone" => true,
                    "group:staff" => ["alice", "bob"].contains(&person),
                    "group:away" | "tag:laptops" => extra,
                    word => word.strip_prefix("person:") == Some(person),
                };
                let matching = plain.iter().filter(|((place, word), entry)| {
                    net(PLACES[*place]).contains(&IpAddr::from(address))
                        && mine(WORDS[*word])
                        && entry.until.is_none_or(|until| now < until)
                });
                let strongest = matching.map(|(_, entry)| (entry.priority, entry.revision, entry.action == Action::Deny));
                let expected = match strongest.max() {
                    _ if person == "eve" => Outcome::Deny,
                    Some((_, _, false)) => Outcome::Allow,
                    _ => Outcome::Deny,
                };
                let request = Request { subject, to, now };
                prop_assert_eq!(Outcome::of(&policy.decide(&request)), expected, "{} {} {}", person, to.address, now);
                let together = policy.decide_all(&[request]);
                prop_assert_eq!(Outcome::of(&together[0]), expected);
            }
        }
    }
}
