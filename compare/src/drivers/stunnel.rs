//! stunnel: TLS that carries the byte stream of a tun device, which socat reads and writes.

use anyhow::Result;

use super::{TUNNEL, and};
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN, TUNNEL_CLIENT, TUNNEL_GATEWAY};
use crate::workshop::{Workshop, client};

const PORT: u16 = 4433;
/// Where socat and stunnel meet, on both ends.
const LOCAL: u16 = 5555;

struct Stunnel;

/// Returns stunnel.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![Box::new(Stunnel)]
}

impl Driver for Stunnel {
    fn name(&self) -> String {
        "stunnel".to_owned()
    }

    fn claims(&self) -> Claims {
        Claims {
            title: "stunnel with socat".to_owned(),
            family: "TLS".to_owned(),
            transport: Transport::Tcp,
            plane: Plane::Process,
            cipher: "TLS 1.3, AES-256-GCM".to_owned(),
            features: and(&TUNNEL, &[Feature::OnlyTcp]),
            standard: true,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("stunnel4", "stunnel4"), Need::new("socat", "socat")]
    }

    fn version(&self) -> String {
        "stunnel4 -version".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        shop.certificates(clients)?;
        for number in 0..=clients {
            let machine = if number == 0 { "server".to_owned() } else { client(number) };
            let dir = shop.machine(&machine)?.display().to_string();
            let ends = if number == 0 {
                format!("accept = {GATEWAY}:{PORT}\nconnect = 127.0.0.1:{LOCAL}\n")
            } else {
                format!("client = yes\naccept = 127.0.0.1:{LOCAL}\nconnect = {GATEWAY}:{PORT}\n")
            };
            let text = format!(
                "foreground = yes\npid =\n[tunnel]\n{ends}cert = {dir}/this.crt\nkey = {dir}/this.key\nCAfile = {dir}/ca.crt\n\
                 verifyChain = yes\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n"
            );
            shop.file(&machine, "stunnel.conf", &text)?;
        }
        Ok(())
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        scene.daemon(
            End::Server,
            &format!(
                "socat TCP-LISTEN:{LOCAL},bind=127.0.0.1,reuseaddr,fork,nodelay \
                 TUN:{TUNNEL_GATEWAY}/24,tun-name=st0,iff-no-pi,iff-up"
            ),
        )?;
        start(scene, End::Server)?;
        scene.wait_for_listener(End::Server, PORT)
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        start(scene, End::Client)?;
        scene.wait_for_listener(End::Client, LOCAL)?;
        let device = format!("TUN:{TUNNEL_CLIENT}/24,tun-name=st0,iff-no-pi,iff-up");
        scene.daemon(End::Client, &format!("socat {device} TCP:127.0.0.1:{LOCAL},nodelay"))?;
        scene.wait_for_device(End::Client, "st0")?;
        let client = &scene.site.client;
        scene.wait(End::Client, "a route", || client.ip(&format!("route replace {LAN} dev st0")).is_ok())
    }

    fn door(&self) -> Door {
        Door::Tcp(PORT)
    }
}

fn start(scene: &mut Scene, end: End) -> Result<()> {
    let file = scene.path(end, "stunnel.conf");
    scene.daemon(end, &format!("stunnel4 {}", file.display()))
}
