//! ocserv with openconnect: data in DTLS, and in TLS only.

use anyhow::Result;

use super::{ALL_PLATFORMS, TUNNEL, and};
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::GATEWAY;
use crate::workshop::{Workshop, client, identity};

const PORT: u16 = 4443;

struct Ocserv {
    tls_only: bool,
}

/// Returns the variants of ocserv.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![Box::new(Ocserv { tls_only: false }), Box::new(Ocserv { tls_only: true })]
}

impl Driver for Ocserv {
    fn name(&self) -> String {
        if self.tls_only { "ocserv-tls" } else { "ocserv-dtls" }.to_owned()
    }

    fn claims(&self) -> Claims {
        let features =
            and(&and(&TUNNEL, &ALL_PLATFORMS), &[Feature::OnlyTcp, Feature::Revocation, Feature::SingleSignOn]);
        Claims {
            title: format!("ocserv, {}", if self.tls_only { "TLS only" } else { "DTLS" }),
            family: "OpenConnect".to_owned(),
            transport: if self.tls_only { Transport::Tcp } else { Transport::Udp },
            plane: Plane::Process,
            cipher: if self.tls_only { "TLS 1.3, AES-256-GCM" } else { "DTLS 1.2, AES-256-GCM" }.to_owned(),
            features,
            standard: true,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("ocserv", "ocserv"), Need::new("ocpasswd", "ocserv"), Need::new("openconnect", "openconnect")]
    }

    fn version(&self) -> String {
        "ocserv --version".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        // Clients prove themselves by password, so that only the server needs a certificate.
        shop.certificates(0)?;
        let dir = shop.machine("server")?.display().to_string();
        let config = format!(
            "auth = \"plain[passwd={dir}/passwd]\"\ntcp-port = {PORT}\nudp-port = {PORT}\nlisten-host = {GATEWAY}\n\
             run-as-user = root\nrun-as-group = root\nsocket-file = {dir}/socket\nserver-cert = {dir}/this.crt\n\
             server-key = {dir}/this.key\nisolate-workers = false\nmax-clients = 128\nmax-same-clients = 4\n\
             keepalive = 300\ndpd = 60\nmtu = 1420\nauth-timeout = 20\nmax-ban-score = 0\nrate-limit-ms = 0\n\
             cookie-timeout = 300\nrekey-time = 172800\nuse-occtl = false\npid-file = {dir}/pid\ndevice = vpns\n\
             predictable-ips = false\nipv4-network = 10.77.3.0\nipv4-netmask = 255.255.255.0\n\
             route = 10.77.2.0/255.255.255.0\ncisco-client-compat = false\ndtls-legacy = false\n\
             tls-priorities = \"NORMAL:%SERVER_PRECEDENCE:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:+VERS-DTLS1.2\"\n"
        );
        shop.file("server", "ocserv.conf", &config)?;
        let authority = shop.text("server", "ca.crt")?;
        let script = "[ \"$reason\" = connect ] || [ \"$reason\" = reconnect ] || exit 0\n\
                      ip link set \"$TUNDEV\" up mtu $INTERNAL_IP4_MTU\n\
                      ip addr replace $INTERNAL_IP4_ADDRESS/32 dev \"$TUNDEV\"\n\
                      ip route replace 10.77.2.0/24 dev \"$TUNDEV\"\n";
        for number in 1..=clients {
            let (machine, password) = (client(number), format!("secret-{number}"));
            let line = format!("printf '{password}\\n{password}\\n' | ocpasswd -c {dir}/passwd {}", identity(number));
            shop.run(["sh", "-c", &line])?;
            shop.key(&machine, "password", &password)?;
            shop.key(&machine, "ca.crt", &authority)?;
            shop.script(&machine, "script", script)?;
        }
        Ok(())
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        let file = scene.path(End::Server, "ocserv.conf");
        scene.daemon(End::Server, &format!("ocserv -f -c {} -d 1", file.display()))?;
        scene.wait_for_listener(End::Server, PORT)
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        let dir = scene.shop.machine(&scene.machine(End::Client))?.display().to_string();
        let kind = if self.tls_only { "--no-dtls" } else { "" };
        let line = format!(
            "exec openconnect --protocol=anyconnect {kind} --cafile {dir}/ca.crt -u {} --passwd-on-stdin -s {dir}/script \
             -i oc0 https://{GATEWAY}:{PORT}/ < {dir}/password",
            identity(1)
        );
        scene.daemon_words(End::Client, ["sh", "-c", &line])
    }

    fn door(&self) -> Door {
        Door::Tcp(PORT)
    }
}
