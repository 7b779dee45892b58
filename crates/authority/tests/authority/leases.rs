//! Leases: a grant is recorded once, and renewed without another record.

use crate::stage::*;
use api::{Event, Grant};
use authority::storage::{Database, GrantEntry, Operator, Which};
use authority::{admin, now};
use wire::Handle;

fn recorded(stage: &Stage) -> (Vec<GrantEntry>, usize) {
    let database = stage.database();
    let entries = database.audit_entries(None, 1000).unwrap();
    (database.grants(now(), true).unwrap(), entries.iter().filter(|entry| entry.event == "granted").count())
}

/// Starts an authority with epochs of a day: a handle changes with the epoch.
async fn stage() -> Stage {
    Stage::start_with("epoch_length = \"1d\"\n").await
}

#[tokio::test]
async fn a_renewal_writes_nothing() {
    let stage = stage().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let mut guard = events(&verifier).await;
    let first = alice.grant(&git()).await.unwrap();
    let Event::Granted { owner } = next(&mut guard).await else { panic!() };
    assert_eq!(owner.handle, handle(&first));
    let watching = stage.database();
    let before = watching.version().unwrap();
    for _ in 0..300 {
        let renewed = alice.grant(&git()).await.unwrap();
        assert_eq!((handle(&renewed), renewed.expires >= first.expires), (handle(&first), true));
    }
    assert_eq!(watching.version().unwrap(), before, "nobody has written to the database");
    let (grants, granted) = recorded(&stage);
    assert_eq!((grants.len(), granted), (1, 1));
    let GrantEntry { issued, expires, lease, .. } = grants[0];
    assert!(lease == Some(300) && expires > issued + 11 * 3600, "it can be renewed until the session ends");
    // The next event is about something else: the verifier is told of a handle once.
    alice.grant(&to("203.0.113.10", 17, 443)).await.unwrap();
    let Event::Granted { owner } = next(&mut guard).await else { panic!() };
    assert_ne!(owner.handle, handle(&first));
    let entry = stage.database().audit_entries(Some("alice"), 10).unwrap();
    let granted = entry.iter().find(|entry| entry.event == "granted").unwrap();
    assert!(granted.detail.ends_with(&format!("until {expires} in leases of 300 s")), "{}", granted.detail);
}

#[tokio::test]
async fn each_session_has_grants_of_its_own() {
    let stage = stage().await;
    let (laptop, phone) = (stage.login("alice").await, stage.login("alice").await);
    let handles = [handle(&laptop.grant(&git()).await.unwrap()), handle(&phone.grant(&git()).await.unwrap())];
    assert_ne!(handles[0], handles[1]);
    phone.logout().await.unwrap();
    assert_eq!(handle(&laptop.grant(&git()).await.unwrap()), handles[0]);
}

#[tokio::test]
async fn a_revoked_grant_is_not_renewed() {
    let mut stage = stage().await;
    let alice = stage.login("alice").await;
    let first = alice.grant(&git()).await.unwrap();
    admin::revoke(&stage.directory, &Which::Grant(Handle(handle(&first)))).await.unwrap();
    let second = alice.grant(&git()).await.unwrap();
    assert_ne!(handle(&second), handle(&first));
    // The server does not know of this revocation when it stops.
    stage.server.take().unwrap().stop().await;
    let which = Which::Grant(Handle(handle(&second)));
    let ended = stage.database().revoke(&which, &Operator::current(), now()).unwrap();
    assert_eq!(ended.map(|ended| ended.grants), Some(1));
    stage.restart_stopped().await;
    let third = alice.grant(&git()).await.unwrap();
    assert!(![handle(&first), handle(&second)].contains(&handle(&third)));
    let verifier = stage.verifier("edge-1").await;
    let mut listed: Vec<_> = verifier.config().await.unwrap().revoked.iter().map(|grant| grant.handle).collect();
    let mut revoked = [handle(&first), handle(&second)];
    listed.sort_unstable();
    revoked.sort_unstable();
    assert_eq!(listed, revoked);
}

#[tokio::test]
async fn a_restart_goes_on_with_the_grants_of_live_sessions() {
    let mut stage = stage().await;
    let (alice, bob) = (stage.login("alice").await, stage.login("bob").await);
    let lab = to("203.0.113.70", 6, 80);
    let (hers, his) = (alice.grant(&git()).await.unwrap(), bob.grant(&lab).await.unwrap());
    bob.logout().await.unwrap();
    stage.restart().await;
    assert_eq!(handle(&alice.grant(&git()).await.unwrap()), handle(&hers));
    assert_ne!(handle(&stage.login("bob").await.grant(&lab).await.unwrap()), handle(&his));
    assert_eq!(recorded(&stage).1, 3, "hers, and bob's two");
}

#[tokio::test]
async fn a_request_that_the_policy_decides_in_another_way_renews_nothing() {
    let stage = stage().await;
    let alice = stage.login("alice").await;
    let lab = to("203.0.113.70", 6, 80);
    let first = alice.grant(&lab).await.unwrap();
    // The grant covers the network, so it does not matter which of its addresses the agent asks for.
    let other = to("203.0.113.71", 17, 53);
    assert_eq!(handle(&alice.grant(&other).await.unwrap()), handle(&first));
    for (nth, policy) in [
        POLICY.replace("granularity = \"network\"", "granularity = \"host\""),
        POLICY.replace("granularity = \"network\"", "granularity = \"network\"\nreply = true"),
        POLICY.replace("granularity = \"network\"", "granularity = \"network\"\nlifetime = \"10m\""),
        POLICY.replace("granularity = \"network\"", "granularity = \"flow\""),
    ]
    .iter()
    .enumerate()
    {
        stage.apply(policy).await.unwrap();
        let changed = alice.grant(&lab).await.unwrap();
        assert_ne!(handle(&changed), handle(&first), "{nth}");
    }
    let single: Vec<Grant> = vec![alice.grant(&lab).await.unwrap(), alice.grant(&lab).await.unwrap()];
    assert_ne!(handle(&single[0]), handle(&single[1]), "a grant for one flow is not used for two");
    assert!(recorded(&stage).0.iter().filter(|grant| grant.lease.is_none()).count() >= 3);
}

#[tokio::test]
async fn replaced_keys_end_all_leases() {
    let mut stage = stage().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let first = alice.grant(&git()).await.unwrap();
    admin::rotate_master_key(&stage.directory, true).await.unwrap();
    let second = alice.grant(&git()).await.unwrap();
    assert_ne!(handle(&second), handle(&first));
    let holder = holder_of(&second, &verifier).await;
    assert_ne!(holder_of(&first, &verifier).await, holder);
    stage.restart().await;
    assert_eq!(handle(&alice.grant(&git()).await.unwrap()), handle(&second), "the first is not taken up again");
}

/// The handle of a grant in a database of format 11, 1224979098644775031.
const EARLIER: u64 = 0x1100_0000_0000_0077;

#[tokio::test]
async fn a_database_of_format_11_is_brought_to_this_one() {
    let mut stage = stage().await;
    let alice = stage.login("alice").await;
    stage.server.take().unwrap().stop().await;
    let before = rusqlite::Connection::open(stage.directory.database()).unwrap();
    before
        .execute_batch(
            "DROP TABLE access_requests; DROP TABLE consent_changes;
             DROP TABLE access_receivers; DROP TABLE access_unexamined;
             DROP TRIGGER grants_are_announced; DROP TRIGGER ends_are_told; DROP TRIGGER passkeys_end;
             DROP TABLE unannounced; DROP TABLE untold; DROP TABLE recheck_marks; DROP TABLE shared;
             DROP TRIGGER provider_sessions_end; DROP TABLE replica;
             CREATE INDEX grants_to_announce ON grants (handle) WHERE announced = 0;
             CREATE INDEX ends_to_tell ON session_slots (session) WHERE told = 0;
             CREATE TRIGGER passkeys_end AFTER DELETE ON accounts BEGIN
                DELETE FROM passkeys WHERE person = OLD.person;
                DELETE FROM passkey_handles WHERE person = OLD.person;
             END;
             DROP INDEX grants_by_number; DROP TABLE numbering;
             ALTER TABLE grants DROP COLUMN number; ALTER TABLE grants DROP COLUMN lease;
             ALTER TABLE session_verifiers DROP COLUMN lease; ALTER TABLE account_numbers DROP COLUMN paced;
             DROP TABLE scores; DROP TABLE complaints; DROP TABLE score_changes;
             DROP INDEX provider_sessions_of_login;
             ALTER TABLE provider_sessions DROP COLUMN login;
             CREATE TRIGGER provider_sessions_end AFTER DELETE ON sessions BEGIN
                DELETE FROM provider_sessions WHERE token = OLD.token;
             END;
             INSERT INTO grants (handle, session, person, device, verifier, receiver, rule, source, address, protocol,
                port, prefix, flags, issued, expires)
             SELECT 1224979098644775031, token, 'alice', 'laptop', 'edge-1', 'git', 'policy.toml:16 staff may use git', '127.0.0.1',
                '203.0.113.10', 6, 22, '203.0.113.10/32', 1, unixepoch(), unixepoch() + 300 FROM sessions;
             INSERT INTO session_verifiers (session, verifier, until)
                SELECT token, 'edge-1', unixepoch() + 300 FROM sessions;
             PRAGMA user_version = 11;",
        )
        .unwrap();
    drop(before);
    stage.restart_stopped().await;
    // The earlier grant is as it was. Another can be recorded and renewed.
    let live = |database: &Database| {
        let grants = database.grants(now(), false).unwrap();
        grants.into_iter().map(|grant| (grant.handle.0, grant.lease)).collect::<Vec<_>>()
    };
    assert_eq!(live(&stage.database()), [(EARLIER, None)]);
    let grant = alice.grant(&git()).await.unwrap();
    assert_eq!(handle(&alice.grant(&git()).await.unwrap()), handle(&grant));
    let mut found = live(&stage.database());
    found.sort_unstable();
    let mut expected = [(EARLIER, None), (handle(&grant), Some(300))];
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(admin::revoke(&stage.directory, &Which::Grant(Handle(EARLIER))).await.unwrap().counts.grants, 1);
    assert_eq!(live(&stage.database()).len(), 1);
}
