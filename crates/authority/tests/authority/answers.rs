//! Return segments that come with the segments that they answer (wire.md §8.15): only the endpoint that answers can
//! tell that they are the authority's, and they end with a session that could have requested them.

use crate::asking::wanted;
use crate::segments::{NETWORKS, TENANTS, address, proves, tenants_with, withdrawn};
use crate::stage::*;
use api::Withdrawal;
use client::{Asker, Authority};
use engine::model::{Given, Issued, SegmentRequest};
use std::time::{Duration, Instant};
use wire::{Ends, Epoch, ProofKey, Segment, SegmentFlags};

const DEADLINE: Duration = Duration::from_secs(20);
const BY_UDP: &str = "segments = \"127.0.0.1:0\"\n";

/// Starts an authority at which only bob may request segments for the receiver's address.
async fn stage(settings: &str) -> Stage {
    let stage = tenants_with(settings).await;
    let networks = NETWORKS.replacen("interface = 7", "interface = 7\nasked_by = \"person:bob\"", 1);
    std::fs::write(stage.directory.path().join("networks.toml"), networks).unwrap();
    stage.apply(TENANTS).await.unwrap();
    stage
}

async fn ask(asker: &Asker) -> Issued {
    asker.segment_with_answers(&wanted("blue", 22)).await.unwrap()
}

/// Returns the return segment as an endpoint reads it that has the keys of `verifier`.
async fn read(verifier: &Authority, issued: &Issued) -> Option<Given> {
    let keys = verifier.keys(1).await.unwrap();
    let proofs = keys.proofs.expect("it is on a path");
    let key = |segment: &Segment| {
        let epoch = Epoch::at(keys.now, 3600).from_wire(segment.epoch)?;
        let key = proofs.keys.iter().find(|key| key.epoch == epoch.0)?;
        Some(ProofKey::new(hex::decode(&key.key).unwrap().try_into().unwrap()))
    };
    let [sending, receiving, sender, receiver] = ["192.0.2.2", "192.0.2.1", "10.0.0.7", "10.0.0.5"].map(address);
    let ends = Ends { sending, receiving, sender, receiver };
    Given::from_passed_on(&issued.answers, issued.given.vni, ends, key)
}

#[tokio::test]
async fn both_segments_come_in_one_answer_by_udp_and_over_https() {
    for settings in [BY_UDP, ""] {
        let stage = stage(settings).await;
        let (alice, _bob) = (stage.login("alice").await, stage.login("bob").await);
        let (edge, tep) = (stage.verifier("edge-1").await, stage.verifier("edge-2").await);
        let issued = ask(&Asker::new(alice.clone())).await;
        let there = &issued.given.segment;
        assert!(there.flags.has(SegmentFlags::REPLY));
        let back = read(&tep, &issued).await.expect("the endpoint reads it");
        assert!(back.segment.flags.has(SegmentFlags::RETURN));
        assert_eq!((back.segment.interface.0, back.segment.expires), (5, there.expires), "{settings}");
        assert_eq!((back.segment.protocol, back.segment.port), (there.protocol, there.port));
        assert!(proves(&edge, &back, 0).await && proves(&tep, &back, 1).await);
        assert_eq!(read(&edge, &issued).await, None, "another verifier can't check it, and so can't make it");
        let begun = Instant::now();
        loop {
            let entries = stage.database().audit_entries(Some("alice"), 50).unwrap();
            let entry = entries.iter().find(|entry| entry.event == "segment");
            if let Some(entry) = entry {
                assert_eq!(entry.detail, "network blue: 10.0.0.5 to 10.0.0.7 tcp/22, with its answers");
                break;
            }
            assert!(begun.elapsed() < DEADLINE, "{entries:?}");
            tokio::task::yield_now().await;
        }
        // A client that does not ask for it gets none.
        let one = Asker::new(alice).segment(&wanted("blue", 22)).await.unwrap();
        assert_eq!((one.ends, one.vni), (issued.given.ends, issued.given.vni));
    }
}

#[tokio::test]
async fn answers_are_issued_only_to_who_may_request_them_and_only_with_consent() {
    let stage = stage(BY_UDP).await;
    let (asker, tep) = (Asker::new(stage.login("alice").await), stage.verifier("edge-2").await);
    assert!(ask(&asker).await.answers.is_empty(), "bob is not logged in, and alice may not send from there");
    let bob = stage.login("bob").await;
    assert!(read(&tep, &ask(&asker).await).await.is_some());
    let other = Asker::new(bob.clone()).segment_with_answers(&wanted("red", 443)).await.unwrap();
    assert!(other.answers.is_empty() && !other.given.segment.flags.has(SegmentFlags::REPLY), "without `reply`");
    bob.logout().await.unwrap();
    assert!(ask(&asker).await.answers.is_empty());
}

#[tokio::test]
async fn answers_end_with_the_session_that_could_have_requested_them() {
    let stage = stage(BY_UDP).await;
    let (alice, bob) = (stage.login("alice").await, stage.login("bob").await);
    let (edge, tep) = (stage.verifier("edge-1").await, stage.verifier("edge-2").await);
    let mut guard = events(&edge).await;
    let asker = Asker::new(alice);
    let issued = ask(&asker).await;
    let back = read(&tep, &issued).await.expect("bob is logged in");
    bob.logout().await.unwrap();
    let [receiver, sender] = ["10.0.0.5", "10.0.0.7"].map(address);
    let void = Withdrawal { vni: 100, receiver, sender: Some(sender), until: back.segment.expires };
    assert_eq!(withdrawn(&mut guard).await, [void]);
    // With a new session of bob, there is a new segment, which the statement does not void.
    let _bob = stage.login("bob").await;
    let again = read(&tep, &ask(&asker).await).await.expect("bob is logged in again");
    assert!(again.segment.expires > back.segment.expires);
}

#[tokio::test]
async fn who_may_request_segments_for_both_addresses_gets_the_answers_in_its_own_session() {
    let stage = tenants_with(BY_UDP).await;
    let (alice, tep) = (stage.login("alice").await, stage.verifier("edge-2").await);
    let issued = ask(&Asker::new(alice.clone())).await;
    let back = read(&tep, &issued).await.expect("everybody may send from there");
    let edge = stage.verifier("edge-1").await;
    let mut guard = events(&edge).await;
    alice.logout().await.unwrap();
    let ended = withdrawn(&mut guard).await;
    let is_void =
        |receiver: &str| ended.iter().any(|one| one.receiver == address(receiver) && one.until >= back.segment.expires);
    assert!(is_void("10.0.0.5") && is_void("10.0.0.7"), "{ended:?}");
}

/// Adds an alternative to the path between the endpoints: without `edge-1`, or with another verifier in its place.
async fn with_alternatives(stage: &Stage, alternatives: &str) {
    let path = "verifiers = [\"edge-1\", \"edge-2\"]\n";
    let networks = NETWORKS.replacen(path, &format!("{path}{alternatives}"), 1);
    assert_ne!(networks, NETWORKS);
    std::fs::write(stage.directory.path().join("networks.toml"), networks).unwrap();
    stage.apply(TENANTS).await.unwrap();
}

#[tokio::test]
async fn a_segment_takes_the_path_that_was_asked_for_and_its_answers_take_that_path_back() {
    for settings in [BY_UDP, ""] {
        let stage = tenants_with(settings).await;
        let others = "[[paths.alternatives]]\nverifiers = [\"edge-1\", \"edge-3\", \"edge-2\"]\n\
                      [[paths.alternatives]]\nverifiers = [\"edge-3\", \"edge-2\"]\n";
        with_alternatives(&stage, others).await;
        let alice = stage.login("alice").await;
        let (first, third) = (stage.verifier("edge-1").await, stage.verifier("edge-3").await);
        let tep = stage.verifier("edge-2").await;
        let asker = Asker::new(alice.clone());
        for (path, verifiers) in
            [(0, vec![&first, &tep]), (1, vec![&first, &third, &tep]), (2, vec![&third, &tep]), (3, vec![&first, &tep])]
        {
            let request = SegmentRequest { path, ..wanted("blue", 22) };
            let issued = asker.segment_with_answers(&request).await.unwrap();
            let whole = asker.both_segments(&request).await.unwrap();
            assert_eq!((issued.others, whole.others), (2, 2), "{settings} {path}");
            let shown = client::convert::answer_request(&issued.given);
            let asked = alice.answer_segment(&shown).await.unwrap();
            let Ends { sending, receiving, sender, receiver } = issued.given.ends;
            let asked = client::convert::segment(&asked, receiving, receiver, sender).unwrap();
            assert_eq!(asked.ends.receiving, sending);
            let backs = [read(&tep, &issued).await, read(&tep, &whole).await, Some(asked)];
            for given in [issued.given, whole.given].into_iter().chain(backs.into_iter().map(Option::unwrap)) {
                assert_eq!(given.proofs.len(), verifiers.len(), "{settings} {path}");
                for (place, verifier) in (0..).zip(&verifiers) {
                    assert!(proves(verifier, &given, place).await, "{settings} {path}: {place} of {given:?}");
                }
            }
        }
        let request = client::convert::segment_request(&wanted("blue", 22));
        assert_eq!(alice.segment(&request).await.unwrap().others, 2, "a client that knows no paths ignores it");
    }
}
