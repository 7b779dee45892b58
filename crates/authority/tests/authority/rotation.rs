//! Rotation of the master key: its effects on verifiers, grants and sessions.

use crate::stage::{Stage, events, git, handle, next, revoked};
use api::{EpochKey, Event};
use authority::admin;

fn differ(before: &[EpochKey], after: &[EpochKey]) -> Vec<bool> {
    before.iter().zip(after).map(|(before, after)| before.epoch == after.epoch && before.key != after.key).collect()
}

#[tokio::test]
async fn a_key_that_follows_changes_nothing_that_is_in_use() {
    let mut stage = Stage::start().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    alice.grant(&git()).await.unwrap();
    let (mut to_alice, mut to_verifier) = (events(&alice).await, events(&verifier).await);
    let before = verifier.keys(4).await.unwrap().keys;
    admin::rotate_master_key(&stage.directory, false).await.unwrap();
    assert_eq!(next(&mut to_verifier).await, Event::Policy, "it is told to read anew");
    assert_eq!(next(&mut to_alice).await, Event::Policy, "and sessions are told of no revocation");
    let after = verifier.keys(4).await.unwrap().keys;
    let expected = [false, false, false, true, true, true];
    assert_eq!(differ(&before, &after), expected);
    let error = admin::rotate_master_key(&stage.directory, false).await.unwrap_err();
    assert!(error.to_string().contains("takes effect only in"), "{error:#}");
    stage.restart().await;
    assert_eq!(differ(&before, &verifier.keys(4).await.unwrap().keys), expected, "it outlives the server");
    let last = stage.database().audit_entries(None, 100).unwrap();
    assert!(last.iter().any(|entry| entry.event == "master_key_rotated" && entry.operator.is_some()));
}

#[tokio::test]
async fn a_replaced_key_makes_agents_ask_anew_and_revokes_nothing() {
    let stage = Stage::start().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let grant = alice.grant(&git()).await.unwrap();
    let mut to_alice = events(&alice).await;
    let before = verifier.keys(4).await.unwrap().keys;
    admin::rotate_master_key(&stage.directory, true).await.unwrap();
    assert_eq!(revoked(&mut to_alice).await, [handle(&grant)]);
    assert_eq!(differ(&before, &verifier.keys(4).await.unwrap().keys), [true; 6]);
    assert!(verifier.config().await.unwrap().revoked.is_empty(), "its flows are not to be cut");
    alice.grant(&git()).await.unwrap();
}
