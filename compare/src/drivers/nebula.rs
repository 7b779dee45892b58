//! Nebula: the gateway is the lighthouse and routes the network behind it.

use anyhow::Result;

use super::{ALL_PLATFORMS, TUNNEL, and};
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN, TUNNEL_GATEWAY};
use crate::workshop::{Workshop, client, identity};

const PORT: u16 = 4242;

struct Nebula;

/// Returns the only variant of Nebula.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![Box::new(Nebula)]
}

impl Driver for Nebula {
    fn name(&self) -> String {
        "nebula".to_owned()
    }

    fn claims(&self) -> Claims {
        Claims {
            title: "Nebula".to_owned(),
            family: "Nebula".to_owned(),
            transport: Transport::Udp,
            plane: Plane::Process,
            cipher: "AES-256-GCM".to_owned(),
            features: and(&and(&TUNNEL, &ALL_PLATFORMS), &[Feature::Mesh, Feature::PerService]),
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("nebula", "nebula"), Need::new("nebula-cert", "nebula")]
    }

    fn version(&self) -> String {
        "nebula -version".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let authority = shop.machine("authority")?.display().to_string();
        let sh = |shop: &mut Workshop, line: &str| shop.run(["sh", "-c", &format!("cd {authority} && {line}")]);
        sh(shop, "nebula-cert ca -name comparison")?;
        sh(shop, &format!("nebula-cert sign -name gateway -ip {TUNNEL_GATEWAY}/24 -subnets {LAN}"))?;
        for number in 1..=clients {
            let name = identity(number);
            sh(shop, &format!("nebula-cert sign -name {name} -ip 10.77.3.{}/24", number + 1))?;
        }
        let machines = std::iter::once(("server".to_owned(), "gateway".to_owned()))
            .chain((1..=clients).map(|number| (client(number), identity(number))));
        for (machine, name) in machines {
            let is_server = machine == "server";
            for (from, to) in
                [("ca.crt", "ca.crt"), (&format!("{name}.crt"), "this.crt"), (&format!("{name}.key"), "this.key")]
            {
                let text = shop.text("authority", from)?;
                shop.key(&machine, to, &(text + "\n"))?;
            }
            let dir = shop.machine(&machine)?.display().to_string();
            let hosts = if is_server { String::new() } else { format!("\"{TUNNEL_GATEWAY}\"") };
            let routes = if is_server { String::new() } else { format!("{{route: {LAN}, via: {TUNNEL_GATEWAY}}}") };
            let config = format!(
                "pki: {{ca: {dir}/ca.crt, cert: {dir}/this.crt, key: {dir}/this.key}}\n\
                 static_host_map: {{\"{TUNNEL_GATEWAY}\": [\"{GATEWAY}:{PORT}\"]}}\n\
                 cipher: aes\nlighthouse: {{am_lighthouse: {is_server}, interval: 10, hosts: [{hosts}]}}\n\
                 listen: {{host: 0.0.0.0, port: {}}}\npunchy: {{punch: false}}\n\
                 tun: {{dev: neb0, mtu: 1300, unsafe_routes: [{routes}]}}\n\
                 firewall: {{outbound: [{{port: any, proto: any, host: any}}], \
                 inbound: [{{port: any, proto: any, host: any, local_cidr: 0.0.0.0/0}}]}}\n",
                if is_server { PORT } else { 0 }
            );
            shop.file(&machine, "nebula.yml", &config)?;
        }
        Ok(())
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        start(scene, End::Server)?;
        scene.wait_for_device(End::Server, "neb0")
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        start(scene, End::Client)
    }

    fn door(&self) -> Door {
        Door::Udp(PORT)
    }
}

fn start(scene: &mut Scene, end: End) -> Result<()> {
    let file = scene.path(end, "nebula.yml");
    scene.daemon(end, &format!("nebula -config {}", file.display()))
}
