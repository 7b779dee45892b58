//! The console as a browser sees it, and requests that must not lead to a login or an action.

mod access;
mod administration;
mod giving;
mod identity;
mod pages;
mod security;

use crate::provider::{Key, Provider};
use crate::stage::{PASSWORD, Stage, git, problem};
use reqwest::header::{HeaderMap, LOCATION, SET_COOKIE};
use reqwest::{Method, Response, StatusCode};
use std::collections::BTreeMap;

pub const URL: &str = "https://authority.example.org:8443";

/// A browser without scripting that keeps cookies and does not follow redirects.
pub struct Browser {
    client: reqwest::Client,
    pub base: String,
    pub cookies: BTreeMap<String, String>,
}

/// The answer to a request.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    /// Returns the target of the redirect.
    pub fn leads_to(&self) -> &str {
        assert_eq!(self.status, StatusCode::SEE_OTHER, "{}", self.text);
        self.headers[LOCATION].to_str().unwrap()
    }

    /// Returns the target of the page's automatic refresh.
    pub fn onward(&self) -> String {
        assert!(self.status.is_success(), "{}", self.text);
        let (_, rest) = self.text.split_once("0;url=").expect("a way on");
        rest.split('"').next().unwrap().replace("&amp;", "&")
    }

    /// Returns the `Set-Cookie` headers.
    fn set_cookies(&self) -> Vec<&str> {
        self.headers.get_all(SET_COOKIE).iter().map(|value| value.to_str().unwrap()).collect()
    }

    /// Returns the token of the page's forms.
    pub fn token(&self) -> String {
        let (_, rest) = self.text.split_once("name=\"form\" value=\"").expect("a page with a form");
        rest.split('"').next().unwrap().to_owned()
    }
}

impl Browser {
    pub fn of(stage: &Stage) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ca = reqwest::Certificate::from_pem(&std::fs::read(stage.directory.ca()).unwrap()).unwrap();
        let client = reqwest::Client::builder().tls_certs_only([ca]).redirect(reqwest::redirect::Policy::none());
        Self { client: client.build().unwrap(), base: format!("https://{}", stage.address), cookies: BTreeMap::new() }
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let cookies: Vec<_> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        self.client.request(method, format!("{}{path}", self.base)).header("cookie", cookies.join("; "))
    }

    /// Begins a download, of which nothing is read yet.
    pub async fn begin(&self, path: &str) -> Response {
        self.request(Method::GET, path).header("sec-fetch-site", "none").send().await.unwrap()
    }

    pub async fn ask(&mut self, method: Method, path: &str, headers: &[(&str, &str)], body: String) -> Answer {
        let mut request = self.request(method, path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.body(body).send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let answer = Answer { status, headers, text: response.text().await.unwrap() };
        for cookie in answer.set_cookies() {
            let (pair, rest) = cookie.split_once(';').unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            match rest.contains("Max-Age=0;") {
                true => self.cookies.remove(name),
                false => self.cookies.insert(name.into(), value.into()),
            };
        }
        answer
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        self.ask(Method::GET, path, &[("sec-fetch-site", "none")], String::new()).await
    }

    /// Sends a form as a page of this origin does.
    pub async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let origin = self.base.clone();
        self.post_from(&[("origin", &origin), ("sec-fetch-site", "same-origin")], path, fields).await
    }

    pub async fn post_from(&mut self, from: &[(&str, &str)], path: &str, fields: &[(&str, &str)]) -> Answer {
        let mut body = openidconnect::url::form_urlencoded::Serializer::new(String::new());
        body.extend_pairs(fields);
        let kind = [("content-type", "application/x-www-form-urlencoded")];
        self.ask(Method::POST, path, &[from, &kind].concat(), body.finish()).await
    }

    /// Fills in a form of the page at `page` and sends it to `path`.
    pub async fn submit(&mut self, page: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
        let token = self.get(page).await.token();
        self.post(path, &[&[("form", token.as_str())], fields].concat()).await
    }

    pub async fn try_to_log_in(&mut self, person: &str, password: &str, to: &str) -> Answer {
        let fields = [("person", person), ("password", password), ("code", ""), ("to", to)];
        self.submit("/console/login", "/console/login", &fields).await
    }

    pub async fn logged_in(stage: &Stage, person: &str) -> Self {
        let mut browser = Self::of(stage);
        assert_eq!(browser.try_to_log_in(person, PASSWORD, "").await.leads_to(), "/console");
        browser
    }
}

fn session(browser: &Browser) -> Option<&str> {
    browser.cookies.get("__Host-vouchsafe").map(String::as_str)
}

/// Starts an authority whose administrator is alice.
pub async fn stage() -> Stage {
    Stage::start_with(&format!("console = {{ url = \"{URL}\", administrators = [\"person:alice\"] }}\n")).await
}

#[tokio::test]
async fn a_person_logs_in_and_out() {
    let stage = stage().await;
    let mut browser = Browser::of(&stage);
    assert_eq!(browser.get("/").await.leads_to(), "/console");
    assert_eq!(browser.get("/console").await.leads_to(), "/console/login?to=%2Fconsole");
    let answer = browser.try_to_log_in("bob", "wrong password", "").await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    assert!(session(&browser).is_none());
    // The error stands beside the field, which has the focus; the name is kept, the password is not.
    for said in ["id=\"password-fault\">Wrong name or password", "aria-describedby=\"password-fault\"", "value=\"bob\""]
    {
        assert!(answer.text.contains(said), "{said}: {}", answer.text);
    }
    assert!(
        answer.text.matches("autofocus").count() == 1 && !answer.text.contains("wrong password"),
        "{}",
        answer.text
    );
    assert_eq!(browser.try_to_log_in("bob", PASSWORD, "/console?x=1").await.leads_to(), "/console?x=1");
    let page = browser.get("/console").await;
    assert!(page.status.is_success() && page.text.contains("bob"), "{}", page.text);
    let held = browser.cookies.clone();
    assert_eq!(browser.submit("/console", "/console/logout", &[]).await.leads_to(), "/console/login?done=logged-out");
    assert!(session(&browser).is_none());
    browser.cookies = held;
    assert_eq!(browser.get("/console").await.status, StatusCode::SEE_OTHER, "what was logged out is over");
    let trail = stage.database().audit_entries(Some("bob"), 100).unwrap();
    let events: Vec<_> = trail.iter().map(|entry| entry.event.as_str()).collect();
    assert_eq!(events, ["account_added", "login_failed", "console_login", "console_logout"]);
}

#[tokio::test]
async fn a_login_begins_a_session_of_a_new_name() {
    let stage = stage().await;
    let mut victim = Browser::of(&stage);
    // A cookie of another user, or an invented one, that an attacker planted in the victim's browser.
    let foreign = Browser::logged_in(&stage, "eve").await.cookies["__Host-vouchsafe"].clone();
    for planted in [foreign.as_str(), &"ab".repeat(32)] {
        victim.cookies = BTreeMap::from([("__Host-vouchsafe".to_owned(), planted.to_owned())]);
        victim.get("/console/logout").await;
        let page = victim.get("/console").await;
        let answer = match page.status.is_success() {
            // A login over a live session ends this session.
            true => {
                let fields = [("form", page.token()), ("person", "bob".into()), ("password", PASSWORD.into())];
                let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
                victim.post("/console/login", &fields).await
            }
            false => victim.try_to_log_in("bob", PASSWORD, "").await,
        };
        assert_eq!(answer.leads_to(), "/console");
        assert_ne!(session(&victim), Some(planted));
        let mut other = Browser::of(&stage);
        other.cookies.insert("__Host-vouchsafe".into(), planted.into());
        assert_eq!(other.get("/console").await.status, StatusCode::SEE_OTHER, "what was planted is worth nothing");
    }
}

#[tokio::test]
async fn cookies_are_for_this_host_over_tls_and_not_for_script() {
    let stage = stage().await;
    let mut browser = Browser::of(&stage);
    let before = browser.get("/console/login").await;
    let answer = browser.try_to_log_in("bob", PASSWORD, "").await;
    let all = [before.set_cookies(), answer.set_cookies()].concat();
    assert_eq!(all.len(), 4, "{all:?}");
    let kept_by_caches = Browser::of(&stage).get("/console/console.css").await;
    assert!(kept_by_caches.status.is_success() && kept_by_caches.set_cookies().is_empty());
    for cookie in all {
        assert!(cookie.starts_with("__Host-"), "{cookie}");
        for wanted in ["; Path=/;", "; Secure;", "; HttpOnly;", "; SameSite=Lax"] {
            assert!(cookie.contains(wanted), "{cookie}");
        }
        assert!(!cookie.contains("Domain"), "{cookie}");
    }
    let database = std::fs::read(stage.directory.database()).unwrap();
    let secret = session(&browser).unwrap().as_bytes();
    assert!(!database.windows(secret.len()).any(|window| window == secret), "only its hash is stored");
}

#[tokio::test]
async fn a_browsers_session_is_no_token_and_a_token_no_browsers_session() {
    let stage = stage().await;
    let browser = Browser::logged_in(&stage, "alice").await;
    let caller = stage.client().with_token(session(&browser).unwrap());
    assert!(matches!(caller.grant(&git()).await, Err(client::Error::NotLoggedIn)));
    let login = crate::stage::login("alice", PASSWORD, None);
    let token = stage.client().login(&login).await.unwrap().token;
    let mut browser = Browser::of(&stage);
    browser.cookies.insert("__Host-vouchsafe".into(), token);
    assert_eq!(browser.get("/console").await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn a_form_of_another_origin_or_without_the_token_does_nothing() {
    let stage = stage().await;
    let mut browser = Browser::logged_in(&stage, "bob").await;
    let mut eve = Browser::logged_in(&stage, "eve").await;
    let (token, foreign) = (browser.get("/console").await.token(), eve.get("/console").await.token());
    let origin = browser.base.clone();
    let ours = [("origin", origin.as_str()), ("sec-fetch-site", "same-origin")];
    let good = [("form", token.as_str())];
    let twice = [good, good].concat();
    for (from, fields) in [
        (&ours[..], &[][..]),
        (&ours, &[("form", "")]),
        (&ours, &[("form", foreign.as_str())]),
        (&ours, &twice),
        (&[("origin", "https://evil.example.org"), ("sec-fetch-site", "cross-site")], &good),
        (&[("origin", "https://evil.example.org")], &good),
        (&[("origin", "null")], &good),
        (&[("origin", &origin), ("sec-fetch-site", "cross-site")], &good),
        (&[("origin", &origin), ("sec-fetch-site", "same-site")], &good),
        (&[], &good),
    ] {
        let answer = browser.post_from(from, "/console/logout", fields).await;
        assert!(answer.status.is_client_error(), "{from:?} {fields:?}: {}", answer.status);
        assert!(browser.get("/console").await.status.is_success(), "{from:?} {fields:?}");
    }
    // A script on another site can post text with the content of the form, but not with its content type.
    let text = [&ours[..], &[("content-type", "text/plain")]].concat();
    let answer = browser.ask(Method::POST, "/console/logout", &text, format!("form={token}")).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    for method in [Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS] {
        let answer = browser.ask(method, "/console/logout", &ours, format!("form={token}")).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    }
    assert!(browser.get("/console").await.status.is_success());
    browser.post_from(&ours, "/console/logout", &good).await.leads_to();
}

#[tokio::test]
async fn nobody_is_logged_in_by_a_form_that_is_not_the_login_pages() {
    let stage = stage().await;
    let fields = [("person", "eve"), ("password", PASSWORD), ("to", "")];
    // A page of another site that tries to log the victim in as another user knows neither cookie nor token.
    let mut victim = Browser::of(&stage);
    assert_eq!(victim.post("/console/login", &fields).await.status, StatusCode::FORBIDDEN);
    let token = Browser::of(&stage).get("/console/login").await.token();
    victim.get("/console/login").await;
    let answer = victim.post("/console/login", &[&[("form", token.as_str())], &fields[..]].concat()).await;
    assert_eq!((answer.status, session(&victim)), (StatusCode::FORBIDDEN, None));
}

#[tokio::test]
async fn nobody_is_led_elsewhere_by_a_login() {
    let stage = stage().await;
    for to in
        ["https://evil.example.org", "//evil.example.org", "/\\evil.example.org", "/console/../../evil", "/v1/health"]
    {
        let mut browser = Browser::of(&stage);
        let page = browser.get(&format!("/console/login?to={}", to.replace('\\', "%5C"))).await;
        assert!(!page.text.contains("evil"), "{}", page.text);
        assert_eq!(browser.try_to_log_in("bob", PASSWORD, to).await.leads_to(), "/console", "{to}");
    }
}

#[tokio::test]
async fn every_answer_keeps_browsers_from_what_they_must_not_do() {
    let stage = stage().await;
    let mut browser = Browser::logged_in(&stage, "alice").await;
    for path in
        ["/console", "/console/login", "/console/admin", "/console/nothing", "/console/logout", "/console/console.css"]
    {
        let answer = browser.get(path).await;
        let header = |name: &str| answer.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default();
        let policy = header("content-security-policy");
        for wanted in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'self'",
        ] {
            assert!(policy.contains(wanted), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        assert_eq!(header("strict-transport-security"), "max-age=31536000", "{path}");
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header("referrer-policy"), "same-origin", "{path}");
        assert_eq!(header("x-frame-options"), "DENY", "{path}");
        let kept = header("cache-control");
        assert!(kept == "no-store" || path.ends_with(".css") && kept.contains("immutable"), "{path}: {kept}");
        for inline in ["<style", " style=", "onclick", "javascript:"] {
            assert!(!answer.text.contains(inline) || path.ends_with(".css"), "{path}: {inline}");
        }
    }
}

#[tokio::test]
async fn only_administrators_see_their_pages() {
    let stage = stage().await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let answer = bob.get("/console/admin").await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert!(answer.text.contains("for administrators") && !bob.get("/console").await.text.contains("/admin"));
    assert_eq!(Browser::of(&stage).get("/console/admin").await.leads_to(), "/console/login?to=%2Fconsole%2Fadmin");
    let mut alice = Browser::logged_in(&stage, "alice").await;
    assert!(alice.get("/console/admin").await.status.is_success());
    assert!(alice.get("/console").await.text.contains("href=\"/console/admin\""));
}

#[tokio::test]
async fn an_administrator_is_one_as_long_as_the_group_says() {
    let stage = Stage::start_with("console = { administrators = \"group:staff\" }\n").await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    assert!(bob.get("/console/admin").await.status.is_success());
    stage.apply(&crate::stage::POLICY.replace("\"alice\", \"bob\"", "\"alice\"")).await.unwrap();
    assert_eq!(bob.get("/console/admin").await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_session_ends_unused_and_in_any_case() {
    let mut stage = stage().await;
    for (column, what) in [("expires", "unused"), ("expires = ends, ends", "in any case")] {
        let mut browser = Browser::logged_in(&stage, "bob").await;
        assert!(browser.get("/console").await.status.is_success());
        stage.server.take().unwrap().stop().await;
        let database = rusqlite::Connection::open(stage.directory.database()).unwrap();
        database.execute(&format!("UPDATE sessions SET {column} = ?1"), [authority::now() as i64]).unwrap();
        // `expires` is never later than `ends`.
        database.execute("UPDATE sessions SET expires = min(expires, ends)", []).unwrap();
        drop(database);
        stage.restart_stopped().await;
        assert_eq!(browser.get("/console").await.status, StatusCode::SEE_OTHER, "{what}");
    }
    // After half of its idle time, use extends the session to the full idle time, but not beyond its latest end.
    let mut browser = Browser::logged_in(&stage, "bob").await;
    let times = |stage: &Stage| stage.database().sessions(authority::now()).unwrap().pop().unwrap().1;
    let first = times(&stage);
    stage.server.take().unwrap().stop().await;
    let database = rusqlite::Connection::open(stage.directory.database()).unwrap();
    database.execute("UPDATE sessions SET expires = expires - 900", []).unwrap();
    drop(database);
    stage.restart_stopped().await;
    assert!(browser.get("/console").await.status.is_success());
    let used = times(&stage);
    assert!(used.expires >= first.expires && used.ends == first.ends && Some(used.expires) <= used.ends);
}

#[tokio::test]
async fn a_removed_account_or_a_new_password_ends_sessions_at_the_console() {
    let stage = stage().await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let mut eve = Browser::logged_in(&stage, "eve").await;
    let keep = authority::admin::Factor::Keep;
    authority::admin::change_password(&stage.directory, "bob", "another password", keep).await.unwrap();
    authority::admin::remove_account(&stage.directory, "eve").await.unwrap();
    assert_eq!(bob.get("/console").await.status, StatusCode::SEE_OTHER);
    assert_eq!(eve.get("/console").await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn guessing_at_the_console_is_guessing() {
    let stage = stage().await;
    let mut browser = Browser::of(&stage);
    let mut answers = Vec::new();
    for _ in 0..8 {
        answers.push(browser.try_to_log_in("bob", "a wrong password", "").await);
    }
    let last = answers.pop().unwrap();
    assert_eq!(last.status, StatusCode::TOO_MANY_REQUESTS, "{}", last.text);
    assert!(last.headers.contains_key("retry-after") && last.text.contains("Too many attempts"));
    let attempted = |page: &str, name: &str| page.contains(&format!("name=\"person\" type=\"text\" value=\"{name}\""));
    assert!(attempted(&last.text, "bob"), "the form keeps the name: {}", last.text);
    assert!(!last.text.contains("a wrong password"), "{}", last.text);
    let other = browser.try_to_log_in("\"><b>", "a wrong password", "").await;
    assert!(attempted(&other.text, "&quot;&gt;&lt;b&gt;"), "{}", other.text);
}

/// Starts an authority with an identity provider that knows carol.
async fn with_provider() -> (Stage, Provider, Key) {
    let key = Key::new();
    let provider = Provider::start(&key).await;
    let console = format!("console = {{ url = \"{URL}\", administrators = \"group:operators\" }}\n");
    let stage = Stage::start_with(&(console + &provider.configuration(""))).await;
    (stage, provider, key)
}

/// Starts a login with the provider, and returns the parameters with which the browser was sent there.
pub async fn depart(browser: &mut Browser, to: &str) -> BTreeMap<String, String> {
    let page = browser.submit("/console/login", "/console/login/provider", &[("to", to)]).await;
    reqwest::Url::parse(&page.onward()).unwrap().query_pairs().into_owned().collect()
}

#[tokio::test]
async fn a_person_of_the_identity_provider_logs_in_with_pkce() {
    let (stage, provider, key) = with_provider().await;
    let mut browser = Browser::of(&stage);
    let asked = depart(&mut browser, "/console/admin").await;
    assert_eq!(asked["redirect_uri"], format!("{URL}/console/login/callback"));
    assert_eq!(asked["code_challenge_method"], "S256");
    provider.gives(key.token(&provider.claims(Some(&asked["nonce"]), &["operators"])));
    let back = format!("/console/login/callback?code=c&state={}", asked["state"]);
    assert_eq!(browser.get(&back).await.leads_to(), "/console/admin");
    assert!(browser.get("/console/admin").await.text.contains("carol@example.org"));
    let exchanged = provider.says.lock().unwrap().asked[0].clone();
    assert!(exchanged["code_verifier"].len() >= 43);
    let mut again = Browser::of(&stage);
    again.cookies = browser.cookies.clone();
    again.cookies.remove("__Host-vouchsafe");
    assert_eq!(again.get(&back).await.status, StatusCode::UNAUTHORIZED, "a code is good once");
}

#[tokio::test]
async fn what_another_browser_brought_back_logs_nobody_in() {
    let (stage, provider, key) = with_provider().await;
    let (mut attacker, mut victim) = (Browser::of(&stage), Browser::of(&stage));
    let asked = depart(&mut attacker, "").await;
    provider.gives(key.token(&provider.claims(Some(&asked["nonce"]), &[])));
    let back = format!("/console/login/callback?code=c&state={}", asked["state"]);
    // The victim's browser opens the attacker's callback address. It has started no login, or another login.
    assert_eq!(victim.get(&back).await.status, StatusCode::UNAUTHORIZED);
    depart(&mut victim, "").await;
    assert_eq!(victim.get(&back).await.status, StatusCode::UNAUTHORIZED);
    assert!(session(&victim).is_none());
    let asked = depart(&mut victim, "").await;
    for wrong in ["code=c&state=wrong", "code=c", "error=access_denied&state=x", ""] {
        assert_eq!(victim.get(&format!("/console/login/callback?{wrong}")).await.status, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(
        victim.get(&format!("/console/login/callback?code=c&state={}", asked["state"])).await.status,
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn a_login_that_began_at_the_console_is_no_agents() {
    let (stage, provider, key) = with_provider().await;
    let mut browser = Browser::of(&stage);
    let asked = depart(&mut browser, "").await;
    provider.gives(key.token(&provider.claims(Some(&asked["nonce"]), &[])));
    let finish = api::FinishLogin {
        login: browser.cookies["__Host-vouchsafe-away"].clone(),
        verifier: browser.cookies["__Host-vouchsafe-visit"].clone(),
        callback: Some(api::Callback { code: "c".into(), state: asked["state"].clone() }),
    };
    assert_eq!(problem(stage.client().finish_login(&finish).await).r#type, "wrong_login");
}
