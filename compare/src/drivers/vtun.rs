//! vtun: over UDP and TCP with AES-256, and over UDP without a cipher.

use anyhow::Result;

use super::without;
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN, TUNNEL_GATEWAY};
use crate::workshop::{Workshop, client, identity};

const PORT: u16 = 5000;

struct Vtun {
    name: &'static str,
    protocol: &'static str,
    cipher: &'static str,
}

/// Returns the variants of vtun.
pub fn variants() -> Vec<Box<dyn Driver>> {
    let variant = |name, protocol, cipher| Box::new(Vtun { name, protocol, cipher }) as Box<dyn Driver>;
    vec![
        // Its CBC chains packets, so that one lost packet ends a tunnel over UDP.
        variant("vtun-udp", "udp", "aes256ecb"),
        variant("vtun-tcp", "tcp", "aes256cbc"),
        variant("vtun-udp-none", "udp", "no"),
    ]
}

impl Driver for Vtun {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn differs_by_cipher_from(&self) -> Option<&'static str> {
        (self.name == "vtun-udp-none").then_some("vtun-udp")
    }

    fn claims(&self) -> Claims {
        let all = [Feature::HidesAddresses, Feature::Encrypts, Feature::InsideAddress, Feature::PassesNat];
        let naked = [Feature::HidesAddresses, Feature::Encrypts];
        let tcp = self.protocol == "tcp";
        let mut features = if self.cipher == "no" { without(&all, &naked) } else { all.to_vec() };
        features.extend(tcp.then_some(Feature::OnlyTcp));
        Claims {
            title: format!("vtun over {}, {}", self.protocol.to_uppercase(), self.cipher),
            family: "vtun".to_owned(),
            transport: if tcp { Transport::Tcp } else { Transport::Udp },
            plane: Plane::Process,
            cipher: self.cipher.to_owned(),
            features,
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("vtund", "vtun")]
    }

    fn version(&self) -> String {
        "vtund --version".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let ip = "program /sbin/ip";
        let mut server = format!(
            "options {{\n port {PORT};\n}}\ndefault {{\n type tun;\n proto {};\n encrypt {};\n compress no;\n keepalive yes;\n}}\n",
            self.protocol, self.cipher
        );
        for number in 1..=clients {
            let (name, password) = (identity(number), format!("secret-{number}"));
            server += &format!(
                "{name} {{\n passwd {password};\n up {{\n  {ip} \"addr add {TUNNEL_GATEWAY}/32 peer 10.77.3.{} dev %%\" \
                 wait;\n  {ip} \"link set %% up\" wait;\n }};\n}}\n",
                number + 1
            );
            let text = format!(
                "options {{\n port {PORT};\n timeout 10;\n}}\n{name} {{\n passwd {password};\n type tun;\n proto {};\n \
                 encrypt {};\n persist yes;\n up {{\n  {ip} \"addr add 10.77.3.{}/24 dev %%\" wait;\n  {ip} \"link set %% \
                 up\" wait;\n  {ip} \"route add {LAN} dev %%\" wait;\n }};\n}}\n",
                self.protocol,
                self.cipher,
                number + 1
            );
            shop.key("server", &format!("client-{number}.password"), &password)?;
            shop.file(&client(number), "vtund.conf", &text)?;
        }
        shop.file("server", "vtund.conf", &server).map(drop)
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        let file = scene.path(End::Server, "vtund.conf");
        scene.daemon(End::Server, &format!("vtund -n -s -f {} -L {GATEWAY} -P {PORT}", file.display()))?;
        scene.wait_for_listener(End::Server, PORT)
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        let file = scene.path(End::Client, "vtund.conf");
        scene.daemon(End::Client, &format!("vtund -n -f {} {} {GATEWAY}", file.display(), identity(1)))
    }

    fn door(&self) -> Door {
        Door::Tcp(PORT)
    }
}
