//! The authority of the standard world.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::Value;
use wire::MasterKey;

use super::{AUTHORITY, AUTHORITY_NAME, SOON, ask, ask_json, text};
use crate::net::Namespace;
use crate::process::{self, Process};

/// The authority's HTTPS port.
pub const PORT: u16 = 8443;
/// Password of every account.
pub const PASSWORD: &str = "correct horse battery";

/// The authority of a scenario. It has the accounts `alice` and `mallory` unless the scenario chooses others.
pub struct Authority {
    process: Option<Process>,
    net: PathBuf,
    dir: PathBuf,
    address: String,
    /// Variables of the server's environment.
    variables: Vec<(String, OsString)>,
    program: PathBuf,
}

impl Authority {
    /// Creates an authority in `namespace` and runs it.
    pub fn start(namespace: &Namespace, policy: &str) -> Result<Self> {
        Self::start_with(namespace, policy, "")
    }

    /// Creates and runs an authority with additional lines in authority.toml.
    pub fn start_with(namespace: &Namespace, policy: &str, configuration: &str) -> Result<Self> {
        Self::make(namespace, policy, configuration, &["alice", "mallory"])
    }

    /// Creates and runs an authority without accounts, with additional lines in authority.toml. Its directory contains
    /// the client secret that [`crate::provider`] expects.
    pub fn without_accounts(namespace: &Namespace, policy: &str, configuration: &str) -> Result<Self> {
        Self::make(namespace, policy, configuration, &[])
    }

    /// Creates and runs an authority with additional lines in authority.toml and accounts for these people.
    pub fn make(namespace: &Namespace, policy: &str, configuration: &str, people: &[&str]) -> Result<Self> {
        let mut this = Self::at(namespace, AUTHORITY);
        this.command(
            &["init"],
            &["--name", AUTHORITY, "--name", AUTHORITY_NAME, "--listen", &format!("{AUTHORITY}:{PORT}")],
        )?;
        fs::write(this.dir.join("policy.toml"), policy)?;
        fs::write(this.dir.join("oidc.secret"), crate::provider::SECRET)?;
        let file = this.dir.join("authority.toml");
        fs::write(&file, fs::read_to_string(&file)? + configuration)?;
        for person in people {
            let file = this.password_file();
            this.command(&["user", "add"], &[person, "--password-file", &file.to_string_lossy()])?;
        }
        this.run()?;
        Ok(this)
    }

    /// Returns the authority at `address` in `namespace`. The caller has to create its directory. The authority does
    /// not run yet.
    pub fn at(namespace: &Namespace, address: &str) -> Self {
        let dir = namespace.dir().join("authority-state");
        let (net, variables, program) = (namespace.path(), Vec::new(), crate::vouchsafe());
        let this = Self { process: None, net, dir, address: address.into(), variables, program };
        if let Err(error) = fs::write(this.password_file(), PASSWORD) {
            eprintln!("lab: {}: {error}", this.password_file().display());
        }
        this
    }

    /// Returns the authority's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the URL that clients use.
    pub fn url(&self) -> String {
        format!("https://{}:{PORT}", self.address)
    }

    /// Returns the path of the CA certificate that clients trust.
    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// Returns the paths of the certificate for the authority's address and of its private key.
    pub fn certificate(&self) -> (PathBuf, PathBuf) {
        (self.dir.join("tls.pem"), self.dir.join("tls.key"))
    }

    /// Makes the authority check all sessions with the identity provider now. Returns the command's output.
    pub fn refresh_sessions(&self) -> Result<String> {
        self.command(&["session", "refresh"], &[])
    }

    /// Creates a service account in these groups and writes its key to `file`.
    pub fn add_service(&self, name: &str, groups: &[&str], file: &Path) -> Result<()> {
        let file = file.to_string_lossy();
        let groups = groups.iter().flat_map(|group| ["--group", group]);
        let rest: Vec<_> = [name, "--key-file", &file].into_iter().chain(groups).collect();
        self.command(&["service", "add"], &rest).map(drop)
    }

    /// Removes a service account.
    pub fn remove_service(&self, name: &str) -> Result<()> {
        self.command(&["service", "remove"], &[name]).map(drop)
    }

    /// Returns the path of a file that contains the password of every account.
    pub fn password_file(&self) -> PathBuf {
        self.dir.with_file_name("password")
    }

    /// Returns the authority's newest master key. In operation, nobody but the authority reads this key.
    pub fn master_key(&self) -> Result<MasterKey> {
        let bytes = fs::read(self.dir.join("master.key")).context("cannot read the authority's master.key")?;
        let last = bytes.last_chunk().context("master.key is shorter than a key")?;
        Ok(MasterKey::new(*last))
    }

    /// Rotates the master key: the new key is used from the epoch after the next on or, if `compromised`, at once.
    pub fn rotate_master_key(&self, compromised: bool) -> Result<String> {
        self.command(&["rotate-master-key"], if compromised { &["--compromised"] } else { &[] })
    }

    /// Writes a policy to the authority's policy file and makes the authority load it.
    pub fn apply(&self, policy: &str) -> Result<String> {
        fs::write(self.dir.join("policy.toml"), policy)?;
        self.command(&["policy", "reload"], &[])
    }

    /// Issues a one-time enrolment code for the verifier `id`.
    pub fn enrolment_code(&self, id: &str) -> Result<String> {
        Ok(self.command(&["verifier", "add"], &[id])?.trim().to_owned())
    }

    /// Revokes all grants and sessions of a person.
    pub fn revoke(&self, person: &str) -> Result<String> {
        self.command(&["revoke"], &["--person", person])
    }

    /// Revokes one grant.
    pub fn revoke_grant(&self, handle: &str) -> Result<String> {
        self.command(&["revoke"], &["--grant", handle])
    }

    /// Returns the grants in force, as JSON.
    pub fn grants(&self) -> Result<Vec<Value>> {
        let list = ask_json(&mut self.prepare(&["grants", "--json"]))?;
        Ok(list.as_array().cloned().unwrap_or_default())
    }

    /// Returns the output of `vouchsafe authority segments`: the segments in force, as a table or as JSON.
    pub fn segments(&self, arguments: &[&str]) -> Result<String> {
        self.command(&["segments"], arguments)
    }

    /// Returns the sessions, as JSON.
    pub fn sessions(&self) -> Result<Vec<Value>> {
        let list = ask_json(&mut self.prepare(&["session", "list", "--json"]))?;
        Ok(list.as_array().cloned().unwrap_or_default())
    }

    /// Stops the server. The keys and grants that it has issued stay valid until they expire.
    pub fn stop(&mut self) -> Result<()> {
        match self.process.take() {
            Some(mut process) => process.stop().map(drop),
            None => Ok(()),
        }
    }

    /// Starts the server, or starts it again after [`Self::stop`].
    pub fn run(&mut self) -> Result<()> {
        let logs = self.dir.parent().context("the folder has no parent folder")?;
        let mut command = self.prepare(&["run"]);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let mut process = Process::start(command, logs)?;
        process.wait_for("listening on", SOON)?;
        self.process = Some(process);
        Ok(())
    }

    /// Runs `program` in place of the binary under test from now on.
    pub fn set_program(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// Sets a variable in the environment of the server, from its next start on.
    pub fn set_variable(&mut self, name: &str, value: impl Into<OsString>) {
        self.variables.push((name.into(), value.into()));
    }

    /// Runs `vouchsafe authority`: the words of the command, and its further arguments. Returns the output.
    pub fn command(&self, words: &[&str], rest: &[&str]) -> Result<String> {
        process::output(self.prepare(words).args(rest))
    }

    /// Prepares `vouchsafe authority WORDS… --dir DIR` in the authority's namespace.
    pub fn prepare(&self, words: &[&str]) -> Command {
        let mut net = OsString::from("--net=");
        net.push(&self.net);
        let mut command = Command::new("nsenter");
        command.arg(net).arg("--").arg(&self.program).arg("authority").args(words).arg("--dir").arg(&self.dir);
        command
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the authority does not run")?;
        process.signal(Signal::SIGKILL)?;
        process.wait(SOON).map(drop)
    }

    /// Sends the server a signal.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process.as_mut().context("the authority does not run")?.signal(signal)
    }

    /// Returns the server's log since its last start.
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }
}

/// Runs a command that answers yes or no by its exit code. Returns whether the answer was yes, and the command's
/// output.
pub(super) fn answer(command: &mut Command) -> Result<(bool, String)> {
    let output = ask(command)?;
    Ok((output.status.success(), text(&output.stdout) + &text(&output.stderr)))
}
