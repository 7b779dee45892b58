//! Requests for access: from the question to the end of the consent, and attempts to get or give more than the policy
//! delegates.

use super::{Answer, Browser, stage};
use crate::stage::{POLICY, SOON, Stage, events, handle, next, problem, revoked, to};
use api::{AccessRequest, Event, GrantRequest};
use authority::admin;
use authority::storage::{AccessEntry, AccessState};
use client::Authority;
use reqwest::StatusCode;
use std::time::{Duration, Instant};

const DELEGATED: &str = r#"
[[receivers]]
name = "db"
address = "203.0.113.20"
services = ["tcp/5432", "tcp/22"]
verifier = "edge-1"

[[delegations]]
name = "dba"
to = "db"
delegates = ["person:alice", "group:dba"]
who = ["person:eve", "person:alice"]
services = "tcp/5432"
lifetime_max = "1d"
"#;

pub fn policy() -> String {
    POLICY.replace("staff = [\"alice\", \"bob\"]", "staff = [\"alice\", \"bob\"]\ndba = [\"bob\"]") + DELEGATED
}

pub async fn delegated() -> Stage {
    let stage = stage().await;
    stage.apply(&policy()).await.unwrap();
    stage
}

pub fn db() -> GrantRequest {
    to("203.0.113.20", 6, 5432)
}

fn asking() -> AccessRequest {
    AccessRequest { receiver: "db".into(), services: Vec::new(), lifetime: None, reason: "the invoices".into() }
}

/// Asks for access, and returns the number of the request.
async fn ask(person: &Authority) -> String {
    person.ask_access(&asking()).await.unwrap().id
}

pub async fn decide(browser: &mut Browser, id: &str, verdict: &str) -> Answer {
    allow(browser, id, verdict, "tcp/5432", "8h").await
}

async fn allow(browser: &mut Browser, id: &str, verdict: &str, services: &str, time: &str) -> Answer {
    let fields = [("id", id), ("verdict", verdict), ("services", services), ("for", time), ("note", "until Friday")];
    browser.submit("/console/access/requests", "/console/access/requests/decide", &fields).await
}

pub fn entry(stage: &Stage, id: &str) -> AccessEntry {
    stage.database().access_request(id.parse().unwrap()).unwrap().unwrap()
}

/// Waits until `holds` returns true.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_person_asks_and_is_allowed_and_loses_access_when_it_is_withdrawn() {
    let stage = delegated().await;
    let eve = stage.login("eve").await;
    assert_eq!(problem(eve.grant(&db()).await).r#type, "no_rule");
    let list = eve.access().await.unwrap();
    assert_eq!((list.requests.len(), list.requestable.len()), (0, 1));
    assert_eq!(
        (list.requestable[0].receiver.as_str(), list.requestable[0].services.join(" ")),
        ("db", "tcp/5432".into())
    );
    let id = ask(&eve).await;
    assert_eq!(problem(eve.grant(&db()).await).r#type, "no_rule", "a request allows nothing");
    let mut heard = events(&eve).await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let page = bob.get("/console/access/requests").await.text;
    assert!(page.contains("eve asks for db") && page.contains("the invoices") && page.contains("At most 1d"), "{page}");
    assert_eq!(decide(&mut bob, &id, "allow").await.leads_to(), "/console/access/requests?done=access-allowed");
    // The event makes the agent read its destinations again.
    assert_eq!(next(&mut heard).await, Event::Policy);
    let reach = eve.destinations().await.unwrap().destinations;
    let reach: Vec<_> = reach.iter().map(|receiver| (receiver.name.as_str(), receiver.services.len())).collect();
    assert_eq!(reach, [("db", 1)], "with the service that was allowed");
    let grant = eve.grant(&db()).await.unwrap();
    assert!(grant.rule.ends_with(&format!(" delegation dba, consent {id}")), "{}", grant.rule);
    assert_eq!(grant.prefix.to_string(), "203.0.113.20/32");
    assert_eq!(problem(eve.grant(&to("203.0.113.20", 6, 22)).await).r#type, "no_rule");
    let own = &eve.access().await.unwrap().requests[0];
    assert_eq!(
        (own.state.as_str(), own.by.as_deref(), own.note.as_deref()),
        ("allowed", Some("bob"), Some("until Friday"))
    );
    let begun = Instant::now();
    let fields = [("id", id.as_str())];
    let answer = bob.submit("/console/access/requests", "/console/access/requests/withdraw", &fields).await;
    assert_eq!(answer.leads_to(), "/console/access/requests?done=consent-withdrawn");
    assert_eq!(revoked(&mut heard).await, [handle(&grant)]);
    assert!(begun.elapsed() < SOON * 5, "{:?}", begun.elapsed());
    assert_eq!(problem(eve.grant(&db()).await).r#type, "no_rule");
    assert!(eve.destinations().await.unwrap().destinations.is_empty());
    let trail = stage.database().audit_entries(Some("eve"), 100).unwrap();
    let events: Vec<_> = trail
        .iter()
        .map(|entry| entry.event.as_str())
        .filter(|event| event.contains("access") || event.contains("consent"))
        .collect();
    assert_eq!(events, ["access_asked", "access_allowed", "consent_withdrawn"]);
    let allowed = trail.iter().find(|entry| entry.event == "access_allowed").unwrap();
    assert_eq!(allowed.operator.as_deref(), Some("bob (console)"));
    assert!(allowed.detail.contains("until Friday") && allowed.rule.as_ref().unwrap().ends_with("delegation dba"));
}

#[tokio::test]
async fn a_flow_that_outlived_its_grant_is_cut_when_its_consent_is_withdrawn() {
    let stage = delegated().await;
    let edge = stage.verifier("edge-1").await;
    let eve = stage.login("eve").await;
    let id = ask(&eve).await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    decide(&mut bob, &id, "allow").await.leads_to();
    let grant = eve.grant(&db()).await.unwrap();
    assert!(edge.flows_to_cut(&[handle(&grant)]).await.unwrap().is_empty());
    stage.end_grants();
    let mut heard = events(&edge).await;
    eve.withdraw_access(&id).await.unwrap();
    assert_eq!(next(&mut heard).await, Event::Recheck);
    assert_eq!(edge.flows_to_cut(&[handle(&grant)]).await.unwrap().len(), 1);
    assert_eq!(entry(&stage, &id).ender.as_deref(), Some("eve"));
}

#[tokio::test]
async fn a_consent_outlives_a_restart_and_ends_by_itself() {
    let mut stage = delegated().await;
    let eve = stage.login("eve").await;
    let id = ask(&eve).await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    decide(&mut bob, &id, "allow").await.leads_to();
    let grant = eve.grant(&db()).await.unwrap();
    stage.restart().await;
    let live = stage.database().live_grants_of("eve", authority::now()).unwrap();
    assert_eq!(live.iter().map(|grant| grant.handle.0).collect::<Vec<_>>(), [handle(&grant)]);
    let eve = stage.login("eve").await;
    eve.grant(&db()).await.unwrap();
    let file = rusqlite::Connection::open(stage.directory.database()).unwrap();
    file.busy_timeout(Duration::from_secs(5)).unwrap();
    file.execute("UPDATE access_requests SET until = ?1", [authority::now() as i64]).unwrap();
    file.execute("UPDATE consent_changes SET made = made + 1", []).unwrap();
    until("the consent ends", async || entry(&stage, &id).state == AccessState::Expired).await;
    assert_eq!(problem(eve.grant(&db()).await).r#type, "no_rule");
    until("its grants end", async || stage.database().live_grants_of("eve", authority::now()).unwrap().is_empty())
        .await;
    let trail = stage.database().audit_entries(Some("eve"), 100).unwrap();
    assert!(trail.iter().any(|entry| entry.event == "consent_expired"));
}

#[tokio::test]
async fn nobody_decides_for_anothers_receiver_or_for_themselves() {
    let stage = delegated().await;
    let (eve, alice) = (stage.login("eve").await, stage.login("alice").await);
    let (of_eve, of_alice) = (ask(&eve).await, ask(&alice).await);
    // eve is no delegate: for her, the request of another person does not exist.
    let mut outsider = Browser::logged_in(&stage, "eve").await;
    let page = outsider.get("/console/access/requests").await.text;
    assert!(!page.contains("alice") && !page.contains(&of_alice), "{page}");
    for id in [of_eve.as_str(), &of_alice, "00000001", "x"] {
        let token = outsider.get("/console/access").await.token();
        for (path, fields) in [
            ("decide", vec![("verdict", "allow"), ("services", "tcp/5432"), ("for", "1h"), ("note", "")]),
            ("decide", vec![("verdict", "refuse"), ("note", "")]),
        ] {
            let fields = [vec![("form", token.as_str()), ("id", id)], fields].concat();
            let answer = outsider.post(&format!("/console/access/requests/{path}"), &fields).await;
            assert_eq!(answer.status, StatusCode::NOT_FOUND, "{id}: {}", answer.text);
        }
        if id != of_eve {
            assert_eq!(problem(eve.withdraw_access(id).await).r#type, "not_found");
            let fields = [("form", token.as_str()), ("id", id)];
            for path in ["/console/access/withdraw", "/console/access/requests/withdraw"] {
                assert_eq!(outsider.post(path, &fields).await.status, StatusCode::NOT_FOUND, "{id}");
            }
        }
    }
    // alice is a delegate, but her own request is for bob.
    let mut delegate = Browser::logged_in(&stage, "alice").await;
    let answer = decide(&mut delegate, &of_alice, "allow").await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert!(answer.text.contains("for others to decide"), "{}", answer.text);
    for id in [&of_eve, &of_alice] {
        assert_eq!(entry(&stage, id).state, AccessState::Open);
    }
    assert_eq!(problem(alice.grant(&db()).await).r#type, "no_rule");
    let mut bob = Browser::logged_in(&stage, "bob").await;
    decide(&mut bob, &of_alice, "allow").await.leads_to();
    alice.grant(&db()).await.unwrap();
}

#[tokio::test]
async fn nobody_allows_more_than_the_delegation_or_the_request() {
    let stage = delegated().await;
    let eve = stage.login("eve").await;
    let id = ask(&eve).await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    for (services, time, status, said) in [
        ("tcp/22", "1h", 403, "and no others"),
        ("all", "1h", 403, "and no others"),
        ("tcp", "1h", 403, "and no others"),
        ("tcp/5432 tcp/22", "1h", 403, "and no others"),
        ("", "1h", 403, "and no others"),
        ("ssh", "1h", 403, "not a protocol"),
        ("tcp/5432", "25h", 403, "allows access for at most 1d"),
        ("tcp/5432", "400d", 400, "from 1m to 366d"),
        ("tcp/5432", "1s", 400, "from 1m to 366d"),
        ("tcp/5432", "soon", 400, "write a time"),
        ("tcp/5432", "", 400, "write a time"),
    ] {
        let answer = allow(&mut bob, &id, "allow", services, time).await;
        assert_eq!(answer.status.as_u16(), status, "{services} {time}: {}", answer.text);
        assert!(answer.text.to_lowercase().contains(said), "{services} {time}: {}", answer.text);
    }
    let answer = decide(&mut bob, &id, "perhaps").await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(entry(&stage, &id).state, AccessState::Open);
    for (request, kind) in [
        (AccessRequest { services: vec!["tcp/22".into()], ..asking() }, "not_requestable"),
        (AccessRequest { services: vec!["all".into()], ..asking() }, "not_requestable"),
        (AccessRequest { receiver: "git".into(), ..asking() }, "not_requestable"),
        (AccessRequest { receiver: "nothing".into(), ..asking() }, "not_requestable"),
        (AccessRequest { lifetime: Some(5), ..asking() }, "malformed"),
        (AccessRequest { reason: "x".repeat(501), ..asking() }, "malformed"),
        (AccessRequest { reason: "a\nb".into(), ..asking() }, "malformed"),
        (AccessRequest { services: vec!["tcp/5432".into(); 17], ..asking() }, "malformed"),
        (asking(), "already_asked"),
    ] {
        assert_eq!(problem(eve.ask_access(&request).await).r#type, kind, "{request:?}");
    }
    // bob is not among those to whom access can be given.
    assert_eq!(problem(stage.login("bob").await.ask_access(&asking()).await).r#type, "not_requestable");
}

#[tokio::test]
async fn of_two_who_decide_the_first_decides_and_the_other_is_told() {
    let stage = delegated().await;
    let eve = stage.login("eve").await;
    let mut alice = Browser::logged_in(&stage, "alice").await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    for _ in 0..4 {
        let id = ask(&eve).await;
        let (one, other) = tokio::join!(decide(&mut alice, &id, "refuse"), decide(&mut bob, &id, "allow"));
        let state = entry(&stage, &id).state;
        let [first, second] = if state == AccessState::Refused { [one, other] } else { [other, one] };
        first.leads_to();
        assert_eq!(second.status, StatusCode::CONFLICT, "{}", second.text);
        assert!(second.text.contains(&format!("already {}", state.name())), "{}", second.text);
        // The page is stale: neither a later verdict nor a second withdrawal changes anything.
        assert_eq!(decide(&mut bob, &id, "allow").await.status, StatusCode::CONFLICT);
        if state == AccessState::Allowed {
            eve.withdraw_access(&id).await.unwrap();
            assert_eq!(problem(eve.withdraw_access(&id).await).r#type, "already_decided");
            assert_eq!(decide(&mut bob, &id, "allow").await.status, StatusCode::CONFLICT);
        }
        assert_eq!(problem(eve.grant(&db()).await).r#type, "no_rule");
    }
}

#[tokio::test]
async fn a_delegation_that_is_narrowed_narrows_what_rests_on_it_and_what_a_stale_page_can_do() {
    let stage = delegated().await;
    let eve = stage.login("eve").await;
    let id = ask(&eve).await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let token = bob.get("/console/access/requests").await.token();
    let stale = [
        ("form", token.as_str()),
        ("id", id.as_str()),
        ("verdict", "allow"),
        ("services", "tcp/5432"),
        ("for", "8h"),
        ("note", ""),
    ];
    stage.apply(&policy().replace("lifetime_max = \"1d\"", "lifetime_max = \"1h\"")).await.unwrap();
    let answer = bob.post("/console/access/requests/decide", &stale).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.text);
    stage.apply(&policy().replace("services = \"tcp/5432\"", "services = \"tcp/22\"")).await.unwrap();
    let answer = bob.post("/console/access/requests/decide", &stale).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.text);
    stage.apply(&policy().replace(", \"group:dba\"", "")).await.unwrap();
    let answer = bob.post("/console/access/requests/decide", &stale).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND, "bob is no delegate any more: {}", answer.text);
    stage.apply(&policy()).await.unwrap();
    bob.post("/console/access/requests/decide", &stale).await.leads_to();
    let mut heard = events(&eve).await;
    let grant = eve.grant(&db()).await.unwrap();
    stage.apply(&policy().replace("who = [\"person:eve\", \"person:alice\"]", "who = \"person:alice\"")).await.unwrap();
    assert_eq!(revoked(&mut heard).await, [handle(&grant)]);
    assert_eq!(problem(eve.grant(&db()).await).r#type, "no_rule");
    let denying = "[[rules]]\naction = \"deny\"\npriority = 0\nwho = \"person:eve\"\nto = \"db\"\n";
    stage.apply(&(policy() + denying)).await.unwrap();
    assert_eq!(problem(eve.grant(&db()).await).r#type, "denied", "a rule that denies decides");
    stage.apply(&policy()).await.unwrap();
    eve.grant(&db()).await.unwrap();
}

#[tokio::test]
async fn forms_of_other_sites_and_of_other_people_change_nothing() {
    let stage = delegated().await;
    let eve = stage.login("eve").await;
    let id = ask(&eve).await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let mut attacker = Browser::logged_in(&stage, "eve").await;
    let (own, foreign) =
        (bob.get("/console/access/requests").await.token(), attacker.get("/console/access").await.token());
    let origin = bob.base.clone();
    let ours = [("origin", origin.as_str()), ("sec-fetch-site", "same-origin")];
    let theirs = [("origin", "https://evil.example.org"), ("sec-fetch-site", "cross-site")];
    let verdict = [("id", id.as_str()), ("verdict", "allow"), ("services", "tcp/5432"), ("for", "1h"), ("note", "")];
    for (from, token) in [(&theirs, own.as_str()), (&ours, foreign.as_str()), (&ours, "")] {
        let fields = [&[("form", token)][..], &verdict].concat();
        for path in ["/requests/decide", "/requests/withdraw", "/withdraw", ""] {
            let answer = bob.post_from(from, &format!("/console/access{path}"), &fields).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
        }
    }
    assert_eq!(entry(&stage, &id).state, AccessState::Open);
    let fields = [&[("form", own.as_str())][..], &verdict].concat();
    bob.post("/console/access/requests/decide", &fields).await.leads_to();
    // Names in a form do not make the request another person's.
    let as_alice = [("receiver", "db"), ("services", ""), ("for", ""), ("reason", "x"), ("person", "alice")];
    attacker.submit("/console/access", "/console/access", &as_alice).await.leads_to();
    let made = stage.database().access_requests_of("alice", None).unwrap().entries;
    assert!(made.is_empty(), "{made:?}");
    assert_eq!(stage.database().access_requests_of("eve", None).unwrap().entries.len(), 2);
}

#[tokio::test]
async fn the_next_owner_of_a_name_inherits_neither_requests_nor_consents() {
    let stage = delegated().await;
    let eve = stage.login("eve").await;
    let id = ask(&eve).await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    decide(&mut bob, &id, "allow").await.leads_to();
    eve.grant(&db()).await.unwrap();
    ask(&eve).await;
    let page = bob.get("/console/access/requests").await;
    admin::remove_account(&stage.directory, "eve").await.unwrap();
    admin::add_account(&stage.directory, "eve", crate::stage::PASSWORD, false).await.unwrap();
    let eve = stage.login("eve").await;
    assert_eq!(problem(eve.grant(&db()).await).r#type, "no_rule");
    assert!(eve.access().await.unwrap().requests.is_empty());
    let stale = [("form", page.token()), ("id", id)];
    let stale: Vec<_> = stale.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let answer = bob.post("/console/access/requests/withdraw", &stale).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
}

/// Another delegation of the same receiver, for other people and for longer.
const GUESTS: &str = r#"
[[delegations]]
name = "guests"
to = "db"
delegates = "group:dba"
who = "group:guests"
lifetime_max = "30d"
"#;

#[tokio::test]
async fn a_consent_rests_on_the_delegation_that_covers_the_person() {
    let stage = delegated().await;
    let both = policy().replace("dba = [\"bob\"]", "dba = [\"bob\"]\nguests = []") + GUESTS;
    stage.apply(&both).await.unwrap();
    let eve = stage.login("eve").await;
    let id = ask(&eve).await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let page = bob.get("/console/access/requests").await.text;
    assert!(page.contains("At most 1d"), "the other delegation is not for eve: {page}");
    assert_eq!(allow(&mut bob, &id, "allow", "tcp/5432", "2d").await.status, StatusCode::FORBIDDEN);
    decide(&mut bob, &id, "allow").await.leads_to();
    assert_eq!(entry(&stage, &id).delegation.as_deref(), Some("dba"));
    let grant = eve.grant(&db()).await.unwrap();
    assert!(grant.rule.contains("delegation dba"), "{}", grant.rule);
    eve.withdraw_access(&id).await.unwrap();
    // She leaves those whom the delegation covers between her request and the decision.
    let id = ask(&eve).await;
    stage.apply(&both.replace("who = [\"person:eve\", \"person:alice\"]", "who = \"person:alice\"")).await.unwrap();
    let answer = decide(&mut bob, &id, "allow").await;
    assert!(answer.status == StatusCode::FORBIDDEN && answer.text.contains("no longer covers"), "{}", answer.text);
    // A delegate neither sees the request nor decides about it if none of his delegations covers her.
    let others = both.replace("delegates = \"group:dba\"", "delegates = \"person:bob\"");
    stage
        .apply(&others.replace("delegates = [\"person:alice\", \"group:dba\"]", "delegates = \"person:alice\""))
        .await
        .unwrap();
    assert!(!bob.get("/console/access/requests").await.text.contains("eve asks for db"));
    for verdict in ["allow", "refuse"] {
        assert_eq!(decide(&mut bob, &id, verdict).await.status, StatusCode::NOT_FOUND, "{verdict}");
    }
    let mut alice = Browser::logged_in(&stage, "alice").await;
    decide(&mut alice, &id, "allow").await.leads_to();
    eve.grant(&db()).await.unwrap();
}

#[tokio::test]
async fn the_next_receiver_of_a_name_inherits_no_consent() {
    let stage = delegated().await;
    let eve = stage.login("eve").await;
    for removed in [true, false] {
        let id = ask(&eve).await;
        let mut bob = Browser::logged_in(&stage, "bob").await;
        decide(&mut bob, &id, "allow").await.leads_to();
        eve.grant(&db()).await.unwrap();
        let next = if removed {
            // Somebody removes the receiver, and somebody else makes one with the same name and address.
            stage.apply(POLICY).await.unwrap();
            stage.apply(&policy()).await.unwrap();
            db()
        } else {
            // One change gives the name to another host.
            stage.apply(&policy().replace("203.0.113.20", "203.0.113.21")).await.unwrap();
            to("203.0.113.21", 6, 5432)
        };
        assert_eq!(problem(eve.grant(&next).await).r#type, "no_rule", "removed: {removed}");
        until("the consent ends", async || entry(&stage, &id).state == AccessState::Withdrawn).await;
        let page = bob.get("/console/access/requests").await.text;
        assert!(page.contains("No consent is in effect"), "{page}");
    }
}

#[tokio::test]
async fn a_delegate_and_a_person_find_older_requests_on_further_pages() {
    let stage = delegated().await;
    let eve = stage.login("eve").await;
    let id = ask(&eve).await;
    let file = rusqlite::Connection::open(stage.directory.database()).unwrap();
    file.busy_timeout(Duration::from_secs(5)).unwrap();
    let fill = "INSERT INTO access_requests
                    (id, person, receiver, services, reason, asked, state, delegations, generation)
                WITH RECURSIVE nth (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM nth WHERE n < 240)
                SELECT 1000 + n, ?1, 'db', '[\"tcp/5432\"]', 'x', unixepoch() + 10 + n, ?2, '[\"dba\"]', 1 FROM nth";
    file.execute(fill, ["mallory", "open"]).unwrap();
    file.execute(&fill.replace("1000", "2000"), ["eve", "refused"]).unwrap();
    let link = |text: &str, name: &str| {
        let (before, _) = text.split_once(&format!("\">{name}</a>"))?;
        Some(before.rsplit_once("href=\"")?.1.replace("&amp;", "&"))
    };
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let mut path = "/console/access/requests".to_owned();
    for page in 1..=3 {
        let text = bob.get(&path).await.text;
        assert_eq!(text.contains("eve asks for db"), page == 3, "page {page}");
        assert_eq!(text.contains("First page"), page > 1, "page {page}");
        match link(&text, "Older requests") {
            Some(next) => path = next,
            None => assert_eq!(page, 3),
        }
    }
    assert_eq!(bob.get("/console/access/requests?before=x").await.status, StatusCode::BAD_REQUEST);
    // The person's own list has pages, too.
    let mut own = Browser::logged_in(&stage, "eve").await;
    let text = own.get("/console/access").await.text;
    assert!(link(&text, "Older requests").is_some() && !text.contains("the invoices"), "{text}");
    let (mut list, mut ids) = (eve.access().await.unwrap(), Vec::new());
    loop {
        ids.extend(list.requests.into_iter().map(|request| request.id));
        let Some(next) = list.next else { break };
        list = eve.access_before(&next).await.unwrap();
    }
    assert_eq!((ids.len(), ids.last()), (241, Some(&id)));
    assert!(eve.access_before("1-1").await.is_err() && eve.access_before("x&y").await.is_err());
}

#[tokio::test]
async fn an_operator_withdraws_all_that_a_person_has_given() {
    let stage = delegated().await;
    let (eve, alice) = (stage.login("eve").await, stage.login("alice").await);
    let mut heard = events(&eve).await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    for person in [&eve, &alice] {
        let id = ask(person).await;
        decide(&mut bob, &id, "allow").await.leads_to();
    }
    let grant = eve.grant(&db()).await.unwrap();
    let which = admin::Withdrawn::GivenBy("bob".into());
    assert_eq!(admin::withdraw_access(&stage.directory, &which).await.unwrap().0, 2);
    assert_eq!(revoked(&mut heard).await, [handle(&grant)]);
    assert_eq!(problem(alice.grant(&db()).await).r#type, "no_rule");
    assert_eq!(admin::withdraw_access(&stage.directory, &which).await.unwrap().0, 0);
}

#[tokio::test]
async fn a_replay_knows_the_consents_of_the_time() {
    let stage = delegated().await;
    let eve = stage.login("eve").await;
    let id = ask(&eve).await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    decide(&mut bob, &id, "allow").await.leads_to();
    eve.grant(&db()).await.unwrap();
    eve.withdraw_access(&id).await.unwrap();
    let replay = |text: &str| {
        let policy = engine::policy::Policy::parse(text, 3600).unwrap();
        let policy = engine::policy::Compiled::new(policy).unwrap();
        authority::policy::replay::Replay::of(&policy, &stage.database(), 0).unwrap()
    };
    let same = replay(&policy());
    assert_eq!((same.grants, same.refused.len()), (1, 0));
    let narrowed = replay(&policy().replace("services = \"tcp/5432\"", "services = \"tcp/22\""));
    assert_eq!(narrowed.refused.len(), 1);
}

#[tokio::test]
async fn a_wrong_time_is_kept_with_the_error_beside_it() {
    let stage = delegated().await;
    let mut eve = Browser::logged_in(&stage, "eve").await;
    let fields = [("receiver", "db"), ("services", ""), ("for", "\"><b>"), ("reason", "why")];
    let answer = eve.submit("/console/access", "/console/access", &fields).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    for kept in ["id=\"ask-for-fault\"", "value=\"&quot;&gt;&lt;b&gt;\"", "value=\"why\""] {
        assert!(answer.text.contains(kept), "{kept}: {}", answer.text);
    }
    let fields = [("receiver", "db"), ("services", "tcp/5432"), ("for", "3d"), ("reason", "<i>why</i>")];
    let answer = eve.submit("/console/access", "/console/access", &fields).await;
    assert_eq!(answer.leads_to(), "/console/access?done=access-asked");
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let page = bob.get("/console/access/requests").await.text;
    assert!(page.contains("&lt;i&gt;why") && page.contains("value=\"1d\""), "the most that is delegated: {page}");
}
