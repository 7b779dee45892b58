//! Connections whose segments travel as datagrams, through middleboxes between real stacks.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use lab::middlebox::Rules;
use lab::service::{ask, call, exchange};
use lab::world::{ECHO, FRONT4, FRONT6};
use lab::{Capture, Namespace, poll, test};
use whois::{Connection, Verifier};

use crate::stage::{PATIENCE, SECOND, Stage, TUNNEL, at};

/// Settings of a verifier that takes such connections.
const TAKES: [&str; 4] = ["--hook", "tc", "--carriers", "tail,stream,fast_open,tcp_in_udp"];
/// Numbers of the rungs, as `ping` shows them to an agent that may use all of them.
const DATAGRAM_RUNG: usize = 2;
const TUNNEL_RUNG: usize = 3;
/// Length of an Ethernet frame with the longest packet of such a connection.
const LONGEST: usize = 14 + 1280;

/// Lets only UDP through to the server's front.
fn only_udp(internet: &Namespace) -> Result<Rules<'_>> {
    let rules = format!(
        "ip daddr {FRONT4} meta l4proto != udp drop
        ip6 daddr {FRONT6} meta l4proto != {{ udp, icmpv6 }} drop"
    );
    Rules::forward(internet, &rules)
}

/// Connects until the agent has learned that segments travel as datagrams, and nothing else.
fn learn(stage: &Stage, host: &str) -> Result<()> {
    stage.connect(host).context("the first connection")?;
    let states = || [0, DATAGRAM_RUNG].map(|rung| stage.state(host, rung).unwrap_or_default());
    let learned = || states() == ["blocked", "works"];
    ensure!(poll(SECOND * 10, learned), "not remembered: {}", stage.agent.ping(&at(host).to_string())?);
    Ok(())
}

/// Reports whether the verifier's identity socket names the person behind one of the flows to this host.
fn is_known(stage: &Stage, verifier: &Verifier, host: &str) -> Result<bool> {
    for flow in stage.verifier.flows()?.iter().filter(|flow| flow["server"] == at(host).to_string()) {
        let client = flow["client"].as_str().context("a flow without a client")?.parse()?;
        let who = verifier.who(&Connection { client, server: at(host), accepted: Instant::now() })?;
        if who.is_some_and(|who| who.person == "alice") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sends many bytes to the echo, and checks that they come back.
fn carry(stream: &mut TcpStream, length: usize) -> Result<()> {
    let sent: Vec<u8> = (0..length).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
    let (mut writer, mut heard) = (stream.try_clone()?, vec![0; length]);
    stream.set_read_timeout(Some(SECOND * 20))?;
    thread::scope(|scope| -> Result<()> {
        scope.spawn(|| writer.write_all(&sent));
        Ok(stream.read_exact(&mut heard)?)
    })?;
    ensure!(heard == sent, "other bytes come back");
    Ok(())
}

#[test]
fn where_only_udp_passes_a_connection_is_there_within_a_second() {
    test(|| {
        let mut times = Vec::new();
        // A loaded machine may miss it; an agent that waits too long always does.
        for _ in 0..3 {
            let stage = Stage::in_datagrams(&TAKES)?;
            let _box = only_udp(&stage.network.internet)?;
            let took = stage.connect(FRONT4)?;
            if took < SECOND {
                return Ok(());
            }
            times.push(took);
        }
        bail!("it took {times:?}")
    });
}

#[test]
fn what_works_is_remembered_and_carries_much_in_both_directions() {
    test(|| {
        let room = tempfile::tempdir()?;
        let socket = room.path().join("identity.sock");
        let identity = ["--identity-socket", socket.to_str().context("the path of the socket")?];
        let stage = Stage::in_datagrams(&[&TAKES[..], &identity].concat())?;
        let filter = only_udp(&stage.network.internet)?;
        for host in [FRONT4, FRONT6] {
            learn(&stage, host)?;
            let cable = Capture::start(&stage.network.internet, "dc")?;
            let of = |what: &str| cable.lines(&format!("host {host} and {what}"));
            let mut stream = call(&stage.network.alice, at(host), PATIENCE)?;
            carry(&mut stream, 4 << 20)?;
            cable.settle()?;
            let outside = of(&format!("tcp and port {ECHO}"))?;
            ensure!(outside.is_empty(), "{host}: segments: {:#?}", &outside[..outside.len().min(9)]);
            // A capture on a busy machine lacks many of them.
            let sent = of(&format!("udp and port {ECHO}"))?.len();
            ensure!(sent > 100, "{host}: {sent} datagrams");
            let long = of(&format!("udp and port {ECHO} and greater {}", LONGEST + 1))?;
            ensure!(long.is_empty(), "{host}: too long: {:#?}", &long[..long.len().min(9)]);
            ensure!(is_known(&stage, &Verifier::at(&socket), host)?, "{host}: the identity socket names nobody");
        }
        ensure!(stage.steered()? == 0, "a packet went into the tunnel");
        ensure!(stage.services.echo.datagrams() == 0, "an application has got a segment as a datagram");
        drop(filter);
        stage.recovers(FRONT4)
    });
}

#[test]
fn a_path_without_a_tunnel_needs_none_and_datagrams_of_applications_go_on() {
    test(|| {
        let mut stage = Stage::in_datagrams_without_tunnel(&TAKES)?;
        let _box = only_udp(&stage.network.internet)?;
        learn(&stage, FRONT4)?;
        let mut stream = call(&stage.network.alice, at(FRONT4), PATIENCE)?;
        let before = stage.services.echo.datagrams();
        ask(&stage.network.alice, at(FRONT4), PATIENCE).context("an application's datagram to the same port")?;
        ensure!(stage.services.echo.datagrams() == before + 1);
        exchange(&mut stream).context("the connection")?;
        // Programs and devices outlive the daemon.
        stage.agent.kill()?;
        exchange(&mut stream).context("the connection, without a daemon")?;
        stage.agent.run()?;
        exchange(&mut stream).context("the connection, with another daemon")
    });
}

/// Everything from outside reaches the gateway in datagrams. The server sees segments only.
#[test]
fn a_gateway_takes_such_connections_for_the_hosts_behind_it() {
    test(|| {
        let stage = Stage::in_datagrams_behind_gateway(&TAKES)?;
        let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
        let filter = only_udp(&stage.network.internet)?;
        for host in [FRONT4, FRONT6] {
            learn(&stage, host)?;
            let outside = stage.observe()?;
            let inside = Capture::start(&stage.network.server, "eth0")?;
            let mut stream = call(alice, at(host), PATIENCE)?;
            carry(&mut stream, 4 << 20)?;
            for (cable, wrong) in [(&outside, "tcp"), (&inside, "udp")] {
                cable.settle()?;
                let lines = cable.lines(&format!("host {host} and {wrong} and port {ECHO}"))?;
                ensure!(lines.is_empty(), "{host}: {wrong}: {:#?}", &lines[..lines.len().min(9)]);
            }
            ensure!(call(mallory, at(host), SECOND).is_err(), "Mallory gets in without a grant");
        }
        let flows = stage.verifier.flows()?;
        ensure!(flows.iter().any(|flow| flow["person"] == "alice"), "{flows:#?}");
        ensure!(stage.services.echo.datagrams() == 0, "an application has got a segment as a datagram");
        // A revocation ends such a connection, too.
        let mut open = call(alice, at(FRONT4), PATIENCE)?;
        exchange(&mut open).context("the open connection")?;
        open.set_read_timeout(Some(SECOND))?;
        stage.authority.revoke("alice")?;
        ensure!(poll(SECOND * 10, || exchange(&mut open).is_err()), "a revoked person's connection goes on");
        ensure!(call(alice, at(FRONT4), SECOND).is_err(), "a revoked person connects");
        stage.agent.login(&stage.authority, "alice")?;
        drop(filter);
        stage.recovers(FRONT4)
    });
}

#[test]
fn a_verifier_that_does_not_take_datagrams_is_reached_by_the_tunnel() {
    test(|| {
        let stage = Stage::in_datagrams(&[])?;
        let _box = only_udp(&stage.network.internet)?;
        stage.connects_by(FRONT4, "tunnel")?;
        let states = || [DATAGRAM_RUNG, TUNNEL_RUNG].map(|rung| stage.state(FRONT4, rung).unwrap_or_default());
        let learned = || states() == ["blocked", "works"];
        ensure!(poll(SECOND * 10, learned), "not remembered: {}", stage.agent.ping(&at(FRONT4).to_string())?);
        ensure!(stage.services.echo.datagrams() == 0, "an application has got a segment as a datagram");
        Ok(())
    });
}

#[test]
fn where_segments_pass_nothing_travels_as_datagrams() {
    test(|| {
        let stage = Stage::in_datagrams(&TAKES)?;
        let _box = Rules::forward(&stage.network.internet, &format!("udp dport {TUNNEL} drop"))?;
        for host in [FRONT4, FRONT6] {
            let cable = Capture::start(&stage.network.alice, "eth0")?;
            stage.connect(host)?;
            cable.settle()?;
            let datagrams = cable.lines(&format!("host {host} and udp and port {ECHO}"))?;
            ensure!(datagrams.is_empty(), "{datagrams:#?}");
        }
        Ok(())
    });
}
