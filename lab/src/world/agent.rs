//! Alice's agent.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::authority::answer;
use super::{Authority, Instance, SOON, ask_json, names};
use crate::net::Namespace;
use crate::poll;
use crate::process::Process;

/// An agent daemon on `eth0` of a namespace. Its kernel programs stay attached when the daemon ends.
pub struct Agent {
    process: Option<Process>,
    instance: Instance,
    net: PathBuf,
    dir: PathBuf,
    flags: Vec<String>,
    /// The resolver configuration, if it differs from the host's.
    resolver: Option<PathBuf>,
    program: PathBuf,
}

impl Agent {
    /// Starts an agent; nobody is logged in.
    pub fn start(namespace: &Namespace) -> Result<Self> {
        Self::start_with(namespace, &["--interface".to_owned(), "eth0".to_owned()])
    }

    /// Starts an agent with `flags` in place of `--interface eth0`.
    pub fn start_with(namespace: &Namespace, flags: &[String]) -> Result<Self> {
        Self::begin_daemon(crate::vouchsafe(), namespace, flags.to_vec(), None)
    }

    /// Starts an agent like [`Self::start`], but runs `program` in place of the binary under test.
    pub fn start_program(program: PathBuf, namespace: &Namespace) -> Result<Self> {
        Self::begin_daemon(program, namespace, vec!["--interface".to_owned(), "eth0".to_owned()], None)
    }

    fn begin_daemon(
        program: PathBuf,
        namespace: &Namespace,
        flags: Vec<String>,
        resolver: Option<PathBuf>,
    ) -> Result<Self> {
        let (dir, net) = (namespace.dir().join("agent-state"), namespace.path());
        let mut this = Self { process: None, instance: Instance::new("agent"), net, dir, flags, resolver, program };
        this.run()?;
        Ok(this)
    }

    /// Starts an agent on a machine that is configured to resolve names at the authority's [name
    /// server](super::NameServer).
    pub fn start_resolving(namespace: &Namespace, flags: &[&str]) -> Result<Self> {
        let flags = ["--interface", "eth0"].iter().chain(flags).map(|flag| (*flag).to_owned()).collect();
        let resolver = Some(names::resolver_file(namespace.dir())?);
        Self::begin_daemon(crate::vouchsafe(), namespace, flags, resolver)
    }

    /// Starts the daemon, or starts it again after it has ended, and waits until it answers.
    pub fn run(&mut self) -> Result<()> {
        let mut command = match &self.resolver {
            Some(file) => self.agent(names::resolving(self.inside(), file), "run"),
            None => self.command("run"),
        };
        command.args(["--instance", &self.instance.name]).args(&self.flags).arg("--dir").arg(&self.dir);
        let logs = self.dir.parent().context("the folder has no parent folder")?;
        let mut process = Process::start(command, logs)?;
        let up = poll(SOON, || process.exit().is_some() || self.status().is_ok());
        ensure!(up && process.exit().is_none(), "the agent does not run:\n{}", process.log());
        self.process = Some(process);
        Ok(())
    }

    /// Starts the daemon again, with `flags` in place of its former flags.
    pub fn run_with(&mut self, flags: &[String]) -> Result<()> {
        self.flags = flags.to_vec();
        self.run()
    }

    /// Logs this process's user in as `person`, and waits until the agent knows the protected destinations.
    pub fn login(&self, authority: &Authority, person: &str) -> Result<()> {
        let (done, text) = self.try_login(authority, person)?;
        ensure!(done, "{person} can't log in: {text}");
        let knows = |status: Value| status["session"]["destinations"].as_array().is_some_and(|list| !list.is_empty());
        ensure!(poll(SOON, || self.status().is_ok_and(knows)), "{person} has no destinations");
        Ok(())
    }

    /// Logs another user of the agent's machine in as `person`.
    pub fn login_as(&self, uid: u32, authority: &Authority, person: &str) -> Result<()> {
        let mut command = self.command("login");
        command.args(["--authority", &authority.url(), "--user", person, "--device", "laptop", "--password-stdin"]);
        command.args(["--uid", &uid.to_string()]).arg("--ca").arg(authority.ca());
        let (done, text) = answer(command.stdin(File::open(authority.password_file())?))?;
        ensure!(done, "{person} can't log in as user {uid}: {text}");
        Ok(())
    }

    /// Tries to log in with a password at the authority; returns whether the login succeeded, and its output.
    pub fn try_login(&self, authority: &Authority, person: &str) -> Result<(bool, String)> {
        let mut command = self.command("login");
        command.args(["--authority", &authority.url(), "--user", person, "--device", "laptop", "--password-stdin"]);
        command.arg("--ca").arg(authority.ca()).stdin(File::open(authority.password_file())?);
        answer(&mut command)
    }

    /// Tries to log in with a password and these further arguments; returns whether the login succeeded, and its
    /// output.
    pub fn try_login_with(&self, authority: &Authority, person: &str, arguments: &[&str]) -> Result<(bool, String)> {
        let mut command = self.command("login");
        command.args(["--authority", &authority.url(), "--user", person, "--device", "laptop", "--password-stdin"]);
        command.arg("--ca").arg(authority.ca()).args(arguments).stdin(File::open(authority.password_file())?);
        answer(&mut command)
    }

    /// Tries to log in with a password at the authority that DNS names for `domain`; returns whether the login
    /// succeeded, and its output.
    pub fn try_login_by(&self, domain: &str, authority: &Authority, person: &str) -> Result<(bool, String)> {
        let mut command = self.command("login");
        command.args([domain, "--user", person, "--device", "laptop", "--password-stdin"]);
        command.arg("--ca").arg(authority.ca()).stdin(File::open(authority.password_file())?);
        answer(&mut command)
    }

    /// Tries to log in with a password at the authority that has the name `name`, whose servers DNS lists; returns
    /// whether the login succeeded, and its output.
    pub fn try_login_at(&self, name: &str, authority: &Authority, person: &str) -> Result<(bool, String)> {
        let mut command = self.command("login");
        command.args(["--authority", name, "--user", person, "--device", "laptop", "--password-stdin"]);
        command.arg("--ca").arg(authority.ca()).stdin(File::open(authority.password_file())?);
        let output = command.output().context("vouchsafe login")?;
        Ok((output.status.success(), crate::nobody::said(&output)))
    }

    /// Runs `vouchsafe discover` for a domain; returns whether a record was found, and the output.
    pub fn discover(&self, domain: &str) -> Result<(bool, String)> {
        let mut command = self.command("discover");
        answer(command.args([domain, "--json"]))
    }

    /// Returns the discovery records that the agent knows, by domain.
    pub fn discovered(&self) -> Result<BTreeMap<String, Value>> {
        let status = self.status()?;
        let list = status["discovered"].as_array().cloned().unwrap_or_default();
        Ok(list.into_iter().filter_map(|found| Some((found["domain"].as_str()?.to_owned(), found))).collect())
    }

    /// Starts a login by a method other than password. The process ends when the login is complete.
    pub fn begin_login(&self, authority: &Authority, arguments: &[&str]) -> Result<Process> {
        self.begin(self.command("login"), authority, arguments)
    }

    /// Starts a login of another user of the agent's machine.
    pub fn begin_login_as(&self, uid: u32, authority: &Authority, arguments: &[&str]) -> Result<Process> {
        let mut inside = self.inside();
        // That user may have no access to the folder of the program and the certificates.
        let caps = "+dac_override";
        inside.args(["setpriv", "--reuid", &uid.to_string(), "--clear-groups"]);
        inside.args(["--inh-caps", caps, "--ambient-caps", caps]);
        self.begin(self.agent(inside, "login"), authority, arguments)
    }

    fn begin(&self, mut command: Command, authority: &Authority, arguments: &[&str]) -> Result<Process> {
        command.args(["--authority", &authority.url(), "--device", "laptop", "--no-open"]);
        command.arg("--ca").arg(authority.ca()).args(arguments);
        Process::start(command, self.dir.parent().context("the folder has no parent folder")?)
    }

    /// Logs out and returns the output.
    pub fn logout(&self) -> Result<String> {
        answer(&mut self.command("logout")).map(|(_, said)| said)
    }

    /// Logs out with these arguments and returns the output.
    pub fn logout_with(&self, arguments: &[&str]) -> Result<String> {
        answer(self.command("logout").args(arguments)).map(|(_, said)| said)
    }

    /// Returns the daemon's log since its last start.
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }

    /// Kills the daemon with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the agent does not run")?;
        process.signal(Signal::SIGKILL)?;
        process.wait(SOON).map(drop)
    }

    /// Returns the answer of `vouchsafe agent status`, as JSON.
    pub fn status(&self) -> Result<Value> {
        ask_json(self.command("status").arg("--json"))
    }

    /// Returns the grants that the agent holds, as JSON.
    pub fn grants(&self) -> Result<Value> {
        let mut command = self.command("grants list");
        ask_json(command.arg("--json"))
    }

    /// Runs `vouchsafe agent access …`, and returns whether its answer was yes, and its output.
    pub fn access(&self, word: &str, arguments: &[&str]) -> Result<(bool, String)> {
        answer(self.command(&format!("access {word}")).args(arguments))
    }

    /// Runs `vouchsafe agent ping` for a destination, and returns the command's answer as JSON, even if the destination
    /// did not answer.
    pub fn ping(&self, to: &str) -> Result<Value> {
        self.ping_with(to, &[])
    }

    /// Does what [`Self::ping`] does, with further flags.
    pub fn ping_with(&self, to: &str, flags: &[&str]) -> Result<Value> {
        let output = self.command("ping").args([to, "--json"]).args(flags).output().context("vouchsafe ping")?;
        serde_json::from_slice(&output.stdout).with_context(|| crate::nobody::said(&output))
    }

    fn command(&self, word: &str) -> Command {
        self.agent(self.inside(), word)
    }

    fn agent(&self, mut command: Command, word: &str) -> Command {
        command.arg(&self.program).arg("agent").args(word.split(' ')).arg("--socket");
        command.arg(self.dir.with_file_name("agent.sock"));
        command
    }

    fn inside(&self) -> Command {
        let mut net = OsString::from("--net=");
        net.push(&self.net);
        let mut command = Command::new("nsenter");
        command.arg(net).arg("--");
        command
    }
}
