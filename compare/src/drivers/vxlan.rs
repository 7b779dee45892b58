//! VXLAN, the kernel's own tunnel, without any protection.

use anyhow::Result;

use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{CLIENT, GATEWAY, LAN, TUNNEL_GATEWAY};
use crate::workshop::{Workshop, client};

const PORT: u16 = 4789;

struct Vxlan;

/// Returns the only variant of VXLAN.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![Box::new(Vxlan)]
}

impl Driver for Vxlan {
    fn name(&self) -> String {
        "vxlan".to_owned()
    }

    fn claims(&self) -> Claims {
        Claims {
            title: "VXLAN in the kernel".to_owned(),
            family: "VXLAN".to_owned(),
            transport: Transport::Udp,
            plane: Plane::Kernel,
            cipher: "none".to_owned(),
            features: vec![Feature::InsideAddress],
            standard: true,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("ip", "iproute2")]
    }

    fn version(&self) -> String {
        "uname -sr".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let device = |number: usize, local: &str, remote: &str, address: &str| {
            format!(
                "ip link add vx{number} type vxlan id {number} local {local} remote {remote} dstport {PORT}\n\
                 ip address add {address} dev vx{number}\nip link set vx{number} up\n"
            )
        };
        let mut server = String::new();
        for number in 1..=clients {
            let inside = format!("10.77.3.{}", number + 1);
            server += &device(number, GATEWAY, CLIENT, &format!("{TUNNEL_GATEWAY}/32 peer {inside}"));
            let own = device(number, CLIENT, GATEWAY, &format!("{inside}/24"));
            shop.script(&client(number), "up", &(own + &format!("ip route add {LAN} via {TUNNEL_GATEWAY}\n")))?;
        }
        shop.script("server", "up", &server).map(drop)
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        let script = scene.path(End::Server, "up");
        scene.run(End::Server, &format!("sh {}", script.display())).map(drop)
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        let script = scene.path(End::Client, "up");
        scene.run(End::Client, &format!("sh {}", script.display())).map(drop)
    }

    fn stop_server(&self, scene: &mut Scene) -> Result<()> {
        scene.ip(End::Server, "link delete vx1")
    }

    fn door(&self) -> Door {
        Door::Udp(PORT)
    }
}
