//! Grants of the suite `sha224`: the answer to the client, and the events to the verifier.

use crate::stage::*;
use api::{Confirm, Event, Grant};
use authority::admin;
use authority::storage::Which;
use std::time::{Duration, Instant};
use wire::{ClientKey, Handle, Pair, ServerSecret, VerifierKey};

/// Returns the stage's policy with the suite `sha224` for all receivers of the first verifier.
fn with_pairs() -> String {
    let rule = "name = \"staff may use git\"\n";
    POLICY.replace(rule, &format!("{rule}suite = \"sha224\"\n"))
}

fn handle_of_pair(grant: &Grant) -> u64 {
    Pair::from_bytes(hex::decode(&grant.header).unwrap().try_into().unwrap()).handle().0
}

#[tokio::test]
async fn a_verifier_is_told_of_each_pair_before_its_holder_has_it() {
    let stage = Stage::start().await;
    stage.apply(&with_pairs()).await.unwrap();
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let mut guard = events(&verifier).await;
    let grant = alice.grant(&git()).await.unwrap();
    let Event::Pair { pair: told } = next(&mut guard).await else { panic!() };
    let pair = Pair::from_bytes(hex::decode(&grant.header).unwrap().try_into().unwrap());
    assert_eq!((pair.handle().0, grant.carrier.as_str()), (told.handle, "shim"));
    assert_eq!((told.issued, u64::from(told.expires)), (grant.now, grant.expires));
    let Event::Granted { owner } = next(&mut guard).await else { panic!() };
    assert_eq!((owner.handle, owner.person.as_str()), (told.handle, "alice"));

    let keys = verifier.keys(0).await.unwrap();
    let key = keys.keys.iter().find(|key| key.epoch == told.epoch).unwrap();
    let key = VerifierKey::new(hex::decode(&key.key).unwrap().try_into().unwrap());
    let secret = ServerSecret::of(&key).unwrap();
    assert_eq!(hex::encode(ClientKey::of(pair, secret.bytes()).bytes()), grant.key);

    assert_eq!(verifier.config().await.unwrap().pairs, [told]);
    assert!(stage.verifier("edge-2").await.config().await.unwrap().pairs.is_empty());
    admin::revoke(&stage.directory, &Which::Grant(Handle(told.handle))).await.unwrap();
    assert_eq!(revoked(&mut guard).await, [told.handle]);
    assert!(verifier.config().await.unwrap().pairs.is_empty());
}

/// The client gets the grant after all gateways with the same enrolment have confirmed it. A gateway that hangs delays
/// the grant only for a limited time.
#[tokio::test]
async fn a_pair_waits_for_its_verifiers_word() {
    let stage = Stage::start().await;
    stage.apply(&with_pairs()).await.unwrap();
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let mut guards = [
        confirmed_events(&verifier, Confirm::Pairs).await,
        confirmed_events(&verifier, Confirm::Pairs).await,
        events(&verifier).await,
    ];
    for confirmations in [2, 0] {
        let (asked, asking) = (Instant::now(), alice.clone());
        let grant = tokio::spawn(async move { asking.grant(&git()).await });
        let mut told = 0;
        for guard in &mut guards {
            let Event::Pair { pair } = next(guard).await else { panic!() };
            let Event::Granted { .. } = next(guard).await else { panic!() };
            told = pair.handle;
        }
        for _ in 0..confirmations {
            let early = grant.is_finished() && asked.elapsed() < Duration::from_millis(400);
            assert!(!early, "the grant was faster than its verifiers");
            verifier.acknowledge(vec![told, 1]).await.unwrap();
        }
        assert_eq!(handle_of_pair(&grant.await.unwrap().unwrap()), told);
    }
}

#[tokio::test]
async fn a_pair_is_revoked_when_its_rule_gives_none_any_more() {
    let stage = Stage::start().await;
    let with_pairs = with_pairs();
    stage.apply(&with_pairs).await.unwrap();
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let mut guard = events(&verifier).await;
    alice.grant(&git()).await.unwrap();
    let Event::Pair { pair } = next(&mut guard).await else { panic!() };
    stage
        .apply(
            &with_pairs
                .replace("person:bob", "everyone")
                .replace("action = \"deny\"", "action = \"deny\"\npriority = 1"),
        )
        .await
        .unwrap();
    assert_eq!(
        verifier.config().await.unwrap().pairs,
        [pair],
        "what another rule says that does not decide is no matter"
    );
    stage.apply(POLICY).await.unwrap();
    assert_eq!(revoked(&mut guard).await, [pair.handle]);
}
