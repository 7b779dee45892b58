//! Tailscale: both ends log in at a coordination server on the path, and the gateway routes the network behind it.
//!
//! The coordination server is the one that Tailscale wrote for tests, because the one for users is a service on the
//! internet. It runs on a host of its own, so it does not restart with the gateway, and its memory does not count as
//! the gateway's.

use anyhow::Result;
use lab::{Namespace, Process};

use super::{ALL_PLATFORMS, TUNNEL, and};
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::LAN;
use crate::workshop::{Workshop, client, identity};

const PORT: u16 = 41641;
/// The coordination server's address on the path.
const COORDINATOR: &str = "10.77.1.8";
const BUILT: &str = "xtask/peers.sh tailscale";

struct Tailscale;

/// The running coordination server, and its host.
struct Coordinator {
    _process: Process,
    _host: Namespace,
}

/// Returns the only variant of Tailscale.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![Box::new(Tailscale)]
}

impl Driver for Tailscale {
    fn name(&self) -> String {
        "tailscale".to_owned()
    }

    fn claims(&self) -> Claims {
        let more = [Feature::Mesh, Feature::PerService, Feature::Revocation, Feature::OnlyTcp, Feature::SingleSignOn];
        Claims {
            title: "Tailscale".to_owned(),
            family: "WireGuard".to_owned(),
            transport: Transport::Udp,
            plane: Plane::Process,
            cipher: "ChaCha20-Poly1305".to_owned(),
            features: and(&and(&TUNNEL, &ALL_PLATFORMS), &more),
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        ["tailscaled", "tailscale", "tailscale-control"].map(|program| Need::new(program, BUILT)).to_vec()
    }

    fn version(&self) -> String {
        "tailscaled --version".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        // Programs make their own keys and files; each machine only needs a folder for its state.
        let machines = std::iter::once("server".to_owned()).chain((1..=clients).map(client));
        machines.into_iter().try_for_each(|machine| shop.machine(&machine).map(drop))
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        if scene.held::<Coordinator>(End::Server).is_none() {
            let host = scene.site.add_host("coordinator", COORDINATOR)?;
            let words = format!("tailscale-control -address {COORDINATOR} -router gateway -route {LAN}");
            let process = host.spawn(words.split(' '))?;
            scene.hold(End::Server, Coordinator { _process: process, _host: host });
        }
        up(scene, End::Server, &format!("--hostname gateway --advertise-routes={LAN} --snat-subnet-routes=false"))
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        let name = identity(scene.number());
        up(scene, End::Client, &format!("--hostname {name} --accept-routes"))
    }

    fn stop_server(&self, scene: &mut Scene) -> Result<()> {
        scene.stop_processes(End::Server)
    }

    fn door(&self) -> Door {
        Door::Udp(PORT)
    }
}

/// Starts the daemon and logs in.
fn up(scene: &mut Scene, end: End, flags: &str) -> Result<()> {
    let (socket, state) = (scene.path(end, "socket"), scene.path(end, "state"));
    let _ = std::fs::remove_file(&socket);
    scene.daemon(
        end,
        &format!(
            "env TS_DEBUG_FIREWALL_MODE=nftables tailscaled -no-logs-no-support -tun ts0 -port {PORT} -statedir {} \
             -socket {}",
            state.display(),
            socket.display()
        ),
    )?;
    scene.wait(end, "the control socket", || socket.exists())?;
    let line = format!(
        "tailscale --socket {} up --login-server http://{COORDINATOR}:8080 --timeout 20s --accept-dns=false \
         --netfilter-mode=off {flags}",
        socket.display()
    );
    scene.run(end, &line).map(drop)
}
