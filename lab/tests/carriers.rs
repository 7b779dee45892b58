//! What the carriers cost and where they pass, between real stacks: bytes as captures show them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::service::{ask, call, exchange};
use lab::world::{Agent, Authority, ECHO, FRONT4, INSIDE4, Network, Services, Verifier, Way, policy};
use lab::{Capture, World, poll, test};
use wire::shim::SHIM_LEN;
use wire::tail::BLOCK_LEN;
use wire::{Carrier, DropReason};

const SOON: Duration = Duration::from_secs(5);
/// Long enough for an answer that must not come.
const QUIET: Duration = Duration::from_millis(400);

fn echo() -> SocketAddr {
    format!("{FRONT4}:{ECHO}").parse().expect("an address")
}

/// The standard world, with tokens for the front by this carrier, and a verifier that takes both.
fn world(way: Way, carrier: Carrier) -> Result<World> {
    let network = Network::new(way)?;
    let services = Services::start(&network)?;
    let lifetime = "lifetime = \"5m\"";
    let policy = policy("5m").replace(lifetime, &format!("{lifetime}\ncarrier = \"{}\"", carrier.name()));
    let authority = Authority::start(&network.authority, &policy)?;
    let verifier = Verifier::start_with(&network.server, &authority, &["--carriers", "tail,shim"])?;
    let agent = Agent::start(&network.alice)?;
    let world = World { agent, verifier, authority, services, network };
    world.agent.login(&world.authority, "alice")?;
    Ok(world)
}

/// How many bytes each packet of alice's is longer on the cable than behind the verifier, in a TCP and in a UDP flow.
fn overhead(carrier: Carrier) -> Result<[Vec<usize>; 2]> {
    let world = world(Way::Direct, carrier)?;
    let network = &world.network;
    let (cable, behind) = (Capture::start(&network.internet, "dc")?, Capture::start(&network.server, "eth0")?);
    let filter = format!("src host {INSIDE4} and dst host {FRONT4}");
    let mut seen = 0;
    let mut since = || -> Result<Vec<usize>> {
        let mut both = (Vec::new(), Vec::new());
        let complete = poll(SOON, || {
            both = (cable.lengths(&filter).unwrap_or_default(), behind.lengths(&filter).unwrap_or_default());
            both.0.len() == both.1.len() && both.0.len() >= seen + 2
        });
        ensure!(complete, "on the cable {:?}, behind the verifier {:?}", both.0, both.1);
        let more = both.0.iter().zip(&both.1).skip(seen).map(|(cable, behind)| cable - behind).collect();
        seen = both.0.len();
        Ok(more)
    };
    let mut stream = call(&network.alice, echo(), SOON)?;
    for _ in 0..3 {
        exchange(&mut stream)?;
    }
    let tcp = since()?;
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
    let udp = since()?;
    ensure!(world.verifier.counters()?.named("token") >= 2, "tokens admitted both flows");
    Ok([tcp, udp])
}

#[test]
fn a_tail_costs_40_bytes_in_first_packets_and_none_later() {
    test(|| {
        for more in overhead(Carrier::Tail)? {
            ensure!(more[0] == 40 && more[0] == BLOCK_LEN && more[1..].iter().all(|more| *more == 0), "{more:?}");
        }
        Ok(())
    });
}

#[test]
fn a_shim_costs_60_bytes_in_first_packets_and_none_later() {
    test(|| {
        for more in overhead(Carrier::Shim)? {
            ensure!(more[0] == 60 && more[0] == SHIM_LEN && more[1..].iter().all(|more| *more == 0), "{more:?}");
        }
        Ok(())
    });
}

#[test]
fn a_shim_passes_no_address_translator_and_a_tail_does() {
    test(|| {
        let world = world(Way::Nat, Carrier::Shim)?;
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
        let world = world(Way::Direct, Carrier::Shim)?;
        call(&world.network.alice, echo(), SOON)?;
        ensure!(call(&world.network.mallory, echo(), QUIET).is_err(), "mallory got in");
        ensure!(ask(&world.network.mallory, echo(), QUIET).is_err(), "mallory got in by UDP");
        Ok(())
    });
}
