//! The authority of the standard world.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;
use wire::MasterKey;

use super::{AUTHORITY, AUTHORITY_NAME, SOON, ask, ask_json, text};
use crate::net::Namespace;
use crate::process::{self, Process};

/// Where it listens.
pub const PORT: u16 = 8443;
/// Everybody's password.
pub const PASSWORD: &str = "correct horse battery";

/// A running authority with the accounts `alice` and `mallory`.
pub struct Authority {
    process: Option<Process>,
    start: Box<dyn Fn() -> Result<Process> + Send + Sync>,
    dir: PathBuf,
}

impl Authority {
    /// Makes one in `namespace`, and runs it.
    pub fn start(namespace: &Namespace, policy: &str) -> Result<Self> {
        Self::start_with(namespace, policy, "")
    }

    /// The same with more in authority.toml.
    pub fn start_with(namespace: &Namespace, policy: &str, configuration: &str) -> Result<Self> {
        Self::make(namespace, policy, configuration, &["alice", "mallory"])
    }

    /// The same without accounts and with more in authority.toml. The secret that [`crate::provider`] knows it by is at
    /// hand.
    pub fn without_accounts(namespace: &Namespace, policy: &str, configuration: &str) -> Result<Self> {
        Self::make(namespace, policy, configuration, &[])
    }

    /// The same with the accounts of these people.
    pub fn make(namespace: &Namespace, policy: &str, configuration: &str, people: &[&str]) -> Result<Self> {
        let dir = namespace.dir().join("authority-state");
        let start = {
            let (run, logs) = (namespace.path(), namespace.dir().to_owned());
            let dir = dir.clone();
            move || {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", run.display())).arg("--").arg(crate::vouchsafe());
                command.args(["authority", "run", "--dir"]).arg(&dir);
                let mut process = Process::start(command, &logs)?;
                process.wait_for("listening on", SOON)?;
                Ok(process)
            }
        };
        let mut this = Self { process: None, start: Box::new(start), dir };
        this.command(
            &["init"],
            &["--name", AUTHORITY, "--name", AUTHORITY_NAME, "--listen", &format!("{AUTHORITY}:{PORT}")],
        )?;
        fs::write(this.dir.join("policy.toml"), policy)?;
        fs::write(this.dir.join("oidc.secret"), crate::provider::SECRET)?;
        let file = this.dir.join("authority.toml");
        fs::write(&file, fs::read_to_string(&file)? + configuration)?;
        fs::write(this.password_file(), PASSWORD)?;
        for person in people {
            let file = this.password_file();
            this.command(&["user", "add"], &[person, "--password-file", &file.to_string_lossy()])?;
        }
        this.run()?;
        Ok(this)
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where clients reach it.
    pub fn url(&self) -> String {
        format!("https://{AUTHORITY}:{PORT}")
    }

    /// The certificate to trust.
    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// The certificate for its address, and the key to it.
    pub fn certificate(&self) -> (PathBuf, PathBuf) {
        (self.dir.join("tls.pem"), self.dir.join("tls.key"))
    }

    /// Has it ask the identity provider about everybody's sessions.
    pub fn refresh_sessions(&self) -> Result<String> {
        self.command(&["session", "refresh"], &[])
    }

    /// Makes a service account in these groups, whose key goes to `file`.
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

    /// A file with everybody's password.
    pub fn password_file(&self) -> PathBuf {
        self.dir.with_file_name("password")
    }

    /// The key under all keys, as only a test may have it: the last, if there are several.
    pub fn master_key(&self) -> Result<MasterKey> {
        let bytes = fs::read(self.dir.join("master.key")).context("the master key")?;
        let last = bytes.last_chunk().context("a master key has 32 bytes")?;
        Ok(MasterKey::new(*last))
    }

    /// Has another master key take the place of the one in force, in time or, if that is compromised, at once.
    pub fn rotate_master_key(&self, compromised: bool) -> Result<String> {
        self.command(&["rotate-master-key"], if compromised { &["--compromised"] } else { &[] })
    }

    /// Puts another policy in force.
    pub fn apply(&self, policy: &str) -> Result<String> {
        fs::write(self.dir.join("policy.toml"), policy)?;
        self.command(&["policy", "reload"], &[])
    }

    /// A one-time code for the verifier `id`.
    pub fn enrolment_code(&self, id: &str) -> Result<String> {
        Ok(self.command(&["verifier", "add"], &[id])?.trim().to_owned())
    }

    /// Ends all grants and sessions of a person.
    pub fn revoke(&self, person: &str) -> Result<String> {
        self.command(&["revoke"], &["--person", person])
    }

    /// Ends one grant.
    pub fn revoke_grant(&self, handle: &str) -> Result<String> {
        self.command(&["revoke"], &["--grant", handle])
    }

    /// Grants in force.
    pub fn grants(&self) -> Result<Vec<Value>> {
        let list =
            ask_json(Command::new(crate::vouchsafe()).args(["authority", "grants", "--json", "--dir"]).arg(&self.dir))?;
        Ok(list.as_array().cloned().unwrap_or_default())
    }

    /// Who is logged in.
    pub fn sessions(&self) -> Result<Vec<Value>> {
        let mut command = Command::new(crate::vouchsafe());
        let list = ask_json(command.args(["authority", "session", "list", "--json", "--dir"]).arg(&self.dir))?;
        Ok(list.as_array().cloned().unwrap_or_default())
    }

    /// Stops the server. What it has said stays true until it ends.
    pub fn stop(&mut self) -> Result<()> {
        match self.process.take() {
            Some(mut process) => process.stop().map(drop),
            None => Ok(()),
        }
    }

    /// Runs the server (again).
    pub fn run(&mut self) -> Result<()> {
        self.process = Some((self.start)()?);
        Ok(())
    }

    fn command(&self, words: &[&str], rest: &[&str]) -> Result<String> {
        let mut command = Command::new(crate::vouchsafe());
        command.arg("authority").args(words).arg("--dir").arg(&self.dir).args(rest);
        process::output(&mut command)
    }
}

/// Whether a command's answer was yes, and what it said.
pub(super) fn answer(command: &mut Command) -> Result<(bool, String)> {
    let output = ask(command)?;
    Ok((output.status.success(), text(&output.stdout) + &text(&output.stderr)))
}
