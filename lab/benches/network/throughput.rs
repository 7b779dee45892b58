//! How fast admitted flows go, beside the same path without Vouchsafe.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use datapath::interface::Interface;
use datapath::probe::{Attached, Probe};
use lab::transfer::{Sink, Transfer};
use lab::world::{DARK4, Network, Way};

use crate::Guarded;
use crate::figures::{Bound, Figures, median};

const ROUNDS: usize = 9;
/// How long each transfer goes on.
pub const TIME: Duration = Duration::from_millis(1500);
const PORT: u16 = 9500;

/// One and five clients, each hook beside a path without it. XDP makes a virtual cable copy every packet and carry only
/// small ones, whatever the program; its baseline is the empty program, and the plain path is shown too.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let plain = Network::new(Way::Direct)?;
    let empty = Network::new(Way::Direct)?;
    let _empty = attach(&empty, false)?;
    let tc = Guarded::new(&["--hook", "tc"])?;
    let xdp = Guarded::new(&["--hook", "xdp"])?;
    for (name, clients) in [("one", 1), ("five", 5)] {
        let paths = [&plain, &tc.network, &empty, &xdp.network];
        let mut rates = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            for (path, rates) in paths.iter().zip(&mut rates) {
                rates.push(transfer(path, clients)?);
            }
        }
        let [plain, tc, empty, xdp] = rates.map(|mut rates| median(&mut rates));
        figures.add(&format!("throughput.{name}"), "Mbit/s", tc, plain, Bound::RatioAtLeast(0.97));
        figures.add(&format!("throughput.{name}_xdp"), "Mbit/s", xdp, empty, Bound::RatioAtLeast(0.97));
        figures.add(&format!("throughput.{name}_xdp_of_plain"), "Mbit/s", xdp, plain, Bound::None);
    }
    Ok(())
}

/// Attaches an empty XDP program where a verifier would be: one that passes everything, or all but a flood.
pub fn attach(network: &Network, drop_syns: bool) -> Result<Attached> {
    let probe = Probe::load()?;
    network.server.enter(|| probe.attach_xdp(&Interface::named("eth0")?, drop_syns))
}

/// Megabits in a second of all clients together.
pub fn transfer(network: &Network, clients: u16) -> Result<f64> {
    let address: IpAddr = DARK4.parse()?;
    let ports = PORT..PORT + clients;
    let _sinks = ports.clone().map(|port| Sink::start(&network.server, port)).collect::<Result<Vec<_>>>()?;
    let transfers = ports
        .map(|port| Transfer::start(&network.alice, SocketAddr::new(address, port), TIME, None))
        .collect::<Result<Vec<_>>>()?;
    transfers.into_iter().map(|transfer| Ok(transfer.finish()?.megabits())).sum()
}
