//! The standard world with a tunnel that no rule demands, so that it is only another way to the verifier.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::service::call;
use lab::world::{Agent, Authority, DARK4, DARK6, ECHO, FRONT4, FRONT6, Network, Services, Verifier, Way};
use lab::{Capture, poll};

/// Port of the tunnel.
pub const TUNNEL: u16 = 4499;
/// Numbers of the rungs, as `ping` shows them.
pub const FAST_OPEN_RUNG: usize = 1;
pub const TUNNEL_RUNG: usize = 2;
const POOL: [&str; 2] = ["--tunnel-pool", "100.127.0.0/16,fd56:5346::/64"];
/// Time within which a connection has to be there.
pub const SECOND: Duration = Duration::from_secs(1);
/// Time that a connection may take on a loaded machine. Tests of anything but the time allow it.
pub const PATIENCE: Duration = Duration::from_secs(3);

const POLICY: &str = r#"
[groups]
staff = ["alice"]

[[receivers]]
name = "front"
address = ["FRONT4", "FRONT6"]
services = ["tcp/22", "tcp/7", "udp/7"]
verifier = "edge"

[[receivers]]
name = "dark"
address = ["DARK4", "DARK6"]
services = "all"
verifier = "edge"

[[receivers]]
name = "tunnel"
address = ["FRONT4"]
services = ["udp/4499"]
verifier = "edge"
tunnel = true

[[rules]]
name = "staff"
action = "allow"
who = "group:staff"
to = ["front", "dark", "tunnel"]
"#;

/// The world, with Alice logged in.
pub struct Stage {
    pub agent: Agent,
    pub verifier: Verifier,
    pub authority: Authority,
    pub services: Services,
    pub network: Network,
}

impl Stage {
    pub fn new() -> Result<Self> {
        Self::with(&[])
    }

    /// Starts the world, with further flags for the verifier.
    pub fn with(flags: &[&str]) -> Result<Self> {
        Self::start(POLICY, flags, &[])
    }

    /// Starts the world with an agent that may send segments as datagrams, and with further flags for the verifier.
    pub fn in_datagrams(flags: &[&str]) -> Result<Self> {
        Self::start(POLICY, flags, &["--tcp-in-udp"])
    }

    /// Does what [`Self::in_datagrams`] does, with a policy that has no tunnel.
    pub fn in_datagrams_without_tunnel(flags: &[&str]) -> Result<Self> {
        Self::start(&without_tunnel()?, flags, &["--tcp-in-udp"])
    }

    /// Does what [`Self::in_datagrams_without_tunnel`] does, with the verifier on a gateway before the server.
    pub fn in_datagrams_behind_gateway(flags: &[&str]) -> Result<Self> {
        let flags = [&["--inside", "eth1"], flags].concat();
        Self::within(Network::behind_gateway(Way::Nat)?, &without_tunnel()?, &flags, &["--tcp-in-udp"])
    }

    fn start(policy: &str, flags: &[&str], of_agent: &[&str]) -> Result<Self> {
        Self::within(Network::new(Way::Nat)?, policy, &[&POOL[..], flags].concat(), of_agent)
    }

    fn within(network: Network, policy: &str, flags: &[&str], of_agent: &[&str]) -> Result<Self> {
        let services = Services::start(&network)?;
        let values = [("FRONT4", FRONT4), ("FRONT6", FRONT6), ("DARK4", DARK4), ("DARK6", DARK6)];
        let policy = values.iter().fold(policy.to_owned(), |text, (name, value)| text.replace(name, value));
        let authority = Authority::start(&network.authority, &policy)?;
        let verifier = Verifier::start_with(network.front(), &authority, flags)?;
        let of_agent = [&["--interface", "eth0"][..], of_agent].concat();
        let of_agent: Vec<_> = of_agent.into_iter().map(str::to_owned).collect();
        let agent = Agent::start_with(&network.alice, &of_agent)?;
        agent.login(&authority, "alice")?;
        Ok(Self { agent, verifier, authority, services, network })
    }

    /// Connects to the echo at `host`, and returns the time that the connection and its first words took.
    pub fn connect(&self, host: &str) -> Result<Duration> {
        let began = Instant::now();
        call(&self.network.alice, at(host), PATIENCE)?;
        Ok(began.elapsed())
    }

    /// Connects, and checks by which rung the connection went. Returns how many SYNs went outside of the tunnel.
    pub fn connects_by(&self, host: &str, rung: &str) -> Result<usize> {
        self.timed_by(host, rung).map(|(syns, _)| syns)
    }

    /// Does what [`Self::connects_by`] does, and returns also the time that the connection took.
    pub fn timed_by(&self, host: &str, rung: &str) -> Result<(usize, Duration)> {
        let (before, cable) = (self.steered()?, Capture::start(&self.network.alice, "eth0")?);
        let took = self.connect(host).with_context(|| format!("by {rung}"))?;
        let outside = || cable.lines(&format!("dst host {host} and tcp and port {ECHO}"));
        let syns = |lines: &[String]| lines.iter().filter(|line| line.contains("Flags [S]")).count();
        // On a busy machine, the capture may be behind.
        let _ = poll(SECOND / 2, || outside().is_ok_and(|lines| syns(&lines) >= 2));
        let outside = outside()?;
        let syns = syns(&outside);
        let by = match (syns < outside.len(), self.steered()? > before) {
            (true, false) => "packet",
            (false, true) => "tunnel",
            both => bail!("outside and in the tunnel: {both:?}: {outside:#?}"),
        };
        ensure!(by == rung, "the connection to {host} went by {by}, not by {rung}");
        Ok((syns, took))
    }

    /// Checks that the box makes connections go by the tunnel: the first one after a race, and the second one at once.
    pub fn falls_back(&self, host: &str) -> Result<()> {
        let syns = self.connects_by(host, "tunnel").context("the first connection")?;
        ensure!(!begins_with_tunnel(syns), "the first connection to {host} did not begin outside: {syns} SYNs");
        // The agent waits whether the second packet outside is answered, before it calls the rung bad.
        let blocked = poll(SECOND * 5, || self.state(host, 0).is_ok_and(|state| state == "blocked"));
        ensure!(blocked, "not remembered: {}", self.agent.ping(&at(host).to_string())?);
        let syns = self.connects_by(host, "tunnel").context("the second connection")?;
        ensure!(begins_with_tunnel(syns), "the second connection did not begin with the tunnel: {syns} SYNs outside");
        ensure!(self.state(host, TUNNEL_RUNG)? == "works");
        Ok(())
    }

    /// Checks that connections go by the first rung again, once the box is gone.
    pub fn recovers(&self, host: &str) -> Result<()> {
        let is_back = || self.connect(host).is_ok() && self.state(host, 0).is_ok_and(|state| state == "works");
        ensure!((0..120).any(|_| is_back()), "connections still go by the tunnel");
        self.connects_by(host, "packet").map(drop)
    }

    /// Returns the state of a rung, by number, after another connection.
    pub fn state(&self, host: &str, rung: usize) -> Result<String> {
        let said = self.agent.ping(&at(host).to_string())?;
        let state = said["rungs"][rung]["state"].as_str();
        state.map(str::to_owned).with_context(|| format!("no such rung: {said}"))
    }

    /// Begins to capture on the server's cable.
    pub fn observe(&self) -> Result<Capture> {
        Capture::start(&self.network.internet, "dc")
    }

    /// Returns how many packets the agent's program has sent into the tunnel.
    pub fn steered(&self) -> Result<u64> {
        self.counter("steered")
    }

    pub fn counter(&self, name: &str) -> Result<u64> {
        self.agent.status()?["counters"][name].as_u64().with_context(|| format!("no counter {name}"))
    }
}

/// Returns the policy without the tunnel.
fn without_tunnel() -> Result<String> {
    let tunnel = POLICY.find("[[receivers]]\nname = \"tunnel\"").context("the policy has a tunnel")?;
    let rules = POLICY.find("[[rules]]").context("the policy has rules")?;
    Ok([&POLICY[..tunnel], &POLICY[rules..]].concat().replace(", \"tunnel\"]", "]"))
}

/// Reports whether a connection began with the tunnel, by its number of SYNs outside. A connection that begins outside has
/// at least two of them before the tunnel is tried. On a busy machine, one that begins with the tunnel may be raced, and has one.
pub fn begins_with_tunnel(syns: usize) -> bool {
    syns < 2
}

pub fn at(host: &str) -> SocketAddr {
    SocketAddr::new(host.parse().expect("an address"), ECHO)
}
