//! How fast admitted flows go through a gateway, beside a router that only forwards; with their own addresses, and with
//! inside ones.

use anyhow::Result;
use lab::world::{Network, POOL, Way};
use measure::{Bound, Figures};

use crate::Guarded;
use crate::throughput::side_by_side;

const OPENINGS: usize = 10;

/// At tc, for the cables are virtual; both ways cross the gateway.
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
