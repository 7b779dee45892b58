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

/// Length of a turn. The speed of a shared machine changes within tenths of a second, and by far more than the
/// difference to be measured. Two adjacent turns see about the same speed. Over a thousand pairs the remaining error is
/// below a hundredth.
const TURN: Duration = Duration::from_millis(20);
const TURNS: usize = 50;
/// Number of times that the connections are opened. One opening would say little, because its threads stay on the same
/// processors for a while.
const OPENINGS: usize = 10;
/// Number of openings of a single connection. Its throughput depends more on chance: whether one side sleeps when the
/// other has work.
const OPENINGS_OF_ONE: usize = 24;

/// Measures the throughput of one client and of five, with the verifier at tc and at XDP. The baseline of tc is a path
/// without Vouchsafe. With any XDP program, a virtual cable copies every packet and carries only small ones. The
/// baseline of XDP is therefore a path with an empty XDP program. The rate with the verifier at XDP is also compared
/// with the path without Vouchsafe.
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
    // If sender, path and receiver share one processor, none waits for another, so every nanosecond of Vouchsafe's work
    // shows.
    let ours = on_one_processor(|| side_by_side(&tc.network, &plain, 1, OPENINGS))?;
    ours.add(figures, "throughput.one_processor", Bound::AtLeast(0.97));
    Ok(())
}

/// Rates of a path with Vouchsafe and of its baseline path, in Mbit/s.
#[derive(Default)]
pub struct Rates {
    ours: Vec<f64>,
    beside: Vec<f64>,
}

impl Rates {
    /// Adds two rates that were measured one after the other: `ours` with Vouchsafe, `beside` on the baseline path.
    pub fn push(&mut self, ours: f64, beside: f64) {
        self.ours.push(ours);
        self.beside.push(beside);
    }

    /// Returns the rate of the path with Vouchsafe, in Mbit/s.
    pub fn rate(&self) -> f64 {
        mean_of_middle(&self.ours)
    }

    /// Returns the rates of the baseline path as a yardstick.
    pub fn yardstick(&self) -> Yardstick {
        Yardstick::new(self.beside.clone())
    }

    /// Adds the rate of the path with Vouchsafe to the figures, with the baseline as yardstick.
    pub fn add(&self, figures: &mut Figures, name: &str, bound: Bound) {
        let pairs: Vec<_> = self.ours.iter().copied().zip(self.beside.iter().copied()).collect();
        figures.add_pairs(name, "Mbit/s", &pairs, bound);
    }
}

/// Opens lanes in two networks and measures them as [`in_turns`] does.
pub fn side_by_side(one: &Network, other: &Network, clients: u16, openings: usize) -> Result<Rates> {
    in_turns(openings, || Ok((Lane::open(one, clients)?, Lane::open(other, clients)?)))
}

/// Opens two lanes, `openings` times. Each time, the lanes send in turns, and each lane goes first in half of the
/// turns. Returns, for each opening, one rate per lane: the mean rate of its turns, without the slowest quarter and the
/// fastest quarter of them.
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

/// Attaches an XDP program in the verifier's place. If `drop_syns` is set, the program drops the packets of the flood;
/// it passes all others.
pub fn attach(network: &Network, drop_syns: bool) -> Result<Attached> {
    let probe = Probe::load()?;
    network.server.enter(|| probe.attach_xdp(&Interface::named("eth0")?, drop_syns))
}
