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
use tempfile::{NamedTempFile, TempDir};

use crate::evidence;
use crate::process::{self, Process};

const NAMESPACES: &str = "/run/netns";

/// A network namespace with a unique name. Dropping the value deletes the namespace, also after a panic.
///
/// Its loopback device is up, and IPv6 addresses are usable at once. Logs and captures are stored in
/// [`Namespace::dir`].
pub struct Namespace {
    name: String,
    dir: Option<TempDir>,
}

impl Namespace {
    /// Creates a namespace; `role` is the readable part of its name.
    pub fn new(role: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        ensure!(nix::unistd::geteuid().is_root(), "network namespaces need root: use `make test`, or sudo");
        SWEEP.call_once(sweep);
        let name = format!("vs-{}-{}-{role}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = TempDir::with_prefix(format!("{name}-")).context("cannot create a folder for logs and captures")?;
        host(["ip", "netns", "add", &name])?;
        let this = Self { name, dir: Some(dir) };
        this.ip("link set lo up")?;
        for group in ["all", "default"] {
            // Duplicate address detection and router discovery would only add delays and unwanted packets.
            for (key, value) in [("accept_dad", "0"), ("accept_ra", "0"), ("router_solicitations", "0")] {
                this.sysctl(&format!("net/ipv6/conf/{group}/{key}"), value)?;
            }
        }
        Ok(this)
    }

    /// Returns the name that `ip netns` uses.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the namespace's file, for `nsenter --net=` and [`setns`].
    pub fn path(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name)
    }

    /// Returns the folder of the processes' logs and of captures. If the test fails, the folder is kept and its path is
    /// printed (see [`crate::test`]).
    pub fn dir(&self) -> &Path {
        self.dir.as_ref().expect("INVARIANT: taken on drop only").path()
    }

    /// Prepares a command that runs `program` in the namespace. Unlike under `ip netns exec`, the program sees the
    /// host's mounts (such as bpffs), and the program has the process id of the started command.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut net = std::ffi::OsString::from("--net=");
        net.push(self.path());
        let mut command = Command::new("nsenter");
        command.arg(net).arg("--").arg(program);
        command
    }

    /// Runs `[program, args…]` in the namespace and returns its standard output. If the program fails, the error
    /// contains all its output.
    pub fn run<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Result<String> {
        process::output(&mut self.command_line(words)?).with_context(|| format!("in {}", self.name))
    }

    /// Runs `[program, args…]` in the namespace and returns its output and exit status, successful or not.
    pub fn output<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Result<Output> {
        let mut command = self.command_line(words)?;
        command.stdin(std::process::Stdio::null()).output().with_context(|| format!("{command:?}"))
    }

    /// Starts `[program, args…]` in the namespace. The program ends when the [`Process`] is dropped.
    pub fn spawn<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Result<Process> {
        self.start(self.command_line(words)?)
    }

    /// Starts a command prepared by [`Namespace::command`].
    pub fn start(&self, command: Command) -> Result<Process> {
        Process::start(command, self.dir()).with_context(|| format!("in {}", self.name))
    }

    /// Runs `work` on a new thread that has entered the namespace. Sockets opened there stay in the namespace.
    ///
    /// # Panics
    /// Panics if `work` panics.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.path()).expect("INVARIANT: the namespace lives as long as self");
        let inside = || {
            setns(&file, CloneFlags::CLONE_NEWNET).expect("a process that made the namespace may enter it");
            work()
        };
        let joined = std::thread::scope(|scope| {
            let name = std::thread::current().name().unwrap_or("namespace").to_owned();
            std::thread::Builder::new().name(name).spawn_scoped(scope, inside).expect("a thread").join()
        });
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs `ip WORDS…` in the namespace.
    pub fn ip(&self, words: &str) -> Result<String> {
        host(["ip", "-n", &self.name].into_iter().chain(words.split_whitespace()))
    }

    /// Assigns to `device` the `addresses` (with prefix lengths, separated by spaces).
    pub fn address(&self, device: &str, addresses: &str) -> Result<()> {
        self.batch(&assign(device, addresses))
    }

    /// Runs `ip LINE` in the namespace for each of the `lines`, in one process.
    fn batch(&self, lines: &str) -> Result<()> {
        let file = NamedTempFile::new()?;
        fs::write(&file, lines)?;
        let path = file.path().as_os_str();
        host([OsStr::new("ip"), "-n".as_ref(), self.name.as_ref(), "-batch".as_ref(), path])
            .map(drop)
            .with_context(|| format!("ip for these lines:\n{lines}"))
    }

    /// Routes `destination` (a prefix or `default`) through the neighbour `via`.
    pub fn route(&self, destination: &str, via: &str) -> Result<()> {
        let family = if via.contains(':') { "-6" } else { "-4" };
        self.ip(&format!("{family} route replace {destination} via {via}")).map(drop)
    }

    /// Enables the forwarding of IPv4 and IPv6 packets.
    pub fn forward(&self) -> Result<()> {
        self.sysctl("net/ipv4/ip_forward", "1")?;
        self.sysctl("net/ipv6/conf/all/forwarding", "1")
    }

    /// Sets a variable below /proc/sys, for instance `net/ipv4/tcp_syncookies`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        // /proc/sys/net shows the namespace of the thread that opens the file.
        self.enter(|| fs::write(Path::new("/proc/sys").join(key), value))
            .with_context(|| format!("cannot set {key}={value} in {}", self.name))
    }

    /// Makes TCP use CUBIC, or Reno where the machine does not allow CUBIC to network namespaces. The machine's own
    /// setting may be BBR, which sends by timers at a rate that it has estimated. On a path without a slow link, a
    /// measurement would then show BBR's timers, and not the path.
    pub fn use_loss_based_control(&self) -> Result<()> {
        let allowed = self.enter(|| fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control"))?;
        let control = if allowed.split_whitespace().any(|one| one == "cubic") { "cubic" } else { "reno" };
        self.sysctl("net/ipv4/tcp_congestion_control", control)
    }

    /// Turns an offload of `device` on or off, for instance `tx` (checksums). While `tx` is on, packets leave a veth
    /// with partial checksums.
    pub fn offload(&self, device: &str, feature: &str, on: bool) -> Result<()> {
        self.run(["ethtool", "-K", device, feature, if on { "on" } else { "off" }]).map(drop)
    }

    /// Returns the hardware address of `device`.
    pub fn mac(&self, device: &str) -> Result<[u8; 6]> {
        let shown = self.ip(&format!("-o link show dev {device}"))?;
        let mut words = shown.split_whitespace().skip_while(|word| *word != "link/ether").skip(1);
        parse_mac(words.next().with_context(|| format!("{device} has no hardware address"))?)
    }

    fn command_line<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Result<Command> {
        let mut words = words.into_iter();
        let mut command = self.command(words.next().context("there is no command to run")?);
        command.args(words);
        Ok(command)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Ends daemons that detached from their parents. `ip netns pids` looks at main threads only, so it does not
        // list this process's threads.
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

/// Parses a hardware address written with colons.
pub fn parse_mac(text: &str) -> Result<[u8; 6]> {
    let mut mac = [0; 6];
    hex::decode_to_slice(text.replace(':', ""), &mut mac)
        .with_context(|| format!("`{text}` is not a hardware address"))?;
    Ok(mac)
}

/// Connects `a_device` in `a` and `b_device` in `b` by a cable, brings both ends up and assigns their addresses (see
/// [`Namespace::address`]). Deleting either namespace deletes the cable.
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
        end.batch(&format!("link set {device} up\n{}", assign(device, addresses)))?;
    }
    Ok(())
}

/// Returns lines for `ip` that assign to `device` the `addresses`.
fn assign(device: &str, addresses: &str) -> String {
    let line = |address: &str| {
        let at_once = if address.contains(':') { "nodad" } else { "" };
        format!("address add {address} dev {device} {at_once}\n")
    };
    addresses.split_whitespace().map(line).collect()
}

/// Deletes namespaces left behind by test processes that were killed.
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
