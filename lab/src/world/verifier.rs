//! The verifier of the standard world.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use wire::DropReason;

use super::authority::answer;
use super::{Authority, Instance, SOON, ask_json};
use crate::net::Namespace;
use crate::poll;
use crate::process::{self, Process};

/// The verifier's id, from which its keys are derived.
pub const ID: &str = "edge";

/// A verifier daemon on `eth0` of a namespace. Its kernel programs stay attached when the daemon ends.
pub struct Verifier {
    process: Option<Process>,
    instance: Instance,
    net: PathBuf,
    dir: PathBuf,
    program: PathBuf,
}

impl Verifier {
    /// Enrols a verifier at `authority` and runs it. Returns once the verifier protects.
    pub fn start(namespace: &Namespace, authority: &Authority) -> Result<Self> {
        Self::start_with(namespace, authority, &[])
    }

    /// Enrols a verifier at `authority` and runs it with additional flags. Returns once the verifier protects.
    pub fn start_with(namespace: &Namespace, authority: &Authority, flags: &[&str]) -> Result<Self> {
        Self::start_program(crate::vouchsafe(), namespace, authority, flags)
    }

    /// Starts a verifier like [`Self::start_with`], but runs `program` in place of the binary under test.
    pub fn start_program(
        program: PathBuf,
        namespace: &Namespace,
        authority: &Authority,
        flags: &[&str],
    ) -> Result<Self> {
        let dir = namespace.dir().join("verifier-state");
        let mut this = Self { process: None, instance: Instance::new("verifier"), net: namespace.path(), dir, program };
        let code = authority.enrolment_code(ID)?;
        let mut enrol = this.command("enrol");
        enrol.arg("--dir").arg(&this.dir).args(["--authority", &authority.url(), "--code", &code, "--ca"]);
        process::output(enrol.arg(authority.ca()))?;
        this.run(flags)?;
        Ok(this)
    }

    /// Enrols the verifier at the authority of a further organisation. From its next start on, the verifier follows
    /// this authority, too. `networks` are options of the command: `--network PREFIX` for each network for which this
    /// authority may speak.
    pub fn enrol_further(&self, name: &str, authority: &Authority, networks: &[&str]) -> Result<()> {
        let code = authority.enrolment_code(ID)?;
        let mut enrol = self.command("enrol");
        enrol.arg("--dir").arg(&self.dir).args(["--organisation", name]).args(networks);
        enrol.args(["--authority", &authority.url(), "--code", &code, "--ca"]).arg(authority.ca());
        process::output(&mut enrol).map(drop)
    }

    /// Removes the enrolment at a further organisation.
    pub fn forget_further(&self, name: &str) -> Result<()> {
        Ok(fs::remove_dir_all(self.dir.join("organisations").join(name))?)
    }

    /// Limits the default organisation to these networks and addresses, from the next start on.
    pub fn give_default(&self, networks: &[&str]) -> Result<()> {
        let file = self.dir.join("verifier.toml");
        let text = fs::read_to_string(&file)?;
        // A section may follow the settings in the file.
        Ok(fs::write(&file, format!("networks = {networks:?}\n{text}"))?)
    }

    /// Runs another verifier with the same id and keys in another namespace.
    pub fn twin(&self, namespace: &Namespace, flags: &[&str]) -> Result<Self> {
        let dir = namespace.dir().join("verifier-state");
        process::output(Command::new("cp").arg("-a").arg(&self.dir).arg(&dir))?;
        let (instance, program) = (Instance::new("verifier"), self.program.clone());
        let mut this = Self { process: None, instance, net: namespace.path(), dir, program };
        this.run(flags)?;
        Ok(this)
    }

    /// Starts the daemon, or starts it again after it has ended, and waits until it protects (with `--observe`:
    /// observes) and is connected to the authority.
    pub fn run(&mut self, flags: &[&str]) -> Result<()> {
        self.launch(flags)?;
        let mut status = Value::Null;
        let up = poll(SOON, || {
            status = self.status().unwrap_or_default();
            let state = if flags.contains(&"--observe") { "observing" } else { "protecting" };
            (status["state"] == state && status["connected"] == true) || self.has_ended()
        });
        ensure!(up && !self.has_ended(), "the verifier does not protect: {status}\n{}", self.log());
        Ok(())
    }

    /// Starts the daemon, or starts it again after it has ended, and waits until it protects, connected to the
    /// authority or not.
    pub fn run_alone(&mut self) -> Result<()> {
        self.launch(&[])?;
        ensure!(poll(SOON, || self.status().is_ok_and(|status| status["state"] == "protecting")), "no protection");
        Ok(())
    }

    fn launch(&mut self, flags: &[&str]) -> Result<()> {
        let mut command = self.daemon_command("run");
        command.arg("--dir").arg(&self.dir).args(["--interface", "eth0"]).args(flags);
        // By default, a verifier uses tc on virtual cables, where a capture also contains packets that tc is about to
        // drop. Scenarios have to see only packets that got past the verifier.
        if !flags.iter().any(|flag| ["--hook", "--verdict"].contains(flag)) {
            command.args(["--hook", "xdp"]);
        }
        // The server has several addresses, which stand for several hosts.
        if !flags.contains(&"--inside") {
            command.arg("--only-named");
        }
        let logs = self.dir.parent().context("the folder has no parent folder")?;
        self.process = Some(Process::start(command, logs)?);
        Ok(())
    }

    /// Returns the daemon's log since its last start.
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }

    fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_none_or(|process| process.exit().is_some())
    }

    /// Kills the daemon with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the verifier does not run")?;
        process.signal(Signal::SIGKILL)?;
        process.wait(SOON).map(drop)
    }

    /// Sends a signal to the daemon.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process.as_mut().context("the verifier does not run")?.signal(signal)
    }

    /// Ends protection, and removes the kernel programs and their tables.
    pub fn detach(&mut self) -> Result<()> {
        process::output(&mut self.daemon_command("detach"))?;
        self.process.take().context("the verifier does not run")?.wait(SOON).map(drop)
    }

    /// Returns the answer of `vouchsafe verifier status`, as JSON.
    pub fn status(&self) -> Result<Value> {
        ask_json(self.daemon_command("status").arg("--json"))
    }

    /// Returns the number of packets per outcome since protection started.
    pub fn counters(&self) -> Result<Counters> {
        let drops = ask_json(self.daemon_command("drops").arg("--json"))?;
        let lists = [&drops["reasons"], &drops["passed"], &drops["opened"], &drops["tunnel"]];
        let entries = lists.iter().flat_map(|list| list.as_array().into_iter().flatten());
        let read = |entry: &Value| Some((entry["name"].as_str()?.to_owned(), entry["packets"].as_u64()?));
        Ok(Counters(entries.filter_map(read).collect()))
    }

    /// Returns the answer of `vouchsafe verifier whois` for a client, as JSON.
    pub fn whois(&self, client: SocketAddr) -> Result<Value> {
        ask_json(self.daemon_command("whois").arg("--json").arg(client.to_string()))
    }

    /// Returns the current and past leases of inside addresses, as JSON.
    pub fn addresses(&self) -> Result<Vec<Value>> {
        let list = ask_json(self.daemon_command("addresses").arg("--json"))?;
        Ok(list.as_array().cloned().unwrap_or_default())
    }

    /// Returns the admitted flows, as JSON.
    pub fn flows(&self) -> Result<Vec<Value>> {
        let flows = ask_json(self.daemon_command("flows").arg("--json"))?;
        Ok(flows.as_array().cloned().unwrap_or_default())
    }

    /// Returns the admitted flows, as the table for people.
    pub fn flow_table(&self) -> Result<String> {
        answer(&mut self.daemon_command("flows")).map(|(_, said)| said)
    }

    /// Returns the folder in which the daemon has pinned the kernel's tables.
    pub fn pinned_tables(&self) -> PathBuf {
        self.instance.pins().join("maps")
    }

    /// Asks the verifier whether a person would get a grant; returns the answer and its explanation.
    pub fn explain_person(&self, person: &str, to: SocketAddr) -> Result<(bool, String)> {
        answer(self.daemon_command("explain").args(["--person", person, "--to", &to.to_string()]))
    }

    /// Runs `vouchsafe verifier explain --packet FILE` with these flags.
    pub fn explain_packets(&self, file: &Path, flags: &[&str]) -> Result<Output> {
        let mut explain = self.daemon_command("explain");
        explain.arg("--packet").arg(file).args(flags).output().context("cannot run `vouchsafe verifier explain`")
    }

    fn daemon_command(&self, word: &str) -> Command {
        let mut command = self.command(word);
        command.args(["--instance", &self.instance.name, "--socket"]).arg(self.dir.with_file_name("verifier.sock"));
        command
    }

    fn command(&self, word: &str) -> Command {
        let mut net = OsString::from("--net=");
        net.push(&self.net);
        let mut command = Command::new("nsenter");
        command.arg(net).arg("--").arg(&self.program).args(["verifier", word]);
        command
    }
}

/// Numbers of packets per outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Returns the number of packets dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.named(reason.name())
    }

    /// Returns the number of packets counted under this name: a drop reason, `token`, `flow`, …
    pub fn named(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Returns the increase since `before`, for the counters that changed.
    pub fn since(&self, before: &Self) -> BTreeMap<String, u64> {
        let grown = self.0.iter().map(|(name, now)| (name.clone(), now - before.named(name)));
        grown.filter(|(_, more)| *more > 0).collect()
    }
}
