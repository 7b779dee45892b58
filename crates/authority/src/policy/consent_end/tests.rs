use crate::http::problems::Problem;
use crate::policy::access::{Asking, Deciding};
use crate::state::Authority;
use crate::state::stage::{SOURCE, Stage, policy_with_delegation, soon};
use crate::storage::{Database, Operator, TokenHash, revocations_line};
use api::GrantRequest;
use engine::policy::delegation::RequestId;
use std::time::Duration;

fn done<T>(result: Result<T, Problem>) -> T {
    result.unwrap_or_else(|problem| panic!("{:?}", problem.said()))
}

async fn delegated() -> Stage {
    let stage = Stage::new().await;
    let text = policy_with_delegation(r#"["person:eve", "person:mallory"]"#);
    stage.authority.enforcer.apply(Some(text), String::new(), None, None).await.unwrap();
    stage
}

fn to_db() -> GrantRequest {
    let address = "203.0.113.20".parse().unwrap();
    GrantRequest { address, protocol: 6, port: 5432, consented: false, in_band: false }
}

/// Lets alice consent to a person's request, and gives the person a grant by it.
async fn consent(authority: &Authority, alice: TokenHash, person: &str, token: TokenHash) -> RequestId {
    let session = authority.sessions.get(&token).unwrap();
    let asking = Asking { receiver: "db", services: &[], lifetime: None, reason: "" };
    let id = done(authority.access.ask(&session, token, SOURCE, asking).await);
    let delegate = authority.sessions.get(&alice).unwrap();
    let deciding = Deciding { allow: Some((vec!["tcp/5432".into()], 3600)), note: "" };
    done(authority.access.decide(&delegate, alice, Operator::current(), id, deciding).await);
    let turn = authority.queue.turn(person).await;
    done(authority.grants.issue(&turn, token, &to_db(), SOURCE).await);
    id
}

async fn live_of(authority: &Authority, person: &'static str) -> usize {
    let count = move |database: &mut Database| database.live_grants_of(person, crate::now());
    authority.storage.call(count).await.unwrap().len()
}

async fn loses_grants(authority: &Authority, person: &'static str) {
    while live_of(authority, person).await > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn people_whose_consents_end_do_not_wait_for_each_other() {
    let stage = delegated().await;
    let authority = &stage.authority;
    let alice = stage.login("alice").await;
    for person in ["eve", "mallory"] {
        let token = stage.login(person).await;
        consent(authority, alice, person, token).await;
    }
    let file = rusqlite::Connection::open(authority.directory.database()).unwrap();
    file.busy_timeout(Duration::from_secs(5)).unwrap();
    file.execute("UPDATE access_requests SET until = ?1", [crate::now().cast_signed()]).unwrap();
    file.execute("UPDATE consent_changes SET made = made + 1", []).unwrap();
    authority.sync.run().await.unwrap();
    // Nothing that ends eve's access gets its turn.
    let held = authority.storage.hold(&revocations_line("eve"));
    assert!(soon(authority.access.follow_time()).await.is_ok());
    soon(loses_grants(authority, "mallory")).await;
    assert!(soon(authority.access.follow_time()).await.is_ok());
    assert_eq!(live_of(authority, "eve").await, 1);
    drop(held);
    soon(loses_grants(authority, "eve")).await;
}

#[tokio::test]
async fn another_member_finishes_what_one_has_left_undone() {
    let stage = delegated().await;
    let authority = &stage.authority;
    let (alice, mallory) = (stage.login("alice").await, stage.login("mallory").await);
    let id = consent(authority, alice, "mallory", mallory).await;
    // The member that withdraws the consent fails before it examines the grants.
    let withdraw =
        move |database: &mut Database| database.withdraw_access(id, None, &Operator::current(), crate::now());
    assert!(authority.storage.call(withdraw).await.unwrap().is_some());
    // At first, the others leave the examination to it.
    authority.access.follow_time().await.unwrap();
    assert_eq!(live_of(authority, "mallory").await, 1);
    authority.access.follow_time().await.unwrap();
    soon(loses_grants(authority, "mallory")).await;
    soon(async {
        while !authority.storage.call(|database| database.unexamined()).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn several_examinations_revoke_a_grant_once() {
    let stage = delegated().await;
    let authority = &stage.authority;
    let (alice, mallory) = (stage.login("alice").await, stage.login("mallory").await);
    let id = consent(authority, alice, "mallory", mallory).await;
    let withdraw = move |database: &mut Database| {
        database.withdraw_access(id, None, &Operator::current(), crate::now())?;
        database.unexamined()
    };
    let left = authority.storage.call(withdraw).await.unwrap();
    let (one, other) = tokio::join!(authority.access.examine(&left[0]), authority.access.examine(&left[0]));
    assert!(one.is_ok() && other.is_ok());
    assert!(authority.access.examine(&left[0]).await.is_ok());
    assert_eq!(live_of(authority, "mallory").await, 0);
    let entries = authority.storage.call(|database| database.audit_entries(Some("mallory"), 100)).await.unwrap();
    assert_eq!(entries.iter().filter(|entry| entry.event == "revoked").count(), 1);
}

/// A person who has a consent chooses how many requests are in progress, and how long they take.
#[tokio::test]
async fn no_request_of_a_person_delays_the_end_of_their_consent_or_escapes_it() {
    let stage = delegated().await;
    let authority = &stage.authority;
    let (alice, mallory) = (stage.login("alice").await, stage.login("mallory").await);
    let id = consent(authority, alice, "mallory", mallory).await;
    // Requests that do not end, and no room in mallory's queue.
    let turns = futures_util::future::join_all((0..3).map(|_| authority.queue.turn("mallory"))).await;
    let held = authority.storage.hold("mallory");
    let asking = tokio::spawn({
        let authority = authority.clone();
        async move {
            let turn = authority.queue.turn("mallory").await;
            // From another address, so that it is another grant.
            let source = "192.0.2.99".parse().unwrap();
            authority.grants.issue(&turn, mallory, &to_db(), source).await.map(drop)
        }
    });
    // One thread runs both tasks: the request is decided, and waits to be recorded.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!asking.is_finished());
    let delegate = authority.sessions.get(&alice).unwrap();
    done(soon(authority.access.withdraw(&delegate, Operator::current(), id)).await);
    assert_eq!(live_of(authority, "mallory").await, 0);
    drop(held);
    assert!(matches!(soon(asking).await.unwrap(), Err(Problem::Denied(..))));
    assert_eq!(live_of(authority, "mallory").await, 0);
    drop(turns);
}
