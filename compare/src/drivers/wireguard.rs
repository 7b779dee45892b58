//! WireGuard, by three implementations: in the kernel, wireguard-go, and boringtun.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, anyhow};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use lab::poll;

use super::{ALL_PLATFORMS, TUNNEL, and};
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::measure::emulator::Seen;
use crate::scene::{End, SOON, Scene};
use crate::secrecy::{Attempt, wireguard};
use crate::site::{GATEWAY, LAN, TUNNEL_GATEWAY, tunnel_address};
use crate::workshop::{Workshop, client};

const PORT: u16 = 51820;
/// Folder in which user-space implementations put their control sockets, one for each device. All namespaces share the
/// folder.
const SOCKETS: &str = "/var/run/wireguard";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Implementation {
    Kernel,
    Go,
    Boring,
}

struct Wireguard(Implementation);

/// The name of a tunnel's device, unique on this machine.
struct Device(String);

/// Returns one variant for each implementation of WireGuard.
pub fn variants() -> Vec<Box<dyn Driver>> {
    let all = [Implementation::Kernel, Implementation::Go, Implementation::Boring];
    all.into_iter().map(|one| Box::new(Wireguard(one)) as Box<dyn Driver>).collect()
}

impl Wireguard {
    fn start(&self, scene: &mut Scene, end: End, address: &str) -> Result<()> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let device = format!("wg{}-{}", std::process::id() % 100_000, NEXT.fetch_add(1, Ordering::Relaxed));
        match self.0 {
            Implementation::Kernel => scene.ip(end, &format!("link add {device} type wireguard"))?,
            Implementation::Go => scene.daemon(end, &format!("wireguard-go -f {device}"))?,
            Implementation::Boring => {
                scene.daemon(end, &format!("boringtun-cli -f --disable-drop-privileges {device}"))?;
            }
        }
        scene.wait_for_device(end, &device)?;
        if self.0 != Implementation::Kernel {
            let socket = PathBuf::from(SOCKETS).join(format!("{device}.sock"));
            scene.wait(end, "the control socket", || socket.exists())?;
        }
        let file = scene.path(end, "wg.conf");
        scene.run(end, &format!("wg setconf {device} {}", file.display()))?;
        scene.ip(end, &format!("address add {address}/24 dev {device}"))?;
        scene.ip(end, &format!("link set {device} mtu 1420 up"))?;
        if end == End::Client {
            scene.ip(end, &format!("route add {LAN} dev {device}"))?;
        }
        scene.hold(end, Device(device));
        Ok(())
    }
}

impl Driver for Wireguard {
    fn name(&self) -> String {
        match self.0 {
            Implementation::Kernel => "wireguard",
            Implementation::Go => "wireguard-go",
            Implementation::Boring => "boringtun",
        }
        .to_owned()
    }

    fn claims(&self) -> Claims {
        let (title, plane) = match self.0 {
            Implementation::Kernel => ("WireGuard in the kernel", Plane::Kernel),
            Implementation::Go => ("WireGuard by wireguard-go", Plane::Process),
            Implementation::Boring => ("WireGuard by boringtun", Plane::Process),
        };
        Claims {
            title: title.to_owned(),
            family: "WireGuard".to_owned(),
            transport: Transport::Udp,
            plane,
            cipher: "ChaCha20-Poly1305".to_owned(),
            features: and(&and(&TUNNEL, &ALL_PLATFORMS), &[Feature::Revocation]),
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        let tools = Need::new("wg", "wireguard-tools");
        match self.0 {
            Implementation::Kernel => vec![tools],
            Implementation::Go => vec![tools, Need::new("wireguard-go", "wireguard-go")],
            Implementation::Boring => vec![tools, Need::new("boringtun-cli", "xtask/peers.sh boringtun")],
        }
    }

    fn version(&self) -> String {
        match self.0 {
            Implementation::Kernel => "uname -sr",
            Implementation::Go => "wireguard-go --version",
            Implementation::Boring => "boringtun-cli --version",
        }
        .to_owned()
    }

    fn impossible(&self) -> Option<String> {
        let probe = |name: &str| -> Result<String> {
            let namespace = lab::Namespace::new("probe")?;
            namespace.ip(&format!("link add {name} type wireguard"))
        };
        let lacks = self.0 == Implementation::Kernel && probe("wg").is_err();
        lacks.then(|| "this kernel has no WireGuard (CONFIG_WIREGUARD)".to_owned())
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let mut pair = || -> Result<[String; 2]> {
            let secret = shop.run(["wg", "genkey"])?.trim().to_owned();
            let public = shop.run(["sh", "-c", &format!("echo {secret} | wg pubkey")])?.trim().to_owned();
            Ok([secret, public])
        };
        let [secret, public] = pair()?;
        let keys: Vec<_> = (0..clients).map(|_| pair()).collect::<Result<_>>()?;
        let mut config = format!("[Interface]\nPrivateKey = {secret}\nListenPort = {PORT}\n");
        for (number, [own, own_public]) in (1..).zip(&keys) {
            let inside = tunnel_address(number);
            config += &format!("[Peer]\nPublicKey = {own_public}\nAllowedIPs = {inside}/32\n");
            let text = format!(
                "[Interface]\nPrivateKey = {own}\n[Peer]\nPublicKey = {public}\nEndpoint = {GATEWAY}:{PORT}\n\
                 AllowedIPs = {TUNNEL_GATEWAY}/32, {LAN}\n"
            );
            shop.key(&client(number), "peer.pub", &public)?;
            shop.key("server", &format!("client-{number}.pub"), own_public)?;
            shop.file(&client(number), "wg.conf", &text)?;
        }
        shop.file("server", "wg.conf", &config).map(drop)
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        self.start(scene, End::Server, TUNNEL_GATEWAY)
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        let address = tunnel_address(scene.number());
        self.start(scene, End::Client, &address)
    }

    fn stop_server(&self, scene: &mut Scene) -> Result<()> {
        let device = scene.held::<Device>(End::Server).map(|device| device.0.clone());
        if let (Implementation::Kernel, Some(device)) = (self.0, &device) {
            scene.ip(End::Server, &format!("link delete {device}"))?;
        }
        scene.stop(End::Server)?;
        // The device goes with its process, a moment later.
        let gone = |device: &String| scene.site.gateway.ip(&format!("link show dev {device}")).is_err();
        let _ = poll(SOON, || device.as_ref().is_none_or(gone));
        Ok(())
    }

    fn open_with_stolen_keys(&self, scene: &Scene, frames: &[Seen]) -> Result<Option<Attempt>> {
        let key = |end: End| -> Result<[u8; 32]> {
            let text = scene.shop.text(&scene.machine(end), "wg.conf")?;
            let key = text.lines().find_map(|line| line.strip_prefix("PrivateKey = ")).context("no private key")?;
            let bytes = BASE64_STANDARD.decode(key.trim()).context("the private key is not base64")?;
            bytes.try_into().map_err(|_| anyhow!("the private key does not have 32 bytes"))
        };
        wireguard::attempt(frames, PORT, &key(End::Client)?, &key(End::Server)?).map(Some)
    }

    fn door(&self) -> Door {
        Door::Udp(PORT)
    }
}
