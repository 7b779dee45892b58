//! OpenSSH's own tunnel, `ssh -w`, with AES-256-GCM and with ChaCha20-Poly1305.

use anyhow::Result;

use super::{TUNNEL, and};
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN, TUNNEL_CLIENT, TUNNEL_GATEWAY};
use crate::workshop::{Workshop, client, identity};

const PORT: u16 = 2222;

struct Ssh {
    name: &'static str,
    cipher: &'static str,
}

/// Returns the variants of `ssh -w`.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![
        Box::new(Ssh { name: "ssh", cipher: "aes256-gcm@openssh.com" }),
        Box::new(Ssh { name: "ssh-chacha", cipher: "chacha20-poly1305@openssh.com" }),
    ]
}

impl Driver for Ssh {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn differs_by_cipher_from(&self) -> Option<&'static str> {
        (self.name != "ssh").then_some("ssh")
    }

    fn claims(&self) -> Claims {
        let cipher = self.cipher.split('@').next().unwrap_or(self.cipher);
        Claims {
            title: format!("ssh -w, {cipher}"),
            family: "SSH".to_owned(),
            transport: Transport::Tcp,
            plane: Plane::Process,
            cipher: cipher.to_owned(),
            features: and(&TUNNEL, &[Feature::OnlyTcp, Feature::MacOs]),
            standard: true,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("/usr/sbin/sshd", "openssh-server"), Need::new("ssh", "openssh-client")]
    }

    fn version(&self) -> String {
        "ssh -V".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let mut pair = |machine: &str, name: &str| -> Result<[String; 2]> {
            let file = shop.machine(machine)?.join(name);
            let file = file.to_string_lossy();
            shop.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", machine, "-f", &file])?;
            Ok([shop.text(machine, name)?, shop.text(machine, &format!("{name}.pub"))?])
        };
        let [_, host] = pair("server", "host")?;
        let keys: Vec<_> = (1..=clients).map(|number| pair(&client(number), "key")).collect::<Result<_>>()?;
        let mut allowed = String::new();
        for (number, [_, public]) in (1..).zip(keys) {
            allowed += &format!("tunnel=\"{}\" {public} {}\n", 6 + number, identity(number));
            shop.key("server", &format!("client-{number}.pub"), &public)?;
            shop.key(&client(number), "known_hosts", &format!("[{GATEWAY}]:{PORT} {host}\n"))?;
        }
        shop.file("server", "authorized_keys", &allowed)?;
        let dir = shop.machine("server")?.display().to_string();
        let config = format!(
            "ListenAddress {GATEWAY}\nPort {PORT}\nHostKey {dir}/host\nAuthorizedKeysFile {dir}/authorized_keys\n\
             PermitTunnel point-to-point\nPermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nPidFile none\n\
             UseDNS no\nCiphers {}\n",
            self.cipher
        );
        shop.file("server", "sshd.conf", &config).map(drop)
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        // The directory for sshd's unprivileged process, which the package makes when the machine starts.
        std::fs::create_dir_all("/run/sshd")?;
        device(scene, End::Server, TUNNEL_GATEWAY)?;
        let file = scene.path(End::Server, "sshd.conf");
        scene.daemon(End::Server, &format!("/usr/sbin/sshd -D -e -f {}", file.display()))?;
        scene.wait_for_listener(End::Server, PORT)
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        device(scene, End::Client, TUNNEL_CLIENT)?;
        scene.ip(End::Client, &format!("route replace {LAN} dev tun7"))?;
        let (key, hosts) = (scene.path(End::Client, "key"), scene.path(End::Client, "known_hosts"));
        let line = format!(
            "ssh -F none -p {PORT} -i {} -o UserKnownHostsFile={} -o BatchMode=yes -o Tunnel=point-to-point -N -w 7:7 \
             root@{GATEWAY}",
            key.display(),
            hosts.display()
        );
        scene.daemon(End::Client, &line)
    }

    fn door(&self) -> Door {
        Door::Tcp(PORT)
    }
}

fn device(scene: &mut Scene, end: End, address: &str) -> Result<()> {
    if scene.namespace(end).ip("link show dev tun7").is_ok() {
        return Ok(());
    }
    scene.ip(end, "tuntap add dev tun7 mode tun")?;
    scene.ip(end, &format!("address add {address}/24 dev tun7"))?;
    scene.ip(end, "link set tun7 up")
}
