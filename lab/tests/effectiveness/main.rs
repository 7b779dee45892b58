//! Tests that without a valid token no packet gets in and no answer comes back, and that with a valid token every flow
//! is admitted at the first try. They use real daemons and sockets, and a thousand packets or flows of each kind.

mod attempts;
mod suites;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use attempts::{Attempts, reasons};
use lab::counter::Stack;
use lab::outsider::{Outsider, Place};
use lab::seen::Seen;
use lab::service::{call, dial, send};
use lab::world::{ECHO, FRONT4, FRONT6, POOL, Way, in_family};
use lab::{Port, World, poll, test};
use wire::{DropReason, tail::BLOCK_LEN};

const SOON: Duration = Duration::from_secs(5);
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(300);
const MANY: u64 = 1000;

fn front(six: bool) -> SocketAddr {
    (in_family(six, FRONT4, FRONT6), ECHO).into()
}

/// Makes a thousand attempts for each reason that a packet can cause. The verifier must drop each attempt for that
/// reason and no other. Nothing may come back or reach the server's stack.
fn a_thousand_wrong_packets_of_each_kind(place: Place, six: bool) -> Result<()> {
    wrong_packets_come_to_nothing(&World::new(Way::Nat)?, place, six)
}

fn wrong_packets_come_to_nothing(world: &World, place: Place, six: bool) -> Result<()> {
    let to = front(six).ip();
    let mut attempts = Attempts::new(world, to)?;
    let outsider = Outsider::new(&world.network, place, six)?;
    for reason in reasons().filter(|reason| place == Place::NextDoor || passes_a_router(*reason)) {
        attempts.prepare(world, &outsider, reason).with_context(|| format!("{reason}: preparation"))?;
        let _ = (outsider.came_back(to, Duration::ZERO), outsider.got_through(to));
        let before = world.verifier.counters()?;
        let came = (world.services.echo.connections(), world.services.echo.datagrams());
        for number in 0..MANY {
            outsider.send(&attempts.frame(&outsider, reason, number as u16)?)?;
        }
        let mut grown = Default::default();
        let _ = poll(SOON, || {
            grown = world.verifier.counters().map(|now| now.since(&before)).unwrap_or_default();
            grown.get(reason.name()) >= Some(&MANY)
        });
        grown.retain(|name, _| !matches!(name.as_str(), "not_ours" | "outbound"));
        ensure!(grown.len() == 1 && grown.get(reason.name()) == Some(&MANY), "{reason}: counted {grown:?}");
        let (back, through) = (outsider.came_back(to, QUIET), outsider.got_through(to));
        ensure!(back.is_empty(), "{reason}: {} came back, the first: {}", back.len(), back[0]);
        ensure!(through.is_empty(), "{reason}: {} got through, the first: {}", through.len(), through[0]);
        ensure!(came == (world.services.echo.connections(), world.services.echo.datagrams()), "{reason}: served");
    }
    Ok(())
}

#[test]
fn a_thousand_wrong_packets_of_each_kind_come_to_nothing_at_a_gateway() {
    test(|| {
        for six in [false, true] {
            let world = World::behind_gateway(Way::Nat, &[])?;
            wrong_packets_come_to_nothing(&world, Place::NextDoor, six)?;
        }
        Ok(())
    });
}

#[test]
fn a_thousand_wrong_packets_of_each_kind_come_to_nothing_at_a_gateway_that_gives_addresses() {
    test(|| {
        for six in [false, true] {
            let world = World::behind_gateway(Way::Nat, &["--pool", POOL])?;
            wrong_packets_come_to_nothing(&world, Place::NextDoor, six)?;
        }
        Ok(())
    });
}

/// Reports whether packets of this kind pass the home router, which reassembles fragments and drops packets that belong
/// to no connection.
fn passes_a_router(reason: DropReason) -> bool {
    !matches!(reason, DropReason::Fragment | DropReason::NoFlow)
}

#[test]
fn a_thousand_wrong_ipv4_packets_of_each_kind_come_to_nothing() {
    test(|| a_thousand_wrong_packets_of_each_kind(Place::NextDoor, false));
}

#[test]
fn a_thousand_wrong_ipv6_packets_of_each_kind_come_to_nothing() {
    test(|| a_thousand_wrong_packets_of_each_kind(Place::NextDoor, true));
}

#[test]
fn a_thousand_wrong_ipv4_packets_of_each_kind_come_to_nothing_through_the_nat() {
    test(|| a_thousand_wrong_packets_of_each_kind(Place::Home, false));
}

#[test]
fn a_thousand_wrong_ipv6_packets_of_each_kind_come_to_nothing_through_the_nat() {
    test(|| a_thousand_wrong_packets_of_each_kind(Place::Home, true));
}

/// Opens a thousand connections and sends a thousand datagrams. Each must be answered at the first try.
fn a_thousand_right_flows_of_each_kind(way: Way, six: bool) -> Result<()> {
    let world = World::new(way)?;
    let (alice, to) = (&world.network.alice, front(six));
    let (stack, counters) = (Stack::read(alice)?, world.verifier.counters()?);
    alice.enter(|| -> Result<()> {
        for number in 0..MANY {
            dial(to, SOON).with_context(|| format!("connection {number}"))?;
            // Send each datagram from a port of its own, because two datagrams from one port would be one flow.
            send(20000 + number as u16, to, SOON).with_context(|| format!("datagram {number}"))?;
        }
        Ok(())
    })?;
    let after = Stack::read(alice)?;
    ensure!(after.syn_retransmissions()? == stack.syn_retransmissions()?, "some connections needed a second SYN");
    let echo = &world.services.echo;
    ensure!((echo.connections(), echo.datagrams()) == (MANY, MANY), "{} and {}", echo.connections(), echo.datagrams());
    let grown = world.verifier.counters()?.since(&counters);
    ensure!(grown.get("token") == Some(&(2 * MANY)), "{grown:?}");
    let dropped = DropReason::ALL.iter().find(|reason| grown.contains_key(reason.name()));
    ensure!(dropped.is_none(), "{grown:?}");
    Ok(())
}

#[test]
fn a_thousand_ipv4_flows_are_admitted_through_the_nat() {
    test(|| a_thousand_right_flows_of_each_kind(Way::Nat, false));
}

#[test]
fn a_thousand_ipv6_flows_are_admitted_through_the_nat() {
    test(|| a_thousand_right_flows_of_each_kind(Way::Nat, true));
}

#[test]
fn a_thousand_ipv4_flows_are_admitted_without_a_nat() {
    test(|| a_thousand_right_flows_of_each_kind(Way::Direct, false));
}

#[test]
fn a_thousand_ipv6_flows_are_admitted_without_a_nat() {
    test(|| a_thousand_right_flows_of_each_kind(Way::Direct, true));
}

#[test]
fn a_captured_token_is_worth_nothing_behind_the_same_address() {
    test(|| {
        let world = World::new(Way::Nat)?;
        for six in [false, true] {
            let to = front(six);
            let on_path = Port::open(&world.network.internet, "home")?;
            let _flow = call(&world.network.alice, to, SOON)?;
            let captured = on_path.receive(SOON, |frame| {
                let seen = Seen::frame(frame)?;
                let opens = seen.tcp.as_ref().is_some_and(|tcp| tcp.flags & 0x12 == 0x02);
                (opens && seen.destination == to.ip()).then_some(seen.payload)
            });
            let captured = captured.context("no SYN seen on the way")?;
            ensure!(captured.len() == BLOCK_LEN, "the SYN carried {} bytes", captured.len());
            let mallory = Outsider::new(&world.network, Place::Home, six)?;
            let before = world.verifier.counters()?;
            for number in 0..MANY as u16 {
                mallory.send(&mallory.syn(2000 + number, to.ip(), to.port()).payload(&captured).frame())?;
            }
            let replayed = || world.verifier.counters().map(|now| now.since(&before).get("replayed").copied());
            ensure!(poll(SOON, || replayed().is_ok_and(|count| count == Some(MANY))), "{:?}", replayed()?);
            let back = mallory.came_back(to.ip(), QUIET);
            ensure!(back.is_empty(), "{} came back, the first: {}", back.len(), back[0]);
        }
        Ok(())
    });
}
