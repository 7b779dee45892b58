//! Members of an etcd cluster, one in each namespace.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::net::Namespace;
use crate::poll;
use crate::process::{self, Process};

/// Time that a member has to start or to end.
const SOON: Duration = Duration::from_secs(60);
const CLIENTS: u16 = 2379;
const PEERS: u16 = 2380;

/// A member of an etcd cluster: its process and its data.
pub struct Etcd {
    process: Option<Process>,
    name: String,
    address: String,
    net: PathBuf,
    dir: PathBuf,
    /// All members of the cluster, as etcd's own option `--initial-cluster` names them.
    all: String,
    flags: Vec<String>,
}

/// A member's answer about itself and its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// Whether the member is the leader.
    pub leads: bool,
    /// The number of the latest change.
    pub revision: i64,
    /// The size of the member's database in bytes.
    pub size: u64,
}

impl Etcd {
    /// Starts a cluster with one member in each of `places` (namespace and address of the member), and waits until the
    /// cluster works. Each member gets the additional `flags`.
    pub fn cluster(places: &[(&Namespace, &str)], flags: &[&str]) -> Result<Vec<Self>> {
        let named = places.iter().enumerate();
        let all: Vec<_> = named.map(|(at, (_, address))| format!("etcd{}=http://{address}:{PEERS}", at + 1)).collect();
        let member = |(at, (namespace, address)): (usize, &(&Namespace, &str))| {
            let mut this = Self {
                process: None,
                name: format!("etcd{}", at + 1),
                address: (*address).into(),
                net: namespace.path(),
                dir: namespace.dir().join("etcd-data"),
                all: all.join(","),
                flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            };
            this.launch()?;
            Ok(this)
        };
        let mut members = places.iter().enumerate().map(member).collect::<Result<Vec<_>>>()?;
        for member in &mut members {
            member.wait()?;
        }
        Ok(members)
    }

    /// Returns the URL at which clients reach the member.
    pub fn url(&self) -> String {
        format!("http://{}:{CLIENTS}", self.address)
    }

    /// Starts the member again after it has ended, and waits until it works.
    pub fn run(&mut self) -> Result<()> {
        self.launch()?;
        self.wait()
    }

    fn launch(&mut self) -> Result<()> {
        let mut command = self.inside("etcd");
        let [clients, peers] = [CLIENTS, PEERS].map(|port| format!("http://{}:{port}", self.address));
        command.args(["--name", &self.name, "--logger", "zap", "--data-dir"]).arg(&self.dir);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &self.all, "--initial-cluster-state", "new"]);
        // As docs/cluster.md recommends.
        command.args(["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"]);
        command.args(["--pre-vote", "--heartbeat-interval", "50", "--election-timeout", "500"]).args(&self.flags);
        let logs = self.dir.parent().context("the member's folder has no parent folder")?;
        self.process = Some(Process::start(command, logs)?);
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        let up = poll(SOON, || self.has_ended() || self.is_healthy());
        ensure!(up && !self.has_ended(), "{} does not run:\n{}", self.name, self.log());
        Ok(())
    }

    fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_none_or(|process| process.exit().is_some())
    }

    /// Reports whether the member can read and write. For this, it needs the majority of the members.
    pub fn is_healthy(&self) -> bool {
        self.ctl(&["endpoint", "health"]).is_ok()
    }

    /// Returns the member's answer about itself and its cluster.
    pub fn said(&self) -> Result<Said> {
        let text = self.ctl(&["endpoint", "status", "--write-out", "json"])?;
        let list: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        let status = &list[0]["Status"];
        let header = &status["header"];
        Ok(Said {
            leads: header["member_id"].is_u64() && header["member_id"] == status["leader"],
            revision: header["revision"].as_i64().with_context(|| text.clone())?,
            size: status["dbSize"].as_u64().with_context(|| text.clone())?,
        })
    }

    /// Runs `etcdctl WORDS…` for this member only, and returns its output.
    pub fn ctl(&self, words: &[&str]) -> Result<String> {
        let mut command = self.inside("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.url()]);
        process::output(command.args(["--dial-timeout", "2s", "--command-timeout", "5s"]).args(words))
    }

    /// Kills the member with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("this member of etcd does not run")?;
        process.signal(Signal::SIGKILL)?;
        process.wait(SOON).map(drop)
    }

    /// Sends the member a signal.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process.as_mut().context("this member of etcd does not run")?.signal(signal)
    }

    /// Returns the member's log since its last start.
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }

    fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.net.display())).arg("--").arg(program);
        command
    }
}
