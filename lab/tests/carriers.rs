//! Tests of the carriers between real network stacks: how many bytes they add, as captures show, and which flows pass.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use lab::service::{ask, call, exchange};
use lab::world::{ECHO, FRONT4, INSIDE4, TAKE_ALL, Way, policy};
use lab::{Capture, World, capture, poll, test};
use wire::shim::SHIM_LEN;
use wire::tail::BLOCK_LEN;
use wire::{Carrier, DropReason, Suite, ls};

const SOON: Duration = Duration::from_secs(5);
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(400);

const OURS: &str = Suite::Siphash.name();

fn echo() -> SocketAddr {
    format!("{FRONT4}:{ECHO}").parse().expect("an address")
}

/// Returns how many bytes each of Alice's packets is longer on the cable than behind the verifier, for a TCP and for a
/// UDP flow.
fn overhead(suite: &str, carrier: Carrier) -> Result<[Vec<usize>; 2]> {
    let world = World::with_tokens(Way::Direct, suite, carrier)?;
    let network = &world.network;
    let (cable, behind) = (Capture::start(&network.internet, "dc")?, Capture::start(&network.server, "eth0")?);
    let filter = format!("src host {INSIDE4} and dst host {FRONT4}");
    let of = |protocol: &str| -> Result<Vec<usize>> {
        let on_cable = format!("{filter} and ({protocol} or ip proto 4)");
        let whole = format!("{filter} and {protocol}");
        let mut seen = Ok(Vec::new());
        let complete = poll(SOON, || {
            seen = capture::overhead((&cable, &on_cable), (&behind, &whole));
            seen.as_ref().is_ok_and(|seen| seen.len() >= 3)
        });
        let seen = seen?;
        ensure!(complete, "{protocol}: {seen:?}");
        Ok(seen)
    };
    let mut stream = call(&network.alice, echo(), SOON)?;
    for _ in 0..3 {
        exchange(&mut stream)?;
    }
    network.alice.enter(|| -> Result<()> {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(SOON))?;
        socket.connect(echo())?;
        for _ in 0..3 {
            socket.send(b"datagram")?;
            socket.recv(&mut [0; 16])?;
        }
        Ok(())
    })?;
    ensure!(world.verifier.counters()?.named("token") >= 2, "tokens admitted both flows");
    Ok([of("tcp")?, of("udp")?])
}

#[test]
fn a_tail_costs_40_bytes_in_first_packets_and_none_later() {
    test(|| {
        for more in overhead(OURS, Carrier::Tail)? {
            ensure!(more[0] == 40 && more[0] == BLOCK_LEN && more[1..].iter().all(|more| *more == 0), "{more:?}");
        }
        Ok(())
    });
}

#[test]
fn a_shim_costs_60_bytes_in_first_packets_and_none_later() {
    test(|| {
        for more in [overhead(OURS, Carrier::Shim)?, overhead(ls::NAME, Carrier::Shim)?].as_flattened() {
            ensure!(more[0] == 60 && more[0] == SHIM_LEN && more[1..].iter().all(|more| *more == 0), "{more:?}");
        }
        Ok(())
    });
}

#[test]
fn a_shim_passes_no_address_translator_and_a_tail_does() {
    test(|| {
        let world = World::with_tokens(Way::Nat, OURS, Carrier::Shim)?;
        let before = world.verifier.counters()?;
        ensure!(call(&world.network.alice, echo(), QUIET).is_err(), "a shim got through");
        let dropped =
            || world.verifier.counters().is_ok_and(|now| now.since(&before).contains_key(DropReason::Malformed.name()));
        ensure!(poll(SOON, dropped), "{:?}", world.verifier.counters()?.since(&before));
        world.authority.apply(&policy("5m"))?;
        world.agent.logout()?;
        world.agent.login(&world.authority, "alice")?;
        call(&world.network.alice, echo(), SOON)?;
        ask(&world.network.alice, echo(), SOON)
    });
}

#[test]
fn a_stranger_gets_no_shim_and_nowhere() {
    test(|| {
        let world = World::with_tokens(Way::Direct, OURS, Carrier::Shim)?;
        call(&world.network.alice, echo(), SOON)?;
        ensure!(call(&world.network.mallory, echo(), QUIET).is_err(), "mallory got in");
        ensure!(ask(&world.network.mallory, echo(), QUIET).is_err(), "mallory got in by UDP");
        Ok(())
    });
}

#[test]
fn the_published_scheme_works_from_login_to_revocation() {
    test(|| {
        let mut world = World::with_tokens(Way::Direct, ls::NAME, Carrier::Shim)?;
        let before = world.verifier.counters()?;
        let flow = call(&world.network.alice, echo(), SOON)?;
        ask(&world.network.alice, echo(), SOON)?;
        let grants = world.agent.grants()?;
        let [grant] = grants["grants"].as_array().map(Vec::as_slice).unwrap_or_default() else {
            bail!("not one grant: {grants}")
        };
        ensure!(grant["suite"] == ls::NAME && grant["carrier"] == Carrier::Shim.name(), "{grant}");
        let owner = world.verifier.whois(flow.local_addr()?)?.to_string();
        ensure!(owner.contains("\"alice\""), "{owner}");

        // A restart of the agent or of the verifier must not make the agent use a nonce twice.
        world.agent.kill()?;
        world.agent.run()?;
        call(&world.network.alice, echo(), SOON)?;
        world.verifier.kill()?;
        world.verifier.run(&TAKE_ALL)?;
        call(&world.network.alice, echo(), SOON)?;
        let since = world.verifier.counters()?.since(&before);
        let dropped = DropReason::ALL.iter().find(|reason| since.contains_key(reason.name()));
        ensure!(dropped.is_none() && world.authority.grants()?.len() == 1, "{since:?}");

        world.authority.revoke("alice")?;
        ensure!(
            poll(SOON, || world.verifier.flows().is_ok_and(|flows| flows.is_empty())),
            "flows outlive the revocation"
        );
        ensure!(call(&world.network.alice, echo(), QUIET).is_err(), "revoked, and let in");
        Ok(())
    });
}

#[test]
fn a_verifier_takes_no_pairs_unless_it_is_told_to() {
    test(|| {
        let mut world = World::with_tokens(Way::Direct, ls::NAME, Carrier::Shim)?;
        world.verifier.kill()?;
        world.verifier.run(&["--carriers", "tail,shim"])?;
        ensure!(call(&world.network.alice, echo(), QUIET).is_err(), "let in");
        let dropped = || world.verifier.counters().is_ok_and(|now| now.dropped(DropReason::UnknownSuite) > 0);
        ensure!(poll(SOON, dropped), "{:?}", world.verifier.counters()?);
        Ok(())
    });
}
