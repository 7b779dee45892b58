//! SoftEther: a hub on the gateway, bridged to a tap device; a virtual network card on the client.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{ALL_PLATFORMS, TUNNEL, and};
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN, TUNNEL_CLIENT, TUNNEL_GATEWAY};
use crate::workshop::{Workshop, client, identity};

const PORT: u16 = 5555;
const PROGRAMS: &str = "/usr/libexec/softether";

struct Softether;

/// Returns the only variant of SoftEther.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![Box::new(Softether)]
}

impl Driver for Softether {
    fn name(&self) -> String {
        "softether".to_owned()
    }

    fn claims(&self) -> Claims {
        Claims {
            title: "SoftEther".to_owned(),
            family: "SoftEther".to_owned(),
            transport: Transport::Tcp,
            plane: Plane::Process,
            cipher: "TLS".to_owned(),
            features: and(&and(&TUNNEL, &ALL_PLATFORMS), &[Feature::OnlyTcp, Feature::Revocation]),
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![
            Need::new("/usr/libexec/softether/vpnserver/vpnserver", "softether-vpnserver"),
            Need::new("/usr/libexec/softether/vpnclient/vpnclient", "softether-vpnclient"),
            Need::new("/usr/libexec/softether/vpncmd/vpncmd", "softether-vpncmd"),
        ]
    }

    fn version(&self) -> String {
        "dpkg-query -W softether-vpnserver".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let mut server = "HubCreate LAB /PASSWORD:hub\nHub LAB\n".to_owned();
        for number in 1..=clients {
            let (name, password) = (identity(number), format!("secret-{number}"));
            server += &format!(
                "UserCreate {name} /GROUP:none /REALNAME:none /NOTE:none\nUserPasswordSet {name} /PASSWORD:{password}\n"
            );
            let text = format!(
                "NicCreate vlan0\nAccountCreate acc /SERVER:{GATEWAY}:{PORT} /HUB:LAB /USERNAME:{name} /NICNAME:vlan0\n\
                 AccountPasswordSet acc /PASSWORD:{password} /TYPE:standard\n"
            );
            shop.file(&client(number), "commands", &text)?;
            shop.key(&client(number), "password", &password)?;
        }
        server += "Hub\nBridgeCreate LAB /DEVICE:se /TAP:yes\n";
        shop.file("server", "commands", &server).map(drop)
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        let again = scene.path(End::Server, "vpnserver").exists();
        program(scene, End::Server, "vpnserver")?;
        scene.wait_for_listener(End::Server, PORT)?;
        // A server that was ended before it saved its settings has lost them.
        let has_device = || scene.site.gateway.ip("link show dev tap_se").is_ok();
        if !(again && lab::poll(Duration::from_secs(3), has_device)) {
            command(scene, End::Server, "localhost:5555 /SERVER", None)?;
        }
        scene.wait_for_device(End::Server, "tap_se")?;
        scene.ip(End::Server, &format!("address replace {TUNNEL_GATEWAY}/24 dev tap_se"))?;
        scene.ip(End::Server, "link set tap_se up")
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        program(scene, End::Client, "vpnclient")?;
        scene.wait_for_listener(End::Client, 9931).or_else(|_| scene.wait_for_listener(End::Client, 9930))?;
        command(scene, End::Client, "localhost /CLIENT", None)?;
        scene.wait_for_device(End::Client, "vpn_vlan0")?;
        scene.ip(End::Client, &format!("address add {TUNNEL_CLIENT}/24 dev vpn_vlan0"))?;
        scene.ip(End::Client, "link set vpn_vlan0 up")?;
        scene.ip(End::Client, &format!("route add {LAN} via {TUNNEL_GATEWAY}"))?;
        command(scene, End::Client, "localhost /CLIENT", Some("AccountConnect acc"))
    }

    fn door(&self) -> Door {
        Door::Tcp(PORT)
    }
}

/// Starts a program in a folder of its own, because the program keeps its state beside its binary.
fn program(scene: &mut Scene, end: End, name: &str) -> Result<()> {
    let own = scene.shop.machine(&scene.machine(end))?.join(name);
    if !own.exists() {
        let from = PathBuf::from(PROGRAMS).join(name);
        let mut copy = std::process::Command::new("cp");
        lab::process::output(copy.arg("-rL").arg(from).arg(&own)).context("cannot copy SoftEther")?;
        std::fs::create_dir_all("/run/softether")?;
    }
    let binary = own.join(name);
    scene.daemon(end, &format!("{} execsvc", binary.display()))
}

fn command(scene: &mut Scene, end: End, to: &str, words: Option<&str>) -> Result<()> {
    let file = scene.path(end, "commands");
    let what = words.map_or_else(|| format!("/IN:{}", file.display()), |words| format!("/CMD {words}"));
    scene.run(end, &format!("timeout 20 {PROGRAMS}/vpncmd/vpncmd {to} {what}")).map(drop)
}
