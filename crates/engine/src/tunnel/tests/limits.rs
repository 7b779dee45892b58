//! Tests of the events that end a tunnel, and of the limits on a tunnel and its account.

use super::*;

#[test]
fn a_revoked_grant_ends_its_tunnel_and_is_told_so() {
    let mut world = World::open(15);
    world.talk(1, 3, 20);
    let handle = world.info().handle;
    world.tables.revoked.insert(handle, WALL + 3000);
    world.run(100);
    assert_eq!(world.responder.len(), 0);
    assert!(!world.initiator.is_open(world.now));
    let before = world.at_server.len();
    let _ = world.send(9);
    world.run(500);
    assert_eq!(world.at_server.len(), before);
    assert_eq!(world.initiator.refused(), Some(Refusal::Revoked));
    assert_eq!(world.send(10), Err(NotSealed::Over), "it is not sent in any way");
}

#[test]
fn an_account_has_as_many_tunnels_as_it_may_and_takes_none_from_others() {
    let mut world = World::new(16);
    world.responder = Responder::new(Limits { of_account: 3, ..Limits::default() }, (Suites::ALL, Suites(3)));
    for number in 0..5 {
        world.initiator = Initiator::new(terms(&world.tables, world.holder, 10 + number, WALL + 3000));
        world.send(number.into()).expect("behind the initiation");
        world.run(100);
    }
    assert_eq!(world.responder.len(), 3);
    assert_eq!(world.initiator.refused(), Some(Refusal::Limit));
    world.holder = Holder::new(6, 1).expect("small");
    world.initiator = Initiator::new(terms(&world.tables, world.holder, 3, WALL + 3000));
    world.send(100).expect("behind the initiation");
    world.run(100);
    assert!(world.initiator.is_open(world.now), "another account's");
}

#[test]
fn a_tunnel_ends_with_its_grant_and_goes_on_with_a_newer_one() {
    let mut world = World::new(17);
    world.initiator = Initiator::new(terms(&world.tables, world.holder, 1, WALL + 60));
    world.initiator.want(true);
    world.send(0).expect("behind the initiation");
    world.run(20_000);
    world.initiator.renew(terms(&world.tables, world.holder, 2, WALL + 120));
    for number in 1..80 {
        world.send(number).expect("there is a tunnel at all times");
        world.run(1000);
    }
    world.run(100);
    assert_eq!(unique(&world.at_server), 80, "nothing was lost");
    world.run(60_000);
    assert_eq!(world.send(99), Err(NotSealed::Over), "the newer one has ended, too");
    assert_eq!(world.responder.len(), 0);
}

#[test]
fn what_limits_stop_is_not_sealed_and_not_opened() {
    let mut world = World::open(18);
    world.path.lost = 100;
    world.initiator.wear(UNITS_MAX, 0);
    assert_eq!(world.send(1), Err(NotSealed::Over));
    world.responder.wear(world.holder, 0, FAILED_MAX);
    world.initiator.wear(0, 0);
    world.send(2).expect("sealed");
    let mut record = world.seen.last().expect("it was sealed").clone();
    world.arrive(address(HOME), &mut record);
    assert_eq!(world.dropped.last(), Some(&NotTaken::Record(Dropped::Limit)));
}
