//! Measures the throughput of admitted flows against the same path without Vouchsafe.

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

/// Length of a turn. The speed of a shared machine changes within tenths of a second, by far more than the difference
/// to be measured. Two adjacent turns see about the same speed, and over a thousand pairs the remaining error is below
/// a hundredth.
const TURN: Duration = Duration::from_millis(20);
const TURNS: usize = 50;
/// How often the connections are opened again, because their threads stay on the same processors for a while.
const OPENINGS: usize = 10;
/// Openings of a single connection, whose throughput depends more on chance: on whether one side sleeps when the other
/// has work.
const OPENINGS_OF_ONE: usize = 24;

/// Measures one and five clients, each hook against a path without it. XDP makes a virtual cable copy every packet and
/// carry only small ones, whatever the program does. Its baseline is therefore the empty program; the rate relative to
/// the plain path is printed as well.
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
    // With sender, path and receiver on one processor, none waits for another, so that every nanosecond of ours shows.
    let ours = on_one_processor(|| side_by_side(&tc.network, &plain, 1, OPENINGS))?;
    ours.add(figures, "throughput.one_processor", Bound::AtLeast(0.97));
    Ok(())
}

/// Rates of two paths in Mbit/s. Each opening of connections yields one rate: the mean of the middle half of its turns.
#[derive(Default)]
pub struct Rates {
    ours: Vec<f64>,
    beside: Vec<f64>,
}

impl Rates {
    /// Adds a rate of each path, measured one after the other.
    pub fn push(&mut self, ours: f64, beside: f64) {
        self.ours.push(ours);
        self.beside.push(beside);
    }

    /// Returns the rate of our path.
    pub fn rate(&self) -> f64 {
        mean_of_middle(&self.ours)
    }

    /// Returns the rate of the baseline path.
    pub fn yardstick(&self) -> Yardstick {
        Yardstick::new(self.beside.clone())
    }

    /// Adds the rate of our path to the figures, with the baseline as yardstick.
    pub fn add(&self, figures: &mut Figures, name: &str, bound: Bound) {
        let pairs: Vec<_> = self.ours.iter().copied().zip(self.beside.iter().copied()).collect();
        figures.add_pairs(name, "Mbit/s", &pairs, bound);
    }
}

/// Returns the rates of two networks' paths, which take turns.
pub fn side_by_side(one: &Network, other: &Network, clients: u16, openings: usize) -> Result<Rates> {
    in_turns(openings, || Ok((Lane::open(one, clients)?, Lane::open(other, clients)?)))
}

/// Returns the rates of two lanes, which take turns in going first.
pub fn in_turns(openings: usize, open: impl Fn() -> Result<(Lane, Lane)>) -> Result<Rates> {
    let mut rates = Rates { ours: Vec::new(), beside: Vec::new() };
    for _ in 0..openings {
        let (mut one, mut other) = open()?;
        let (mut ones, mut others) = (Vec::new(), Vec::new());
        // The first turns let TCP find the path's bandwidth.
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

/// Runs `work` on a single processor.
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

/// Attaches an XDP program in the verifier's place that passes everything or, if `drop_syns`, drops the flood.
pub fn attach(network: &Network, drop_syns: bool) -> Result<Attached> {
    let probe = Probe::load()?;
    network.server.enter(|| probe.attach_xdp(&Interface::named("eth0")?, drop_syns))
}
