//! Debian machines that boot. In each of them, systemd runs as process 1. A machine has its own mounts, processes, host
//! name, control groups and BPF file system, and uses the network of a [`Namespace`]. It shares only the kernel with
//! the host.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use crate::net::Namespace;
use crate::poll;
use crate::process::{self, Process};
use crate::rootfs::Rootfs;
use crate::terminal::Terminal;

/// Time that a machine has to boot.
const BOOT: Duration = Duration::from_secs(120);
/// Units that would set up the host's kernel, that need hardware, or that start jobs from time to time.
const MASKED: [&str; 11] = [
    "systemd-sysctl.service",
    "systemd-modules-load.service",
    "systemd-remount-fs.service",
    "timers.target",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
];

/// A booted machine. Dropping it ends all its processes and removes its files.
pub struct Machine {
    name: String,
    /// The program that started process 1. It ends when process 1 ends.
    boot: Process,
    /// The process id of process 1, as the host numbers processes.
    init: u32,
    cgroup: PathBuf,
    root: Rootfs,
    /// The folder for logs.
    dir: PathBuf,
}

impl Machine {
    /// Boots a Debian system of this machine's release in the network of `network`, and waits until it is up.
    pub fn boot(name: &str, network: &Namespace) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = (u128::from(std::process::id()) << 32) + u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) + 1;
        let root = Rootfs::debian()?;
        let etc = root.path().join("etc");
        fs::write(etc.join("hostname"), format!("{name}\n"))?;
        // Without an identity, systemd takes this for the first boot, and enables every unit.
        fs::write(etc.join("machine-id"), format!("{number:032x}\n"))?;
        for unit in MASKED {
            let link = etc.join("systemd/system").join(unit);
            let _ = fs::remove_file(&link);
            symlink("/dev/null", &link).with_context(|| link.display().to_string())?;
        }

        let dir = network.dir().to_owned();
        let (script, pid) = (dir.join(format!("{name}-boot.sh")), dir.join(format!("{name}.pid")));
        fs::write(&script, include_str!("machine/boot.sh"))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let cgroup = control_groups()?.join(format!("vouchsafe-lab-{number:x}"));
        fs::create_dir(&cgroup).with_context(|| format!("no control group for a machine: {}", cgroup.display()))?;
        let mut command = network.command(&script);
        command.arg("outer").arg(root.path()).arg(&cgroup).arg(&pid);
        let boot = match network.start(command) {
            Ok(boot) => boot,
            Err(error) => {
                let _ = fs::remove_dir(&cgroup);
                return Err(error);
            }
        };
        let mut this = Self { name: name.to_owned(), boot, init: 0, cgroup, root, dir };

        let mut up = false;
        let _ = poll(BOOT, || {
            let written = fs::read_to_string(&pid).ok().and_then(|text| text.trim().parse().ok());
            this.init = written.unwrap_or(0);
            up = this.init != 0 && this.run(&["systemctl", "is-active", "basic.target"]).is_ok();
            up || this.boot.exit().is_some()
        });
        ensure!(up, "{name} did not boot within {BOOT:?}:\n{}\n{}", this.boot.log(), this.journal());
        Ok(this)
    }

    /// Returns the folder that is the machine's root. Mounts of the machine are not visible there.
    pub fn path(&self) -> PathBuf {
        self.root.path()
    }

    /// Prepares `program` to run in the machine, as root and without a terminal.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.init));
        command.args(["--mount", "--pid", "--net", "--uts", "--ipc", "--", program]);
        command
    }

    /// Runs `[program, args…]` in the machine as root, and returns its standard output.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        let (program, arguments) = words.split_first().context("no program")?;
        process::output(self.command(program).args(arguments)).with_context(|| format!("on {}", self.name))
    }

    /// Starts a command line in a new terminal of the user `user`, in the user's home, as a login shell would.
    pub fn terminal(&self, user: &str, line: &str) -> Result<Terminal> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut command = self.command("env");
        command.args(["-i", &format!("--chdir=/home/{user}"), &format!("HOME=/home/{user}")]);
        command.args(["SHELL=/bin/bash", "TERM=dumb", &format!("USER={user}"), &format!("LOGNAME={user}")]);
        command.args(["LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/bin", "/usr/sbin/runuser", "-u", user, "--"]);
        command.args(["script", "--quiet", "--return", "--command", line, "/dev/null"]);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Terminal::start(command, line, &self.dir.join(format!("{}-terminal-{number}.log", self.name)))
    }

    /// Returns the end of the machine's log.
    pub fn journal(&self) -> String {
        match self.init {
            0 => String::new(),
            _ => self.run(&["journalctl", "--no-pager", "--lines=200"]).unwrap_or_else(|error| format!("{error:#}")),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // If the test fails, the logs are kept.
        let _ = fs::write(self.dir.join(format!("{}.journal", self.name)), self.journal());
        let _ = self.boot.signal(Signal::SIGKILL);
        let _ = self.boot.wait(BOOT);
        if !poll(BOOT, || remove_group(&self.cgroup).is_ok()) {
            eprintln!("lab: could not remove {}", self.cgroup.display());
        }
    }
}

/// Returns the folder in which the host has mounted control groups of version 2.
fn control_groups() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = mounts.find(|words| words.get(2) == Some(&"cgroup2")).context("control groups v2 are not mounted")?;
    Ok(mount[1].into())
}

/// Removes a control group and the control groups in it. None of them may have processes.
fn remove_group(group: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_group(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}
