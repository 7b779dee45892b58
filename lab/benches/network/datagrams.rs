//! Measures the throughput of a connection whose segments travel as datagrams. The baseline is a path without Vouchsafe
//! whose ends have no offloads, because datagrams of this kind have none either.

use anyhow::Result;
use lab::middlebox::Rules;
use lab::world::{Agent, Authority, DARK4, Network, Verifier, Way, policy};
use measure::{Bound, Figures};

use crate::throughput::side_by_side;

const OPENINGS: usize = 10;
const OFFLOADS: [&str; 4] = ["tso", "gso", "gro", "tx"];

/// Measures the throughput of one connection by `tcp_in_udp`, against a path without offloads and against one with
/// offloads. Both paths are without Vouchsafe.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let [plain, offloading] = [Network::new(Way::Direct)?, Network::new(Way::Direct)?];
    for end in [&plain.alice, &plain.server] {
        OFFLOADS.iter().try_for_each(|feature| end.offload("eth0", feature, false))?;
    }
    let network = Network::new(Way::Direct)?;
    let authority = Authority::start(&network.authority, &policy("5m"))?;
    let flags = ["--hook", "tc", "--carriers", "tail,tcp_in_udp", "--flows-per-grant", "1000000"];
    let _verifier = Verifier::start_with(&network.server, &authority, &flags)?;
    let agent = Agent::start_with(&network.alice, &["--interface", "eth0", "--tcp-in-udp"].map(str::to_owned))?;
    agent.login(&authority, "alice")?;
    let _box = Rules::forward(&network.internet, &format!("ip daddr {DARK4} meta l4proto != udp drop"))?;
    side_by_side(&network, &plain, 1, OPENINGS)?.add(figures, "tcp_in_udp.throughput", Bound::AtLeast(0.5));
    side_by_side(&network, &offloading, 1, OPENINGS)?.add(figures, "tcp_in_udp.throughput_of_offloads", Bound::None);
    Ok(())
}
