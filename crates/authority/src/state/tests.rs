//! Tests that no account waits for another account's queue. Each test fills mallory's queue while other accounts work.

use super::Authority;
use super::stage::{POLICY, SOURCE, Stage, git, soon};
use crate::http::problems::Problem;
use crate::push::events::Listener;
use crate::storage::{Database, Operator, TokenHash, Which};
use api::{Complaint, Confirm, Grant, Misconduct};
use engine::policy::preference::Choice;
use futures_util::{FutureExt, StreamExt};
use std::sync::Arc;
use tokio::task::{JoinHandle, yield_now};

async fn ask(authority: &Authority, token: TokenHash) -> Result<Grant, Problem> {
    let session = authority.sessions.get(&token).ok_or(Problem::NotLoggedIn)?;
    let turn = authority.queue.turn(&session.person).await;
    authority.grants.issue(&turn, token, &git(), SOURCE).await.map(|issued| issued.for_client())
}

/// Begins work in another task, and runs it until it waits.
async fn begin<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let task = tokio::spawn(work);
    // One thread runs both tasks.
    for _ in 0..100 {
        yield_now().await;
    }
    assert!(!task.is_finished(), "it was to wait");
    task
}

fn never(authority: &Arc<Authority>) -> impl Future<Output = Result<usize, Problem>> + 'static {
    let (authority, target) = (authority.clone(), "203.0.113.10".parse().unwrap());
    async move { authority.choices.choose("mallory", target, Some(Choice::Never), Operator::current()).await }
}

async fn live_of(authority: &Authority, person: &'static str) -> usize {
    let count = move |database: &mut Database| database.live_grants_of(person, crate::now());
    authority.storage.call(count).await.unwrap().len()
}

#[tokio::test]
async fn a_choice_that_waits_in_its_accounts_queue_delays_nobody() {
    let stage = Stage::new().await;
    let (authority, alice) = (&stage.authority, stage.login("alice").await);
    let mut choice = Box::pin(never(authority));
    // The choice is stored. The revocation that follows finds no room in the queue.
    let stored = std::future::poll_fn(|context| std::task::Poll::Ready(choice.as_mut().poll(context).is_ready()));
    let (done, held) = tokio::join!(biased; stored, stage.hold_next("mallory"));
    assert!(!done);
    let choice = begin(choice).await;
    while authority.preferences.of("mallory").all().is_empty() {
        yield_now().await;
    }
    assert!(soon(ask(authority, alice)).await.is_ok());
    assert!(soon(authority.sync.run()).await.is_ok());
    drop(held);
    assert!(choice.await.unwrap().is_ok());
}

#[tokio::test]
async fn no_grant_that_was_decided_before_a_choice_outlives_it() {
    let stage = Stage::new().await;
    let (authority, mallory) = (&stage.authority, stage.login("mallory").await);
    // Requests of mallory are in progress. One is decided by the earlier choices, and waits to be recorded, before the
    // choice is.
    let turns = futures_util::future::join_all((0..3).map(|_| authority.queue.turn("mallory"))).await;
    let held = authority.storage.hold("mallory");
    let asking = begin({
        let authority = authority.clone();
        async move { ask(&authority, mallory).await }
    })
    .await;
    let choice = begin(never(authority)).await;
    drop(held);
    // The choice does not wait for the requests that go on.
    assert!(soon(choice).await.unwrap().is_ok());
    assert!(asking.await.unwrap().is_ok());
    assert_eq!(live_of(authority, "mallory").await, 0);
    drop(turns);
    assert!(matches!(ask(authority, mallory).await, Err(Problem::Withheld(_))));
}

#[tokio::test]
async fn a_login_that_waits_in_its_accounts_queue_delays_no_announcement() {
    let stage = Stage::new().await;
    let proof = stage.proof("mallory").await;
    let held = stage.authority.storage.hold("mallory");
    let stage = Arc::new(stage);
    let login = begin({
        let stage = stage.clone();
        async move { stage.begin("mallory", proof).await }
    })
    .await;
    assert!(soon(stage.authority.sync.run()).await.is_ok());
    drop(held);
    let mallory = login.await.unwrap();
    assert!(stage.authority.sessions.get(&mallory).is_some());
}

#[tokio::test]
async fn a_grant_that_waits_in_its_accounts_queue_delays_no_policy_and_escapes_none() {
    let stage = Stage::new().await;
    let authority = &stage.authority;
    let (alice, mallory) = (stage.login("alice").await, stage.login("mallory").await);
    let held = authority.storage.hold("mallory");
    let asking = begin({
        let authority = authority.clone();
        async move { ask(&authority, mallory).await }
    })
    .await;
    let without_mallory = POLICY.replace(", \"person:mallory\"", "");
    assert!(soon(authority.enforcer.apply(Some(without_mallory), String::new(), None, None)).await.is_ok());
    assert!(soon(ask(authority, alice)).await.is_ok());
    drop(held);
    // The policy that would have allowed it is no longer in force.
    assert!(matches!(asking.await.unwrap(), Err(Problem::Denied(..))));
    assert_eq!(live_of(authority, "mallory").await, 0);
}

#[tokio::test]
async fn a_refusal_that_waits_in_its_accounts_queue_delays_no_policy() {
    let stage = Stage::new().await;
    let authority = &stage.authority;
    let (alice, eve) = (stage.login("alice").await, stage.login("eve").await);
    let held = authority.storage.hold("eve");
    let asking = begin({
        let authority = authority.clone();
        async move { ask(&authority, eve).await }
    })
    .await;
    assert!(soon(authority.enforcer.reevaluate("a test")).await.is_ok());
    assert!(soon(ask(authority, alice)).await.is_ok());
    drop(held);
    assert!(matches!(asking.await.unwrap(), Err(Problem::Denied(..))));
}

/// The work completes although the client ends its request, for example by closing the connection.
#[tokio::test]
async fn a_revocation_is_announced_though_the_request_that_synchronises_ends() {
    let stage = Stage::new().await;
    let authority = &stage.authority;
    let alice = stage.login("alice").await;
    assert!(ask(authority, alice).await.is_ok());
    let mut heard = authority.push.open(Listener::Verifier("edge-1".into()), Confirm::Nothing);
    let which = Which::Person("alice".into());
    let revoke = move |database: &mut Database| database.revoke(&which, &Operator::current(), crate::now());
    authority.storage.call(revoke).await.unwrap();
    let (begin, begun) = std::sync::mpsc::channel::<()>();
    let mut busy = Box::pin(authority.storage.call(move |_| Ok(begun.recv()?)));
    assert!(busy.as_mut().now_or_never().is_none());
    let mut sync = Box::pin(authority.sync.run());
    assert!(sync.as_mut().now_or_never().is_none());
    drop(sync);
    begin.send(()).unwrap();
    let announced = async { while !heard.next().await.is_some_and(|event| event.contains("sessions_revoked")) {} };
    soon(announced).await;
    // The run did not get to the segments. The server sees this within a second, and runs again.
    assert!(authority.sync.is_unfinished());
    assert!(soon(authority.sync.run()).await.is_ok());
    assert!(!authority.sync.is_unfinished());
}

/// The points are taken off although the application hangs up, so what follows from them must happen, too.
#[tokio::test]
async fn a_complaint_ends_grants_though_the_application_hangs_up() {
    let stage = Stage::with("scores = { low = 90 }\n").await;
    let authority = &stage.authority;
    let rule = "[[rules]]\naction = \"deny\"\nwho = \"tag:low-score\"\nto = \"git\"\n";
    authority.enforcer.apply(Some(format!("{POLICY}{rule}")), String::new(), None, None).await.unwrap();
    let alice = stage.login("alice").await;
    let grant = ask(authority, alice).await.unwrap_or_else(|problem| panic!("{:?}", problem.said()));
    let handle = u64::from_str_radix(&grant.header[16..], 16).unwrap();
    let complaint = Complaint { handle, application: "shop".into(), about: Misconduct::Abuse, points: None };
    let (begin, begun) = std::sync::mpsc::channel::<()>();
    let mut busy = Box::pin(authority.storage.call(move |_| Ok(begun.recv()?)));
    assert!(busy.as_mut().now_or_never().is_none());
    let mut complaining = Box::pin(authority.scores.complain("edge-1", complaint));
    assert!(complaining.as_mut().now_or_never().is_none());
    drop(complaining);
    begin.send(()).unwrap();
    soon(authority.scores.follow_time()).await.unwrap();
    assert_eq!(live_of(authority, "alice").await, 0);
    assert!(matches!(ask(authority, alice).await, Err(Problem::Denied(..))));
    let changes = |database: &mut Database| database.unevaluated_changes();
    assert_eq!(authority.storage.call(changes).await.unwrap(), None, "the grants are evaluated once");
}

/// Without its announcement, the verifier does not know whose packets a handle's are.
#[tokio::test]
async fn a_handle_is_announced_by_the_next_request_if_the_first_one_is_cancelled() {
    let stage = Stage::new().await;
    let authority = &stage.authority;
    let alice = stage.login("alice").await;
    let mut heard = authority.push.open(Listener::Verifier("edge-1".into()), Confirm::Nothing);
    let held = authority.storage.call(|_| Ok(())).await;
    assert!(held.is_ok());
    let (begin, begun) = std::sync::mpsc::channel::<()>();
    let mut busy = Box::pin(authority.storage.call(move |_| Ok(begun.recv()?)));
    assert!(busy.as_mut().now_or_never().is_none());
    let mut asking = Box::pin(ask(authority, alice));
    assert!(asking.as_mut().now_or_never().is_none());
    drop(asking);
    begin.send(()).unwrap();
    soon(busy).await.unwrap();
    while live_of(authority, "alice").await == 0 {
        yield_now().await;
    }
    assert!(soon(ask(authority, alice)).await.is_ok());
    assert_eq!(live_of(authority, "alice").await, 1, "it is another lease of the same grant");
    soon(async { while !heard.next().await.is_some_and(|event| event.contains("granted")) {} }).await;
}
