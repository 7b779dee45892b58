//! Words of `to` that end with `*`: they name all receivers whose names begin so.

use super::*;

const TEXT: &str = r#"
[[receivers]]
name = "db-1"
address = "203.0.113.1"
services = "tcp/5432"
verifier = "edge-1"

[[receivers]]
name = "db-2"
address = "203.0.113.2"
services = "tcp/5432"
verifier = "edge-1"

[[receivers]]
name = "dbx"
address = "203.0.113.3"
services = "tcp/5432"
verifier = "edge-1"

[[rules]]
action = "allow"
who = "person:alice"
to = ["db-*", "dbx"]

[[delegations]]
name = "dba"
to = "db-*"
delegates = "person:dora"
who = "everyone"
lifetime_max = "1d"

[[lists]]
name = "partners"
to = "db-*"
who = "everyone"
"#;

fn receivers(policy: &Policy, rule: &Rule) -> Vec<String> {
    rule.to.iter().map(|index| policy.receivers[*index].name.clone()).collect()
}

#[test]
fn a_beginning_names_all_receivers_whose_names_begin_so() {
    let policy = Policy::parse(TEXT, 3600).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(receivers(&policy, &policy.rules[0]), ["db-1", "db-2", "dbx"]);
    assert_eq!(receivers(&policy, &policy.delegations[0].rule), ["db-1", "db-2"]);
    assert_eq!(receivers(&policy, &policy.lists[0].rule), ["db-1", "db-2"]);
    // A receiver that is added later is named, too.
    let more = TEXT.replace("name = \"dbx\"", "name = \"db-0\"").replace(", \"dbx\"", "");
    let policy = Policy::parse(&more, 3600).unwrap();
    assert_eq!(policy.delegations[0].rule.to.len(), 3);
}

#[test]
fn a_beginning_that_names_nothing_or_everything_is_an_error() {
    for (word, said) in [
        ("vm-*", "no receiver's name begins with `vm-`"),
        ("*", "no receiver `*`"),
        ("*-1", "no receiver `*-1`"),
        ("db-*-*", "no receiver's name begins with `db-*-`"),
    ] {
        let faults = Policy::parse(&TEXT.replace("\"db-*\", \"dbx\"", &format!("\"{word}\"")), 3600).unwrap_err();
        assert!(faults.to_string().contains(said), "{word}: {faults}");
    }
}

#[test]
fn a_short_text_does_not_become_a_policy_that_fills_the_memory() {
    let receiver = |nth: u32| {
        let [_, high, middle, low] = nth.to_be_bytes();
        let (name, address) = (format!("r{nth}"), format!("10.{high}.{middle}.{low}"));
        format!("[[receivers]]\nname = \"{name}\"\naddress = \"{address}\"\nservices = \"tcp/1\"\nverifier = \"v\"\n")
    };
    let receivers: String = (0..2000).map(receiver).collect();
    let rules = |count| {
        let rule =
            format!("[[rules]]\naction = \"deny\"\nwho = \"everyone\"\nto = [{}\"r*\"]\n", "\"r*\", ".repeat(99));
        format!("{receivers}{}", rule.repeat(count))
    };
    // Each rule names 200 000 receivers.
    assert!(Policy::parse(&rules(5), 3600).is_ok());
    let faults = Policy::parse(&rules(6), 3600).unwrap_err();
    assert!(faults.to_string().contains("names that end in `*` stand for more than 1000000 receivers"), "{faults}");
}
