//! Checks of the host as a whole: kernel, privileges, programs, pins.

use crate::Check;
use anyhow::{Error, Result};
use datapath::agent::Agent;
use datapath::hook::Hook;
use datapath::probe::Probe;
use datapath::tc::{self, supported_attachment};
use datapath::verifier::{Sizes, Verifier};
use datapath::{Pins, bpf_file_system_is_mounted};
use std::fs;
use std::path::Path;
use wire::map::VerifierConfig;

/// Numbers (from linux/capability.h) and names of the required capabilities.
const CAPABILITIES: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];
/// The capability that includes CAP_PERFMON and CAP_BPF.
const CAP_SYS_ADMIN: u32 = 21;
/// Minimal sizes of the tables: nothing is stored in them.
const SMALL: Sizes = Sizes { flows: 16, grants: 16, accounts: 16, replay_buckets: 64, revoked: 16, pairs: 1 };

pub(crate) fn kernel() -> Check {
    version(tc::kernel_version())
}

fn version((major, minor): (u32, u32)) -> Check {
    let found = format!("Linux {major}.{minor}");
    if (major, minor) >= (6, 1) {
        Check::ok("kernel", found)
    } else {
        Check::missing("kernel", found, "boot Linux 6.1 or later: older kernels cannot verify the programs")
    }
}

pub(crate) fn rights() -> Check {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lacking = lacking(&status);
    if lacking.is_empty() {
        Check::ok("rights", "may load and attach programs")
    } else {
        let found = format!("missing {}: programs and interfaces cannot be tested", lacking.join(", "));
        Check::missing("rights", found, "run it as root; the daemons get their capabilities from their systemd units")
    }
}

/// Returns the capabilities that a process with this /proc/PID/status lacks.
fn lacking(status: &str) -> Vec<&'static str> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let has = |bit: u32| effective & 1 << bit != 0;
    let lacks = |bit| !(has(bit) || bit > CAP_SYS_ADMIN && has(CAP_SYS_ADMIN));
    CAPABILITIES.iter().filter(|(bit, _)| lacks(*bit)).map(|(_, name)| *name).collect()
}

/// Checks whether this kernel accepts BPF programs, compiles them, and accepts Vouchsafe's.
pub(crate) fn programs(probe: &Result<Probe>) -> Vec<Check> {
    let probe = match probe {
        Ok(probe) => probe,
        Err(error) => {
            let remedy = "boot a kernel with CONFIG_BPF_SYSCALL; in a container, let it use bpf(2)";
            return vec![Check::missing("bpf", why(error), remedy)];
        }
    };
    let interpreted = |found: String| Check::warn("bpf", found, "compile programs: `sysctl net.core.bpf_jit_enable=1`");
    vec![
        match probe.is_compiled() {
            Ok(true) => Check::ok("bpf", "programs load and are compiled"),
            Ok(false) => interpreted("programs load but are interpreted, many times slower".to_owned()),
            Err(error) => interpreted(why(&error)),
        },
        loads("verifier (xdp)", Verifier::load(Hook::Xdp, VerifierConfig::default(), SMALL, None)),
        loads("verifier (tc)", Verifier::load(Hook::Tc, VerifierConfig::default(), SMALL, None)),
        loads("agent", Agent::load(14, false, supported_attachment(), None)),
    ]
}

fn loads<T>(role: &'static str, loaded: Result<T>) -> Check {
    match loaded {
        Ok(_) => Check::ok(role, "the kernel accepts its programs"),
        Err(error) => {
            let remedy = "see the kernel's messages: `sudo VOUCHSAFE_LOG=libbpf=debug vouchsafe doctor`";
            Check::missing(role, why(&error), remedy)
        }
    }
}

/// Formats an error in one line: the failed operation, and the root cause.
pub(crate) fn why(error: &Error) -> String {
    let first = |text: String| text.lines().next().unwrap_or_default().to_owned();
    let (what, cause) = (first(error.to_string()), first(error.root_cause().to_string()));
    if what == cause { what } else { format!("{what}: {cause}") }
}

/// Checks for the kernel's type information (BTF). Vouchsafe's programs contain their own types. The verifier also
/// needs the kernel's type information, to know the layout of the kernel's sockets.
pub(crate) fn btf() -> Check {
    let there = Path::new("/sys/kernel/btf/vmlinux").exists();
    Check::ok(
        "btf",
        if there {
            "there"
        } else {
            "absent; optional, but without it a verifier cannot look up connections in the kernel's sockets"
        },
    )
}

pub(crate) fn file_system() -> Check {
    if bpf_file_system_is_mounted() {
        return Check::ok("bpffs", "mounted at /sys/fs/bpf");
    }
    let remedy = "`mount -t bpf bpf /sys/fs/bpf` before the units start; systemd does so at boot";
    Check::warn("bpffs", "not mounted at /sys/fs/bpf", remedy)
}

/// Checks the requirements of sealed tunnels on an agent's host. There must be a driver for their device, and the
/// reverse path filter must accept the packets that come out of the device.
pub(crate) fn tunnels() -> Check {
    let filter = fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter").unwrap_or_default();
    tunnel_needs(Path::new("/dev/net/tun").exists(), filter.trim())
}

fn tunnel_needs(driver: bool, filter: &str) -> Check {
    if !driver {
        return Check::warn("tunnels", "no /dev/net/tun: no sealed tunnels", "load the driver: `modprobe tun`");
    }
    // Strict filtering for all interfaces cannot be turned off for one.
    if filter == "1" {
        let found = "net.ipv4.conf.all.rp_filter is 1: the kernel drops packets that come out of sealed tunnels";
        return Check::warn(
            "tunnels",
            found,
            "`sysctl net.ipv4.conf.all.rp_filter=2`, if sealed tunnels are used here",
        );
    }
    Check::ok("tunnels", "sealed tunnels can have a device, and the kernel accepts packets from it")
}

/// Checks for pins that daemons left in the kernel, and whether the daemons run.
pub(crate) fn pinned() -> Vec<Check> {
    Pins::all().iter().map(|pins| kept(&pins.name(), pins.holder(), &pins.links())).collect()
}

fn kept(name: &str, holder: Option<u32>, links: &[String]) -> Check {
    let (role, instance) = name.split_once('-').unwrap_or((name, ""));
    let links = match links {
        [] => String::new(),
        links => format!("; links: {}", links.join(" ")),
    };
    match holder {
        Some(process) => Check::ok("pinned", format!("{name}: its daemon is running, process {process}{links}")),
        None => Check::warn(
            "pinned",
            format!("{name}: no daemon is running{links}"),
            format!("start the daemon, or detach: `vouchsafe {role} detach --instance {instance}`"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    #[test]
    fn a_strict_filter_and_a_missing_driver_are_no_place_for_tunnels() {
        let state = |driver, filter| tunnel_needs(driver, filter).state;
        assert!(matches!(state(true, "0"), State::Ok) && matches!(state(true, "2"), State::Ok));
        assert!(matches!(state(true, "1"), State::Warn) && matches!(state(false, "0"), State::Warn));
    }

    #[test]
    fn kernels_before_6_1_are_too_old() {
        assert_eq!(version((5, 15)).state, State::Missing);
        assert_eq!(version((6, 1)), Check::ok("kernel", "Linux 6.1"));
        assert_eq!(version((7, 0)).state, State::Ok);
    }

    #[test]
    fn rights_are_capabilities() {
        assert_eq!(lacking("Name:\tx\nCapEff:\t000001ffffffffff\n"), [""; 0]);
        assert_eq!(lacking("CapEff:\t000000c000001000\n"), [""; 0], "exactly the three");
        assert_eq!(lacking("CapEff:\t0000000000201000\n"), [""; 0], "CAP_SYS_ADMIN stands for two");
        assert_eq!(lacking("CapEff:\t0000000000200000\n"), ["CAP_NET_ADMIN"]);
        assert_eq!(lacking("CapEff:\t0000000000000000\n").len(), 3);
        assert_eq!(lacking("").len(), 3);
    }

    #[test]
    fn what_outlived_its_daemon_can_be_let_go() {
        let running = kept("verifier-main", Some(42), &["eth0".to_owned()]);
        assert_eq!(running, Check::ok("pinned", "verifier-main: its daemon is running, process 42; links: eth0"));
        let left = kept("agent-a-b", None, &[]);
        assert_eq!(left.found, "agent-a-b: no daemon is running");
        assert!(left.remedy.is_some_and(|remedy| remedy.contains("`vouchsafe agent detach --instance a-b`")));
    }

    #[test]
    fn errors_are_told_in_a_line() {
        let error = Error::msg("Operation not permitted").context("libbpf").context("it does not load\nlong log");
        assert_eq!(why(&error), "it does not load: Operation not permitted");
        assert_eq!(why(&Error::msg("alone")), "alone");
    }
}
