//! Commands that end grants return after the connected verifiers have confirmed, and name those that have not.

use crate::stage::*;
use api::{Confirm, Event};
use authority::admin::{self, Revoked, SegmentFilter};
use authority::storage::Which;
use client::{Authority, EventStream};
use std::time::{Duration, Instant};
use wire::Handle;

/// Longest time that a command may take that waits for nobody, also on a loaded machine.
const NO_WAIT: Duration = Duration::from_secs(2);
/// Longest time that a command may take that waits for a verifier in vain.
const IN_VAIN: Duration = Duration::from_secs(10);

/// Opens the stream of a verifier that confirms marks, and confirms the first one.
async fn marked(verifier: &Authority) -> EventStream {
    let mut stream = verifier.marked_events(Confirm::Nothing);
    let (events, mark) = until_mark(&mut stream).await;
    assert_eq!(events, [Event::Hello]);
    verifier.confirm_mark(mark).await.unwrap();
    stream
}

/// Returns the events up to the next mark, and the mark.
async fn until_mark(stream: &mut EventStream) -> (Vec<Event>, u64) {
    let mut events = Vec::new();
    loop {
        match next(stream).await {
            Event::Mark { mark } => return (events, mark),
            event => events.push(event),
        }
    }
}

/// Begins to revoke everything that a person has.
fn revoking(stage: &Stage, person: &str) -> tokio::task::JoinHandle<Revoked> {
    let (directory, which) = (stage.directory.clone(), Which::Person(person.into()));
    tokio::spawn(async move { admin::revoke(&directory, &which).await.unwrap() })
}

#[tokio::test]
async fn a_revocation_returns_when_the_last_verifier_has_confirmed() {
    let stage = Stage::start().await;
    let (alice, verifier, other) =
        (stage.login("alice").await, stage.verifier("edge-1").await, stage.verifier("edge-2").await);
    // Two gateways with one enrolment.
    let (mut first, mut second, _bystander) = (marked(&verifier).await, marked(&verifier).await, marked(&other).await);
    alice.grant(&git()).await.unwrap();
    let revoked = revoking(&stage, "alice");
    let mut marks = Vec::new();
    for stream in [&mut first, &mut second] {
        let (events, mark) = until_mark(stream).await;
        assert!(events.iter().any(|event| matches!(event, Event::SessionsRevoked { .. })), "{events:?}");
        marks.push(mark);
    }
    assert_eq!(problem(other.confirm_mark(marks[1]).await).status, 404, "this mark is not the other one's");
    verifier.confirm_mark(marks[0]).await.unwrap();
    assert!(!revoked.is_finished(), "the second gateway has not confirmed");
    verifier.confirm_mark(marks[1]).await.unwrap();
    let revoked = revoked.await.unwrap();
    assert!(revoked.announced && revoked.followed.is_complete(), "{revoked:?}");
    assert_eq!(problem(verifier.confirm_mark(marks[1]).await).status, 404, "a mark is confirmed once");
}

#[tokio::test]
async fn a_person_who_logs_out_and_a_policy_wait_for_verifiers_too() {
    let stage = Stage::start().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let mut stream = marked(&verifier).await;
    alice.grant(&git()).await.unwrap();
    let leaving = tokio::spawn(async move { alice.logout().await.map(drop) });
    let (_, mark) = until_mark(&mut stream).await;
    assert!(!leaving.is_finished());
    verifier.confirm_mark(mark).await.unwrap();
    leaving.await.unwrap().unwrap();

    let file = stage.directory.path().join("next.toml");
    std::fs::write(&file, format!("{POLICY}\n# changed\n")).unwrap();
    let directory = stage.directory.clone();
    let applying = tokio::spawn(async move { admin::apply_policy(&directory, Some(&file)).await });
    let (events, mark) = until_mark(&mut stream).await;
    assert!(events.contains(&Event::Policy) && !applying.is_finished(), "{events:?}");
    verifier.confirm_mark(mark).await.unwrap();
    let said = applying.await.unwrap().unwrap();
    assert!(!said.contains("edge-1"), "{said}");
}

#[tokio::test]
async fn verifiers_that_do_not_confirm_are_named_and_hold_up_nobody_else() {
    let stage = Stage::start().await;
    let (alice, late) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let (old, _gone) = (stage.verifier("edge-2").await, stage.verifier("edge-3").await);
    let (mut stream, _unable) = (marked(&late).await, events(&old).await);
    alice.grant(&git()).await.unwrap();

    let begun = Instant::now();
    let revoked = revoking(&stage, "alice");
    let (_, mark) = until_mark(&mut stream).await;
    let asked = Instant::now();
    admin::segments(&stage.directory, SegmentFilter { network: None, person: None, limit: 1 }).await.unwrap();
    assert!(!revoked.is_finished() || asked.elapsed() < NO_WAIT, "another command waits for the verifier");
    let revoked = revoked.await.unwrap();
    let waited = begun.elapsed();
    assert!(waited < IN_VAIN, "{waited:?}");
    let heard = &revoked.followed.verifiers;
    assert_eq!((&heard.late[..], &heard.unable[..]), (&["edge-1".to_owned()][..], &["edge-2".to_owned()][..]));
    assert_eq!(heard.absent, ["edge-3"]);
    assert!(revoked.followed.is_late() && !revoked.followed.is_complete());

    // It is not waited for again.
    let alice = stage.login("alice").await;
    alice.grant(&git()).await.unwrap();
    let begun = Instant::now();
    let revoked = revoking(&stage, "alice").await.unwrap();
    assert_eq!(revoked.followed.verifiers.late, ["edge-1"]);
    assert!(begun.elapsed() < waited, "{:?} after {waited:?}", begun.elapsed());

    // As soon as it confirms, it counts again.
    late.confirm_mark(mark).await.unwrap();
    let (_, mark) = until_mark(&mut stream).await;
    late.confirm_mark(mark).await.unwrap();
    let revoked = revoking(&stage, "alice").await.unwrap();
    assert!(!revoked.followed.is_late(), "{revoked:?}");
}

#[tokio::test]
async fn many_revocations_in_a_row_take_one_mark_at_a_time() {
    let stage = Stage::start().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let mut stream = marked(&verifier).await;
    let mut handles = Vec::new();
    for port in [22, 443] {
        let protocol = if port == 22 { 6 } else { 17 };
        handles.push(Handle(handle(&alice.grant(&to("203.0.113.10", protocol, port)).await.unwrap())));
    }
    let revokes = handles.into_iter().map(|handle| {
        let directory = stage.directory.clone();
        tokio::spawn(async move { admin::revoke(&directory, &Which::Grant(handle)).await.unwrap() })
    });
    let revokes: Vec<_> = revokes.collect();
    let mut confirmed = 0;
    while revokes.iter().any(|revoke| !revoke.is_finished()) {
        // The mark that is open covers what was announced before it; the next one comes after its confirmation.
        let news = tokio::time::timeout(Duration::from_millis(100), until_mark(&mut stream)).await;
        if let Ok((_, mark)) = news {
            verifier.confirm_mark(mark).await.unwrap();
            confirmed += 1;
        }
    }
    assert!((1..=2).contains(&confirmed), "{confirmed} marks for two revocations");
    for revoke in revokes {
        assert!(revoke.await.unwrap().followed.is_complete());
    }
}
