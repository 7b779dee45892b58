//! Access without a request: what delegates and operators can give, and attempts to give more. Also the way from a
//! denial to a request.

use super::access::{db, decide, delegated, entry, policy, until};
use super::{Answer, Browser};
use crate::stage::{Stage, events, handle, problem, revoked, to};
use authority::admin::consents::{self, Giving, Term};
use authority::admin::{self, Withdrawn};
use authority::storage::AccessState;
use reqwest::StatusCode;

/// A policy in which consents can also be given to a group and a tag.
fn wide() -> String {
    let groups = "dba = [\"bob\"]\nfriends = [\"eve\", \"bob\"]";
    let text = policy().replace("dba = [\"bob\"]", groups);
    text.replace(
        "who = [\"person:eve\", \"person:alice\"]",
        "who = [\"person:alice\", \"group:friends\", \"tag:managed\"]",
    )
}

/// Lets a delegate give access by the form of the page.
async fn give(browser: &mut Browser, who: &str, services: &str, time: &str) -> Answer {
    let page = browser.get("/console/access/requests").await;
    post(browser, &page, who, services, time).await
}

/// Sends the form of a page that was loaded before.
async fn post(browser: &mut Browser, page: &Answer, who: &str, services: &str, time: &str) -> Answer {
    let fields = [("who", who), ("receiver", "db"), ("services", services), ("for", time), ("note", "ticket 4711")];
    send(browser, page, &fields).await
}

async fn send(browser: &mut Browser, page: &Answer, fields: &[(&str, &str)]) -> Answer {
    let (token, version) = (page.token(), version(page));
    let fields = [&[("form", token.as_str()), ("version", version.as_str())], fields].concat();
    browser.post("/console/access/requests/give", &fields).await
}

/// Returns the version of the policy in the form of the page.
fn version(page: &Answer) -> String {
    let (_, rest) = page.text.split_once("name=\"version\" value=\"").expect("a page with the form");
    rest.split('"').next().unwrap().to_owned()
}

/// Returns the numbers of the consents in effect, oldest first.
fn in_effect(stage: &Stage) -> Vec<(String, String)> {
    let entries = stage.database().access_requests(false).unwrap().into_iter();
    entries.filter(|entry| entry.state == AccessState::Allowed).map(|of| (of.id.to_string(), of.person)).collect()
}

fn giving(holder: &str) -> Giving {
    Giving {
        holder: holder.into(),
        receiver: "db".into(),
        services: Vec::new(),
        term: Term::For(3600),
        note: "ticket 4711".into(),
    }
}

/// Gives consents as an operator does. Returns the message if that fails.
async fn by_operator(stage: &Stage, givings: Vec<Giving>) -> Result<Vec<String>, String> {
    let place = |nth: usize| format!("line {}", nth + 1);
    let given = consents::give(&stage.directory, givings, false, place).await;
    given.map(|given| given.into_iter().map(|one| one.id).collect()).map_err(|error| format!("{error:#}"))
}

#[tokio::test]
async fn a_delegate_gives_access_that_is_used_and_withdrawn() {
    let mut stage = delegated().await;
    stage.restart().await;
    let eve = stage.login("eve").await;
    let mut heard = events(&eve).await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let page = bob.get("/console/access/requests").await.text;
    assert!(page.contains("Give access without a request") && page.contains("db (tcp/5432, at most 1d)"), "{page}");
    assert_eq!(give(&mut bob, "eve", "", "8h").await.leads_to(), "/console/access/requests?done=access-given");
    assert_eq!(crate::stage::next(&mut heard).await, api::Event::Policy);
    let grant = eve.grant(&db()).await.unwrap();
    let [(id, person)] = &in_effect(&stage)[..] else { panic!() };
    assert_eq!(person, "eve");
    assert!(grant.rule.ends_with(&format!(" delegation dba, consent {id}")), "{}", grant.rule);
    assert_eq!(
        problem(eve.grant(&to("203.0.113.20", 6, 22)).await).r#type,
        "no_rule",
        "a service that is not delegated"
    );
    // The person sees it among their own requests, and can still ask as often as before.
    let own = &eve.access().await.unwrap().requests[0];
    assert_eq!(
        (own.state.as_str(), own.by.as_deref(), own.note.as_deref()),
        ("allowed", Some("bob"), Some("ticket 4711"))
    );
    // There is nothing to decide about it.
    assert_eq!(decide(&mut bob, id, "refuse").await.status, StatusCode::CONFLICT);
    let one = bob.get(&format!("/console/access/requests/{id}")).await;
    assert!(one.status.is_success() && one.text.contains("allowed by bob"), "{}", one.text);
    let fields = [("id", id.as_str())];
    let answer = bob.submit("/console/access/requests", "/console/access/requests/withdraw", &fields).await;
    assert_eq!(answer.leads_to(), "/console/access/requests?done=consent-withdrawn");
    assert_eq!(revoked(&mut heard).await, [handle(&grant)]);
    assert_eq!(problem(eve.grant(&db()).await).r#type, "no_rule");
    let trail = stage.database().audit_entries(Some("eve"), 100).unwrap();
    let allowed = trail.iter().find(|entry| entry.event == "access_allowed").unwrap();
    assert_eq!(allowed.operator.as_deref(), Some("bob (console)"));
    assert!(allowed.detail.contains("without a request; ticket 4711"), "{}", allowed.detail);
    assert!(allowed.rule.as_ref().unwrap().ends_with("delegation dba"));
}

#[tokio::test]
async fn a_delegate_gives_neither_more_than_the_delegation_nor_to_others_nor_to_themselves() {
    let stage = delegated().await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let refused = "no delegation lets you give";
    for (who, services, time, status, said) in [
        ("eve", "tcp/22", "1h", 403, refused),
        ("eve", "all", "1h", 403, refused),
        ("eve", "ssh", "1h", 403, "not a protocol"),
        ("eve", "", "25h", 403, "allows access for at most 1d"),
        ("eve", "", "400d", 400, "from 1m to 366d"),
        ("eve", "", "1s", 400, "from 1m to 366d"),
        ("eve", "", "soon", 400, "write a time"),
        ("bob", "", "1h", 403, "nobody decides about themselves"),
        ("carol", "", "1h", 403, refused),
        // The answer does not say whether there is such a person, group or tag.
        ("mallory", "", "1h", 403, refused),
        ("group:staff", "", "1h", 403, refused),
        ("group:nothing", "", "1h", 403, refused),
        ("tag:managed", "", "1h", 403, refused),
        ("everyone", "", "1h", 403, refused),
        ("address:192.0.2.7", "", "1h", 400, "access can't be given to"),
        ("\"><b>", "", "1h", 400, "access can't be given to"),
    ] {
        let answer = give(&mut bob, who, services, time).await;
        assert_eq!(answer.status.as_u16(), status, "{who} {services} {time}: {}", answer.text);
        assert!(
            answer.text.contains(said) || answer.text.to_lowercase().contains(said),
            "{who} {time}: {}",
            answer.text
        );
        assert!(!answer.text.contains("<b>") && answer.text.contains("ticket 4711"), "the fields are kept");
    }
    // Of a receiver that is not bob's, and of one that does not exist.
    for receiver in ["git", "nothing"] {
        let page = bob.get("/console/access/requests").await;
        let fields = [("who", "eve"), ("receiver", receiver), ("services", ""), ("for", "1h"), ("note", "")];
        let answer = send(&mut bob, &page, &fields).await;
        assert!(
            answer.status == StatusCode::FORBIDDEN && answer.text.to_lowercase().contains(refused),
            "{}",
            answer.text
        );
    }
    // eve is no delegate: she has neither the form nor the right.
    let mut eve = Browser::logged_in(&stage, "eve").await;
    assert!(!eve.get("/console/access/requests").await.text.contains("Give access"));
    let token = eve.get("/console/access").await.token();
    let fields = [("who", "alice"), ("receiver", "db"), ("services", ""), ("for", "1h"), ("note", "")];
    let version = version(&bob.get("/console/access/requests").await);
    let fields = [&[("form", token.as_str()), ("version", version.as_str())][..], &fields].concat();
    assert_eq!(eve.post("/console/access/requests/give", &fields).await.status, StatusCode::FORBIDDEN);
    assert!(in_effect(&stage).is_empty());
}

#[tokio::test]
async fn the_form_shows_a_fault_at_the_field_that_has_it() {
    let stage = delegated().await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let (many, long) = (["tcp/22"; 100].join(" "), "x".repeat(501));
    for (who, services, time, note, field) in [
        ("address:192.0.2.7", "", "1h", "", "give-who"),
        ("carol", "", "1h", "", "give-who"),
        ("eve", "ssh", "1h", "", "give-services"),
        ("eve", &many, "1h", "", "give-services"),
        ("eve", "", "soon", "", "give-for"),
        ("eve", "", "400d", "", "give-for"),
        ("eve", "", "25h", "", "give-for"),
        ("eve", "", "1h", &long, "give-note"),
    ] {
        let page = bob.get("/console/access/requests").await;
        let fields = [("who", who), ("receiver", "db"), ("services", services), ("for", time), ("note", note)];
        let answer = send(&mut bob, &page, &fields).await;
        assert_eq!(faulty(&answer), [field], "{who} {services} {time} {note}: {}", answer.text);
    }
}

/// Returns the ids of the fields that a page shows as faulty.
fn faulty(page: &Answer) -> Vec<&str> {
    let inputs = page.text.split("<input id=\"").skip(1).filter_map(|rest| rest.split_once('>'));
    let faulty = inputs.filter(|(input, _)| input.contains("aria-invalid=\"true\""));
    faulty.filter_map(|(input, _)| input.split('"').next()).collect()
}

#[tokio::test]
async fn forms_of_other_sites_and_of_stale_pages_give_nothing() {
    let stage = delegated().await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let mut attacker = Browser::logged_in(&stage, "eve").await;
    let page = bob.get("/console/access/requests").await;
    let (own, foreign, version) = (page.token(), attacker.get("/console/access").await.token(), version(&page));
    let origin = bob.base.clone();
    let ours = [("origin", origin.as_str()), ("sec-fetch-site", "same-origin")];
    let theirs = [("origin", "https://evil.example.org"), ("sec-fetch-site", "cross-site")];
    let fields = [
        ("version", version.as_str()),
        ("who", "eve"),
        ("receiver", "db"),
        ("services", ""),
        ("for", "1h"),
        ("note", ""),
    ];
    for (from, token) in [(&theirs, own.as_str()), (&ours, foreign.as_str()), (&ours, "")] {
        let fields = [&[("form", token)][..], &fields].concat();
        let answer = bob.post_from(from, "/console/access/requests/give", &fields).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
    }
    // The name on the page means another host by now, about which bob may decide, too.
    stage.apply(&policy().replace("203.0.113.20", "203.0.113.21")).await.unwrap();
    let stale = post(&mut bob, &page, "eve", "", "1h").await;
    assert_eq!(stale.status, StatusCode::CONFLICT, "{}", stale.text);
    assert!(in_effect(&stage).is_empty());
    // bob is no delegate any more.
    let page = bob.get("/console/access/requests").await;
    stage.apply(&policy().replace(", \"group:dba\"", "")).await.unwrap();
    assert_eq!(post(&mut bob, &page, "eve", "", "1h").await.status, StatusCode::CONFLICT);
    assert!(in_effect(&stage).is_empty());
}

#[tokio::test]
async fn a_consent_to_a_group_or_tag_opens_and_ends_for_everybody_there_but_its_author() {
    let stage = delegated().await;
    stage.apply(&wide()).await.unwrap();
    let (eve, bob) = (stage.login("eve").await, stage.login("bob").await);
    let mut heard = events(&eve).await;
    let mut delegate = Browser::logged_in(&stage, "bob").await;
    give(&mut delegate, "group:friends", "tcp/5432", "8h").await.leads_to();
    assert_eq!(crate::stage::next(&mut heard).await, api::Event::Policy);
    let reach = eve.destinations().await.unwrap().destinations;
    assert_eq!(reach.iter().map(|of| of.name.as_str()).collect::<Vec<_>>(), ["db"]);
    let grant = eve.grant(&db()).await.unwrap();
    assert_eq!(problem(bob.grant(&db()).await).r#type, "no_rule", "bob is in the group, and has given the consent");
    // It is nobody's own: a member of the group neither lists nor ends it.
    assert!(eve.access().await.unwrap().requests.is_empty());
    let [(id, holder)] = &in_effect(&stage)[..] else { panic!() };
    assert_eq!(
        (holder.as_str(), problem(eve.withdraw_access(id).await).r#type.as_str()),
        ("group:friends", "not_found")
    );
    let mut other = Browser::logged_in(&stage, "alice").await;
    other.submit("/console/access/requests", "/console/access/requests/withdraw", &[("id", id)]).await.leads_to();
    assert_eq!(revoked(&mut heard).await, [handle(&grant)]);
    assert_eq!(problem(eve.grant(&db()).await).r#type, "no_rule");
    // Devices with a tag, while they have it.
    give(&mut delegate, "tag:managed", "", "8h").await.leads_to();
    assert_eq!(problem(eve.grant(&db()).await).r#type, "no_rule");
    let device = stage.database().devices(Some("eve")).unwrap().remove(0).device;
    admin::tag_device(&stage.directory, "eve", &device, &["managed".to_owned()]).await.unwrap();
    let grant = eve.grant(&db()).await.unwrap();
    admin::tag_device(&stage.directory, "eve", &device, &[]).await.unwrap();
    until("the grant ends with the tag", async || {
        let live = stage.database().live_grants_of("eve", authority::now()).unwrap();
        live.iter().all(|live| live.handle.0 != handle(&grant))
    })
    .await;
    assert_eq!(problem(eve.grant(&db()).await).r#type, "no_rule");
}

#[tokio::test]
async fn a_consent_to_a_group_ends_by_itself_and_its_flows_are_examined() {
    let stage = delegated().await;
    stage.apply(&wide()).await.unwrap();
    let edge = stage.verifier("edge-1").await;
    let eve = stage.login("eve").await;
    let given = by_operator(&stage, vec![giving("group:friends")]).await.unwrap();
    let grant = eve.grant(&db()).await.unwrap();
    assert!(edge.flows_to_cut(&[handle(&grant)]).await.unwrap().is_empty());
    let file = rusqlite::Connection::open(stage.directory.database()).unwrap();
    file.busy_timeout(std::time::Duration::from_secs(5)).unwrap();
    file.execute("UPDATE access_requests SET until = ?1", [authority::now() as i64]).unwrap();
    file.execute("UPDATE consent_changes SET made = made + 1", []).unwrap();
    until("the consent ends", async || entry(&stage, &given[0]).state == AccessState::Expired).await;
    until("its grants end", async || stage.database().live_grants_of("eve", authority::now()).unwrap().is_empty())
        .await;
    assert_eq!(edge.flows_to_cut(&[handle(&grant)]).await.unwrap().len(), 1);
    until("nobody is left unexamined", async || stage.database().unexamined().unwrap().is_empty()).await;
}

#[tokio::test]
async fn an_operator_gives_access_within_a_delegation_all_or_nothing() {
    let stage = delegated().await;
    stage.apply(&wide()).await.unwrap();
    let eve = stage.login("eve").await;
    let long = Giving { term: Term::For(2 * 86_400), ..giving("eve") };
    let past = Giving { term: Term::Until(authority::now() - 1), ..giving("eve") };
    let ssh = Giving { services: vec!["tcp/22".into()], ..giving("eve") };
    let git = Giving { receiver: "git".into(), ..giving("eve") };
    let noted = Giving { note: "a\nb".into(), ..giving("eve") };
    for (wrong, said) in [
        (long, "line 2: the delegation allows access for at most 1d"),
        (past, "line 2: the time must be from 1m to 366d"),
        (ssh, "line 2: no delegation of the policy covers eve"),
        (git, "line 2: no delegation of the policy covers eve, these services and the receiver git"),
        (noted, "line 2: the note must be one line"),
        (giving("mallet"), "line 2: "),
        (giving("group:nothing"), "the policy has no group nothing"),
        (giving("group:staff"), "line 2: no delegation of the policy covers group:staff"),
    ] {
        let refused = by_operator(&stage, vec![giving("eve"), wrong]).await.unwrap_err();
        assert!(refused.contains(said) && refused.ends_with("no consent was given"), "{said}: {refused}");
    }
    assert!(in_effect(&stage).is_empty(), "not even the first one");
    let ids = by_operator(&stage, vec![giving("eve"), giving("group:friends")]).await.unwrap();
    let grant = eve.grant(&db()).await.unwrap();
    // An operator has not decided about themselves, so all of the group have access.
    stage.login("bob").await.grant(&db()).await.unwrap();
    assert_eq!(in_effect(&stage).len(), 2);
    let trail = stage.database().audit_entries(Some("eve"), 100).unwrap();
    let allowed = trail.iter().find(|entry| entry.event == "access_allowed").unwrap();
    assert!(allowed.operator.as_ref().unwrap().starts_with("uid ") && allowed.detail.starts_with(&ids[0]));
    // The delegation bounds it later, too.
    let mut heard = events(&eve).await;
    stage.apply(&wide().replace(", \"group:friends\"", "")).await.unwrap();
    assert_eq!(revoked(&mut heard).await, [handle(&grant)]);
    for id in &ids {
        let which = Withdrawn::One(id.parse().unwrap());
        assert_eq!(admin::withdraw_access(&stage.directory, &which).await.unwrap().0, 1);
    }
    assert!(
        by_operator(&stage, Vec::new()).await.is_err() && by_operator(&stage, vec![giving("eve"); 501]).await.is_err()
    );
}

#[tokio::test]
async fn the_next_owner_of_a_name_inherits_no_consent_that_was_given() {
    let stage = delegated().await;
    by_operator(&stage, vec![giving("eve")]).await.unwrap();
    stage.login("eve").await.grant(&db()).await.unwrap();
    admin::remove_account(&stage.directory, "eve").await.unwrap();
    let refused = by_operator(&stage, vec![giving("eve")]).await.unwrap_err();
    assert!(refused.contains("there is no account eve"), "{refused}");
    admin::add_account(&stage.directory, "eve", crate::stage::PASSWORD, false).await.unwrap();
    assert_eq!(problem(stage.login("eve").await.grant(&db()).await).r#type, "no_rule");
}

#[tokio::test]
async fn a_replay_knows_a_consent_that_was_given() {
    let stage = delegated().await;
    stage.apply(&wide()).await.unwrap();
    let ids = by_operator(&stage, vec![giving("group:friends")]).await.unwrap();
    let eve = stage.login("eve").await;
    eve.grant(&db()).await.unwrap();
    admin::withdraw_access(&stage.directory, &Withdrawn::One(ids[0].parse().unwrap())).await.unwrap();
    let replay = |text: &str| {
        let policy = engine::policy::Policy::parse(text, 3600).unwrap();
        let policy = engine::policy::Compiled::new(policy).unwrap();
        authority::policy::replay::Replay::of(&policy, &stage.database(), 0).unwrap()
    };
    assert_eq!((replay(&wide()).grants, replay(&wide()).refused.len()), (1, 0));
    assert_eq!(replay(&wide().replace("friends = [\"eve\", \"bob\"]", "friends = []")).refused.len(), 1);
}

#[tokio::test]
async fn a_denial_leads_to_a_request_if_there_is_a_delegation_and_reveals_nothing_else() {
    let stage = delegated().await;
    let (eve, bob) = (stage.login("eve").await, stage.login("bob").await);
    let denied = problem(eve.grant(&db()).await);
    assert!(denied.title.ends_with("run `vouchsafe access ask db --service tcp/5432`"), "{}", denied.title);
    for (person, place) in [(&bob, db()), (&eve, to("203.0.113.20", 6, 22)), (&eve, to("198.51.100.1", 6, 5432))] {
        let denied = problem(person.grant(&place).await);
        assert!(!denied.title.contains("access ask"), "{}", denied.title);
    }
    assert_eq!(eve.access().await.unwrap().requestable[0].addresses, ["203.0.113.20/32".parse().unwrap()]);
    // The console has a link to the form, which then has the receiver and the service in it.
    let mut browser = Browser::logged_in(&stage, "eve").await;
    let page = browser.get("/console/grants").await.text;
    let link = "/console/access?receiver=db&amp;services=tcp%2F5432#ask-receiver";
    assert!(page.contains(link) && page.contains("Ask for access to db"), "{page}");
    let form = browser.get("/console/access?receiver=db&services=tcp%2F5432").await.text;
    assert!(form.contains("<option value=\"db\" selected>") && form.contains("value=\"tcp/5432\""), "{form}");
    let other = browser.get("/console/access?receiver=git&services=%22%3E%3Cb%3E").await.text;
    assert!(!other.contains("git") && !other.contains("<b>"), "{other}");
    // bob has been refused, too, but nobody can give him access.
    let mut browser = Browser::logged_in(&stage, "bob").await;
    let page = browser.get("/console/grants").await.text;
    assert!(page.contains("Refused in the last 24 hours") && !page.contains("Ask for access to"), "{page}");
    // A rule that denies decides, whatever is consented to.
    let denying = "[[rules]]\naction = \"deny\"\nwho = \"person:eve\"\nto = \"db\"\n";
    stage.apply(&(policy() + denying)).await.unwrap();
    let denied = problem(eve.grant(&db()).await);
    assert!(denied.r#type == "denied" && !denied.title.contains("access ask"), "{}", denied.title);
}
