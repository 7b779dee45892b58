//! Vouchsafe itself, with its defaults: a verifier on the gateway, an agent or a program without privileges on the
//! client, and an authority.

use anyhow::{Context, Result, ensure};
use lab::world::{AUTHORITY, AUTHORITY_PORT, Instance};
use lab::{Namespace, Process, poll};
use wire::MasterKey;

use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::measure::emulator::Seen;
use crate::scene::{End, SOON, Scene};
use crate::secrecy::{Attempt, seal};
use crate::site::{CLIENT, GATEWAY, LAN, SERVER};
use crate::workshop::{Steps, Workshop, client, identity};

const PASSWORD: &str = "correct horse battery";
/// The port of sealed tunnels.
const TUNNEL: u16 = 4499;
/// Inside addresses of clients in tunnels.
const TUNNEL_POOL: &str = "100.127.0.0/16";

/// The treatment of a flow's packets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// The agent puts a token into the flow's first packet, by this carrier.
    Token(&'static str),
    /// The agent puts a token of the published scheme into the first packet: SHA-224 in a shim.
    Published,
    /// A program without privileges puts a token into the first bytes of the stream. There is no agent.
    Stream,
    /// The packets travel in a sealed tunnel from agent to verifier.
    Sealed {
        /// The treatment: `encrypt` or `authenticate`.
        how: &'static str,
        /// Whether the tunnel has forward secrecy, by an exchange of ephemeral keys.
        forward_secrecy: bool,
    },
}

struct Vouchsafe {
    name: &'static str,
    treatment: Treatment,
}

/// The running authority. Fields are declared in the order in which they are dropped.
pub(super) struct Authority {
    _process: Process,
    namespace: Namespace,
}

impl Authority {
    /// Makes the folder of the authority's machine, and the authority's state in it. Returns the paths of the program
    /// `vouchsafe` and of the state's folder, with which the caller can run more commands.
    pub fn init(shop: &mut Workshop) -> Result<[String; 2]> {
        let [program, dir] = [lab::vouchsafe(), shop.path("authority", "state")].map(|path| path.display().to_string());
        shop.machine("authority")?;
        let listen = format!("{AUTHORITY}:{AUTHORITY_PORT}");
        shop.run([&program, "authority", "init", "--dir", &dir, "--name", AUTHORITY, "--listen", &listen])?;
        Ok([program, dir])
    }

    /// Starts the authority, on a host of its own on the client's Ethernet.
    pub fn start(scene: &mut Scene) -> Result<()> {
        let [program, dir] =
            [lab::vouchsafe(), scene.shop.path("authority", "state")].map(|path| path.display().to_string());
        let namespace = scene.site.add_host("authority", AUTHORITY)?;
        let mut process = namespace.spawn([&program, "authority", "run", "--dir", &dir])?;
        process.wait_for("listening on", SOON)?;
        scene.count(End::Server, Steps { commands: 1, ..Steps::default() });
        scene.hold(End::Server, Self { _process: process, namespace });
        Ok(())
    }

    /// Returns a code with which a verifier or endpoint enrols.
    fn code(scene: &mut Scene, name: &str) -> Result<String> {
        let [program, dir] =
            [lab::vouchsafe(), scene.shop.path("authority", "state")].map(|path| path.display().to_string());
        scene.count(End::Server, Steps { commands: 1, ..Steps::default() });
        let authority = scene.held::<Self>(End::Server).context("the authority does not run")?;
        let code = authority.namespace.run([&program, "authority", "verifier", "add", "--dir", &dir, name])?;
        Ok(code.trim().to_owned())
    }

    /// Enrols the verifier or tunnel endpoint `name` at the authority. `role` is `verifier` or `svtep`.
    pub fn enrol(scene: &mut Scene, end: End, role: &str, name: &str) -> Result<()> {
        let code = Self::code(scene, name)?;
        let [program, state, ca] = [lab::vouchsafe(), scene.path(end, "state"), scene.path(end, "ca.pem")]
            .map(|path| path.display().to_string());
        let url = format!("https://{AUTHORITY}:{AUTHORITY_PORT}");
        scene
            .run(end, &format!("{program} {role} enrol --authority {url} --code {code} --dir {state} --ca {ca}"))
            .map(drop)
    }
}

/// Returns the programs that every variant of Vouchsafe needs.
pub(super) fn needs() -> Vec<Need> {
    vec![Need::new("ip", "iproute2")]
}

/// Returns the command that prints the version of this product.
pub(super) fn version() -> String {
    lab::find_vouchsafe().map_or_else(String::new, |program| format!("{} --version", program.display()))
}

/// Returns the reason why Vouchsafe can't run if its binary is missing; `None` if the binary is there.
pub(super) fn without_binary() -> Option<String> {
    let missing = lab::find_vouchsafe().is_none();
    missing.then(|| "no vouchsafe binary: set VOUCHSAFE_BIN, or use `cargo xtask compare`".to_owned())
}

/// Returns the variants of Vouchsafe: flows with a token by the carriers `tail`, `shim` and `stream`, and flows in
/// sealed tunnels.
pub fn variants() -> Vec<Box<dyn Driver>> {
    let sealed = |how| Treatment::Sealed { how, forward_secrecy: true };
    vec![
        with("vouchsafe-tail", Treatment::Token("tail")),
        with("vouchsafe-shim", Treatment::Token("shim")),
        with("vouchsafe-stream", Treatment::Stream),
        with("vouchsafe-seal", sealed("encrypt")),
        with("vouchsafe-seal-auth", sealed("authenticate")),
    ]
}

/// Returns Vouchsafe with the given treatment of a flow's packets.
pub fn with(name: &'static str, treatment: Treatment) -> Box<dyn Driver> {
    Box::new(Vouchsafe { name, treatment })
}

impl Vouchsafe {
    const fn is_sealed(&self) -> bool {
        matches!(self.treatment, Treatment::Sealed { .. })
    }

    /// Returns the end of the policy: the rule's lines after `who` and `to`, and what the policy needs after the rule.
    fn terms(&self) -> String {
        match self.treatment {
            Treatment::Token("shim") => "carrier = \"shim\"\n".to_owned(),
            Treatment::Published => "suite = \"sha224\"\n".to_owned(),
            Treatment::Token(_) | Treatment::Stream => String::new(),
            Treatment::Sealed { how, forward_secrecy } => {
                let secrecy = if forward_secrecy { "" } else { "forward_secrecy = false\n" };
                format!(
                    "treatment = \"{how}\"\n{secrecy}\n[[receivers]]\nname = \"tunnel\"\naddress = [\"{GATEWAY}\"]\n\
                     services = [\"udp/{TUNNEL}\"]\nverifier = \"edge\"\ntunnel = true\n\n[[rules]]\n\
                     name = \"way into the tunnel\"\naction = \"allow\"\nwho = \"group:staff\"\nto = \"tunnel\"\n"
                )
            }
        }
    }

    fn start_verifier(&self, scene: &mut Scene, instance: &str) -> Result<()> {
        let (dir, socket) = (scene.path(End::Server, "state"), scene.path(End::Server, "verifier.sock"));
        let [program, dir, socket] = [lab::vouchsafe(), dir, socket].map(|path| path.display().to_string());
        let more = match self.treatment {
            Treatment::Token("shim") => "--carriers tail,shim".to_owned(),
            Treatment::Published => "--carriers tail,shim --suites siphash,sha224".to_owned(),
            Treatment::Sealed { .. } => format!("--tunnel-pool {TUNNEL_POOL}"),
            _ => String::new(),
        };
        scene.daemon(
            End::Server,
            &format!(
                "{program} verifier run --dir {dir} --instance {instance} --socket {socket} --interface eth0 \
                 --inside eth1 {more}"
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

    fn differs_by_cipher_from(&self) -> Option<&'static str> {
        (self.name == "vouchsafe-seal-auth").then_some("vouchsafe-seal")
    }

    fn claims(&self) -> Claims {
        let mut features = vec![Feature::PerService, Feature::Revocation, Feature::SingleSignOn];
        // A stateful NAT never maps the answer to a shim.
        let shim = [Treatment::Token("shim"), Treatment::Published].contains(&self.treatment);
        features.extend((!shim).then_some(Feature::PassesNat));
        let native = "none: the application's own, as TLS or SSH";
        let (what, cipher) = match self.treatment {
            Treatment::Token(carrier) => (format!("token by {carrier}"), native),
            Treatment::Published => ("token by shim, SHA-224".to_owned(), native),
            Treatment::Stream => ("token by stream, client without root".to_owned(), native),
            Treatment::Sealed { how: "encrypt", .. } => {
                features.extend([Feature::Encrypts, Feature::HidesAddresses]);
                ("sealed tunnel, encrypted".to_owned(), "the fastest AEAD of both ends")
            }
            Treatment::Sealed { .. } => ("sealed tunnel, authenticated".to_owned(), "authentication only"),
        };
        if let Treatment::Sealed { forward_secrecy, .. } = self.treatment {
            features.push(Feature::Authenticates);
            features.extend(forward_secrecy.then_some(Feature::ForwardSecrecy));
        }
        Claims {
            title: format!("Vouchsafe, {what}"),
            family: "Vouchsafe".to_owned(),
            transport: if self.is_sealed() { Transport::Udp } else { Transport::None },
            plane: if self.is_sealed() { Plane::Process } else { Plane::Kernel },
            cipher: cipher.to_owned(),
            features,
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        needs()
    }

    fn version(&self) -> String {
        version()
    }

    fn impossible(&self) -> Option<String> {
        let Some(program) = lab::find_vouchsafe() else { return without_binary() };
        if self.treatment == Treatment::Stream && super::rootless::broker().is_none() {
            return Some("no vouchsafe-compare binary beside this program".to_owned());
        }
        let help = || std::process::Command::new(program).args(["verifier", "run", "--help"]).output();
        let has_tunnels = || help().is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("--tunnel-pool"));
        (self.is_sealed() && !has_tunnels()).then(|| "this vouchsafe binary has no sealed tunnels".to_owned())
    }

    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()> {
        let [program, dir] = Authority::init(shop)?;
        // An account's access is a line of the policy; the rest is written once.
        let names: Vec<_> = (1..=clients).map(|number| format!("  \"{}\",\n", identity(number))).collect();
        let terms = self.terms();
        let policy = format!(
            "[groups]\nstaff = [\n{}]\n\n[[receivers]]\nname = \"lan\"\naddress = [\"{SERVER}\"]\nservices = \"all\"\n\
             verifier = \"edge\"\n\n[[rules]]\nname = \"staff may use the network\"\naction = \"allow\"\n\
             who = \"group:staff\"\nto = \"lan\"\n{terms}",
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
        if let Some(instance) = scene.held::<Instance>(End::Server) {
            let name = instance.name().to_owned();
            return self.start_verifier(scene, &name);
        }
        if self.treatment == Treatment::Stream {
            super::rootless::home(scene)?;
        }
        Authority::start(scene)?;
        Authority::enrol(scene, End::Server, "verifier", "edge")?;
        let instance = Instance::new("verifier");
        let name = instance.name().to_owned();
        scene.hold(End::Server, instance);
        self.start_verifier(scene, &name)
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        scene.ip(End::Client, &format!("route replace {LAN} via {GATEWAY}"))?;
        if scene.number() > 1 {
            scene.ip(End::Client, &format!("route replace {AUTHORITY} dev eth0"))?;
        }
        let url = format!("https://{AUTHORITY}:{AUTHORITY_PORT}");
        if self.treatment == Treatment::Stream {
            return super::rootless::start(scene, &url, &identity(scene.number()), PASSWORD);
        }
        let [program, state, socket, ca, password] = [
            lab::vouchsafe(),
            scene.path(End::Client, "state"),
            scene.path(End::Client, "agent.sock"),
            scene.path(End::Client, "ca.pem"),
            scene.path(End::Client, "password"),
        ]
        .map(|path| path.display().to_string());
        let instance = Instance::new("agent");
        let name = instance.name().to_owned();
        scene.hold(End::Client, instance);
        scene.daemon(
            End::Client,
            &format!("{program} agent run --instance {name} --interface eth0 --dir {state} --socket {socket}"),
        )?;
        let up = poll(SOON, || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        ensure!(up, "the agent does not run:\n{}", scene.logs(End::Client));
        let login = format!(
            "exec {program} agent login --socket {socket} --authority {url} --user {} --device laptop \
             --password-stdin --ca {ca} < {password}",
            identity(scene.number())
        );
        let done = scene.namespace(End::Client).run(["sh", "-c", &login]);
        done.with_context(|| format!("the agent says:\n{}", scene.logs(End::Client)))?;
        scene.count(End::Client, Steps { commands: 1, ..Steps::default() });
        Ok(())
    }

    fn stop_server(&self, scene: &mut Scene) -> Result<()> {
        // The authority and the programs in the kernel stay, as they do when a daemon is upgraded.
        scene.stop_processes(End::Server)
    }

    fn open_with_stolen_keys(&self, scene: &Scene, frames: &[Seen]) -> Result<Option<Attempt>> {
        if !self.is_sealed() {
            return Ok(None);
        }
        let bytes =
            std::fs::read(scene.shop.path("authority", "state/master.key")).context("cannot read master.key")?;
        let master = MasterKey::new(*bytes.last_chunk().context("master.key is shorter than a key")?);
        seal::attempt(frames, (GATEWAY.parse()?, TUNNEL), CLIENT.parse()?, "edge", &master).map(Some)
    }

    fn door(&self) -> Door {
        if self.is_sealed() { Door::Udp(TUNNEL) } else { Door::Inside }
    }
}
