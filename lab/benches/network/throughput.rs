//! How fast admitted flows go, beside the same path without Vouchsafe.

use std::time::Duration;

use anyhow::Result;
use datapath::interface::Interface;
use datapath::probe::{Attached, Probe};
use lab::world::{Network, Way};
use measure::{Bound, Figures, Yardstick, mean_of_middle};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::Guarded;
use crate::lane::Lane;

/// A shared machine's speed changes within tenths of a second, by far more than what is looked for: neighbours in time
/// share it, and over a thousand pairs what is left of it is below a hundredth.
const TURN: Duration = Duration::from_millis(20);
const TURNS: usize = 50;
/// Connections begin anew, for where their threads come to lie on the processors stays a while.
const OPENINGS: usize = 10;
/// One connection alone leaves much to chance: who sleeps when the other has work.
const OPENINGS_OF_ONE: usize = 24;

/// One and five clients, each hook beside a path without it. XDP makes a virtual cable copy every packet and carry only
/// small ones, whatever the program: its baseline is the empty program, and what is left of the plain path is shown.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let plain = Network::new(Way::Direct)?;
    let empty = Network::new(Way::Direct)?;
    let _empty = attach(&empty, false)?;
    let tc = Guarded::new(&["--hook", "tc"])?;
    let xdp = Guarded::new(&["--hook", "xdp"])?;
    for (name, clients) in [("one", 1), ("five", 5)] {
        let openings = if clients == 1 { OPENINGS_OF_ONE } else { OPENINGS };
        let ours = side_by_side(&tc.network, &plain, clients, openings)?;
        let plain = ours.yardstick();
        ours.add(figures, &format!("throughput.{name}"), Bound::AtLeast(0.97));
        let ours = side_by_side(&xdp.network, &empty, clients, openings)?;
        figures.add(&format!("throughput.{name}_xdp_of_plain"), "Mbit/s", ours.rate(), &plain, Bound::None);
        ours.add(figures, &format!("throughput.{name}_xdp"), Bound::AtLeast(0.97));
    }
    // With sender, path and receiver on one processor, none waits for another: each nanosecond of ours shows.
    let ours = on_one_processor(|| side_by_side(&tc.network, &plain, 1, OPENINGS))?;
    ours.add(figures, "throughput.one_processor", Bound::AtLeast(0.97));
    Ok(())
}

/// Rates of two paths in Mbit/s. For each opening of connections there is one rate: the mean of the middle half of its turns.
pub struct Rates {
    ours: Vec<f64>,
    beside: Vec<f64>,
}

impl Rates {
    /// Our path's rate.
    pub fn rate(&self) -> f64 {
        mean_of_middle(&self.ours)
    }

    /// The rate of the path beside.
    pub fn yardstick(&self) -> Yardstick {
        Yardstick::new(self.beside.clone())
    }

    /// Adds our path's rate beside the other's.
    pub fn add(&self, figures: &mut Figures, name: &str, bound: Bound) {
        figures.add(name, "Mbit/s", self.rate(), &self.yardstick(), bound);
    }
}

/// The rates of two networks' paths, which take turns.
pub fn side_by_side(one: &Network, other: &Network, clients: u16, openings: usize) -> Result<Rates> {
    in_turns(openings, || Ok((Lane::open(one, clients)?, Lane::open(other, clients)?)))
}

/// The rates of two lanes, which take turns in going first.
pub fn in_turns(openings: usize, open: impl Fn() -> Result<(Lane, Lane)>) -> Result<Rates> {
    let mut rates = Rates { ours: Vec::new(), beside: Vec::new() };
    for _ in 0..openings {
        let (mut one, mut other) = open()?;
        let (mut ones, mut others) = (Vec::new(), Vec::new());
        // The first turns find the path's width.
        one.turn(5 * TURN)?;
        other.turn(5 * TURN)?;
        for turn in 0..TURNS {
            if turn % 2 == 0 {
                ones.push(one.turn(TURN)?);
            }
            others.push(other.turn(TURN)?);
            if turn % 2 != 0 {
                ones.push(one.turn(TURN)?);
            }
        }
        rates.ours.push(mean_of_middle(&ones));
        rates.beside.push(mean_of_middle(&others));
    }
    Ok(rates)
}

/// `work` on a single processor.
pub fn on_one_processor<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let this = Pid::from_raw(0);
    let all = sched_getaffinity(this)?;
    let mut first = CpuSet::new();
    first.set((0..CpuSet::count()).find(|&cpu| all.is_set(cpu).unwrap_or(false)).unwrap_or(0))?;
    sched_setaffinity(this, &first)?;
    let result = work();
    sched_setaffinity(this, &all)?;
    result
}

/// Attaches an empty XDP program where a verifier would be: one that passes everything, or all but a flood.
pub fn attach(network: &Network, drop_syns: bool) -> Result<Attached> {
    let probe = Probe::load()?;
    network.server.enter(|| probe.attach_xdp(&Interface::named("eth0")?, drop_syns))
}
