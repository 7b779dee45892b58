//! A clock that is set back revives nothing: neither a used token nor a revoked grant.

use super::{CLIENT_PORT, Case, First, Step, TRANSPORTS, Transport};
use crate::world::{Family, Grant, NOW, families};
use engine::verifier::Outcome;
use wire::DropReason;

const OWNER: u64 = 60;
const HOUR: u32 = 3600;

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in families() {
        for transport in TRANSPORTS {
            times_that_come_twice(&mut cases, &family, transport);
            wrong_for_a_while(&mut cases, &family, transport);
            revoked(&mut cases, &family, transport);
        }
    }
    cases
}

fn row(family: &Family, transport: Transport, name: &str) -> Case {
    Case::new(family, "§6.4.6", &format!("{}, {name}", transport.name()))
}

/// Returns a first packet of a grant that expires at `ends`, with a token of this time.
fn first(family: &Family, transport: Transport, ends: u32, time: u32) -> First {
    let grant = Grant { expires: ends, ..Grant::new(family, OWNER) };
    let token = grant.token(&transport.destination(family), time, 1);
    transport.first(family, &grant, CLIENT_PORT, 1).with_token(|bytes| *bytes = token)
}

fn times_that_come_twice(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let (case, skew) = (|name| row(family, transport, name), Outcome::Drop(DropReason::ClockSkew));
    let at = |time| first(family, transport, NOW + 3000, time);
    let set_back = case("a clock set back by two minutes").step(Step::Wait(140)).step(Step::Back(120));
    cases.push(set_back.frame(at(NOW + 20).frame(), skew).frame(at(NOW + 50).frame(), skew));
    let later =
        case("a clock set back, two minutes later").step(Step::Wait(140)).step(Step::Back(120)).step(Step::Wait(100));
    cases.push(later.admitted(&at(NOW + 120)));
    let a_little = case("a clock set back by seconds").step(Step::Wait(140)).step(Step::Back(20));
    cases.push(a_little.admitted(&at(NOW + 120)));
}

fn wrong_for_a_while(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let case = row(family, transport, "a clock that was an hour ahead for a while");
    let case = case.step(Step::Leap(HOUR)).step(Step::Sweep).step(Step::Wait(40)).step(Step::Back(HOUR));
    let at = |time| first(family, transport, NOW + 3000, time);
    cases.push(case.frame(at(NOW + 30).frame(), Outcome::Drop(DropReason::ClockSkew)).admitted(&at(NOW + 40)));
}

fn revoked(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let case = |name| row(family, transport, name).step(Step::RevokeUntil(OWNER, NOW + 300));
    let at = |time| first(family, transport, NOW + 300, time).frame();
    let ahead = case("a revoked grant, and a clock that was ahead for a while").step(Step::Leap(HOUR));
    let ahead = ahead.step(Step::Sweep).step(Step::Wait(40)).step(Step::Sweep).step(Step::Back(HOUR));
    cases.push(ahead.frame(at(NOW + 50), Outcome::Drop(DropReason::Revoked)));
    let ended =
        case("a revoked grant that has ended, and a clock that is set back").step(Step::Wait(400)).step(Step::Sweep);
    cases.push(ended.step(Step::Back(200)).frame(at(NOW + 200), Outcome::Drop(DropReason::Expired)));
}
