//! Checks that the ladder adds no time where the first rung works. Compares connects to a destination with two rungs
//! with connects to a destination with a single rung.

use anyhow::{Context, Result, ensure};
use lab::world::{Agent, Authority, FRONT4, Network, Verifier, Way, policy};
use measure::{Bound, Figures, Yardstick, quantile};

use crate::Guarded;
use crate::connect::{PORT, connects, listen};

/// Rounds of connects, and connects in each.
const ROUNDS: usize = 200;
const CONNECTS: usize = 30;
/// Number of parts into which the run is split; each yields one sample of the yardstick.
const PARTS: usize = 10;
/// A tunnel that no rule demands. It is the second rung to every destination behind the verifier.
const TUNNEL: &str = r#"
[[receivers]]
name = "tunnel"
address = "FRONT4"
services = "udp/4499"
verifier = "edge"
tunnel = true

[[rules]]
name = "staff may use the tunnel"
action = "allow"
who = "group:staff"
to = "tunnel"
"#;

/// Measures the time of a connect to a destination with two rungs, and the number of packets that went by the second
/// rung.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let without = Guarded::new(&["--hook", "tc"])?;
    let network = Network::new(Way::Direct)?;
    let authority = Authority::start(&network.authority, &(policy("5m") + &TUNNEL.replace("FRONT4", FRONT4)))?;
    let limits = ["--flows-per-grant", "1000000", "--flows-per-account", "1000000"];
    let flags = [&["--hook", "tc", "--tunnel-pool", "100.127.0.0/16,fd56:5346::/64"][..], &limits].concat();
    let _verifier = Verifier::start_with(&network.server, &authority, &flags)?;
    let agent = Agent::start(&network.alice)?;
    agent.login(&authority, "alice")?;
    for network in [&without.network, &network] {
        listen(&network.server, &[PORT])?;
        connects(&network.alice, PORT, 5)?;
    }
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        one.extend(connects(&without.network.alice, PORT, CONNECTS)?);
        two.extend(connects(&network.alice, PORT, CONNECTS)?);
    }
    let parts = one.chunks(one.len() / PARTS).map(|times| quantile(times, 0.5)).collect();
    figures.add("ladder.connect.p50_us", "us", quantile(&two, 0.5), &Yardstick::new(parts), Bound::AtMost(1.1));
    let status = agent.status()?;
    let counter =
        |name: &str| status["counters"][name].as_u64().with_context(|| format!("no counter {name}: {status}"));
    ensure!(counter("watched")? > 0, "the destination has one rung only: {status}");
    figures.count("ladder.other_rungs", "packets", counter("steered")? as f64, Bound::AtMost(0.0));
    Ok(())
}
