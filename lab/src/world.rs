//! The standard world: Alice and Mallory behind one router, an authority, and a server with a verifier in front of it.
//!
//! ```text
//! alice ──┐                       ┌── server: verifier on eth0; sshd, echo
//!         router ── internet ─────┤
//! mallory ┘                       └── authority
//! ```
//!
//! No part is simulated: the `vouchsafe` binary, the kernel's network stacks and sshd are real. Dropping the world
//! removes everything.

mod agent;
mod authority;
mod names;
mod network;
mod svtep;
mod transfer;
mod verifier;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use wire::Carrier;

pub use agent::Agent;
pub use authority::{Authority, PASSWORD, PORT as AUTHORITY_PORT};
pub use names::{AUTHORITY_NAME, DOMAIN, FRONT_NAME, NAME_SERVER, NameServer, OPEN_NAME, dig, on_resolving};
pub use network::{
    AUTHORITY, DARK4, DARK6, FRONT4, FRONT6, INSIDE4, Network, OPEN4, OPEN6, POOL, PUBLIC4, PUBLIC6, Way, in_family,
};
pub use svtep::{Prover, Svtep};
pub use transfer::Transfer;
pub use verifier::{ID as VERIFIER, Verifier};

use crate::service::{Echo, Sshd};

/// Time within which anything that a test waits for must happen, even on a machine that is busy with other tests and
/// builds.
pub const SOON: Duration = Duration::from_secs(60);
/// TCP port of sshd.
pub const SSH: u16 = 22;
/// TCP and UDP port of the echo service.
pub const ECHO: u16 = 7;

/// The rules of the standard world. `LIFETIME` is the lifetime of Alice's grants for the receiver `front`.
const POLICY: &str = r#"
[groups]
staff = ["alice"]

[[receivers]]
name = "front"
address = ["FRONT4", "FRONT6"]
services = ["tcp/22", "tcp/7", "udp/7"]
verifier = "edge"

[[receivers]]
name = "dark"
address = ["DARK4", "DARK6"]
services = "all"
verifier = "edge"

[[rules]]
name = "staff may use the front"
action = "allow"
who = "group:staff"
to = "front"
lifetime = "LIFETIME"

[[rules]]
name = "staff may use the dark host"
action = "allow"
who = "group:staff"
to = "dark"
"#;

/// The standard world, running. Fields are declared in the order in which they are dropped.
pub struct World {
    /// Alice's agent.
    pub agent: Agent,
    /// The verifier in front of the server.
    pub verifier: Verifier,
    /// The authority of agent and verifier.
    pub authority: Authority,
    /// The services on the server.
    pub services: Services,
    /// Namespaces and cables.
    pub network: Network,
}

/// The services on the server, which listen on all its addresses.
pub struct Services {
    /// sshd on [`SSH`].
    pub sshd: Sshd,
    /// TCP and UDP echo on [`ECHO`].
    pub echo: Echo,
}

impl Services {
    /// Starts sshd and the echo service.
    pub fn start(network: &Network) -> Result<Self> {
        Ok(Self { sshd: Sshd::start(&network.server)?, echo: Echo::start(&network.server, ECHO)? })
    }
}

impl World {
    /// Starts all parts of the world and logs Alice in. Her grants for the receiver `front` are valid for five minutes.
    pub fn new(way: Way) -> Result<Self> {
        Self::with_lifetime(way, "5m")
    }

    /// Starts all parts of the world and logs Alice in. Her grants for the receiver `front` are valid for `lifetime`,
    /// at least `10s`.
    pub fn with_lifetime(way: Way, lifetime: &str) -> Result<Self> {
        let network = Network::new(way)?;
        let services = Services::start(&network)?;
        let world = Self::around(network, services, lifetime)?;
        world.agent.login(&world.authority, "alice")?;
        Ok(world)
    }

    /// Starts a world with a gateway before the server, and logs Alice in. The gateway runs the verifier with the
    /// additional `flags`.
    pub fn behind_gateway(way: Way, flags: &[&str]) -> Result<Self> {
        let network = Network::behind_gateway(way)?;
        let services = Services::start(&network)?;
        let authority = Authority::start(&network.authority, &policy("5m"))?;
        let flags = [&["--inside", "eth1"], flags].concat();
        let verifier = Verifier::start_with(network.front(), &authority, &flags)?;
        let agent = Agent::start(&network.alice)?;
        agent.login(&authority, "alice")?;
        Ok(Self { agent, verifier, authority, services, network })
    }

    /// Starts a world whose epochs last `seconds`, and logs Alice in. Her grants for the receiver `front` are valid for
    /// half an epoch.
    pub fn with_epochs(way: Way, seconds: u32) -> Result<Self> {
        let network = Network::new(way)?;
        let services = Services::start(&network)?;
        let configuration = format!("epoch_length = \"{seconds}s\"\n");
        let policy = policy(&format!("{}s", seconds / 2));
        let authority = Authority::start_with(&network.authority, &policy, &configuration)?;
        let world = Self::within(network, services, authority, &[])?;
        world.agent.login(&world.authority, "alice")?;
        Ok(world)
    }

    /// Starts a world in which grants for the receiver `front` have this suite and carrier, and logs Alice in. The
    /// verifier accepts tokens of every suite, by `tail` and `shim`.
    pub fn with_tokens(way: Way, suite: &str, carrier: Carrier) -> Result<Self> {
        let network = Network::new(way)?;
        let services = Services::start(&network)?;
        let authority = Authority::start(&network.authority, &policy_for_tokens(suite, carrier))?;
        let verifier = Verifier::start_with(&network.server, &authority, &TAKE_ALL)?;
        let agent = Agent::start(&network.alice)?;
        let world = Self { agent, verifier, authority, services, network };
        world.agent.login(&world.authority, "alice")?;
        Ok(world)
    }

    /// Starts a world in which grants for the receiver `front` have the published scheme's suite. `setting` is added to
    /// authority.toml. If `takes` is set, Alice's agent accepts keys in band. Nobody is logged in.
    pub fn with_keys_in_band(network: Network, setting: &str, takes: bool) -> Result<Self> {
        let services = Services::start(&network)?;
        let policy = policy_for_tokens(wire::ls::NAME, Carrier::Shim);
        let authority = Authority::start_with(&network.authority, &policy, setting)?;
        let verifier = Verifier::start_with(&network.server, &authority, &TAKE_ALL)?;
        let mut flags = vec!["--interface".to_owned(), "eth0".to_owned()];
        if takes {
            flags.extend(["--key-transfer".to_owned(), authority.url()]);
        }
        let agent = Agent::start_with(&network.alice, &flags)?;
        Ok(Self { agent, verifier, authority, services, network })
    }

    /// Adds authority, verifier and agent to a network whose services run. Nobody is logged in.
    pub fn around(network: Network, services: Services, lifetime: &str) -> Result<Self> {
        Self::around_with(network, services, lifetime, &[])
    }

    /// Adds authority, agent, and a verifier with these additional flags, to a network whose services run. Nobody is
    /// logged in.
    pub fn around_with(network: Network, services: Services, lifetime: &str, flags: &[&str]) -> Result<Self> {
        let authority = Authority::start(&network.authority, &policy(lifetime))?;
        Self::within(network, services, authority, flags)
    }

    fn within(network: Network, services: Services, authority: Authority, flags: &[&str]) -> Result<Self> {
        let verifier = Verifier::start_with(&network.server, &authority, flags)?;
        let agent = Agent::start(&network.alice)?;
        Ok(Self { agent, verifier, authority, services, network })
    }
}

/// Returns the standard policy, with this lifetime for grants for the receiver `front`.
pub fn policy(lifetime: &str) -> String {
    let values = [("FRONT4", FRONT4), ("FRONT6", FRONT6), ("DARK4", DARK4), ("DARK6", DARK6), ("LIFETIME", lifetime)];
    values.iter().fold(POLICY.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// Flags with which a verifier accepts tokens of every suite, by the carriers `tail` and `shim`.
pub const TAKE_ALL: [&str; 4] = ["--carriers", "tail,shim", "--suites", "siphash,aes-cmac,sha224"];

/// Returns a policy that lets Alice reach the echo service at these addresses and networks.
pub fn policy_for_echo(addresses: &[&str]) -> String {
    let receivers = addresses.iter().enumerate().map(|(number, address)| {
        format!(
            "[[receivers]]\nname = \"r{number}\"\naddress = \"{address}\"\nservices = [\"tcp/7\", \"udp/7\"]\n\
             verifier = \"edge\"\n\n[[rules]]\nname = \"rule {number}\"\naction = \"allow\"\nwho = \"person:alice\"\n\
             to = \"r{number}\"\n\n"
        )
    });
    receivers.collect()
}

/// Returns the standard policy, with this suite and carrier for grants for the receiver `front`. A token of the
/// published scheme opens everything behind the verifier, so one rule has to allow every destination there.
pub fn policy_for_tokens(suite: &str, carrier: Carrier) -> String {
    let lifetime = "lifetime = \"5m\"";
    let terms = format!("{lifetime}\nsuite = \"{suite}\"\ncarrier = \"{}\"", carrier.name());
    let policy = policy("5m").replace(lifetime, &terms);
    if suite != wire::ls::NAME {
        return policy;
    }
    let (one_rule, _) = policy.rsplit_once("[[rules]]").unwrap_or((&policy, ""));
    one_rule.replace("to = \"front\"", "to = [\"front\", \"dark\"]")
}

/// Kernel state of one daemon, pinned under a unique name. Dropping it removes the pins.
pub struct Instance {
    role: &'static str,
    name: String,
}

const PINS: &str = "/sys/fs/bpf/vouchsafe";

impl Instance {
    /// Chooses a name that no other daemon of this machine has. Also removes the pins of processes that were killed.
    pub fn new(role: &'static str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        sweep_pins();
        Self { role, name: format!("lab-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)) }
    }

    /// Returns the name of the daemon's instance (`--instance`), from which the names of its pins follow.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn pins(&self) -> PathBuf {
        PathBuf::from(PINS).join(format!("{}-{}", self.role, self.name))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let pins = self.pins();
        if pins.exists()
            && let Err(error) = std::fs::remove_dir_all(&pins)
        {
            eprintln!("lab: {}: {error}", pins.display());
        }
    }
}

/// Removes pins left behind by test processes that were killed.
fn sweep_pins() {
    for entry in std::fs::read_dir(PINS).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.split_once("-lab-").and_then(|(_, rest)| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Runs a `vouchsafe` command. It inherits this process's standard input unless the caller has set another. Exit code 1
/// (the answer is no) is not an error.
fn ask(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("could not start {command:?}"))?;
    match output.status.code() {
        Some(0 | 1) => Ok(output),
        _ => bail!("{command:?}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr)),
    }
}

/// Runs a `vouchsafe` command that prints JSON.
fn ask_json(command: &mut Command) -> Result<Value> {
    let output = ask(command)?;
    let read = serde_json::from_slice(&output.stdout);
    read.with_context(|| format!("{command:?} printed no JSON:\n{}{}", text(&output.stdout), text(&output.stderr)))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
