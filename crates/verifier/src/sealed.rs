//! Sealed tunnels (wire.md §9): the UDP service, the device where their packets come out, and what the tunnels' thread
//! asks about grants. The kernel program on the device decides about the packets.

use crate::shared::Shared;
use anyhow::{Context, Result, bail};
use datapath::interface::Interface;
use datapath::tunnel::Tunnel as Program;
use engine::model::Sealing;
use engine::tunnel::Limits;
use engine::verifier::Tables;
use ipnet::IpNet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use tokio::sync::mpsc;
use tunnel::{Device, Inside, Knowledge, Pump, Socket, VerifierEnd, route};
use wire::Handle;
use wire::map::FlowKey;

/// Name of the device: one verifier of a network namespace can have tunnels.
pub const DEVICE: &str = "vs-sealed";
/// Longest packet in a tunnel: what fits a path of 1500 bytes over IPv6.
const MTU: u32 = 1420;

/// The running service. When it is dropped, the device is gone, and the routes that lead nowhere stay.
pub struct Sealed {
    tunnels: Vec<SocketAddr>,
    pump: Pump<VerifierEnd<Known>>,
    _program: Program,
}

/// Answers to the tunnels' thread.
pub struct Known {
    shared: Arc<Shared>,
    unknown: mpsc::Sender<u64>,
}

impl Sealed {
    /// Starts the service at the addresses that the authority named.
    ///
    /// # Errors
    /// If there are no inside addresses in the settings, or the kernel refuses something.
    pub fn start(
        shared: &Arc<Shared>,
        tunnels: &[SocketAddr],
        networks: &[IpNet],
        seed: u64,
        unknown: mpsc::Sender<u64>,
    ) -> Result<Self> {
        if networks.is_empty() {
            bail!(
                "the policy has a sealed tunnel here ({tunnels:?}), but there are no addresses for its clients: set \
                 `tunnel_pool` in verifier.toml to networks that are used for nothing else"
            );
        }
        // First of all: without a device, packets to the inside addresses must not leave by another interface.
        networks.iter().try_for_each(route::add_dead_end)?;
        let socket = listen(tunnels)?;
        let device = Device::new(DEVICE, MTU)?;
        let interface = Interface::named(DEVICE)?;
        let mut program = shared.kernel().load_tunnel()?;
        program.attach(&interface).context("cannot attach to the tunnel's device")?;
        device.turn_on()?;
        for network in networks {
            route::add_address(interface.index, Inside::own(network))?;
            route::add_route(network, interface.index)?;
        }
        let service = socket.local_addr()?;
        let known = Known { shared: shared.clone(), unknown };
        let end = VerifierEnd::new(known, service, networks.to_vec(), seed, Limits::default());
        let pump = Pump::start(device, Socket::new(socket)?, end)?;
        tracing::info!(?tunnels, device = DEVICE, "accepting sealed tunnels");
        Ok(Self { tunnels: tunnels.to_vec(), pump, _program: program })
    }

    /// Returns the addresses of the service.
    pub fn tunnels(&self) -> &[SocketAddr] {
        &self.tunnels
    }

    /// Has the tunnels of revoked grants and ended sessions closed now.
    pub fn recheck(&self) {
        self.pump.wake();
    }
}

/// Binds the service: to the one address, or to all of this host's if there is one of each family.
fn listen(tunnels: &[SocketAddr]) -> Result<UdpSocket> {
    let at = match tunnels {
        [one] => *one,
        [one, other] if one.port() == other.port() => SocketAddr::new([0u8; 16].into(), one.port()),
        [..] => bail!("the tunnel's addresses {tunnels:?} must have one port"),
    };
    UdpSocket::bind(at).with_context(|| format!("cannot listen to tunnels at {at}"))
}

impl Knowledge for Known {
    fn with_tables(&self, work: &mut dyn FnMut(&dyn Tables)) {
        work(&self.shared.kernel().tunnel_tables());
    }

    fn demanded(&self, flow: &FlowKey, token: Option<Handle>) -> Option<Sealing> {
        // The flow that the kernel admitted tells the grant; a token in a later packet may be any bytes.
        let admitted = self.shared.kernel().handle_of(flow);
        let handle = admitted.or(token)?;
        let owners = self.shared.owners();
        let Some(owner) = owners.of(handle.0) else {
            // If the queue is full, the next packet asks again.
            let _ = self.unknown.try_send(handle.0);
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
