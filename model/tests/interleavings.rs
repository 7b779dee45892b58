//! Tests that the properties hold in every order of the steps of two cores and of a concurrent sweep.

#[allow(dead_code, reason = "the other test is its other user")]
mod setting;

use model::world::{Job, World};
use setting::{NOW, Scene, grant, greedy, held, refunded, segment};
use wire::map::VerifierConfig;

fn holds(world: World) {
    let report = world.check();
    let broken: Vec<_> = report.broken.iter().map(|(promise, path)| format!("{promise}:\n{path}")).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(report.states > 100, "only {} states", report.states);
}

#[test]
fn a_token_on_two_cores_at_once_admits_once() {
    let syn = || grant(1, NOW).syn(40000, NOW, 7);
    holds(Scene::new("the same SYN twice", vec![vec![syn()], vec![syn()]]).token(&[(0, 0), (1, 0)]).world());
}

#[test]
fn a_token_from_two_ports_at_once_admits_once() {
    let syn = |port| grant(1, NOW).syn(port, NOW, 7);
    let scripts = vec![vec![syn(40000)], vec![syn(40001)]];
    holds(Scene::new("one token from two ports", scripts).token(&[(0, 0), (1, 0)]).world());
}

#[test]
fn two_tokens_of_one_grant_at_once_are_admitted() {
    let syn = |port, nonce| grant(1, NOW).syn(port, NOW, nonce);
    let scripts = vec![vec![syn(40000, 7)], vec![syn(40001, 8)]];
    holds(Scene::new("two tokens of one grant", scripts).token(&[(0, 0)]).token(&[(1, 0)]).world());
}

#[test]
fn two_tokens_for_one_flow_are_admitted() {
    let datagram = |nonce| grant(1, NOW).datagram(40000, NOW, nonce);
    let scripts = vec![vec![datagram(7)], vec![datagram(8)]];
    holds(Scene::new("two tokens for one flow", scripts).token(&[(0, 0)]).token(&[(1, 0)]).world());
}

#[test]
fn a_grant_of_one_flow_gets_one() {
    let syn = |port, nonce| grant(1, NOW).syn(port, NOW, nonce);
    let scene = Scene::new("two tokens, one flow", vec![vec![syn(40000, 7)], vec![syn(40001, 8)]]);
    let config = VerifierConfig { flows_per_grant: 1, ..scene.config };
    holds(Scene { config, flows_max: 1, ..scene }.used_token(&[(0, 0)]).used_token(&[(1, 0)]).world());
}

#[test]
fn another_accounts_token_is_admitted_beside_one_that_takes_all_it_can() {
    holds(greedy("a greedy account").world());
}

#[test]
fn an_account_of_one_flow_gets_one_by_two_grants() {
    let scripts = vec![vec![held(1, 1).syn(40000, NOW, 7)], vec![held(1, 2).syn(40001, NOW, 7)]];
    let scene = Scene::new("two grants, one account", scripts);
    let config = VerifierConfig { flows_per_account: 1, ..scene.config };
    holds(Scene { config, flows_max: 1, ..scene }.used_token(&[(0, 0)]).used_token(&[(1, 0)]).world());
}

#[test]
fn a_refund_beside_a_new_window_costs_the_account_nothing() {
    assert_eq!(NOW % wire::map::TOKEN_WINDOW, 0, "a window begins");
    holds(refunded("a refund beside a new window").world());
}

#[test]
fn an_account_of_two_grants_gets_two_on_two_cores() {
    let scripts = vec![vec![held(1, 2).syn(40001, NOW, 7)], vec![held(1, 3).syn(40002, NOW, 7)]];
    let scene = Scene::new("two grants for one place", scripts);
    let config = VerifierConfig { grants_per_account: 2, ..scene.config };
    let before = vec![held(1, 1).syn(40000, NOW, 7)];
    holds(Scene { config, before, flows_max: 2, ..scene }.used_token(&[(0, 0)]).used_token(&[(1, 0)]).world());
}

#[test]
fn a_grant_that_begins_on_two_cores_at_once_counts_once() {
    let scripts = vec![vec![held(1, 1).syn(40000, NOW, 7)], vec![held(1, 1).syn(40001, NOW, 8)]];
    let scene = Scene::new("one grant begins twice", scripts).token(&[(0, 0)]).token(&[(1, 0)]);
    holds(scene.world());
}

#[test]
fn a_full_table_evicts_nobody() {
    let scene = Scene::new(
        "a full table",
        vec![vec![grant(2, NOW).syn(40001, NOW, 7)], vec![grant(3, NOW).syn(40002, NOW, 7)]],
    );
    let before = vec![grant(1, NOW).syn(40000, NOW, 7), segment(40000, 0)];
    holds(Scene { before, room: &[("flows4", 1)], flows_max: 1, ..scene }.world());
}

#[test]
fn a_revocation_beside_a_first_packet_holds() {
    let scene = Scene::new("revoked beside a SYN", vec![vec![grant(1, NOW).syn(40000, NOW, 7)], vec![]]);
    holds(Scene { revokes: vec![(1, grant(1, NOW).handle, NOW + 3000)], ..scene }.world());
}

#[test]
fn the_end_of_a_session_beside_a_first_packet_holds() {
    let scene = Scene::new("a session ends beside a SYN", vec![vec![grant(1, NOW).syn(40000, NOW, 7)], vec![]]);
    holds(Scene { ends: vec![(1, grant(1, NOW), NOW + 3000)], ..scene }.world());
}

#[test]
fn a_sweep_beside_an_end_and_a_new_beginning_counts_right() {
    // The client's connection was reset. The same client, or another one, opens the same 5-tuple again while the sweep
    // removes the old flow. The program may refuse a token that arrives after the sweep has claimed the old flow and
    // before it has removed it. The client's stack then tries again.
    for (name, number) in [("a sweep beside a SYN", 1), ("a sweep beside another grant's SYN", 2)] {
        let again = grant(number, NOW).syn(40000, NOW + 31, 8);
        let before = vec![grant(1, NOW).syn(40000, NOW, 7)];
        let scene = Scene::new(name, vec![vec![again], vec![Job::Sweep]]);
        let mut world = Scene { before, ..scene }.used_token(&[(0, 0)]).world();
        world.memory.clock += 31;
        holds(world);
    }
}

#[test]
fn a_strangers_token_beside_a_segment_takes_no_open_flow() {
    let scripts = vec![vec![grant(2, NOW).syn(40000, NOW, 8)], vec![segment(40000, 0)]];
    let scene = Scene::new("a stranger's SYN beside a segment", scripts).token(&[(0, 0)]);
    holds(Scene { before: vec![grant(1, NOW).syn(40000, NOW, 7), segment(40000, 0)], ..scene }.world());
}

#[test]
fn two_grants_that_open_one_flow_at_once_are_admitted() {
    let syn = |number| grant(number, NOW).syn(40000, NOW, 7);
    let scene = Scene::new("two grants, one flow", vec![vec![syn(1)], vec![syn(2)]]).token(&[(0, 0)]).token(&[(1, 0)]);
    holds(scene.world());
}

#[test]
fn a_token_whose_place_becomes_free_for_one_core_first_admits_at_most_once() {
    let syn = |port| grant(1, NOW + 30).syn(port, NOW + 30, 9);
    let scene =
        Scene::new("a second ends beside two copies", vec![vec![syn(40000)], vec![syn(40001)], vec![Job::Tick(1)]]);
    let before = vec![grant(2, NOW).syn(40002, NOW, 7)];
    let mut world = Scene { before, ..scene }.used_token(&[(0, 0), (1, 0)]).world();
    world.memory.clock += 30;
    holds(world);
}
