//! OpenVPN over UDP and TCP: with its default cipher, with ChaCha20, without a cipher, and with Camellia, for which
//! processors have no instructions.

use anyhow::Result;

use super::{ALL_PLATFORMS, TUNNEL, and, without};
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, TUNNEL_CLIENT, TUNNEL_GATEWAY};
use crate::workshop::{Workshop, client};

const PORT: u16 = 1194;

/// Name of the variant with Camellia, for checks of the method. Its cipher costs as much processor time as all ciphers
/// did before processors had instructions for them.
pub const UNAIDED: &str = "openvpn-udp-camellia";

struct Openvpn {
    name: &'static str,
    tcp: bool,
    cipher: &'static str,
}

/// Returns the variants of OpenVPN.
pub fn variants() -> Vec<Box<dyn Driver>> {
    let variant = |name, tcp, cipher| Box::new(Openvpn { name, tcp, cipher }) as Box<dyn Driver>;
    vec![
        variant("openvpn-udp", false, "AES-256-GCM"),
        variant("openvpn-tcp", true, "AES-256-GCM"),
        variant("openvpn-udp-chacha", false, "CHACHA20-POLY1305"),
        variant("openvpn-udp-none", false, "none"),
        variant(UNAIDED, false, "CAMELLIA-256-CBC"),
    ]
}

impl Openvpn {
    fn ciphers(&self) -> &'static str {
        match self.cipher {
            "AES-256-GCM" => "data-ciphers AES-256-GCM\n",
            "none" => "data-ciphers none\ncipher none\nauth none\n",
            "CAMELLIA-256-CBC" => "data-ciphers CAMELLIA-256-CBC\ncipher CAMELLIA-256-CBC\nauth SHA512\n",
            _ => "data-ciphers CHACHA20-POLY1305\n",
        }
    }
}

impl Driver for Openvpn {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn differs_by_cipher_from(&self) -> Option<&'static str> {
        (!self.tcp && self.name != "openvpn-udp").then_some("openvpn-udp")
    }

    fn claims(&self) -> Claims {
        let naked = [Feature::HidesAddresses, Feature::Encrypts, Feature::Authenticates, Feature::ForwardSecrecy];
        let tunnel = and(&TUNNEL, &[Feature::Revocation, Feature::SingleSignOn]);
        let kept = if self.cipher == "none" { without(&tunnel, &naked) } else { tunnel };
        let tcp: &[Feature] = if self.tcp { &[Feature::OnlyTcp] } else { &[] };
        Claims {
            title: format!("OpenVPN over {}, {}", if self.tcp { "TCP" } else { "UDP" }, self.cipher),
            family: "OpenVPN".to_owned(),
            transport: if self.tcp { Transport::Tcp } else { Transport::Udp },
            plane: Plane::Process,
            cipher: self.cipher.to_owned(),
            features: and(&and(&kept, &ALL_PLATFORMS), tcp),
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("openvpn", "openvpn")]
    }

    fn version(&self) -> String {
        "openvpn --version".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        shop.certificates(clients)?;
        let (server, peer) = if self.tcp { ("tcp-server", "tcp-client") } else { ("udp", "udp") };
        let common = format!("dev tun\nca ca.crt\ncert this.crt\nkey this.key\nverb 3\n{}", self.ciphers());
        // As in the sample of OpenVPN's documentation: a server that ends by UDP tells its clients.
        let notify = if self.tcp { "" } else { "explicit-exit-notify 1\n" };
        let config = format!(
            "{common}{notify}mode server\ntls-server\ntopology subnet\nproto {server}\nlocal {GATEWAY}\nport {PORT}\n\
             ifconfig {TUNNEL_GATEWAY} 255.255.255.0\nifconfig-pool {TUNNEL_CLIENT} 10.77.3.250\n\
             push \"topology subnet\"\npush \"route-gateway {TUNNEL_GATEWAY}\"\n\
             push \"route 10.77.2.0 255.255.255.0\"\ndh none\nkeepalive 10 60\n"
        );
        shop.file("server", "openvpn.conf", &config)?;
        for number in 1..=clients {
            let config = format!(
                "{common}client\nproto {peer}\nremote {GATEWAY} {PORT}\nnobind\nremote-cert-tls server\n\
                 connect-retry 1\n"
            );
            shop.file(&client(number), "openvpn.conf", &config)?;
        }
        Ok(())
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        start(scene, End::Server)?;
        scene.wait_for_device(End::Server, "tun0")?;
        scene.wait(End::Server, "the end of its start", || {
            scene.logs(End::Server).contains("Initialization Sequence Completed")
        })
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        start(scene, End::Client)
    }

    fn is_for_tests(&self) -> bool {
        self.name == UNAIDED
    }

    fn door(&self) -> Door {
        if self.tcp { Door::Tcp(PORT) } else { Door::Udp(PORT) }
    }
}

fn start(scene: &mut Scene, end: End) -> Result<()> {
    let dir = scene.shop.machine(&scene.machine(end))?;
    scene.daemon(end, &format!("openvpn --cd {} --config openvpn.conf", dir.display()))
}
