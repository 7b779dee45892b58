//! The end of a session: whatever ends it, verifiers are notified by one statement.

use crate::stage::*;
use authority::storage::{Operator, RevokedCounts, Which};
use authority::{admin, now};
use std::time::{Duration, SystemTime};
use wire::{Handle, Holder};

#[tokio::test]
async fn the_end_of_a_session_by_any_command_is_one_statement() {
    let stage = Stage::start().await;
    let verifier = stage.verifier("edge-2").await;
    let (key, request) = (key(&verifier).await, to("203.0.113.70", 6, 80));
    let mut guard = events(&verifier).await;
    let mut all = Vec::new();
    for cause in ["logout", "revoke person", "revoke device", "new password", "account removed"] {
        let bob = stage.login("bob").await;
        let mut expires = 0;
        let mut holders = Vec::new();
        for _ in 0..3 {
            let grant = bob.grant(&request).await.unwrap();
            holders.push(Holder::of(Handle(handle(&grant)), &key));
            expires = grant.expires;
        }
        assert!(holders.iter().all(|holder| *holder == holders[0]), "{holders:?}");
        match cause {
            "logout" => drop(bob.logout().await.unwrap()),
            "revoke person" => {
                admin::revoke(&stage.directory, &Which::Person("bob".into())).await.unwrap();
            }
            "revoke device" => {
                admin::revoke(&stage.directory, &Which::Device("bob".into(), "laptop".into())).await.unwrap();
            }
            "new password" => {
                admin::change_password(&stage.directory, "bob", PASSWORD, admin::Factor::Keep).await.unwrap();
            }
            _ => admin::remove_account(&stage.directory, "bob").await.unwrap(),
        }
        let told = ended_sessions(&mut guard).await;
        assert_eq!(told.iter().map(|session| session.holder).collect::<Vec<_>>(), [holders[0].0], "{cause}");
        // Verifiers keep the statement until none of their clocks accepts the session's grants.
        assert!((expires + 60..expires + 70).contains(&told[0].expires.into()), "{cause}");
        all.extend(told);
    }
    // All sessions belong to one account, and there are five of them.
    let accounts: Vec<_> = all.iter().map(|session| Holder(session.holder).account()).collect();
    assert!(accounts.iter().all(|account| *account == accounts[0]), "{all:?}");
    let mut listed = verifier.config().await.unwrap().revoked_sessions;
    listed.sort_unstable_by_key(|session| session.holder);
    all.sort_unstable_by_key(|session| session.holder);
    assert_eq!(listed, all);
    assert_eq!(listed.windows(2).filter(|pair| pair[0].holder == pair[1].holder).count(), 0);
    assert!(stage.verifier("edge-1").await.config().await.unwrap().revoked_sessions.is_empty());
}

#[tokio::test]
async fn a_session_that_expires_ends_at_the_verifiers_within_a_second() {
    let stage = Stage::start().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let mut guard = events(&verifier).await;
    let grant = handle(&alice.grant(&git()).await.unwrap());
    let expires = now() + 4;
    let database = rusqlite::Connection::open(stage.directory.database()).unwrap();
    database.busy_timeout(SOON).unwrap();
    database.execute("UPDATE sessions SET expires = ?1", [expires.cast_signed()]).unwrap();
    let told = ended_sessions(&mut guard).await;
    let late = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + Duration::from_secs(expires)).unwrap();
    assert!(late < Duration::from_secs(1), "{late:?}");
    let holder = Holder::of(Handle(grant), &key(&verifier).await);
    assert_eq!(told.iter().map(|session| session.holder).collect::<Vec<_>>(), [holder.0]);
    let cut = verifier.flows_to_cut(&[grant]).await.unwrap();
    assert_eq!(cut.iter().map(|cut| cut.handle).collect::<Vec<_>>(), [grant]);
}

#[tokio::test]
async fn an_end_that_no_server_told_of_is_told_by_the_next() {
    let mut stage = Stage::start().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    alice.grant(&git()).await.unwrap();
    stage.server.take().unwrap().stop().await;
    let which = Which::Person("alice".into());
    assert_eq!(
        stage.database().revoke(&which, &Operator::current(), now()).unwrap(),
        Some(RevokedCounts { sessions: 1, grants: 1 })
    );
    stage.restart_stopped().await;
    assert_eq!(verifier.config().await.unwrap().revoked_sessions.len(), 1);
}
