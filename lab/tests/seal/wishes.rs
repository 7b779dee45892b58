//! Programs that ask for more than their rule demands, as a user without privileges, and get no less.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use lab::nobody::{NOBODY, Nobody, succeed};
use lab::world::{DARK4, DARK6, ECHO, FRONT4, SOON};
use lab::{Capture, Namespace, poll, test};

use crate::stage::{SIGNED, Stage, nothing_outside, readable};

const DSCP: u8 = 10;
const ASKED: &str = "encrypted, because its program set a DSCP";
const ALSO: &str = "encrypted, because its command was run so";
const NATIVE: &str = "in clear, because nobody asked";

/// Starts the stage with these flags of the agent. Mallory is logged in as a user of the machine, who has no privileges.
fn stage(flags: &[&str]) -> Result<Stage> {
    let stage = Stage::with("5m", "2m", flags)?;
    stage.agent.login_as(NOBODY, &stage.authority, "mallory")?;
    Ok(stage)
}

/// Opens a stream with this DSCP, as any program of any user can, and sends a text to its echo and back.
fn say(client: &Namespace, (host, port): (&str, u16), dscp: u8, text: &str) -> Result<()> {
    let mut stream = client.enter(|| -> Result<TcpStream> {
        // The thread alone becomes the user, and loses all capabilities: the library's function would change all threads.
        // SAFETY: these are numbers.
        let done = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        ensure!(done == 0 && !nix::unistd::geteuid().is_root(), "cannot become nobody");
        let socket = socket(dscp)?;
        nix::sys::socket::connect(socket.as_raw_fd(), &nix::sys::socket::SockaddrIn::from(four(host, port)))?;
        Ok(TcpStream::from(socket))
    })?;
    stream.set_read_timeout(Some(SOON))?;
    let mut heard = vec![0; text.len()];
    stream.write_all(text.as_bytes())?;
    stream.read_exact(&mut heard)?;
    ensure!(heard == text.as_bytes(), "another echo");
    Ok(())
}

fn four(host: &str, port: u16) -> std::net::SocketAddrV4 {
    std::net::SocketAddrV4::new(host.parse().expect("an address"), port)
}

fn socket(dscp: u8) -> Result<std::os::fd::OwnedFd> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::Ipv4Tos, &i32::from(dscp << 2))?;
    Ok(socket)
}

fn native(cable: &Capture) -> Result<usize> {
    Ok(cable.lines(&format!("tcp and (host {DARK4} or host {DARK6})"))?.len())
}

/// Returns the number of cgroups that the agent has made for commands of this process.
fn wish_cgroups() -> Result<usize> {
    let unified = Path::new("/sys/fs/cgroup/unified");
    let root = if unified.is_dir() { unified } else { Path::new("/sys/fs/cgroup") };
    let own = std::fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).context("this process has no cgroup2")?;
    let entries = std::fs::read_dir(root.join(own))?.flatten();
    Ok(entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("vouchsafe-treatment-")).count())
}

#[test]
fn a_program_asks_for_encryption_by_dscp_and_another_by_vouchsafe_run() {
    test(|| {
        let stage = stage(&["--treatment", "dscp:10=encrypt"])?;
        let (alice, cable) = (&stage.network.alice, stage.observe()?);
        say(alice, (DARK4, ECHO), DSCP, ASKED).context("by DSCP")?;
        ensure!(native(&cable)? == 0, "packets of a program that asked went native");
        // A command run with a treatment, and what it starts. It needs no privileges, not even those that a program of its
        // user could get: the agent's socket is everybody's.
        // There is no grant for this destination yet. So the agent sends the first packet again, from its own socket.
        let script = format!("echo '{ALSO}' | socat -t 5 - TCP6:[{DARK6}]:{ECHO}");
        let socket = stage.network.alice.dir().join("agent.sock");
        let nobody = Nobody::new(alice)?;
        let mut run = nobody.vouchsafe(["run", "--treatment", "encrypt", "--socket"]);
        let said = succeed(run.arg(&socket).args(["--", "sh", "-c", &format!("id -u; {script}")]))?;
        let said = said.strip_prefix(&format!("{NOBODY}\n")).with_context(|| format!("another user: {said:?}"))?;
        ensure!(said.trim() == ALSO, "the command said {said:?}");
        ensure!(native(&cable)? == 0, "packets of a command with a treatment went native");
        say(alice, (DARK4, ECHO), 0, NATIVE).context("without a wish")?;
        ensure!(native(&cable)? > 0, "a program that asked for nothing went into the tunnel");
        let read = readable(&cable.stop()?, &[ASKED, ALSO, NATIVE])?;
        ensure!(read == [NATIVE], "the path reads {read:?}");
        // The flows are Mallory's: none borrowed the grants of root, who is logged in as Alice.
        let flows = stage.verifier.flows()?;
        let to_echo = flows.iter().filter(|flow| flow["server"].as_str() == Some(&format!("{DARK4}:{ECHO}")));
        let people: BTreeSet<_> = to_echo.filter_map(|flow| flow["person"].as_str()).collect();
        ensure!(people == BTreeSet::from(["mallory"]), "flows of {people:?}: {flows:#?}");
        let gone = poll(SOON, || wish_cgroups().is_ok_and(|left| left == 0));
        ensure!(gone, "the command's cgroup is left behind");
        Ok(())
    });
}

#[test]
fn nobody_lowers_what_the_rule_demands() {
    test(|| {
        let low =
            ["--treatment", "dscp:10=authenticate", "--treatment", "dscp:12=none", "--treatment", "user:65534=none"];
        let stage = stage(&low)?;
        let (alice, cable) = (&stage.network.alice, stage.observe()?);
        say(alice, (FRONT4, ECHO), DSCP, ASKED).context("with a lower wish")?;
        say(alice, (FRONT4, ECHO), 12, ALSO).context("with a wish for nothing")?;
        say(alice, (FRONT4, SIGNED), DSCP, NATIVE).context("with the same wish")?;
        nothing_outside(&cable)?;
        let read = readable(&cable.stop()?, &[ASKED, ALSO, NATIVE])?;
        ensure!(read == [NATIVE], "the path reads {read:?}");
        Ok(())
    });
}
