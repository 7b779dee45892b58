//! LS, Figures 3 and 4 as published. The controller of a switch puts tokens of SHA-224 into shims (Figure 4), and tells
//! the authority that it accepts keys (Figure 3). The controller is beside the switch, not 40 ms away as in the paper.
//!
//! Figure 4 sends first datagrams, as the paper does. For Figure 3, the paper had the authority's host refuse
//! connections. Here the host accepts them, and both the SYN and its answer pass through the controller.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::service::Echo;
use lab::switch::{BRIDGE, CONTROLLER, Host, Switch};
use lab::world::{
    AUTHORITY, AUTHORITY_PORT, Agent, Authority, ECHO, FRONT4, Network, SOON, TAKE_ALL, Transfer, Verifier, Way,
    policy_for_tokens,
};
use lab::{Namespace, poll};
use wire::Carrier;

use super::{Cells, Study};
use crate::measure::suite::{Ends, Plan, Sink};

/// The study's name.
pub const NAME: &str = "first-packets-switch";
/// Number of tries in a round of full length, as in the paper.
const TRIES: f64 = 1000.0;
/// Number of round trips in a plan of full length. A plan with fewer round trips has fewer tries in proportion.
const FULL: f64 = 200.0;
/// Approximate time of one try.
const TRY: Duration = Duration::from_micros(600);
/// First source ports of the measured datagrams, and of the datagrams that are sent before them.
const FIRST_PORT: u16 = 20_000;
const WARM_PORT: u16 = 19_000;
/// A first packet that is not answered within this time is left out.
const PATIENCE: Duration = Duration::from_secs(1);

/// The study of first packets through a switch whose controller adds the tokens.
pub struct Switched;

/// The controller's part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Controller {
    None,
    ProForma,
    Full,
}

/// A network with a switch and a controller. Fields are declared in the order in which they are dropped.
struct Site {
    _agent: Option<Agent>,
    _switch: Switch,
    verifier: Verifier,
    _authority: Authority,
    _transfer: Transfer,
    _echo: Echo,
    network: Network,
}

impl Site {
    fn new(place: Host, controller: Controller) -> Result<Self> {
        let network = Network::new(Way::Direct)?;
        let echo = Echo::start(&network.server, ECHO)?;
        let transfer = Transfer::start(&network.authority)?;
        let policy = policy_for_tokens(wire::ls::NAME, Carrier::Shim);
        let authority = Authority::start_with(&network.authority, &policy, &transfer.setting())?;
        let limits = ["--flows-per-grant", "100000", "--flows-per-account", "100000"];
        // Without tokens nothing would be admitted. The way through the verifier is the same.
        let observe = if controller == Controller::Full { None } else { Some("--observe") };
        let flags: Vec<_> = TAKE_ALL.into_iter().chain(limits).chain(observe).collect();
        let verifier = Verifier::start_with(&network.server, &authority, &flags)?;
        let switch = Switch::between(&network, place)?;
        let agent = match controller {
            Controller::None => None,
            _ => Some(start_agent(&network, &authority, &switch, (place, controller))?),
        };
        let site = Self {
            _agent: agent,
            _switch: switch,
            verifier,
            _authority: authority,
            _transfer: transfer,
            _echo: echo,
            network,
        };
        // The first packets fill caches, and fetch the pair.
        let answered = || datagrams(&site.network.alice, WARM_PORT, 5).is_ok_and(|times| times.len() == 5);
        ensure!(poll(SOON, answered), "no answer through the switch");
        ensure!(!connections(&site.network.alice, 5)?.is_empty(), "no connection to the authority through the switch");
        Ok(site)
    }
}

fn start_agent(
    network: &Network,
    authority: &Authority,
    switch: &Switch,
    (place, controller): (Host, Controller),
) -> Result<Agent> {
    let (host, mac) = match place {
        Host::Router => (&network.router, network.alice.mac("eth0")?),
        Host::Client => (&network.alice, network.alice.mac(BRIDGE)?),
    };
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    let (device, logins) = (format!("{mac}=root"), format!("{}=192.0.2.255/32", authority.url()));
    let flags = ["--switches", CONTROLLER, "--device", &device, "--device-logins", &logins];
    let pro_forma = (controller == Controller::ProForma).then_some("--pro-forma");
    let flags: Vec<_> = flags.into_iter().chain(pro_forma).map(str::to_owned).collect();
    let agent = Agent::start_with(host, &flags)?;
    agent.login(authority, "alice")?;
    switch.set_controller(BRIDGE, &format!("tcp:{CONTROLLER}"))?;
    switch.wait_for_rules(BRIDGE)?;
    Ok(agent)
}

/// Returns the round-trip times of first datagrams, in microseconds. Each datagram has a source port of its own,
/// counted from `first_port`, because a second datagram from the same port would continue a flow.
fn datagrams(client: &Namespace, first_port: u16, count: usize) -> Result<Vec<f64>> {
    let to: SocketAddr = format!("{FRONT4}:{ECHO}").parse()?;
    client.enter(|| {
        let mut times = Vec::new();
        for port in (first_port..).take(count) {
            let socket = UdpSocket::bind(("0.0.0.0", port))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.connect(to)?;
            let sent = Instant::now();
            socket.send(b"first of its flow")?;
            if socket.recv(&mut [0; 32]).is_ok() {
                times.push(sent.elapsed().as_nanos() as f64 / 1000.0);
            }
        }
        Ok(times)
    })
}

/// Returns the times in which connections to the authority were opened, in microseconds. Leaves out connections that
/// needed a second SYN.
fn connections(client: &Namespace, count: usize) -> Result<Vec<f64>> {
    let to: SocketAddr = format!("{AUTHORITY}:{AUTHORITY_PORT}").parse()?;
    client.enter(|| {
        let mut times = Vec::new();
        for _ in 0..count {
            let began = Instant::now();
            if TcpStream::connect_timeout(&to, PATIENCE).is_ok() {
                times.push(began.elapsed().as_nanos() as f64 / 1000.0);
            }
        }
        Ok(times)
    })
}

fn tries(plan: &Plan) -> usize {
    (TRIES * (plan.trips as f64 / FULL).min(1.0)) as usize
}

impl Study for Switched {
    fn name(&self) -> &'static str {
        NAME
    }

    fn title(&self) -> &'static str {
        "LS, Figures 3 and 4 as published: first packets over a switch"
    }

    fn obstacle(&self) -> Option<String> {
        let missing =
            !["/usr/sbin", "/usr/bin"].iter().any(|dir| std::path::Path::new(dir).join("ovs-vswitchd").exists());
        missing.then(|| "Open vSwitch is not installed: `apt-get install openvswitch-switch`".to_owned())
    }

    fn transfers(&self, plan: &Plan) -> Duration {
        TRY * 12 * tries(plan) as u32
    }

    fn run(&self, plan: &Plan, round: u32, ends: Ends<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let mut cells = Cells { study: NAME, round, ends, sink };
        for (letter, place, name) in [("a", Host::Router, "router's"), ("b", Host::Client, "client's")] {
            for (controller, what) in [
                (Controller::None, "no controller"),
                (Controller::ProForma, "forwarding only"),
                (Controller::Full, "whole"),
            ] {
                let row = |figure: u32| format!("{figure}{letter}: {name} switch, {what}");
                cells.part(&row(4), |cells| {
                    let site = Site::new(place, controller)?;
                    let tokens = || site.verifier.counters().map(|counters| counters.named("token"));
                    let (count, before) = (tries(plan), tokens()?);
                    let [announced, validated] =
                        [connections(&site.network.alice, count)?, datagrams(&site.network.alice, FIRST_PORT, count)?];
                    let made = tokens()? - before;
                    let expected = if controller == Controller::Full { validated.len() as u64 } else { 0 };
                    ensure!(made >= expected && (expected > 0 || made == 0), "{made} tokens, {expected} expected");
                    for (figure, mut times) in [(3, announced), (4, validated)] {
                        ensure!(times.len() * 10 >= count * 9, "only {} of {count} tries were answered", times.len());
                        times.sort_by(f64::total_cmp);
                        for (column, part) in [("median", 0.5), ("90th percentile", 0.9)] {
                            let at = ((times.len() - 1) as f64 * part) as usize;
                            cells.add(&row(figure), column, "µs", times[at])?;
                        }
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}
