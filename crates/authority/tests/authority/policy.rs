//! Policies as versions, replay of past requests by drafts, and rules that depend on changing inputs: the time, and the
//! tags of a device.

use crate::stage::*;
use api::Event;
use authority::policy::replay::{Case, Replay};
use authority::storage::Database;
use authority::{admin, now};
use engine::policy::networks::Networks;
use engine::policy::{Compiled, Policy};

#[tokio::test]
async fn a_window_that_closes_cuts_what_it_allowed() {
    let stage = Stage::start().await;
    // Truncated to whole seconds, this leaves 2 to 3 s for the steps before the window closes; `next` waits 5 s.
    let closes = now() + 3;
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
    // The tag belongs to the device: it survives a restart, and applies to another session from the device.
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

#[tokio::test]
async fn every_policy_in_force_is_a_version_that_can_be_put_back() {
    let mut stage = Stage::start().await;
    let database = || Database::open(&stage.directory.database()).unwrap();
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let closed = POLICY.replace("\"tcp/22\", ", "");
    stage.apply(&closed).await.unwrap();
    assert_eq!(problem(alice.grant(&git()).await).r#type, "no_receiver");

    let text = admin::roll_back_policy(&stage.directory, 1).await.unwrap();
    assert!(text.starts_with("version 3: "), "{text}");
    assert!(alice.grant(&git()).await.is_ok());
    assert_eq!(std::fs::read_to_string(stage.directory.policy()).unwrap(), POLICY);
    let notes: Vec<_> = database().policies().unwrap().into_iter().map(|v| (v.version, v.note)).collect();
    assert_eq!(notes[0], (3, "rollback to 1".into()));
    assert!(notes[1].1.starts_with("apply ") && notes[1].1.ends_with("next.toml"));
    assert_eq!(notes[2], (1, "found at start".into()));
    assert_eq!(
        (database().policy_text(1).unwrap(), database().policy_text(2).unwrap()),
        (POLICY.into(), closed.clone())
    );
    let mut digests: Vec<_> = database().policies().unwrap().into_iter().map(|v| (v.sha256, v.operator)).collect();
    assert_eq!(digests[0].0, digests[2].0);
    assert!(digests.remove(0).1.unwrap().starts_with("uid "));
    let error = admin::roll_back_policy(&stage.directory, 9).await.unwrap_err().to_string();
    assert!(error.contains("no version 9"), "{error}");

    let audited = database().audit_entries(None, 100).unwrap();
    let audited: Vec<_> = audited.iter().filter(|entry| entry.event == "policy").collect();
    assert_eq!(audited.len(), 3);
    assert!(audited[2].detail.starts_with("version 3 (sha256 ") && audited[2].detail.contains("rollback to 1"));
    assert!(audited[2].operator.is_some() && audited[0].operator.is_none());

    // An edit while no server runs creates a version when the server starts. So does a policy that is applied while no
    // server runs.
    stage.server.take().unwrap().stop().await;
    std::fs::write(stage.directory.path().join("next.toml"), &closed).unwrap();
    let text = admin::apply_policy(&stage.directory, Some(&stage.directory.path().join("next.toml"))).await.unwrap();
    assert!(text.starts_with("version 4: ") && text.contains("is not running"), "{text}");
    std::fs::write(stage.directory.policy(), format!("{closed}\n# edited\n")).unwrap();
    stage.restart_stopped().await;
    assert_eq!(problem(alice.grant(&git()).await).r#type, "no_receiver");
    assert_eq!(verifier.config().await.unwrap().revoked.len(), 1);
    let versions = Database::open(&stage.directory.database()).unwrap().policies().unwrap();
    assert_eq!((versions[0].version, versions[0].note.as_str()), (5, "found at start"));
    stage.restart().await;
    assert_eq!(Database::open(&stage.directory.database()).unwrap().policies().unwrap().len(), 5);
}

const FAILING_TEST: &str = "\n[[tests]]\nname = \"bob is out\"\nwho = \"person:bob\"\nto = \"203.0.113.10:22\"\n\
                            expect = \"allow\"\n";

#[tokio::test]
async fn a_policy_whose_own_tests_fail_changes_nothing() {
    let stage = Stage::start().await;
    let alice = stage.login("alice").await;
    let wrong = POLICY.replace("\"tcp/22\", ", "") + FAILING_TEST;
    let error = stage.apply(&wrong).await.unwrap_err().to_string();
    assert!(error.contains("next.toml:"), "{error}");
    assert!(error.contains("bob is out: expected allow, but nothing is protected"), "{error}");
    assert_eq!(std::fs::read_to_string(stage.directory.policy()).unwrap(), POLICY);
    std::fs::write(stage.directory.policy(), &wrong).unwrap();
    assert!(admin::apply_policy(&stage.directory, None).await.is_err());
    assert!(alice.grant(&git()).await.is_ok());
    assert_eq!(Database::open(&stage.directory.database()).unwrap().policies().unwrap().len(), 1);
    stage.apply(&(POLICY.to_owned() + &FAILING_TEST.replace("expect = \"allow\"", "expect = \"deny\""))).await.unwrap();
}

#[tokio::test]
async fn a_file_that_cant_be_replaced_leaves_no_version() {
    let stage = Stage::start().await;
    let alice = stage.login("alice").await;
    // A file cannot replace a directory, so writing the policy fails.
    std::fs::remove_file(stage.directory.policy()).unwrap();
    std::fs::create_dir(stage.directory.policy()).unwrap();
    let error = format!("{:#}", stage.apply(&POLICY.replace("\"tcp/22\", ", "")).await.unwrap_err());
    assert!(error.contains("cannot replace"), "{error}");
    assert!(alice.grant(&git()).await.is_ok());
    let database = Database::open(&stage.directory.database()).unwrap();
    assert_eq!(database.policies().unwrap().len(), 1);
    assert!(database.grants(now(), false).unwrap().len() == 1);
}

#[tokio::test]
async fn a_file_without_end_is_refused() {
    let stage = Stage::start().await;
    let error = admin::apply_policy(&stage.directory, Some("/dev/zero".as_ref())).await.unwrap_err().to_string();
    assert!(error.contains("/dev/zero:1:1: the policy exceeds"), "{error}");
    stage.login("alice").await.grant(&git()).await.unwrap();
}

#[tokio::test]
async fn a_draft_is_tried_on_what_was_asked_for() {
    let stage = Stage::start().await;
    let (alice, bob) = (stage.login("alice").await, stage.login("bob").await);
    alice.grant(&git()).await.unwrap();
    stage.login("alice").await.grant(&git()).await.unwrap();
    alice.grant(&to("203.0.113.70", 6, 80)).await.unwrap();
    problem(bob.grant(&git()).await);
    let replay = |draft: &str, since: u64| {
        let draft = Compiled::new(Policy::parse(draft, 3600).unwrap()).unwrap();
        let database = Database::open(&stage.directory.database()).unwrap();
        let replay = Replay::of(&draft, &database, since).unwrap();
        let words = |cases: Vec<Case>| {
            let word = |case: Case| format!("{} {}x {} {}", case.person, case.times, case.to, case.why);
            cases.into_iter().map(word).collect::<Vec<_>>()
        };
        ((replay.grants, replay.refusals), words(replay.refused), words(replay.allowed))
    };
    let none = Vec::<String>::new();
    assert_eq!(replay(POLICY, now() - 60), ((3, 1), none.clone(), none.clone()));
    let draft = POLICY.replace("person:bob", "person:alice");
    let (asked, refused, allowed) = replay(&draft, now() - 60);
    assert_eq!((asked, refused.len(), allowed.len()), ((3, 1), 1, 1));
    assert!(
        refused[0].starts_with("alice 2x 203.0.113.10 tcp/22 alice may not reach 203.0.113.10 tcp/22"),
        "{refused:?}"
    );
    assert!(allowed[0].starts_with("bob 1x 203.0.113.10 tcp/22 bob may reach 203.0.113.10 tcp/22"), "{allowed:?}");
    // The grants can be renewed until their session ends.
    assert_eq!(replay(&draft, now() + 2 * 86_400), ((0, 0), none.clone(), none));
    // Old refusals are deleted.
    let mut database = Database::open(&stage.directory.database()).unwrap();
    database.prune(now() + 8 * 86_400, 30 * 86_400, 365 * 86_400).unwrap();
    assert_eq!(database.refusals(0).unwrap().len(), 0);
}

/// Formats a time as in the policy file.
fn written(time: u64) -> String {
    let database = rusqlite::Connection::open_in_memory().unwrap();
    let write = "SELECT strftime('%Y-%m-%dT%H:%M:%SZ', ?1, 'unixepoch')";
    database.query_row(write, [time.cast_signed()], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_service_account_that_a_rule_names_is_somebody() {
    let stage = Stage::start().await;
    admin::add_service(&stage.directory, "robot", &[], &[]).await.unwrap();
    let rule = "[[rules]]\naction = \"allow\"\nwho = [\"person:robot\", \"person:nobody\"]\nto = \"git\"\n";
    let policy = Policy::parse(&format!("{POLICY}{rule}"), 3600).unwrap();
    let unknown = admin::unknown_names(&stage.directory, &policy, &Networks::default()).unwrap();
    let persons: Vec<_> = unknown.iter().filter(|said| said.starts_with("no account")).collect();
    assert_eq!(persons, ["no account nobody: `vouchsafe authority user add nobody` adds it"]);
}
