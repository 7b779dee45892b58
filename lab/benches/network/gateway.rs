//! Measures the throughput of admitted flows through a gateway, without and with inside addresses. The baseline is a
//! router that only forwards.

use anyhow::Result;
use lab::world::{Network, POOL, Way};
use measure::{Bound, Figures};

use crate::Guarded;
use crate::throughput::side_by_side;

const OPENINGS: usize = 10;

/// Measures the throughput of a gateway without inside addresses, and of one with them. Both gateways check packets at
/// tc, because the cables are virtual. The baseline is the same network with a plain router in the place of the
/// gateway.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let plain = Network::behind_gateway(Way::Direct)?;
    let without_pool = Guarded::behind_gateway(&["--hook", "tc"])?;
    let with_pool = Guarded::behind_gateway(&["--hook", "tc", "--pool", POOL])?;
    for (name, guarded) in [("throughput", &without_pool), ("throughput_nat", &with_pool)] {
        let rates = side_by_side(&guarded.network, &plain, 1, OPENINGS)?;
        rates.add(figures, &format!("gateway.{name}"), Bound::AtLeast(0.95));
    }
    Ok(())
}
