//! Open vSwitch with its user-space datapath in a namespace. Its controller listens on the same host.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use crate::net::Namespace;
use crate::poll;
use crate::process::{Process, output};
use crate::world::{Network, SOON};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Address of a controller on the switch's own host.
pub const CONTROLLER: &str = "127.0.0.1:6653";

/// The host of a switch in the standard network, as in LS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// On the router. The switch's only port is Alice's cable.
    Router,
    /// On Alice's own machine. The switch's only port is the cable to the router.
    Client,
}

/// Name of the bridge that [`Switch::between`] makes, and of the host's interface to it.
pub const BRIDGE: &str = "lan-switch";

/// A running switch. Fields are declared in the order in which they are dropped.
pub struct Switch {
    daemon: Option<Process>,
    _database: Process,
    net: PathBuf,
    run: PathBuf,
}

impl Switch {
    /// Starts a switch that has no bridge yet. A namespace can run only one switch.
    pub fn start(namespace: &Namespace) -> Result<Self> {
        let run = namespace.dir().join("switch");
        std::fs::create_dir_all(&run)?;
        let (socket, file) = (run.join("db.sock"), run.join("conf.db"));
        output(Command::new("ovsdb-tool").arg("create").arg(&file).arg(SCHEMA))?;
        let mut command = in_run(namespace.command("ovsdb-server"), &run);
        command.arg(&file).arg(format!("--remote=punix:{}", socket.display())).arg(control(&run, "db"));
        let database = namespace.start(command)?;
        // The file is there a moment before the server listens.
        ensure!(poll(SOON, || UnixStream::connect(&socket).is_ok()), "no ovsdb-server:\n{}", database.log());
        let mut switch = Self { daemon: None, _database: database, net: namespace.path(), run };
        switch.vsctl(&["--no-wait", "init"])?;
        switch.run(namespace)?;
        Ok(switch)
    }

    /// Starts a switch through which all of Alice's packets go. Until the bridge [`BRIDGE`] has a controller, it
    /// forwards them by itself.
    pub fn between(network: &Network, at: Host) -> Result<Self> {
        let (host, port, addresses) = match at {
            Host::Router => (&network.router, "lan-alice", "10.1.0.254/24"),
            Host::Client => (&network.alice, "eth0", "10.1.0.1/24"),
        };
        let switch = Self::start(host)?;
        switch.add_bridge(BRIDGE)?;
        switch.add_port(host, BRIDGE, port)?;
        switch.settle(host, BRIDGE, addresses)?;
        match at {
            Host::Router => network.alice.offload("eth0", "tx", false)?,
            Host::Client => {
                network.alice.route("default", "10.1.0.254")?;
                network.router.offload("lan-alice", "tx", false)?;
            }
        }
        Ok(switch)
    }

    /// Adds a bridge. A controller sees each bridge as a switch of its own, and the namespace gets an interface of the
    /// bridge's name. Until the bridge has a controller, it learns addresses and forwards packets.
    pub fn add_bridge(&self, bridge: &str) -> Result<()> {
        let words = ["add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev", "protocols=OpenFlow13"];
        self.vsctl(&words).map(drop)
    }

    /// Sets the controller of a bridge, in the notation of `ovs-vsctl`. From then on the bridge drops packets that
    /// match no rule.
    pub fn set_controller(&self, bridge: &str, controller: &str) -> Result<()> {
        self.vsctl(&["set", "bridge", bridge, "fail-mode=secure"])?;
        let settings = ["connection-mode=out-of-band", "max_backoff=1000"];
        let words = ["set-controller", bridge, controller, "--", "set", "controller", bridge];
        self.vsctl(&[&words[..], &settings].concat()).map(drop)
    }

    /// Starts the switch, or starts it again after [`Self::kill`]. It then has none of its earlier rules.
    pub fn run(&mut self, namespace: &Namespace) -> Result<()> {
        let mut command = in_run(namespace.command("ovs-vswitchd"), &self.run);
        command.arg(format!("unix:{}", self.run.join("db.sock").display())).arg(control(&self.run, "vs"));
        command.args(["--disable-system", "--no-chdir"]);
        self.daemon = Some(namespace.start(command)?);
        Ok(())
    }

    /// Kills the switch with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        let mut daemon = self.daemon.take().context("the switch does not run")?;
        daemon.signal(Signal::SIGKILL)?;
        daemon.wait(SOON).map(drop)
    }

    /// Makes a device of the namespace a port of the bridge. The namespace itself no longer uses the device.
    pub fn add_port(&self, namespace: &Namespace, bridge: &str, device: &str) -> Result<()> {
        namespace.ip(&format!("address flush dev {device}"))?;
        // The user-space datapath gets copies of packets. The kernel would still answer ARP for the bridge's addresses,
        // and accept packets to them a second time.
        namespace.sysctl(&format!("net/ipv4/conf/{device}/arp_ignore"), "8")?;
        namespace.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "1")?;
        namespace.sysctl(&format!("net/ipv6/conf/{device}/disable_ipv6"), "1")?;
        self.vsctl(&["add-port", bridge, device]).map(drop)
    }

    /// Waits until the bridge exists, because the switch may just have started, and assigns it these addresses and no
    /// others.
    pub fn settle(&self, namespace: &Namespace, bridge: &str, addresses: &str) -> Result<()> {
        ensure!(poll(SOON, || namespace.mac(bridge).is_ok()), "no {bridge}");
        namespace.ip(&format!("address flush dev {bridge}"))?;
        namespace.ip(&format!("link set {bridge} up"))?;
        namespace.address(bridge, addresses)?;
        // The user-space datapath does not complete partial checksums.
        namespace.offload(bridge, "tx", false)
    }

    /// Waits until a bridge has a rule that sends packets up to a controller.
    pub fn wait_for_rules(&self, bridge: &str) -> Result<()> {
        let sends_up = |rules: Vec<String>| rules.iter().any(|rule| rule.contains("CONTROLLER"));
        ensure!(
            poll(SOON, || self.rules(bridge).is_ok_and(sends_up)),
            "{bridge} got no rules: {:?}",
            self.rules(bridge)
        );
        Ok(())
    }

    /// Returns a bridge's rules, as the switch prints them.
    pub fn rules(&self, bridge: &str) -> Result<Vec<String>> {
        let mut command = self.command("ovs-ofctl");
        let management = format!("unix:{}", self.run.join(format!("{bridge}.mgmt")).display());
        command.args(["-O", "OpenFlow13", "dump-flows", &management]);
        let text = output(&mut command)?;
        Ok(text.lines().filter(|line| line.contains("cookie=")).map(str::to_owned).collect())
    }

    /// Returns the number of packets that the bridge's present rules have sent up to the controller.
    pub fn packets_up(&self, bridge: &str) -> Result<u64> {
        let rules = self.rules(bridge)?;
        rules.iter().filter(|rule| rule.contains("CONTROLLER")).map(|rule| packets(rule)).sum()
    }

    /// Returns the output of `ovs-vsctl` with these arguments.
    pub fn vsctl(&self, words: &[&str]) -> Result<String> {
        let database = format!("--db=unix:{}", self.run.join("db.sock").display());
        output(self.command("ovs-vsctl").arg(database).arg("--timeout=10").args(words))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.net.display())).arg("--").arg(program);
        in_run(command, &self.run)
    }
}

/// Returns the number of packets that a rule, as the switch prints it, has matched.
pub fn packets(rule: &str) -> Result<u64> {
    let count = rule.split("n_packets=").nth(1).and_then(|rest| rest.split(',').next());
    count.and_then(|count| count.parse().ok()).with_context(|| format!("no count of packets in {rule}"))
}

fn in_run(mut command: Command, run: &Path) -> Command {
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"] {
        command.env(variable, run);
    }
    command
}

fn control(run: &Path, program: &str) -> String {
    format!("--unixctl={}", run.join(format!("{program}.ctl")).display())
}
