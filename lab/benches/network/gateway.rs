//! Measures the throughput of admitted flows through a gateway, against a router that only forwards: without and with
//! inside addresses.

use anyhow::Result;
use lab::world::{Network, POOL, Way};
use measure::{Bound, Figures};

use crate::Guarded;
use crate::throughput::side_by_side;

const OPENINGS: usize = 10;

/// Measures at tc, because the cables are virtual. Both paths cross the gateway's host.
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
