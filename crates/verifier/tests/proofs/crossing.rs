//! Tests of proofs on frames that cross between two interfaces of the verifier's host through the daemon.

use super::{Ends, NETWORKS, POLICY, address, dropped, packet, segment_from, wrong};
use crate::stage::*;
use nix::sys::signal::Signal;

const SETTINGS: &str = "[proofs]\nengine = \"af_xdp\"\nendpoints = \"10.78.0.1\"\ninterface = [\"near\", \"far\"]\n";

async fn set_up(stage: &Stage) -> (Beyond, Ends) {
    let networks = NETWORKS.replace("10.77.0.", "10.78.0.");
    std::fs::write(stage.authority.path().join("networks.toml"), networks).unwrap();
    let directory = stage.directory().display().to_string();
    let (code, text) = stage.cli(&["enrol", "--dir", &directory], stage.enrolment().await).await;
    assert_eq!(code, 0, "{text}");
    let file = stage.directory().join("verifier.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text + SETTINGS).unwrap();
    stage.apply(POLICY).await;
    let beyond = stage.beyond();
    let ends = Ends::of(beyond.socket("10.78.0.1:6081"), stage.socket_at("10.78.0.2:0"));
    (beyond, ends)
}

#[test]
fn frames_cross_with_right_proofs_until_consent_is_withdrawn() {
    act(|stage| async move {
        let (_beyond, ends) = set_up(&stage).await;
        let alice = stage.alice().await;
        let verifier = stage.run(&[]).await;
        verifier.connected().await;
        let one = segment_from(&alice, "10.78.0.2").await;
        let one =
            client::convert::segment(&one, address("10.78.0.2"), address("10.0.0.5"), address("10.0.0.7")).unwrap();
        let right = packet(&one, 53);
        // Frames of address resolution cross, too.
        assert!(ends.passes(&right));
        let out = ends.through(&right).expect("it passes");
        assert_eq!((out[12] & 7, out.len()), (1, right.len()), "the pointer was moved");

        for (number, wrong) in wrong(&one).iter().enumerate() {
            assert!(ends.through(wrong).is_none(), "{number}");
        }
        let proofs = stage.status().await.proofs.expect("it checks them");
        assert_eq!((dropped(&proofs, "bad_tag"), dropped(&proofs, "malformed")), (3, 1), "{proofs:?}");
        let passed = |name| proofs.passed.iter().find(|counter| counter.name == name).unwrap().packets;
        assert!(passed("computed") >= 2 && passed("not_ours") >= 2, "{proofs:?}");
        assert_eq!(proofs.interfaces.iter().map(|one| &*one.name).collect::<Vec<_>>(), ["near", "far"]);
        assert!(proofs.keys_until.unwrap() > verifier::now() + 23 * 3600);

        stage.apply(&POLICY.replace("alice", "bob")).await;
        until("the end of consent", || ends.through(&right).is_none().then_some(())).await;
        let proofs = stage.status().await.proofs.unwrap();
        assert!(dropped(&proofs, "revoked") > 0 && proofs.withdrawn == 1, "{proofs:?}");
        assert!(!verifier.log().contains("ERROR"), "{}", verifier.log());
    });
}

#[test]
fn nothing_crosses_without_the_daemon_and_it_does_again_with_the_next() {
    act(|stage| async move {
        let (_beyond, ends) = set_up(&stage).await;
        let alice = stage.alice().await;
        let mut verifier = stage.run(&[]).await;
        verifier.connected().await;
        let one = segment_from(&alice, "10.78.0.2").await;
        let one =
            client::convert::segment(&one, address("10.78.0.2"), address("10.0.0.5"), address("10.0.0.7")).unwrap();
        let right = packet(&one, 53);
        assert!(ends.passes(&right));
        verifier.signal(Signal::SIGKILL);
        verifier.end().await;
        assert!(ends.through(&right).is_none());
        let _verifier = stage.run(&[]).await;
        until("frames that cross", || ends.through(&right)).await;
    });
}

#[test]
fn interfaces_of_a_bridge_are_not_taken() {
    act(|stage| async move {
        let (_beyond, _ends) = set_up(&stage).await;
        stage.inside(&["ip", "link", "add", "bridge", "type", "bridge"]);
        stage.inside(&["ip", "link", "set", "near", "master", "bridge"]);
        let mut verifier = stage.spawn(&[]).await;
        assert!(!verifier.end().await.success());
        verifier.says("near is part of a bridge").await;
    });
}
