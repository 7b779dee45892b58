//! Tests of destinations to which packets may travel in a sealed tunnel only.

use super::*;

/// Creates a stage where Alice's only receiver demands a treatment.
fn sealed() -> Stage {
    let mut stage = Stage::alice();
    let receivers = (vec![receiver("192.0.2.0/24")], BTreeSet::from(["lab".to_owned()]));
    stage.agent.destinations(stage.now, ALICE, Some(receivers)).expect("few spans");
    stage.settle();
    stage
}

fn never() -> ConsentRules {
    let mut rules = ConsentRules::default();
    rules.set("192.0.2.0/24".parse().expect("a target"), Consent::Deny);
    rules
}

#[test]
fn a_denial_sends_nothing_in_clear() {
    let mut stage = sealed();
    stage.queued(udp(1, 9100), 1);
    stage.answer(Err(Refusal::Denied("no rule".into())));
    stage.queued(udp(1, 9100), 2);
    stage.pass(30);
    assert!(stage.sent.is_empty() && stage.entries.is_empty(), "{:?}", stage.sent);
    assert!(!stage.requests.is_empty(), "it asks again");
}

#[test]
fn a_persons_own_rule_sends_nothing_in_clear() {
    let mut stage = sealed();
    stage.agent.set_rules(ALICE, never());
    stage.queued(udp(1, 9100), 1);
    stage.pass(5);
    assert!(stage.sent.is_empty() && stage.entries.is_empty() && stage.requests.is_empty());
}

#[test]
fn a_demand_that_comes_later_ends_what_goes_without_identity() {
    for denied_by_policy in [true, false] {
        let mut stage = Stage::alice();
        if !denied_by_policy {
            stage.agent.set_rules(ALICE, never());
        }
        stage.queued(udp(1, 9100), 1);
        if denied_by_policy {
            stage.answer(Err(Refusal::Denied("no rule".into())));
        }
        assert_eq!((&stage.sent[..], stage.entries.len()), (&[(1, false)][..], 1), "as before, in clear");
        let receivers = (vec![receiver("192.0.2.0/24")], BTreeSet::from(["lab".to_owned()]));
        stage.agent.destinations(stage.now, ALICE, Some(receivers)).expect("few spans");
        stage.settle();
        assert!(stage.entries.is_empty(), "the kernel holds the next packet");
        stage.queued(udp(1, 9100), 2);
        stage.pass(5);
        assert_eq!(stage.sent.len(), 1);
    }
}

#[test]
fn a_restart_does_not_forget_what_is_sealed() {
    let mut stage = Stage::new(Config::default());
    let (receivers, sealed) = (vec![receiver("192.0.2.0/24")], BTreeSet::from(["lab".to_owned()]));
    stage.agent.login(ALICE, Login { expires: UNIX + 43_200, receivers, sealed, ..Login::default() });
    stage.settle();
    stage.queued(udp(1, 9100), 1);
    stage.answer(Err(Refusal::Denied("no rule".into())));
    stage.pass(5);
    assert!(stage.sent.is_empty());
}
