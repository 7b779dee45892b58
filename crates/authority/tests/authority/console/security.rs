//! Second factors and passkeys at the console: only their owners can change them, and malformed data is not accepted.
//! (The scenarios in the lab test that passkeys of a real browser work.)

use super::{Browser, stage};
use crate::stage::{PASSWORD, Stage, login};
use authority::admin::{self, Factor};
use authority::storage::Passkey;
use reqwest::StatusCode;
use totp_rs::{Builder, Totp};

fn code(secret: &str, ahead: u64) -> String {
    let totp: Totp = Builder::new().with_secret(hex::decode(secret).unwrap()).build().unwrap();
    totp.generate(authority::now() + ahead).to_string()
}

/// Returns the secret that a page offers.
fn offered(page: &str) -> String {
    let (_, rest) = page.split_once("name=\"secret\" value=\"").expect("a secret");
    rest.split('"').next().unwrap().to_owned()
}

async fn set_up(browser: &mut Browser, secret: &str, code: &str, password: &str) -> super::Answer {
    let fields = [("secret", secret), ("new-code", code), ("password", password)];
    browser.submit("/console/security", "/console/security/factor", &fields).await
}

async fn has_factor(stage: &Stage, person: &str) -> bool {
    stage.database().account(person).unwrap().unwrap().totp.is_some()
}

#[tokio::test]
async fn a_second_factor_is_asked_for_once_its_code_and_the_password_were_shown() {
    let stage = stage().await;
    let mut browser = Browser::logged_in(&stage, "bob").await;
    let secret = offered(&browser.get("/console/security/factor").await.text);
    for (code, password) in [("000000", PASSWORD), (code(&secret, 0).as_str(), "a wrong password"), ("", PASSWORD)] {
        let answer = set_up(&mut browser, &secret, code, password).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        // After a typing error, the page offers the same secret again.
        assert_eq!(offered(&answer.text), secret);
    }
    assert!(!has_factor(&stage, "bob").await);
    set_up(&mut browser, &secret, &code(&secret, 0), PASSWORD).await.leads_to();
    assert!(has_factor(&stage, "bob").await);
    // A used code is not accepted again. Logins of agents require a code too.
    let refused = stage.client().login(&login("bob", PASSWORD, Some(&code(&secret, 0)))).await;
    assert_eq!(crate::stage::problem(refused).r#type, "wrong_second_factor");
    stage.client().login(&login("bob", PASSWORD, Some(&code(&secret, 30)))).await.unwrap();
    // Replacing the second factor requires its code.
    let other = "00".repeat(20);
    let answer = set_up(&mut browser, &other, &code(&other, 0), PASSWORD).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    let fields = [("password", PASSWORD), ("code", "000000")];
    let answer = browser.submit("/console/security", "/console/security/factor/remove", &fields).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    // The form is open, and the error stands beside the code.
    assert!(
        answer.text.contains("<details open>") && answer.text.contains("id=\"factor-code-fault\""),
        "{}",
        answer.text
    );
    assert!(has_factor(&stage, "bob").await);
}

#[tokio::test]
async fn a_passkey_is_asked_for_after_the_password_and_nothing_else_becomes_one() {
    let stage = stage().await;
    let mut browser = Browser::logged_in(&stage, "bob").await;
    let begin = "/console/security/passkeys/begin";
    let answer = browser.submit("/console/security", begin, &[("password", "a wrong password")]).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    let answer = browser.submit("/console/security", begin, &[("password", PASSWORD)]).await;
    let asked: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(asked["rp"]["id"], "authority.example.org");
    assert_eq!(asked["authenticatorSelection"]["userVerification"], "required");
    assert!(!asked["user"]["id"].as_str().unwrap().contains("bob"));
    for wrong in ["", "{}", "null", r#"{"id":"AA","rawId":"AA","type":"public-key","response":{}}"#] {
        let fields = [("name", "key"), ("answer", wrong)];
        let answer = browser.submit("/console/security", "/console/security/passkeys", &fields).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{wrong}");
        let mut stranger = Browser::of(&stage);
        let answer = stranger.submit("/console/login", "/console/login/passkey", &[("answer", wrong)]).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{wrong}");
    }
    assert!(stage.database().passkeys("bob").unwrap().is_empty());
}

fn passkey(id: &[u8]) -> Passkey {
    let (fixed, state) = (vec![0; 34], [0; 7]);
    Passkey { id: id.into(), fixed, state, name: "key".into(), created: 1, used: None }
}

#[tokio::test]
async fn what_an_intruder_added_to_log_in_with_goes_with_the_password() {
    let stage = stage().await;
    let mut intruder = Browser::logged_in(&stage, "bob").await;
    let secret = offered(&intruder.get("/console/security/factor").await.text);
    set_up(&mut intruder, &secret, &code(&secret, 0), PASSWORD).await.leads_to();
    let (mut database, by) = (stage.database(), authority::storage::Operator::current());
    for (nth, person) in [(1, "bob"), (2, "bob"), (3, "alice")] {
        database.passkey_handle(person, [nth; 64]).unwrap();
        assert!(database.add_passkey(person, &passkey(&[nth; 16]), &by, 1).unwrap());
    }
    let change = |factor| admin::change_password(&stage.directory, "bob", "another horse", factor);
    let (passkeys, address) = change(Factor::Renew).await.unwrap();
    assert!(passkeys == 2 && address.is_some());
    assert_eq!((database.passkeys("bob").unwrap(), database.passkeys("alice").unwrap().len()), (vec![], 1));
    assert!(intruder.get("/console").await.status.is_redirection());
    let mut guessed = stage.client().login(&login("bob", "another horse", Some(&code(&secret, 30)))).await;
    assert_eq!(crate::stage::problem(guessed).r#type, "wrong_second_factor");
    assert!(change(Factor::Keep).await.unwrap().1.is_none() && has_factor(&stage, "bob").await);
    change(Factor::Remove).await.unwrap();
    guessed = stage.client().login(&login("bob", "another horse", None)).await;
    assert!(guessed.is_ok(), "the owner has lost the phone");
}

#[tokio::test]
async fn whoever_guesses_passwords_keeps_no_passkey_out() {
    let stage = stage().await;
    let mut browser = Browser::of(&stage);
    while browser.try_to_log_in("mallory", "guess", "").await.status != StatusCode::TOO_MANY_REQUESTS {}
    for nth in 0.. {
        let guess = browser.try_to_log_in(&format!("mallory{}", nth % 9), "guess", "").await;
        let answer = browser.submit("/console/login", "/console/login/passkey", &[("answer", "{}")]).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{}", answer.text);
        if nth > 9 && guess.status == StatusCode::TOO_MANY_REQUESTS {
            break;
        }
    }
}

#[tokio::test]
async fn somebody_elses_passkey_is_not_there_and_an_account_takes_its_own_along() {
    let stage = stage().await;
    let (id, by) = (vec![7; 32], authority::storage::Operator::current());
    let mut database = stage.database();
    let handle = database.passkey_handle("alice", [1; 64]).unwrap();
    assert_eq!((handle, database.passkey_handle("alice", [2; 64]).unwrap()), ([1; 64], [1; 64]));
    let passkey = Passkey { name: "<b>key</b>".into(), ..passkey(&id) };
    assert!(database.add_passkey("alice", &passkey, &by, 1).unwrap());
    assert!(!database.add_passkey("bob", &passkey, &by, 1).unwrap(), "an id is one person's");
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let fields = [("passkey", hex::encode(&id)), ("password", PASSWORD.into())];
    let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
    let answer = bob.submit("/console/security", "/console/security/passkeys/remove", &fields).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    let mut alice = Browser::logged_in(&stage, "alice").await;
    assert!(alice.get("/console/security").await.text.contains("&lt;b&gt;key&lt;/b&gt;"));
    assert_eq!(database.passkeys("alice").unwrap().len(), 1);
    authority::admin::remove_account(&stage.directory, "alice").await.unwrap();
    assert!(database.passkey(&id).unwrap().is_none());
    authority::admin::add_account(&stage.directory, "alice", PASSWORD, false).await.unwrap();
    assert_eq!(database.passkey_handle("alice", [3; 64]).unwrap(), [3; 64]);
}

#[tokio::test]
async fn a_page_without_a_name_of_its_own_offers_no_passkeys() {
    let stage = Stage::start().await;
    let mut browser = Browser::logged_in(&stage, "bob").await;
    assert!(!Browser::of(&stage).get("/console/login").await.text.contains("passkey"));
    let answer =
        browser.submit("/console/security", "/console/security/passkeys/begin", &[("password", PASSWORD)]).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
}
