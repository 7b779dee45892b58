//! Tests of trials and observation: the state after they end, and what may follow them.

use crate::stage::*;
use nix::sys::signal::Signal;
use verifier::control::Request;
use verifier::view;
use wire::tail;
use wire::token::TOKEN_LEN;

#[test]
fn a_trial_that_nobody_confirms_is_rolled_back() {
    act(|stage| async move {
        echo(SSH);
        let mut verifier = stage.run(&["--try", "2s"]).await;
        assert!(!stage.connects(SSH));
        assert_eq!(stage.status().await.state, "trying");
        assert_eq!(verifier.end().await.code(), Some(1));
        verifier.says("nobody confirmed the trial").await;
        assert!(stage.connects(SSH));
        assert_eq!(stage.links(), None);
    });
}

#[test]
fn a_crash_during_a_trial_rolls_it_back() {
    act(|stage| async move {
        echo(SSH);
        let mut verifier = stage.run(&["--try", "1h"]).await;
        assert!(!stage.connects(SSH));
        verifier.signal(Signal::SIGKILL);
        verifier.end().await;
        until("the rollback", || stage.connects(SSH).then_some(())).await;
    });
}

#[test]
fn a_confirmed_trial_stays() {
    act(|stage| async move {
        echo(SSH);
        let mut verifier = stage.run(&["--try", "1h"]).await;
        assert_eq!(stage.links().unwrap(), [""; 0]);
        let (code, text) = stage.cli(&["confirm"], stage.daemon()).await;
        assert_eq!((code, stage.links().unwrap()), (0, vec!["eth0".to_owned()]), "{text}");
        assert_eq!(stage.cli(&["confirm"], stage.daemon()).await.0, 2);
        assert_eq!(stage.status().await.state, "protecting");
        verifier.signal(Signal::SIGTERM);
        assert_eq!(verifier.end().await.code(), Some(0));
        assert!(!stage.connects(SSH));
    });
}

#[test]
fn an_observer_reports_and_drops_nothing() {
    act(|stage| async move {
        echo(SSH);
        let mut verifier = stage.run(&["--observe"]).await;
        let connection = stage.connect(SSH).unwrap();
        assert!(echoes(&connection));
        assert_eq!(stage.status().await.state, "observing");
        until("a report", || verifier.log().contains("would drop").then_some(())).await;
        let drops: view::Drops = stage.ask(Request::Drops { from: 0 }).await;
        assert!(drops.samples.iter().all(|dropped| dropped.observed));
        assert_eq!((drops.samples[0].reason.as_str(), drops.observing), ("no_token", true));
        let explain = ["explain", "--from", "10.77.0.2:4711", "--to", SSH];
        let (code, text) = stage.cli(&explain, stage.daemon()).await;
        assert_eq!((code, text.contains("it still passes")), (1, true), "{text}");
        for (block, is_spared) in [(tail::block(&[0; TOKEN_LEN]), true), (tail::stream_block(&[0; TOKEN_LEN]), false)] {
            let (code, text) = stage.cli(&["explain", "--frame", &hex::encode(syn(&block))], stage.daemon()).await;
            assert_eq!((code, text.contains("it still passes")), (1, is_spared), "{text}");
        }
        assert_eq!(drops.samples[0].client, Some(connection.local_addr().unwrap()));
        verifier.signal(Signal::SIGTERM);
        verifier.end().await;
        verifier.says("nothing is protected").await;
        assert!(stage.connects(SSH));

        // After observation, the next run protects as at a first start.
        let _verifier = stage.run(&[]).await;
        assert!(echoes(&connection) && !stage.connects(SSH));
    });
}

/// Returns a SYN to the protected service that carries this block.
fn syn(block: &[u8]) -> Vec<u8> {
    let [high, low] = (40 + block.len() as u16).to_be_bytes();
    let ip = [&[0x45, 0, high, low, 0, 0, 0, 0, 64, 6, 0, 0][..], &[10, 77, 0, 2], &[10, 77, 0, 1]].concat();
    let tcp = [&4711_u16.to_be_bytes()[..], &22_u16.to_be_bytes(), &[0; 8], &[0x50, 0x02], &[0; 6]].concat();
    [&[0; 12][..], &[0x08, 0x00], &ip, &tcp, block].concat()
}

#[test]
fn what_was_observed_is_tried_and_a_crash_rolls_it_back() {
    act(|stage| async move {
        echo(SSH);
        let mut verifier = stage.run(&["--observe"]).await;
        let connection = stage.connect(SSH).unwrap();
        verifier.signal(Signal::SIGTERM);
        verifier.end().await;

        let mut verifier = stage.run(&["--try", "1h"]).await;
        assert_eq!((stage.status().await.state.as_str(), stage.links().unwrap().len()), ("trying", 0));
        assert!(echoes(&connection) && !stage.connects(SSH));
        verifier.signal(Signal::SIGKILL);
        verifier.end().await;
        until("the rollback", || stage.connects(SSH).then_some(())).await;
    });
}

#[test]
fn what_protects_is_not_tried() {
    act(|stage| async move {
        echo(SSH);
        let mut verifier = stage.run(&[]).await;
        verifier.signal(Signal::SIGTERM);
        verifier.end().await;
        let mut verifier = stage.spawn(&["--try", "1h"]).await;
        assert_eq!(verifier.end().await.code(), Some(2));
        verifier.says("cannot protect on trial: protection is already in force").await;
        assert_eq!(stage.links().unwrap(), ["eth0"]);
        assert!(!stage.connects(SSH));
    });
}
