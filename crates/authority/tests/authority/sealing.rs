//! Rules that demand a sealed tunnel: agents and verifiers learn the demands, and a stricter rule ends grants.

use crate::stage::*;
use api::Event;
use authority::policy::replay::Replay;
use authority::storage::Database;
use authority::{admin, now};
use engine::model::{Sealing, Treatment};
use engine::policy::{Compiled, Policy};
use wire::{Flags, GrantHeader};

/// Returns the stage's policy with a tunnel before `git`, and with `terms` in the rule that allows `git`.
fn policy(terms: &str) -> String {
    let rule = "who = \"group:staff\"\nto = \"git\"\n";
    assert!(POLICY.contains(rule));
    let tunnel = "\n[[receivers]]\nname = \"way\"\naddress = [\"203.0.113.10\", \"2001:db8::10\"]\nservices = \"udp/4499\"\n\
                  verifier = \"edge-1\"\ntunnel = true\n[[rules]]\naction = \"allow\"\nwho = \"group:staff\"\nto = \"way\"\n";
    POLICY.replacen(rule, &format!("{rule}{terms}\n"), 1) + tunnel
}

fn flags(grant: &api::Grant) -> Flags {
    GrantHeader::decode(&hex::decode(&grant.header).unwrap().try_into().unwrap()).unwrap().flags
}

#[tokio::test]
async fn agents_and_verifiers_are_told_what_a_rule_demands() {
    let stage = Stage::start().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let before = alice.grant(&git()).await.unwrap();
    assert_eq!((before.sealing, flags(&alice.grant(&git()).await.unwrap())), (None, Flags::PORT));
    assert!(alice.destinations().await.unwrap().sealed.is_empty());
    assert!(verifier.config().await.unwrap().tunnels.is_empty());

    stage.apply(&policy("treatment = \"encrypt\"\nsuites = \"aes-256-gcm\"\nrekey = \"5m\"")).await.unwrap();
    let mut guard = events(&verifier).await;
    let grant = alice.grant(&git()).await.unwrap();
    assert_eq!(flags(&grant), Flags::PORT.with(Flags::SEALED));
    let read = client::convert::grant(&grant).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!((read.sealing.treatment, read.sealing.rekey), (Treatment::Encrypt, 300));
    let ends = ["203.0.113.10:4499".parse().unwrap(), "[2001:db8::10]:4499".parse().unwrap()];
    assert_eq!(read.tunnels, ends);
    let Event::Granted { owner } = next(&mut guard).await else { panic!() };
    let told = owner.sealing.as_ref().and_then(client::convert::sealing).expect("the demand");
    assert_eq!(told, read.sealing);
    let asked = verifier.grant_owner(handle(&grant)).await.unwrap().expect("the grant's owner");
    assert_eq!(asked.sealing, owner.sealing);
    let config = verifier.config().await.unwrap();
    assert_eq!(config.tunnels, ends);

    let reachable = alice.destinations().await.unwrap();
    assert_eq!(reachable.sealed.demanded.into_iter().collect::<Vec<_>>(), [("git".to_owned(), "encrypt".to_owned())]);
    assert_eq!(reachable.sealed.tunnels, ends);
    let (receivers, names) = client::convert::reachable(&alice.destinations().await.unwrap());
    assert!(names.contains("git") && receivers.iter().any(|receiver| receiver.name == "way"));
    // Another rule denies Bob. His agent learns to which receivers it must not send in clear.
    let bob = stage.login("bob").await.destinations().await.unwrap();
    assert!(bob.destinations.iter().all(|receiver| receiver.name != "git") && bob.sealed.demanded.is_empty());
    assert!(!bob.sealed.closed.is_empty() && bob.sealed.closed.iter().all(|receiver| receiver.name == "git"));
    assert!(client::convert::reachable(&bob).1.contains("git"));
    // The grant that opens the tunnel is not sealed, because its packets travel outside.
    let way = alice.grant(&to("203.0.113.10", 17, 4499)).await.unwrap();
    assert_eq!(flags(&way), Flags::PORT);
    assert_eq!(client::convert::grant(&way).ok().map(|grant| grant.sealing), Some(Sealing::NONE));
    let audit = Database::open(&stage.directory.database()).unwrap().audit_entries(None, 100).unwrap();
    let granted: Vec<_> =
        audit.iter().filter(|entry| entry.event == "granted").map(|entry| entry.detail.clone()).collect();
    assert!(format!("{granted:?}").contains(", encrypt in a sealed tunnel"), "{granted:?}");
}

#[tokio::test]
async fn a_stricter_rule_ends_the_grants_that_fall_short_of_it() {
    let stage = Stage::start().await;
    stage.apply(&policy("")).await.unwrap();
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let mut guard = events(&verifier).await;
    let mut terms =
        ["treatment = \"authenticate\"", "treatment = \"encrypt\"", "treatment = \"encrypt\"\nrekey = \"1m\""];
    for stricter in terms {
        let short = alice.grant(&git()).await.unwrap();
        stage.apply(&policy(stricter)).await.unwrap();
        assert_eq!(revoked(&mut guard).await, [handle(&short)], "{stricter}");
        assert_eq!(verifier.flows_to_cut(&[handle(&short)]).await.unwrap().len(), 1);
    }
    terms.reverse();
    let strict = alice.grant(&git()).await.unwrap();
    for looser in terms.into_iter().skip(1).chain(["", "treatment = \"none\""]) {
        let text = stage.apply(&policy(looser)).await.unwrap();
        assert!(text.contains("; 0 grants revoked"), "{looser}: {text}");
        assert!(verifier.flows_to_cut(&[handle(&strict)]).await.unwrap().is_empty());
    }
    let live = Database::open(&stage.directory.database()).unwrap().grants(now(), false).unwrap();
    let treatment =
        |grant: &authority::storage::GrantEntry| grant.sealing.as_ref().map(|demand| demand.treatment.clone());
    assert_eq!(live.iter().map(treatment).collect::<Vec<_>>(), [Some("encrypt".to_owned())]);
}

#[tokio::test]
async fn a_policy_that_demands_a_tunnel_where_there_is_none_is_not_put_in_force() {
    let stage = Stage::start().await;
    let demanding = policy("treatment = \"encrypt\"").replace("tunnel = true\n", "");
    let error = stage.apply(&demanding).await.unwrap_err().to_string();
    assert!(error.contains("`git` is behind verifier `edge-1`, which has no tunnel"), "{error}");
    assert!(admin::apply_policy(&stage.directory, None).await.is_ok(), "the policy in force is the old one");
}

#[tokio::test]
async fn a_replay_shows_which_grants_a_draft_would_treat_otherwise() {
    let stage = Stage::start().await;
    let alice = stage.login("alice").await;
    alice.grant(&git()).await.unwrap();
    let treated = |draft: &str| {
        let draft = Compiled::new(Policy::parse(draft, 3600).unwrap()).unwrap();
        let replay = Replay::of(&draft, &stage.database(), now() - 60).unwrap();
        assert!(replay.refused.is_empty() && replay.allowed.is_empty());
        replay.treated.into_iter().map(|case| (case.person, case.times, case.why)).collect::<Vec<_>>()
    };
    assert_eq!(treated(&policy("")), []);
    let cases = treated(&policy("treatment = \"encrypt\""));
    assert_eq!(cases.len(), 1);
    assert_eq!((cases[0].0.as_str(), cases[0].1), ("alice", 1));
    assert!(cases[0].2.starts_with("encrypt instead of none: "), "{cases:?}");
    stage.apply(&policy("treatment = \"encrypt\"")).await.unwrap();
    alice.grant(&git()).await.unwrap();
    assert_eq!(treated(&policy("treatment = \"encrypt\"")).len(), 1, "the second grant had the treatment already");
}
