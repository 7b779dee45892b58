use super::*;
use proptest::prelude::*;

mod beginnings;
mod cases;
mod consents;
mod differences;
mod hostile;

mod reference;

const POLICY: &str = r#"
[groups]
staff = ["alice", "bob"]

[[receivers]]
name = "git"
address = "203.0.113.10"
services = ["tcp/22", "udp/443-450", "icmp"]
verifier = "edge-1"

[[receivers]]
name = "lab"
address = ["203.0.113.64/28", "2001:db8:1::/64"]
services = "all"
verifier = "edge-1"

[[receivers]]
name = "vault"
address = "203.0.113.70"
services = "all"
verifier = "edge-1"

[[rules]]
name = "staff may use git"
action = "allow"
who = ["group:staff", "person:carol"]
to = ["git"]

[[rules]]
action = "deny"
who = ["person:bob"]
to = ["git", "vault"]

[[rules]]
action = "allow"
who = ["everyone"]
to = ["lab"]
granularity = "network"
lifetime = "1h"
single = true
bind_source = true
suite = "aes-cmac"
"#;

fn policy() -> Policy {
    Policy::parse(POLICY, 3600).unwrap()
}

fn to(address: &str, protocol: u8, port: u16) -> Destination {
    Destination { address: address.parse().unwrap(), protocol, port }
}

fn ask<'s>(person: &'s str, to: &Destination) -> Request<'s> {
    Request { subject: Subject::person(person), to: *to, now: 0 }
}

fn permit<'p>(policy: &'p Policy, person: &str, to: &Destination) -> Permit<'p> {
    match policy.decide(&ask(person, to)) {
        Decision::Allowed(permit) => permit,
        other => panic!("{other:?}"),
    }
}

fn fault(text: &str) -> String {
    Policy::parse(text, 3600).unwrap_err().to_string()
}

fn fault_after(addition: &str) -> String {
    let faults = Policy::parse(&format!("{POLICY}\n{addition}"), 3600).unwrap_err();
    assert_eq!(faults.all().len(), 1, "{faults}");
    faults.all()[0].message.clone()
}

#[test]
fn an_allowed_person_gets_a_permit_with_the_deciding_rule() {
    let policy = policy();
    let permit = permit(&policy, "alice", &to("203.0.113.10", 6, 22));
    assert_eq!(&**permit.rule.label(), "policy.toml:23 staff may use git");
    assert_eq!(permit.receiver.name, "git");
    assert_eq!(permit.rule.terms.lifetime, 300);
    assert_eq!(permit.scope, Scope { prefix: "203.0.113.10/32".parse().unwrap(), service: Some((6, 22)) });
}

#[test]
fn deny_wins_over_an_earlier_allow() {
    let policy = policy();
    let Decision::Denied { receiver, rule } = policy.decide(&ask("bob", &to("203.0.113.10", 6, 22))) else { panic!() };
    assert_eq!((receiver.name.as_str(), rule.number, &**rule.label()), ("git", 2, "policy.toml:29 rule 2"));
}

#[test]
fn without_a_rule_the_answer_is_no() {
    let policy = policy();
    assert!(matches!(policy.decide(&ask("mallory", &to("203.0.113.10", 6, 22))), Decision::DefaultDeny { .. }));
}

#[test]
fn what_no_receiver_covers_is_told_apart() {
    let policy = policy();
    for to in [to("203.0.113.11", 6, 22), to("203.0.113.10", 6, 23), to("2001:db8:2::1", 6, 22)] {
        assert_eq!(policy.decide(&ask("alice", &to)), Decision::NoReceiver);
    }
}

#[test]
fn spans_of_ports_include_both_ends() {
    let policy = policy();
    for (port, covered) in [(442, false), (443, true), (450, true), (451, false)] {
        let decision = policy.decide(&ask("alice", &to("203.0.113.10", 17, port)));
        assert_eq!(decision != Decision::NoReceiver, covered, "{port}");
    }
}

#[test]
fn ports_of_a_protocol_without_ports_dont_matter() {
    let policy = policy();
    assert_eq!(permit(&policy, "alice", &to("203.0.113.10", 1, 8)).scope.service, Some((1, 0)));
}

/// Builds a policy with two receivers behind one verifier that everyone reaches by the published scheme, a receiver
/// behind another verifier, and the given rules.
fn with_pairs(rules: &str) -> Policy {
    let receiver = |name, address, verifier| {
        format!(
            "[[receivers]]\nname = \"{name}\"\naddress = {address}\nservices = \"tcp/22\"\nverifier = \"{verifier}\"\n"
        )
    };
    let text = [
        receiver("one", "[\"203.0.113.0/28\", \"2001:db8::/64\"]", "edge"),
        receiver("two", "\"203.0.113.64\"", "edge"),
        receiver("far", "\"203.0.113.128\"", "other"),
        "[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = [\"one\", \"two\"]\nsuite = \"sha224\"\n".into(),
        rules.into(),
    ];
    Policy::parse(&text.concat(), 3600).unwrap()
}

#[test]
fn a_pair_covers_the_receivers_prefix() {
    let policy = with_pairs("");
    let permit = permit(&policy, "alice", &to("203.0.113.3", 6, 22));
    assert_eq!((permit.terms.suite, permit.terms.carrier), (GrantSuite::Sha224, Carrier::Shim));
    assert_eq!(permit.scope, Scope { prefix: "203.0.113.0/28".parse().unwrap(), service: None });
    let six = self::permit(&policy, "alice", &to("2001:db8::3", 6, 22));
    assert_eq!(six.terms.suite, GrantSuite::Mac(Suite::Siphash), "a shim is IPv4's");
}

#[test]
fn a_pair_never_opens_what_another_rule_closes_behind_its_verifier() {
    for (rule, who, suite) in [
        ("action = \"deny\"\nwho = \"person:bob\"\nto = \"two\"", "bob", GrantSuite::Mac(Suite::Siphash)),
        ("action = \"deny\"\nwho = \"person:bob\"\nto = \"two\"", "alice", GrantSuite::Sha224),
        ("action = \"deny\"\nwho = \"person:bob\"\nto = \"far\"", "bob", GrantSuite::Sha224),
        ("action = \"deny\"\npriority = 1\nwho = \"everyone\"\nto = \"two\"", "bob", GrantSuite::Sha224),
        (
            "action = \"allow\"\nwho = \"everyone\"\nto = \"two\"\nbind_source = true",
            "bob",
            GrantSuite::Mac(Suite::Siphash),
        ),
    ] {
        let policy = with_pairs(&format!("[[rules]]\n{rule}\n"));
        let permit = permit(&policy, who, &to("203.0.113.3", 6, 22));
        assert_eq!(permit.terms.suite, suite, "{rule}, {who}");
        let narrow = Scope { prefix: "203.0.113.3/32".parse().unwrap(), service: Some((6, 22)) };
        assert!(suite == GrantSuite::Sha224 || permit.scope == narrow, "{rule}, {who}");
    }
}

#[test]
fn a_pair_ends_before_another_rule_closes_something_behind_its_verifier() {
    let until = "when = { from = 2030-01-07T09:00:00Z }";
    let policy = with_pairs(&format!("[[rules]]\naction = \"deny\"\nwho = \"everyone\"\nto = \"two\"\n{until}\n"));
    let permit = permit(&policy, "alice", &to("203.0.113.3", 6, 22));
    assert_eq!((permit.terms.suite, permit.until), (GrantSuite::Sha224, Some(1_894_006_800)));
}

#[test]
fn a_rule_with_pairs_names_everything_behind_the_verifier_and_binds_them_to_nothing() {
    let rule = |more: &str| {
        fault_after(&format!(
            "[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \"git\"\nsuite = \"sha224\"\n{more}"
        ))
    };
    assert!(rule("").contains("does not name"), "{}", rule(""));
    let all = |more: &str| {
        let text = "[[receivers]]\nname = \"r\"\naddress = \"192.0.2.1\"\nservices = \"all\"\nverifier = \"v\"\n[[rules]]\n\
            action = \"allow\"\nwho = \"everyone\"\nto = \"r\"\nsuite = \"sha224\"\n";
        Policy::parse(&format!("{text}{more}"), 3600).map(|_| ()).map_err(|faults| faults.to_string())
    };
    assert_eq!((all(""), all("carrier = \"shim\"")), (Ok(()), Ok(())));
    for more in ["granularity = \"host\"", "single = true", "reply = true", "bind_source = true"] {
        assert!(all(more).unwrap_err().contains("cannot carry terms"), "{more}");
    }
    assert!(all("carrier = \"tail\"").unwrap_err().contains("require the carrier shim"));
}

#[test]
fn a_network_grant_covers_the_receivers_prefix_and_all_services() {
    let policy = policy();
    let permit = permit(&policy, "zoe", &to("2001:db8:1::5", 6, 80));
    assert_eq!(permit.scope, Scope { prefix: "2001:db8:1::/64".parse().unwrap(), service: None });
    let terms = permit.rule.terms;
    assert_eq!(
        (terms.lifetime, terms.single, terms.bind_source, terms.suite),
        (3600, true, true, GrantSuite::Mac(Suite::AesCmac))
    );
}

#[test]
fn a_network_grant_never_opens_what_a_rule_denies() {
    let policy = policy();
    assert!(matches!(policy.decide(&ask("bob", &to("203.0.113.70", 6, 80))), Decision::Denied { .. }));
    let near = permit(&policy, "bob", &to("203.0.113.71", 6, 80));
    assert_eq!(near.scope, Scope { prefix: "203.0.113.71/32".parse().unwrap(), service: Some((6, 80)) });
    assert_eq!(permit(&policy, "alice", &to("203.0.113.71", 6, 80)).scope.service, None);
}

#[test]
fn destinations_are_those_that_some_rule_opens_and_none_closes() {
    let policy = policy();
    let names =
        |person| policy.destinations(&Subject::person(person), 0).iter().map(|r| r.name.clone()).collect::<Vec<_>>();
    assert_eq!(names("alice"), ["git", "lab", "vault"]);
    assert_eq!(names("bob"), ["lab"]);
    assert_eq!(names("zoe"), ["lab", "vault"]);
}

#[test]
fn explanations_say_who_where_and_why() {
    let policy = policy();
    let explain = |person: &str, to: &Destination| policy.decide(&ask(person, to)).explain(&ask(person, to));
    let git = to("203.0.113.10", 6, 22);
    let allowed = explain("alice", &git);
    assert!(allowed.allowed);
    assert_eq!(
        allowed.text,
        "alice may reach 203.0.113.10 tcp/22 (receiver git): allowed by policy.toml:23 staff may use git"
    );
    let denied = explain("bob", &git);
    assert_eq!((denied.allowed, denied.rule.as_deref()), (false, Some("policy.toml:29 rule 2")));
    assert_eq!(explain("eve", &git).rule, None);
    assert_eq!(explain("eve", &to("192.0.2.1", 6, 1)).receiver, None);
}

#[test]
fn an_empty_policy_is_valid_and_protects_nothing() {
    assert_eq!(Policy::parse("", 3600).unwrap().decide(&ask("a", &to("192.0.2.1", 6, 1))), Decision::NoReceiver);
}

#[test]
fn every_fault_is_reported_with_its_place() {
    let text = "[groups]\nstaff = [\"alice\"]\n\n[[receivers]]\nname = \"git\"\naddres = \"203.0.113.10\"\n\
                services = [\"tpc/22\"]\nverifier = \"edge-1\"\n\n[[rules]]\naction = \"permit\"\n\
                who = [\"group:staf\"]\nto = [\"gti\"]\n";
    assert_eq!(
        fault(text),
        "4:1: missing key `address` in a receiver\n\
         6:1: unknown key `addres` in a receiver; did you mean `address`?\n\
         7:13: `tpc/22` is not a protocol; did you mean `tcp`?\n\
         11:10: `permit` is not one of allow, deny\n\
         12:8: no group `staf`; did you mean `staff`?\n\
         13:7: no receiver `gti`; did you mean `git`?"
            .replace("`tpc/22`", "`tpc`")
    );
}

#[test]
fn faults_say_what_to_write_and_dont_follow_from_one_another() {
    let text = "[[receivers]]\nname = \"web\"\naddress = \"203.0.113.10\"\nservices = [\"http\"]\nverifier = \"edge\"\n\n\
                [[rules]]\naction = \"permit\"\nlifetime = \"5m\"\ngranularity = \"host\"\nwho = \"everyone\"\nto = \"web\"\n";
    assert_eq!(
        fault(text),
        "4:13: `http` is not a protocol; write \"tcp/80\"\n8:10: `permit` is not one of allow, deny"
    );
}

#[test]
fn rules_of_a_draft_are_called_by_its_name() {
    let draft = policy().in_file("draft.toml");
    let asked = OwnedSubject { groups: vec!["staff".into()], ..OwnedSubject::default() };
    let to = destination("203.0.113.10:22").unwrap();
    let text = Compiled::new(draft).unwrap().trace(&Request { subject: asked.subject(), to, now: 0 }).text;
    assert!(text.starts_with("a person in staff ") && text.contains("draft.toml:"), "{text}");
}

#[test]
fn text_that_is_no_toml_names_the_line() {
    assert!(fault("[groups\n").starts_with("1:"), "{}", fault("[groups\n"));
}

#[test]
fn wide_grants_need_a_receiver_that_protects_everything() {
    for width in ["host", "network"] {
        let message = fault_after(&format!(
            "[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \"git\"\ngranularity = \"{width}\""
        ));
        assert!(message.contains("granularity = \"application\""), "{message}");
    }
}

#[test]
fn a_lifetime_beyond_the_maximum_is_refused() {
    let message = fault_after("[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \"git\"\nlifetime = \"2h\"");
    assert_eq!(message, "`lifetime` must be from 10s to 1h");
}

#[test]
fn overlapping_receivers_share_their_verifier() {
    let message = fault_after(
        "[[receivers]]\nname = \"other\"\naddress = \"203.0.113.0/24\"\nservices = \"tcp/1-30\"\nverifier = \"edge-1\"\n\
         [[receivers]]\nname = \"wrong\"\naddress = \"203.0.113.10\"\nservices = \"icmp\"\nverifier = \"edge-2\"",
    );
    assert!(message.contains("`wrong` overlaps `git`"), "{message}");
}

#[test]
fn a_bare_name_is_answered_with_what_to_write() {
    let rule = |who: &str| fault_after(&format!("[[rules]]\naction = \"deny\"\nwho = \"{who}\"\nto = \"git\""));
    assert_eq!(rule("staff"), "write \"group:staff\"");
    assert_eq!(rule("alice"), "write \"person:alice\"");
}

#[test]
fn faults_of_values_say_the_way_out() {
    let receiver = |address: &str, services: &str| {
        fault_after(&format!(
            "[[receivers]]\nname = \"x\"\naddress = \"{address}\"\nservices = \"{services}\"\nverifier = \"edge-1\""
        ))
    };
    assert_eq!(
        receiver("192.0.2.1/24", "all"),
        "`192.0.2.1/24` has bits set after its prefix length; write 192.0.2.0/24"
    );
    assert!(receiver("git.example", "all").contains("not an address"));
    assert!(receiver("192.0.2.1", "icmp/8").contains("no ports"));
    assert!(receiver("192.0.2.1", "tcp/50-40").contains("443-450"));
    assert!(receiver("192.0.2.1", "tcp/70000").contains("443-450"));
    let deny = fault_after("[[rules]]\naction = \"deny\"\nwho = \"everyone\"\nto = \"git\"\nlifetime = \"5m\"");
    assert!(deny.contains("remove `lifetime`"), "{deny}");
}

#[test]
fn scopes_cover_what_is_inside_them() {
    let scope = |prefix: &str, service| Scope { prefix: prefix.parse().unwrap(), service };
    assert!(scope("192.0.2.0/24", None).covers(&scope("192.0.2.7/32", Some((6, 22)))));
    assert!(!scope("192.0.2.7/32", Some((6, 22))).covers(&scope("192.0.2.7/32", None)));
    assert!(!scope("192.0.2.7/32", None).covers(&scope("192.0.2.0/24", None)));
}

/// Generates policies in which receivers overlap often, and a destination near them.
fn small_world() -> impl Strategy<Value = (String, Destination)> {
    let prefix = prop::sample::select(vec!["10.0.0.0/30", "10.0.0.0/31", "10.0.0.1", "10.0.0.2", "10.0.0.2/31"]);
    let services = prop::sample::select(vec!["all", "tcp/22", "tcp/20-30", "udp"]);
    let receivers = prop::collection::vec((prefix, services), 1..5);
    let action = prop::sample::select(vec!["allow", "deny"]);
    let who = prop::sample::select(vec!["everyone", "person:alice", "person:bob", "group:staff"]);
    let width = prop::sample::select(vec!["application", "host", "network"]);
    let rules = prop::collection::vec((action, who, width, any::<bool>(), any::<prop::sample::Index>()), 0..5);
    let destination = (0u8..4, prop::sample::select(vec![6, 17]), 20u16..25);
    (receivers, rules, destination).prop_map(|(receivers, rules, (host, protocol, port))| {
        let mut text = "groups = { staff = [\"alice\"] }\n".to_owned();
        for (index, (prefix, services)) in receivers.iter().enumerate() {
            text += &format!("[[receivers]]\nname = \"r{index}\"\naddress = \"{prefix}\"\n");
            text += &format!("services = \"{services}\"\nverifier = \"v\"\n");
        }
        for (action, who, width, single, to) in rules {
            let to = to.index(receivers.len());
            text += &format!("[[rules]]\naction = \"{action}\"\nwho = \"{who}\"\nto = \"r{to}\"\n");
            if action == "allow" {
                text += &format!("single = {single}\n");
            }
            if action == "allow" && receivers[to].1 == "all" {
                text += &format!("granularity = \"{width}\"\n");
            }
        }
        (text, Destination { address: [10, 0, 0, host].into(), protocol, port })
    })
}

proptest! {
    // Rules that interfere are rare among random ones.
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn decisions_are_those_of_the_plain_words((text, to) in small_world()) {
        let policy = Policy::parse(&text, 3600).unwrap();
        for person in ["alice", "bob", "eve"] {
            let about = |action| policy.rules.iter().any(|rule| {
                rule.action == action
                    && policy.is_about(rule, &Subject::person(person))
                    && rule.to.iter().any(|index| policy.receivers[*index].covers(&to))
            });
            let receiver = policy.receivers.iter().any(|receiver| receiver.covers(&to));
            let expected = match (receiver, about(Action::Deny), about(Action::Allow)) {
                (false, ..) => "nothing",
                (true, true, _) => "denied",
                (true, false, true) => "allowed",
                (true, false, false) => "no rule",
            };
            let decided = match policy.decide(&ask(person, &to)) {
                Decision::NoReceiver => "nothing",
                Decision::Denied { .. } => "denied",
                Decision::Allowed(_) => "allowed",
                Decision::DefaultDeny { .. } => "no rule",
            };
            prop_assert_eq!(decided, expected, "{}: {}", person, text);
        }
    }

    #[test]
    fn a_grant_opens_only_what_would_be_allowed_on_its_terms((text, to) in small_world()) {
        let policy = Policy::parse(&text, 3600).unwrap();
        for person in ["alice", "bob", "eve"] {
            let Decision::Allowed(permit) = policy.decide(&ask(person, &to)) else { continue };
            prop_assert!(permit.scope.prefix.contains(&to.address));
            for (host, protocol, port) in (0..4).flat_map(|host| [(host, 6, 22), (host, 6, 40), (host, 17, 22)]) {
                let other = Destination { address: [10, 0, 0, host].into(), protocol, port };
                let inside = Scope { prefix: other.address.into(), service: Some((protocol, port)) };
                let allowed = match policy.decide(&ask(person, &other)) {
                    Decision::Allowed(there) => there.rule.terms.single == permit.rule.terms.single,
                    _ => false,
                };
                prop_assert!(allowed || !permit.scope.covers(&inside), "{} to {:?}: {}", person, other, text);
            }
            let receivers = policy.destinations(&Subject::person(person), 0);
            prop_assert!(receivers.iter().any(|receiver| receiver.covers(&to)), "{}: {}", person, text);
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(at in 0..POLICY.len(), length in 0usize..40, other in "\\PC{0,12}") {
        let end = (at + length).min(POLICY.len());
        let mut text = POLICY.to_owned();
        text.replace_range(at..end, &other);
        if let Err(faults) = Policy::parse(&text, 3600) {
            prop_assert!(!faults.all().is_empty());
        }
    }
}

#[test]
fn faults_of_windows_and_priorities_say_the_way_out() {
    let rule =
        |key: &str| fault_after(&format!("[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \"git\"\n{key}"));
    for (key, way_out) in [
        ("priority = 70000", "`priority` must be a whole number from 0 to 65535"),
        ("when = \"mon\"", "a time window must be written like { days = \"mon-fri\""),
        ("when = []", "a time window must be written like { days = \"mon-fri\""),
        ("when = { zone = \"Europe/Zurich\" }", "must set at least one of days, hours, from, until"),
        ("when = { hours = \"8-18\" }", "such as 08:00-18:00, 22:00-06:00"),
        ("when = { hours = \"08:00-08:00\" }", "is not a range of hours"),
        ("when = { hours = \"08:00-25:00\" }", "is not a range of hours"),
        ("when = { days = \"monday\" }", "days: mon, tue, wed, thu, fri, sat, sun"),
        ("when = { days = [], hours = \"08:00-09:00\" }", "`days` is empty"),
        ("when = { hours = \"08:00-09:00\", zone = \"Europe/Zürich\" }", "did you mean `Europe/Zurich`?"),
        ("when = { from = 2026-05-01, until = 2026-04-30 }", "`until` must be after `from`"),
        ("when = { from = \"soon\" }", "expected a date: 2026-03-01"),
        ("when = { form = 2026-01-01, until = 2026-02-01 }", "did you mean `from`?"),
        ("granularity = \"wide\"", "`wide` is not one of network, host, application, flow"),
    ] {
        let message = rule(key);
        assert!(message.contains(way_out), "{key}: {message}");
    }
    let who = |who: &str| fault_after(&format!("[[rules]]\naction = \"deny\"\nwho = \"{who}\"\nto = \"git\""));
    assert_eq!(who("192.0.2.0/24"), "write \"address:192.0.2.0/24\"");
    assert_eq!(who("2001:db8::1"), "write \"address:2001:db8::1\"");
    assert!(who("address:192.0.2.1/24").contains("write 192.0.2.0/24"));
    assert!(who("device:x").contains("\"tag:NAME\", \"address:PREFIX\""));
}

const TESTS: &str = r#"
[[tests]]
name = "alice works"
who = "person:alice"
to = "203.0.113.10 tcp/22"
expect = "allow"
rule = "staff may use git"

[[tests]]
who = "person:bob"
to = "203.0.113.10:22"
expect = "deny"

[[tests]]
who = ["everyone", "tag:laptops"]
from = "192.0.2.1"
to = "[2001:db8:1::5]:80"
expect = "allow"

[[tests]]
who = "group:staff"
to = "192.0.2.1 icmp"
expect = "unprotected"
"#;

fn failures(tests: &str) -> Vec<String> {
    let policy = Policy::parse(&format!("{POLICY}{tests}"), 3600).unwrap_or_else(|faults| panic!("{faults}"));
    Compiled::new(policy)
        .unwrap()
        .failures()
        .into_iter()
        .map(|failure| format!("{}: {}", failure.line, failure.message))
        .collect()
}

#[test]
fn tests_in_the_file_say_what_is_not_as_expected() {
    assert_eq!(failures(TESTS), [""; 0]);
    let wrong = TESTS
        .replace("expect = \"allow\"\nrule", "expect = \"deny\"\nrule")
        .replace("192.0.2.1 icmp", "203.0.113.10 icmp");
    assert_eq!(
        failures(&wrong),
        [
            "44: alice works: expected deny by `staff may use git`, but alice may reach 203.0.113.10 tcp/22 \
             (receiver git): allowed by policy.toml:23 staff may use git",
            "62: expected unprotected, but a person in staff may reach 203.0.113.10 icmp (receiver git): allowed by \
             policy.toml:23 staff may use git"
        ]
    );
    // The expected outcome by another rule counts as a failure.
    let other =
        "[[tests]]\nwho = \"person:bob\"\nto = \"203.0.113.10:22\"\nexpect = \"deny\"\nrule = \"staff may use git\"";
    assert_eq!(failures(other).len(), 1);
    // "Not protected" differs from "denied".
    assert_eq!(failures("[[tests]]\nwho = \"person:bob\"\nto = \"192.0.2.1:22\"\nexpect = \"deny\"").len(), 1);
}

#[test]
fn faults_of_tests_say_the_way_out() {
    let test = |key: &str, text: &str| {
        let fields = [("who", "\"person:alice\""), ("to", "\"203.0.113.10:22\""), ("expect", "\"allow\"")];
        let others = fields.iter().filter(|(name, _)| *name != key).map(|(name, value)| format!("{name} = {value}"));
        fault_after(&format!("[[tests]]\n{}\n{key} = {text}", others.collect::<Vec<_>>().join("\n")))
    };
    assert_eq!(test("who", "\"alice\""), "write \"person:alice\"");
    assert_eq!(test("who", "\"group:staf\""), "no group `staf`; did you mean `staff`?");
    assert_eq!(test("who", "[\"person:a\", \"person:b\"]"), "only one person and one address can be given");
    assert!(test("to", "\"git\"").contains("203.0.113.10 tcp/22"));
    assert!(test("to", "\"203.0.113.10 tcp\"").contains("203.0.113.10 tcp/22"));
    assert!(test("expect", "\"yes\"").contains("not one of allow, deny, unprotected"));
    assert!(test("rule", "\"staff may use gti\"").contains("did you mean `staff may use git`?"));
    assert!(test("at", "\"tomorrow\"").contains("2026-03-02T09:00:00Z"));
    assert!(test("from", "\"home\"").contains("`home` is not an address"));
    let timed = "[[rules]]\naction = \"deny\"\nwho = \"everyone\"\nto = \"git\"\nwhen = { days = \"sun\" }\n\
                 [[tests]]\nwho = \"everyone\"\nto = \"203.0.113.10:22\"\nexpect = \"deny\"";
    assert!(fault_after(timed).contains("a test must set `at`"));
}

#[test]
fn a_trace_names_the_rules_that_lost_and_those_that_only_just_miss() {
    let policy = format!(
        "{POLICY}[[rules]]\nname = \"ops\"\naction = \"allow\"\nwho = \"person:carol\"\nto = \"git\"\npriority = 300\n\
         [[rules]]\nname = \"weekend\"\naction = \"deny\"\nwho = \"everyone\"\nto = \"git\"\nwhen = {{ days = \"sun\" }}\n"
    );
    let policy = Compiled::new(Policy::parse(&policy, 3600).unwrap()).unwrap();
    let request = Request { now: instant("2026-03-02T12:00:00Z").unwrap(), ..ask("bob", &to("203.0.113.10", 6, 22)) };
    let trace = policy.trace(&request);
    let told = |reasons: &[Reason]| {
        reasons.iter().map(|r| format!("{} {} {}: {}", r.rule, r.action, r.priority, r.why)).collect::<Vec<_>>()
    };
    assert_eq!(
        (trace.allowed, trace.rule.as_ref().map(|rule| rule.rule.as_str())),
        (false, Some("policy.toml:29 rule 2"))
    );
    assert_eq!(
        told(&trace.beaten),
        ["policy.toml:23 staff may use git allow 100: the higher priority 200 takes precedence"]
    );
    assert_eq!(
        told(&trace.near),
        [
            "policy.toml:43 ops allow 300: it applies to person:carol",
            "policy.toml:49 weekend deny 200: it is not in effect at 2026-03-02T12:00:00Z; again from 2026-03-08T00:00:00Z"
        ]
    );
    let sunday = Request { now: instant("2026-03-08T12:00:00Z").unwrap(), ..request };
    assert_eq!(
        told(&policy.trace(&sunday).beaten)[0],
        "policy.toml:29 rule 2 deny 200: at equal priority the last rule decides, which is on line 49"
    );
    let lab = policy.trace(&ask("alice", &to("203.0.113.65", 6, 22)));
    let grant = "203.0.113.64/28 with all services, for 1h, for one flow, bound to the source address";
    assert_eq!(lab.grant.as_deref(), Some(grant));
    assert_eq!(
        told(&policy.trace(&ask("alice", &to("203.0.113.10", 6, 23))).near)[0],
        "policy.toml:23 staff may use git allow 100: 203.0.113.10 tcp/23 is not a service of git"
    );
}
