//! QuickTun: with its protocol nacltai, and without a cipher.
//!
//! Its protocol salty, which exchanges keys, aborts at its start with Debian's libsodium.

use anyhow::{Context, Result};

use super::{TUNNEL, without};
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN, TUNNEL_GATEWAY};
use crate::workshop::{Workshop, client};

/// The port of the first client. QuickTun needs a process and a port for each client.
const PORT: u16 = 2998;

/// Path of the program that makes a key pair. Its folder is not in the PATH of ordinary users.
const KEYPAIR: &str = "/usr/sbin/keypair";

struct QuickTun {
    name: &'static str,
    protocol: &'static str,
}

/// Returns the variants of QuickTun.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![
        Box::new(QuickTun { name: "quicktun", protocol: "nacltai" }),
        Box::new(QuickTun { name: "quicktun-raw", protocol: "raw" }),
    ]
}

impl QuickTun {
    /// Returns the lines that start one end of a tunnel. `up` is the command that QuickTun runs when its device exists.
    fn lines(&self, device: &str, up: &str, address: &str, [secret, public]: [&str; 2]) -> String {
        // If no time window (in seconds) is set, QuickTun accepts a replayed old packet as the first packet.
        let keys = match self.protocol {
            "raw" => String::new(),
            _ => format!("IF_QT_PRIVATE_KEY={secret} IF_QT_PUBLIC_KEY={public} IF_QT_TIME_WINDOW=10"),
        };
        // Debian's build reads its settings under the names that ifupdown gives them.
        let settings = format!("IFACE={device} IF_QT_TUN_MODE=1 IF_QT_PROTOCOL={}", self.protocol);
        format!("{settings} {keys} {address} \\\n  IF_QT_TUN_UP_SCRIPT='{up}' quicktun &\n")
    }
}

impl Driver for QuickTun {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn differs_by_cipher_from(&self) -> Option<&'static str> {
        (self.name != "quicktun").then_some("quicktun")
    }

    fn claims(&self) -> Claims {
        let naked = [Feature::HidesAddresses, Feature::Encrypts, Feature::Authenticates, Feature::ForwardSecrecy];
        let (cipher, features) = match self.protocol {
            "nacltai" => ("XSalsa20-Poly1305", without(&TUNNEL, &[Feature::ForwardSecrecy])),
            _ => ("none", without(&TUNNEL, &naked)),
        };
        Claims {
            title: format!("QuickTun, {}", self.protocol),
            family: "QuickTun".to_owned(),
            transport: Transport::Udp,
            plane: Plane::Process,
            cipher: cipher.to_owned(),
            features,
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("quicktun", "quicktun"), Need::new(KEYPAIR, "quicktun")]
    }

    fn version(&self) -> String {
        "quicktun -v".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let mut server = String::new();
        for (number, port) in (1..=clients).zip(PORT..) {
            let mut keys = [String::new(), String::new(), String::new(), String::new()];
            if self.protocol != "raw" {
                let ([secret, public], [own_secret, own_public]) = (pair(shop)?, pair(shop)?);
                shop.key("server", &format!("client-{number}.pub"), &own_public)?;
                shop.key(&client(number), "server.pub", &public)?;
                keys = [secret, public, own_secret, own_public];
            }
            let [secret, public, own_secret, own_public] = keys.each_ref().map(String::as_str);
            let inside = format!("10.77.3.{}", number + 1);
            let up =
                format!("ip address add {TUNNEL_GATEWAY}/32 peer {inside} dev qt{number}; ip link set qt{number} up");
            // The address 0.0.0.0 lets the client have any address and port.
            let address = format!("IF_QT_LOCAL_ADDRESS={GATEWAY} IF_QT_LOCAL_PORT={port} IF_QT_REMOTE_ADDRESS=0.0.0.0");
            server += &self.lines(&format!("qt{number}"), &up, &address, [secret, own_public]);
            let up = format!("ip address add {inside}/24 dev qt0; ip link set qt0 up; ip route add {LAN} dev qt0");
            let address = format!("IF_QT_LOCAL_PORT=0 IF_QT_REMOTE_ADDRESS={GATEWAY} IF_QT_REMOTE_PORT={port}");
            let own = self.lines("qt0", &up, &address, [own_secret, public]);
            shop.script(&client(number), "tunnel", &(own + "wait\n"))?;
        }
        shop.script("server", "tunnels", &(server + "wait\n")).map(drop)
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        let script = scene.path(End::Server, "tunnels");
        scene.daemon(End::Server, &format!("sh {}", script.display()))?;
        // It opens its socket before it runs the command that sets the device up.
        let gateway = &scene.site.gateway;
        scene.wait(End::Server, "the device qt1 to be up", || {
            gateway.run(["ip", "-oneline", "link", "show", "dev", "qt1", "up"]).is_ok_and(|lines| !lines.is_empty())
        })
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        let script = scene.path(End::Client, "tunnel");
        scene.daemon(End::Client, &format!("sh {}", script.display()))
    }

    fn door(&self) -> Door {
        Door::Udp(PORT)
    }
}

/// Makes a key pair; returns its secret and its public half.
fn pair(shop: &mut Workshop) -> Result<[String; 2]> {
    let text = shop.run([KEYPAIR])?;
    let after = |word: &str| {
        let key = text.lines().find_map(|line| line.strip_prefix(word)).map(str::trim);
        key.map(str::to_owned).with_context(|| format!("{KEYPAIR} printed no key: {text}"))
    };
    Ok([after("SECRET:")?, after("PUBLIC:")?])
}
