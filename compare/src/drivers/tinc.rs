//! tinc 1.0, in router mode: with AES-256-CBC and SHA-256, and without any protection.

use std::time::Duration;

use anyhow::Result;

use super::{TUNNEL, and, without};
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN, TUNNEL_GATEWAY};
use crate::workshop::{Workshop, client, identity};

const PORT: u16 = 655;

struct Tinc {
    name: &'static str,
    cipher: &'static str,
    digest: &'static str,
}

/// Returns the variants of tinc.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![
        Box::new(Tinc { name: "tinc", cipher: "aes-256-cbc", digest: "sha256" }),
        Box::new(Tinc { name: "tinc-none", cipher: "none", digest: "none" }),
    ]
}

/// tinc allows only letters, digits and underscores in names.
fn node(number: usize) -> String {
    identity(number).replace('-', "_")
}

impl Driver for Tinc {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn differs_by_cipher_from(&self) -> Option<&'static str> {
        (self.name != "tinc").then_some("tinc")
    }

    fn claims(&self) -> Claims {
        // Session keys travel under RSA keys, so that these keys open old captures.
        let kept = without(&TUNNEL, &[Feature::ForwardSecrecy]);
        let naked = [Feature::HidesAddresses, Feature::Encrypts, Feature::Authenticates];
        let kept = if self.cipher == "none" { without(&kept, &naked) } else { kept };
        Claims {
            title: format!("tinc, {}", if self.cipher == "none" { "no cipher" } else { "AES-256-CBC" }),
            family: "tinc".to_owned(),
            transport: Transport::Udp,
            plane: Plane::Process,
            cipher: format!("{}, {}", self.cipher, self.digest),
            features: and(&kept, &[Feature::Mesh, Feature::Windows, Feature::MacOs, Feature::Android]),
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("tincd", "tinc"), Need::new("openssl", "openssl")]
    }

    fn version(&self) -> String {
        "tincd --version".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let settings = format!("Cipher = {}\nDigest = {}\n", self.cipher, self.digest);
        let common = "DeviceType = tun\nInterface = tinc0\nAddressFamily = ipv4\nPingTimeout = 5\n";
        let mut pair = |machine: &str| -> Result<String> {
            let secret = shop.run(["openssl", "genrsa", "-traditional", "2048"])?;
            let file = shop.key(machine, "tinc/rsa_key.priv", &secret)?;
            shop.run(["openssl", "rsa", "-in", &file.to_string_lossy(), "-RSAPublicKey_out"])
        };
        let machines: Vec<_> = std::iter::once("server".to_owned()).chain((1..=clients).map(client)).collect();
        let keys: Vec<_> = machines.iter().map(|machine| pair(machine)).collect::<Result<_>>()?;
        let gateway =
            format!("Address = {GATEWAY}\nSubnet = {TUNNEL_GATEWAY}/32\nSubnet = {LAN}\n{settings}{}", keys[0]);
        shop.file("server", "tinc/tinc.conf", &format!("Name = gateway\n{common}"))?;
        shop.key("server", "tinc/hosts/gateway", &gateway)?;
        let up = |address: &str| format!("ip addr add {address}/24 dev $INTERFACE; ip link set $INTERFACE up");
        shop.script("server", "tinc/tinc-up", &up(TUNNEL_GATEWAY))?;
        for (number, public) in keys.iter().enumerate().skip(1) {
            let (machine, name, inside) = (client(number), node(number), format!("10.77.3.{}", number + 1));
            let host = format!("Subnet = {inside}/32\n{settings}{public}");
            shop.file(&machine, "tinc/tinc.conf", &format!("Name = {name}\nConnectTo = gateway\n{common}"))?;
            shop.key(&machine, &format!("tinc/hosts/{name}"), &host)?;
            shop.key("server", &format!("tinc/hosts/{name}"), &host)?;
            shop.key(&machine, "tinc/hosts/gateway", &gateway)?;
            let up = up(&inside) + &format!("; ip route add {LAN} dev $INTERFACE");
            shop.script(&machine, "tinc/tinc-up", &up)?;
        }
        Ok(())
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        start(scene, End::Server)?;
        scene.wait_for_device(End::Server, "tinc0")?;
        scene.wait_for_listener(End::Server, PORT)
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        start(scene, End::Client)
    }

    fn warm_up(&self) -> Duration {
        // Until its probes have found the path's MTU, tinc sends packets over its TCP connection.
        Duration::from_secs(6)
    }

    fn door(&self) -> Door {
        Door::Udp(PORT)
    }
}

fn start(scene: &mut Scene, end: End) -> Result<()> {
    let (dir, pid) = (scene.path(end, "tinc"), scene.path(end, "tinc.pid"));
    scene.daemon(end, &format!("tincd -c {} -D --pidfile={} -d1", dir.display(), pid.display()))
}
