//! Attacks by a neighbour behind the same switch and by a host elsewhere, who forge key transfers, copy shims, and take
//! another device's addresses.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use lab::forge::{Packet, Tcp, flag};
use lab::service::{call, exchange};
use lab::world::{AUTHORITY, AUTHORITY_PORT, ECHO, FRONT4, INSIDE4, SOON};
use lab::{Capture, Port, poll, test};
use libbpf_rs::{MapCore, MapHandle};
use wire::ls::KeyTransfer;
use wire::shim::Content;
use wire::{ClientKey, DropReason, Pair};

use super::layout::{End, frames, is};
use super::stage::{BRIDGE, QUIET, Stage, echo};

const MALLORY: &str = "10.2.0.1";
/// Number of forged transfers, many times what the switch may send up for one connection.
const FLOOD: u16 = 1000;

/// Returns the number of entries in a pinned table.
pub fn entries(table: &Path) -> Result<usize> {
    let map = MapHandle::from_pinned_path(table).with_context(|| table.display().to_string())?;
    Ok(map.keys().count())
}

/// Returns the local ports of Alice's open connections to the authority.
fn ports(stage: &Stage) -> Result<Vec<u16>> {
    let to = format!(":{AUTHORITY_PORT}");
    let shown = stage.network.alice.run(["ss", "-Htn4", "state", "established", "dport", "=", &to])?;
    let local = shown.lines().filter_map(|line| line.split_whitespace().nth(2));
    local.map(|end| end.rsplit(':').next().unwrap_or_default().parse().context("a port")).collect()
}

/// Returns a transfer of a key that Mallory made up, as if it came from the authority on the connection to this port.
/// She can't see the connection, so she guesses its sequence numbers.
fn forged(macs: ([u8; 6], [u8; 6]), port: u16, number: u16) -> Result<Vec<u8>> {
    let pair = Pair { unique_id: *b"forge", nonce1: number.to_be_bytes() };
    let content = Content::KeyTransfer(KeyTransfer { key: ClientKey::of(pair, b"her own"), pair }.encode());
    let guess = u32::from(number).wrapping_mul(0x9e37_79b9);
    let header = Tcp { sequence: guess, acknowledgement: !guess, ..Tcp::new(AUTHORITY_PORT, port, flag::ACK) };
    let packet = Packet::new(AUTHORITY.parse()?, INSIDE4.parse()?).ethernet(macs.0, macs.1).tcp(header);
    Ok(packet.shimmed(&content.encode()).frame())
}

#[test]
fn forged_key_transfers_are_refused_and_a_flood_of_them_does_not_come_up() {
    test(|| {
        let stage = Stage::new(&[])?;
        let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
        let browser = stage.arrive(alice, "alice")?;
        let open = ports(&stage)?;
        ensure!(!open.is_empty(), "no connection to the authority");
        let up = || stage.counted("keys_refused");

        // From the neighbour's port of the switch, nothing of protocol 4 comes up.
        let next_door = Port::open(mallory, "eth0")?;
        let macs = (mallory.mac("eth0")?, alice.mac("eth0")?);
        for number in 0..FLOOD {
            next_door.send(&forged(macs, open[usize::from(number) % open.len()], number)?)?;
        }
        // From a host elsewhere, some come up before the switch is told to send no more.
        let elsewhere = Port::open(&stage.network.internet, "home")?;
        let macs = (stage.network.internet.mac("home")?, stage.network.router.mac("wan")?);
        for number in 0..FLOOD {
            elsewhere.send(&forged(macs, open[usize::from(number) % open.len()], number)?)?;
        }
        ensure!(poll(SOON, || up().is_ok_and(|count| count >= 1)), "no forged transfer came up at all");
        ensure!(call(alice, echo(), QUIET).is_err(), "a forged key opened a flow");
        let rule = || stage.switch.rules(BRIDGE).map(|rules| rules.iter().any(|rule| rule.contains("nw_proto=4")));
        ensure!(poll(SOON, || rule().is_ok_and(|is_there| !is_there)), "{:?}", stage.switch.rules(BRIDGE)?);
        // Some were under way when the rule went. From now on, nothing comes up.
        ensure!(call(alice, echo(), QUIET).is_err(), "a forged key opened a flow");
        let refused = up()?;
        for number in 0..FLOOD {
            elsewhere.send(&forged(macs, open[usize::from(number) % open.len()], number)?)?;
        }
        ensure!(call(alice, echo(), QUIET).is_err(), "a forged key opened a flow");
        ensure!(up()? == refused, "{} came up after the rule had gone", up()? - refused);
        ensure!(stage.counted("keys_in_band")? == 0, "a forged key was taken");
        ensure!(call(alice, echo(), QUIET).is_err() && stage.counted("tokens")? == 0, "a token was made");

        // On her next connections, the key comes.
        drop(browser);
        let _browser = stage.log_in(alice, "alice")?;
        call(alice, echo(), SOON).context("alice, after the flood")?;
        let refused = up()?;
        for (number, port) in (0..).zip(ports(&stage)?) {
            elsewhere.send(&forged(macs, port, number)?)?;
        }
        ensure!(poll(SOON, || up().is_ok_and(|count| count > refused)), "no forged transfer came up");
        ensure!(stage.counted("keys_in_band")? == 1, "a forged key replaced hers");
        call(alice, echo(), SOON).map(drop).context("alice, with her own key still")
    });
}

#[test]
fn a_copied_shim_opens_nothing_unless_the_verifier_is_stateless() {
    test(|| {
        for stateless in [false, true] {
            let stage = Stage::new(if stateless { &["--ls-stateless"] } else { &[] })?;
            let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
            let cable = Capture::start(&stage.network.router, BRIDGE)?;
            let _browser = stage.log_in(alice, "alice")?;
            call(alice, echo(), SOON)?;
            let token = || {
                let shim = frames(&cable).ok()?.into_iter().find(|frame| is(frame, 4, End::To(FRONT4)))?;
                shim.get(14 + 20 + 20..14 + 20 + 60).map(<[u8]>::to_vec)
            };
            ensure!(poll(SOON, || token().is_some()), "no token on the cable");
            let option = token().context("a token")?;
            let before = stage.verifier.counters()?;
            let macs = (mallory.mac("eth0")?, stage.network.router.mac(BRIDGE)?);
            let (from, to): (IpAddr, IpAddr) = (MALLORY.parse()?, FRONT4.parse()?);
            let syn = Packet::new(from, to).ethernet(macs.0, macs.1).tcp(Tcp::syn(40_000, ECHO));
            Port::open(mallory, "eth0")?.send(&syn.shimmed(&option).frame())?;
            let counted = |name: &str| stage.verifier.counters().map(|now| now.named(name) - before.named(name));
            // The published scheme has no memory of nonces: docs/configuration.md says so beside the key.
            let expected = if stateless { "token" } else { DropReason::Replayed.name() };
            ensure!(poll(SOON, || counted(expected).is_ok_and(|count| count == 1)), "{:?}", stage.verifier.counters()?);
        }
        Ok(())
    });
}

#[test]
fn a_neighbour_with_the_devices_addresses_gets_no_tokens_and_no_place_in_its_flows() {
    test(|| {
        let stage = Stage::new(&[])?;
        let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
        let _browser = stage.log_in(alice, "alice")?;
        let mut open = call(alice, echo(), SOON)?;
        let client = open.local_addr()?;
        let (tokens, riders) = (stage.counted("tokens")?, stage.counted("rider")?);
        let port = Port::open(mallory, "eth0")?;
        let router = stage.network.router.mac(BRIDGE)?;
        let (from, to): (IpAddr, IpAddr) = (INSIDE4.parse()?, FRONT4.parse()?);
        let own = mallory.mac("eth0")?;
        let packet = |mac| Packet::new(from, to).ethernet(mac, router);
        // Her address, with his hardware address: a connection of his own, and a segment of hers.
        port.send(&packet(own).tcp(Tcp::syn(40_001, ECHO)).frame())?;
        port.send(&packet(own).tcp(Tcp::new(client.port(), ECHO, flag::ACK)).payload(b"his words").frame())?;
        port.send(&packet(own).udp(40_002, ECHO).payload(b"his words").frame())?;
        let dropped = |count| poll(SOON, || stage.counted("rider").is_ok_and(|now| now == riders + count));
        ensure!(dropped(3), "{}", stage.agent.status()?);
        exchange(&mut open).context("alice, on the connection in which he wanted a place")?;
        // With her hardware address as well. The switch learns that she has moved, until she speaks again.
        port.send(&packet(alice.mac("eth0")?).tcp(Tcp::syn(40_003, ECHO)).frame())?;
        ensure!(dropped(4), "{}", stage.agent.status()?);
        ensure!(stage.counted("tokens")? == tokens, "a neighbour's packet got a token");
        ensure!(stage.verifier.counters()?.dropped(DropReason::NoToken) == 0, "{:?}", stage.verifier.counters()?);
        call(alice, echo(), SOON).context("alice, when she speaks again")?;
        ensure!(stage.counted("tokens")? > tokens, "alice has lost her key");
        Ok(())
    });
}
