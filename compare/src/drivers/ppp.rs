//! PPP, in L2TP by xl2tpd or in TLS by socat. Both need a kernel with PPP. Nobody has run these drivers yet, because
//! the kernels of the developers' machines have no PPP.

use anyhow::Result;

use super::TUNNEL;
use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN, TUNNEL_CLIENT, TUNNEL_GATEWAY};
use crate::workshop::{Workshop, client};

const L2TP_PORT: u16 = 1701;
const TLS_PORT: u16 = 4434;
/// Options of both ends. PPP itself does not authenticate the other end; at most the carrier does.
const OPTIONS: &str = "noauth\nnodefaultroute\nnoccp\nlocal\nipcp-accept-local\nipcp-accept-remote\nnodetach\n";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    L2tp,
    Tls,
}

struct Ppp(Carrier);

/// Returns PPP in L2TP and in TLS.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![Box::new(Ppp(Carrier::L2tp)), Box::new(Ppp(Carrier::Tls))]
}

impl Ppp {
    /// Returns the command by which socat runs pppd with the options in a file.
    fn pppd(scene: &Scene, end: End) -> String {
        format!("EXEC:'pppd file {}',pty,rawer", scene.path(end, "options").display())
    }
}

impl Driver for Ppp {
    fn name(&self) -> String {
        match self.0 {
            Carrier::L2tp => "l2tp",
            Carrier::Tls => "ppp-tls",
        }
        .to_owned()
    }

    fn claims(&self) -> Claims {
        let (title, family, transport, cipher, features) = match self.0 {
            Carrier::L2tp => ("L2TP by xl2tpd", "L2TP", Transport::Udp, "none", vec![Feature::InsideAddress]),
            Carrier::Tls => ("PPP over TLS by socat", "TLS", Transport::Tcp, "TLS 1.3, AES-256-GCM", TUNNEL.to_vec()),
        };
        Claims {
            title: title.to_owned(),
            family: family.to_owned(),
            transport,
            plane: Plane::Process,
            cipher: cipher.to_owned(),
            features,
            standard: true,
        }
    }

    fn needs(&self) -> Vec<Need> {
        let carrier = match self.0 {
            Carrier::L2tp => Need::new("xl2tpd", "xl2tpd"),
            Carrier::Tls => Need::new("socat", "socat"),
        };
        vec![Need::new("pppd", "ppp"), carrier]
    }

    fn version(&self) -> String {
        match self.0 {
            Carrier::L2tp => "xl2tpd --version",
            Carrier::Tls => "pppd --version",
        }
        .to_owned()
    }

    fn impossible(&self) -> Option<String> {
        let lacks = std::fs::File::open("/dev/ppp").is_err();
        lacks.then(|| "this kernel has no PPP (CONFIG_PPP), or there is no /dev/ppp".to_owned())
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        if self.0 == Carrier::Tls {
            shop.certificates(clients)?;
            shop.file("server", "options", &format!("{OPTIONS}{TUNNEL_GATEWAY}:{TUNNEL_CLIENT}\n"))?;
            for number in 1..=clients {
                shop.file(&client(number), "options", &format!("{OPTIONS}noipdefault\n"))?;
            }
            return Ok(());
        }
        let options = shop.file("server", "options", OPTIONS)?;
        let text = format!(
            "[global]\nlisten-addr = {GATEWAY}\nport = {L2TP_PORT}\n[lns default]\nip range = 10.77.3.2-10.77.3.250\n\
             local ip = {TUNNEL_GATEWAY}\nrequire authentication = no\npppoptfile = {}\n",
            options.display()
        );
        shop.file("server", "xl2tpd.conf", &text)?;
        for number in 1..=clients {
            let options = shop.file(&client(number), "options", &format!("{OPTIONS}noipdefault\n"))?;
            let text = format!(
                "[global]\nport = {L2TP_PORT}\n[lac gateway]\nlns = {GATEWAY}\nautodial = yes\nredial = yes\n\
                 redial timeout = 1\nrequire authentication = no\npppoptfile = {}\n",
                options.display()
            );
            shop.file(&client(number), "xl2tpd.conf", &text)?;
        }
        Ok(())
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        if self.0 == Carrier::L2tp {
            return start_xl2tpd(scene, End::Server);
        }
        let [cert, ca] = ["this.pem", "ca.crt"].map(|name| scene.path(End::Server, name).display().to_string());
        let listen = format!("OPENSSL-LISTEN:{TLS_PORT},bind={GATEWAY},reuseaddr,cert={cert},cafile={ca},verify=1");
        let pppd = Self::pppd(scene, End::Server);
        scene.daemon_words(End::Server, ["socat".to_owned(), listen, pppd])?;
        scene.wait_for_listener(End::Server, TLS_PORT)
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        if self.0 == Carrier::L2tp {
            start_xl2tpd(scene, End::Client)?;
        } else {
            let [cert, ca] = ["this.pem", "ca.crt"].map(|name| scene.path(End::Client, name).display().to_string());
            let connect = format!("OPENSSL:{GATEWAY}:{TLS_PORT},cert={cert},cafile={ca},verify=1,commonname=server");
            let pppd = Self::pppd(scene, End::Client);
            scene.daemon_words(End::Client, ["socat".to_owned(), connect, pppd])?;
        }
        scene.wait_for_device(End::Client, "ppp0")?;
        let client = &scene.site.client;
        scene.wait(End::Client, "a route", || client.ip(&format!("route replace {LAN} dev ppp0")).is_ok())
    }

    fn door(&self) -> Door {
        match self.0 {
            Carrier::L2tp => Door::Udp(L2TP_PORT),
            Carrier::Tls => Door::Tcp(TLS_PORT),
        }
    }
}

fn start_xl2tpd(scene: &mut Scene, end: End) -> Result<()> {
    let [config, control, pid] = ["xl2tpd.conf", "control", "pid"].map(|name| scene.path(end, name));
    let files = format!("-c {} -C {} -p {}", config.display(), control.display(), pid.display());
    scene.daemon(end, &format!("xl2tpd -D {files}"))?;
    let namespace = scene.namespace(end);
    scene.wait(end, "its socket", || {
        namespace.run(["ss", "-Hlun", &format!("sport = :{L2TP_PORT}")]).is_ok_and(|lines| !lines.is_empty())
    })
}
