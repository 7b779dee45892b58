//! How fast admitted flows go, beside the same path without Vouchsafe.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use datapath::interface::Interface;
use datapath::probe::{Attached, Probe};
use lab::transfer::{Sink, Transfer};
use lab::world::{DARK4, Network, Way};

use crate::Guarded;
use crate::figures::{Bound, Figures, middle};

/// Many short transfers: a shared machine's speed changes within seconds, and neighbours in time share it.
const ROUNDS: usize = 60;
const TIME: Duration = Duration::from_millis(400);
const PORT: u16 = 9500;

/// One and five clients, each hook beside a path without it. XDP makes a virtual cable copy every packet and carry only
/// small ones, whatever the program: its baseline is the empty program, and what is left of the plain path is shown.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let plain = Network::new(Way::Direct)?;
    let empty = Network::new(Way::Direct)?;
    let _empty = attach(&empty, false)?;
    let tc = Guarded::new(&["--hook", "tc"])?;
    let xdp = Guarded::new(&["--hook", "xdp"])?;
    for (name, clients) in [("one", 1), ("five", 5)] {
        let (with, without) = side_by_side(&tc.network, &plain, clients)?;
        figures.add(&format!("throughput.{name}"), "Mbit/s", with, without, Bound::RatioAtLeast(0.97));
        let (with, empty) = side_by_side(&xdp.network, &empty, clients)?;
        figures.add(&format!("throughput.{name}_xdp"), "Mbit/s", with, empty, Bound::RatioAtLeast(0.97));
        figures.add(&format!("throughput.{name}_xdp_of_plain"), "Mbit/s", with, without, Bound::None);
    }
    Ok(())
}

/// The means of the middle halves of both paths' rates, which take turns in going first.
fn side_by_side(one: &Network, other: &Network, clients: u16) -> Result<(f64, f64)> {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        if round % 2 == 0 {
            ones.push(transfer(one, clients, TIME)?);
        }
        others.push(transfer(other, clients, TIME)?);
        if round % 2 != 0 {
            ones.push(transfer(one, clients, TIME)?);
        }
    }
    Ok((middle(&mut ones), middle(&mut others)))
}

/// Attaches an empty XDP program where a verifier would be: one that passes everything, or all but a flood.
pub fn attach(network: &Network, drop_syns: bool) -> Result<Attached> {
    let probe = Probe::load()?;
    network.server.enter(|| probe.attach_xdp(&Interface::named("eth0")?, drop_syns))
}

/// Megabits in a second of all clients together.
pub fn transfer(network: &Network, clients: u16, time: Duration) -> Result<f64> {
    let address: IpAddr = DARK4.parse()?;
    let ports = PORT..PORT + clients;
    let _sinks = ports.clone().map(|port| Sink::start(&network.server, port)).collect::<Result<Vec<_>>>()?;
    let transfers = ports
        .map(|port| Transfer::start(&network.alice, SocketAddr::new(address, port), time, None))
        .collect::<Result<Vec<_>>>()?;
    transfers.into_iter().map(|transfer| Ok(transfer.finish()?.megabits())).sum()
}
