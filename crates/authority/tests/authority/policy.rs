//! What rules go by changes under those who are connected: the time, and what is known of a device.

use crate::stage::*;
use authority::{admin, now};
use engine::api::Event;

#[tokio::test]
async fn a_window_that_closes_cuts_what_it_allowed() {
    let stage = Stage::start().await;
    let closes = now() + 2;
    let rule = "to = \"git\"\n\n[[rules]]\nname = \"not bob\"";
    let policy =
        POLICY.replace(rule, &rule.replacen("git\"", &format!("git\"\nwhen = {{ until = {} }}", written(closes)), 1));
    assert_ne!(policy, POLICY);
    stage.apply(&policy).await.unwrap();
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let grant = alice.grant(&git()).await.unwrap();
    assert_eq!(grant.expires, closes);
    assert!(verifier.flows_to_cut(&[handle(&grant)]).await.unwrap().is_empty());
    let (mut guard, mut holder) = (events(&verifier).await, events(&alice).await);
    assert_eq!(next(&mut guard).await, Event::Policy);
    assert!((closes..closes + 2).contains(&now()));
    let Event::Revoked { grants } = next(&mut guard).await else { panic!() };
    assert_eq!(grants.iter().map(|grant| grant.handle).collect::<Vec<_>>(), [handle(&grant)]);
    assert_eq!(next(&mut holder).await, Event::Policy);
    assert_eq!(verifier.flows_to_cut(&[handle(&grant)]).await.unwrap().len(), 1);
    assert_eq!(problem(alice.grant(&git()).await).r#type, "no_rule");
    assert!(alice.destinations().await.unwrap().destinations.iter().all(|receiver| receiver.name != "git"));
}

#[tokio::test]
async fn a_devices_tags_decide_and_a_lost_tag_cuts() {
    let mut stage = Stage::start().await;
    stage
        .apply(&POLICY.replace("who = \"group:staff\"\nto = \"git\"", "who = \"tag:trusted\"\nto = \"git\""))
        .await
        .unwrap();
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    assert_eq!(problem(alice.grant(&git()).await).r#type, "no_rule");
    let tag = async |stage: &Stage, tags: &[&str]| {
        let tags: Vec<_> = tags.iter().map(|tag| (*tag).to_owned()).collect();
        admin::tag_device(&stage.directory, "alice", "laptop", &tags).await.unwrap()
    };
    assert_eq!(tag(&stage, &["trusted", "blue"]).await, "0 grants revoked");
    let grant = alice.grant(&git()).await.unwrap();
    // The tag is the device's: it is there after a restart, and for another session from it.
    stage.restart().await;
    stage.login("alice").await.grant(&git()).await.unwrap();
    let mut guard = events(&verifier).await;
    assert_eq!(tag(&stage, &["blue"]).await, "2 grants revoked");
    assert!(revoked(&mut guard).await.contains(&handle(&grant)));
    assert_eq!(problem(alice.grant(&git()).await).r#type, "no_rule");
    let error = admin::tag_device(&stage.directory, "alice", "phone", &[]).await.unwrap_err().to_string();
    assert!(error.contains("no device alice/phone"), "{error}");
    assert!(admin::tag_device(&stage.directory, "alice", "laptop", &["a b".into()]).await.is_err());
}

#[tokio::test]
async fn rules_about_addresses_go_by_where_the_call_comes_from() {
    let stage = Stage::start().await;
    let to_git = "who = \"group:staff\"\nto = \"git\"";
    let alice = stage.login("alice").await;
    for (who, allowed) in [("address:127.0.0.0/8", true), ("address:192.0.2.0/24", false), ("address:::/0", false)] {
        stage.apply(&POLICY.replace(to_git, &format!("who = \"{who}\"\nto = \"git\""))).await.unwrap();
        assert_eq!(alice.grant(&git()).await.is_ok(), allowed, "{who}");
    }
}

/// A time as the policy file writes it.
fn written(time: u64) -> String {
    let database = rusqlite::Connection::open_in_memory().unwrap();
    let write = "SELECT strftime('%Y-%m-%dT%H:%M:%SZ', ?1, 'unixepoch')";
    database.query_row(write, [time.cast_signed()], |row| row.get(0)).unwrap()
}
