//! Sealed tunnels (wire.md §9): the UDP service, the device where the packets of tunnels come out, and the answers to
//! the tunnels' thread when it asks about grants. The kernel program on the device decides about the packets.

use crate::shared::{Shared, TunnelView};
use crate::unnamed::Unnamed;
use crate::view::{Counter, TunnelQueue};
use anyhow::{Context, Result, bail};
use datapath::interface::Interface;
use datapath::tunnel::Tunnel as Program;
use engine::model::Sealing;
use engine::tunnel::{Dropped, Limits};
use engine::verifier::Tables;
use ipnet::IpNet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tunnel::{Device, Inside, Knowledge, Pump, Socket, VerifierEnd, route, times};
use wire::map::FlowKey;
use wire::{DropReason, Handle};

/// Name of the device where the packets of tunnels come out. Because the name is fixed, only one verifier in a network
/// namespace can have tunnels.
pub const DEVICE: &str = "vs-sealed";
/// Longest packet in a tunnel: what fits a path of 1500 bytes over IPv6.
const MTU: u32 = 1420;

/// The running service of sealed tunnels. Dropping it removes the device [`DEVICE`]. The routes that discard packets to
/// the inside addresses remain: they keep these packets from leaving through another interface.
pub struct Sealed {
    tunnels: Vec<SocketAddr>,
    pump: Arc<Pump<VerifierEnd<TunnelKnowledge>>>,
    _program: Program,
}

/// Answers the questions that the tunnels' thread asks about the kernel's tables and about the demands of a flow's
/// rule.
pub struct TunnelKnowledge {
    shared: Arc<Shared>,
    unknown: Arc<Unnamed>,
}

impl Sealed {
    /// Starts the service at the addresses that the authority named, with `queues` queues.
    ///
    /// # Errors
    ///
    /// Fails if `networks`, the inside addresses in the settings, is empty, or if the addresses in `tunnels` have
    /// different ports. Also fails if the kernel does not create the sockets, the device or its routes, or does not
    /// load and attach the device's program.
    pub fn start(
        shared: &Arc<Shared>,
        tunnels: &[SocketAddr],
        networks: &[IpNet],
        inside: Arc<Mutex<Inside>>,
        queues: usize,
        unknown: Arc<Unnamed>,
    ) -> Result<Self> {
        if networks.is_empty() {
            bail!(
                "the policy has a sealed tunnel at this verifier ({tunnels:?}), but there are no addresses for its \
                clients: set `tunnel_pool` in verifier.toml to networks that are used for nothing else"
            );
        }
        // First of all: without a device, packets to the inside addresses must not leave by another interface.
        networks.iter().try_for_each(route::add_dead_end)?;
        let sockets = listen(tunnels, queues)?;
        let service = sockets.first().context("INVARIANT: a tunnel has at least one queue")?.local_addr()?;
        let device = Device::with_queues(DEVICE, MTU, queues)?;
        let interface = Interface::named(DEVICE)?;
        let mut program = shared.kernel().load_tunnel()?;
        program.attach(&interface).context("cannot attach to the tunnel's device")?;
        device.first().context("INVARIANT: a tunnel has at least one queue")?.turn_on()?;
        for network in networks {
            route::add_address(interface.index, Inside::own(network))?;
            route::add_route(network, interface.index)?;
        }
        let knowledge = TunnelKnowledge { shared: shared.clone(), unknown };
        let end = VerifierEnd::new(knowledge, service, inside, Limits::default());
        let pump = Arc::new(Pump::start(device, sockets, end)?);
        let counted = Arc::downgrade(&pump);
        let (asked, loaded) = (counted.clone(), counted.clone());
        shared.set_tunnels(TunnelView {
            counts: Box::new(move || counted.upgrade().map(|pump| counts(&pump)).unwrap_or_default()),
            queues: Box::new(move || {
                let loads = loaded.upgrade().map(|pump| pump.loads()).unwrap_or_default();
                loads.iter().map(|load| TunnelQueue { sealed: load.sealed, opened: load.opened }).collect()
            }),
            sealed: Box::new(move |flow| {
                let (sealed, ratio) = asked.upgrade()?.end().sealed(flow, times())?;
                let (treatment, suite) = (sealed.treatment.name().to_owned(), sealed.suite.name().to_owned());
                Some(api::SealedFlow { treatment: Some(treatment), suite: Some(suite), ratio })
            }),
        });
        tracing::info!(?tunnels, device = DEVICE, queues, "accepting sealed tunnels");
        Ok(Self { tunnels: tunnels.to_vec(), pump, _program: program })
    }

    /// Returns the addresses of the service.
    pub fn tunnels(&self) -> &[SocketAddr] {
        &self.tunnels
    }

    /// Reports whether the tunnels' threads run. If one of them has ended, the others end, too, the device is gone, and
    /// the kernel drops the packets for it.
    pub fn is_running(&self) -> bool {
        self.pump.is_running()
    }

    /// Makes the tunnels' thread close the tunnels of revoked grants and ended sessions at once.
    pub fn recheck(&self) {
        self.pump.wake();
    }
}

/// Returns the numbers of packets that the tunnels dropped, by reason. The reasons for dropping initiations are the
/// drop reasons of tokens.
fn counts(pump: &Pump<VerifierEnd<TunnelKnowledge>>) -> Vec<Counter> {
    let drops = pump.end().drops();
    let records = Dropped::ALL.iter().zip(drops.records).map(|(why, count)| (format!("record_{}", why.name()), count));
    let initiations = DropReason::ALL.iter().map(|why| {
        let count = drops.initiations.get(*why as usize).copied().unwrap_or(0);
        (format!("initiation_{}", why.name()), count)
    });
    let others = [("too_weak".to_owned(), drops.weak), ("no_inside_address".to_owned(), drops.no_address)];
    let all = records.chain(initiations).chain(others);
    all.filter(|(_, packets)| *packets > 0).map(|(name, packets)| Counter { name, packets }).collect()
}

/// Binds the service, with a socket for each queue. Binds to the only address in `tunnels`. If `tunnels` has an address
/// of each family, binds to all addresses of this host.
fn listen(tunnels: &[SocketAddr], queues: usize) -> Result<Vec<Socket>> {
    let at = match tunnels {
        [one] => *one,
        [one, other] if one.port() == other.port() => SocketAddr::new([0u8; 16].into(), one.port()),
        [..] => bail!("the tunnel's addresses {tunnels:?} must have the same port"),
    };
    Socket::several(at, queues).with_context(|| format!("cannot listen for tunnels at {at}"))
}

impl Knowledge for TunnelKnowledge {
    fn with_tables(&self, work: &mut dyn FnMut(&dyn Tables)) {
        work(&self.shared.kernel().tunnel_tables());
    }

    fn demanded(&self, flow: &FlowKey, token: Option<Handle>, account: u32) -> Option<Sealing> {
        // The flow that the kernel admitted tells the grant; a token in a later packet may be any bytes.
        let admitted = self.shared.kernel().handle_of(flow);
        let handle = admitted.or(token)?;
        let owners = self.shared.owners();
        let Some(owner) = owners.of(handle.0) else {
            self.unknown.push(account, handle.0);
            return None;
        };
        let Some(sealing) = &owner.sealing else { return Some(Sealing::NONE) };
        Sealing::from_names(
            &sealing.treatment,
            sealing.compress.as_deref(),
            sealing.suites.iter().map(String::as_str),
            sealing.forward_secrecy,
            sealing.rekey,
        )
    }
}
