//! Policy files that are made to be slow or large are refused with a message, or handled within bounds.

use crate::policy::diff::compare;
use crate::policy::*;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Maximum time for a file of the largest size on a busy machine. Quadratic work on such a file takes minutes or more.
const PATIENCE: Duration = Duration::from_secs(20);

fn read(text: &str) -> Result<Policy, Faults> {
    let begun = Instant::now();
    let read = Policy::parse(text, 3600);
    assert!(begun.elapsed() < PATIENCE, "took {:?}", begun.elapsed());
    read
}

/// Reads a policy that must be refused. Returns the messages of its faults, and checks that they are few.
fn refused(text: &str) -> Vec<String> {
    let faults = read(text).unwrap_err();
    let messages: Vec<_> = faults.all().iter().map(|fault| fault.message.clone()).collect();
    assert!((1..=100).contains(&messages.len()), "{}", messages.len());
    messages
}

/// Appends as many parts to `head` as fit in a policy.
fn filled(head: &str, part: impl Fn(usize) -> String) -> String {
    let mut text = head.to_owned();
    for index in 0.. {
        let part = part(index);
        if text.len() + part.len() > MOST_TEXT {
            break;
        }
        text += &part;
    }
    text
}

fn receiver(index: usize, address: &str, services: &str) -> String {
    format!("[[receivers]]\nname = \"r{index}\"\naddress = \"{address}\"\nservices = {services}\nverifier = \"v\"\n")
}

fn v4(index: usize) -> String {
    format!("10.{}.{}.{}", index >> 16 & 255, index >> 8 & 255, index & 255)
}

const RULE: &str = "[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \"r0\"\n";

#[test]
fn a_text_that_is_too_long_is_refused_before_it_is_read() {
    let text = "#".repeat(MOST_TEXT + 1);
    assert_eq!(refused(&text), [format!("the policy is {} bytes long; the maximum is {MOST_TEXT}", text.len())]);
}

#[test]
fn deep_nesting_is_refused() {
    refused(&format!("a = {}", "[".repeat(1_000_000)));
    refused(&format!("a = {}", "{ b = ".repeat(500_000)));
    refused(&filled("", |_| "a.".into()));
    refused(&format!("[{}]", "a.".repeat(500_000)));
}

#[test]
fn a_file_of_nothing_but_faults_tells_a_hundred() {
    let messages = refused(&filled("", |index| format!("k{index} = 1\n")));
    assert!(messages.last().unwrap().contains("more errors)"));
    refused(&filled("", |_| "[[rules]]\n".into()));
    refused(&filled("", |index| {
        format!("[[rules]]\naction = \"allow\"\nwho = \"group:g{index}\"\nto = \"nothing\"\n")
    }));
    refused(&filled("", |_| "x".into()));
    refused(&filled("", |_| "=\n".into()));
    refused(&filled("", |_| "\u{1}".into()));
}

#[test]
fn long_names_are_not_compared() {
    let long = "a".repeat(200_000);
    let receivers: String =
        (0..10).map(|index| receiver(index, &v4(index), "\"all\"").replace("\"r", &format!("\"{long}"))).collect();
    refused(&format!("{receivers}{}", RULE.replace("\"r0\"", &format!("\"{}\"", "b".repeat(1_000_000)))));
}

#[test]
fn many_receivers_and_rules_are_read_and_answered_quickly() {
    let text =
        filled("", |index| receiver(index, &v4(index), "\"tcp/22\"") + &RULE.replace("r0", &format!("r{index}")));
    let policy = read(&text).unwrap();
    assert!(policy.receivers().len() > 15_000, "{}", policy.receivers().len());
    let begun = Instant::now();
    let compiled = Compiled::new(policy.clone()).unwrap();
    for index in 0..policy.receivers().len() {
        let to = Destination { address: v4(index).parse().unwrap(), protocol: 6, port: 22 };
        let decision = compiled.decide(&Request { subject: Subject::person("alice"), to, now: 0 });
        assert_eq!(decision.rule().map(|rule| rule.number), Some(index + 1));
    }
    assert_eq!(policy.destinations(&Subject::person("alice"), 0).len(), policy.receivers().len());
    assert!(begun.elapsed() < PATIENCE, "took {:?}", begun.elapsed());
}

#[test]
fn rules_that_name_all_receivers_are_read_and_answered_quickly() {
    let receivers: String = (0..2000).map(|index| receiver(index, &v4(index), "\"all\"")).collect();
    let all: Vec<_> = (0..2000).map(|index| format!("\"r{index}\"")).collect();
    let text =
        filled(&receivers, |_| RULE.replace("\"r0\"", &format!("[{}]", all.join(","))) + "granularity = \"network\"\n");
    let policy = read(&text).unwrap();
    assert!(policy.rules().len() > 200);
    let begun = Instant::now();
    let compiled = Compiled::new(policy.clone()).unwrap();
    let to = Destination { address: v4(7).parse().unwrap(), protocol: 6, port: 22 };
    for _ in 0..1000 {
        let decision = compiled.decide(&Request { subject: Subject::person("alice"), to, now: 0 });
        assert_eq!(decision.rule().map(|rule| rule.number), Some(policy.rules().len()));
    }
    assert_eq!(policy.destinations(&Subject::person("alice"), 0).len(), 2000);
    assert!(begun.elapsed() < PATIENCE, "took {:?}", begun.elapsed());
}

#[test]
fn receivers_inside_each_other_are_bounded() {
    let same = filled("", |index| receiver(index, "10.0.0.0/8", &format!("\"tcp/{}\"", 1 + index % 65535)));
    let messages = refused(&same);
    assert!(messages[0].contains("more than 256 receivers contain 10.0.0.0/8"), "{messages:?}");
    // The deepest nesting allowed, with many receivers inside.
    let nested: String = (0..256).map(|index| receiver(index, "10.0.0.0/8", "\"tcp\"")).collect();
    let head = nested + RULE;
    let policy = read(&filled(&head, |index| receiver(1000 + index, &v4(index), "\"udp\""))).unwrap_err();
    assert!(policy.all()[0].message.contains("merge some"));
    let nested: String = (0..200).map(|index| receiver(index, "10.0.0.0/8", "\"tcp\"")).collect();
    let policy = read(&filled(&(nested + RULE), |index| receiver(1000 + index, &v4(index), "\"udp\""))).unwrap();
    let begun = Instant::now();
    assert_eq!(policy.destinations(&Subject::person("alice"), 0).len(), 200);
    assert!(begun.elapsed() < PATIENCE, "took {:?}", begun.elapsed());
}

#[test]
fn receivers_of_many_prefixes_and_services_are_read_quickly() {
    let list = |begin: usize, count: usize| {
        (begin..begin + count).map(|index| format!("\"{}\"", v4(2 * index))).collect::<Vec<_>>().join(",")
    };
    let ports: Vec<_> = (0..5000).map(|index| format!("\"tcp/{}\"", 1 + 2 * index)).collect();
    let text = filled("", |index| {
        let address = format!("address = [{}]", list(index % 3, 20_000));
        receiver(index, "", &format!("[{}]", ports.join(","))).replace("address = \"\"", &address)
    });
    let policy = read(&text).unwrap();
    assert!(policy.receivers().len() > 7);
    let begun = Instant::now();
    assert_eq!(policy.destinations(&Subject::person("alice"), 0).len(), 0);
    assert!(matches!(Compiled::new(policy), Err(TooLarge::Places(places)) if places > 7 * 20_000 * 5000));
    assert!(begun.elapsed() < PATIENCE, "took {:?}", begun.elapsed());
}

#[test]
fn rules_that_name_thousands_in_thousands_of_receivers_are_not_put_in_force() {
    let receivers: String = (0..4000).map(|index| receiver(index, &v4(index), "\"all\"")).collect();
    let all: Vec<_> = (0..4000).map(|index| format!("\"r{index}\"")).collect();
    let who: Vec<_> = (0..4000).map(|index| format!("\"person:p{index}\"")).collect();
    let (all, who) = (all.join(","), who.join(","));
    let policy = read(&format!("{receivers}[[rules]]\naction = \"allow\"\nwho = [{who}]\nto = [{all}]\n")).unwrap();
    let error = Compiled::new(policy).err();
    assert_eq!(error, Some(TooLarge::Entries(4000 * 4000)));
}

#[test]
fn many_windows_are_gone_through_quickly() {
    let text = filled(&receiver(0, "10.0.0.1", "\"all\""), |index| {
        let (hour, minute) = (index / 60 % 24, index % 60);
        let when =
            format!("when = {{ hours = \"{hour:02}:{minute:02}-23:59\", days = \"mon\", zone = \"Europe/Zurich\" }}\n");
        if (hour, minute) == (23, 59) { String::new() } else { RULE.to_owned() + &when }
    });
    let policy = read(&text).unwrap();
    assert!(policy.rules().len() > 20_000);
    let begun = Instant::now();
    let to = Destination { address: v4(1).parse().unwrap(), protocol: 6, port: 22 };
    let now = instant("2026-03-02T12:00:00Z").unwrap();
    assert!(policy.next_change(now).is_some_and(|at| at > now));
    Compiled::new(policy).unwrap().decide(&Request { subject: Subject::person("alice"), to, now });
    assert!(begun.elapsed() < PATIENCE, "took {:?}", begun.elapsed());
    let most: Vec<_> = (0..33).map(|_| "{ days = \"mon\" }").collect();
    let rule = format!("{}{RULE}when = [{}]\n", receiver(0, "10.0.0.1", "\"all\""), most.join(", "));
    assert_eq!(refused(&rule), ["a rule can have at most 32 time windows"]);
}

#[test]
fn a_comparison_that_would_take_too_long_is_refused() {
    let text = |action: &str| {
        let mut text = String::new();
        for index in 0..20_000 {
            text += &receiver(index, &v4(index), "\"all\"");
        }
        for index in 0..300 {
            writeln!(
                text,
                "[[rules]]\naction = \"{action}\"\nwho = [\"person:p{index}\", \"tag:t{index}\"]\nto = \"r{index}\""
            )
            .unwrap();
        }
        Policy::parse(&text, 3600).unwrap()
    };
    let begun = Instant::now();
    let error = compare(&text("allow"), &text("deny"), 0).unwrap_err().to_string();
    assert!(error.contains("too large"), "{error}");
    assert!(begun.elapsed() < PATIENCE, "took {:?}", begun.elapsed());
}

/// Compares a policy with a copy that denies, within bounds. Returns the number of subjects with a change, or the
/// error.
fn compared(text: &str) -> Result<usize, String> {
    let (old, new) = (read(text).unwrap(), read(&text.replace("\"allow\"", "\"deny\"")).unwrap());
    let begun = Instant::now();
    let changes = compare(&old, &new, 0);
    assert!(begun.elapsed() < PATIENCE, "took {:?}", begun.elapsed());
    changes.map(|changes| changes.iter().map(|change| change.who.len()).sum()).map_err(|error| error.to_string())
}

#[test]
fn rules_about_one_person_each_are_compared_or_refused_within_bounds() {
    let persons = |count: usize, receivers: usize| {
        let head: String = (0..receivers).map(|index| receiver(index, &v4(index), "\"tcp/22\"")).collect();
        (0..count).fold(head, |text, index| {
            let rule = RULE.replace("everyone", &format!("person:p{index}"));
            text + &rule.replace("\"r0\"", &format!("\"r{}\"", index % receivers))
        })
    };
    // The policy of a large organisation, and the largest policy that a file can contain.
    assert_eq!(compared(&persons(2000, 100)), Ok(2000));
    assert_eq!(compared(&persons(30_000, 1)), Ok(30_000));
    let refused = compared(&persons(30_000, 5_000)).unwrap_err();
    assert!(refused.contains("too many people, destinations and times"), "{refused}");
    let most =
        filled(&receiver(0, "10.0.0.1", "\"all\""), |index| RULE.replace("everyone", &format!("person:{index}")));
    let refused = compared(&most).unwrap_err();
    assert!(refused.contains("too many people with different sets of rules"), "{refused}");
}

#[test]
fn many_names_are_told_within_bounds() {
    let members: Vec<_> = (0..100_000).map(|index| format!("\"p{index}\"")).collect();
    let head = format!("[groups]\nall = [{}]\n{}", members.join(","), receiver(0, "10.0.0.1", "\"all\""));
    let rule = |who: &str| RULE.replace("everyone", who);
    assert_eq!(compared(&(head.clone() + &rule("group:all"))), Ok(100_001), "and whoever is in it by login");

    // Rules that match all members; and tags, each of which makes further subjects of all members.
    assert_eq!(compared(&filled(&head, |_| rule("group:all"))), Ok(100_001));
    let tags: String =
        (0..60).map(|index| rule(&format!("tag:t{index}")).replace("\"r0\"", &format!("\"r{}\"", index + 1))).collect();
    let places: String = (1..=60).map(|index| receiver(index, &v4(index), "\"tcp\"")).collect();
    let refused = compared(&(head + &places + &tags + &rule("group:all"))).unwrap_err();
    assert!(refused.contains("access changes for too many people"), "{refused}");

    // Each person is in a different set of groups, named by many rules.
    let mut text = "[groups]\n".to_owned();
    for group in 0..17 {
        let own: Vec<_> =
            (0..20_000).filter(|person| person >> (group % 15) & 1 == 1).map(|p| format!("\"{p}\"")).collect();
        writeln!(text, "g{group} = [{}]", own.join(",")).unwrap();
    }
    text += &receiver(0, "10.0.0.1", "\"all\"");
    let text = filled(&text, |index| rule(&format!("group:g{}", index % 17)));
    let refused = compared(&text).unwrap_err();
    assert!(refused.contains("too many"), "{refused}");
}
