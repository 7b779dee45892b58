//! LS, Figures 3 and 4: the round-trip time of a flow's first datagram, measured many times, without and with tokens.
//! The agent's program runs in the client's kernel and asks no controller. So this study measures the paper's
//! validation without the time that packets need to and from a controller.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{Cells, Study, missing, start};
use crate::drivers::named;
use crate::drivers::vouchsafe::{self, Treatment};
use crate::measure::probe;
use crate::measure::suite::{Ends, Plan, Sink};
use crate::site::Path;

/// Name of the study of first packets.
pub const NAME: &str = "first-packets";
/// Number of tries in a round of full length, as in the paper.
const TRIES: f64 = 1000.0;
/// Number of round trips in a plan of full length. A plan with fewer round trips has fewer tries in proportion.
const FULL: f64 = 200.0;
/// Time of a slow try, which takes much longer than a direct round trip. The run's budget assumes this time for every
/// try.
const TRY: Duration = Duration::from_micros(400);

/// The study of the round trips of first packets.
pub struct FirstPackets;

fn tries(plan: &Plan) -> usize {
    (TRIES * (plan.trips as f64 / FULL).min(1.0)) as usize
}

impl Study for FirstPackets {
    fn name(&self) -> &'static str {
        NAME
    }

    fn title(&self) -> &'static str {
        "LS, Figures 3 and 4: round trips of first packets"
    }

    fn transfers(&self, plan: &Plan) -> Duration {
        TRY * 4 * tries(plan) as u32
    }

    fn run(&self, plan: &Plan, round: u32, ends: Ends<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let mut cells = Cells { study: NAME, round, ends, sink };
        let plain = named(&["plain".to_owned()])?.pop().context("INVARIANT: one name, one driver")?;
        for (row, driver) in [
            ("no token", plain),
            ("token by tail, SipHash", vouchsafe::with("vouchsafe-tail", Treatment::Token("tail"))),
            ("token by shim, SipHash", vouchsafe::with("vouchsafe-shim", Treatment::Token("shim"))),
            ("token by shim, SHA-224 as published", vouchsafe::with("vouchsafe-ls", Treatment::Published)),
        ] {
            if missing(driver.as_ref()).is_some() {
                continue;
            }
            cells.part(row, |cells| {
                let (scene, _services) = start(driver.as_ref(), 1, Path::Bridge)?;
                let mut times = probe::first_trips(&scene.way(), scene.server(), tries(plan))?;
                times.sort_by(f64::total_cmp);
                for (column, part) in [("median", 0.5), ("90th percentile", 0.9)] {
                    cells.add(row, column, "µs", times[((times.len() - 1) as f64 * part) as usize])?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}
