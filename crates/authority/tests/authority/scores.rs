//! Scores: complaints of applications lower them, and the policy acts on low ones.

use crate::stage::{POLICY, Stage, events, git, handle, problem, revoked};
use api::{Complaint, Misconduct};
use authority::admin;

const RULES: &str = "
[[rules]]
action = \"allow\"
who = \"person:eve\"
to = \"git\"

[[rules]]
action = \"deny\"
who = \"tag:low-score\"
to = \"git\"
";

async fn stage(scores: &str) -> Stage {
    let stage = Stage::start_with(scores).await;
    stage.apply(&format!("{POLICY}{RULES}")).await.unwrap();
    stage
}

fn abuse(handle: u64, points: u32) -> Complaint {
    Complaint { handle, application: "shop".into(), about: Misconduct::Abuse, points: Some(points) }
}

#[tokio::test]
async fn a_low_score_ends_grants_survives_a_restart_and_ends_by_a_reset() {
    let mut stage = stage("scores = {}\n").await;
    let verifier = stage.verifier("edge-1").await;
    let (alice, eve) = (stage.login("alice").await, stage.login("eve").await);
    let (hers, his) = (alice.grant(&git()).await.unwrap(), eve.grant(&git()).await.unwrap());
    let mut to_alice = events(&alice).await;
    assert_eq!(verifier.complain(&abuse(handle(&hers), 20)).await.unwrap().score, 80);
    assert_eq!(verifier.complain(&abuse(handle(&hers), 20)).await.unwrap().score, 60);
    alice.grant(&git()).await.unwrap();
    assert_eq!(verifier.complain(&abuse(handle(&hers), 20)).await.unwrap().score, 40);
    assert!(revoked(&mut to_alice).await.contains(&handle(&hers)));
    assert_eq!(problem(alice.grant(&git()).await).r#type, "denied");
    eve.grant(&git()).await.unwrap();
    let live = stage.database().grants(authority::now(), false).unwrap();
    assert!(
        live.iter().any(|grant| grant.handle.0 == handle(&his)) && live.iter().all(|grant| grant.person != "alice")
    );

    stage.restart().await;
    assert_eq!(problem(alice.grant(&git()).await).r#type, "denied");
    let (alice_again, by) = (stage.login("alice").await, admin::reset_score(&stage.directory, "alice").await.unwrap());
    assert!(by.is_some() && admin::reset_score(&stage.directory, "alice").await.unwrap().is_none());
    alice_again.grant(&git()).await.unwrap();
    let audit = stage.database().audit_entries(Some("alice"), 50).unwrap();
    let count = |event: &str| audit.iter().filter(|entry| entry.event == event).count();
    assert_eq!((count("complaint"), count("score_low"), count("score_reset")), (3, 1, 1));
}

#[tokio::test]
async fn a_score_recovers_with_time() {
    let stage = stage("scores = { half_life = \"10s\", low = 45 }\n").await;
    let verifier = stage.verifier("edge-1").await;
    let alice = stage.login("alice").await;
    let hers = alice.grant(&git()).await.unwrap();
    for _ in 0..3 {
        verifier.complain(&abuse(handle(&hers), 20)).await.unwrap();
    }
    assert_eq!(problem(alice.grant(&git()).await).r#type, "denied");
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while alice.grant(&git()).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the score does not recover");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn one_application_lowers_few_scores_and_only_of_those_whom_its_verifier_serves() {
    let stage = stage("scores = { per_application = 70 }\n").await;
    let (verifier, other) = (stage.verifier("edge-1").await, stage.verifier("edge-2").await);
    let (alice, eve) = (stage.login("alice").await, stage.login("eve").await);
    let [hers, his] =
        [alice.grant(&git()).await.unwrap(), eve.grant(&git()).await.unwrap()].map(|grant| handle(&grant));
    assert_eq!(problem(other.complain(&abuse(hers, 20)).await).status, 404, "another verifier's grant");
    assert_eq!(problem(verifier.complain(&abuse(hers ^ 1, 20)).await).status, 404);
    for wrong in [0, 21] {
        assert_eq!(problem(verifier.complain(&abuse(hers, wrong)).await).r#type, "malformed");
    }
    for _ in 0..3 {
        verifier.complain(&abuse(hers, 20)).await.unwrap();
    }
    assert_eq!(problem(verifier.complain(&abuse(hers, 1)).await).status, 429, "enough about one person");
    verifier.complain(&abuse(his, 10)).await.unwrap();
    assert_eq!(problem(verifier.complain(&abuse(his, 1)).await).status, 429, "enough of one application");
    let mut another = Complaint { application: "wiki".into(), ..abuse(his, 20) };
    assert_eq!(verifier.complain(&another).await.unwrap().score, 70, "another application has its own say");
    // All applications of a verifier together: 280 points, of which 90 are used.
    let mut taken = 90;
    for number in 0..20 {
        another = Complaint { application: format!("made-up-{number}"), ..abuse(his, 20) };
        taken += if verifier.complain(&another).await.is_ok() { 20 } else { 0 };
    }
    assert_eq!(taken, 270, "a verifier that makes up applications");
}

#[tokio::test]
async fn scores_are_off_unless_configured_and_nobody_gives_the_tag_by_hand() {
    let stage = stage("").await;
    let verifier = stage.verifier("edge-1").await;
    let alice = stage.login("alice").await;
    let hers = alice.grant(&git()).await.unwrap();
    let refused = problem(verifier.complain(&abuse(handle(&hers), 20)).await);
    assert!(refused.status == 404 && refused.title.contains("[scores]"), "{refused:?}");
    let tag = admin::tag_device(&stage.directory, "alice", "laptop", &["low-score".into()]).await;
    assert!(tag.unwrap_err().to_string().contains("low-score"));
}
