//! Vouchsafe's client without root: `vouchsafe run` of a program that opens sockets and passes them to the
//! measurements.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lab::nobody::NOBODY;
use tempfile::TempDir;

use crate::scene::{End, Scene};
use crate::workshop::Steps;

/// The name of the program that `vouchsafe run` starts.
const BROKER: &str = "vouchsafe-compare";

/// The user's home, with copies of the programs, because root's folders are closed to it.
struct Home(TempDir);

/// Returns the path of the program that passes sockets: this program, or the program that cargo built beside a test.
/// Returns `None` if there is no such program.
pub fn broker() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    let dirs = this.ancestors().skip(1).take(2);
    dirs.map(|dir| dir.join(BROKER)).find(|path| path.is_file())
}

/// Makes a home for the unprivileged user, with the programs that this user runs, and sets [`Scene::broker`] to a
/// socket in this home.
///
/// # Errors
/// Fails if the home can't be made, or a program can't be copied.
pub fn home(scene: &mut Scene) -> Result<()> {
    let dir =
        TempDir::with_prefix("vouchsafe-compare-home-").context("cannot make a home for the user without root")?;
    give(dir.path(), 0o700)?;
    let broker = broker().context("the program vouchsafe-compare is missing in the folder of this program")?;
    for (from, name) in [(lab::vouchsafe(), "vouchsafe"), (broker, BROKER)] {
        let to = dir.path().join(name);
        fs::copy(&from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        give(&to, 0o755)?;
    }
    scene.broker = Some(dir.path().join("broker.sock"));
    scene.hold(End::Client, Home(dir));
    Ok(())
}

fn give(path: &Path, mode: u32) -> Result<()> {
    chown(path, Some(NOBODY), Some(NOBODY)).with_context(|| path.display().to_string())?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(|| path.display().to_string())
}

/// Logs the user in and starts the program that passes sockets.
///
/// # Errors
/// Fails if the login fails, or if [`home`] has not made a home yet.
pub fn start(scene: &mut Scene, url: &str, name: &str, password: &str) -> Result<()> {
    let home = scene
        .held::<Home>(End::Client)
        .map(|home| home.0.path().to_owned())
        .context("the user without root has no home folder yet")?;
    let ca = scene.path(End::Client, "ca.pem");
    for (file, text, mode) in [("ca.pem", fs::read(&ca)?, 0o644), ("password", password.into(), 0o600)] {
        let path = home.join(file);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        give(&path, mode)?;
    }
    let home = home.display();
    // No privilege at all, not even in the bounding set.
    let user = format!(
        "setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --inh-caps=-all --bounding-set=-all -- env -i HOME={home} \
         PATH=/usr/bin:/bin VOUCHSAFE_AGENT_SOCKET={home}/no-agent.sock"
    );
    let login = format!(
        "cd {home} && exec {user} {home}/vouchsafe login --authority {url} --user {name} --device laptop --password-stdin --ca \
         {home}/ca.pem < {home}/password"
    );
    let output = scene.namespace(End::Client).output(["sh", "-c", &login])?;
    ensure!(output.status.success(), "cannot log in without root: {}", lab::nobody::said(&output));
    scene.count(End::Client, Steps { commands: 1, ..Steps::default() });
    scene.daemon(End::Client, &format!("{user} {home}/vouchsafe run -- {home}/{BROKER} broker {home}/broker.sock"))
}
