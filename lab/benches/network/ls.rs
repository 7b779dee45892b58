//! Reproduces figure 4 of LS (validation by the application server). It measures the round-trip time of first packets
//! without a controller, with a controller that only forwards (pro forma), and with a controller that inserts tokens.
//! The tokens are inserted on the router's switch (4a), on the client's switch (4b), or by the client's kernel program,
//! which the paper does not have.
//!
//! The figures named `ls.fig3` add a delay between switch and controller, those named `ls.fig4` do not. Figure 3 of the
//! paper measures the transfer of keys, which this bench does not measure.
//!
//! The verifier only observes (`--observe`), so that all variants take the same path.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::switch::{self, BRIDGE, CONTROLLER, Switch};
use lab::world::{Agent, Authority, Network, Verifier, Way, policy};
use measure::{Bound, Figures, Yardstick, median};

use crate::cdf::{self, Curve};
use crate::connect::{PORT, connects, listen};
use crate::relay::{self, Relay};

const ROUNDS: usize = 25;
const CONNECTS: usize = 20;
/// Number of parts into which a run is split; each yields one sample of the yardstick.
const PARTS: usize = 5;
/// Number of rounds with a delay. Each takes longer, and there is less noise to average out.
const ROUNDS_DELAYED: usize = 5;
/// Round-trip time between switch and controller in milliseconds, as in the paper's set-up.
/// `VOUCHSAFE_BENCH_CONTROLLER_DELAY_MS` overrides it.
const DELAY_MS: u64 = 40;

/// Where the agent runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The agent drives a switch on the router.
    Router,
    /// The agent drives a switch on the client.
    ClientSwitch,
    /// The agent's program runs in the client's kernel.
    ClientKernel,
}

/// The agent's part in forwarding packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// There is no agent.
    None,
    /// Packets go up to the agent and come down unchanged (pro forma).
    ProForma,
    /// The agent inserts tokens.
    Full,
}

impl Place {
    const ALL: [Self; 3] = [Self::Router, Self::ClientSwitch, Self::ClientKernel];

    const fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::ClientSwitch => "client_ovs",
            Self::ClientKernel => "client_ebpf",
        }
    }

    const fn modes(self) -> &'static [Mode] {
        match self {
            Self::ClientKernel => &[Mode::None, Mode::Full],
            _ => &[Mode::None, Mode::ProForma, Mode::Full],
        }
    }
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ProForma => "proforma",
            Self::Full => "full",
        }
    }
}

/// A network with the agent in one place. Fields are declared in the order in which they are dropped.
struct Site {
    mode: Mode,
    agent: Option<Agent>,
    switch: Option<Switch>,
    verifier: Verifier,
    authority: Authority,
    network: Network,
}

impl Site {
    fn new(place: Place, mode: Mode) -> Result<Self> {
        let network = Network::new(Way::Direct)?;
        let authority = Authority::start(&network.authority, &policy("5m"))?;
        let flags = ["--flows-per-grant", "1000000", "--observe"];
        let verifier = Verifier::start_with(&network.server, &authority, &flags)?;
        listen(&network.server, &[PORT])?;
        let switch = match place {
            Place::ClientKernel => None,
            Place::Router => Some(Switch::between(&network, switch::Host::Router)?),
            Place::ClientSwitch => Some(Switch::between(&network, switch::Host::Client)?),
        };
        let mut site = Self { mode, agent: None, switch, verifier, authority, network };
        if mode != Mode::None {
            site.start_agent(place)?;
        }
        Ok(site)
    }

    fn start_agent(&mut self, place: Place) -> Result<()> {
        let network = &self.network;
        let agent = match (place, &self.switch) {
            (Place::Router | Place::ClientSwitch, Some(switch)) => {
                let (host, device) =
                    if place == Place::Router { (&network.router, "eth0") } else { (&network.alice, BRIDGE) };
                let mac = network.alice.mac(device)?.map(|byte| format!("{byte:02x}")).join(":");
                let mut flags = vec!["--switches".to_owned(), CONTROLLER.to_owned(), "--device".to_owned()];
                flags.push(format!("{mac}=root"));
                flags.extend((self.mode == Mode::ProForma).then(|| "--pro-forma".to_owned()));
                let agent = Agent::start_with(host, &flags)?;
                agent.login(&self.authority, "alice")?;
                switch.set_controller(BRIDGE, &format!("tcp:{CONTROLLER}"))?;
                switch.wait_for_rules(BRIDGE)?;
                agent
            }
            _ => {
                let agent = Agent::start(&network.alice)?;
                agent.login(&self.authority, "alice")?;
                agent
            }
        };
        self.agent = Some(agent);
        Ok(())
    }

    /// Inserts a relay with this round-trip delay between switch and controller.
    fn delay(&self, place: Place, round_trip: Duration) -> Result<Option<Relay>> {
        let (Some(switch), Some(_)) = (&self.switch, &self.agent) else { return Ok(None) };
        let host = if place == Place::Router { &self.network.router } else { &self.network.alice };
        let relay = Relay::start(host, CONTROLLER.parse()?, round_trip)?;
        switch.set_controller(BRIDGE, &format!("tcp:{}", relay::ADDRESS))?;
        ensure!(lab::poll(lab::world::SOON, || relay.is_used()), "the switch does not come to the relay");
        Ok(Some(relay))
    }
}

/// Measures the round-trip times for each place at which tokens are inserted, with and without a delay between switch
/// and controller.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let delay = std::env::var("VOUCHSAFE_BENCH_CONTROLLER_DELAY_MS").ok().map(|text| text.parse()).transpose()?;
    let delay = Duration::from_millis(delay.unwrap_or(DELAY_MS));
    let mut curves: [Vec<Curve>; 2] = Default::default();
    for place in Place::ALL {
        let sites: Vec<_> = place.modes().iter().map(|mode| Site::new(place, *mode)).collect::<Result<_>>()?;
        for site in &sites {
            // The first connects fill caches, and fetch the grant.
            connects(&site.network.alice, PORT, 5)?;
        }
        let near = take_turns(figures, "fig4", place, &sites, ROUNDS)?;
        let relays: Vec<_> = sites.iter().map(|site| site.delay(place, delay)).collect::<Result<_>>()?;
        for site in &sites {
            connects(&site.network.alice, PORT, 2)?;
        }
        let far = take_turns(figures, "fig3", place, &sites, ROUNDS_DELAYED)?;
        drop(relays);
        for ((figure, taken), curves) in [("fig3", far), ("fig4", near)].into_iter().zip(&mut curves) {
            add(figures, figure, place, &sites, &taken);
            let named =
                sites.iter().zip(taken).map(|(site, taken)| (format!("{}, {}", place.name(), site.mode.name()), taken));
            curves.extend(named.map(|(name, microseconds)| Curve { name, microseconds }));
        }
    }
    let titles = [format!("controller {} ms away", delay.as_millis()), "controller beside the switch".to_owned()];
    for ((figure, title), curves) in ["fig3", "fig4"].into_iter().zip(titles).zip(&curves) {
        let file = cdf::write(&format!("ls.{figure}"), &format!("First packets, {title}"), curves)?;
        eprintln!("bench: {}", file.display());
    }
    Ok(())
}

/// Returns the durations of all connects in microseconds, per site. The sites take turns.
fn take_turns(
    figures: &mut Figures,
    figure: &str,
    place: Place,
    sites: &[Site],
    rounds: usize,
) -> Result<Vec<Vec<f64>>> {
    let mut taken = vec![Vec::new(); sites.len()];
    let tokens = |site: &Site| site.verifier.counters().map(|counters| counters.named("token"));
    let up = |site: &Site| site.switch.as_ref().map_or(Ok(0), |switch| switch.packets_up(BRIDGE));
    let before: Vec<_> = sites.iter().map(|site| Ok((tokens(site)?, up(site)?))).collect::<Result<_>>()?;
    for _ in 0..rounds {
        for (site, taken) in sites.iter().zip(&mut taken) {
            taken.extend(connects(&site.network.alice, PORT, CONNECTS)?);
        }
    }
    let flows = (rounds * CONNECTS) as u64;
    for (site, (tokens_before, up_before)) in sites.iter().zip(before) {
        let (tokens, up) = (tokens(site)? - tokens_before, up(site)? - up_before);
        let expected = if site.mode == Mode::Full { flows } else { 0 };
        ensure!(tokens >= expected && (expected > 0 || tokens == 0), "{tokens} tokens in {flows} flows");
        if site.mode != Mode::None && site.switch.is_some() {
            let name = format!("ls.{figure}.{}.{}.trips_per_flow", place.name(), site.mode.name());
            // On a busy machine, SYNs are retransmitted, and each goes up to the controller again.
            figures.count(&name, "trips", up as f64 / flows as f64, Bound::AtMost(1.05));
        }
    }
    Ok(taken)
}

fn add(figures: &mut Figures, figure: &str, place: Place, sites: &[Site], taken: &[Vec<f64>]) {
    let name = place.name();
    let yardstick = |times: &Vec<f64>| Yardstick::new(times.chunks(times.len() / PARTS).map(median).collect());
    let [none, ..] = taken else { return };
    for (site, times) in sites.iter().zip(taken) {
        let name = format!("ls.{figure}.{name}.{}_us", site.mode.name());
        figures.add(&name, "us", median(times), &yardstick(none), Bound::None);
    }
    let bounded = |most| if figure == "fig4" { Bound::AtMost(most) } else { Bound::None };
    match (place, taken) {
        (Place::ClientKernel, [none, full]) => {
            let name = format!("ls.{figure}.client_ebpf_us");
            figures.add(&name, "us", median(full), &yardstick(none), bounded(1.3));
        }
        (_, [_, pro_forma, full]) => {
            let bound = if place == Place::Router { bounded(2.0) } else { Bound::None };
            let name = format!("ls.{figure}.{name}.full_beside_proforma_us");
            figures.add(&name, "us", median(full), &yardstick(pro_forma), bound);
        }
        _ => {}
    }
}
