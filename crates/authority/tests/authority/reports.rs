//! Verifiers' reports: who may send them, which parts the authority accepts, and how long it keeps them.

use crate::stage::*;
use api::{DropCount, REPORTED_FLOWS_MAX, Report, ReportedFlow, VerifierState};
use authority::{admin, now};
use client::Error;

fn report(flows: usize) -> Report {
    let [client, server] = ["198.51.100.7", "203.0.113.10"].map(|text| text.parse().unwrap());
    let flow = ReportedFlow {
        client,
        client_port: 4711,
        server,
        server_port: 22,
        protocol: 6,
        handle: Some(u64::MAX),
        since: now(),
        seen: now(),
        packets: (1 << 53) - 1,
        bytes: (1 << 53) - 1,
        sealed: None,
    };
    let drops = (1..=13).map(|reason| DropCount { reason, packets: (1 << 53) - 1 }).collect();
    let (state, live) = (VerifierState::Protecting, flows as u64);
    Report { state, keys_until: Some(now()), admitted: 1, passed: 1, drops, live, flows: vec![flow; flows] }
}

#[tokio::test]
async fn a_verifier_reports_and_hears_when_to_report_again() {
    let mut stage = Stage::start().await;
    let verifier = stage.verifier("edge-1").await;
    let (before, sent) = (now(), report(REPORTED_FLOWS_MAX));
    let answer = verifier.report(&sent).await.unwrap();
    assert!((1..=10).contains(&answer.pause) && answer.now >= before);
    let kept = stage.server.as_mut().unwrap().reports();
    assert_eq!((kept.len(), &*kept[0].0, &kept[0].2), (1, "edge-1", &sent));
}

#[tokio::test]
async fn only_verifiers_report_and_only_for_themselves() {
    let stage = Stage::start().await;
    assert!(matches!(stage.client().report(&report(0)).await, Err(Error::NotLoggedIn)));
    let person = problem(stage.login("alice").await.report(&report(0)).await);
    assert_eq!((person.r#type.as_str(), person.status), ("wrong_caller", 403));
    let (one, _other) = (stage.verifier("edge-1").await, stage.verifier("edge-2").await);
    one.report(&report(1)).await.unwrap();
    let kept = stage.server.as_ref().unwrap().reports();
    assert_eq!(kept.iter().map(|(verifier, ..)| &**verifier).collect::<Vec<_>>(), ["edge-1"]);
}

#[tokio::test]
async fn a_report_beyond_its_bounds_is_refused_and_changes_nothing() {
    let stage = Stage::start().await;
    let verifier = stage.verifier("edge-1").await;
    let many = problem(verifier.report(&report(REPORTED_FLOWS_MAX + 1)).await);
    assert_eq!((many.r#type.as_str(), many.status), ("malformed", 400));
    let huge = problem(verifier.report(&report(1000)).await);
    assert_eq!((huge.r#type.as_str(), huge.status), ("too_large", 413));
    let mut reasons = report(0);
    reasons.drops = (0..65).map(|nth| DropCount { reason: nth + 1, packets: 1 }).collect();
    assert_eq!(problem(verifier.report(&reasons).await).r#type, "malformed");
    assert!(stage.server.as_ref().unwrap().reports().is_empty());
}

#[tokio::test]
async fn a_verifier_that_is_removed_is_forgotten() {
    let stage = Stage::start().await;
    let verifier = stage.verifier("edge-1").await;
    verifier.report(&report(1)).await.unwrap();
    admin::remove_verifier(&stage.directory, "edge-1").await.unwrap();
    assert!(stage.server.as_ref().unwrap().reports().is_empty());
    assert!(matches!(verifier.report(&report(1)).await, Err(Error::NotLoggedIn)));
}
