//! A person's own pages: their contents, and actions that affect only this person.

use super::{Answer, Browser, stage};
use crate::stage::{PASSWORD, Stage, events, git, handle, login, next, revoked};
use api::Login;
use reqwest::StatusCode;

/// A device name that tries to inject markup.
const HOSTILE: &str = "\"><script>alert(1)</script><b onmouseover='x'>&amp;";

async fn log_in_device(stage: &Stage, person: &str, device: &str) -> client::Authority {
    let login = Login { device: device.into(), ..login(person, PASSWORD, None) };
    let client = stage.client();
    let session = client.login(&login).await.unwrap();
    client.with_token(&session.token)
}

/// Returns the value of the first hidden field of this name.
pub fn hidden<'a>(page: &'a Answer, name: &str) -> &'a str {
    let (_, rest) = page.text.split_once(&format!("name=\"{name}\" value=\"")).expect("such a field");
    rest.split('"').next().unwrap()
}

#[tokio::test]
async fn a_device_is_revoked_with_its_grants() {
    let stage = stage().await;
    let phone = log_in_device(&stage, "alice", "phone").await;
    let mut heard = events(&phone).await;
    let grant = phone.grant(&git()).await.unwrap();
    let mut browser = Browser::logged_in(&stage, "alice").await;
    let page = browser.get("/console/devices").await;
    assert!(page.text.contains("phone") && page.text.contains("logged in"), "{}", page.text);
    let answer = browser.submit("/console/devices", "/console/devices/revoke", &[("device", "phone")]).await;
    assert_eq!(answer.leads_to(), "/console/devices?done=device-revoked");
    assert_eq!(next(&mut heard).await, api::Event::LoggedOut);
    assert!(stage.database().grants(authority::now(), false).unwrap().is_empty(), "{}", grant.header);
    let page = browser.get(answer.leads_to()).await;
    assert!(page.text.contains("logged out, and its grants have ended"), "{}", page.text);
    let trail = stage.database().audit_entries(Some("alice"), 1).unwrap();
    assert_eq!((trail[0].event.as_str(), trail[0].operator.as_deref()), ("revoked", Some("alice (console)")));
}

#[tokio::test]
async fn whoever_presses_a_button_for_ever_fills_no_trail_and_is_slowed() {
    let stage = stage().await;
    log_in_device(&stage, "bob", "phone").await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let token = bob.get("/console/devices").await.token();
    let fields = [("form", token.as_str()), ("device", "phone")];
    let mut answer = bob.post("/console/devices/revoke", &fields).await;
    for _ in 0..200 {
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            break;
        }
        assert_eq!(answer.leads_to(), "/console/devices?done=device-revoked");
        answer = bob.post("/console/devices/revoke", &fields).await;
    }
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(answer.headers.contains_key("retry-after"));
    let trail = stage.database().audit_entries(Some("bob"), 1000).unwrap();
    assert_eq!(trail.iter().filter(|entry| entry.event == "revoked").count(), 1);
    assert!(bob.get("/console").await.status.is_success(), "reading is counted on its own");
    let mut eve = Browser::logged_in(&stage, "eve").await;
    eve.submit("/console", "/console/logout", &[]).await.leads_to();
}

#[tokio::test]
async fn whoever_reloads_a_page_for_ever_is_slowed() {
    let stage = stage().await;
    let mut bob = Browser::logged_in(&stage, "bob").await;
    let mut is_slowed = false;
    for _ in 0..2000 {
        is_slowed = bob.get("/console").await.status == StatusCode::TOO_MANY_REQUESTS;
        if is_slowed {
            break;
        }
    }
    assert!(is_slowed);
}

#[tokio::test]
async fn a_grant_is_revoked_and_the_session_goes_on() {
    let stage = stage().await;
    let laptop = log_in_device(&stage, "alice", "laptop").await;
    let mut heard = events(&laptop).await;
    let grant = laptop.grant(&git()).await.unwrap();
    let mut browser = Browser::logged_in(&stage, "alice").await;
    let page = browser.get("/console/grants").await;
    assert!(page.text.contains("203.0.113.10 tcp/22") && page.text.contains("staff may use git"), "{}", page.text);
    let number = hidden(&page, "grant").to_owned();
    browser.submit("/console/grants", "/console/grants/revoke", &[("grant", &number)]).await.leads_to();
    assert_eq!(revoked(&mut heard).await, [handle(&grant)]);
    assert!(browser.get("/console/grants").await.text.contains("You have no live grants."));
    laptop.grant(&git()).await.unwrap();
}

#[tokio::test]
async fn sessions_elsewhere_are_ended_and_this_one_is_not() {
    let stage = stage().await;
    let laptop = log_in_device(&stage, "bob", "laptop").await;
    let mut other = Browser::logged_in(&stage, "bob").await;
    let mut third = Browser::logged_in(&stage, "bob").await;
    let mut browser = Browser::logged_in(&stage, "bob").await;
    let page = browser.get("/console/sessions").await;
    assert!(page.text.contains("this session") && page.text.contains("laptop"), "{}", page.text);
    // The newest session comes first, and the current session has no button.
    let number = hidden(&page, "session").to_owned();
    browser.submit("/console/sessions", "/console/sessions/end", &[("session", &number)]).await.leads_to();
    assert_eq!(third.get("/console").await.status, StatusCode::SEE_OTHER);
    assert!(other.get("/console").await.status.is_success() && laptop.destinations().await.is_ok());
    browser.submit("/console/sessions", "/console/sessions/end-others", &[]).await.leads_to();
    assert_eq!(other.get("/console").await.status, StatusCode::SEE_OTHER);
    assert!(laptop.destinations().await.is_err());
    assert!(browser.get("/console").await.status.is_success());
}

#[tokio::test]
async fn what_belongs_to_somebody_else_is_not_there() {
    let stage = stage().await;
    let phone = log_in_device(&stage, "alice", "phone").await;
    let grant = phone.grant(&git()).await.unwrap();
    let mut alice = Browser::logged_in(&stage, "alice").await;
    let session = hidden(&alice.get("/console/sessions").await, "session").to_owned();
    let grant = format!("{:016x}", handle(&grant));
    let mut eve = Browser::logged_in(&stage, "eve").await;
    for (page, path, field) in [
        ("/console/devices", "/console/devices/revoke", ("device", "phone")),
        ("/console/grants", "/console/grants/revoke", ("grant", grant.as_str())),
        ("/console/grants", "/console/grants/revoke", ("grant", "no number")),
        ("/console/sessions", "/console/sessions/end", ("session", session.as_str())),
    ] {
        assert!(!eve.get(page).await.text.contains("phone"), "{page}");
        assert_eq!(eve.submit(page, path, &[field]).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    eve.submit("/console/sessions", "/console/sessions/end-others", &[]).await.leads_to();
    assert!(phone.destinations().await.is_ok() && alice.get("/console").await.status.is_success());
    assert_eq!(stage.database().live_grants_of("alice", authority::now()).unwrap().len(), 1);
}

#[tokio::test]
async fn names_are_text_and_nothing_else() {
    let stage = stage().await;
    let device = log_in_device(&stage, "alice", HOSTILE).await;
    device.grant(&git()).await.unwrap();
    let mut browser = Browser::logged_in(&stage, "alice").await;
    for path in ["/console/devices", "/console/grants", "/console/sessions"] {
        let page = browser.get(path).await;
        assert!(page.text.contains("&lt;script&gt;alert(1)"), "{path}");
        assert!(!page.text.contains("<script>") && !page.text.contains("<b onmouse"), "{path}");
    }
    // Forms act on the device that they name, even this one.
    let answer = browser.submit("/console/devices", "/console/devices/revoke", &[("device", HOSTILE)]).await;
    assert_eq!(answer.leads_to(), "/console/devices?done=device-revoked");
    let page = browser.get("/console/devices?done=%3Cscript%3E").await;
    assert!(!page.text.contains("role=\"status\""), "only our own words are said");
    let page = browser.get("/console/login/callback?error=%3Cscript%3Ealert(1)%3C/script%3E").await;
    assert!(!page.text.contains("alert(1)"));
}
