//! Effects of changes on connected clients: revocation, policy, accounts, restarts.

use crate::stage::*;
use api::{Event, LIVE_FLOWS_MAX, RevokedGrant};
use authority::admin::Revoked;
use authority::storage::{Database, Operator, RevokedCounts, Which};
use authority::{Server, admin, now};
use client::Error;
use wire::Handle;

/// Returns the numbers of a revocation, and whether it was announced.
fn counted(revoked: Revoked) -> (RevokedCounts, bool) {
    (revoked.counts, revoked.announced)
}

#[tokio::test]
async fn a_revocation_counts_the_sessions_that_it_ends() {
    let stage = Stage::start().await;
    let (_first, second) = (stage.login("alice").await, stage.login("alice").await);
    second.grant(&git()).await.unwrap();
    let which = Which::Person("alice".into());
    let counts = RevokedCounts { sessions: 2, grants: 1 };
    assert_eq!(counted(admin::revoke(&stage.directory, &which).await.unwrap()), (counts, true));
    let counts = RevokedCounts::default();
    assert_eq!(counted(admin::revoke(&stage.directory, &which).await.unwrap()), (counts, true));
}

#[tokio::test]
async fn a_revoked_grant_is_pushed_to_its_verifier_and_its_holder() {
    let stage = Stage::start().await;
    let (alice, verifier, other) =
        (stage.login("alice").await, stage.verifier("edge-1").await, stage.verifier("edge-2").await);
    let (mut holder, mut guard, mut bystander) = (events(&alice).await, events(&verifier).await, events(&other).await);
    let (grant, kept) = (alice.grant(&git()).await.unwrap(), alice.grant(&to("203.0.113.10", 17, 443)).await.unwrap());
    let which = Which::Grant(Handle(handle(&grant)));
    let counts = RevokedCounts { sessions: 0, grants: 1 };
    assert_eq!(counted(admin::revoke(&stage.directory, &which).await.unwrap()), (counts, true));
    assert_eq!(revoked(&mut guard).await, [handle(&grant)]);
    assert_eq!(revoked(&mut holder).await, [handle(&grant)]);
    let listed = verifier.config().await.unwrap().revoked;
    assert_eq!((listed.len(), listed[0].handle), (1, handle(&grant)));
    assert!(u64::from(listed[0].expires) >= grant.expires, "it is refused until its last lease has ended");
    assert_eq!(admin::revoke(&stage.directory, &which).await.unwrap().counts.grants, 0);
    assert!(admin::revoke(&stage.directory, &Which::Grant(Handle(1))).await.is_err());

    let lab = alice.grant(&to("203.0.113.70", 6, 80)).await.unwrap();
    let Event::Granted { owner } = next(&mut bystander).await else { panic!() };
    assert_eq!(owner.handle, handle(&lab));
    assert_ne!(handle(&kept), handle(&grant));
}

#[tokio::test]
async fn a_revoked_person_loses_sessions_and_grants_and_others_keep_theirs() {
    let stage = Stage::start().await;
    let (alice, bob, verifier) = (stage.login("alice").await, stage.login("bob").await, stage.verifier("edge-2").await);
    let mut guard = events(&verifier).await;
    let mut holder = events(&alice).await;
    let request = to("203.0.113.70", 6, 80);
    let (hers, his) = (alice.grant(&request).await.unwrap(), bob.grant(&request).await.unwrap());
    admin::revoke(&stage.directory, &Which::Person("alice".into())).await.unwrap();
    assert_eq!(ended(&mut guard).await, [holder_of(&hers, &verifier).await]);
    assert_eq!(next(&mut holder).await, Event::LoggedOut);
    assert!(matches!(holder.next().await, Err(Error::NotLoggedIn)));
    assert!(matches!(alice.grant(&request).await, Err(Error::NotLoggedIn)));
    admin::revoke(&stage.directory, &Which::Device("bob".into(), "phone".into())).await.unwrap();
    assert!(bob.grant(&request).await.is_ok());
    admin::revoke(&stage.directory, &Which::Device("bob".into(), "laptop".into())).await.unwrap();
    assert_eq!(ended(&mut guard).await, [holder_of(&his, &verifier).await]);
    assert!(matches!(bob.grant(&request).await, Err(Error::NotLoggedIn)));
}

#[tokio::test]
async fn logging_out_ends_the_sessions_grants() {
    let stage = Stage::start().await;
    let (alice, elsewhere, verifier) =
        (stage.login("alice").await, stage.login("alice").await, stage.verifier("edge-1").await);
    let mut guard = events(&verifier).await;
    let grant = alice.grant(&git()).await.unwrap();
    elsewhere.grant(&git()).await.unwrap();
    alice.logout().await.unwrap();
    assert_eq!(ended(&mut guard).await, [holder_of(&grant, &verifier).await]);
    assert!(elsewhere.grant(&git()).await.is_ok());
}

#[tokio::test]
async fn a_new_password_and_a_removed_account_end_sessions() {
    let stage = Stage::start().await;
    let (alice, bob) = (stage.login("alice").await, stage.login("bob").await);
    admin::change_password(&stage.directory, "alice", "another horse", admin::Factor::Keep).await.unwrap();
    assert!(matches!(alice.destinations().await, Err(Error::NotLoggedIn)));
    assert_eq!(problem(stage.client().login(&login("alice", PASSWORD, None)).await).r#type, "wrong_password");
    assert!(stage.client().login(&login("alice", "another horse", None)).await.is_ok());
    admin::remove_account(&stage.directory, "bob").await.unwrap();
    assert!(matches!(bob.destinations().await, Err(Error::NotLoggedIn)));
    assert_eq!(problem(stage.client().login(&login("bob", PASSWORD, None)).await).r#type, "wrong_password");
    assert!(admin::remove_account(&stage.directory, "bob").await.is_err());
}

#[tokio::test]
async fn a_removed_verifier_is_locked_out() {
    let stage = Stage::start().await;
    let verifier = stage.verifier("edge-1").await;
    let mut guard = events(&verifier).await;
    admin::remove_verifier(&stage.directory, "edge-1").await.unwrap();
    assert!(matches!(verifier.keys(1).await, Err(Error::NotLoggedIn)));
    assert!(matches!(guard.next().await, Err(Error::NotLoggedIn)));
}

#[tokio::test]
async fn a_policy_change_cuts_what_it_no_longer_permits() {
    let stage = Stage::start().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let (mut guard, mut holder) = (events(&verifier).await, events(&alice).await);
    let (ssh, quic) = (alice.grant(&git()).await.unwrap(), alice.grant(&to("203.0.113.10", 17, 443)).await.unwrap());
    let lab = alice.grant(&to("203.0.113.70", 6, 80)).await.unwrap();

    // The new policy no longer allows SSH, and narrows the scope of grants for the lab. QUIC stays allowed.
    let next_policy = POLICY.replace("\"tcp/22\", ", "").replace("granularity = \"network\"\n", "");
    let text = stage.apply(&next_policy).await.unwrap();
    assert!(text.starts_with("version 2: 2 receivers and 3 rules in force; 2 grants revoked; edge-1: "), "{text}");
    assert_eq!(revoked(&mut guard).await, [handle(&ssh)]);
    assert_eq!(next(&mut holder).await, Event::Policy);
    let mut cut = revoked(&mut holder).await;
    cut.sort_unstable();
    let mut expected = [handle(&ssh), handle(&lab)];
    expected.sort_unstable();
    assert_eq!(cut, expected);
    assert_eq!(problem(alice.grant(&git()).await).r#type, "no_receiver");
    let live = Database::open(&stage.directory.database()).unwrap().grants(now(), false).unwrap();
    assert_eq!(live.iter().map(|grant| grant.handle.0).collect::<Vec<_>>(), [handle(&quic)]);
    // Applying the same text again creates no new version.
    let again = stage.apply(&next_policy).await.unwrap();
    assert!(again.starts_with("version 2: 2 receivers and 3 rules in force; 0 grants revoked"), "{again}");
}

#[tokio::test]
async fn flows_of_ended_grants_are_cut_when_their_person_is_revoked() {
    let stage = Stage::start().await;
    let (alice, bob, verifier) = (stage.login("alice").await, stage.login("bob").await, stage.verifier("edge-2").await);
    let (mut guard, mut holder) = (events(&verifier).await, events(&alice).await);
    let request = to("203.0.113.70", 6, 80);
    let (hers, his) = (alice.grant(&request).await.unwrap(), bob.grant(&request).await.unwrap());
    let handles = [handle(&hers), handle(&his)];
    stage.end_grants();
    assert!(verifier.flows_to_cut(&handles).await.unwrap().is_empty());

    assert_eq!(admin::revoke(&stage.directory, &Which::Person("alice".into())).await.unwrap().counts.grants, 0);
    assert_eq!(ended(&mut guard).await.len(), 1);
    let cut = verifier.flows_to_cut(&handles).await.unwrap();
    assert_eq!((cut.len(), cut[0].handle), (1, handle(&hers)));
    assert!(u64::from(cut[0].expires) < now());
    assert_eq!(next(&mut holder).await, Event::LoggedOut);
    assert!(verifier.config().await.unwrap().revoked.is_empty());

    admin::revoke(&stage.directory, &Which::Device("bob".into(), "laptop".into())).await.unwrap();
    assert_eq!(ended(&mut guard).await.len(), 1);
    assert_eq!(verifier.flows_to_cut(&handles).await.unwrap().len(), 2);
}

#[tokio::test]
async fn flows_of_ended_grants_are_cut_when_their_session_or_account_ends() {
    let stage = Stage::start().await;
    let (alice, bob, verifier) = (stage.login("alice").await, stage.login("bob").await, stage.verifier("edge-2").await);
    let mut guard = events(&verifier).await;
    let request = to("203.0.113.70", 6, 80);
    let elsewhere = stage.login("alice").await;
    let grants = [&alice, &bob, &elsewhere].map(async |person| handle(&person.grant(&request).await.unwrap()));
    let handles = futures_util::future::join_all(grants).await;
    stage.end_grants();
    alice.logout().await.unwrap();
    assert_eq!(ended(&mut guard).await.len(), 1);
    let cut = async || verifier.flows_to_cut(&handles).await.unwrap().iter().map(|g| g.handle).collect::<Vec<_>>();
    assert_eq!(cut().await, handles[..1]);
    admin::remove_account(&stage.directory, "bob").await.unwrap();
    assert_eq!(ended(&mut guard).await.len(), 1);
    assert_eq!(cut().await, handles[..2]);
    // A new account with the same name does not inherit the earlier grants.
    admin::add_account(&stage.directory, "bob", PASSWORD, false).await.unwrap();
    stage.login("bob").await;
    assert_eq!(cut().await, handles[..2]);
}

#[tokio::test]
async fn flows_of_ended_grants_are_cut_by_a_policy_that_would_not_give_them() {
    let stage = Stage::start().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let (ssh, quic) = (alice.grant(&git()).await.unwrap(), alice.grant(&to("203.0.113.10", 17, 443)).await.unwrap());
    let handles = [handle(&ssh), handle(&quic)];
    stage.end_grants();
    let text = stage.apply(&POLICY.replace("\"tcp/22\", ", "")).await.unwrap();
    assert!(text.contains("; 0 grants revoked"), "{text}");
    let cut = verifier.flows_to_cut(&handles).await.unwrap();
    assert_eq!(cut.iter().map(|grant| grant.handle).collect::<Vec<_>>(), handles[..1]);
    stage.apply(POLICY).await.unwrap();
    assert!(verifier.flows_to_cut(&handles).await.unwrap().is_empty());
}

#[tokio::test]
async fn flows_of_unknown_and_of_others_grants_are_cut() {
    let mut stage = Stage::start().await;
    let (alice, verifier, other) =
        (stage.login("alice").await, stage.verifier("edge-1").await, stage.verifier("edge-2").await);
    let grant = handle(&alice.grant(&git()).await.unwrap());
    let cut = verifier.flows_to_cut(&[grant, 7]).await.unwrap();
    assert_eq!(cut, [RevokedGrant { handle: 7, expires: 0, holder: 0 }]);
    assert_eq!(other.flows_to_cut(&[grant]).await.unwrap(), [RevokedGrant { handle: grant, expires: 0, holder: 0 }]);
    // The call does not revoke the grant.
    assert!(verifier.flows_to_cut(&[grant]).await.unwrap().is_empty());
    assert_eq!(problem(alice.flows_to_cut(&[grant]).await).r#type, "wrong_caller");

    let most = vec![u64::MAX; LIVE_FLOWS_MAX];
    assert_eq!(verifier.flows_to_cut(&most).await.unwrap().len(), most.len());
    assert_eq!(problem(verifier.flows_to_cut(&[&most[..], &[1]].concat()).await).r#type, "malformed");
    assert_eq!(problem(verifier.flows_to_cut(&vec![1; 10_000]).await).r#type, "too_large");

    // The authority still knows a grant that ended an hour ago, but not a grant that ended long ago.
    stage.end_grants();
    stage.restart().await;
    assert!(verifier.flows_to_cut(&[grant]).await.unwrap().is_empty());
    let mut database = Database::open(&stage.directory.database()).unwrap();
    database.prune(now() + 31 * 86_400, 30 * 86_400, 365 * 86_400).unwrap();
    assert_eq!(verifier.flows_to_cut(&[grant]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_wrong_policy_changes_nothing() {
    let stage = Stage::start().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let before = verifier.config().await.unwrap().receivers;
    let error = stage.apply(&POLICY.replace("to = \"git\"", "to = \"gti\"")).await.unwrap_err().to_string();
    assert!(error.contains(":21:6: no receiver `gti`; did you mean `git`?"), "{error}");
    assert_eq!(std::fs::read_to_string(stage.directory.policy()).unwrap(), POLICY);

    std::fs::write(stage.directory.policy(), "[[rules]]").unwrap();
    assert!(admin::apply_policy(&stage.directory, None).await.is_err());
    assert_eq!(verifier.config().await.unwrap().receivers, before);
    assert!(alice.grant(&git()).await.is_ok());
}

#[tokio::test]
async fn a_change_that_nobody_told_of_is_noticed() {
    let stage = Stage::start().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let mut guard = events(&verifier).await;
    let grant = alice.grant(&git()).await.unwrap();
    let Event::Granted { .. } = next(&mut guard).await else { panic!() };
    let mut database = Database::open(&stage.directory.database()).unwrap();
    database.revoke(&Which::Person("alice".into()), &Operator::current(), now()).unwrap();
    assert_eq!(ended(&mut guard).await, [holder_of(&grant, &verifier).await]);
}

#[tokio::test]
async fn a_restart_keeps_sessions_and_judges_grants_anew() {
    let mut stage = Stage::start().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let mut guard = events(&verifier).await;
    let grant = alice.grant(&git()).await.unwrap();
    let Event::Granted { .. } = next(&mut guard).await else { panic!() };
    std::fs::write(stage.directory.policy(), POLICY.replace("\"tcp/22\", ", "")).unwrap();
    stage.restart().await;
    assert_eq!(next(&mut guard).await, Event::Hello);
    let listed = verifier.config().await.unwrap().revoked;
    assert_eq!(listed.iter().map(|grant| grant.handle).collect::<Vec<_>>(), [handle(&grant)]);
    assert!(alice.grant(&to("203.0.113.10", 17, 443)).await.is_ok());
}

#[tokio::test]
async fn a_directory_has_one_server() {
    let stage = Stage::start().await;
    let second = Server::start(stage.directory.clone(), Some("127.0.0.1:0".parse().unwrap())).await;
    assert!(second.err().unwrap().to_string().contains("another authority is running"));
}

#[tokio::test]
async fn a_server_with_a_wrong_policy_does_not_start() {
    let mut stage = Stage::start().await;
    stage.server.take().unwrap().stop().await;
    std::fs::write(stage.directory.policy(), "nonsense = 1").unwrap();
    let error = Server::start(stage.directory.clone(), None).await.err().unwrap().to_string();
    assert!(error.contains("policy.toml:1:1: unknown key `nonsense` in the document"), "{error}");
    assert!(stage.login_refused().await);
}

impl Stage {
    async fn login_refused(&self) -> bool {
        matches!(self.client().login(&login("alice", PASSWORD, None)).await, Err(Error::Unreachable(_)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_grant_slips_past_a_change_of_policy() {
    let stage = Stage::start().await;
    let alice = stage.login("alice").await;
    let closed = POLICY.replace("\"tcp/22\", ", "");
    for _ in 0..5 {
        let asking: Vec<_> = (0..4)
            .map(|_| {
                let alice = alice.clone();
                tokio::spawn(async move {
                    let mut granted = 0;
                    while alice.grant(&git()).await.is_ok() {
                        granted += 1;
                    }
                    granted
                })
            })
            .collect();
        // The policy changes while all clients send requests.
        while Database::open(&stage.directory.database()).unwrap().grants(now(), false).unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        stage.apply(&closed).await.unwrap();
        for task in asking {
            task.await.unwrap();
        }
        let live = Database::open(&stage.directory.database()).unwrap().grants(now(), false).unwrap();
        assert!(live.is_empty(), "{live:?}");
        stage.apply(POLICY).await.unwrap();
    }
}

#[tokio::test]
async fn the_oldest_of_many_sessions_gives_way() {
    let stage = Stage::start().await;
    let first = stage.login("alice").await;
    let mut last = first.clone();
    for _ in 0..32 {
        last = stage.login("alice").await;
    }
    assert!(matches!(first.destinations().await, Err(Error::NotLoggedIn)));
    assert!(last.destinations().await.is_ok());
}

#[tokio::test]
async fn one_source_holds_a_quarter_of_the_seats() {
    let mut stage = Stage::start().await;
    std::fs::write(stage.directory.path().join("authority.toml"), "max_connections = 16\n").unwrap();
    stage.restart().await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(tokio::net::TcpStream::connect(stage.address).await.unwrap());
    }
    held.push(tokio::net::TcpStream::connect(stage.address).await.unwrap());
    // The limit for one address is four unauthenticated connections: the fifth displaces the oldest.
    let closed = async |stream: &mut tokio::net::TcpStream| {
        tokio::time::timeout(SOON, tokio::io::AsyncReadExt::read(stream, &mut [0; 1])).await
    };
    assert!(matches!(closed(&mut held[0]).await.unwrap(), Ok(0) | Err(_)));
    assert!(closed(&mut held[1]).await.is_err(), "the others stay");
    drop(held);
    let deadline = std::time::Instant::now() + SOON * 5;
    while stage.client().health().await.is_err() {
        assert!(std::time::Instant::now() < deadline, "seats never came free");
    }
}
