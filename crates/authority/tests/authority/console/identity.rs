//! A person's choices about where their identity may go: a choice made at the console applies at once, and only to this
//! person.

use super::{Browser, stage};
use crate::stage::{events, git, handle, problem, revoked, to};
use api::{Event, GrantRequest};
use reqwest::StatusCode;

async fn choose(browser: &mut Browser, target: &str, choice: &str) {
    let fields = [("target", target), ("choice", choice)];
    let answer = browser.submit("/console/identity", "/console/identity", &fields).await;
    assert_eq!(answer.leads_to(), "/console/identity?done=chosen");
}

#[tokio::test]
async fn a_wrong_address_is_kept_with_the_error_beside_it() {
    let stage = stage().await;
    let mut browser = Browser::logged_in(&stage, "alice").await;
    let fields = [("target", "203.0.113"), ("choice", "never")];
    let answer = browser.submit("/console/identity", "/console/identity", &fields).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    for kept in ["id=\"target-fault\"", "value=\"203.0.113\"", "<option value=\"never\" selected>"] {
        assert!(answer.text.contains(kept), "{kept}: {}", answer.text);
    }
}

#[tokio::test]
async fn never_ends_grants_at_once_and_gives_no_more() {
    let stage = stage().await;
    let alice = stage.login("alice").await;
    let mut heard = events(&alice).await;
    let grant = alice.grant(&git()).await.unwrap();
    let elsewhere = alice.grant(&to("203.0.113.10", 17, 443)).await.unwrap();
    let mut browser = Browser::logged_in(&stage, "alice").await;
    choose(&mut browser, "203.0.113.10:22", "never").await;
    assert_eq!(revoked(&mut heard).await, [handle(&grant)]);
    let refused = problem(alice.grant(&git()).await);
    assert_eq!(refused.r#type, "withheld");
    assert!(refused.title.contains("must not go to 203.0.113.10:22"), "{}", refused.title);
    let live: Vec<_> = stage.database().live_grants_of("alice", authority::now()).unwrap();
    assert_eq!(live.iter().map(|grant| grant.handle.0).collect::<Vec<_>>(), [handle(&elsewhere)]);
    // The event makes the agent request grants again.
    let told = crate::stage::next(&mut heard).await;
    assert_eq!(told, Event::Policy);
    let forget = [("target", "203.0.113.10:22"), ("choice", "never"), ("forget", "yes")];
    browser.submit("/console/identity", "/console/identity", &forget).await.leads_to();
    alice.grant(&git()).await.unwrap();
}

#[tokio::test]
async fn never_cuts_flows_that_outlived_their_grants() {
    let stage = stage().await;
    let edge = stage.verifier("edge-1").await;
    let alice = stage.login("alice").await;
    let grant = alice.grant(&git()).await.unwrap();
    stage.end_grants();
    let mut heard = events(&edge).await;
    let mut browser = Browser::logged_in(&stage, "alice").await;
    choose(&mut browser, "203.0.113.0/24", "never").await;
    assert_eq!(crate::stage::next(&mut heard).await, Event::Recheck);
    assert_eq!(edge.flows_to_cut(&[handle(&grant)]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn ask_gives_grants_to_agents_that_were_told_so() {
    let stage = stage().await;
    let alice = stage.login("alice").await;
    let mut browser = Browser::logged_in(&stage, "alice").await;
    choose(&mut browser, "203.0.113.10", "ask").await;
    let refused = problem(alice.grant(&git()).await);
    assert!(refused.title.contains("vouchsafe grants allow 203.0.113.10"), "{}", refused.title);
    alice.grant(&GrantRequest { consented: true, ..git() }).await.unwrap();
    choose(&mut browser, "203.0.113.10", "never").await;
    assert_eq!(problem(alice.grant(&GrantRequest { consented: true, ..git() }).await).r#type, "withheld");
}

#[tokio::test]
async fn a_wide_grant_leaves_out_where_the_identity_must_not_go() {
    let stage = stage().await;
    let alice = stage.login("alice").await;
    let near = to("203.0.113.65", 6, 22);
    let wide = alice.grant(&near).await.unwrap();
    assert_eq!(wide.prefix.to_string(), "203.0.113.64/28");
    let mut browser = Browser::logged_in(&stage, "alice").await;
    choose(&mut browser, "203.0.113.70", "never").await;
    assert!(stage.database().live_grants_of("alice", authority::now()).unwrap().is_empty(), "it reached there, too");
    assert_eq!(alice.grant(&near).await.unwrap().prefix.to_string(), "203.0.113.65/32");
    assert_eq!(problem(alice.grant(&to("203.0.113.70", 6, 22)).await).r#type, "withheld");
}

#[tokio::test]
async fn a_choice_is_of_one_person_and_of_a_destination() {
    let mut stage = stage().await;
    let mut eve = Browser::logged_in(&stage, "eve").await;
    choose(&mut eve, "203.0.113.10", "never").await;
    let alice = stage.login("alice").await;
    alice.grant(&git()).await.unwrap();
    for (target, choice) in [("", "never"), ("anywhere", "never"), ("203.0.113.10", "always"), ("203.0.113.10", "")] {
        let fields = [("target", target), ("choice", choice)];
        let answer = eve.submit("/console/identity", "/console/identity", &fields).await;
        assert!(answer.status.is_client_error(), "{target} {choice}");
    }
    let fields = [("target", "<b>"), ("choice", "never")];
    let answer = eve.submit("/console/identity", "/console/identity", &fields).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(!answer.text.contains("<b>"));
    // The choice survives a restart.
    stage.restart().await;
    assert!(eve.get("/console/identity").await.text.contains("203.0.113.10"));
}
