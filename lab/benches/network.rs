//! Measures the cost of Vouchsafe on a path against the same path without it, in one run: connects, throughput, floods.
//!
//! Prints one JSON object, which `cargo xtask bench` collects. The two paths take turns, so that other load on the
//! machine disturbs both. Needs root, and `VOUCHSAFE_BIN` or a `vouchsafe` built next to this binary.

#[path = "network/cdf.rs"]
mod cdf;
#[path = "network/connect.rs"]
mod connect;
#[path = "network/datagrams.rs"]
mod datagrams;
#[path = "network/flood.rs"]
mod flood;
#[path = "network/gateway.rs"]
mod gateway;
#[path = "network/ladder.rs"]
mod ladder;
#[path = "network/lane.rs"]
mod lane;
#[path = "network/ls.rs"]
mod ls;
#[path = "network/relay.rs"]
mod relay;
#[path = "network/rootless.rs"]
mod rootless;
#[path = "../tests/tunnel/stage.rs"]
#[allow(dead_code, reason = "tests are its other users")]
mod stage;
#[path = "network/throughput.rs"]
mod throughput;
#[path = "network/tunnel.rs"]
mod tunnel;

use anyhow::Result;
use lab::world::{AUTHORITY, AUTHORITY_PORT, Agent, Authority, Network, Verifier, Way, policy};

/// A network with Vouchsafe in it and Alice logged in.
pub struct Guarded {
    /// Alice's agent.
    pub agent: Agent,
    /// The verifier in front of the server.
    pub verifier: Verifier,
    /// The authority of agent and verifier.
    pub authority: Authority,
    /// Namespaces and cables.
    pub network: Network,
}

impl Guarded {
    /// Starts the network with these flags for the verifier.
    ///
    /// # Errors
    ///
    /// Fails if the authority, the verifier or the agent does not start, or if Alice can't log in.
    pub fn new(flags: &[&str]) -> Result<Self> {
        Self::within(Network::new(Way::Direct)?, flags, "")
    }

    /// Starts the network with an authority that accepts requests by UDP.
    ///
    /// # Errors
    ///
    /// Fails as [`Self::new`] does.
    pub fn with_line() -> Result<Self> {
        let line = format!("segments = \"{AUTHORITY}:{AUTHORITY_PORT}\"\n");
        Self::within(Network::new(Way::Direct)?, &[], &line)
    }

    /// Starts the network with the verifier on a gateway before the server.
    ///
    /// # Errors
    ///
    /// Fails as [`Self::new`] does.
    pub fn behind_gateway(flags: &[&str]) -> Result<Self> {
        Self::within(Network::behind_gateway(Way::Direct)?, &[&["--inside", "eth1"], flags].concat(), "")
    }

    fn within(network: Network, flags: &[&str], configuration: &str) -> Result<Self> {
        let authority = Authority::start_with(&network.authority, &policy("5m"), configuration)?;
        // Benches open thousands of connections with one grant of one account.
        let flags = [&["--flows-per-grant", "1000000", "--flows-per-account", "1000000"], flags].concat();
        let verifier = Verifier::start_with(network.front(), &authority, &flags)?;
        let agent = Agent::start(&network.alice)?;
        agent.login(&authority, "alice")?;
        Ok(Self { agent, verifier, authority, network })
    }
}

fn main() {
    measure::run_parts::<anyhow::Error>(
        &[
            ("connect", connect::measure),
            ("cold", connect::cold_by_udp),
            ("ls", ls::measure),
            ("throughput", throughput::measure),
            ("gateway", gateway::measure),
            ("datagrams", datagrams::measure),
            ("ladder", ladder::measure),
            ("tunnel", tunnel::measure),
            ("rootless", rootless::measure),
            ("flood", flood::measure),
        ],
        &[],
    )
}
