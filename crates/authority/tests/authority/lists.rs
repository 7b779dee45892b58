//! Lists: from the import to the end of an entry, at a running authority.

use crate::stage::{POLICY, Stage, events, handle, problem, revoked, to};
use api::GrantRequest;
use authority::admin::{backup, lists};
use authority::lists::Line;
use authority::{Directory, admin};
use std::time::{Duration, Instant};

const LISTED: &str = r#"
[[receivers]]
name = "farm"
address = "198.51.100.0/24"
services = ["tcp/5432", "tcp/22"]
verifier = "edge-1"

[[lists]]
name = "partners"
to = "farm"
who = ["group:staff", "person:eve"]
services = "tcp/5432"
"#;

fn policy() -> String {
    POLICY.to_owned() + LISTED
}

fn farm(host: u8) -> GrantRequest {
    to(&format!("198.51.100.{host}"), 6, 5432)
}

fn line(to: &str, who: &str) -> Line {
    Line { to: to.into(), who: vec![who.into()], ..Line::default() }
}

async fn import(stage: &Stage, text: &str) -> anyhow::Result<String> {
    lists::import(&stage.directory, "partners", text.as_bytes(), "test", |_| {}).await.map(|(_, done)| done)
}

async fn change(stage: &Stage, lines: Vec<Line>) -> String {
    lists::change(&stage.directory, "partners", (1..).zip(lines).collect(), "test").await.unwrap().1
}

/// Starts an authority with a list that lets eve and alice reach an address each.
async fn listed() -> Stage {
    let stage = Stage::start().await;
    let refused = stage.apply(&policy()).await.unwrap_err();
    assert!(format!("{refused:#}").contains("there is no list `partners`"), "{refused:#}");
    let text = r#"{"to": "198.51.100.1", "who": ["person:eve"], "note": "ticket 7"}
{"to": "198.51.100.2", "who": ["person:alice"]}"#;
    let done = import(&stage, text).await.unwrap();
    assert_eq!(done, "in force: 2 entries of lists; 0 grants revoked");
    stage.apply(&policy()).await.unwrap();
    stage
}

#[tokio::test]
async fn an_entry_lets_a_person_in_and_its_removal_cuts_them_off() {
    let stage = listed().await;
    let mut verifier = events(&stage.verifier("edge-1").await).await;
    let (eve, alice) = (stage.login("eve").await, stage.login("alice").await);
    let grant = eve.grant(&farm(1)).await.unwrap();
    let kept = alice.grant(&farm(2)).await.unwrap();
    assert_eq!(problem(eve.grant(&farm(2)).await).r#type, "no_rule");
    assert_eq!(problem(eve.grant(&to("198.51.100.1", 6, 22)).await).r#type, "no_rule");
    let names: Vec<_> = eve.destinations().await.unwrap().destinations.into_iter().map(|own| own.name).collect();
    assert_eq!(names, ["farm"]);
    assert_eq!(
        change(&stage, vec![Line { remove: true, ..line("198.51.100.1", "person:eve") }]).await,
        "in force: 1 entry of lists; 1 grant revoked"
    );
    assert_eq!(revoked(&mut verifier).await, [handle(&grant)]);
    assert_eq!(problem(eve.grant(&farm(1)).await).r#type, "no_rule");
    // An entry that denies cuts off whom another one lets in.
    let deny = Line { deny: true, ..line("198.51.100.0/24", "group:staff") };
    assert_eq!(change(&stage, vec![deny]).await, "in force: 2 entries of lists; 1 grant revoked");
    assert_eq!(revoked(&mut verifier).await, [handle(&kept)]);
    assert_eq!(problem(alice.grant(&farm(2)).await).r#type, "denied");
    let trail = stage.database().audit_entries(None, 100).unwrap();
    let details: Vec<_> =
        trail.iter().filter(|entry| entry.event == "list_changed").map(|entry| entry.detail.as_str()).collect();
    let expected = [
        "list partners replaced: 2 entries for 2 addresses from test, SHA-256 ",
        "list partners: entries added 0, removed 1: removed person:eve to 198.51.100.1/32",
        "list partners: entries added 1, removed 0: deny group:staff to 198.51.100.0/24",
    ];
    assert_eq!(details.len(), 3, "{details:?}");
    assert!(details.iter().zip(expected).all(|(detail, expected)| detail.starts_with(expected)), "{details:?}");
    assert!(trail.iter().any(|entry| entry.event == "revoked" && entry.detail.ends_with("a list changed")));
}

#[tokio::test]
async fn an_import_replaces_what_is_in_force_or_changes_nothing() {
    let stage = listed().await;
    let mut verifier = events(&stage.verifier("edge-1").await).await;
    let eve = stage.login("eve").await;
    let grant = eve.grant(&farm(1)).await.unwrap();
    let wrong = "{\"to\": \"198.51.100.3\", \"who\": [\"person:eve\"]}\n{\"to\": \"farm\", \"who\": [\"person:eve\"]}";
    let fault = import(&stage, wrong).await.unwrap_err();
    assert!(format!("{fault:#}").starts_with("test:2: `to`: `farm` is not an address"), "{fault:#}");
    assert_eq!(problem(eve.grant(&farm(3)).await).r#type, "no_rule");
    eve.grant(&farm(1)).await.unwrap();
    import(&stage, "{\"to\": \"198.51.100.3\", \"who\": [\"person:eve\"]}\n").await.unwrap();
    assert_eq!(revoked(&mut verifier).await, [handle(&grant)]);
    eve.grant(&farm(3)).await.unwrap();
    // The policy decides whose entries count.
    stage.apply(&policy().replace("\"group:staff\", \"person:eve\"", "\"group:staff\"")).await.unwrap();
    assert_eq!(revoked(&mut verifier).await.len(), 1);
    assert_eq!(problem(eve.grant(&farm(3)).await).r#type, "no_rule");
}

#[tokio::test]
async fn lists_are_in_force_after_a_restart_and_an_ended_entry_is_not() {
    let mut stage = listed().await;
    let ended = Line { until: Some("2020-01-01".into()), ..line("198.51.100.9", "person:eve") };
    let lasting = Line { until: Some("2099-12-31".into()), ..line("198.51.100.8", "person:eve") };
    change(&stage, vec![ended, lasting]).await;
    for _ in 0..2 {
        let eve = stage.login("eve").await;
        eve.grant(&farm(1)).await.unwrap();
        eve.grant(&farm(8)).await.unwrap();
        assert_eq!(problem(eve.grant(&farm(9)).await).r#type, "no_rule");
        stage.restart().await;
    }
    // Without the server, a change waits for it.
    stage.server.take().unwrap().stop().await;
    let done = change(&stage, vec![Line { remove: true, ..line("198.51.100.8", "person:eve") }]).await;
    assert!(done.contains("is not running"), "{done}");
    stage.restart_stopped().await;
    let eve = stage.login("eve").await;
    assert_eq!(problem(eve.grant(&farm(8)).await).r#type, "no_rule");
    let entries = lists::entries(&stage.directory, "partners", "198.51.100.1/32".parse().unwrap()).unwrap();
    assert_eq!((entries.len(), entries[0].who.as_str(), entries[0].note.as_str()), (1, "person:eve", "ticket 7"));
}

#[tokio::test]
async fn the_server_follows_a_command_that_was_killed_before_it_told() {
    let stage = listed().await;
    let eve = stage.login("eve").await;
    {
        // All that a command does before it tells the server.
        let lock = authority::lists::Store::lock(&stage.directory).unwrap();
        let mut store = authority::lists::Store::create(&stage.directory).unwrap();
        let by = authority::storage::Operator::current();
        store.change("partners", [(1, line("198.51.100.5", "person:eve"))], "test", (&by, authority::now())).unwrap();
        drop(lock);
    }
    let end = Instant::now() + Duration::from_secs(30);
    while eve.grant(&farm(5)).await.is_err() {
        assert!(Instant::now() < end, "the entry is not in force");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let is_audited = || {
        let trail = stage.database().audit_entries(None, 100).unwrap();
        trail.iter().filter(|entry| entry.event == "list_changed" && entry.detail.contains("198.51.100.5")).count() == 1
    };
    while !is_audited() {
        assert!(Instant::now() < end, "the entry is not in the audit trail");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn changes_from_a_file_are_in_force_batch_by_batch() {
    let stage = listed().await;
    let text = "{\"to\": \"198.51.100.4\", \"who\": [\"person:eve\", \"person:bob\"]}\n\n\
                {\"to\": \"198.51.100.1\", \"who\": [\"person:eve\"], \"remove\": true}\n";
    let mut batches = 0;
    let each = |changed: &authority::lists::Changed, _: &str| {
        assert_eq!((changed.put, changed.removed), (2, 1));
        batches += 1;
    };
    lists::change_all(&stage.directory, "partners", text.as_bytes(), "test", each).await.unwrap();
    assert_eq!(batches, 1);
    let eve = stage.login("eve").await;
    eve.grant(&farm(4)).await.unwrap();
    assert_eq!(problem(eve.grant(&farm(1)).await).r#type, "no_rule");
    let fault = lists::change_all(&stage.directory, "partners", "\n{}\n".as_bytes(), "test", |_, _| {}).await;
    assert!(format!("{:#}", fault.unwrap_err()).starts_with("test:2: missing field"));
}

#[tokio::test]
async fn a_backup_contains_the_lists() {
    let stage = listed().await;
    let mut copy = Vec::new();
    backup::write(&stage.directory, &mut copy, "test").unwrap();
    let room = tempfile::tempdir().unwrap();
    let restored = Directory::at(room.path().join("restored"));
    backup::restore(&restored, copy.as_slice(), "test", false).unwrap();
    let entries = lists::entries(&restored, "partners", "198.51.100.2/32".parse().unwrap()).unwrap();
    assert_eq!((entries.len(), entries[0].who.as_str()), (1, "person:alice"));
    assert_eq!(lists::summaries(&restored).unwrap().len(), 1);
    admin::apply_policy(&restored, None).await.unwrap();
}
