//! Named cases: the deciding rule, the grant's width, and its end. Rules are written on one line, `ACTION WHO TO
//! KEY=VALUE…`, and numbered from 1; requests as `WHO ADDRESS SERVICE KEY=VALUE…`.

use crate::policy::*;
use std::fmt::Write;

const RECEIVERS: &[(&str, &str, &str)] = &[
    ("net", "10.0.0.0/24", "all"),
    ("half", "10.0.0.0/25", "all"),
    ("host", "10.0.0.7", "all"),
    ("web", "10.0.0.7", "tcp/443"),
    ("ssh", "10.0.0.0/24", "tcp/22"),
    ("dns", "10.0.0.53", "udp/53"),
    ("far", "10.0.9.0/24", "all"),
    ("net6", "2001:db8::/64", "all"),
    ("host6", "2001:db8::7", "all"),
    ("web6", "2001:db8::7", "tcp/443"),
    ("ssh6", "2001:db8::/64", "tcp/22"),
    ("all4", "0.0.0.0/0", "udp/9"),
    ("all6", "::/0", "udp/9"),
];

/// A case: its name, its rules, a request, and the answer.
type Case = (&'static str, &'static [&'static str], &'static str, &'static str);

const CASES: &[Case] = &[
    // Default deny, and destinations that are not protected.
    ("no rule", &[], "alice 10.0.0.7 tcp/22", "no rule"),
    ("no receiver", &["allow everyone net"], "alice 192.0.2.1 tcp/22", "no receiver"),
    ("no receiver for this service", &["allow everyone dns"], "alice 10.1.0.53 udp/53", "no receiver"),
    ("no rule, IPv6", &["allow everyone net"], "alice 2001:db8::7 tcp/22", "no rule"),
    ("a rule for another service", &["allow everyone web"], "alice 10.0.0.7 tcp/22", "no rule"),
    ("a rule for another person", &["allow person:bob net"], "alice 10.0.0.7 tcp/22", "no rule"),
    // Deny over allow, by the default priorities.
    ("deny after allow", &["allow everyone net", "deny person:alice net"], "alice 10.0.0.7 tcp/22", "denied by 2"),
    ("deny before allow", &["deny person:alice net", "allow everyone net"], "alice 10.0.0.7 tcp/22", "denied by 1"),
    (
        "deny of another person",
        &["allow everyone net", "deny person:bob net"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    ("deny of everyone", &["allow person:alice net", "deny everyone net"], "alice 10.0.0.7 tcp/22", "denied by 2"),
    ("deny of the group", &["allow person:alice net", "deny group:staff net"], "alice 10.0.0.7 tcp/22", "denied by 2"),
    ("deny, IPv6", &["allow everyone net6", "deny person:alice net6"], "alice 2001:db8::7 tcp/22", "denied by 2"),
    (
        "deny of a network over allow of its host",
        &["deny everyone net", "allow person:alice host"],
        "alice 10.0.0.7 tcp/22",
        "denied by 1",
    ),
    (
        "deny of a host over allow of its network",
        &["allow everyone net", "deny person:alice host"],
        "alice 10.0.0.7 tcp/22",
        "denied by 2",
    ),
    (
        "deny of a host, its neighbour",
        &["allow everyone net", "deny person:alice host"],
        "alice 10.0.0.8 tcp/22",
        "allowed by 1: 10.0.0.8 tcp/22",
    ),
    // Priorities.
    (
        "allow above deny",
        &["allow person:alice net priority=201", "deny everyone net"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    (
        "deny below allow",
        &["allow everyone net", "deny person:alice net priority=99"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    (
        "an exception from an exception",
        &["allow everyone net", "deny group:staff net", "allow person:alice net priority=300"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 3: 10.0.0.7 tcp/22",
    ),
    (
        "the same, one of whom it does not hold",
        &["allow everyone net", "deny group:staff net", "allow person:alice net priority=300"],
        "bob 10.0.0.7 tcp/22",
        "denied by 2",
    ),
    (
        "the lowest priority still allows",
        &["allow everyone net priority=0"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    (
        "the highest priority denies",
        &["allow everyone net priority=65534", "deny everyone net priority=65535"],
        "alice 10.0.0.7 tcp/22",
        "denied by 2",
    ),
    (
        "the highest priority allows",
        &["deny everyone net priority=65534", "allow everyone net priority=65535"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 2: 10.0.0.7 tcp/22",
    ),
    (
        "a network's priority beats its host's",
        &["allow everyone host priority=10", "deny everyone net priority=11"],
        "alice 10.0.0.7 tcp/22",
        "denied by 2",
    ),
    (
        "a host's priority beats its network's",
        &["deny everyone net priority=10", "allow everyone host priority=11"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 2: 10.0.0.7 tcp/22",
    ),
    (
        "a host's priority beats its network's, IPv6",
        &["deny everyone net6 priority=10", "allow everyone host6 priority=11"],
        "alice 2001:db8::7 tcp/22",
        "allowed by 2: 2001:db8::7 tcp/22",
    ),
    (
        "an application's priority beats its host's",
        &["deny everyone host priority=10", "allow everyone web priority=11"],
        "alice 10.0.0.7 tcp/443",
        "allowed by 2: 10.0.0.7 tcp/443",
    ),
    (
        "and only there",
        &["deny everyone host priority=10", "allow everyone web priority=11"],
        "alice 10.0.0.7 tcp/444",
        "denied by 1",
    ),
    // Freshness: of equal priority, the later rule decides.
    (
        "later allow over deny of its priority",
        &["deny everyone net priority=50", "allow everyone net priority=50"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 2: 10.0.0.7 tcp/22",
    ),
    (
        "later deny over allow of its priority",
        &["allow everyone net priority=50", "deny everyone net priority=50"],
        "alice 10.0.0.7 tcp/22",
        "denied by 2",
    ),
    (
        "a deny set to 100 comes before a later allow",
        &["deny everyone net priority=100", "allow everyone net"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 2: 10.0.0.7 tcp/22",
    ),
    (
        "an allow set to 200 comes before a later deny",
        &["allow everyone net priority=200", "deny everyone net"],
        "alice 10.0.0.7 tcp/22",
        "denied by 2",
    ),
    (
        "the later of two allows gives the terms",
        &["allow everyone net lifetime=10m", "allow everyone net lifetime=1m"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 2: 10.0.0.7 tcp/22",
    ),
    (
        "freshness, not specificity: the network's entry is later",
        &["allow everyone host", "allow everyone net"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 2: 10.0.0.7 tcp/22",
    ),
    (
        "freshness, not specificity: the host's entry is later",
        &["allow everyone net", "allow everyone host"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 2: 10.0.0.7 tcp/22",
    ),
    (
        "a later entry that does not match changes nothing",
        &["allow everyone net priority=50", "deny person:bob net priority=50"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    (
        "freshness, IPv6",
        &["deny everyone net6 priority=7", "allow everyone host6 priority=7"],
        "alice 2001:db8::7 tcp/22",
        "allowed by 2: 2001:db8::7 tcp/22",
    ),
    // Granularity.
    (
        "application",
        &["allow everyone host granularity=application"],
        "alice 10.0.0.7 tcp/443",
        "allowed by 1: 10.0.0.7 tcp/443",
    ),
    (
        "application of a protocol without ports",
        &["allow everyone host"],
        "alice 10.0.0.7 icmp",
        "allowed by 1: 10.0.0.7 icmp",
    ),
    ("host", &["allow everyone net granularity=host"], "alice 10.0.0.7 tcp/443", "allowed by 1: 10.0.0.7/32 all"),
    (
        "host, IPv6",
        &["allow everyone net6 granularity=host"],
        "alice 2001:db8::9 tcp/443",
        "allowed by 1: 2001:db8::9/128 all",
    ),
    ("network", &["allow everyone net granularity=network"], "alice 10.0.0.7 tcp/443", "allowed by 1: 10.0.0.0/24 all"),
    (
        "network, IPv6",
        &["allow everyone net6 granularity=network"],
        "alice 2001:db8::9 udp/1",
        "allowed by 1: 2001:db8::/64 all",
    ),
    (
        "network of the nearest of two receivers",
        &["allow everyone net,half granularity=network"],
        "alice 10.0.0.7 tcp/443",
        "allowed by 1: 10.0.0.0/25 all",
    ),
    ("flow", &["allow everyone net granularity=flow"], "alice 10.0.0.7 tcp/443", "allowed by 1: 10.0.0.7 tcp/443 once"),
    (
        "flow, IPv6",
        &["allow everyone web6 granularity=flow"],
        "alice 2001:db8::7 tcp/443",
        "allowed by 1: 2001:db8::7 tcp/443 once",
    ),
    (
        "single is flow",
        &["allow everyone net single=true"],
        "alice 10.0.0.7 tcp/443",
        "allowed by 1: 10.0.0.7 tcp/443 once",
    ),
    // Overlaps: wide grants never open anything inside them that another rule decides otherwise.
    (
        "a network grant shrinks before a denied host",
        &["allow everyone net granularity=network", "deny person:alice host"],
        "alice 10.0.0.8 tcp/22",
        "allowed by 1: 10.0.0.8 tcp/22",
    ),
    (
        "a network grant shrinks before a denied application",
        &["allow everyone net granularity=network", "deny person:alice web"],
        "alice 10.0.0.8 tcp/22",
        "allowed by 1: 10.0.0.8 tcp/22",
    ),
    (
        "a host grant shrinks before its denied application",
        &["allow everyone host granularity=host", "deny everyone web"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    (
        "a host grant does not mind a denied neighbour",
        &["allow everyone net granularity=host", "deny everyone host"],
        "alice 10.0.0.8 tcp/22",
        "allowed by 1: 10.0.0.8/32 all",
    ),
    (
        "a deny of somebody else narrows nothing",
        &["allow everyone net granularity=network", "deny person:bob host"],
        "alice 10.0.0.8 tcp/22",
        "allowed by 1: 10.0.0.0/24 all",
    ),
    (
        "a deny that loses narrows nothing",
        &["allow everyone net granularity=network priority=300", "deny everyone host"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 1: 10.0.0.0/24 all",
    ),
    (
        "a later allow on other terms narrows",
        &["allow everyone net granularity=network", "allow everyone host lifetime=1m"],
        "alice 10.0.0.8 tcp/22",
        "allowed by 1: 10.0.0.8 tcp/22",
    ),
    (
        "an earlier allow on other terms does not",
        &["allow everyone host lifetime=1m", "allow everyone net granularity=network"],
        "alice 10.0.0.8 tcp/22",
        "allowed by 2: 10.0.0.0/24 all",
    ),
    (
        "a later allow on the same terms does not",
        &["allow everyone net granularity=network", "allow everyone host granularity=network"],
        "alice 10.0.0.8 tcp/22",
        "allowed by 1: 10.0.0.0/24 all",
    ),
    (
        "a deny around the network narrows",
        &["allow everyone half granularity=network priority=150", "deny everyone ssh"],
        "alice 10.0.0.8 udp/9",
        "allowed by 1: 10.0.0.8 udp/9",
    ),
    (
        "a deny elsewhere narrows nothing",
        &["allow everyone half granularity=network", "deny everyone far"],
        "alice 10.0.0.8 udp/9",
        "allowed by 1: 10.0.0.0/25 all",
    ),
    (
        "a network grant shrinks, IPv6",
        &["allow everyone net6 granularity=network", "deny everyone web6"],
        "alice 2001:db8::8 tcp/22",
        "allowed by 1: 2001:db8::8 tcp/22",
    ),
    (
        "the whole of IPv4 does not touch IPv6",
        &["allow everyone net6 granularity=network", "deny everyone all4"],
        "alice 2001:db8::8 tcp/22",
        "allowed by 1: 2001:db8::/64 all",
    ),
    (
        "the whole of IPv6 does",
        &["allow everyone net6 granularity=network", "deny everyone all6"],
        "alice 2001:db8::8 tcp/22",
        "allowed by 1: 2001:db8::8 tcp/22",
    ),
    // Subjects.
    (
        "a member of the policy's group",
        &["allow group:staff net"],
        "alice 10.0.0.7 tcp/22",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    ("no member", &["allow group:staff net"], "eve 10.0.0.7 tcp/22", "no rule"),
    (
        "a member by the session",
        &["allow group:staff net"],
        "eve 10.0.0.7 tcp/22 group=staff",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    (
        "a group without members of its own",
        &["allow group:partners net"],
        "eve 10.0.0.7 tcp/22 group=partners",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    (
        "a group of the session that denies",
        &["allow everyone net", "deny group:partners net"],
        "alice 10.0.0.7 tcp/22 group=partners",
        "denied by 2",
    ),
    (
        "a device's tag",
        &["allow tag:laptops net"],
        "alice 10.0.0.7 tcp/22 tag=laptops",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    ("a device without the tag", &["allow tag:laptops net"], "alice 10.0.0.7 tcp/22 tag=byod", "no rule"),
    (
        "a tag that denies",
        &["allow everyone net", "deny tag:byod net"],
        "alice 10.0.0.7 tcp/22 tag=byod tag=laptops",
        "denied by 2",
    ),
    (
        "an address",
        &["allow address:192.0.2.7 net"],
        "alice 10.0.0.7 tcp/22 from=192.0.2.7",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    (
        "an address of a prefix",
        &["allow address:192.0.2.0/24 net"],
        "alice 10.0.0.7 tcp/22 from=192.0.2.7",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    (
        "an address outside of it",
        &["allow address:192.0.2.0/24 net"],
        "alice 10.0.0.7 tcp/22 from=192.0.3.7",
        "no rule",
    ),
    ("an address of the other family", &["allow address:::/0 net"], "alice 10.0.0.7 tcp/22 from=192.0.2.7", "no rule"),
    (
        "an IPv6 prefix",
        &["allow address:2001:db8:9::/48 net6"],
        "alice 2001:db8::7 tcp/22 from=2001:db8:9::1",
        "allowed by 1: 2001:db8::7 tcp/22",
    ),
    (
        "an address that denies",
        &["allow everyone net", "deny address:198.51.100.0/24 net"],
        "alice 10.0.0.7 tcp/22 from=198.51.100.9",
        "denied by 2",
    ),
    ("an unknown address", &["allow address:0.0.0.0/0 net"], "alice 10.0.0.7 tcp/22", "no rule"),
    (
        "any of several",
        &["allow person:bob,tag:laptops net"],
        "alice 10.0.0.7 tcp/22 tag=laptops",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    // Time. 2026-03-02 is a Monday.
    (
        "in the hours",
        &["allow everyone net hours=08:00-18:00"],
        "alice 10.0.0.7 tcp/22 at=2026-03-02T12:00:00Z",
        "allowed by 1: 10.0.0.7 tcp/22 until 2026-03-02T18:00:00Z",
    ),
    (
        "after the hours",
        &["allow everyone net hours=08:00-18:00"],
        "alice 10.0.0.7 tcp/22 at=2026-03-02T18:00:00Z",
        "no rule",
    ),
    (
        "before the hours",
        &["allow everyone net hours=08:00-18:00"],
        "alice 10.0.0.7 tcp/22 at=2026-03-02T07:59:59Z",
        "no rule",
    ),
    (
        "on the day",
        &["allow everyone net days=mon-fri"],
        "alice 10.0.0.7 tcp/22 at=2026-03-06T23:59:59Z",
        "allowed by 1: 10.0.0.7 tcp/22 until 2026-03-07T00:00:00Z",
    ),
    (
        "on another day",
        &["allow everyone net days=mon-fri"],
        "alice 10.0.0.7 tcp/22 at=2026-03-07T00:00:00Z",
        "no rule",
    ),
    (
        "hours of a zone",
        &["allow everyone net6 hours=08:00-18:00 zone=Europe/Zurich"],
        "alice 2001:db8::7 tcp/22 at=2026-07-01T06:00:00Z",
        "allowed by 1: 2001:db8::7 tcp/22 until 2026-07-01T16:00:00Z",
    ),
    (
        "hours of a zone, an hour later in winter",
        &["allow everyone net6 hours=08:00-18:00 zone=Europe/Zurich"],
        "alice 2001:db8::7 tcp/22 at=2026-03-02T06:00:00Z",
        "no rule",
    ),
    (
        "until a date",
        &["allow everyone net until=2026-03-02"],
        "alice 10.0.0.7 tcp/22 at=2026-03-02T23:00:00Z",
        "allowed by 1: 10.0.0.7 tcp/22 until 2026-03-03T00:00:00Z",
    ),
    (
        "past the date",
        &["allow everyone net until=2026-03-02"],
        "alice 10.0.0.7 tcp/22 at=2026-03-03T00:00:00Z",
        "no rule",
    ),
    (
        "from a date on",
        &["allow everyone net from=2026-03-02"],
        "alice 10.0.0.7 tcp/22 at=2026-03-02T00:00:00Z",
        "allowed by 1: 10.0.0.7 tcp/22",
    ),
    (
        "a deny that does not hold yet ends the grant",
        &["allow everyone net", "deny everyone host hours=13:00-14:00"],
        "alice 10.0.0.7 tcp/22 at=2026-03-02T12:00:00Z",
        "allowed by 1: 10.0.0.7 tcp/22 until 2026-03-02T13:00:00Z",
    ),
    (
        "a deny that holds",
        &["allow everyone net", "deny everyone host hours=13:00-14:00"],
        "alice 10.0.0.7 tcp/22 at=2026-03-02T13:00:00Z",
        "denied by 2",
    ),
    (
        "a deny inside a wide grant that does not hold yet",
        &["allow everyone net granularity=network", "deny everyone host hours=13:00-14:00"],
        "alice 10.0.0.9 tcp/22 at=2026-03-02T12:00:00Z",
        "allowed by 1: 10.0.0.0/24 all until 2026-03-02T13:00:00Z",
    ),
    (
        "a deny inside a wide grant that holds narrows it",
        &["allow everyone net granularity=network", "deny everyone host hours=13:00-14:00"],
        "alice 10.0.0.9 tcp/22 at=2026-03-02T13:30:00Z",
        "allowed by 1: 10.0.0.9 tcp/22",
    ),
    (
        "a weaker rule takes over when the window closes",
        &["allow everyone net lifetime=1m", "allow everyone net hours=08:00-18:00 priority=150"],
        "alice 10.0.0.7 tcp/22 at=2026-03-02T19:00:00Z",
        "allowed by 1: 10.0.0.7 tcp/22 until 2026-03-03T08:00:00Z",
    ),
];

fn policy(rules: &[&str]) -> String {
    let mut text = "[groups]\nstaff = [\"alice\", \"bob\"]\npartners = []\n".to_owned();
    for (name, address, services) in RECEIVERS {
        writeln!(text, "[[receivers]]\nname = \"{name}\"\naddress = \"{address}\"").unwrap();
        writeln!(text, "services = \"{services}\"\nverifier = \"v\"").unwrap();
    }
    for rule in rules {
        let words: Vec<_> = rule.split(' ').collect();
        let list = |word: &str| word.split(',').map(|one| format!("\"{one}\"")).collect::<Vec<_>>().join(", ");
        writeln!(text, "[[rules]]\naction = \"{}\"\nwho = [{}]\nto = [{}]", words[0], list(words[1]), list(words[2]))
            .unwrap();
        let mut when = Vec::new();
        for (key, value) in words[3..].iter().map(|word| word.split_once('=').unwrap()) {
            match key {
                "priority" | "single" => writeln!(text, "{key} = {value}").unwrap(),
                "hours" | "days" | "zone" | "from" | "until" => when.push(format!("{key} = \"{value}\"")),
                _ => writeln!(text, "{key} = \"{value}\"").unwrap(),
            }
        }
        if !when.is_empty() {
            writeln!(text, "when = {{ {} }}", when.join(", ")).unwrap();
        }
    }
    text
}

fn answer(policy: &Policy, request: &str) -> String {
    let words: Vec<_> = request.split(' ').collect();
    let all = |key: &str| {
        let pairs = words[3..].iter().map(|word| word.split_once('=').unwrap());
        pairs.filter(|(name, _)| *name == key).map(|(_, value)| value.to_owned()).collect::<Vec<_>>()
    };
    let (groups, tags) = (all("group"), all("tag"));
    let source = all("from").first().map(|source| source.parse().unwrap());
    let subject = Subject { person: words[0], groups: &groups, tags: &tags, source };
    let (protocol, port) = words[2].split_once('/').unwrap_or((words[2], "0"));
    let protocol = [("icmp", 1), ("tcp", 6), ("udp", 17)].iter().find(|(name, _)| *name == protocol).unwrap().1;
    let to = Destination { address: words[1].parse().unwrap(), protocol, port: port.parse().unwrap() };
    let now = all("at").first().map_or(0, |at| instant(at).unwrap());
    match policy.decide(&Request { subject, to, now }) {
        Decision::NoReceiver => "no receiver".into(),
        Decision::DefaultDeny { .. } => "no rule".into(),
        Decision::Denied { rule, .. } => format!("denied by {}", rule.number),
        Decision::Allowed(permit) => {
            let Scope { prefix, service } = permit.scope;
            let one = prefix.prefix_len() == prefix.max_prefix_len();
            let place = match service {
                None => format!("{prefix} all"),
                Some((protocol, _)) => {
                    assert!(one && protocol == to.protocol);
                    format!("{} {}", prefix.addr(), words[2])
                }
            };
            let once = if permit.rule.terms.single { " once" } else { "" };
            let until =
                permit.until.map(|until| format!(" until {}", jiff::Timestamp::from_second(until as i64).unwrap()));
            format!("allowed by {}: {place}{once}{}", permit.rule.number, until.unwrap_or_default())
        }
    }
}

#[test]
fn every_case_is_decided_as_it_says() {
    assert!(CASES.len() >= 60);
    let names: BTreeSet<_> = CASES.iter().map(|(name, ..)| name).collect();
    assert_eq!(names.len(), CASES.len(), "two cases have one name");
    let mut wrong = Vec::new();
    for (name, rules, request, expected) in CASES {
        let policy = Policy::parse(&policy(rules), 3600).unwrap_or_else(|faults| panic!("{name}: {faults}"));
        let answer = answer(&policy, request);
        if answer != *expected {
            wrong.push(format!("{name}: {request}: {answer}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
