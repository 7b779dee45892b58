//! Vouchsafe itself, with its defaults: a verifier on the gateway, an agent on the client, and an authority beside them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use lab::world::{AUTHORITY, AUTHORITY_PORT};
use lab::{Namespace, Process, poll};

use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, SOON, Scene};
use crate::site::{GATEWAY, LAN, SERVER};
use crate::workshop::{Steps, Workshop, client, identity};

const PASSWORD: &str = "correct horse battery";
const PINS: &str = "/sys/fs/bpf/vouchsafe";

struct Vouchsafe {
    name: &'static str,
    carrier: &'static str,
}

/// The running authority. Fields are declared in the order in which they are dropped.
struct Authority {
    _process: Process,
    _namespace: Namespace,
}

/// A daemon's kernel state; removed when dropped.
struct Pins {
    role: &'static str,
    instance: String,
}

impl Pins {
    fn new(role: &'static str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // `lab` removes what belongs to no running process, by this form of the name.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { role, instance: format!("lab-{}-compare{number}", std::process::id()) }
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(PathBuf::from(PINS).join(format!("{}-{}", self.role, self.instance)));
    }
}

/// Returns the treatments of flows without a tunnel.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![
        Box::new(Vouchsafe { name: "vouchsafe-tail", carrier: "tail" }),
        Box::new(Vouchsafe { name: "vouchsafe-shim", carrier: "shim" }),
    ]
}

impl Vouchsafe {
    fn start_verifier(&self, scene: &mut Scene, instance: &str) -> Result<()> {
        let (dir, socket) = (scene.path(End::Server, "state"), scene.path(End::Server, "verifier.sock"));
        let [program, dir, socket] = [lab::vouchsafe(), dir, socket].map(|path| path.display().to_string());
        let carriers = if self.carrier == "tail" { "" } else { "--carriers tail,shim" };
        scene.daemon(
            End::Server,
            &format!(
                "{program} verifier run --dir {dir} --instance {instance} --socket {socket} --interface eth0 \
                 --inside eth1 {carriers}"
            ),
        )?;
        let line = format!("{program} verifier status --json --instance {instance} --socket {socket}");
        let gateway = &scene.site.gateway;
        scene.wait(End::Server, "protection", || {
            gateway.run(line.split_whitespace()).is_ok_and(|status| {
                let status = status.replace(' ', "");
                status.contains("\"state\":\"protecting\"") && status.contains("\"connected\":true")
            })
        })
    }
}

impl Driver for Vouchsafe {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn claims(&self) -> Claims {
        let mut features = vec![Feature::PerService, Feature::Revocation, Feature::SingleSignOn];
        // A stateful NAT never maps the answer to a shim.
        features.extend((self.carrier == "tail").then_some(Feature::PassesNat));
        Claims {
            title: format!("Vouchsafe, token by {}", self.carrier),
            family: "Vouchsafe".to_owned(),
            transport: Transport::None,
            plane: Plane::Kernel,
            cipher: "none: the application's own, as TLS or SSH".to_owned(),
            features,
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("ip", "iproute2")]
    }

    fn version(&self) -> String {
        lab::find_vouchsafe().map_or_else(String::new, |program| format!("{} --version", program.display()))
    }

    fn impossible(&self) -> Option<String> {
        let missing = lab::find_vouchsafe().is_none();
        missing.then(|| "no vouchsafe binary: set VOUCHSAFE_BIN, or use `cargo xtask compare`".to_owned())
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let program = lab::vouchsafe();
        let program = program.to_string_lossy();
        let dir = shop.path("authority", "state");
        let dir = dir.to_string_lossy();
        shop.machine("authority")?;
        let listen = format!("{AUTHORITY}:{AUTHORITY_PORT}");
        shop.run([&program, "authority", "init", "--dir", &dir, "--name", AUTHORITY, "--listen", &listen])?;
        // An account's access is a line of the policy; the rest is written once.
        let names: Vec<_> = (1..=clients).map(|number| format!("  \"{}\",\n", identity(number))).collect();
        let carrier = if self.carrier == "tail" { String::new() } else { format!("carrier = \"{}\"\n", self.carrier) };
        let policy = format!(
            "[groups]\nstaff = [\n{}]\n\n[[receivers]]\nname = \"lan\"\naddress = [\"{SERVER}\"]\nservices = \"all\"\n\
             verifier = \"edge\"\n\n[[rules]]\nname = \"staff may use the network\"\naction = \"allow\"\n\
             who = \"group:staff\"\nto = \"lan\"\n{carrier}",
            names.concat()
        );
        shop.file("authority", "state/policy.toml", &policy)?;
        let password = shop.key("authority", "password", PASSWORD)?;
        let password = password.to_string_lossy();
        let ca = std::fs::read_to_string(shop.path("authority", "state/ca.pem"))?;
        for number in 1..=clients {
            let name = identity(number);
            shop.run([&program, "authority", "user", "add", "--dir", &dir, &name, "--password-file", &password])?;
            shop.key(&client(number), "ca.pem", &ca)?;
            shop.key(&client(number), "password", PASSWORD)?;
        }
        shop.key("server", "ca.pem", &ca).map(drop)
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        if let Some(pins) = scene.held::<Pins>(End::Server) {
            let instance = pins.instance.clone();
            return self.start_verifier(scene, &instance);
        }
        let [program, dir, ca, state] = [
            lab::vouchsafe(),
            scene.shop.path("authority", "state"),
            scene.path(End::Server, "ca.pem"),
            scene.path(End::Server, "state"),
        ]
        .map(|path| path.display().to_string());
        let namespace = scene.site.add_host("authority", AUTHORITY)?;
        let mut process = namespace.spawn([&program, "authority", "run", "--dir", &dir])?;
        process.wait_for("listening on", SOON)?;
        let code = namespace.run([&program, "authority", "verifier", "add", "--dir", &dir, "edge"])?;
        scene.count(End::Server, Steps { commands: 2, ..Steps::default() });
        scene.hold(End::Server, Authority { _process: process, _namespace: namespace });
        let url = format!("https://{AUTHORITY}:{AUTHORITY_PORT}");
        let line = format!("{program} verifier enrol --dir {state} --authority {url} --code {} --ca {ca}", code.trim());
        scene.run(End::Server, &line)?;
        let pins = Pins::new("verifier");
        let instance = pins.instance.clone();
        scene.hold(End::Server, pins);
        self.start_verifier(scene, &instance)
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        let [program, state, socket, ca, password] = [
            lab::vouchsafe(),
            scene.path(End::Client, "state"),
            scene.path(End::Client, "agent.sock"),
            scene.path(End::Client, "ca.pem"),
            scene.path(End::Client, "password"),
        ]
        .map(|path| path.display().to_string());
        scene.ip(End::Client, &format!("route replace {LAN} via {GATEWAY}"))?;
        let pins = Pins::new("agent");
        let instance = pins.instance.clone();
        scene.hold(End::Client, pins);
        scene.daemon(
            End::Client,
            &format!("{program} agent run --instance {instance} --interface eth0 --dir {state} --socket {socket}"),
        )?;
        let up = poll(SOON, || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        ensure!(up, "the agent does not run:\n{}", scene.logs(End::Client));
        let url = format!("https://{AUTHORITY}:{AUTHORITY_PORT}");
        let login = format!(
            "exec {program} agent login --socket {socket} --authority {url} --user {} --device laptop \
             --password-stdin --ca {ca} < {password}",
            identity(1)
        );
        scene.site.client.run(["sh", "-c", &login])?;
        scene.count(End::Client, Steps { commands: 1, ..Steps::default() });
        Ok(())
    }

    fn stop_server(&self, scene: &mut Scene) -> Result<()> {
        // The authority and the programs in the kernel stay, as they do when a daemon is upgraded.
        scene.stop_processes(End::Server)
    }

    fn door(&self) -> Door {
        Door::Inside
    }
}
