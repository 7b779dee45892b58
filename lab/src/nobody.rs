//! A user without any privilege, in a namespace: uid 65534, with no capability, not even in the bounding set, and
//! without access to root's folders.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::keyring;
use crate::net::Namespace;
use crate::process::{self, Process};
use crate::world::{Authority, PASSWORD};

/// The uid of the user, and the gid of its group.
pub const NOBODY: u32 = 65534;

/// The unprivileged user, with a home folder. Dropping the user removes the folder, and the secrets of its sessions from
/// the kernel's keyring.
pub struct Nobody<'a> {
    namespace: &'a Namespace,
    home: TempDir,
}

impl Drop for Nobody<'_> {
    fn drop(&mut self) {
        // The descriptions of the keys contain the folder.
        keyring::forget(NOBODY, &self.home.path().to_string_lossy());
    }
}

impl<'a> Nobody<'a> {
    /// Creates a home folder with a copy of `vouchsafe` in it. The copied file is `$VOUCHSAFE_ROOTLESS_BIN` (for
    /// example a static build) or, if this variable is not set, the binary under test.
    pub fn new(namespace: &'a Namespace) -> Result<Self> {
        let home = TempDir::with_prefix("vouchsafe-nobody-").context("a home")?;
        let this = Self { namespace, home };
        let program = this.path("vouchsafe");
        // A debug build is large, so the copy omits its symbols.
        let built = std::env::var_os("VOUCHSAFE_ROOTLESS_BIN").map_or_else(crate::vouchsafe, PathBuf::from);
        process::output(Command::new("strip").arg("-o").arg(&program).arg(built))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        this.give("")?;
        Ok(this)
    }

    /// Returns the path of a file in the home.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Writes a file into the home, with the permissions `mode`. Returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, content).with_context(|| path.display().to_string())?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        self.give(name)?;
        Ok(path)
    }

    fn give(&self, name: &str) -> Result<()> {
        let path = if name.is_empty() { self.home.path().to_owned() } else { self.path(name) };
        chown(&path, Some(NOBODY), Some(NOBODY)).with_context(|| path.display().to_string())
    }

    /// Prepares a command that runs a program as the user.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.namespace.command("setpriv");
        let id = NOBODY.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
        command.arg("--").arg(program).current_dir(self.home.path()).env_clear().stdin(Stdio::null());
        command.env("HOME", self.home.path()).env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        command.env("VOUCHSAFE_AGENT_SOCKET", self.path("no-agent.sock"));
        command
    }

    /// Prepares the command `vouchsafe WORDS`, run as the user.
    pub fn vouchsafe<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.command(self.path("vouchsafe"));
        command.args(words);
        command
    }

    /// Prepares the command `vouchsafe run -- WORDS`, run as the user.
    pub fn supervised<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.vouchsafe(["run", "--"]);
        command.args(words);
        command
    }

    /// Runs `vouchsafe login` as the user, for `person`. The session is stored in the user's home, because the user has
    /// no agent. Returns the command's output.
    pub fn login(&self, authority: &Authority, person: &str) -> Result<String> {
        let ca = self.write("ca.pem", fs::read(authority.ca())?, 0o644)?;
        let password = self.write("password", PASSWORD, 0o600)?;
        let mut login =
            self.vouchsafe(["login", "--authority", &authority.url(), "--user", person, "--password-stdin"]);
        login.arg("--device").arg("laptop").arg("--ca").arg(ca).stdin(fs::File::open(password)?);
        let output = login.output().context("vouchsafe login")?;
        ensure!(output.status.success(), "{person} can't log in: {}", said(&output));
        Ok(said(&output))
    }

    /// Starts a command that [`Self::command`] or a similar method prepared, and waits until it has printed `text`.
    pub fn start(&self, command: Command, text: &str) -> Result<Process> {
        let mut process = self.namespace.start(command)?;
        process.wait_for(text, crate::world::SOON)?;
        Ok(process)
    }

    /// Returns the path of the home folder.
    pub fn home(&self) -> &Path {
        self.home.path()
    }
}

/// Returns the exit status of a program, and its standard output and standard error.
pub fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}: {out}{err}", output.status)
}

/// Runs a command and returns its standard output. Fails if the command fails.
pub fn succeed(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", said(&output));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
