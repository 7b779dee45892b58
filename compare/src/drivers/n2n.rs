//! n2n: a supernode and an edge on the gateway, an edge on the client. Debian's version speaks protocol 1.

use anyhow::Result;

use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN, TUNNEL_CLIENT, TUNNEL_GATEWAY};
use crate::workshop::{IDENTITY, Workshop, client};

const PORT: u16 = 7654;
const KEY: &str = "a shared secret";

struct N2n;

/// Returns the only variant of n2n.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![Box::new(N2n)]
}

impl N2n {
    fn edge(scene: &mut Scene, end: End, address: &str, mac: &str) -> Result<()> {
        let (key, supernode) = (scene.shop.text(&scene.machine(end), "key")?, format!("{GATEWAY}:{PORT}"));
        let words = ["edge", "-d", "n2n0", "-a", address, "-s", "255.255.255.0", "-c", IDENTITY, "-k", &key];
        let rest = ["-l", &supernode, "-r", "-f", "-m", mac];
        scene.daemon_words(end, words.iter().chain(&rest))?;
        scene.wait_for_device(end, "n2n0")
    }
}

impl Driver for N2n {
    fn name(&self) -> String {
        "n2n".to_owned()
    }

    fn claims(&self) -> Claims {
        Claims {
            title: "n2n, protocol 1".to_owned(),
            family: "n2n".to_owned(),
            transport: Transport::Udp,
            plane: Plane::Process,
            cipher: "Twofish-CBC".to_owned(),
            features: vec![
                Feature::HidesAddresses,
                Feature::Encrypts,
                Feature::InsideAddress,
                Feature::PassesNat,
                Feature::Mesh,
                Feature::Windows,
                Feature::MacOs,
                Feature::Android,
            ],
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("edge", "n2n"), Need::new("supernode", "n2n")]
    }

    fn version(&self) -> String {
        "dpkg-query -W n2n".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        shop.key("server", "key", KEY)?;
        for number in 1..=clients {
            shop.key(&client(number), "key", KEY)?;
        }
        Ok(())
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        scene.daemon(End::Server, &format!("supernode -l {PORT}"))?;
        Self::edge(scene, End::Server, TUNNEL_GATEWAY, "02:00:00:00:00:01")
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        Self::edge(scene, End::Client, TUNNEL_CLIENT, "02:00:00:00:00:02")?;
        let client = &scene.site.client;
        scene.wait(End::Client, "the device's address", || {
            client.ip(&format!("route replace {LAN} via {TUNNEL_GATEWAY}")).is_ok()
        })
    }

    fn door(&self) -> Door {
        Door::Udp(PORT)
    }
}
