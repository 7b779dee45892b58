//! Logins at an identity provider and of service accounts, and attempts that must fail.

use crate::console::{Answer, Browser, URL};
use crate::provider::{CLIENT, Key, LOGOUT, Provider};
use crate::stage::{PASSWORD, SOON, Stage, ended, events, git, handle, holder_of, login, problem, revoked};
use api::{BrowserLogin, BrowserLoginStarted, Callback, DeviceLogin, FinishLogin, LoginOutcome, ServiceLogin, Session};
use authority::admin;
use client::{Authority, Error};
use reqwest::StatusCode;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::time::{Duration, Instant};

pub const VERIFIER: &str = "what only the agent knows";

/// An authority, and an identity provider whose signing key the test knows.
pub struct Scene {
    pub stage: Stage,
    pub provider: Provider,
    pub key: Key,
}

impl Scene {
    pub async fn new() -> Self {
        Self::with("").await
    }

    async fn with(more: &str) -> Self {
        let key = Key::new();
        let provider = Provider::start(&key).await;
        let console = format!("console = {{ url = \"{URL}\" }}\n");
        let stage = Stage::start_with(&(console + &provider.configuration(more))).await;
        stage.apply(&crate::stage::POLICY.replace("\"alice\", \"bob\"", "\"alice\"")).await.unwrap();
        Self { stage, provider, key }
    }

    pub async fn start(&self) -> BrowserLoginStarted {
        self.stage.client().start_browser_login(&start(4000)).await.unwrap()
    }

    /// Starts a login and opens it in a browser, which is sent to the provider.
    pub async fn away(&self) -> Going {
        let (started, mut browser) = (self.start().await, Browser::of(&self.stage));
        let asked = query(&browser.get(path(&started.url)).await.onward());
        Going { started, browser, asked }
    }

    /// Starts a login whose ID token is valid except for the change that `change` makes.
    pub async fn start_for(&self, groups: &[&str], change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Going {
        let going = self.away().await;
        let mut claims = self.provider.claims(Some(&going.asked["nonce"]), groups);
        change(&mut claims);
        self.provider.gives(self.key.token(&claims));
        going
    }

    async fn session(&self, groups: &[&str]) -> (Authority, Session) {
        let going = self.start_for(groups, |_| {}).await;
        let session = entered(going.end(&self.stage).await.unwrap());
        (self.stage.client().with_token(&session.token), session)
    }

    /// Sends a logout token to the authority, as a provider does.
    pub async fn log_out(&self, token: String) -> u16 {
        let url = format!("https://{}/v1/login/backchannel-logout", self.stage.address);
        let sent = self.stage.raw().post(url).header("Content-Type", "application/x-www-form-urlencoded");
        sent.body(format!("logout_token={token}")).send().await.unwrap().status().as_u16()
    }
}

/// A pending login, and the browser that opened it.
pub struct Going {
    pub started: BrowserLoginStarted,
    pub browser: Browser,
    /// The parameters of the request to the provider.
    pub asked: HashMap<String, String>,
}

impl Going {
    /// Returns the path of the page that asks the person to approve.
    pub fn question(&self) -> String {
        format!("{}/answer", path(&self.started.url))
    }

    /// Brings the browser back from the provider. If the provider's answer is valid, the browser reaches the approval
    /// page.
    pub async fn come_back(&mut self) -> Answer {
        let back = format!("/console/login/callback?code=a%20code&state={}", self.asked["state"]);
        self.browser.get(&back).await
    }

    pub async fn answer(&mut self, answer: &str) -> Answer {
        let page = self.question();
        self.browser.submit(&page, &page, &[("answer", answer), ("confirmed", "yes")]).await
    }

    /// Approves the login, and returns the callback that the browser delivers to the agent.
    pub async fn approve(&mut self) -> Callback {
        let onward = self.answer("approve").await.onward();
        assert!(onward.starts_with("http://127.0.0.1:4000/callback?"), "{onward}");
        let brought = query(&onward);
        Callback { code: brought["code"].clone(), state: brought["state"].clone() }
    }

    pub fn finish(&self, callback: Option<Callback>) -> FinishLogin {
        FinishLogin { login: self.started.login.clone(), verifier: VERIFIER.into(), callback }
    }

    /// Completes the login for the person and the agent. If the browser does not reach the approval page, the agent
    /// gets the reason.
    async fn end(mut self, stage: &Stage) -> Result<LoginOutcome, Error> {
        let asked = self.come_back().await.status == StatusCode::SEE_OTHER;
        let callback = if asked { Some(self.approve().await) } else { None };
        stage.client().finish_login(&self.finish(callback)).await
    }
}

pub fn start(port: u16) -> BrowserLogin {
    let challenge = hex::encode(Sha256::digest(VERIFIER));
    BrowserLogin { device: "laptop".into(), challenge, port, user: "carol".into(), host: "desk".into() }
}

/// Returns the path of an address of the console.
pub fn path(url: &str) -> &str {
    url.strip_prefix(URL).expect("an address of the console")
}

pub fn query(url: &str) -> HashMap<String, String> {
    reqwest::Url::parse(url).unwrap().query_pairs().into_owned().collect()
}

pub fn entered(outcome: LoginOutcome) -> Session {
    match outcome {
        LoginOutcome::LoggedIn(session) => session,
        LoginOutcome::Pending => panic!("not logged in yet"),
    }
}

#[tokio::test]
async fn a_person_of_the_provider_logs_in_and_the_groups_there_decide() {
    let scene = Scene::new().await;
    let (carol, session) = scene.session(&["staff"]).await;
    assert_eq!(session.person, "carol@example.org");
    carol.grant(&git()).await.unwrap();
    let (carol, _) = scene.session(&["guests"]).await;
    assert_eq!(problem(carol.grant(&git()).await).r#type, "no_rule");
}

#[tokio::test]
async fn the_browser_is_sent_with_pkce_and_only_back_to_the_authority() {
    let scene = Scene::new().await;
    let going = scene.start_for(&[], |_| {}).await;
    let asked = going.asked.clone();
    assert_eq!(asked["redirect_uri"], format!("{URL}/console/login/callback"));
    assert_eq!((asked["code_challenge_method"].as_str(), asked["response_type"].as_str()), ("S256", "code"));
    assert_eq!(asked["scope"], "openid email groups", "what the provider does not know is not asked for");
    assert_eq!(problem(scene.stage.client().start_browser_login(&start(80)).await).r#type, "malformed");

    entered(going.end(&scene.stage).await.unwrap());
    let exchanged = scene.provider.says.lock().unwrap().asked[0].clone();
    let challenge = Sha256::digest(exchanged["code_verifier"].as_bytes());
    use base64::Engine;
    assert_eq!(base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(challenge), asked["code_challenge"]);
    assert_eq!(exchanged["redirect_uri"], asked["redirect_uri"]);
}

#[tokio::test]
async fn an_id_token_that_is_not_for_this_login_lets_nobody_in() {
    const SECRET: &str = "what the provider knows the authority by";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), SECRET).unwrap();
    let scene = Scene::with(&format!(", client_secret_file = {:?}", file.path())).await;
    type Change = fn(&mut serde_json::Map<String, Value>);
    let changes: [(&str, Change); 8] = [
        ("another login's nonce", |claims| drop(claims.insert("nonce".into(), "x".into()))),
        ("no nonce", |claims| drop(claims.remove("nonce"))),
        ("another client's", |claims| drop(claims.insert("aud".into(), json!(["other"])))),
        ("also for another client", |claims| drop(claims.insert("aud".into(), json!([CLIENT, "other"])))),
        ("another issuer's", |claims| drop(claims.insert("iss".into(), json!("https://evil.example.org")))),
        ("ended", |claims| drop(claims.insert("exp".into(), json!(authority::now() - 1)))),
        ("an address that nobody verified", |claims| drop(claims.insert("email_verified".into(), json!(false)))),
        ("another access token's", |claims| drop(claims.insert("at_hash".into(), json!("AAAAAAAAAAAAAAAAAAAAAA")))),
    ];
    for (what, change) in changes {
        let going = scene.start_for(&["staff"], change).await;
        assert_eq!(problem(going.end(&scene.stage).await).r#type, "provider_refused", "{what}");
    }
    for (what, head) in
        [("unsigned", json!({ "alg": "none" })), ("of another kind", json!({ "alg": "EdDSA", "typ": "at+jwt" }))]
    {
        let going = scene.away().await;
        let claims = scene.provider.claims(Some(&going.asked["nonce"]), &["staff"]);
        let mut token = scene.key.sign(head.clone(), &claims);
        if head["alg"] == "none" {
            token.truncate(token.rfind('.').unwrap() + 1);
        }
        scene.provider.gives(token);
        assert_eq!(problem(going.end(&scene.stage).await).r#type, "provider_refused", "{what}");
    }
    type Sign = fn(&serde_json::Map<String, Value>) -> String;
    let signatures: [(&str, Sign); 2] = [
        ("signed with the client's secret", |claims| Key::symmetric(SECRET, claims)),
        ("signed by somebody else", |claims| Key::new().token(claims)),
    ];
    for (what, sign) in signatures {
        let going = scene.away().await;
        scene.provider.gives(sign(&scene.provider.claims(Some(&going.asked["nonce"]), &["staff"])));
        assert_eq!(problem(going.end(&scene.stage).await).r#type, "provider_refused", "{what}");
    }
    assert!(scene.stage.database().session_entries(authority::now()).unwrap().is_empty());
}

#[tokio::test]
async fn nobody_takes_a_name_that_is_somebody_elses() {
    let scene = Scene::with(", person_claim = \"name\"").await;
    let named = |name: &'static str, subject: &'static str| {
        move |claims: &mut serde_json::Map<String, Value>| {
            claims.insert("name".into(), name.into());
            claims.insert("sub".into(), subject.into());
        }
    };
    let going = scene.start_for(&["staff"], named("alice", "c-1")).await;
    assert_eq!(problem(going.end(&scene.stage).await).r#type, "name_taken", "alice has an account here");
    let going = scene.start_for(&["staff"], named("carol", "c-1")).await;
    entered(going.end(&scene.stage).await.unwrap());
    let going = scene.start_for(&["staff"], named("carol", "m-1")).await;
    assert_eq!(problem(going.end(&scene.stage).await).r#type, "name_taken", "another carol");
    assert!(admin::add_account(&scene.stage.directory, "carol", PASSWORD, false).await.is_err());
    assert!(admin::add_service(&scene.stage.directory, "carol", &[], &[]).await.is_err());

    // If the provider renames a person, the sessions under the former name end.
    let before = scene.stage.database().session_entries(authority::now()).unwrap();
    assert_eq!(before.len(), 1);
    let going = scene.start_for(&["staff"], named("caroline", "c-1")).await;
    assert_eq!(entered(going.end(&scene.stage).await.unwrap()).person, "caroline");
    let after = scene.stage.database().session_entries(authority::now()).unwrap();
    assert_eq!(after.iter().map(|session| session.person.as_str()).collect::<Vec<_>>(), ["caroline"]);
}

#[tokio::test]
async fn a_group_that_is_lost_revokes_what_rested_on_it() {
    let scene = Scene::new().await;
    let (carol, _) = scene.session(&["staff"]).await;
    let edge = scene.stage.verifier("edge-1").await;
    let mut heard = events(&edge).await;
    let grant = carol.grant(&git()).await.unwrap();

    scene.provider.gives(scene.key.token(&scene.provider.claims(None, &["staff"])));
    let told = admin::renew_sessions(&scene.stage.directory, None).await.unwrap();
    assert!(told.starts_with("1 login checked: 0 with changed groups, 0 ended"), "{told}");
    assert_eq!(scene.provider.says.lock().unwrap().asked[0]["grant_type"], "refresh_token");

    scene.provider.gives(scene.key.token(&scene.provider.claims(None, &["guests"])));
    let told = admin::renew_sessions(&scene.stage.directory, None).await.unwrap();
    assert!(told.contains("1 with changed groups") && told.ends_with("1 grant revoked"), "{told}");
    assert_eq!(revoked(&mut heard).await, [handle(&grant)]);
    assert_eq!(problem(carol.grant(&git()).await).r#type, "no_rule");
    assert!(carol.destinations().await.unwrap().destinations.is_empty());

    // The authority evaluates a flow that outlived its grant by the current groups.
    scene.provider.gives(scene.key.token(&scene.provider.claims(None, &["staff"])));
    admin::renew_sessions(&scene.stage.directory, None).await.unwrap();
    let second = carol.grant(&git()).await.unwrap();
    let cut = edge.flows_to_cut(&[handle(&second)]).await.unwrap();
    assert!(cut.is_empty(), "a provider's person has no account here and may all the same");
}

#[tokio::test]
async fn a_login_with_other_groups_counts_for_the_persons_other_sessions() {
    let scene = Scene::new().await;
    let (first, _) = scene.session(&["staff"]).await;
    first.grant(&git()).await.unwrap();
    scene.session(&["guests"]).await;
    assert_eq!(problem(first.grant(&git()).await).r#type, "no_rule");
}

#[tokio::test]
async fn who_is_not_let_in_any_more_at_the_provider_is_logged_out() {
    let scene = Scene::new().await;
    let (carol, _) = scene.session(&["staff"]).await;
    scene.provider.refuses();
    let told = admin::renew_sessions(&scene.stage.directory, Some("carol@example.org".into())).await.unwrap();
    assert!(told.contains("1 ended"), "{told}");
    assert!(matches!(carol.destinations().await, Err(Error::NotLoggedIn)));
}

#[tokio::test]
async fn a_renewal_that_speaks_of_somebody_else_changes_nobody() {
    let scene = Scene::new().await;
    let (carol, _) = scene.session(&["guests"]).await;
    let mut claims = scene.provider.claims(None, &["staff"]);
    claims.insert("sub".into(), "m-1".into());
    scene.provider.gives(scene.key.token(&claims));
    let told = admin::renew_sessions(&scene.stage.directory, None).await.unwrap();
    assert!(told.contains("0 with changed groups, 1 ended"), "{told}");
    assert!(matches!(carol.destinations().await, Err(Error::NotLoggedIn)));
}

#[tokio::test]
async fn a_provider_that_changed_its_keys_is_asked_for_them() {
    let mut scene = Scene::new().await;
    scene.session(&[]).await;
    scene.key = Key::new();
    scene.provider.publishes(&scene.key);
    let deadline = Instant::now() + Duration::from_secs(20);
    // This takes some seconds, because the authority queries the provider at most once every few seconds.
    loop {
        let going = scene.start_for(&[], |_| {}).await;
        match going.end(&scene.stage).await {
            Ok(outcome) => break drop(entered(outcome)),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn only_a_genuine_logout_token_logs_out() {
    let scene = Scene::new().await;
    let (carol, _) = scene.session(&["staff"]).await;
    let good = || {
        let mut claims = scene.provider.claims(None, &[]);
        claims.insert("events".into(), json!({ LOGOUT: {} }));
        claims
    };
    let with = |name: &str, value: Value| {
        let mut claims = good();
        claims.insert(name.into(), value);
        claims
    };
    for (what, token) in [
        ("an ID token", scene.key.token(&scene.provider.claims(None, &[]))),
        ("a nonce", scene.key.token(&with("nonce", json!("x")))),
        ("another client", scene.key.token(&with("aud", json!(["other"])))),
        ("another issuer", scene.key.token(&with("iss", json!("https://evil.example.org")))),
        ("ended", scene.key.token(&with("exp", json!(authority::now() - 1)))),
        ("another key", Key::new().token(&good())),
        ("no token", "x".to_owned()),
    ] {
        assert_eq!(scene.log_out(token).await, 400, "{what}");
        carol.destinations().await.unwrap();
    }
    let other_session = scene.key.token(&with("sid", json!("s-2")));
    assert_eq!(scene.log_out(other_session).await, 200);
    carol.destinations().await.unwrap();

    let edge = scene.stage.verifier("edge-1").await;
    let mut heard = events(&edge).await;
    let grant = carol.grant(&git()).await.unwrap();
    let asked = Instant::now();
    let head = json!({ "alg": "EdDSA", "typ": "logout+jwt" });
    assert_eq!(scene.log_out(scene.key.sign(head, &good())).await, 200);
    assert_eq!(ended(&mut heard).await, [holder_of(&grant, &edge).await]);
    assert!(asked.elapsed() < SOON);
    assert!(matches!(carol.destinations().await, Err(Error::NotLoggedIn)));
}

#[tokio::test]
async fn nobody_asks_about_a_session_that_was_logged_out() {
    let scene = Scene::new().await;
    let (carol, _) = scene.session(&["staff"]).await;
    carol.logout().await.unwrap();
    let told = admin::renew_sessions(&scene.stage.directory, None).await.unwrap();
    assert!(told.starts_with("0 logins checked"), "{told}");
}

#[tokio::test]
async fn a_device_code_waits_for_the_person_and_for_whoever_asked_for_it() {
    let scene = Scene::new().await;
    scene.provider.says.lock().unwrap().pending = true;
    let asked = DeviceLogin { device: "printer".into(), challenge: hex::encode(Sha256::digest(VERIFIER)) };
    let started = scene.stage.client().start_device_login(&asked).await.unwrap();
    assert_eq!((started.user_code.as_str(), started.interval), ("ABCD", 1));
    let done = |verifier: &str| FinishLogin { login: started.login.clone(), verifier: verifier.into(), callback: None };
    let client = scene.stage.client();
    assert!(matches!(client.finish_login(&done(VERIFIER)).await.unwrap(), LoginOutcome::Pending));
    assert_eq!(problem(client.finish_login(&done("a guess")).await).r#type, "wrong_login");

    scene.provider.gives(scene.key.token(&scene.provider.claims(None, &["staff"])));
    scene.provider.says.lock().unwrap().pending = false;
    let deadline = Instant::now() + Duration::from_secs(10);
    let session = loop {
        if let LoginOutcome::LoggedIn(session) = client.finish_login(&done(VERIFIER)).await.unwrap() {
            break session;
        }
        assert!(Instant::now() < deadline, "the person entered the code long ago");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(session.device, "printer");
    client.with_token(&session.token).grant(&git()).await.unwrap();
    assert_eq!(problem(client.finish_login(&done(VERIFIER)).await).r#type, "wrong_login");
}

#[tokio::test]
async fn a_provider_that_is_gone_keeps_nobody_else_out() {
    let mut scene = Scene::new().await;
    let (carol, _) = scene.session(&["staff"]).await;
    let gone = Provider { issuer: "http://127.0.0.1:9".into(), says: scene.provider.says.clone() };
    let config = scene.stage.directory.path().join("authority.toml");
    let text = std::fs::read_to_string(&config).unwrap().replace(&scene.provider.issuer, &gone.issuer);
    std::fs::write(&config, text).unwrap();
    scene.stage.restart().await;
    let started = scene.start().await;
    assert_eq!(Browser::of(&scene.stage).get(path(&started.url)).await.status, StatusCode::BAD_GATEWAY);
    scene.stage.login("alice").await.grant(&git()).await.unwrap();
    // A session that began at another provider has ended.
    assert!(matches!(carol.destinations().await, Err(Error::NotLoggedIn)));
}

#[tokio::test]
async fn an_authority_without_a_provider_says_so() {
    let stage = Stage::start().await;
    assert!(stage.client().login_methods().await.unwrap().provider.is_none());
    assert_eq!(problem(stage.client().start_browser_login(&start(4000)).await).r#type, "no_provider");
    stage.client().login(&login("alice", PASSWORD, None)).await.unwrap();
}

#[tokio::test]
async fn a_machine_logs_in_with_its_key_once_per_challenge() {
    let stage = Stage::start().await;
    let file = admin::add_service(&stage.directory, "backup", &["staff".into()], &[]).await.unwrap();
    let key = Key::of(&file.key);
    let client = stage.client();
    let assertion = |nonce: &str, change: fn(&mut serde_json::Map<String, Value>)| {
        let claims = json!({
            "iss": "vouchsafe:backup", "sub": "backup", "aud": [file.audience], "nonce": nonce,
            "iat": authority::now(), "exp": authority::now() + 60,
        });
        let mut claims = claims.as_object().unwrap().clone();
        change(&mut claims);
        claims
    };
    let answer = async |nonce: &str, assertion: String| {
        let (service, nonce) = ("backup".into(), nonce.into());
        client.service_login(&ServiceLogin { service, nonce, assertion, device: "cellar".into() }).await
    };
    type Change = fn(&mut serde_json::Map<String, Value>);
    let changes: [(&str, Change); 5] = [
        ("for another authority", |claims| drop(claims.insert("aud".into(), json!(["other"])))),
        ("to another challenge", |claims| drop(claims.insert("nonce".into(), json!("x")))),
        ("of another issuer", |claims| drop(claims.insert("iss".into(), json!("vouchsafe:other")))),
        ("about another service", |claims| drop(claims.insert("sub".into(), json!("other")))),
        ("that has ended", |claims| drop(claims.insert("exp".into(), json!(authority::now() - 1)))),
    ];
    for (what, change) in changes {
        let nonce = client.challenge().await.unwrap().nonce;
        let refused = answer(&nonce, key.token(&assertion(&nonce, change))).await;
        assert_eq!(problem(refused).r#type, "wrong_assertion", "{what}");
    }
    let nonce = client.challenge().await.unwrap().nonce;
    let forged = answer(&nonce, Key::new().token(&assertion(&nonce, |_| {}))).await;
    assert_eq!(problem(forged).r#type, "wrong_assertion");

    let nonce = client.challenge().await.unwrap().nonce;
    let signed = key.token(&assertion(&nonce, |_| {}));
    let session = answer(&nonce, signed.clone()).await.unwrap();
    assert_eq!((session.person.as_str(), session.device.as_str()), ("backup", "cellar"));
    assert_eq!(problem(answer(&nonce, signed).await).r#type, "wrong_assertion", "replayed");

    admin::tag_device(&stage.directory, "backup", "cellar", &["trusted".into()]).await.unwrap();
    let backup = client.with_token(&session.token);
    backup.grant(&git()).await.unwrap();
    admin::set_service_groups(&stage.directory, "backup", &[]).await.unwrap();
    assert_eq!(problem(backup.grant(&git()).await).r#type, "no_rule");
    admin::remove_service(&stage.directory, "backup").await.unwrap();
    assert!(matches!(backup.destinations().await, Err(Error::NotLoggedIn)));
    let nonce = client.challenge().await.unwrap().nonce;
    let refused = answer(&nonce, key.token(&assertion(&nonce, |_| {}))).await;
    assert_eq!(problem(refused).r#type, "wrong_assertion");

    // A new account with the same name does not have the tags.
    let next = admin::add_service(&stage.directory, "backup", &[], &[]).await.unwrap();
    let nonce = client.challenge().await.unwrap().nonce;
    answer(&nonce, Key::of(&next.key).token(&assertion(&nonce, |_| {}))).await.unwrap();
    assert!(stage.database().devices(None).unwrap().iter().all(|device| device.tags.is_empty()));
}
