//! Network namespaces and the links between them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::evidence;
use crate::process::{self, Process};

const NAMESPACES: &str = "/run/netns";

/// A network namespace with a name that no other test has; deleted when dropped, also by a panic.
///
/// Its loopback is up and IPv6 addresses are usable at once. Logs and captures live in [`Namespace::dir`].
pub struct Namespace {
    name: String,
    dir: Option<TempDir>,
}

impl Namespace {
    /// A new namespace; `role` is the part of its name that people read.
    pub fn new(role: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        ensure!(nix::unistd::geteuid().is_root(), "network namespaces need root: use `make test`, or sudo");
        SWEEP.call_once(sweep);
        let name = format!("vs-{}-{}-{role}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = TempDir::with_prefix(format!("{name}-")).context("a folder for logs and captures")?;
        host(["ip", "netns", "add", &name])?;
        let this = Self { name, dir: Some(dir) };
        this.ip("link set lo up")?;
        for group in ["all", "default"] {
            // Duplicate address detection and router discovery only add waiting and packets nobody asked for.
            for (key, value) in [("accept_dad", "0"), ("accept_ra", "0"), ("router_solicitations", "0")] {
                this.sysctl(&format!("net/ipv6/conf/{group}/{key}"), value)?;
            }
        }
        Ok(this)
    }

    /// The name that `ip netns` knows it by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it, as `nsenter --net=` and [`setns`] want it.
    pub fn path(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name)
    }

    /// Where its processes log and its captures go. Kept, and said where, if the test fails (see
    /// [`crate::test`]).
    pub fn dir(&self) -> &Path {
        self.dir.as_ref().expect("INVARIANT: taken on drop only").path()
    }

    /// `program`, to be run inside. Unlike under `ip netns exec`, the host's mounts (bpffs) stay visible, and the process
    /// id is the program's own.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut net = std::ffi::OsString::from("--net=");
        net.push(self.path());
        let mut command = Command::new("nsenter");
        command.arg(net).arg("--").arg(program);
        command
    }

    /// Runs `[program, args…]` inside and returns its standard output; an error, with all it said, unless it succeeds.
    pub fn run<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Result<String> {
        process::output(&mut self.command_line(words)?).with_context(|| format!("in {}", self.name))
    }

    /// Runs `[program, args…]` inside, whatever comes of it.
    pub fn output<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Result<Output> {
        let mut command = self.command_line(words)?;
        command.stdin(std::process::Stdio::null()).output().with_context(|| format!("{command:?}"))
    }

    /// Starts `[program, args…]` inside; it ends when the [`Process`] is dropped.
    pub fn spawn<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Result<Process> {
        self.start(self.command_line(words)?)
    }

    /// Starts what [`Namespace::command`] has prepared.
    pub fn start(&self, command: Command) -> Result<Process> {
        Process::start(command, self.dir()).with_context(|| format!("in {}", self.name))
    }

    /// Runs `work` on a thread of its own that has entered the namespace. Sockets opened there stay in it.
    ///
    /// # Panics
    /// If `work` does.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.path()).expect("INVARIANT: the namespace lives as long as self");
        let inside = || {
            setns(&file, CloneFlags::CLONE_NEWNET).expect("whoever made the namespace may enter it");
            work()
        };
        let joined = std::thread::scope(|scope| {
            let name = std::thread::current().name().unwrap_or("namespace").to_owned();
            std::thread::Builder::new().name(name).spawn_scoped(scope, inside).expect("a thread").join()
        });
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// `ip WORDS…` inside.
    pub fn ip(&self, words: &str) -> Result<String> {
        host(["ip", "-n", &self.name].into_iter().chain(words.split_whitespace()))
    }

    /// Gives `device` the addresses (with prefix length) that stand in `addresses`, separated by spaces.
    pub fn address(&self, device: &str, addresses: &str) -> Result<()> {
        for address in addresses.split_whitespace() {
            let at_once = if address.contains(':') { "nodad" } else { "" };
            self.ip(&format!("address add {address} dev {device} {at_once}"))?;
        }
        Ok(())
    }

    /// Routes `destination` (a prefix or `default`) through the neighbour `via`.
    pub fn route(&self, destination: &str, via: &str) -> Result<()> {
        let family = if via.contains(':') { "-6" } else { "-4" };
        self.ip(&format!("{family} route replace {destination} via {via}")).map(drop)
    }

    /// Forwards packets from now on, IPv4 and IPv6.
    pub fn forward(&self) -> Result<()> {
        self.sysctl("net/ipv4/ip_forward", "1")?;
        self.sysctl("net/ipv6/conf/all/forwarding", "1")
    }

    /// Sets the variable below /proc/sys, for instance `net/ipv4/tcp_syncookies`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        // /proc/sys/net shows the namespace of the thread that looks.
        self.enter(|| fs::write(Path::new("/proc/sys").join(key), value))
            .with_context(|| format!("{key}={value} in {}", self.name))
    }

    /// Switches an offload of `device`, for instance `tx` (checksums): with it on, what comes out of a veth carries
    /// partial checksums.
    pub fn offload(&self, device: &str, feature: &str, on: bool) -> Result<()> {
        self.run(["ethtool", "-K", device, feature, if on { "on" } else { "off" }]).map(drop)
    }

    /// The hardware address of `device`.
    pub fn mac(&self, device: &str) -> Result<[u8; 6]> {
        let shown = self.ip(&format!("-o link show dev {device}"))?;
        let mut words = shown.split_whitespace().skip_while(|word| *word != "link/ether").skip(1);
        parse_mac(words.next().with_context(|| format!("{device} has no hardware address"))?)
    }

    fn command_line<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Result<Command> {
        let mut words = words.into_iter();
        let mut command = self.command(words.next().context("no command")?);
        command.args(words);
        Ok(command)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Daemons that left their parents behind; our own threads aren't listed, as only main threads are looked at.
        let left = host(["ip", "netns", "pids", &self.name]).unwrap_or_default();
        for pid in
            left.lines().filter_map(|pid| pid.trim().parse().ok()).filter(|pid| *pid != nix::unistd::getpid().as_raw())
        {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        if let Err(error) = host(["ip", "netns", "delete", &self.name]) {
            eprintln!("lab: {error:#}");
        }
        if let Some(dir) = self.dir.take() {
            evidence::leave(dir);
        }
    }
}

/// Reads a hardware address with colons.
pub fn parse_mac(text: &str) -> Result<[u8; 6]> {
    let mut mac = [0; 6];
    hex::decode_to_slice(text.replace(':', ""), &mut mac)
        .with_context(|| format!("`{text}` is no hardware address"))?;
    Ok(mac)
}

/// Joins `a_device` in `a` and `b_device` in `b` by a cable, up, each end with its addresses (see
/// [`Namespace::address`]). It goes when either namespace does.
pub fn veth(
    a: &Namespace,
    a_device: &str,
    a_addresses: &str,
    b: &Namespace,
    b_device: &str,
    b_addresses: &str,
) -> Result<()> {
    let (a_name, b_name) = (a.name(), b.name());
    host(
        format!("ip link add name {a_device} netns {a_name} type veth peer name {b_device} netns {b_name}")
            .split_whitespace(),
    )?;
    for (end, device, addresses) in [(a, a_device, a_addresses), (b, b_device, b_addresses)] {
        end.ip(&format!("link set {device} up"))?;
        end.address(device, addresses)?;
    }
    Ok(())
}

/// Deletes namespaces of test processes that ended without a chance to.
fn sweep() {
    for entry in fs::read_dir(NAMESPACES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("vs-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = host(["ip", "netns", "delete", &name]);
        }
    }
}

fn host<A: AsRef<OsStr>>(words: impl IntoIterator<Item = A>) -> Result<String> {
    let mut words = words.into_iter();
    let Some(program) = words.next() else { bail!("no command") };
    process::output(Command::new(program).args(words))
}
