//! Tests the property of the carrier `stream` for every order in which packets are lost, repeated and reordered, and
//! that the checker finds the faults of faulty verifiers.

use model::stream::{AGAIN, EXACT, Stream, Verifier, WHOLE};
use stateright::{Checker, Model};

fn check(verifier: Verifier) -> (usize, bool, bool) {
    let checker = Stream { verifier, sockets: 3, copies: 3 }.checker().spawn_bfs().join();
    let (states, is_broken) = (checker.unique_state_count(), checker.discovery(EXACT).is_some());
    println!("{verifier:?}: {states} states");
    (states, is_broken, checker.discovery(WHOLE).is_some() && checker.discovery(AGAIN).is_some())
}

#[test]
fn the_server_reads_exactly_what_the_client_wrote() {
    let (states, is_broken, gets_through) = check(Verifier::Right);
    assert!(!is_broken && gets_through && states > 1000, "{states} states, broken: {is_broken}");
}

#[test]
fn faults_of_a_verifier_are_found() {
    for fault in [Verifier::LeavesSequence, Verifier::PassesPlainSyns] {
        assert!(check(fault).1, "{fault:?}: the application never reads a token");
    }
}

#[test]
fn a_copy_that_keeps_its_block_does_no_harm_to_a_server_without_fast_open() {
    assert!(!check(Verifier::PassesCopies).1);
}
