//! fwknop: single packet authorization. A sealed datagram opens the gateway's packet filter for the client's address; no
//! tunnel follows.

use anyhow::{Context, Result};

use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{CLIENT, GATEWAY, LAN};
use crate::workshop::{Workshop, client};

/// Time for which a knock opens the gateway. The time is long enough for a whole round. In real use, people knock
/// before each connection.
const OPEN: &str = "20m";

const FILTER: &str = "table ip gate {
    set allowed {
        type ipv4_addr
        flags timeout
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        ip saddr @allowed accept
        iifname eth1 accept
    }
}
";

struct Fwknop;

/// Returns the only variant of fwknop.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![Box::new(Fwknop)]
}

impl Driver for Fwknop {
    fn name(&self) -> String {
        "fwknop".to_owned()
    }

    fn claims(&self) -> Claims {
        Claims {
            title: "fwknop, single packet authorization".to_owned(),
            family: "fwknop".to_owned(),
            transport: Transport::None,
            plane: Plane::Kernel,
            cipher: "none: the application's own, as TLS or SSH".to_owned(),
            features: vec![
                Feature::PassesNat,
                Feature::PerService,
                Feature::Windows,
                Feature::MacOs,
                Feature::Android,
                Feature::Ios,
            ],
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![
            Need::new("fwknopd", "fwknop-server"),
            Need::new("fwknop", "fwknop-client"),
            Need::new("/usr/sbin/nft", "nftables"),
        ]
    }

    fn version(&self) -> String {
        "fwknop --version".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let home = shop.machine("authority")?.display().to_string();
        let mut access = String::new();
        for number in 1..=clients {
            let text = shop.run(["env", &format!("HOME={home}"), "fwknop", "--key-gen"])?;
            let after = |word: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(word));
                line.map(|line| line.trim().to_owned()).with_context(|| format!("fwknop printed no key: {text}"))
            };
            let keys =
                format!("KEY_BASE64 {}\nHMAC_KEY_BASE64 {}\n", after("KEY_BASE64:")?, after("HMAC_KEY_BASE64:")?);
            access += &format!(
                "SOURCE ANY\n{keys}CMD_CYCLE_OPEN /usr/sbin/nft add element ip gate allowed {{ $SRC timeout {OPEN} }}\n\
                 CMD_CYCLE_CLOSE NONE\n"
            );
            let own = format!("[gate]\nSPA_SERVER {GATEWAY}\nACCESS tcp/22\nALLOW_IP {CLIENT}\n{keys}USE_HMAC Y\n");
            shop.key("server", &format!("client-{number}.keys"), &keys)?;
            shop.file(&client(number), "fwknoprc", &own)?;
        }
        let dir = shop.machine("server")?.display().to_string();
        let config = format!(
            "PCAP_INTF eth0;\nENABLE_UDP_SERVER Y;\nFWKNOP_RUN_DIR {dir};\nFWKNOP_PID_FILE {dir}/fwknopd.pid;\n\
             DIGEST_FILE {dir}/digest.cache;\n"
        );
        shop.file("server", "access.conf", &access)?;
        shop.file("server", "fwknopd.conf", &config)?;
        shop.file("server", "gate.nft", FILTER).map(drop)
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        // The filter outlives the daemon.
        if scene.site.gateway.run(["nft", "list", "table", "ip", "gate"]).is_err() {
            let filter = scene.path(End::Server, "gate.nft");
            scene.run(End::Server, &format!("nft -f {}", filter.display()))?;
        }
        let [config, access] = ["fwknopd.conf", "access.conf"].map(|name| scene.path(End::Server, name));
        scene.daemon(End::Server, &format!("fwknopd -f -c {} -a {}", config.display(), access.display()))?;
        scene.wait(End::Server, "its socket", || {
            let sockets = scene.site.gateway.run(["ss", "-Hlun", "sport = :62201"]);
            sockets.is_ok_and(|lines| !lines.is_empty())
        })
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        scene.ip(End::Client, &format!("route replace {LAN} via {GATEWAY}"))?;
        let (home, file) = (scene.shop.machine(&scene.machine(End::Client))?, scene.path(End::Client, "fwknoprc"));
        let line = format!("env HOME={} fwknop --rc-file {} -n gate", home.display(), file.display());
        scene.run(End::Client, &line).map(drop)
    }

    fn door(&self) -> Door {
        Door::Inside
    }
}
