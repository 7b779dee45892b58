//! Real members of etcd for tests, with data in a temporary folder. Every member ends when its [`Stage`] is dropped. It
//! also ends when the thread that started it ends, for example because the test was killed. So this thread has to live
//! as long as the stage.
//!
//! ```no_run
//! let stage = etcd::stage::Stage::start(etcd::stage::Plan::of(3))?;
//! let etcd = etcd::Etcd::connect(&stage.settings())?;
//! # anyhow::Ok(())
//! ```

mod certificates;

use crate::types::Settings;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time that a member has to become ready. A machine that is busy needs much of it.
const START_TIME: Duration = Duration::from_secs(60);
/// The line in a member's log that says that it has joined a cluster with a leader.
const READY: &str = "ready to serve client requests";

/// The members to start, and their settings.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The place where each member runs.
    pub places: Vec<Place>,
    /// Whether members and clients need certificates of the stage's CA (mTLS). If not, they use HTTP without TLS.
    pub tls: bool,
    /// Value of `--quota-backend-bytes`.
    pub quota_backend_bytes: Option<u64>,
    /// Values of `--auto-compaction-mode` and `--auto-compaction-retention`.
    pub auto_compaction: Option<(String, String)>,
    /// Further arguments for every member.
    pub arguments: Vec<String>,
}

/// The place where a member runs.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Prefix of the command line, such as `ip netns exec NAME`. The prefix must exec the command, as `ip netns exec`
    /// does. Otherwise, [`Stage::kill`] would kill the program of the prefix instead of the member.
    pub prefix: Vec<String>,
    /// Address for clients; if `None`, a free loopback address of this stage.
    pub client: Option<SocketAddr>,
    /// Address for the other members; if `None`, a free loopback address of this stage.
    pub peer: Option<SocketAddr>,
}

impl Plan {
    /// Returns a plan with this number of members, on unused loopback addresses.
    pub fn of(members: usize) -> Self {
        Self { places: vec![Place::default(); members], ..Self::default() }
    }
}

/// The running members of a test.
pub struct Stage {
    plan: Plan,
    folder: TempDir,
    members: Vec<Member>,
}

struct Member {
    client: SocketAddr,
    peer: SocketAddr,
    process: Option<Child>,
    /// Number of starts; each start has its own log.
    starts: u32,
}

impl Stage {
    /// Starts the members, and waits until all of them are ready.
    ///
    /// # Errors
    ///
    /// Fails if etcd is not installed, or if a member does not become ready within a minute.
    pub fn start(plan: Plan) -> Result<Self> {
        ensure!(!plan.places.is_empty(), "a stage needs at least one member");
        let folder = tempfile::Builder::new().prefix("etcd-").tempdir()?;
        // The members' addresses are in a random part of 127.0.0.0/8, so that stages of several tests use different
        // addresses. The kernel also gives no outgoing connection a member's address and port, even while the member is
        // down.
        let random = RandomState::new().build_hasher().finish().to_be_bytes();
        let members = plan.places.iter().zip(1..=200).map(|(place, number)| {
            let own = IpAddr::V4(Ipv4Addr::new(127, random[0] | 1, random[1], number));
            Member {
                client: place.client.unwrap_or_else(|| SocketAddr::new(own, 12379)),
                peer: place.peer.unwrap_or_else(|| SocketAddr::new(own, 12380)),
                process: None,
                starts: 0,
            }
        });
        let members = members.collect();
        let mut stage = Self { plan, folder, members };
        if stage.plan.tls {
            let mut addresses: Vec<_> =
                stage.members.iter().flat_map(|member| [member.client.ip(), member.peer.ip()]).collect();
            // Members check the address from which another member connects. Connections between loopback addresses come
            // from this one.
            addresses.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
            addresses.sort();
            addresses.dedup();
            certificates::write(stage.folder.path(), &addresses)?;
        }
        for member in 0..stage.members.len() {
            stage.restart(member)?;
        }
        for member in 0..stage.members.len() {
            stage.await_ready(member)?;
        }
        Ok(stage)
    }

    /// Returns the URLs for clients, in the order of the members.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("{}://{}", self.scheme(), member.client)).collect()
    }

    /// Returns the settings with which a client can use all members.
    pub fn settings(&self) -> Settings {
        let file = |name: &str| self.plan.tls.then(|| self.path(name));
        Settings {
            endpoints: self.endpoints(),
            ca: file("ca.pem"),
            certificate: file("client.pem"),
            key: file("client-key.pem"),
        }
    }

    /// Returns the folder with the members' data, logs and certificates.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the process id of a member; `None` if the member was killed.
    pub fn pid(&self, member: usize) -> Option<u32> {
        self.members[member].process.as_ref().map(Child::id)
    }

    /// Kills a member with SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    ///
    /// Fails if the process can't be killed.
    pub fn kill(&mut self, member: usize) -> Result<()> {
        if let Some(mut process) = self.members[member].process.take() {
            process.kill().with_context(|| format!("cannot kill member {member} of etcd"))?;
            process.wait()?;
        }
        Ok(())
    }

    /// Starts a member that was killed, with the data that it had. Does not wait until the member is ready, because it
    /// may need the other members for this: see [`Self::await_ready`].
    ///
    /// # Errors
    ///
    /// Fails if the process can't be started, or runs already.
    pub fn restart(&mut self, member: usize) -> Result<()> {
        ensure!(self.members[member].process.is_none(), "member {member} of etcd runs already");
        self.members[member].starts += 1;
        let log = File::create(self.log_file(member))?;
        let mut command = self.command(member, "etcd");
        command.args(self.arguments(member)).stdout(log.try_clone()?).stderr(log);
        let process = command.spawn().context("cannot start etcd: `sh xtask/setup.sh test` installs it")?;
        self.members[member].process = Some(process);
        Ok(())
    }

    /// Waits until a member is ready to serve clients.
    ///
    /// # Errors
    ///
    /// Fails if the member ends, or is not ready within a minute. The error has the end of its log.
    pub fn await_ready(&mut self, member: usize) -> Result<()> {
        let end = Instant::now() + START_TIME;
        while !self.log(member).contains(READY) {
            let process = self.members[member].process.as_mut().context("the member was killed")?;
            let ended = process.try_wait()?;
            if ended.is_some() || Instant::now() > end {
                let log = self.log(member);
                let tail: Vec<_> = log.lines().rev().take(15).collect();
                let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
                bail!("member {member} of etcd is not ready ({ended:?}); its log ends with:\n{tail}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Returns the log of a member since its last start.
    pub fn log(&self, member: usize) -> String {
        std::fs::read(self.log_file(member)).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    /// Returns the member that reports itself as the leader; `None` if no running member does.
    pub fn leader(&self) -> Option<usize> {
        (0..self.members.len()).filter(|member| self.pid(*member).is_some()).find(|member| {
            let answer = self.etcdctl(*member, &["--command-timeout=2s", "endpoint", "status", "--write-out=json"]);
            let parsed = answer.ok().and_then(|answer| serde_json::from_str::<Value>(&answer).ok());
            let status = |status: &Value| {
                let status = status.get(0)?.get("Status")?;
                Some(status.get("header")?.get("member_id")?.as_u64()? == status.get("leader")?.as_u64()?)
            };
            parsed.as_ref().and_then(status) == Some(true)
        })
    }

    /// Runs etcdctl on the host of one member, against that member only, and returns its output.
    ///
    /// # Errors
    ///
    /// Fails if etcdctl fails; the error contains the messages of etcdctl.
    pub fn etcdctl(&self, member: usize, arguments: &[&str]) -> Result<String> {
        let mut command = self.command(member, "etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}://{}", self.scheme(), self.members[member].client));
        if self.plan.tls {
            let file = |name| self.path(name).display().to_string();
            command.arg(format!("--cacert={}", file("ca.pem")));
            command.arg(format!("--cert={}", file("client.pem")));
            command.arg(format!("--key={}", file("client-key.pem")));
        }
        let output = command.args(arguments).output().context("cannot start etcdctl")?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        ensure!(output.status.success(), "etcdctl {arguments:?}: {}", text(&output.stderr));
        Ok(text(&output.stdout))
    }

    /// Returns a command that runs at the place of a member. The kernel kills it when the thread that started it ends.
    fn command(&self, member: usize, program: &str) -> Command {
        let mut words: Vec<&str> = self.plan.places[member].prefix.iter().map(String::as_str).collect();
        words.extend(["setpriv", "--pdeathsig", "KILL", program]);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(std::process::Stdio::null());
        // Debian's etcd refuses to start on arm64 without this.
        if cfg!(target_arch = "aarch64") {
            command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
        }
        command
    }

    fn arguments(&self, member: usize) -> Vec<String> {
        let scheme = self.scheme();
        let Member { client, peer, .. } = &self.members[member];
        let peers = self.members.iter().enumerate();
        let peers: Vec<_> = peers.map(|(number, member)| format!("m{number}={scheme}://{}", member.peer)).collect();
        let mut arguments = vec![
            format!("--name=m{member}"),
            format!("--data-dir={}", self.path(&format!("data{member}")).display()),
            format!("--listen-client-urls={scheme}://{client}"),
            format!("--advertise-client-urls={scheme}://{client}"),
            format!("--listen-peer-urls={scheme}://{peer}"),
            format!("--initial-advertise-peer-urls={scheme}://{peer}"),
            format!("--initial-cluster={}", peers.join(",")),
            "--initial-cluster-state=new".to_owned(),
            "--heartbeat-interval=100".to_owned(),
            "--election-timeout=1000".to_owned(),
        ];
        if self.plan.tls {
            for kind in ["", "peer-"] {
                arguments.push(format!("--{kind}cert-file={}", self.path("server.pem").display()));
                arguments.push(format!("--{kind}key-file={}", self.path("server-key.pem").display()));
                arguments.push(format!("--{kind}trusted-ca-file={}", self.path("ca.pem").display()));
                arguments.push(format!("--{kind}client-cert-auth"));
            }
        }
        if let Some(bytes) = self.plan.quota_backend_bytes {
            arguments.push(format!("--quota-backend-bytes={bytes}"));
        }
        if let Some((mode, retention)) = &self.plan.auto_compaction {
            arguments.push(format!("--auto-compaction-mode={mode}"));
            arguments.push(format!("--auto-compaction-retention={retention}"));
        }
        arguments.extend(self.plan.arguments.iter().cloned());
        arguments
    }

    fn scheme(&self) -> &'static str {
        if self.plan.tls { "https" } else { "http" }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log_file(&self, member: usize) -> PathBuf {
        self.path(&format!("log{member}.{}", self.members[member].starts))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for member in 0..self.members.len() {
            // Nothing more can be done about a process that can't be killed.
            let _ = self.kill(member);
        }
    }
}
