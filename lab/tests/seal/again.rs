//! Tunnels begin before the first packet is lost, and begin again when their device is removed.

use std::net::UdpSocket;

use anyhow::{Context, Result, ensure};
use lab::service::{call, exchange};
use lab::world::{ECHO, FRONT4, FRONT6, SOON};
use lab::{Namespace, poll, test};

use crate::stage::{Stage, at, nothing_outside};

/// Sends one datagram, and never again.
fn one_datagram(client: &Namespace, host: &str, length: usize) -> Result<()> {
    let any = if host.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = client.enter(|| UdpSocket::bind(any))?;
    socket.set_read_timeout(Some(SOON))?;
    socket.connect(at(host, ECHO))?;
    let (sent, mut heard) = (vec![0x2a; length], vec![0; 2000]);
    socket.send(&sent)?;
    let size = socket.recv(&mut heard).with_context(|| format!("no answer to the one datagram to {host}"))?;
    ensure!(heard[..size] == sent, "another echo");
    Ok(())
}

#[test]
fn the_first_datagram_waits_for_its_tunnel_and_is_answered() {
    test(|| {
        let mut stage = Stage::new()?;
        let cable = stage.observe()?;
        // The second datagram does not fit behind the handshake's first message.
        for (host, length) in [(FRONT4, 20), (FRONT4, 1200), (FRONT6, 20)] {
            stage.agent.kill()?;
            stage.agent.run()?;
            one_datagram(&stage.network.alice, host, length)?;
        }
        nothing_outside(&cable)
    });
}

#[test]
fn flows_survive_that_somebody_removes_the_tunnels_device_of_either_end() {
    test(|| {
        let stage = Stage::new()?;
        let (alice, cable) = (&stage.network.alice, stage.observe()?);
        let mut stream = call(alice, at(FRONT4, ECHO), SOON)?;
        exchange(&mut stream)?;
        for (namespace, device) in [(alice, "vs-seal"), (&stage.network.server, "vs-sealed")] {
            namespace.ip(&format!("link delete {device}"))?;
            let is_back = || namespace.ip(&format!("link show {device} up")).is_ok();
            ensure!(poll(SOON, is_back), "{device} is not back");
            exchange(&mut stream).with_context(|| format!("after {device} was removed"))?;
        }
        let interfaces = stage.agent.status()?["interfaces"].to_string();
        ensure!(!interfaces.contains("vs-seal"), "the agent still reports trouble: {interfaces}");
        nothing_outside(&cable)
    });
}
