//! Tests of the reports that the authority receives from a running verifier.

use crate::stage::*;
use crate::{XDP_DROP, XDP_PASS};
use api::{Report, VerifierState};
use authority::admin;
use authority::storage::Which;
use datapath::verifier::Sizes;
use nix::sys::signal::Signal;
use wire::DropReason;

/// Returns the verifier's latest report, if there is one and `wanted` accepts it.
fn reported(stage: &Stage, wanted: impl Fn(&Report) -> bool) -> Option<Report> {
    let reports = stage.server.as_ref().unwrap().reports();
    reports.into_iter().find(|(verifier, ..)| &**verifier == "edge-1").map(|(.., report)| report).filter(wanted)
}

fn dropped(report: &Report, reason: DropReason) -> u64 {
    report.drops.iter().find(|count| count.reason == reason as u8).unwrap().packets
}

#[test]
fn the_authority_learns_of_flows_and_drops_as_they_come_and_go() {
    act(|stage| async move {
        stage.apply(&[crate::stage::POLICY, crate::stage::SINGLE].concat()).await;
        let verifier = stage.run(&[]).await;
        verifier.connected().await;
        let alice = stage.alice().await;
        let (admitted, revoked) = (grant(&alice).await, grant(&alice).await);
        let kernel = stage.kernel(Sizes::default());
        for (grant, from) in [(&admitted, "10.77.0.2:4711"), (&revoked, "10.77.0.2:4712")] {
            assert_eq!(kernel.run(&syn(grant, from, 1), 1).unwrap().code, XDP_PASS);
        }
        let two = until("both flows", || reported(&stage, |report| report.live == 2)).await;
        assert_eq!((two.state, two.admitted), (VerifierState::Protecting, 2));
        assert!(two.keys_until.unwrap() > verifier::now());
        let handle = |grant: &api::Grant| u64::from_str_radix(&grant.header[16..], 16).unwrap();
        let flow = two.flows.iter().find(|flow| flow.handle == Some(handle(&revoked))).unwrap();
        let ends = ((flow.client.to_string(), flow.client_port), (flow.server.to_string(), flow.server_port));
        assert_eq!(ends, (("10.77.0.2".into(), 4712), ("10.77.0.1".into(), 22)));
        assert_eq!((flow.protocol, flow.packets), (6, 1));
        assert!(flow.bytes >= 40 && flow.since.abs_diff(verifier::now()) < 60, "{flow:?}");

        admin::revoke(&stage.authority, &Which::Grant(wire::Handle(handle(&revoked)))).await.unwrap();
        let one = until("the end of one", || reported(&stage, |report| report.live == 1)).await;
        assert_eq!(one.flows.iter().map(|flow| flow.handle).collect::<Vec<_>>(), [Some(handle(&admitted))]);
        let before = dropped(&one, DropReason::Revoked);
        for nonce in 2..5 {
            assert_eq!(kernel.run(&syn(&revoked, "10.77.0.2:4713", nonce), 1).unwrap().code, XDP_DROP);
        }
        let counted = |report: &Report| dropped(report, DropReason::Revoked) >= before + 3;
        until("the drops", || reported(&stage, counted)).await;
        assert!(!verifier.log().contains("ERROR"), "{}", verifier.log());
    });
}

#[test]
fn reports_go_on_after_authority_or_verifier_were_away() {
    act(|mut stage| async move {
        let mut verifier = stage.run(&["--observe"]).await;
        verifier.connected().await;
        until("a report", || reported(&stage, |report| report.state == VerifierState::Observing)).await;
        stage.stop_authority().await;
        stage.start_authority().await;
        until("another to the authority that is back", || reported(&stage, |_| true)).await;

        verifier.signal(Signal::SIGTERM);
        verifier.end().await;
        let _verifier = stage.run(&[]).await;
        let protects = |report: &Report| report.state == VerifierState::Protecting;
        until("one of the verifier that is back", || reported(&stage, protects)).await;
    });
}
