//! fastd: with its usual cipher, with AES-GCM, and without any.

use anyhow::{Context, Result};

use super::{TUNNEL, and, without};
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN, TUNNEL_GATEWAY};
use crate::workshop::{Workshop, client, identity};

const PORT: u16 = 10000;

struct Fastd {
    name: &'static str,
    method: &'static str,
}

/// Returns the variants of fastd.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![
        Box::new(Fastd { name: "fastd", method: "salsa2012+umac" }),
        Box::new(Fastd { name: "fastd-aes", method: "aes128-gcm" }),
        Box::new(Fastd { name: "fastd-none", method: "null" }),
    ]
}

impl Driver for Fastd {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn differs_by_cipher_from(&self) -> Option<&'static str> {
        (self.name != "fastd").then_some("fastd")
    }

    fn claims(&self) -> Claims {
        let naked = [Feature::HidesAddresses, Feature::Encrypts, Feature::Authenticates, Feature::ForwardSecrecy];
        Claims {
            title: format!("fastd, {}", self.method),
            family: "fastd".to_owned(),
            transport: Transport::Udp,
            plane: Plane::Process,
            cipher: self.method.to_owned(),
            features: and(
                &if self.method == "null" { without(&TUNNEL, &naked) } else { TUNNEL.to_vec() },
                &[Feature::Mesh],
            ),
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("fastd", "fastd")]
    }

    fn version(&self) -> String {
        "fastd --version".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let mut pair = || -> Result<[String; 2]> {
            let text = shop.run(["sh", "-c", "fastd --generate-key 2>&1"])?;
            let after = |word: &str| {
                let rest = text.split(word).nth(1).and_then(|rest| rest.split_whitespace().next());
                rest.map(str::to_owned).with_context(|| format!("fastd printed no key: {text}"))
            };
            Ok([after("Secret:")?, after("Public:")?])
        };
        let [secret, public] = pair()?;
        let keys: Vec<_> = (0..clients).map(|_| pair()).collect::<Result<_>>()?;
        let config = |secret: &str, bind: &str, up: &str| {
            format!(
                "mode tun;\ninterface \"fd0\";\nmethod \"{}\";\nmtu 1406;\nsecret \"{secret}\";\n{bind}log level \
                 info;\non up \"{up}\";\n",
                self.method
            )
        };
        let up = format!("ip addr add {TUNNEL_GATEWAY}/24 dev $INTERFACE; ip link set $INTERFACE up");
        let mut server = config(&secret, &format!("bind {GATEWAY}:{PORT};\n"), &up);
        for (number, [own, own_public]) in (1..).zip(&keys) {
            server += &format!("peer \"{}\" {{ key \"{own_public}\"; }}\n", identity(number));
            let up = format!(
                "ip addr add 10.77.3.{}/24 dev $INTERFACE; ip link set $INTERFACE up; ip route add {LAN} dev $INTERFACE",
                number + 1
            );
            let peer = format!("peer \"server\" {{ key \"{public}\"; remote {GATEWAY}:{PORT}; }}\n");
            shop.key("server", &format!("client-{number}.pub"), own_public)?;
            shop.key(&client(number), "server.pub", &public)?;
            shop.file(&client(number), "fastd.conf", &(config(own, "", &up) + &peer))?;
        }
        shop.file("server", "fastd.conf", &server).map(drop)
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        start(scene, End::Server)?;
        scene.wait_for_device(End::Server, "fd0")
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        start(scene, End::Client)
    }

    fn door(&self) -> Door {
        Door::Udp(PORT)
    }
}

fn start(scene: &mut Scene, end: End) -> Result<()> {
    let file = scene.path(end, "fastd.conf");
    scene.daemon(end, &format!("fastd -c {}", file.display()))
}
