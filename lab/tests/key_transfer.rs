//! Tests of client keys in band: from the login to a flow, and the effect of forged keys.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::forge::{Packet, Tcp, flag};
use lab::port::Port;
use lab::service::call;
use lab::world::{AUTHORITY, AUTHORITY_PORT, ECHO, FRONT4, INSIDE4, Network, Transfer, Way, World};
use lab::{Capture, poll, test};
use wire::ls::KeyTransfer;
use wire::shim::Content;
use wire::{ClientKey, Pair};

const SOON: Duration = Duration::from_secs(20);
/// Number of forged keys, more than the agent has room for.
const FLOOD: u32 = 10_000;

fn echo() -> SocketAddr {
    SocketAddr::new(FRONT4.parse().expect("an address"), ECHO)
}

fn counted(world: &World, name: &str) -> Result<u64> {
    world.agent.status()?["counters"][name].as_u64().with_context(|| format!("no counter {name}"))
}

/// Returns the handles of the grants that the agent holds.
fn handles(world: &World) -> Result<Vec<String>> {
    let grants = world.agent.grants()?;
    let list = grants["grants"].as_array().context("a list of grants")?;
    list.iter().map(|grant| grant["handle"].as_str().map(str::to_owned).context("a handle")).collect()
}

/// Returns the number of packets from `from` that were in a shim.
fn shims(cable: &Capture, from: &str) -> Result<usize> {
    Ok(cable.lines(&format!("ip proto 4 and src host {from}"))?.len())
}

#[test]
fn a_key_comes_in_band_and_opens_a_flow() {
    test(|| {
        let network = Network::new(Way::Direct)?;
        let transfer = Transfer::start(&network.authority)?;
        let world = World::with_keys_in_band(network, &transfer.setting(), true)?;
        let cable = Capture::start(&world.network.internet, "auth")?;
        world.agent.login(&world.authority, "alice")?;
        ensure!(counted(&world, "keys_in_band")? == 0, "a key came before anything was asked for");
        call(&world.network.alice, echo(), SOON).context("alice, with a key that came in band")?;
        ensure!(counted(&world, "keys_in_band")? == 1, "{}", world.agent.status()?);
        ensure!(world.verifier.counters()?.named("token") >= 1, "no token was admitted");
        // The option travels to the authority, and the key travels back.
        ensure!(poll(SOON, || shims(&cable, AUTHORITY).is_ok_and(|count| count == 1)), "{:?}", cable.lines("")?);
        ensure!(shims(&cable, INSIDE4)? >= 1, "nobody said that keys are taken");
        // The connection to the authority is unharmed.
        ensure!(world.agent.status()?["session"]["trouble"].is_null(), "{}", world.agent.status()?);
        let said = transfer.stop()?;
        ensure!(said.contains("handed=1"), "{said}");
        Ok(())
    });
}

#[test]
fn unless_both_ends_are_set_up_for_it_keys_come_by_https() {
    test(|| {
        for (takes, sends) in [(true, false), (false, true)] {
            let network = Network::new(Way::Direct)?;
            let transfer = sends.then(|| Transfer::start(&network.authority)).transpose()?;
            let setting = transfer.as_ref().map(Transfer::setting).unwrap_or_default();
            let world = World::with_keys_in_band(network, &setting, takes)?;
            let cable = Capture::start(&world.network.internet, "auth")?;
            world.agent.login(&world.authority, "alice")?;
            call(&world.network.alice, echo(), SOON).with_context(|| format!("takes {takes}, sends {sends}"))?;
            ensure!(counted(&world, "keys_in_band")? == 0, "a key came in band: takes {takes}, sends {sends}");
            ensure!(shims(&cable, AUTHORITY)? == 0, "a key went in band: takes {takes}, sends {sends}");
            ensure!((shims(&cable, INSIDE4)? > 0) == takes, "who says it, takes: takes {takes}, sends {sends}");
        }
        Ok(())
    });
}

#[test]
fn a_key_that_is_lost_on_its_way_comes_by_https() {
    test(|| {
        let network = Network::new(Way::Direct)?;
        let transfer = Transfer::start(&network.authority)?;
        let world = World::with_keys_in_band(network, &transfer.setting(), true)?;
        world.agent.login(&world.authority, "alice")?;
        // The router passes outgoing shims and drops incoming ones.
        let router = &world.network.router;
        router
            .run(["nft", "add table ip drops; add chain ip drops forward { type filter hook forward priority 0; }"])?;
        router.run(["nft", "add rule ip drops forward ip saddr", AUTHORITY, "ip protocol 4 counter drop"])?;
        call(&world.network.alice, echo(), SOON).context("alice, whose key was lost")?;
        ensure!(counted(&world, "keys_in_band")? == 0, "{}", world.agent.status()?);
        ensure!(router.run(["nft", "list chain ip drops forward"])?.contains("packets 1 "), "nothing was lost");
        Ok(())
    });
}

/// Returns the local ports of the agent's open connections to the authority.
fn ports(world: &World) -> Result<Vec<u16>> {
    let shown = world.network.alice.run([
        "ss",
        "-Htn4",
        "state",
        "established",
        "dport",
        "=",
        &format!(":{AUTHORITY_PORT}"),
    ])?;
    let local = shown.lines().filter_map(|line| line.split_whitespace().nth(2));
    local.map(|end| end.rsplit(':').next().unwrap_or_default().parse().context("a port")).collect()
}

/// Returns a function that builds packets with the authority's source address, as if they belonged to Alice's
/// connections. Each packet has a key that Mallory made up.
fn forger(world: &World) -> Result<impl Fn(u16, u32) -> Vec<u8>> {
    let (from, to): (IpAddr, IpAddr) = (AUTHORITY.parse()?, INSIDE4.parse()?);
    let macs = (world.network.router.mac("lan-alice")?, world.network.alice.mac("eth0")?);
    Ok(move |port: u16, number: u32| {
        let [_, a, b, c] = number.to_be_bytes();
        let pair = Pair { unique_id: [b'm', a, b, c, 0], nonce1: port.to_be_bytes() };
        let content = Content::KeyTransfer(KeyTransfer { key: ClientKey::of(pair, b"her own"), pair }.encode());
        let packet = Packet::new(from, to).ethernet(macs.0, macs.1);
        packet.tcp(Tcp::new(AUTHORITY_PORT, port, flag::ACK)).shimmed(&content.encode()).frame()
    })
}

#[test]
fn forged_keys_win_nothing() {
    test(|| {
        let network = Network::new(Way::Direct)?;
        let transfer = Transfer::start(&network.authority)?;
        let world = World::with_keys_in_band(network, &transfer.setting(), true)?;
        let mallory = Port::open(&world.network.router, "lan-alice")?;
        let forged = forger(&world)?;
        let answered = || counted(&world, "keys_in_band");
        // At this point, nobody is logged in, and no connection is open.
        for port in [AUTHORITY_PORT, 40_000] {
            mallory.send(&forged(port, 0))?;
        }
        world.agent.login(&world.authority, "alice")?;
        let ports = ports(&world)?;
        ensure!(!ports.is_empty(), "no connection to the authority");
        // Use a port that no open connection has.
        let other = (40_000..).find(|port| !ports.contains(port)).context("a port")?;
        mallory.send(&forged(other, 1))?;
        ensure!(answered()? == 0, "a key was taken that nobody asked for");
        // Mallory knows the ports and floods them until Alice has her key.
        for number in 0..FLOOD {
            mallory.send(&forged(ports[number as usize % ports.len()], number))?;
        }
        ensure!(poll(SOON, || answered().is_ok_and(|count| count >= 1)), "no forged key reached the agent at all");
        call(&world.network.alice, echo(), SOON).context("alice, beside a flood")?;
        let own = handles(&world)?;
        let admitted: Vec<_> = world.authority.grants()?.iter().map(|grant| grant["handle"].clone()).collect();
        ensure!(!own.is_empty(), "alice has no grants");
        ensure!(
            own.iter().all(|handle| admitted.contains(&handle.as_str().into())),
            "{own:?} are not all of {admitted:?}"
        );
        ensure!(world.agent.status()?["session"]["trouble"].is_null(), "{}", world.agent.status()?);
        Ok(())
    });
}
