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
    world.initiator.renew(terms(&world.tables, world.holder, 2, WALL + 120), world.now);
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

/// Opens tunnels of this many accounts, each with an initiator that nobody hears of again.
fn crowd(world: &mut World, accounts: u32) -> Vec<Holder> {
    let holders: Vec<_> = (0..accounts).map(|account| Holder::new(1000 + account, 1).expect("small")).collect();
    for holder in &holders {
        world.holder = *holder;
        world.initiator = Initiator::new(terms(&world.tables, *holder, 1, WALL + 3000));
        world.send(u64::from(holder.account())).expect("behind the initiation");
        world.run(50);
    }
    assert_eq!(world.responder.len() as u32, accounts);
    holders
}

#[test]
fn of_many_tunnels_each_revoked_one_ends_within_a_second_and_at_once_if_asked() {
    let mut world = World::new(23);
    for (holder, asked) in crowd(&mut world, 40).into_iter().step_by(7).zip([false, true].into_iter().cycle()) {
        world.holder = holder;
        let (handle, before) = (world.info().handle, world.responder.len());
        world.tables.revoked.insert(handle, WALL + 3000);
        if asked {
            world.responder.recheck();
        }
        world.run(if asked { STEP } else { 1000 + STEP });
        assert_eq!(world.responder.len(), before - 1, "asked: {asked}");
    }
}

#[test]
fn of_many_tunnels_each_is_forgotten_when_its_own_keys_are_too_old() {
    let mut world = World::new(24);
    let tunnels = crowd(&mut world, 40).len();
    // Nobody answers the responder but the latest initiator, which is cut off, too.
    world.path.lost = 100;
    world.run(30_000 + REKEY_GRACE - 10_000);
    assert_eq!(world.responder.len(), tunnels);
    world.run(REKEY_AFTER - 30_000 + 10_000 + 40 * 50 + STEP);
    assert_eq!(world.responder.len(), 0);
}

#[test]
fn a_tunnel_re_keys_at_the_shortest_age_that_a_rule_of_its_flows_demands() {
    let mut world = World::new(25);
    let long = Terms { rekey_after: 3_600_000, ..terms(&world.tables, world.holder, 1, WALL + 3000) };
    world.initiator = Initiator::new(long);
    world.initiator.want(true);
    world.send(1).expect("behind the initiation");
    world.run(100);
    let id = world.last.expect("a tunnel");
    world.responder.demand_rekey(id, 600_000, world.now);
    world.run(500_000);
    assert_eq!(world.info().phase, 1, "later than by default");
    world.responder.demand_rekey(id, 550_000, world.now);
    world.responder.demand_rekey(id, 900_000, world.now);
    world.run(65_000);
    assert_eq!(world.info().phase, 2);
}

#[test]
fn a_rule_that_comes_late_in_a_phase_begins_the_next_and_ends_no_tunnel() {
    for learns_first in ["the verifier", "the agent"] {
        let mut world = World::new(25);
        let patient = Terms { rekey_after: 120_000, ..terms(&world.tables, world.holder, 1, WALL + 3000) };
        world.initiator = Initiator::new(patient.clone());
        world.initiator.want(true);
        world.send(0).expect("behind the initiation");
        world.run(100_000);
        let (id, sent) = (world.responder.of(world.holder).expect("a tunnel"), world.at_server.len());
        assert_eq!((world.initiator.phase(), world.info().phase), (1, 1), "{learns_first}");
        // The phase is older than the rule's age and the time of grace together.
        if learns_first == "the verifier" {
            world.responder.demand_rekey(id, 10_000, world.now);
        } else {
            world.initiator.renew(Terms { rekey_after: 10_000, ..patient }, world.now);
        }
        world.talk(1, 20, 50);
        world.run(100);
        assert_eq!(world.at_server.len() - sent, 20, "{learns_first}: nothing is lost over it");
        assert_eq!(world.at_client.len(), 20, "{learns_first}: nothing is lost over it");
        assert_eq!((world.initiator.phase(), world.info().phase), (2, 2), "{learns_first}");
        assert_eq!(world.responder.of(world.holder), Some(id), "{learns_first}: it is the same tunnel");
    }
}
