//! Approval of agents' logins: an agent is logged in only after the person approves, and only the person's own answer
//! counts.

use crate::console::{Browser, URL, depart};
use crate::login::{Going, Scene, VERIFIER, entered, path, query, start};
use crate::provider::{Key, LOGOUT, Provider};
use crate::stage::{Stage, problem};
use api::{BrowserLogin, Callback, DeviceLogin, FinishLogin, LoginOutcome, comparison};
use client::Authority;
use reqwest::{Method, StatusCode};
use serde_json::json;
use sha2::{Digest, Sha256};

/// Reports whether the agent has received no answer yet.
async fn is_pending(client: &Authority, going: &Going) -> bool {
    matches!(client.finish_login(&going.finish(None)).await, Ok(LoginOutcome::Pending))
}

fn sessions(scene: &Scene) -> usize {
    scene.stage.database().session_entries(authority::now()).unwrap().len()
}

#[tokio::test]
async fn a_person_is_asked_who_wants_to_log_in_and_a_session_needs_their_approval() {
    let scene = Scene::new().await;
    let client = scene.stage.client();
    let mut going = scene.start_for(&["staff"], |_| {}).await;
    assert_eq!(going.come_back().await.leads_to(), going.question(), "no code stays in the address");
    let page = going.browser.get(&going.question()).await;
    let code = comparison(&Sha256::digest(VERIFIER).into());
    for said in ["carol@example.org", "Approve only if you started this", "claims to be", "127.0.0.1", &code] {
        assert!(page.text.contains(said), "{said}: {}", page.text);
    }
    assert!(page.headers["content-security-policy"].to_str().unwrap().contains("frame-ancestors 'none'"));
    assert_eq!(page.headers["cache-control"], "no-store");
    assert!(is_pending(&client, &going).await);
    assert_eq!(sessions(&scene), 0, "nobody has approved");

    // A single click approves nothing. An attacker may lure the second click of a double click to this page.
    let question = going.question();
    let unconfirmed = going.browser.submit(&question, &question, &[("answer", "approve")]).await;
    assert_eq!(unconfirmed.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        unconfirmed.text.contains("id=\"confirmed-fault\"") && unconfirmed.text.contains(&code),
        "{}",
        unconfirmed.text
    );
    assert!(is_pending(&client, &going).await);

    let callback = going.approve().await;
    assert_eq!(callback.state, going.started.state);
    assert_eq!(sessions(&scene), 0, "the agent has to show the code");
    let session = entered(client.finish_login(&going.finish(Some(callback))).await.unwrap());
    assert_eq!((session.person.as_str(), session.device.as_str()), ("carol@example.org", "laptop"));
    let trail = scene.stage.database().audit_entries(None, 100).unwrap();
    let entry = |event: &str| trail.iter().find(|entry| entry.event == event).unwrap_or_else(|| panic!("no {event}"));
    assert_eq!((entry("login_began").trail.as_str(), entry("login_approved").trail.as_str()), ("refusals", "acts"));
    assert_eq!(entry("login_began").detail, "claims to be carol on desk");
    let approved = entry("login_approved");
    assert_eq!(approved.person.as_deref(), Some("carol@example.org"));
    assert_eq!(approved.detail, "requested from 127.0.0.1, claims to be carol on desk");
}

#[tokio::test]
async fn another_user_has_nothing_of_a_login_before_the_person_approves() {
    let scene = Scene::new().await;
    let attacker = scene.stage.client();
    type Try = fn(&Going) -> Callback;
    let tries: [Try; 3] = [
        |going| Callback { code: "a code".into(), state: going.asked["state"].clone() },
        |going| Callback { code: "a code".into(), state: going.started.state.clone() },
        |going| Callback { code: String::new(), state: going.started.state.clone() },
    ];
    for attempt in tries {
        // The victim's browser was led to the address; the provider recognised the person and asked nothing.
        let mut victim = scene.start_for(&["staff"], |_| {}).await;
        victim.come_back().await.leads_to();
        assert!(victim.browser.get(&victim.question()).await.status.is_success(), "the victim reads the question");
        assert!(is_pending(&attacker, &victim).await);
        let finish = victim.finish(Some(attempt(&victim)));
        assert_eq!(problem(attacker.finish_login(&finish).await).r#type, "wrong_login");
        let question = victim.question();
        assert_eq!(victim.browser.get(&question).await.status, StatusCode::UNAUTHORIZED, "a login has one try");
    }
    assert_eq!(sessions(&scene), 0);
}

#[tokio::test]
async fn a_denied_login_is_over_and_leads_the_browser_to_nobody() {
    let scene = Scene::new().await;
    let mut going = scene.start_for(&["staff"], |_| {}).await;
    going.come_back().await.leads_to();
    let page = going.answer("deny").await;
    assert!(page.text.contains("Nobody was logged in") && !page.text.contains("127.0.0.1"), "{}", page.text);
    assert_eq!(going.browser.get(&going.question()).await.status, StatusCode::UNAUTHORIZED);
    let token = going.browser.get("/console/login").await.token();
    let fields = [("form", token.as_str()), ("answer", "approve")];
    let question = going.question();
    assert_eq!(going.browser.post(&question, &fields).await.status, StatusCode::UNAUTHORIZED);
    let finish = going.finish(None);
    assert_eq!(problem(scene.stage.client().finish_login(&finish).await).r#type, "login_denied");
    assert_eq!(problem(scene.stage.client().finish_login(&finish).await).r#type, "wrong_login", "told once");
    let trail = scene.stage.database().audit_entries(Some("carol@example.org"), 100).unwrap();
    assert_eq!(trail.iter().map(|entry| entry.event.as_str()).collect::<Vec<_>>(), ["login_denied"]);
    assert_eq!(sessions(&scene), 0);
}

#[tokio::test]
async fn a_code_is_for_the_agent_that_began_the_login_and_good_once() {
    let scene = Scene::new().await;
    let client = scene.stage.client();
    let mut going = scene.start_for(&[], |_| {}).await;
    going.come_back().await.leads_to();
    let callback = going.approve().await;
    let stolen = FinishLogin { verifier: "a guess".into(), ..going.finish(Some(callback.clone())) };
    assert_eq!(problem(client.finish_login(&stolen).await).r#type, "wrong_login");
    assert!(is_pending(&client, &going).await, "the agent that began it is none the worse for it");
    entered(client.finish_login(&going.finish(Some(callback.clone()))).await.unwrap());
    assert_eq!(problem(client.finish_login(&going.finish(Some(callback))).await).r#type, "wrong_login");

    type Change = fn(&mut Callback);
    let changes: [Change; 2] = [|callback| callback.state = "x".into(), |callback| callback.code.truncate(63)];
    for change in changes {
        let mut going = scene.start_for(&[], |_| {}).await;
        going.come_back().await.leads_to();
        let good = going.approve().await;
        let mut callback = good.clone();
        change(&mut callback);
        assert_eq!(problem(client.finish_login(&going.finish(Some(callback))).await).r#type, "wrong_login");
        assert_eq!(problem(client.finish_login(&going.finish(Some(good))).await).r#type, "wrong_login", "one try");
    }
    let mut lost = scene.start_for(&[], |_| {}).await;
    lost.started.login = "0".repeat(32);
    assert_eq!(problem(client.finish_login(&lost.finish(None)).await).r#type, "wrong_login");
}

#[tokio::test]
async fn only_the_browser_that_opened_a_login_goes_on_with_it() {
    let scene = Scene::new().await;
    let mut going = scene.start_for(&["staff"], |_| {}).await;
    let url = path(&going.started.url).to_owned();
    let back = format!("/console/login/callback?code=c&state={}", going.asked["state"]);
    let question = going.question();
    let mut other = Browser::of(&scene.stage);
    let token = other.get("/console/login").await.token();
    for path in [&url, &back, &question] {
        assert_eq!(other.get(path).await.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    assert!(scene.provider.says.lock().unwrap().asked.is_empty(), "the code was spent");

    going.come_back().await.leads_to();
    for path in [&url, &back, &question] {
        assert_eq!(other.get(path).await.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    let yes = [("form", token.as_str()), ("answer", "approve")];
    assert_eq!(other.post(&question, &yes).await.status, StatusCode::UNAUTHORIZED);
    // A page of another site makes the victim's browser answer: without a token, with another browser's token, or from
    // its own origin.
    let own = going.browser.get(&question).await.token();
    let evil = [("origin", "https://evil.example.org"), ("sec-fetch-site", "cross-site")];
    for fields in [&[("answer", "approve")][..], &yes] {
        assert!(going.browser.post(&question, fields).await.status.is_client_error());
    }
    let fields = [("form", own.as_str()), ("answer", "approve")];
    assert_eq!(going.browser.post_from(&evil, &question, &fields).await.status, StatusCode::FORBIDDEN);
    let asked = going.browser.ask(Method::GET, &format!("{question}?answer=approve"), &[], String::new()).await;
    assert!(asked.status.is_success() && asked.text.contains("Approve only if"), "an address is no answer");
    assert!(is_pending(&scene.stage.client(), &going).await);
    assert_eq!(sessions(&scene), 0);
    going.approve().await;
}

#[tokio::test]
async fn a_login_that_another_browser_opened_first_is_lost_to_its_owner_and_not_taken() {
    let scene = Scene::new().await;
    let (started, mut first, mut second) = (scene.start().await, Browser::of(&scene.stage), Browser::of(&scene.stage));
    let before = query(&first.get(path(&started.url)).await.onward());
    assert_eq!(second.get(path(&started.url)).await.status, StatusCode::UNAUTHORIZED);
    let again = query(&first.get(path(&started.url)).await.onward());
    assert_ne!(before["state"], again["state"], "the same browser may open it again");
    let back = |state: &str| format!("/console/login/callback?code=c&state={state}");
    assert_eq!(first.get(&back(&before["state"])).await.status, StatusCode::UNAUTHORIZED);
    scene.provider.gives(scene.key.token(&scene.provider.claims(Some(&again["nonce"]), &[])));
    first.get(&back(&again["state"])).await.leads_to();
    assert_eq!(first.get(&back(&again["state"])).await.status, StatusCode::UNAUTHORIZED, "a code is good once");
}

#[tokio::test]
async fn a_code_of_another_provider_is_shown_to_nobody() {
    let scene = Scene::new().await;
    let mut going = scene.start_for(&[], |_| {}).await;
    let back = format!("/console/login/callback?code=c&state={}", going.asked["state"]);
    let mixed_up = format!("{back}&iss=https%3A%2F%2Fevil.example.org");
    assert_eq!(going.browser.get(&mixed_up).await.status, StatusCode::UNAUTHORIZED);
    assert!(scene.provider.says.lock().unwrap().asked.is_empty());
}

#[tokio::test]
async fn an_agent_hears_that_the_provider_let_nobody_in() {
    let scene = Scene::new().await;
    let mut going = scene.away().await;
    let refused = format!("/console/login/callback?error=access_denied&state={}", going.asked["state"]);
    assert_eq!(going.browser.get(&refused).await.status, StatusCode::UNAUTHORIZED);
    let answer = scene.stage.client().finish_login(&going.finish(None)).await;
    assert_eq!(problem(answer).r#type, "provider_refused");
}

#[tokio::test]
async fn what_an_agent_says_of_itself_is_bounded_text() {
    let scene = Scene::new().await;
    let client = scene.stage.client();
    let challenge = hex::encode(Sha256::digest(VERIFIER));
    let login = |user: &str, host: &str| {
        let (device, challenge) = ("a \"laptop\"".into(), challenge.clone());
        BrowserLogin { device, challenge, port: 4000, user: user.into(), host: host.into() }
    };
    let long = "x".repeat(65);
    for (user, host) in
        [("", "desk"), ("carol", ""), (&long, "desk"), ("carol", &long), ("a\nb", "desk"), ("carol", "\u{7f}")]
    {
        assert_eq!(problem(client.start_browser_login(&login(user, host)).await).r#type, "malformed", "{user} {host}");
    }
    let hostile = login("</q><script>alert(1)</script>", "\u{202e}ksed\u{200b} & \u{a0}more");
    let started = client.start_browser_login(&hostile).await.unwrap();
    let mut browser = Browser::of(&scene.stage);
    let asked = query(&browser.get(path(&started.url)).await.onward());
    scene.provider.gives(scene.key.token(&scene.provider.claims(Some(&asked["nonce"]), &[])));
    let mut going = Going { started, browser, asked };
    going.come_back().await.leads_to();
    let page = going.browser.get(&going.question()).await.text;
    assert!(page.contains("&lt;/q&gt;&lt;script&gt;alert(1)&lt;/script&gt;"), "{page}");
    assert!(page.contains("\\u{202e}ksed\\u{200b} &amp; \\u{a0}more"), "{page}");
    assert!(!page.contains("<script>") && !page.contains('\u{202e}'), "{page}");
}

#[tokio::test]
async fn without_an_address_of_the_console_there_are_device_codes_only() {
    let key = Key::new();
    let provider = Provider::start(&key).await;
    let stage = Stage::start_with(&provider.configuration("")).await;
    let refused = problem(stage.client().start_browser_login(&start(4000)).await);
    assert_eq!(refused.r#type, "no_browser_login");
    assert!(refused.title.contains("--device-code") && refused.title.contains("[console]"), "{}", refused.title);
    let asked = DeviceLogin { device: "laptop".into(), challenge: hex::encode(Sha256::digest(VERIFIER)) };
    stage.client().start_device_login(&asked).await.unwrap();
}

#[tokio::test]
async fn who_is_logged_out_at_the_provider_meanwhile_is_not_logged_in() {
    let scene = Scene::new().await;
    let mut going = scene.start_for(&["staff"], |_| {}).await;
    going.come_back().await.leads_to();
    let callback = going.approve().await;
    let mut claims = scene.provider.claims(None, &[]);
    claims.insert("events".into(), json!({ LOGOUT: {} }));
    assert_eq!(scene.log_out(scene.key.token(&claims)).await, 200);
    let answer = scene.stage.client().finish_login(&going.finish(Some(callback))).await;
    assert_eq!(problem(answer).r#type, "wrong_login");
}

#[tokio::test]
async fn one_browser_logs_in_to_the_console_and_for_an_agent_at_the_same_time() {
    let scene = Scene::new().await;
    let mut going = scene.away().await;
    let console = depart(&mut going.browser, "/console/devices").await;
    assert_eq!(console["redirect_uri"], format!("{URL}/console/login/callback"));
    assert_eq!(console["redirect_uri"], going.asked["redirect_uri"], "one address at the provider for both");
    scene.provider.gives(scene.key.token(&scene.provider.claims(Some(&going.asked["nonce"]), &[])));
    going.come_back().await.leads_to();
    let callback = going.approve().await;
    entered(scene.stage.client().finish_login(&going.finish(Some(callback))).await.unwrap());
    scene.provider.gives(scene.key.token(&scene.provider.claims(Some(&console["nonce"]), &[])));
    let back = format!("/console/login/callback?code=c&state={}", console["state"]);
    assert_eq!(going.browser.get(&back).await.leads_to(), "/console/devices");
}
