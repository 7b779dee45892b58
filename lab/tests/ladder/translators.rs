//! Tests of address translators on the way: a carrier's, whose clients share few ports and which soon forgets flows, and
//! one whose public address changes.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::middlebox::Rules;
use lab::nat::{Carrier, renumber};
use lab::service::{call, exchange};
use lab::world::{DARK4, ECHO, FRONT4, PUBLIC4, SOON};
use lab::{Namespace, poll, test};
use wire::DropReason;

use crate::SYN_WITH_DATA;
use crate::stage::{PATIENCE, SECOND, Stage, at, begins_with_tunnel};

/// The prefix of the servers.
const SERVERS: &str = "192.0.2.0/24";
/// The next router of the translator.
const NEXT: &str = "203.0.113.254";
/// Time to wait for an echo before the next datagram.
const PACE: Duration = Duration::from_millis(250);
/// Longest time between two tokens of an answered UDP flow (wire.md §4.1.3).
const TOKEN_EVERY: Duration = Duration::from_secs(15);

/// A UDP flow to the echo. Its datagrams have numbers, counted from 1.
struct Talk {
    socket: UdpSocket,
    sent: u64,
    /// Number of the latest datagram that came back.
    heard: u64,
}

impl Talk {
    fn begin(client: &Namespace) -> Result<Self> {
        let socket = client.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
        socket.connect(at(FRONT4))?;
        socket.set_read_timeout(Some(PACE))?;
        Ok(Self { socket, sent: 0, heard: 0 })
    }

    /// Sends a datagram, and waits a moment for its echo.
    fn say(&mut self) -> Result<()> {
        self.sent += 1;
        self.socket.send(&self.sent.to_be_bytes())?;
        let mut number = [0; 8];
        while self.heard < self.sent && self.socket.recv(&mut number).is_ok_and(|size| size == number.len()) {
            self.heard = self.heard.max(u64::from_be_bytes(number));
        }
        Ok(())
    }

    /// Sends datagrams until one of them comes back.
    fn goes_on(&mut self, within: Duration) -> Result<()> {
        let (before, until) = (self.sent, Instant::now() + within);
        while self.heard <= before {
            ensure!(Instant::now() < until, "none of {} datagrams came back", self.sent - before);
            self.say()?;
        }
        Ok(())
    }
}

/// Returns how many packets the verifier has dropped because they had no token.
fn without_token(stage: &Stage) -> Result<u64> {
    Ok(stage.verifier.counters()?.dropped(DropReason::NoToken))
}

/// Waits until the translator has forgotten the flow with this public port.
fn forgets(carrier: &Carrier<'_>, protocol: &str, port: u16) -> Result<()> {
    ensure!(poll(SOON, || carrier.has(protocol, port).is_ok_and(|has| !has)), "the translator keeps a {protocol} flow");
    Ok(())
}

/// Fails unless one of these times is below a second. On a loaded machine, not every one is.
fn in_time(times: &[Duration]) -> Result<()> {
    ensure!(times.iter().any(|took| *took < SECOND), "connections took {times:?}");
    Ok(())
}

/// Two clients share eight ports, and each port goes to the next flow within seconds.
#[test]
fn where_clients_share_few_ports_connections_arrive_by_the_first_rung() {
    test(|| {
        let stage = Stage::new()?;
        let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
        stage.connect(FRONT4)?;
        let ports = 20_000..=20_007;
        let _carrier = Carrier::new(&stage.network.router, "wan", SERVERS, ports.clone())?;
        let (cable, before) = (stage.observe()?, stage.services.echo.connections());
        let mut times = Vec::new();
        for _ in 0..10 {
            times.push(stage.timed_by(FRONT4, "packet")?.1);
            ensure!(call(mallory, at(FRONT4), PACE).is_err(), "Mallory connects without a token");
        }
        in_time(&times)?;
        ensure!(stage.services.echo.connections() == before + 10, "somebody else got in");
        cable.settle()?;
        let from = |line: &String| -> Option<u16> {
            let (source, _) = line.split_once(&format!(" > {FRONT4}.{ECHO}: Flags [S]"))?;
            source.rsplit('.').next()?.parse().ok()
        };
        let used: BTreeSet<u16> = cable.lines(&format!("tcp and dst port {ECHO}"))?.iter().filter_map(from).collect();
        ensure!(!used.is_empty() && used.iter().all(|port| ports.contains(port)), "the control: ports {used:?}");
        ensure!(stage.state(FRONT4, 0)? == "works", "{}", stage.agent.ping(&at(FRONT4).to_string())?);
        ensure!(call(alice, at(FRONT4), PATIENCE).is_ok());
        Ok(())
    });
}

#[test]
fn a_udp_flow_whose_mapping_has_ended_goes_on_with_its_next_token() {
    test(|| {
        let stage = Stage::new()?;
        let begun = Instant::now();
        let mut talk = Talk::begin(&stage.network.alice)?;
        talk.goes_on(SOON).context("the first datagrams")?;
        let carrier = Carrier::new(&stage.network.router, "wan", SERVERS, 20_000..=20_003)?;
        talk.goes_on(SOON).context("through the first mapping")?;
        forgets(&carrier, "udp", talk.socket.local_addr()?.port())?;

        // The flow has another port now. Nobody tells the agent, so the next datagrams have no token.
        let (before, is_young) = (without_token(&stage)?, begun.elapsed() + SECOND < TOKEN_EVERY);
        // It sends without an answer, and so gets a token in the third second.
        let lost = Instant::now();
        talk.goes_on(TOKEN_EVERY).context("from another port")?;
        let took = lost.elapsed();
        ensure!(took < SECOND * 8, "the flow goes on after {took:?}");
        ensure!(!is_young || without_token(&stage)? > before, "the control: the verifier knew the new port");

        // A new flow has tokens, and so has one that was silent for as long as an agent waits between two tokens.
        let before = without_token(&stage)?;
        Talk::begin(&stage.network.alice)?.goes_on(SOON).context("a new flow")?;
        carrier.give(20_010..=20_013)?;
        // Nothing happens for which the test could wait: the flow has to be silent.
        thread::sleep(TOKEN_EVERY + SECOND);
        talk.goes_on(SOON).context("after a silence")?;
        ensure!(without_token(&stage)? == before, "datagrams were lost, although they should have had tokens");
        Ok(())
    });
}

/// The translator gives Mallory, who has no grant, the port of Alice's flows.
#[test]
fn a_reused_port_admits_nobody_for_longer_than_the_flow_s_token() {
    test(|| {
        let stage = Stage::with(&["--udp-renewal", "30s"])?;
        let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
        // The agent asks for its grants before the translator forgets the agent's connection to the authority.
        stage.connect(FRONT4)?;
        Talk::begin(alice)?.goes_on(SOON)?;
        let port = 20_000;
        let carrier = Carrier::new(&stage.network.router, "wan", SERVERS, port..=port)?;

        // TCP: Alice's connection is open at the server when its port is Mallory's.
        let _kept = call(alice, at(FRONT4), PATIENCE)?;
        forgets(&carrier, "tcp", port)?;
        let (before, connections) = (without_token(&stage)?, stage.services.echo.connections());
        ensure!(call(mallory, at(FRONT4), SECOND).is_err(), "Mallory gets in on Alice's flow");
        ensure!(without_token(&stage)? > before, "Mallory's SYN did not arrive");
        ensure!(stage.services.echo.connections() == connections, "somebody got in");
        let flow = stage.verifier.whois(SocketAddr::new(PUBLIC4.parse()?, port))?;
        ensure!(flow[0]["person"] == "alice", "Mallory's SYN has changed the flow: {flow}");
        // The server still has Alice's earlier connection from this port.
        forgets(&carrier, "tcp", port)?;
        stage.connect(FRONT4).context("a new connection with the port of a lost one")?;

        // UDP: while Alice's last token holds, the verifier can't tell Mallory's datagrams from hers (docs/threats.md).
        Talk::begin(alice)?.goes_on(SOON)?;
        forgets(&carrier, "udp", port)?;
        let mut rider = Talk::begin(mallory)?;
        rider.goes_on(SECOND * 10).context("the control: Mallory's datagrams do not come from Alice's port")?;
        let ends = poll(SOON * 2, || {
            let heard = rider.heard;
            // Not faster, so that the machine is left to others.
            thread::sleep(PACE);
            (0..3).all(|_| rider.say().is_ok()) && rider.heard == heard
        });
        ensure!(ends, "Mallory keeps Alice's flow alive without a token");
        let (before, heard) = (without_token(&stage)?, rider.heard);
        (0..5).try_for_each(|_| rider.say())?;
        ensure!(rider.heard == heard && without_token(&stage)? >= before + 5, "Mallory's datagrams pass again");
        forgets(&carrier, "udp", port)?;
        Talk::begin(alice)?.goes_on(SOON).context("Alice's next flow from this port")
    });
}

#[test]
fn a_public_address_that_changes_makes_no_rung_bad() {
    test(|| {
        let stage = Stage::new()?;
        [FRONT4, DARK4].into_iter().try_for_each(|host| stage.connects_by(host, "packet").map(drop))?;
        let (mut times, mut now) = (Vec::new(), PUBLIC4.to_owned());
        for last in 77..80 {
            let next = format!("203.0.113.{last}");
            renumber(&stage.network.router, "wan", [&format!("{now}/24"), &format!("{next}/24")], NEXT)?;
            times.push(stage.timed_by(FRONT4, "packet").with_context(|| next.clone())?.1);
            ensure!(stage.services.echo.clients().contains(&next.parse()?), "the control: the address has not changed");
            now = next;
        }
        in_time(&times)?;
        stage.connects_by(DARK4, "packet")?;
        ensure!(stage.state(FRONT4, 0)? == "works", "{}", stage.agent.ping(&at(FRONT4).to_string())?);
        Ok(())
    });
}

#[test]
fn flows_in_the_tunnel_go_on_when_the_public_address_changes() {
    test(|| {
        let stage = Stage::new()?;
        let filter = Rules::forward(&stage.network.internet, SYN_WITH_DATA)?;
        stage.falls_back(FRONT4)?;
        let mut inside = call(&stage.network.alice, at(FRONT4), PATIENCE)?;
        inside.set_read_timeout(Some(SOON))?;
        let (mut times, mut now) = (Vec::new(), PUBLIC4.to_owned());
        for last in 77..80 {
            let next = format!("203.0.113.{last}");
            renumber(&stage.network.router, "wan", [&format!("{now}/24"), &format!("{next}/24")], NEXT)?;
            exchange(&mut inside).with_context(|| format!("the flow in the tunnel, from {next}"))?;
            let (syns, took) = stage.timed_by(FRONT4, "tunnel").with_context(|| next.clone())?;
            ensure!(begins_with_tunnel(syns), "the memory is lost: {syns} SYNs outside");
            times.push(took);
            now = next;
        }
        in_time(&times)?;
        ensure!(stage.state(FRONT4, 0)? == "blocked", "{}", stage.agent.ping(&at(FRONT4).to_string())?);
        drop(filter);
        stage.recovers(FRONT4)
    });
}
