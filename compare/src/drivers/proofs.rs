//! Vouchsafe's virtual networks. There is a tunnel endpoint on the client and one on the gateway. Each packet between
//! the two contains a proof that its receiver consents. Client and server are tenants of one network.

use anyhow::{Context, Result};
use lab::world::{AUTHORITY, AUTHORITY_PORT, Instance};

use super::vouchsafe::{self, Authority};
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::measure::services::{COUNT, ECHO, TCP};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN, SERVER, client_address};
use crate::workshop::{Workshop, client, identity};

/// The port of tunnels.
const PORT: u16 = 6081;
const NETWORK: &str = "network = \"blue\"\nvni = 100";

struct Proofs;

/// Returns the only variant of virtual networks.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![Box::new(Proofs)]
}

/// Returns a client's address in the virtual network.
fn inside(number: usize) -> String {
    format!("10.77.2.{}", 49 + number)
}

/// Returns an endpoint's settings.
fn settings(address: &str, key: &str, interface: &str, tenant: &str) -> String {
    format!(
        "underlay = \"eth0\"\naddress = \"{address}\"\nservice_key = \"{key}\"\n\n[[tenants]]\n\
         interface = \"{interface}\"\n{NETWORK}\nid = 1\naddress = \"{tenant}\"\n"
    )
}

impl Driver for Proofs {
    fn name(&self) -> String {
        "vouchsafe-proofs".to_owned()
    }

    fn claims(&self) -> Claims {
        Claims {
            title: "Vouchsafe, virtual network with a proof in each packet".to_owned(),
            family: "Vouchsafe".to_owned(),
            transport: Transport::Udp,
            plane: Plane::Kernel,
            cipher: "none: the application's own, as TLS or SSH".to_owned(),
            features: vec![Feature::PerService, Feature::Revocation, Feature::InsideAddress, Feature::Mesh],
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vouchsafe::needs()
    }

    fn version(&self) -> String {
        vouchsafe::version()
    }

    fn impossible(&self) -> Option<String> {
        vouchsafe::without_binary()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let [program, dir] = Authority::init(shop)?;
        let listen = format!("{AUTHORITY}:{AUTHORITY_PORT}");
        let config = std::fs::read_to_string(shop.path("authority", "state/authority.toml"))?;
        shop.file("authority", "state/authority.toml", &(config + &format!("segments = \"{listen}\"\n")))?;
        let policy = format!(
            "[groups]\nhosts = []\n\n[[receivers]]\nname = \"server\"\nnetwork = \"blue\"\naddress = [\"{SERVER}\"]\n\
             services = [\"tcp/{TCP}\", \"udp/{ECHO}\", \"udp/{COUNT}\"]\n\n[[rules]]\nname = \"hosts may use the server\"\n\
             action = \"allow\"\nwho = \"group:hosts\"\nto = \"server\"\nreply = true\n"
        );
        shop.file("authority", "state/policy.toml", &policy)?;
        let mut networks = format!("authority = \"{AUTHORITY}\"\n\n[[networks]]\nname = \"blue\"\nvni = 100\n");
        let mut place = |account: &str, endpoint: &str, tenant: &str| {
            networks += &format!(
                "\n[[places]]\nnetwork = \"blue\"\naddress = \"{tenant}\"\nendpoint = \"{endpoint}\"\ninterface = 1\n\
                 asked_by = \"person:{account}\"\n\n[[paths]]\nto = \"{endpoint}\"\nverifiers = [\"{account}\"]\n"
            );
        };
        place("edge", GATEWAY, SERVER);
        for number in 1..=clients {
            place(&identity(number), &client_address(number), &inside(number));
        }
        shop.file("authority", "state/networks.toml", &networks)?;
        let ca = std::fs::read_to_string(shop.path("authority", "state/ca.pem"))?;
        let edge = ("server".to_owned(), "edge".to_owned(), GATEWAY.to_owned(), "eth1", SERVER.to_owned());
        let clients = (1..=clients)
            .map(|number| (client(number), identity(number), client_address(number), "tap0", inside(number)));
        for (machine, account, address, interface, tenant) in std::iter::once(edge).chain(clients) {
            let key = shop.machine(&machine)?.join("service.key");
            let key = key.to_string_lossy();
            let words =
                ["authority", "service", "add", "--dir", &dir, &account, "--group", "hosts", "--key-file", &key];
            shop.run(std::iter::once(&*program).chain(words))?;
            let text = shop.text(&machine, "service.key")?;
            shop.key(&machine, "service.key", &text)?;
            shop.key(&machine, "ca.pem", &ca)?;
            shop.file(&machine, "svtep.toml", &settings(&address, &key, interface, &tenant))?;
        }
        Ok(())
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        if scene.held::<Authority>(End::Server).is_some() {
            return run(scene, End::Server);
        }
        Authority::start(scene)?;
        Authority::enrol(scene, End::Server, "svtep", "edge")?;
        run(scene, End::Server)
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        let number = scene.number();
        if number > 1 {
            scene.ip(End::Client, &format!("route replace {AUTHORITY} dev eth0"))?;
        }
        scene.ip(End::Client, "link add tap0 type veth peer name tenant")?;
        scene.ip(End::Client, "link set tap0 up")?;
        scene.ip(End::Client, &format!("address add {}/32 dev tenant", inside(number)))?;
        scene.ip(End::Client, "link set tenant up")?;
        Authority::enrol(scene, End::Client, "svtep", &identity(number))?;
        run(scene, End::Client)?;
        scene.ip(End::Client, &format!("route replace {LAN} dev tenant src {}", inside(number)))
    }

    fn stop_server(&self, scene: &mut Scene) -> Result<()> {
        // The authority and the programs in the kernel stay, as they do when a daemon is upgraded.
        scene.stop_processes(End::Server)
    }

    fn door(&self) -> Door {
        Door::Udp(PORT)
    }
}

/// The instance of an endpoint, which its restart takes over.
struct Endpoint(Instance);

fn run(scene: &mut Scene, end: End) -> Result<()> {
    if scene.held::<Endpoint>(end).is_none() {
        scene.hold(end, Endpoint(Instance::new("svtep")));
    }
    let instance = scene
        .held::<Endpoint>(end)
        .map(|endpoint| endpoint.0.name().to_owned())
        .context("INVARIANT: the scene has both endpoints")?;
    let [program, state, config, socket] =
        [lab::vouchsafe(), scene.path(end, "state"), scene.path(end, "svtep.toml"), scene.path(end, "svtep.sock")]
            .map(|path| path.display().to_string());
    scene.daemon(
        end,
        &format!("{program} svtep run --instance {instance} --socket {socket} --config {config} --dir {state}"),
    )?;
    let line = format!("{program} svtep status --json --instance {instance} --socket {socket}");
    let namespace = scene.namespace(end);
    scene.wait(end, "its tenant", || {
        let status = namespace.run(line.split_whitespace()).unwrap_or_default().replace(' ', "");
        status.contains("\"connected\":true") && status.contains("\"logged_in\":true")
    })
}
