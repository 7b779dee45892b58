//! Tests of how grants are renewed and how they end.

use super::*;

#[test]
fn a_grant_in_use_is_renewed_before_it_ends() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.answer(stage.grant(tcp(1, 22), 5));
    stage.used.last = UNIX as u32 + 10;
    stage.pass(199);
    assert!(stage.requests.is_empty());
    stage.pass(2);
    assert_eq!(stage.requests.len(), 1);
    assert!(stage.has_grant(tcp(1, 22), 5));
    stage.answer(stage.grant(tcp(1, 22), 6));
    assert!(stage.has_grant(tcp(1, 22), 6));
    assert_eq!(stage.agent.grants(ALICE, |_| None).len(), 1);
}

#[test]
fn a_pair_is_renewed_before_its_nonces_are_used_up() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.answer(stage.pair(tcp(1, 22), 5));
    stage.queued(tcp(2, 22), 2);
    assert!(stage.has_pair(tcp(1, 22), 5) && stage.has_pair(tcp(2, 22), 5) && stage.requests.is_empty());
    stage.used = Used { last: UNIX as u32 + 10, spent: 24_575 };
    stage.pass(1);
    assert!(stage.requests.is_empty());
    stage.used.spent += 1;
    stage.pass(1);
    assert_eq!(stage.requests.len(), 1);
    stage.answer(stage.pair(tcp(1, 22), 6));
    stage.used.spent = 0;
    assert!(stage.has_pair(tcp(1, 22), 6) && stage.has_pair(tcp(2, 22), 6));
    stage.pass(1);
    assert!(stage.requests.is_empty());
}

#[test]
fn a_pair_without_a_nonce_left_is_used_no_more() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.answer(stage.pair(tcp(1, 22), 5));
    stage.used = Used { last: UNIX as u32 + 10, spent: 32_768 };
    stage.pass(1);
    assert!(stage.entries.is_empty());
    stage.used = Used::default();
    stage.queued(tcp(1, 22), 2);
    stage.answer(stage.pair(tcp(1, 22), 6));
    assert!(stage.has_pair(tcp(1, 22), 6));
}

#[test]
fn a_pair_that_wants_another_carrier_than_a_shim_is_of_no_use() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    let (id, subject, _) = stage.requests.remove(0);
    let pair = stage.pair(tcp(1, 22), 5).map(|pair| Grant { carrier: Carrier::Tail, ..pair });
    assert!(stage.agent.answered(stage.now, subject, id, &pair).is_err());
}

#[test]
fn an_idle_grant_ends() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.answer(stage.grant(tcp(1, 22), 5));
    stage.pass(301);
    assert!(stage.requests.is_empty() && stage.entries.is_empty());
    assert!(stage.agent.grants(ALICE, |_| None).is_empty());
}

#[test]
fn a_grant_is_used_to_its_end_while_the_authority_is_away() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.answer(stage.grant(tcp(1, 22), 5));
    stage.used.last = UNIX as u32 + 10;
    let mut questions = 0;
    for _ in 0..290 {
        stage.pass(1);
        if !stage.requests.is_empty() {
            stage.answer(away());
            questions += 1;
        }
    }
    assert!((5..15).contains(&questions), "{questions}");
    assert!(stage.has_grant(tcp(1, 22), 5));
}

#[test]
fn a_refused_renewal_ends_the_grant() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.answer(stage.grant(tcp(1, 22), 5));
    stage.used.last = UNIX as u32 + 10;
    stage.pass(201);
    stage.answer(denied());
    assert!(stage.has_plain(tcp(1, 22)));
}
