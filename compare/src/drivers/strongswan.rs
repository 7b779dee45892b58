//! strongSwan: IKEv2 with a shared key; ESP in user space (libipsec) with several ciphers, and in the kernel.

use anyhow::{Context, Result};

use super::{ALL_PLATFORMS, TUNNEL, and, without};
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::measure::emulator::Seen;
use crate::scene::{End, Scene};
use crate::secrecy::{Attempt, ike};
use crate::site::{CLIENT, GATEWAY, LAN, TUNNEL_GATEWAY, tunnel_address};
use crate::workshop::{Workshop, client, identity};

const PROPOSAL: &str = "aes256gcm16-prfsha256-x25519";

/// The time or the amount of data after which the keys of ESP are renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rekey {
    /// After an hour, which is strongSwan's default.
    Default,
    /// After this many seconds.
    Seconds(u64),
    /// After this many bytes.
    Bytes(u64),
}

struct Strongswan {
    name: &'static str,
    esp: &'static str,
    kernel: bool,
    rekey: Rekey,
}

/// Returns the variants of strongSwan.
pub fn variants() -> Vec<Box<dyn Driver>> {
    let variant = |name, esp, kernel| with(name, esp, kernel, Rekey::Default);
    vec![
        variant("ipsec-kernel", "aes256-sha256-x25519", true),
        variant("ipsec", "aes256gcm16-x25519", false),
        variant("ipsec-chacha", "chacha20poly1305-x25519", false),
        variant("ipsec-null", "null-sha256-x25519", false),
    ]
}

/// Returns strongSwan with the proposal `esp` for ESP, which runs in the kernel or in user space. If the proposal names
/// a Diffie-Hellman group, each renewal of keys makes a new key exchange. If it names none, all keys derive from the
/// first key exchange, so there is no forward secrecy between them.
pub fn with(name: &'static str, esp: &'static str, kernel: bool, rekey: Rekey) -> Box<dyn Driver> {
    Box::new(Strongswan { name, esp, kernel, rekey })
}

impl Strongswan {
    /// Returns the lines of the configuration that say when keys are renewed.
    fn rekey(&self) -> String {
        match self.rekey {
            Rekey::Default => String::new(),
            Rekey::Seconds(seconds) => {
                format!("rekey_time = {seconds}s\n life_time = {}s\n rand_time = 0s\n", seconds * 4)
            }
            Rekey::Bytes(bytes) => format!("rekey_bytes = {bytes}\n life_bytes = {}\n rand_bytes = 0\n", bytes * 4),
        }
    }
}

impl Driver for Strongswan {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn differs_by_cipher_from(&self) -> Option<&'static str> {
        (!self.kernel && self.name != "ipsec").then_some("ipsec")
    }

    fn claims(&self) -> Claims {
        let naked = [Feature::HidesAddresses, Feature::Encrypts];
        let kept = if self.esp.starts_with("null") { without(&TUNNEL, &naked) } else { TUNNEL.to_vec() };
        let place = if self.kernel { "kernel" } else { "user space" };
        Claims {
            title: format!("IPsec by strongSwan in {place}, {}", self.esp),
            family: "IPsec".to_owned(),
            transport: Transport::Udp,
            plane: if self.kernel { Plane::Kernel } else { Plane::Process },
            cipher: self.esp.to_owned(),
            features: and(&and(&kept, &ALL_PLATFORMS), &[Feature::Revocation, Feature::SingleSignOn]),
            standard: true,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![
            Need::new("/usr/sbin/charon-systemd", "charon-systemd"),
            Need::new("swanctl", "strongswan-swanctl"),
            Need::new("/usr/lib/ipsec/plugins/libstrongswan-openssl.so", "libstrongswan-standard-plugins"),
            Need::new("/usr/lib/ipsec/plugins/libstrongswan-chapoly.so", "libstrongswan-extra-plugins"),
            Need::new("/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so", "libcharon-extra-plugins"),
        ]
    }

    fn version(&self) -> String {
        "swanctl --version".to_owned()
    }

    fn impossible(&self) -> Option<String> {
        let probe = || -> Result<()> {
            let namespace = lab::Namespace::new("probe")?;
            let key = format!("0x{}", "11".repeat(32));
            namespace
                .ip(&format!(
                    "xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x100 mode tunnel enc cbc(aes) {key} \
                     auth-trunc hmac(sha256) {key} 128"
                ))
                .map(drop)
        };
        (self.kernel && probe().is_err()).then(|| "this kernel has no ESP (CONFIG_INET_ESP)".to_owned())
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let secret = |number: usize| {
            format!("ike-{number} {{ id = {}\n secret = \"{}\" }}\n", identity(number), secret_of(number))
        };
        let connection = |number: usize, is_server: bool| {
            let inside = format!("{}/32", tunnel_address(number));
            let lan = format!("{LAN},{TUNNEL_GATEWAY}/32");
            let name = identity(number);
            let (own, peer, own_id, peer_id, own_ts, peer_ts) = if is_server {
                (GATEWAY, "%any", "gateway", name.as_str(), lan, inside)
            } else {
                (CLIENT, GATEWAY, name.as_str(), "gateway", inside, lan)
            };
            // A client whose server has ended connects again.
            let closed = if is_server { "" } else { "close_action = start\n" };
            // After a change of address the client sends from the new one, so it is not tied to the first.
            let local = if is_server { format!("local_addrs = {own}\n") } else { String::new() };
            format!(
                "c{number} {{ version = 2\n proposals = {PROPOSAL}\n {local} remote_addrs = {peer}\n dpd_delay = 5s\n\
                 local {{ auth = psk\n id = {own_id} }}\n remote {{ auth = psk\n id = {peer_id} }}\n\
                 children {{ net {{ local_ts = {own_ts}\n remote_ts = {peer_ts}\n esp_proposals = {}\n \
                 start_action = none\n dpd_action = restart\n {closed} {} mode = tunnel }} }} }}\n",
                self.esp,
                // Only this end renews keys. Otherwise both ends would renew them at the same time.
                if is_server { String::new() } else { self.rekey() }
            )
        };
        let (mut connections, mut secrets) = (String::new(), String::new());
        for number in 1..=clients {
            connections += &connection(number, true);
            secrets += &secret(number);
            let text = format!(
                "connections {{ {} }}\nsecrets {{ ike-{number} {{ secret = \"{}\" }} }}\n",
                connection(number, false),
                secret_of(number)
            );
            shop.key("server", &format!("client-{number}.secret"), &secret(number))?;
            shop.file(&client(number), "swanctl.conf", &text)?;
        }
        let text = format!("connections {{ {connections} }}\nsecrets {{ {secrets} }}\n");
        shop.file("server", "swanctl.conf", &text)?;
        for machine in std::iter::once("server".to_owned()).chain((1..=clients).map(client)) {
            let dir = shop.machine(&machine)?.display().to_string();
            let backend = if self.kernel { "kernel-netlink" } else { "kernel-libipsec kernel-netlink" };
            let libipsec = if self.kernel { "" } else { "kernel-libipsec { load = yes }\n" };
            // The secret of the exchange, with which the attempt on a recorded session is checked.
            let verbose = if machine == "server" { "" } else { "ike = 4" };
            let text = format!(
                "charon-systemd {{ load = random nonce openssl aes sha1 sha2 hmac kdf gcm ccm ctr chapoly curve25519 null \
                 pem pkcs1 x509 pubkey {backend} socket-default vici updown\n start-scripts {{ }}\n journal {{ default = -1 }}\n\
                 filelog {{ stderr {{ default = 1\n {verbose} }} }}\n plugins {{ vici {{ socket = unix://{dir}/vici }}\n {libipsec} }} }}\n\
                 swanctl {{ }}\n"
            );
            shop.file(&machine, "strongswan.conf", &text)?;
        }
        Ok(())
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        scene.site.gateway.ip(&format!("address replace {TUNNEL_GATEWAY}/32 dev lo"))?;
        start(scene, End::Server)
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        let address = tunnel_address(scene.number());
        scene.ip(End::Client, &format!("address replace {address}/32 dev lo"))?;
        start(scene, End::Client)?;
        swanctl(scene, End::Client, "--initiate --child net")
    }

    fn open_with_stolen_keys(&self, scene: &Scene, frames: &[Seen]) -> Result<Option<Attempt>> {
        let log = scene.whole_logs(End::Client);
        let secret = exchanged(&log).context("the client's log does not show the secret of the key exchange")?;
        ike::attempt(frames, secret_of(1).as_bytes(), &secret).map(Some)
    }

    fn door(&self) -> Door {
        Door::Udp(500)
    }
}

/// Returns the key that a client shares with the server.
fn secret_of(number: usize) -> String {
    format!("a secret of {number}")
}

/// Reads the secret of the last exchange of keys from charon's log: a title, and lines of hexadecimal numbers.
fn exchanged(log: &str) -> Option<Vec<u8>> {
    let (_, dump) = log.rsplit_once("shared Diffie Hellman secret => 32 bytes")?;
    let bytes = dump.lines().skip(1).take(2).flat_map(|line| {
        let words = line.split(": ").nth(1).unwrap_or_default().split("  ").next().unwrap_or_default();
        words.split(' ').filter_map(|word| u8::from_str_radix(word, 16).ok()).collect::<Vec<_>>()
    });
    Some(bytes.collect()).filter(|bytes: &Vec<u8>| bytes.len() == 32)
}

fn start(scene: &mut Scene, end: End) -> Result<()> {
    let (config, socket) = (scene.path(end, "strongswan.conf"), scene.path(end, "vici"));
    let _ = std::fs::remove_file(&socket);
    scene.daemon(end, &format!("env STRONGSWAN_CONF={} /usr/sbin/charon-systemd", config.display()))?;
    scene.wait(end, "charon's control socket", || std::os::unix::net::UnixStream::connect(&socket).is_ok())?;
    let file = scene.path(end, "swanctl.conf");
    swanctl(scene, end, &format!("--load-all --file {}", file.display()))
}

fn swanctl(scene: &mut Scene, end: End, words: &str) -> Result<()> {
    let (config, socket) = (scene.path(end, "strongswan.conf"), scene.path(end, "vici"));
    let (config, socket) = (config.display(), socket.display());
    // `swanctl` wants its command first.
    let (command, rest) = words.split_once(' ').unwrap_or((words, ""));
    scene.run(end, &format!("env STRONGSWAN_CONF={config} swanctl {command} --uri unix://{socket} {rest}")).map(drop)
}
