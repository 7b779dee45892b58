//! Consents: what they add to the rules, and what they never do.

use super::*;
use crate::model::Service;
use crate::policy::delegation::{Applicant, Consent, Consents, Decider, Exceeds, RequestId};
use crate::policy::holder::Holder;
use std::num::NonZeroU32;

const NOW: u64 = 1_772_000_000;
const DAY: u64 = 86_400;

const DELEGATED: &str = r#"
[groups]
staff = ["alice", "bob"]
dba = ["dora"]

[[receivers]]
name = "db"
address = "203.0.113.20"
services = ["tcp/5432", "tcp/22", "udp/500-510"]
verifier = "edge-1"

[[receivers]]
name = "web"
address = "203.0.113.30"
services = ["tcp/443"]
verifier = "edge-1"

[[rules]]
name = "never bob"
action = "deny"
priority = 1
who = "person:bob"
to = "db"

[[rules]]
action = "allow"
who = "person:carol"
to = "db"
lifetime = "1h"

[[delegations]]
name = "dba"
to = ["db"]
delegates = ["group:dba"]
who = ["group:staff", "person:carol"]
services = ["tcp/5432", "udp/500-510"]
lifetime_max = "1d"
lifetime = "2m"
bind_source = true
class = 7
"#;

fn service(text: &str) -> Service {
    parse_service(text).unwrap()
}

fn consent(id: u32, services: &[&str]) -> Consent {
    Consent {
        id: RequestId(NonZeroU32::new(id).unwrap()),
        receiver: "db".into(),
        services: services.iter().map(|text| service(text)).collect(),
        delegation: "dba".into(),
        by: "dora".into(),
        from: NOW,
        until: NOW + DAY,
    }
}

fn given(person: &str, consents: impl IntoIterator<Item = Consent>) -> Consents {
    consents.into_iter().map(|consent| (person.to_owned(), consent)).collect()
}

fn compiled(text: &str) -> Compiled {
    Compiled::new(Policy::parse(text, 3600).unwrap_or_else(|faults| panic!("{faults}"))).unwrap()
}

/// Returns the label of what allows the request; `None` if nothing does.
fn by(policy: &Compiled, person: &str, port: u16, now: u64, consents: &Consents) -> Option<String> {
    let request = Request { subject: Subject::person(person), to: to("203.0.113.20", 6, port), now };
    match policy.decide_with(&request, consents) {
        Decision::Allowed(permit) => Some(permit.label().to_string()),
        _ => None,
    }
}

const LABEL: &str = "policy.toml:31 delegation dba, consent 00000001";

#[test]
fn a_consent_allows_where_no_rule_matches() {
    let policy = compiled(DELEGATED);
    let consents = given("alice", [consent(1, &["tcp/5432"])]);
    assert_eq!(by(&policy, "alice", 5432, NOW, &Consents::default()), None);
    assert_eq!(by(&policy, "alice", 5432, NOW, &consents).as_deref(), Some(LABEL));
    assert_eq!(by(&policy, "alice", 22, NOW, &consents), None, "another service");
    assert_eq!(by(&policy, "dora", 5432, NOW, &consents), None, "another person");
    let request = Request { subject: Subject::person("alice"), to: to("203.0.113.30", 6, 443), now: NOW };
    assert!(matches!(policy.decide_with(&request, &consents), Decision::DefaultDeny { .. }), "another receiver");
}

#[test]
fn a_grant_by_consent_has_the_terms_of_the_delegation_and_ends_with_the_consent() {
    let policy = compiled(DELEGATED);
    let short = Consent { until: NOW + 50, ..consent(2, &["tcp/5432"]) };
    let request = Request { subject: Subject::person("alice"), to: to("203.0.113.20", 6, 5432), now: NOW };
    let consents = given("alice", [consent(1, &["tcp/5432"]), short.clone()]);
    let Decision::Allowed(permit) = policy.decide_with(&request, &consents) else { panic!() };
    assert_eq!((permit.terms.lifetime, permit.terms.bind_source, permit.terms.class), (120, true, 7));
    assert_eq!((permit.scope.prefix.to_string().as_str(), permit.scope.service), ("203.0.113.20/32", Some((6, 5432))));
    assert_eq!(permit.until, Some(NOW + DAY), "the longest consent decides");
    assert_eq!(policy.policy().class_of(&permit.label()), 7);
    let consents = given("alice", [short]);
    assert!(by(&policy, "alice", 5432, NOW + 49, &consents).is_some());
    assert_eq!(by(&policy, "alice", 5432, NOW + 50, &consents), None);
}

#[test]
fn a_consent_never_overrides_a_rule() {
    let policy = compiled(DELEGATED);
    for person in ["bob", "carol"] {
        let consents = given(person, [consent(1, &["tcp/5432"])]);
        let request = Request { subject: Subject::person(person), to: to("203.0.113.20", 6, 5432), now: NOW };
        assert_eq!(policy.decide_with(&request, &consents), policy.decide(&request), "{person}");
    }
    let request = Request { subject: Subject::person("bob"), to: to("203.0.113.20", 6, 5432), now: NOW };
    let consents = given("bob", [consent(1, &["tcp/5432"])]);
    assert!(matches!(policy.decide_with(&request, &consents), Decision::Denied { .. }), "even a weak rule that denies");
    assert!(matches!(policy.decide_all_with(&[request], &consents)[..], [Decision::Denied { .. }]));
}

#[test]
fn a_consent_never_exceeds_the_delegation_that_is_in_force() {
    let consents = given("alice", [consent(1, &["tcp/5432", "tcp/22"])]);
    let allowed = |text: &str, port, now| by(&compiled(text), "alice", port, now, &consents).is_some();
    assert!(allowed(DELEGATED, 5432, NOW) && !allowed(DELEGATED, 22, NOW), "a service that is not delegated");
    for (from, to) in [
        ("services = [\"tcp/5432\", \"udp/500-510\"]\nlifetime", "services = [\"udp/500-510\"]\nlifetime"),
        ("who = [\"group:staff\", \"person:carol\"]", "who = [\"person:carol\"]"),
        ("name = \"dba\"", "name = \"other\""),
        ("to = [\"db\"]", "to = [\"web\"]"),
        ("staff = [\"alice\", \"bob\"]", "staff = [\"bob\"]"),
    ] {
        let narrowed = DELEGATED.replacen(from, to, 1);
        assert_ne!(narrowed, DELEGATED, "{from}");
        // The receiver `web` has no service tcp/5432, so the narrowed text has all services there.
        let narrowed = if to.contains("web") {
            narrowed.replace("services = [\"tcp/5432\", \"udp/500-510\"]\n", "")
        } else {
            narrowed
        };
        assert!(!allowed(&narrowed, 5432, NOW), "{to}");
    }
    let shorter = DELEGATED.replace("lifetime_max = \"1d\"", "lifetime_max = \"1h\"");
    assert!(allowed(&shorter, 5432, NOW + 3599) && !allowed(&shorter, 5432, NOW + 3600), "it ends earlier");
    assert!(allowed(DELEGATED, 5432, NOW + 3600));
    assert!(!allowed(DELEGATED, 5432, NOW - 31), "it has not begun");
}

#[test]
fn a_grant_by_consent_ends_before_a_rule_begins_to_deny() {
    let window = format!("when = {{ from = \"{}\" }}", written(NOW + 600));
    let text = DELEGATED.replacen("who = \"person:bob\"", &format!("who = \"person:alice\"\n{window}"), 1);
    let policy = compiled(&text);
    let consents = given("alice", [consent(1, &["tcp/5432"])]);
    let request = Request { subject: Subject::person("alice"), to: to("203.0.113.20", 6, 5432), now: NOW };
    let Decision::Allowed(permit) = policy.decide_with(&request, &consents) else { panic!() };
    assert_eq!(permit.until, Some(NOW + 600));
    assert_eq!(by(&policy, "alice", 5432, NOW + 600, &consents), None);
}

#[test]
fn people_ask_and_decide_within_the_delegation_only() {
    let policy = compiled(DELEGATED);
    let policy = policy.policy();
    let [alice, dora, eve] = ["alice", "dora", "eve"].map(Subject::person);
    let may_ask = |who: &Subject<'_>, receiver: &str, services: &[&str]| {
        policy.may_ask(who, receiver, &services.iter().map(|text| service(text)).collect::<Vec<_>>())
    };
    assert!(may_ask(&alice, "db", &["tcp/5432"]) && may_ask(&alice, "db", &["udp/505", "tcp/5432"]));
    assert!(!may_ask(&alice, "db", &["tcp/22"]) && !may_ask(&alice, "db", &["all"]));
    assert!(!may_ask(&alice, "web", &["tcp/443"]) && !may_ask(&eve, "db", &["tcp/5432"]));
    let requestable = policy.requestable(&alice);
    assert_eq!(requestable["db"], [service("tcp/5432"), service("udp/500-510")]);
    assert_eq!((requestable.len(), policy.requestable(&eve).len()), (1, 0));
    let chosen = |who, services: &[Service]| {
        let asker = Applicant { subject: alice, delegations: None, is_unasked: false };
        policy.permitted(Decider::Delegate(who), asker, "db", services, 60).ok().map(|of| of.name.clone())
    };
    assert_eq!(chosen(&dora, &[service("tcp/5432")]).as_deref(), Some("dba"));
    assert_eq!(chosen(&dora, &[service("tcp/22")]), None);
    assert_eq!(chosen(&alice, &[service("tcp/5432")]), None);
    let tagged = ["dba".to_owned()];
    assert_eq!(chosen(&Subject { tags: &tagged, ..eve }, &[service("tcp/5432")]), None);
}

/// A second delegation to the same delegates, for other people and for longer.
const LONGER: &str = r#"
[[delegations]]
name = "guests"
to = ["db"]
delegates = ["group:dba"]
who = ["group:guests", "tag:managed"]
lifetime_max = "30d"
"#;

/// Returns the text of a policy with both delegations.
fn with_guests() -> String {
    let groups = "dba = [\"dora\"]\nguests = []";
    DELEGATED.replacen("dba = [\"dora\"]", groups, 1) + LONGER
}

#[test]
fn a_consent_rests_on_a_delegation_that_covers_the_person_who_asked() {
    let policy = compiled(&with_guests());
    let policy = policy.policy();
    let wanted = [service("tcp/5432")];
    let [alice, dora] = ["alice", "dora"].map(Subject::person);
    let chosen = |asker: Subject<'_>, delegations: Option<&[String]>| {
        let asker = Applicant { subject: asker, delegations, is_unasked: false };
        policy.permitted(Decider::Delegate(&dora), asker, "db", &wanted, 60).ok().map(|of| of.name.clone())
    };
    // The delegation with the longer lifetime is not for alice.
    let of_alice = policy.delegations_about(&alice, "db", &wanted);
    assert_eq!(of_alice, ["dba"]);
    assert_eq!(chosen(alice, Some(&of_alice)).as_deref(), Some("dba"));
    assert_eq!(chosen(alice, None).as_deref(), Some("dba"), "of an earlier version");
    // She joins the other group after she asked.
    let guests = ["guests".to_owned()];
    let guest = Subject { groups: &guests, ..alice };
    assert_eq!(chosen(guest, Some(&of_alice)).as_deref(), Some("dba"));
    assert_eq!(policy.delegations_about(&guest, "db", &wanted), ["dba", "guests"]);
    // A guest leaves the group before the decision.
    let eve = Subject::person("eve");
    let of_eve = policy.delegations_about(&Subject { groups: &guests, ..eve }, "db", &wanted);
    assert_eq!(of_eve, ["guests"]);
    let no_tag = Policy::parse(&with_guests().replace(", \"tag:managed\"", ""), 3600).unwrap();
    let asker = Applicant { subject: eve, delegations: Some(&of_eve), is_unasked: false };
    let decider = Decider::Delegate(&dora);
    assert_eq!(no_tag.permitted(decider, asker, "db", &wanted, 60), Err(Exceeds::NotCovered));
    assert!(no_tag.delegations_for(decider, asker, "db").next().is_some(), "dora can refuse the request");
    // A device of hers has the tag at the request, and still has it at the decision, or not any more.
    let tags = ["managed".to_owned()];
    let with_tag = Subject { tags: &tags, ..eve };
    let tagged = policy.delegations_about(&with_tag, "db", &wanted);
    assert_eq!(chosen(with_tag, Some(&tagged)).as_deref(), Some("guests"));
    assert_eq!(chosen(eve, Some(&tagged)), None, "no device has the tag any more");
    assert_eq!(chosen(eve, Some(&of_eve)), None, "the delegation has a tag, but eve was covered by her group");
    assert_eq!(chosen(with_tag, None), None, "nobody knows which device asked");
    assert_eq!(policy.delegations_about(&alice, "db", &[service("tcp/22")]), [""; 0]);
}

#[test]
fn a_delegation_that_is_narrowed_to_a_part_of_a_range_leaves_agents_that_part() {
    let consents = given("alice", [consent(1, &["udp/500-510", "tcp/5432"])]);
    let narrowed = DELEGATED.replace("services = [\"tcp/5432\", \"udp/500-510\"]", "services = [\"udp/490-505\"]");
    assert_ne!(narrowed, DELEGATED);
    let policy = compiled(&narrowed);
    let open = policy.policy().consented(&Subject::person("alice"), &consents, NOW);
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].services, [service("udp/500-505")]);
    let none = DELEGATED.replace("services = [\"tcp/5432\", \"udp/500-510\"]", "services = [\"tcp/22\"]");
    assert_eq!(compiled(&none).policy().consented(&Subject::person("alice"), &consents, NOW), []);
}

#[test]
fn agents_learn_what_consents_open_and_no_more() {
    let policy = compiled(DELEGATED);
    let more = Consent { services: vec![service("udp/505")], ..consent(2, &[]) };
    let consents = given("alice", [consent(1, &["tcp/5432", "tcp/22"]), more]);
    let open = policy.policy().consented(&Subject::person("alice"), &consents, NOW);
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].services, [service("tcp/5432"), service("udp/505")]);
    assert_eq!(policy.policy().consented(&Subject::person("alice"), &consents, NOW + DAY), []);
}

#[test]
fn an_explanation_names_the_consent_and_its_author() {
    let policy = compiled(DELEGATED);
    let request = Request { subject: Subject::person("alice"), to: to("203.0.113.20", 6, 5432), now: NOW };
    let trace = policy.trace_with(&request, &given("alice", [consent(1, &["tcp/5432"])]));
    assert!(
        trace.text.ends_with("allowed by consent 00000001 of dora (policy.toml:31 delegation dba)"),
        "{}",
        trace.text
    );
    let rule = trace.rule.unwrap();
    assert_eq!((rule.rule.as_str(), rule.why.as_str()), (LABEL, "no rule matches, and dora has consented"));
    assert!(trace.allowed && trace.beaten.is_empty());
}

#[test]
fn faults_of_delegations_are_told_with_the_way_out() {
    let faults = |from: &str, to: &str| {
        let text = DELEGATED.replacen(from, to, 1);
        assert_ne!(text, DELEGATED, "{from}");
        Policy::parse(&text, 3600).unwrap_err().to_string()
    };
    for (from, to, said) in [
        ("delegates = [\"group:dba\"]", "delegates = [\"everyone\"]", "a delegate must be"),
        ("delegates = [\"group:dba\"]", "delegates = [\"tag:x\"]", "a delegate must be"),
        ("delegates = [\"group:dba\"]", "", "missing key `delegates`"),
        ("lifetime_max = \"1d\"", "", "missing key `lifetime_max`"),
        ("lifetime_max = \"1d\"", "lifetime_max = \"400d\"", "must be from 1m to 366d"),
        ("to = [\"db\"]", "to = [\"dp\"]", "no receiver `dp`"),
        ("class = 7", "treatment = \"encrypt\"", "unknown key `treatment`"),
        ("services = [\"tcp/5432\", \"udp/500-510\"]\nl", "services = []\nl", "remove it to delegate all services"),
        (
            "class = 7",
            "class = 7\n[[delegations]]\nname = \"dba\"\nto = \"web\"\ndelegates = \"person:a\"\nwho = \
          \"everyone\"\nlifetime_max = \"1d\"",
            "already a delegation `dba`",
        ),
        (
            "address = \"203.0.113.20\"\nservices = [\"tcp/5432\", \"tcp/22\", \"udp/500-510\"]\nverifier = \"edge-1\"",
            "address = \"203.0.113.20\"\nservices = \"all\"\nnetwork = \"blue\"",
            "is in a virtual network",
        ),
    ] {
        let told = faults(from, to);
        assert!(told.contains(said), "{to}: {told}");
    }
    let tunnel = "[[receivers]]\nname = \"way\"\naddress = \"203.0.113.1\"\nservices = \"udp/700\"\nverifier = \"edge-1\"\n\
                  tunnel = true\n[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \"way\"\n";
    let sealed = DELEGATED.replacen("lifetime = \"1h\"\n", &format!("treatment = \"encrypt\"\n{tunnel}"), 1);
    let told = Policy::parse(&sealed, 3600).unwrap_err().to_string();
    assert!(told.contains("a rule demands a sealed tunnel to `db`"), "{told}");
}

#[test]
fn a_label_in_another_file_names_that_file() {
    let policy = Policy::parse(DELEGATED, 3600).unwrap().in_file("draft.toml");
    assert_eq!(&**policy.delegations()[0].label(), "draft.toml:31 delegation dba");
}

#[test]
fn the_number_of_a_request_has_eight_digits() {
    let number: RequestId = "0a1B2c3d".parse().unwrap();
    assert_eq!(number.to_string(), "0a1b2c3d");
    for wrong in ["", "1", "00000000", "+0000001", "0a1b2c3d4", "0a1b2c3g"] {
        assert!(wrong.parse::<RequestId>().is_err(), "{wrong}");
    }
}

#[test]
fn a_consent_to_a_group_or_a_tag_counts_for_everybody_there_but_its_author() {
    let policy = compiled(&with_guests());
    let [guests, tags] = [["guests".to_owned()], ["managed".to_owned()]];
    let to_group = |by: &str| given("group:staff", [Consent { by: by.into(), ..consent(1, &["tcp/5432"]) }]);
    let allowed = |subject: Subject<'_>, consents: &Consents| {
        let request = Request { subject, to: to("203.0.113.20", 6, 5432), now: NOW };
        let decided = matches!(policy.decide_with(&request, consents), Decision::Allowed(_));
        let open = !policy.policy().consented(&subject, consents, NOW).is_empty();
        assert_eq!(decided, open, "agents learn what is open");
        decided
    };
    let [alice, dora, eve] = ["alice", "dora", "eve"].map(Subject::person);
    assert!(allowed(alice, &to_group("dora")) && !allowed(eve, &to_group("dora")));
    assert!(!allowed(alice, &to_group("alice")), "nobody decides about themselves");
    assert!(!allowed(Subject::person("group:staff"), &to_group("dora")), "a name is no group");
    // The delegation bounds a consent to a group, too: `dba` is not for guests.
    let to_guests =
        |name: &str| given("group:guests", [Consent { delegation: name.into(), ..consent(2, &["tcp/5432"]) }]);
    let guest = Subject { groups: &guests, ..eve };
    assert!(!allowed(guest, &to_guests("dba")) && allowed(guest, &to_guests("guests")));
    let to_tag = given("tag:managed", [Consent { delegation: "guests".into(), ..consent(3, &["tcp/5432"]) }]);
    let tagged = |of| Subject { tags: &tags, ..of };
    assert!(allowed(tagged(eve), &to_tag) && !allowed(eve, &to_tag) && !allowed(tagged(dora), &to_tag));
    assert_eq!(policy.policy().ended_consents(&to_tag, NOW + 40 * DAY).0, [consent(3, &[]).id]);
}

#[test]
fn consents_without_a_request_are_bounded_by_the_same_delegation() {
    let policy = compiled(&with_guests().replace("\"tag:managed\"", "\"tag:managed\", \"address:192.0.2.0/24\""));
    let policy = policy.policy();
    let (wanted, dora, alice) = ([service("tcp/5432")], Subject::person("dora"), Subject::person("alice"));
    let by = |decider, holder: &str, services: &[Service], lifetime| {
        let holder: Holder = holder.parse().unwrap();
        let asker = Applicant { subject: holder.subject(&[], &[]), delegations: None, is_unasked: true };
        policy.permitted(decider, asker, "db", services, lifetime).map(|of| of.name.clone())
    };
    let own = |holder, services: &[Service], lifetime| by(Decider::Delegate(&dora), holder, services, lifetime);
    let day = DAY as u32;
    assert_eq!(own("group:guests", &wanted, 30 * day), Ok("guests".into()));
    assert_eq!(own("tag:managed", &wanted, day), Ok("guests".into()));
    // The address counts, because each use of the consent checks it.
    assert_eq!(own("alice", &wanted, 30 * day), Ok("guests".into()));
    assert_eq!(own("group:staff", &wanted, 31 * day), Err(Exceeds::TooLong(30 * day)));
    assert_eq!(own("alice", &[service("tcp/23")], day), Err(Exceeds::NotCovered));
    assert_eq!(by(Decider::Delegate(&alice), "eve", &wanted, day), Err(Exceeds::NotCovered), "alice is no delegate");
    assert_eq!(by(Decider::Operator, "eve", &wanted, 31 * day), Err(Exceeds::TooLong(30 * day)));
    let strict = compiled(DELEGATED);
    let holder: Holder = "group:guests".parse().unwrap();
    for (decider, subject) in
        [(Decider::Operator, holder.subject(&[], &[])), (Decider::Operator, Subject::person("eve"))]
    {
        let asker = Applicant { subject, delegations: None, is_unasked: true };
        let found = strict.policy().permitted(decider, asker, "db", &wanted, 60);
        assert_eq!(found, Err(Exceeds::NotCovered), "not even an operator exceeds the delegation");
    }
    let asker = Applicant { subject: alice, delegations: None, is_unasked: true };
    let all = strict.policy().delegable(Decider::Operator, asker, "db");
    assert_eq!(all, [service("tcp/5432"), service("udp/500-510")]);
}

#[test]
fn a_person_who_is_denied_learns_for_what_they_can_ask() {
    let policy = compiled(DELEGATED);
    let askable = |person: &str, protocol, port| {
        let request = Request { subject: Subject::person(person), to: to("203.0.113.20", protocol, port), now: NOW };
        let found = policy.policy().askable(&request);
        found.map(|(receiver, service)| (receiver.name.as_str(), super::super::service(&service)))
    };
    assert_eq!(askable("alice", 6, 5432), Some(("db", "tcp/5432".into())));
    assert_eq!(askable("alice", 17, 505), Some(("db", "udp/505".into())), "a port of a range");
    assert_eq!(askable("alice", 6, 22), None, "a service that is not delegated");
    assert_eq!(askable("eve", 6, 5432), None, "the delegation is not for eve");
}
