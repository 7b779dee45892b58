//! Tests that flows survive the loss of the authority, of the verifier's daemon, and of the agent's daemon.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::counter::Stack;
use lab::service::{ask, call, exchange, last_answer};
use lab::transfer::{Sink, Transfer};
use lab::world::{DARK4, ECHO, FRONT4, Way};
use lab::{World, poll, test};
use wire::DropReason;

const SOON: Duration = Duration::from_secs(5);
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(400);
const SINK: u16 = 5000;
/// Rate of transfers in bytes per second, far below the capacity of the cables.
const BRAKE: u64 = 20 << 20;

fn echo() -> SocketAddr {
    format!("{FRONT4}:{ECHO}").parse().expect("an address")
}

/// Kills and restarts the verifier's daemon during a transfer. Returns the number of TCP segments lost in both
/// directions.
fn losses_around_a_kill(world: &mut World, sink: &Sink) -> Result<i64> {
    let network = &world.network;
    let stacks =
        || -> Result<i64> { Ok(Stack::read(&network.alice)?.losses()? + Stack::read(&network.server)?.losses()?) };
    let (taken, before, counters) = (sink.taken(), stacks()?, world.verifier.counters()?);
    let to = format!("{DARK4}:{SINK}").parse()?;
    let transfer = Transfer::start(&network.alice, to, Duration::from_secs(4), Some(BRAKE))?;
    ensure!(poll(SOON, || sink.taken() > taken + BRAKE / 2), "no transfer");

    world.verifier.kill()?;
    let orphaned = sink.taken();
    ensure!(poll(SOON, || sink.taken() > orphaned + BRAKE), "the transfer stands still");
    call(&network.alice, echo(), SOON).context("a new flow while the daemon is gone")?;
    ensure!(call(&network.mallory, echo(), QUIET).is_err(), "mallory got in while the daemon is gone");

    world.verifier.run(&[])?;
    let back = sink.taken();
    ensure!(poll(SOON, || sink.taken() > back + BRAKE / 2), "the transfer stands still");
    call(&network.alice, echo(), SOON).context("a new flow afterwards")?;
    let rate = transfer.finish()?;
    ensure!(sink.taken() - taken == rate.bytes, "{} of {} bytes arrived", sink.taken() - taken, rate.bytes);
    let grown = world.verifier.counters()?.since(&counters);
    let others = DropReason::ALL.iter().filter(|reason| **reason != DropReason::NoToken);
    let dropped: Vec<_> = others.filter(|reason| grown.contains_key(reason.name())).collect();
    ensure!(dropped.is_empty(), "packets of admitted flows were dropped: {grown:?}");
    Ok(stacks()? - before)
}

#[test]
fn the_verifiers_daemon_is_killed_in_mid_transfer_and_not_one_segment_is_lost() {
    test(|| {
        let mut world = World::new(Way::Nat)?;
        let sink = Sink::start(&world.network.server, SINK)?;
        // A busy machine loses some segments by itself now and then. Losses caused by a kill would occur every time.
        let mut tries = (0..3).map(|_| losses_around_a_kill(&mut world, &sink));
        let seen = tries.try_fold(i64::MAX, |least, again| match again {
            Ok(0) => Err(Ok(())),
            Ok(again) => Ok(least.min(again)),
            Err(error) => Err(Err(error)),
        });
        match seen {
            Err(done) => done?,
            Ok(least) => bail!("{least} or more segments were lost, each time"),
        }
        let flows = world.verifier.flows()?;
        ensure!(flows.iter().all(|flow| flow["person"] == "alice"), "forgotten whose flows they are: {flows:?}");
        Ok(())
    });
}

#[test]
fn the_agents_daemon_is_killed_and_flows_live_and_new_ones_get_tokens() {
    test(|| {
        let mut world = World::new(Way::Nat)?;
        let network = &world.network;
        let mut flow = call(&network.alice, echo(), SOON)?;
        ask(&network.alice, echo(), SOON)?;

        world.agent.kill()?;
        exchange(&mut flow).context("the flow that was there")?;
        for _ in 0..10 {
            call(&network.alice, echo(), SOON).context("a new flow with the grant that the kernel has")?;
            ask(&network.alice, echo(), SOON).context("a new datagram with the grant that the kernel has")?;
        }

        world.agent.run()?;
        exchange(&mut flow).context("the flow that was there")?;
        call(&network.alice, echo(), SOON).context("a new flow afterwards")?;
        let to = format!("{DARK4}:{ECHO}").parse()?;
        call(&network.alice, to, SOON).context("a new destination afterwards: the session was lost")?;
        Ok(())
    });
}

#[test]
fn the_authority_is_down_and_flows_live_and_new_ones_until_the_grant_ends() {
    test(|| {
        let mut world = World::with_lifetime(Way::Nat, "10s")?;
        let network = &world.network;
        let mut flow = call(&network.alice, echo(), SOON)?;
        world.authority.stop()?;
        let stopped = Instant::now();
        let trouble = || world.agent.status().is_ok_and(|status| status["session"]["trouble"].is_string());
        ensure!(poll(Duration::from_secs(2), trouble), "the agent doesn't say that the authority is gone");
        exchange(&mut flow).context("the flow that was there")?;
        call(&network.alice, echo(), SOON).context("a new flow while the grant lasts")?;

        let mut admitted_until = Duration::ZERO;
        let ended = poll(Duration::from_secs(20), || match call(&network.alice, echo(), QUIET) {
            Ok(_) => {
                admitted_until = stopped.elapsed();
                std::thread::sleep(Duration::from_millis(50));
                false
            }
            Err(_) => true,
        });
        ensure!(ended, "still admitted {:?} after the authority went", stopped.elapsed());
        // A grant lasts 10 s. When the authority stopped, the grant was recent, or the agent had just fetched another
        // one.
        ensure!(admitted_until > Duration::from_secs(4), "new flows were refused after {admitted_until:?}");
        ensure!(admitted_until < Duration::from_secs(12), "new flows were admitted for {admitted_until:?}");
        exchange(&mut flow).context("the flow that was there, without a grant")?;

        world.authority.run()?;
        let back = poll(Duration::from_secs(45), || call(&network.alice, echo(), SOON).is_ok());
        ensure!(back, "no new flow after the authority came back");
        ensure!(!trouble(), "the agent says that the authority is gone");
        exchange(&mut flow).context("the flow that was there")?;
        Ok(())
    });
}

#[test]
fn every_daemon_is_killed_and_flows_live() {
    test(|| {
        let mut world = World::new(Way::Direct)?;
        let mut flow = call(&world.network.alice, echo(), SOON)?;
        world.agent.kill()?;
        world.verifier.kill()?;
        world.authority.stop()?;
        exchange(&mut flow)?;
        call(&world.network.alice, echo(), SOON).context("a new flow")?;
        ensure!(call(&world.network.mallory, echo(), QUIET).is_err(), "mallory got in");

        // A verifier that starts while its authority is unreachable still has the protected addresses and its keys.
        world.verifier.run_alone()?;
        exchange(&mut flow)?;
        call(&world.network.alice, echo(), SOON).context("a new flow")?;
        ensure!(call(&world.network.mallory, echo(), QUIET).is_err(), "mallory got in");
        Ok(())
    });
}

#[test]
fn a_revocation_cuts_within_a_second() {
    test(|| {
        let world = World::new(Way::Nat)?;
        let mut flow = call(&world.network.alice, echo(), SOON)?;
        world.authority.revoke("alice")?;
        let revoked = Instant::now();
        let lived = last_answer(&mut flow, SOON)?.duration_since(revoked);
        ensure!(lived < Duration::from_secs(1), "the flow lived {lived:?} more");
        ensure!(call(&world.network.alice, echo(), QUIET).is_err(), "a new flow was admitted");
        Ok(())
    });
}
