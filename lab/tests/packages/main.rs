//! The packages, of the program under test: a Debian package in a Debian system, and an image's content as the only root.

mod arm64;
mod image;
mod sbom;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::package::package;
use lab::service::{call, exchange};
use lab::world::{Agent, Authority, ECHO, FRONT4, Network, SOON, Services, Verifier, Way, policy};
use lab::{Rootfs, World, process, test};
use tempfile::TempDir;

/// How long to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(400);
/// Files that package managers keep about packages and caches, which differ after any installation, and those that the
/// test's own `systemd-analyze` leaves.
const OWN: [&str; 9] = [
    "/var/lib/dpkg",
    "/var/lib/apt",
    "/var/cache",
    "/var/log",
    "/etc/ld.so.cache",
    "/proc",
    "/sys",
    "/dev",
    "/run/systemd",
];

fn echo() -> SocketAddr {
    format!("{FRONT4}:{ECHO}").parse().expect("an address")
}

/// Starts the world with these programs as verifier and agent.
fn world(verifier: PathBuf, agent: PathBuf) -> Result<World> {
    let network = Network::new(Way::Nat)?;
    let services = Services::start(&network)?;
    let authority = Authority::start(&network.authority, &policy("5m"))?;
    let verifier = Verifier::start_program(verifier, &network.server, &authority, &[])?;
    let agent = Agent::start_program(agent, &network.alice)?;
    let world = World { agent, verifier, authority, services, network };
    world.agent.login(&world.authority, "alice")?;
    Ok(world)
}

fn is_protected(world: &World) -> bool {
    call(&world.network.mallory, echo(), QUIET).is_err()
}

/// Returns every file of a system with its size; of those that list users, the content.
fn files(system: &Rootfs) -> Result<BTreeMap<String, String>> {
    let listing =
        process::output(Command::new("find").arg(system.path()).args(["-xdev", "-printf", "/%P %y %m %s\n"]))?;
    let mut files = BTreeMap::new();
    for line in listing.lines() {
        let (path, rest) = line.split_once(' ').context("find printed no size")?;
        let temporary = std::env::temp_dir();
        if OWN.iter().any(|own| path.starts_with(own)) || path.starts_with(&*temporary.to_string_lossy()) {
            continue;
        }
        // A folder's size depends on what was once in it; user management leaves a copy of each file with another name.
        let content = match path {
            "/etc/passwd" | "/etc/group" | "/etc/shadow" | "/etc/gshadow" => {
                fs::read_to_string(system.path().join(path.trim_start_matches('/')))?
            }
            _ if path.starts_with("/etc/") && path.ends_with('-') => continue,
            "/etc/.pwd.lock" => continue,
            _ if rest.starts_with('d') => "a folder".to_owned(),
            _ => rest.to_owned(),
        };
        files.insert(path.to_owned(), content);
    }
    Ok(files)
}

fn apt(system: &Rootfs, words: &[&str]) -> Result<String> {
    let mut apt = system.command("env");
    apt.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-o", "Dpkg::Use-Pty=0"]);
    process::output(apt.args(words))
}

#[test]
fn a_package_is_installed_upgraded_while_flows_go_on_and_purged_without_a_trace() {
    test(|| {
        let (system, out) = (Rootfs::debian()?, TempDir::with_prefix("vouchsafe-packages-")?);
        let before = files(&system)?;
        let first = package("deb", 1, out.path())?;
        let again = package("deb", 1, &out.path().join("again"))?;
        ensure!(fs::read(&first)? == fs::read(again)?, "two packages of the same program differ");
        let second = package("deb", 2, out.path())?;

        apt(&system, &["install", "--no-install-recommends", &first.display().to_string()])?;
        ensure!(system.run(&["vouchsafe", "--version"])?.starts_with("vouchsafe "));
        ensure!(system.run(&["dpkg", "--verify", "vouchsafe"])?.is_empty(), "files differ from the package's");
        ensure!(system.run(&["getent", "passwd", "vouchsafe"])?.contains("/usr/sbin/nologin"), "no user");
        for path in [
            "usr/share/man/man1/vouchsafe-verifier-run.1.gz",
            "usr/share/bash-completion/completions/vouchsafe",
            "usr/share/zsh/vendor-completions/_vouchsafe",
            "usr/share/fish/vendor_completions.d/vouchsafe.fish",
            "usr/share/doc/vouchsafe/sbom.cdx.json.gz",
        ] {
            ensure!(system.path().join(path).exists(), "no {path}");
        }
        let units = system.run(&["sh", "-c", "ls /usr/lib/systemd/system/vouchsafe-*.service"])?;
        ensure!(units.lines().count() == 6, "{units}");
        let mut check = system.command("systemd-analyze");
        check.args(["verify", "--man=no"]).args(units.lines());
        let said = check.output().context("systemd-analyze")?;
        ensure!(said.status.success() && said.stderr.is_empty(), "{}", String::from_utf8_lossy(&said.stderr));

        let program = system.program("vouchsafe", "/usr/bin/vouchsafe")?;
        let mut world = world(program.clone(), program)?;
        let mut flow = call(&world.network.alice, echo(), SOON)?;
        ensure!(is_protected(&world), "mallory got in");
        let settings = system.path().join("etc/vouchsafe/agent.toml");
        let edited = fs::read_to_string(&settings)? + "default = \"allow\"\n";
        fs::write(&settings, &edited)?;

        apt(&system, &["install", "--no-install-recommends", &second.display().to_string()])?;
        let version = system.run(&["dpkg-query", "--show", "--showformat=${Version}", "vouchsafe"])?;
        ensure!(version.ends_with("-2"), "{version}");
        ensure!(fs::read_to_string(&settings)? == edited, "the upgrade changed a file that somebody had edited");
        exchange(&mut flow).context("the flow, once the files are new")?;
        // The package restarts daemons by systemd, which does not run here.
        world.verifier.kill()?;
        exchange(&mut flow).context("the flow, without a verifier daemon")?;
        ensure!(is_protected(&world), "mallory got in without a verifier daemon");
        world.verifier.run(&[])?;
        world.agent.kill()?;
        world.agent.run()?;
        exchange(&mut flow).context("the flow, with the new daemons")?;
        call(&world.network.alice, echo(), SOON).context("a new flow, with the new daemons")?;
        ensure!(is_protected(&world), "mallory got in with the new daemons");

        let Err(refused) = apt(&system, &["remove", "vouchsafe"]) else { bail!("removed beside a running agent") };
        let refused = format!("{refused:#}");
        ensure!(refused.contains("is still in the kernel"), "{refused}");
        ensure!(system.run(&["vouchsafe", "--version"]).is_ok(), "the program is gone");
        world.agent.kill()?;
        apt(&system, &["purge", "vouchsafe"])?;
        ensure!(!is_protected(&world), "removal left protection that nobody can end");
        let after = files(&system)?;
        let left: Vec<_> = after.iter().filter(|(path, content)| before.get(*path) != Some(content)).collect();
        ensure!(left.is_empty(), "purge left {left:?}");
        let lost: Vec<_> = before.keys().filter(|path| !after.contains_key(*path)).collect();
        ensure!(lost.is_empty(), "purge removed {lost:?}");
        Ok(())
    });
}
