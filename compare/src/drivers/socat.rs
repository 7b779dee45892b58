//! socat alone: a tun device over DTLS 1.2.

use anyhow::Result;

use super::TUNNEL;
use crate::claims::{Claims, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN, TUNNEL_CLIENT, TUNNEL_GATEWAY};
use crate::workshop::Workshop;

const PORT: u16 = 4433;

struct Socat;

/// Returns the only variant of socat.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![Box::new(Socat)]
}

impl Driver for Socat {
    fn name(&self) -> String {
        "socat-dtls".to_owned()
    }

    fn claims(&self) -> Claims {
        Claims {
            title: "socat over DTLS".to_owned(),
            family: "TLS".to_owned(),
            transport: Transport::Udp,
            plane: Plane::Process,
            cipher: "DTLS 1.2, AES-256-GCM".to_owned(),
            features: TUNNEL.to_vec(),
            standard: true,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("socat", "socat")]
    }

    fn version(&self) -> String {
        "socat -V".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        shop.certificates(clients)
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        let [cert, ca] = ["this.pem", "ca.crt"].map(|name| scene.path(End::Server, name).display().to_string());
        scene.daemon(
            End::Server,
            &format!(
                "socat OPENSSL-DTLS-SERVER:{PORT},bind={GATEWAY},cert={cert},cafile={ca},verify=1 \
                 TUN:{TUNNEL_GATEWAY}/24,tun-name=st0,iff-no-pi,iff-up"
            ),
        )?;
        let gateway = &scene.site.gateway;
        scene.wait(End::Server, "its socket", || {
            gateway.run(["ss", "-Hlun", &format!("sport = :{PORT}")]).is_ok_and(|lines| !lines.is_empty())
        })
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        let [cert, ca] = ["this.pem", "ca.crt"].map(|name| scene.path(End::Client, name).display().to_string());
        scene.daemon(
            End::Client,
            &format!(
                "socat TUN:{TUNNEL_CLIENT}/24,tun-name=st0,iff-no-pi,iff-up \
                 OPENSSL-DTLS-CLIENT:{GATEWAY}:{PORT},cert={cert},cafile={ca},verify=1,commonname=server"
            ),
        )?;
        scene.wait_for_device(End::Client, "st0")?;
        let client = &scene.site.client;
        scene.wait(End::Client, "a route", || client.ip(&format!("route replace {LAN} dev st0")).is_ok())
    }

    fn door(&self) -> Door {
        Door::Udp(PORT)
    }
}
