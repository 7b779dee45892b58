//! The pages for administrators: other users cannot open them, and their actions have the same effect as the commands.

use super::pages::hidden;
use super::{Answer, Browser, stage};
use crate::stage::{PASSWORD, POLICY, Stage, ended, events, git, handle, holder_of, login, revoked};
use api::{DropCount, Login, Report, ReportedFlow, SealedFlow, VerifierState};
use authority::storage::AuditEvent;
use reqwest::StatusCode;
use std::time::{Duration, Instant};

/// All pages, each with text that it must contain.
const PAGES: [(&str, &str); 9] = [
    ("/console/admin", "Overview"),
    ("/console/admin/drops?span=day", "Drops"),
    ("/console/admin/flows", "Live flows"),
    ("/console/admin/people", "People"),
    ("/console/admin/people/bob", "bob"),
    ("/console/admin/audit", "Audit"),
    ("/console/admin/policy", "Policy"),
    ("/console/admin/policy/draft", "Draft of a policy"),
    ("/console/admin/policy/versions/1", "Version 1 of the policy"),
];
/// The pages that are downloads.
const FILES: [&str; 2] = ["/console/admin/audit.jsonl", "/console/admin/policy/versions/1/policy.toml"];
/// All actions, each with the fields of its form.
const ACTS: [(&str, &[(&str, &str)]); 5] = [
    ("/console/admin/revoke", &[("person", "bob")]),
    ("/console/admin/audit/verify", &[]),
    ("/console/admin/policy/draft", &[("text", ""), ("seen", "1")]),
    ("/console/admin/policy/apply", &[("text", ""), ("seen", "1")]),
    ("/console/admin/policy/rollback", &[("version", "1"), ("seen", "1")]),
];

fn report(admitted: u64, no_token: u64, flows: Vec<ReportedFlow>) -> Report {
    let drops = vec![DropCount { reason: 1, packets: no_token }, DropCount { reason: 8, packets: 3 * no_token }];
    let (state, keys_until) = (VerifierState::Protecting, Some(authority::now() + 3600));
    Report { state, keys_until, admitted, passed: 0, drops, live: flows.len() as u64, flows }
}

fn flow(handle: u64, client_port: u16) -> ReportedFlow {
    let [client, server] = ["198.51.100.7", "203.0.113.10"].map(|text| text.parse().unwrap());
    let (since, seen) = (authority::now(), authority::now());
    let handle = Some(handle);
    ReportedFlow {
        client,
        client_port,
        server,
        server_port: 22,
        protocol: 6,
        handle,
        since,
        seen,
        packets: 3,
        bytes: 2048,
        sealed: None,
    }
}

/// Returns the flow as one inside a sealed tunnel.
fn sealed(flow: ReportedFlow) -> ReportedFlow {
    let (treatment, suite) = (Some("encrypt".to_owned()), Some("aes-128-gcm".to_owned()));
    ReportedFlow { sealed: Some(SealedFlow { treatment, suite, ratio: Some(250) }), ..flow }
}

fn shows(page: &Answer, texts: &[&str]) {
    assert!(page.status.is_success(), "{}", page.text);
    for text in texts {
        assert!(page.text.contains(text), "{text}: {}", page.text);
    }
}

async fn administrator(stage: &Stage) -> Browser {
    Browser::logged_in(stage, "alice").await
}

#[tokio::test]
async fn the_pages_are_for_administrators_only() {
    let stage = stage().await;
    let (mut alice, mut eve) = (administrator(&stage).await, Browser::logged_in(&stage, "eve").await);
    let mut stranger = Browser::of(&stage);
    for (path, title) in PAGES {
        shows(&alice.get(path).await, &[&format!("<h1>{title}</h1>"), "aria-current=\"page\""]);
    }
    for path in PAGES.iter().map(|(path, _)| *path).chain(FILES) {
        let refused = eve.get(path).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}: {}", refused.text);
        assert!(!refused.text.contains("edge-1") && !refused.text.contains("bob"), "{path}: {}", refused.text);
        assert!(stranger.get(path).await.leads_to().starts_with("/console/login?to="), "{path}");
    }
    assert!(!eve.get("/console").await.text.contains("/console/admin"), "not even a link");
}

#[tokio::test]
async fn each_area_has_a_navigation_of_its_own() {
    let stage = stage().await;
    let mut alice = administrator(&stage).await;
    for (path, own, other) in [
        ("/console/devices", "\"/console/grants\"", "\"/console/admin/flows\""),
        ("/console/admin/drops", "\"/console/admin/flows\"", "\"/console/grants\""),
    ] {
        let page = alice.get(path).await;
        shows(&page, &[own, "\"/console\"", "\"/console/admin\"", "<details class=\"menu\">"]);
        assert!(!page.text.contains(other), "{path} leads to a page of the other area: {}", page.text);
    }
}

#[tokio::test]
async fn the_acts_are_for_administrators_and_from_their_forms_only() {
    let stage = stage().await;
    let (mut alice, mut eve) = (administrator(&stage).await, Browser::logged_in(&stage, "eve").await);
    let before = stage.database().audit_heads().unwrap();
    let (own, foreign) = (alice.get("/console").await.token(), eve.get("/console").await.token());
    for (path, fields) in ACTS {
        let refused = eve.post(path, &[&[("form", foreign.as_str())], fields].concat()).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}: {}", refused.text);
        for token in [None, Some(foreign.as_str()), Some("")] {
            let token: Vec<_> = token.map(|token| ("form", token)).into_iter().collect();
            let refused = alice.post(path, &[&token, fields].concat()).await;
            assert!(refused.status.is_client_error(), "{path}: {}", refused.text);
        }
        let fields = [&[("form", own.as_str())], fields].concat();
        let elsewhere = [("origin", "https://evil.example.org"), ("sec-fetch-site", "cross-site")];
        assert!(alice.post_from(&elsewhere, path, &fields).await.status.is_client_error(), "{path}");
        assert!(!alice.get(path).await.text.contains("revoked"), "reading acts on nothing");
    }
    assert_eq!(stage.database().audit_heads().unwrap(), before, "and nothing came of it");
}

#[tokio::test]
async fn what_verifiers_report_is_shown() {
    let stage = stage().await;
    let verifier = stage.verifier("edge-1").await;
    stage.verifier("edge-2").await;
    let mut alice = administrator(&stage).await;
    shows(&alice.get("/console/admin").await, &["edge-1", "has not reported since"]);
    verifier.report(&report(1, 10, Vec::new())).await.unwrap();
    verifier.report(&report(4, 17, vec![flow(7, 4711), sealed(flow(8, 4712))])).await.unwrap();
    let overview = alice.get("/console/admin").await;
    shows(&overview, &["protecting", "1 of 2 verifiers needs attention", ">2<", "28 packets dropped"]);
    shows(&overview, &["has not reported since", "an unknown grant", "behind edge-1", "2 flows"]);
    let flows = alice.get("/console/admin/flows").await;
    shows(&flows, &["encrypt, aes-128-gcm, 2.5:1"]);
    assert_eq!(flows.text.matches("aes-128-gcm").count(), 1, "the other flow is outside: {}", flows.text);
    for span in ["quarter", "hour", "day"] {
        let page = alice.get(&format!("/console/admin/drops?span={span}")).await;
        shows(&page, &["<svg", "role=\"img\"", "28 packets dropped and 3 flows admitted"]);
        // The most frequent reason comes first, in the legend and in the tables. 21 of 28 packets are 75 %.
        let (bad_tag, no_token) = (page.text.find("bad_tag").unwrap(), page.text.find("no_token").unwrap());
        assert!(bad_tag < no_token && page.text.contains("75 %"), "{}", page.text);
    }
    let of = alice.get("/console/admin/drops?verifier=edge-2").await;
    shows(&of, &["No packet dropped", "No packet was dropped"]);
    assert_eq!(alice.get("/console/admin/drops?verifier=edge-3").await.status, StatusCode::NOT_FOUND);
    assert_eq!(alice.get("/console/admin/drops?span=year").await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn the_front_page_says_what_to_do_while_there_is_nothing_to_see() {
    let stage = stage().await;
    let mut alice = administrator(&stage).await;
    shows(&alice.get("/console/admin").await, &["vouchsafe authority verifier add ID", "There is no live flow"]);
    stage.verifier("edge-1").await;
    let page = alice.get("/console/admin").await;
    assert!(
        !page.text.contains("Next steps") && page.text.contains("1 of 1 verifier needs attention"),
        "{}",
        page.text
    );
}

#[tokio::test]
async fn the_front_page_stays_small_and_quick_with_10_000_flows() {
    let stage = stage().await;
    let verifier = stage.verifier("edge-1").await;
    let mut alice = administrator(&stage).await;
    let flows = (0..256).map(|nth| flow(nth, 4000 + nth as u16)).collect();
    verifier.report(&Report { live: 10_000, ..report(0, 0, flows) }).await.unwrap();
    let began = Instant::now();
    let page = alice.get("/console/admin").await;
    shows(&page, &["10\u{202f}000", "shows the latest 256 of 10\u{202f}000 live flows", "256 flows"]);
    println!("{} bytes after {:?}", page.text.len(), began.elapsed());
    assert!(page.text.len() < 100_000, "{}", page.text.len());
}

#[tokio::test]
async fn a_flow_is_named_by_the_grant_that_was_given_for_its_verifier() {
    let stage = stage().await;
    let (one, other) = (stage.verifier("edge-1").await, stage.verifier("edge-2").await);
    let grant = stage.login("bob").await;
    let grant = grant.grant(&crate::stage::to("203.0.113.70", 17, 53)).await.unwrap();
    let mut alice = administrator(&stage).await;
    // The grant is for edge-2: the authority does not trust edge-1's statements about it.
    one.report(&report(0, 0, vec![flow(handle(&grant), 4711)])).await.unwrap();
    let page = alice.get("/console/admin/flows").await;
    shows(&page, &["198.51.100.7:4711", "a grant unknown to the authority"]);
    assert!(!page.text.contains("/console/admin/people/bob"), "{}", page.text);
    other.report(&report(0, 0, vec![flow(handle(&grant), 4712)])).await.unwrap();
    shows(&alice.get("/console/admin/flows").await, &["198.51.100.7:4712", "/console/admin/people/bob", "lab"]);
    shows(&alice.get("/console/admin").await, &["Live flows from people and services", "1 from bob to lab", "1 flow<"]);
    let of_bob = alice.get("/console/admin/flows?person=bob").await;
    assert!(of_bob.text.contains(":4712") && !of_bob.text.contains(":4711"), "{}", of_bob.text);
    let of_one = alice.get("/console/admin/flows?verifier=edge-1").await;
    assert!(of_one.text.contains(":4711") && !of_one.text.contains(":4712"), "{}", of_one.text);
}

#[tokio::test]
async fn a_grant_a_session_a_device_and_a_person_are_revoked_after_a_question() {
    let stage = stage().await;
    let verifier = stage.verifier("edge-1").await;
    let mut guard = events(&verifier).await;
    let mut alice = administrator(&stage).await;
    for what in ["grant", "session", "device", "person"] {
        let holder = stage.login("eve").await;
        stage.apply(&POLICY.replace("[\"alice\", \"bob\"]", "[\"alice\", \"eve\"]")).await.unwrap();
        let grant = holder.grant(&git()).await.unwrap();
        let number = format!("{:016x}", handle(&grant));
        let page = alice.get("/console/admin/people/eve").await;
        let (_, rest) = page.text.split_once("/console/admin/revoke?session=").expect("a session to end");
        let (session, _) = rest.split_once('"').unwrap();
        let fields: &[(&str, &str)] = match what {
            "grant" => &[("grant", &number)],
            "session" => &[("session", session)],
            "device" => &[("person", "eve"), ("device", "laptop")],
            _ => &[("person", "eve")],
        };
        let query: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let question = format!("/console/admin/revoke?{}", query.join("&"));
        shows(&alice.get(&question).await, &["This ends", &number, "1 live grant would end"]);
        assert!(holder.grant(&git()).await.is_ok(), "asking ends nothing");
        let answer = alice.submit(&question, "/console/admin/revoke", fields).await;
        assert_eq!(answer.leads_to(), "/console/admin/people/eve?done=revoked");
        if what == "grant" {
            assert_eq!(revoked(&mut guard).await, [handle(&grant)]);
        } else {
            assert_eq!(ended(&mut guard).await, [holder_of(&grant, &verifier).await], "{what}");
        }
        assert_eq!(holder.destinations().await.is_ok(), what == "grant", "{what}");
        let trail = stage.database().audit_entries(None, 1).unwrap();
        assert_eq!((trail[0].event.as_str(), trail[0].operator.as_deref()), ("revoked", Some("alice (console)")));
        if what == "grant" {
            holder.logout().await.unwrap();
            ended(&mut guard).await;
        }
    }
    for nothing in ["person=mallory", "person=eve&device=phone", "grant=0000000000000007"] {
        assert_eq!(alice.get(&format!("/console/admin/revoke?{nothing}")).await.status, StatusCode::NOT_FOUND);
    }
    for wrong in ["", "grant=7", "device=laptop", "grant=0000000000000007&person=eve", "session=00"] {
        assert_eq!(alice.get(&format!("/console/admin/revoke?{wrong}")).await.status, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn a_draft_is_judged_before_it_is_applied_and_only_over_what_was_seen() {
    let stage = stage().await;
    let mut alice = administrator(&stage).await;
    let editor = "/console/admin/policy/draft";
    let judged = async |alice: &mut Browser, text: &str, seen: &str| {
        alice.submit(editor, editor, &[("text", text), ("seen", seen)]).await
    };
    let wrong = judged(&mut alice, &POLICY.replace("action = \"allow\"", "action = \"alow\""), "1").await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(wrong.text.contains("Line 19:") && !wrong.text.contains("/policy/apply"), "{}", wrong.text);
    assert!(wrong.text.contains("id=\"text-fault\">Line 19: ") && wrong.text.contains("alow"), "{}", wrong.text);
    let test = "\n[[tests]]\nwho = \"person:eve\"\nto = \"203.0.113.10 tcp/22\"\nexpect = \"allow\"\n";
    let failing = judged(&mut alice, &format!("{POLICY}{test}"), "1").await;
    assert_eq!(failing.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(failing.text.contains("Of 1 test of its own, 1 fails"), "{}", failing.text);
    let many = judged(&mut alice, &format!("{POLICY}{}", test.repeat(25)), "1").await;
    assert!(
        many.text.contains("Of 25 tests of its own, 25 fail") && many.text.contains("And 5 more: "),
        "{}",
        many.text
    );
    assert_eq!(many.text.matches("expected allow").count(), 21, "{}", many.text);

    let draft = POLICY.replace("[\"alice\", \"bob\"]", "[\"alice\", \"bob\", \"eve\"]") + test;
    let carriage_returns = draft.replace('\n', "\r\n");
    let good = judged(&mut alice, &carriage_returns, "1").await;
    shows(&good, &["1 test passed", "gain", "person:eve", "/console/admin/policy/apply"]);
    assert_eq!(stage.database().policies().unwrap().len(), 1, "looking changes nothing");
    let apply = [("text", carriage_returns.as_str()), ("seen", "1")];
    let answer = alice.submit(editor, "/console/admin/policy/apply", &apply).await;
    assert_eq!(answer.leads_to(), "/console/admin/policy?done=applied");
    assert!(stage.login("eve").await.grant(&git()).await.is_ok());
    assert_eq!(std::fs::read_to_string(stage.directory.policy()).unwrap(), draft);
    let versions = stage.database().policies().unwrap();
    assert_eq!((versions[0].version, versions[0].operator.as_deref()), (2, Some("alice (console)")));

    // Another administrator put a policy in force first, so the policy in force is not the one that was reviewed.
    let other = POLICY.replace("staff may use git", "they may");
    let late = alice.submit(editor, "/console/admin/policy/apply", &[("text", &other), ("seen", "1")]).await;
    assert_eq!(late.status, StatusCode::CONFLICT);
    assert!(late.text.contains("Version 2 was put in force meanwhile"), "{}", late.text);
    assert_eq!(std::fs::read_to_string(stage.directory.policy()).unwrap(), draft);
    assert_eq!(hidden(&late, "seen"), "2", "now it is compared with that");
    let rollback = [("version", "1"), ("seen", "1")];
    let late = alice.submit(editor, "/console/admin/policy/rollback", &rollback).await;
    assert_eq!(late.status, StatusCode::CONFLICT);
    let rollback = [("version", "1"), ("seen", "2")];
    alice.submit("/console/admin/policy/versions/1", "/console/admin/policy/rollback", &rollback).await.leads_to();
    assert_eq!(std::fs::read_to_string(stage.directory.policy()).unwrap(), POLICY);
    shows(&alice.get("/console/admin/policy/versions").await, &["rollback to 1", "Version 3"]);
    let file = alice.get("/console/admin/policy/versions/2/policy.toml").await;
    assert_eq!(
        (file.text.as_str(), file.headers["content-type"].to_str().unwrap()),
        (draft.as_str(), "application/toml")
    );
    assert_eq!(alice.get("/console/admin/policy/versions/9").await.status, StatusCode::NOT_FOUND);
    std::fs::write(stage.directory.policy(), format!("{POLICY}# later\n")).unwrap();
    shows(&alice.get("/console/admin/policy").await, &["was edited since"]);
}

#[tokio::test]
async fn the_trail_is_searched_by_person_act_and_day_and_handed_out() {
    let stage = stage().await;
    stage.login("bob").await.logout().await.unwrap();
    let mut alice = administrator(&stage).await;
    alice.submit("/console/admin/people", "/console/admin/revoke", &[("person", "eve")]).await.leads_to();
    let lines = async |alice: &mut Browser, query: &str| {
        let answer = alice.get(&format!("/console/admin/audit.jsonl?{query}")).await;
        assert_eq!(answer.headers["content-type"], "application/jsonl");
        let entries = answer.text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        entries.map(|entry| entry["event"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(lines(&mut alice, "person=bob").await, ["logout", "login", "account_added"]);
    assert_eq!(lines(&mut alice, "person=bob&event=login").await, ["login"]);
    // Events caused by a person also match the person.
    assert_eq!(lines(&mut alice, "person=alice").await, ["revoked", "console_login", "account_added"]);
    assert!(lines(&mut alice, "to=2020-01-01").await.is_empty());
    let all = lines(&mut alice, "from=2020-01-01&to=&event=").await;
    assert_eq!(all.len() as u64, entries(&stage));
    shows(&alice.get("/console/admin/audit?person=bob&event=login").await, &[">login</td>", "acts:"]);
    let narrow = "class=\"long\" data-label=";
    shows(
        &alice.get("/console/admin/audit").await,
        &["Who", "From", "Details"].map(|name| format!("{narrow}\"{name}\"")).each_ref().map(String::as_str),
    );
    let wrong = alice.get("/console/admin/audit?person=bob&from=yesterday").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    for kept in ["id=\"from-fault\"", "value=\"yesterday\"", "value=\"bob\""] {
        assert!(wrong.text.contains(kept), "{kept}: {}", wrong.text);
    }
    let whole = alice.submit("/console/admin/audit", "/console/admin/audit/verify", &[]).await;
    shows(&whole, &["Complete and unchanged: "]);
}

fn entries(stage: &Stage) -> u64 {
    let mut count = 0;
    let count_one = |_| {
        count += 1;
        Ok(())
    };
    stage.database().each_audit_entry(0, count_one).unwrap();
    count
}

#[tokio::test]
async fn the_trail_is_read_page_by_page() {
    let stage = stage().await;
    let mut database = stage.database();
    for nth in 0..120 {
        let event = AuditEvent::new("granted").person("bob").detail(nth.to_string());
        database.audit(&event, authority::now()).unwrap();
    }
    let mut alice = administrator(&stage).await;
    let first = alice.get("/console/admin/audit?event=granted").await;
    assert_eq!(first.text.matches(">granted</td>").count(), 100);
    let (_, rest) = first.text.split_once("/console/admin/audit?event=granted&amp;before=").expect("a page before");
    let (before, _) = rest.split_once('"').unwrap();
    let second = alice.get(&format!("/console/admin/audit?event=granted&before={before}")).await;
    assert_eq!(second.text.matches(">granted</td>").count(), 20);
    assert!(!second.text.contains("Older entries"));
}

#[tokio::test]
async fn a_long_trail_is_handed_out_whole() {
    let stage = stage().await;
    let mut alice = administrator(&stage).await;
    let mut database = stage.database();
    for nth in 0..600 {
        database.audit(&AuditEvent::new("login").detail(nth.to_string()), authority::now()).unwrap();
    }
    let answer = alice.get("/console/admin/audit.jsonl").await;
    let lines = answer.text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let numbers: Vec<_> = lines.map(|entry| entry["id"].as_i64().unwrap()).collect();
    assert!(numbers.len() > 600 && numbers.is_sorted_by(|one, next| one > next), "{numbers:?}");
    assert_eq!(numbers.len() as u64, entries(&stage));
}

#[tokio::test]
async fn two_downloads_of_the_trail_go_on_at_a_time() {
    const TRAIL: &str = "/console/admin/audit.jsonl";
    let stage = stage().await;
    let alice = administrator(&stage).await;
    let mut database = stage.database();
    // The trail is longer than all buffers on the way, so that a download that is not read remains open.
    for _ in 0..600 {
        database.audit(&AuditEvent::new("login").detail("x".repeat(1 << 16)), authority::now()).unwrap();
    }
    let (first, second) = (alice.begin(TRAIL).await, alice.begin(TRAIL).await);
    assert_eq!([first.status(), second.status()], [StatusCode::OK; 2]);
    let refused = alice.begin(TRAIL).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE, "{}", refused.text().await.unwrap());
    // A client that disconnects makes room, and one that stays gets the whole file.
    drop(first);
    let deadline = Instant::now() + Duration::from_secs(10);
    let third = loop {
        let again = alice.begin(TRAIL).await;
        if again.status().is_success() {
            break again;
        }
        assert!(Instant::now() < deadline, "no room: {}", again.text().await.unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    for download in [second, third] {
        let lines = download.text().await.unwrap().lines().count();
        assert_eq!(lines as u64, entries(&stage));
    }
}

#[tokio::test]
async fn what_people_call_things_is_text() {
    const HOSTILE: &str = "\"><script>alert(1)</script>";
    let stage = stage().await;
    let device = Login { device: HOSTILE.into(), ..login("bob", PASSWORD, None) };
    stage.client().login(&device).await.unwrap();
    let mut alice = administrator(&stage).await;
    let question = "/console/admin/revoke?person=bob&device=%22%3E%3Cscript%3Ealert%281%29%3C%2Fscript%3E";
    let draft = "/console/admin/policy/draft";
    let text = "</textarea><script>alert(1)</script>";
    let pages = [
        alice.get("/console/admin/people").await,
        alice.get("/console/admin/people?q=%3Cscript%3Ealert(1)").await,
        alice.get("/console/admin/people/bob").await,
        alice.get("/console/admin/audit?person=%22%3E%3Cscript%3Ealert(1)&event=%22%3E%3Cscript%3Ealert(1)").await,
        alice.get("/console/admin/flows?person=%22%3E%3Cscript%3Ealert(1)").await,
        alice.get(question).await,
        alice.submit(draft, draft, &[("text", text), ("seen", "1")]).await,
    ];
    for page in pages {
        assert!(page.text.contains("&lt;script&gt;alert(1)") && !page.text.contains("<script>alert"), "{}", page.text);
    }
    let found = alice.get("/console/admin/people?q=%3Cscript%3E").await;
    assert!(found.text.contains("/people/bob") && !found.text.contains("/people/eve"), "{}", found.text);
}
