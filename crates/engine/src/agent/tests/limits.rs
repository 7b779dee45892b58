//! Tests of limits: no session's packets, receivers or messages take more than their share.

use super::*;
use std::net::IpAddr;

#[test]
fn a_scan_does_not_flood_the_authority() {
    let mut stage = Stage::alice();
    for port in 1..500 {
        stage.queued(udp(1, port), port);
    }
    assert_eq!(stage.requests.len(), 64);
    // Each answer makes room for a request that still waits.
    stage.answer(denied());
    assert_eq!(stage.requests.len(), 64);
    assert_eq!(stage.requests[63].2.to.port, 436);
}

#[test]
fn a_session_with_too_many_receivers_leaves_the_others_alone() {
    let mut stage = Stage::alice();
    stage.login(BOB);
    let many: Vec<_> = (0..=RECEIVERS_MAX as u32)
        .map(|n| Receiver { prefix: IpAddr::from((n * 2).to_be_bytes()).into(), ..receiver("192.0.2.0/24") })
        .collect();
    stage.agent.destinations(stage.now, BOB, Some((many.clone(), BTreeSet::new()))).expect_err("too many");
    stage.agent.login(BOB, Login { expires: UNIX + 1000, receivers: many, ..Login::default() });
    stage.settle();
    assert_eq!(stage.protected, ["192.0.2.0/24"]);
}

#[test]
fn together_sessions_may_have_more_spans_than_fit() {
    let mut stage = Stage::new(Config::default());
    for (subject, first) in [(ALICE, 1_u16), (BOB, 1001)] {
        let service = |n: u16| Service { protocol: TCP, first_port: first + 2 * n, last_port: first + 2 * n };
        let receivers = vec![
            Receiver { services: (0..20).map(service).collect(), ..receiver("192.0.2.0/24") },
            Receiver { services: vec![service(0)], ..receiver("198.51.100.1/32") },
        ];
        stage.agent.login(subject, Login { expires: UNIX + 1000, receivers, ..Login::default() });
    }
    let mut latest = Vec::new();
    while let Some(output) = stage.agent.poll() {
        if let Output::Protect(entries) = output {
            latest = entries;
        }
    }
    let found: Vec<_> = latest.iter().map(|entry| (entry.prefix.to_string(), entry.services.count)).collect();
    assert_eq!(found, [("192.0.2.0/24".to_owned(), 1), ("198.51.100.1/32".to_owned(), 2)]);
    assert!(latest[0].services.covers(UDP, 9));
}

#[test]
fn an_authority_that_cries_policy_is_asked_once_a_second() {
    let mut stage = Stage::alice();
    stage.reloads.clear();
    for _ in 0..100 {
        stage.agent.event(stage.now, ALICE, &Event::Policy);
    }
    stage.settle();
    assert_eq!(stage.reloads.len(), 1);
    stage.pass(3);
    assert_eq!(stage.reloads.len(), 2);
}
