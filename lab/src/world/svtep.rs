//! Daemons of tunnel endpoints, and of verifiers that check proofs in the packets between tunnel endpoints.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::authority::answer;
use super::{Authority, Instance, SOON, ask_json};
use crate::net::Namespace;
use crate::poll;
use crate::process::{self, Process};

/// A tunnel endpoint's daemon in a namespace. Its kernel programs stay attached when the daemon ends.
pub struct Svtep {
    process: Option<Process>,
    instance: Instance,
    net: PathBuf,
    dir: PathBuf,
}

impl Svtep {
    /// Enrols a tunnel endpoint at `authority` under the id `id`, and writes `settings` to its configuration file. Does
    /// not start the daemon.
    pub fn enrol(namespace: &Namespace, authority: &Authority, id: &str, settings: &str) -> Result<Self> {
        let dir = namespace.dir().join("svtep-state");
        let this = Self { process: None, instance: Instance::new("svtep"), net: namespace.path(), dir };
        let code = authority.enrolment_code(id)?;
        let mut enrol = inside(&this.net);
        enrol.args(["svtep", "enrol", "--authority", &authority.url(), "--code", &code, "--dir"]).arg(&this.dir);
        process::output(enrol.arg("--ca").arg(authority.ca()))?;
        fs::write(this.config(), settings)?;
        Ok(this)
    }

    /// Starts the daemon, or starts it again after it has ended, and waits until it is connected to the authority, and
    /// every tenant is logged in and attached.
    pub fn run(&mut self) -> Result<()> {
        self.launch()?;
        let mut status = Value::Null;
        let up = poll(SOON, || {
            status = self.status().unwrap_or_default();
            let fine = |tenant: &Value| tenant["logged_in"] == true && tenant["not_attached"].is_null();
            let tenants = status["tenants"].as_array().is_some_and(|tenants| tenants.iter().all(fine));
            (status["connected"] == true && tenants) || self.has_ended()
        });
        ensure!(up && !self.has_ended(), "the tunnel endpoint does not run: {status}\n{}", self.log());
        Ok(())
    }

    /// Starts the daemon, or starts it again after it has ended, and waits until it answers, connected to the authority
    /// or not.
    pub fn run_alone(&mut self) -> Result<()> {
        self.launch()?;
        let up = poll(SOON, || self.status().is_ok() || self.has_ended());
        ensure!(up && !self.has_ended(), "the tunnel endpoint does not run:\n{}", self.log());
        Ok(())
    }

    fn launch(&mut self) -> Result<()> {
        let mut command = self.daemon("run");
        command.arg("--config").arg(self.config()).arg("--dir").arg(&self.dir);
        let logs = self.dir.parent().context("the folder has no parent folder")?;
        self.process = Some(Process::start(command, logs)?);
        Ok(())
    }

    /// Runs `vouchsafe svtep check` with additional arguments; returns whether no fault was found, and the output.
    pub fn check(&self, more: &[&str]) -> Result<(bool, String)> {
        let mut command = inside(&self.net);
        command.args(["svtep", "check", "--config"]).arg(self.config()).arg("--dir").arg(&self.dir);
        answer(command.args(more))
    }

    /// Returns the answer of `vouchsafe svtep status`, as JSON.
    pub fn status(&self) -> Result<Value> {
        ask_json(self.daemon("status").arg("--json"))
    }

    /// Returns the answer of `vouchsafe svtep segments`, as JSON.
    pub fn segments(&self) -> Result<Vec<Value>> {
        Ok(ask_json(self.daemon("segments").arg("--json"))?.as_array().cloned().unwrap_or_default())
    }

    /// Returns the counter `name` from one of the lists in the status: `packets`, `passed`, `reasons` or `answers`.
    pub fn count(&self, list: &str, name: &str) -> Result<u64> {
        let status = self.status()?;
        let counters = status[list].as_array().with_context(|| format!("no {list} in {status}"))?;
        let one = counters.iter().find(|one| one["name"] == name).with_context(|| format!("no {name} in {list}"))?;
        one["count"].as_u64().context("`count` is not a number")
    }

    /// Returns the daemon's log since its last start.
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }

    fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_none_or(|process| process.exit().is_some())
    }

    /// Stops the daemon; its kernel programs and tables remain.
    pub fn stop(&mut self) -> Result<()> {
        let ended = self.process.take().context("the tunnel endpoint does not run")?.stop()?;
        ensure!(ended.success(), "the tunnel endpoint's daemon ended with {ended}");
        Ok(())
    }

    /// Kills the daemon with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the tunnel endpoint does not run")?;
        process.signal(Signal::SIGKILL)?;
        process.wait(SOON).map(drop)
    }

    /// Removes the kernel programs and tables, whether or not the daemon runs.
    pub fn detach(&mut self) -> Result<()> {
        process::output(&mut self.daemon("detach"))?;
        match self.process.take() {
            Some(mut process) => process.wait(SOON).map(drop),
            None => Ok(()),
        }
    }

    fn config(&self) -> PathBuf {
        self.dir.join("svtep.toml")
    }

    fn daemon(&self, word: &str) -> Command {
        let mut command = inside(&self.net);
        command.args(["svtep", word, "--instance", &self.instance.name, "--socket"]);
        command.arg(self.dir.with_file_name("svtep.sock"));
        command
    }
}

/// The daemon of a verifier that checks only proofs.
pub struct Prover {
    process: Process,
    _instance: Instance,
    net: PathBuf,
    socket: PathBuf,
}

impl Prover {
    /// Enrols a verifier at `authority` under the id `id`, and runs it for these endpoints and on these interfaces.
    pub fn start(
        namespace: &Namespace,
        authority: &Authority,
        id: &str,
        endpoints: &[&str],
        interfaces: &[&str],
    ) -> Result<Self> {
        let (dir, net) = (namespace.dir().join(format!("{id}-state")), namespace.path());
        let (instance, socket) = (Instance::new("verifier"), namespace.dir().join(format!("{id}.sock")));
        let code = authority.enrolment_code(id)?;
        let mut enrol = inside(&net);
        enrol.args(["verifier", "enrol", "--authority", &authority.url(), "--code", &code, "--dir"]).arg(&dir);
        process::output(enrol.arg("--ca").arg(authority.ca()))?;
        let file = dir.join("verifier.toml");
        // Tokens are checked on the loopback interface only, where no tokens arrive.
        let own = format!(
            "interface = [\"lo\"]\nhook = \"tc\"\n[proofs]\nendpoints = {endpoints:?}\ninterface = {interfaces:?}\n"
        );
        fs::write(&file, fs::read_to_string(&file)? + &own)?;
        let mut run = inside(&net);
        run.args(["verifier", "run", "--instance", &instance.name, "--socket"]).arg(&socket).arg("--dir").arg(&dir);
        let mut process = Process::start(run, namespace.dir())?;
        let ask = || ask_json(inside(&net).args(["verifier", "status", "--json", "--socket"]).arg(&socket));
        let up = poll(SOON, || ask().is_ok_and(|status| status["connected"] == true) || process.exit().is_some());
        ensure!(up && process.exit().is_none(), "the verifier {id} does not run:\n{}", process.log());
        Ok(Self { process, _instance: instance, net, socket })
    }

    /// Kills the daemon with SIGKILL. Its kernel programs remain.
    pub fn kill(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGKILL)?;
        self.process.wait(SOON).map(drop)
    }

    /// Returns the verifier's counter of packets `name`: `remembered`, `computed`, or a drop reason.
    pub fn count(&self, name: &str) -> Result<u64> {
        let status = ask_json(inside(&self.net).args(["verifier", "status", "--json", "--socket"]).arg(&self.socket))?;
        let lists = ["passed", "reasons"].map(|list| status["proofs"][list].as_array().cloned().unwrap_or_default());
        let counters = lists.concat();
        let one = counters.iter().find(|one| one["name"] == name).with_context(|| format!("no {name}: {status}"))?;
        one["packets"].as_u64().context("`packets` is not a number")
    }
}

/// Prepares a command that runs `vouchsafe` in a namespace.
fn inside(net: &std::path::Path) -> Command {
    let mut option = OsString::from("--net=");
    option.push(net);
    let mut command = Command::new("nsenter");
    command.arg(option).arg("--").arg(crate::vouchsafe());
    command
}
