//! docs/quickstart.md, followed by a new user on two Debian machines that boot with systemd. The commands are those of
//! the document: the words after each code block's fence say where its lines go.
//!
//! | fence | meaning |
//! |---|---|
//! | `sh server`, `sh laptop`, `sh both` | a user types each line on this machine, and the line must succeed |
//! | `sh server stays` | does not end by itself, so the next lines go to another terminal |
//! | `sh typed` | is typed into the terminal that stays |
//! | `sh server interrupts` | is typed once Ctrl-C has ended the command that stays on this machine |
//! | `sh outside` | is run on a host without an agent |
//! | `toml /path` | is written to this file on the server |
//! | `sh elsewhere` | is for other machines than these two |

mod document;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::machine::Machine;
use lab::net::{Namespace, veth};
use lab::terminal::Terminal;
use lab::{package, poll, test};
use tempfile::TempDir;

use document::{Block, blocks};

/// The server's address and name in the document.
const SERVER: (&str, &str) = ("203.0.113.10", "server.example.org");
/// The user on both machines, who may use sudo.
const USER: &str = "alice";
const PASSWORD: &str = "correct horse battery staple";
/// Time within which an answer would have come.
const QUIET: Duration = Duration::from_secs(1);
/// Time within which something happens that takes no longer than a second on an idle machine.
const SOON: Duration = Duration::from_secs(60);

/// The two machines of the document, a stranger, and the way between them.
struct Hosts {
    /// Terminals with commands that have not ended, by machine. They are dropped first.
    staying: BTreeMap<String, Terminal>,
    /// The machine whose command stays last.
    last: String,
    server: Machine,
    laptop: Machine,
    stranger: Namespace,
    /// Each command, with what it showed.
    said: Vec<(String, String)>,
    _networks: [Namespace; 3],
}

impl Hosts {
    fn new(package: &Path) -> Result<Self> {
        let [internet, server, laptop, stranger] = ["internet", "server", "laptop", "stranger"].map(Namespace::new);
        let (internet, server, laptop, stranger) = (internet?, server?, laptop?, stranger?);
        internet.forward()?;
        for (host, device, address, gateway) in [
            (&server, "server", SERVER.0, "203.0.113.1"),
            (&laptop, "laptop", "192.0.2.2", "192.0.2.1"),
            (&stranger, "stranger", "198.51.100.2", "198.51.100.1"),
        ] {
            veth(&internet, device, &format!("{gateway}/24"), host, "eth0", &format!("{address}/24"))?;
            host.route("default", gateway)?;
        }
        let this = Self {
            staying: BTreeMap::new(),
            last: String::new(),
            server: Machine::boot("server", &server)?,
            laptop: Machine::boot("laptop", &laptop)?,
            stranger,
            said: Vec::new(),
            _networks: [internet, server, laptop],
        };
        for (machine, name) in [(&this.server, "server"), (&this.laptop, "laptop")] {
            furnish(machine, name, package)?;
        }
        // The user can log in to the server, as to any server before it is protected.
        let key = fs::read(this.laptop.path().join("home/alice/.ssh/id_ed25519.pub"))?;
        fs::write(this.server.path().join("home/alice/.ssh/authorized_keys"), key)?;
        let host = fs::read_to_string(this.server.path().join("etc/ssh/ssh_host_ed25519_key.pub"))?;
        let known = this.laptop.path().join("home/alice/.ssh/known_hosts");
        fs::write(known, format!("{},{} {host}", SERVER.1, SERVER.0))?;
        // Users may log in once the first of these units has run.
        this.server.run(&["systemctl", "start", "systemd-user-sessions", "ssh"])?;
        for machine in [&this.server, &this.laptop] {
            machine.run(&["chown", "-R", "alice:", "/home/alice"])?;
        }
        Ok(this)
    }

    fn machine(&self, name: &str) -> Result<&Machine> {
        match name {
            "server" => Ok(&self.server),
            "laptop" => Ok(&self.laptop),
            _ => bail!("no machine is called {name}"),
        }
    }

    /// Does what a code block says.
    fn perform(&mut self, block: &Block) -> Result<()> {
        let words: Vec<_> = block.words.iter().map(String::as_str).collect();
        match words[..] {
            ["sh", "elsewhere"] => Ok(()),
            ["sh", "outside"] => block.commands().iter().try_for_each(|line| self.ask_stranger(line)),
            ["sh", "typed"] => block.commands().iter().try_for_each(|line| self.type_line(line)),
            ["sh", "both"] => {
                ["laptop", "server"].iter().try_for_each(|machine| self.type_lines(machine, &block.commands()))
            }
            ["sh", machine] => self.type_lines(machine, &block.commands()),
            ["sh", machine, "stays"] => self.leave_running(machine, &block.commands()),
            ["sh", machine, "interrupts"] => {
                let mut staying = self.staying.remove(machine).context("no command stays on this machine")?;
                staying.type_keys("\x03")?;
                staying.end(PASSWORD)?;
                self.type_lines(machine, &block.commands())
            }
            ["toml", path] => {
                let file = self.server.path().join(path.trim_start_matches('/'));
                fs::write(&file, &block.text).with_context(|| file.display().to_string())
            }
            _ => bail!("{words:?}: see the table at the top of lab/tests/quickstart/main.rs"),
        }
    }

    /// Types lines on a machine. Each must succeed.
    fn type_lines(&mut self, machine: &str, lines: &[String]) -> Result<()> {
        for line in lines {
            let line = self.with_code(line)?;
            let text = self.machine(machine)?.terminal(USER, &line)?.finish(PASSWORD)?;
            self.said.push((line, text));
        }
        Ok(())
    }

    /// Replaces the document's CODE by the code that was printed.
    fn with_code(&self, line: &str) -> Result<String> {
        if !line.contains("--code CODE") {
            return Ok(line.to_owned());
        }
        let code = self.said("verifier add")?.lines().rfind(|line| !line.is_empty()).context("no code")?.trim();
        Ok(line.replace("--code CODE", &format!("--code {code}")))
    }

    /// Types the only line of a block on a machine, and leaves it running.
    fn leave_running(&mut self, machine: &str, lines: &[String]) -> Result<()> {
        let [line] = lines else { bail!("a command that stays must be the only one of its block") };
        let mut terminal = self.machine(machine)?.terminal(USER, line)?;
        if line.starts_with("ssh ") {
            terminal.wait_for("$ ")?;
        } else {
            self.wait_for_silence().with_context(|| format!("`{line}` shows:\n{}", terminal.text()))?;
        }
        self.staying.insert(machine.to_owned(), terminal);
        machine.clone_into(&mut self.last);
        Ok(())
    }

    /// Types a line into the terminal that stays. The line must succeed.
    fn type_line(&mut self, line: &str) -> Result<()> {
        let terminal = self.staying.get_mut(&self.last).context("no command stays")?;
        // On one line, because sudo discards what is typed ahead. `eval` ends a comment of the document's line.
        terminal.type_keys(&format!("eval '{line}'; echo \"ended with $?.\"\n"))?;
        terminal.wait_for("ended with 0.")
    }

    fn ask_stranger(&mut self, line: &str) -> Result<()> {
        let text = self.stranger.run(["sh", "-c", line])?;
        self.said.push((line.to_owned(), text));
        Ok(())
    }

    /// Returns what the last command with these words has shown.
    fn said(&self, words: &str) -> Result<&str> {
        let said = self.said.iter().rfind(|(line, _)| line.contains(words));
        Ok(said.with_context(|| format!("no command of the document has the words {words:?}"))?.1.as_str())
    }

    /// Connects from a host without an agent. Returns `None` if nothing answers.
    fn knock(&self) -> Result<Option<TcpStream>> {
        let to: SocketAddr = format!("{}:22", SERVER.0).parse()?;
        match self.stranger.enter(|| TcpStream::connect_timeout(&to, QUIET)) {
            Ok(stream) => Ok(Some(stream)),
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => Ok(None),
            Err(error) => Err(error).context("the server answers strangers"),
        }
    }

    fn wait_for_silence(&self) -> Result<()> {
        let is_silent = || {
            // sshd refuses everybody while many connections have no login yet.
            std::thread::sleep(Duration::from_millis(200));
            self.knock().is_ok_and(|answer| answer.is_none())
        };
        ensure!(poll(SOON, is_silent), "strangers still get answers");
        Ok(())
    }

    /// Reports whether a new connection of the user's to the server succeeds.
    fn reaches(&self) -> Result<bool> {
        let line = format!("ssh -o ConnectTimeout=3 -o BatchMode=yes {} true", SERVER.1);
        Ok(self.laptop.terminal(USER, &line)?.end(PASSWORD)?.success())
    }
}

/// Gives a machine what a new user's machine has: names, a user who may use sudo, and the package in the user's home.
fn furnish(machine: &Machine, name: &str, package: &Path) -> Result<()> {
    let root = machine.path();
    let hosts = format!("127.0.0.1 localhost\n127.0.1.1 {name}\n{} {}\n", SERVER.0, SERVER.1);
    fs::write(root.join("etc/hosts"), hosts)?;
    machine.run(&["useradd", "--create-home", "--shell", "/bin/bash", USER])?;
    fs::write(root.join("etc/sudoers.d/alice"), "alice ALL=(ALL) NOPASSWD: ALL\n")?;
    machine.run(&["chmod", "440", "/etc/sudoers.d/alice"])?;
    machine.run(&["install", "-d", "-m", "700", "/home/alice/.ssh"])?;
    machine.run(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/home/alice/.ssh/id_ed25519"])?;
    let file = package.file_name().context("the package has no name")?;
    fs::copy(package, root.join("home/alice").join(file))?;
    Ok(())
}

/// Does what a section of the document says, and returns the number of its code blocks.
fn follow(hosts: &mut Hosts, blocks: &[Block], section: &str) -> Result<usize> {
    let blocks: Vec<_> = blocks.iter().filter(|block| block.section == section).collect();
    ensure!(!blocks.is_empty(), "docs/quickstart.md has no section {section:?} with code");
    for block in &blocks {
        hosts.perform(block).with_context(|| format!("docs/quickstart.md:{}", block.line))?;
    }
    Ok(blocks.len())
}

/// Upgrades the package on both machines. The package's script lets systemd restart the daemons.
fn upgrade(hosts: &Hosts, package: &Path) -> Result<()> {
    let file = package.file_name().and_then(|name| name.to_str()).context("the package has no name")?;
    for (machine, unit) in [(&hosts.server, "vouchsafe-verifier"), (&hosts.laptop, "vouchsafe-agent")] {
        let process = || machine.run(&["systemctl", "show", "--property=MainPID", "--value", unit]);
        let old = process()?;
        fs::copy(package, machine.path().join("home/alice").join(file))?;
        machine.terminal(USER, &format!("sudo apt install ./{file}"))?.finish(PASSWORD)?;
        machine.run(&["systemctl", "is-active", unit])?;
        ensure!(process()? != old, "{unit} was not restarted");
    }
    Ok(())
}

/// Purges the package from a machine, and checks that nothing of it stays.
fn purge(machine: &Machine) -> Result<()> {
    machine.terminal(USER, "sudo apt purge -y vouchsafe")?.finish(PASSWORD)?;
    let left = machine.run(&[
        "sh",
        "-c",
        "ls -d /usr/bin/vouchsafe /etc/vouchsafe /var/lib/vouchsafe /run/vouchsafe \
        /sys/fs/bpf/vouchsafe /etc/systemd/system/*.wants/vouchsafe-* 2>/dev/null; getent passwd vouchsafe; \
        systemctl list-units --plain --no-legend 'vouchsafe-*'",
    ])?;
    ensure!(left.trim().is_empty(), "purge left:\n{left}");
    Ok(())
}

/// Returns a fingerprint without what printers add to it.
fn bare(text: &str) -> String {
    text.to_lowercase().replace(':', "")
}

#[test]
fn a_new_user_who_follows_the_quickstart_protects_a_server() {
    test(|| {
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/quickstart.md");
        let blocks = blocks(&fs::read_to_string(document).context(document)?).context(document)?;
        let first = blocks.iter().flat_map(Block::commands).next();
        let starts = first.is_some_and(|line| line.starts_with("sudo apt install ./vouchsafe_*.deb"));
        ensure!(starts, "the quickstart starts otherwise than by the package");
        let out = TempDir::with_prefix("vouchsafe-quickstart-")?;
        let [old, new] = [1, 2].map(|revision| package::package("deb", revision, out.path()));
        let mut hosts = Hosts::new(&old?)?;
        let mut done = follow(&mut hosts, &blocks, "Install")?;
        done += follow(&mut hosts, &blocks, "The authority, on the server")?;

        // Somebody works on the server while it becomes protected.
        let mut before = hosts.laptop.terminal(USER, &format!("ssh {} sed -u s/^/the-server-got-/", SERVER.1))?;
        before.type_keys("before\n")?;
        before.wait_for("the-server-got-before")?;
        done += follow(&mut hosts, &blocks, "The agent, on the laptop")?;
        let printed = hosts.said("openssl x509")?.trim().rsplit_once('=').context("no fingerprint")?.1;
        ensure!(bare(hosts.said("authority init")?).contains(&bare(printed)), "another fingerprint: {printed}");
        ensure!(hosts.knock()?.is_some(), "protected before there is a verifier");

        done += follow(&mut hosts, &blocks, "The verifier, on the server")?;
        hosts.wait_for_silence()?;
        ensure!(hosts.reaches()?, "the user does not reach the server:\n{}", hosts.server.journal());
        before.type_keys("after\n")?;
        before.wait_for("the-server-got-after").context("the connection from before")?;

        done += follow(&mut hosts, &blocks, "As a person, on the laptop")?;
        ensure!(hosts.said("vouchsafe status")?.contains(USER), "{}", hosts.said("vouchsafe status")?);
        done += follow(&mut hosts, &blocks, "What the server shows")?;
        ensure!(hosts.said("verifier flows")?.contains(USER), "{}", hosts.said("verifier flows")?);
        ensure!(hosts.said("nmap")?.contains("filtered"), "{}", hosts.said("nmap")?);

        upgrade(&hosts, &new?)?;
        before.type_keys("upgraded\n")?;
        before.wait_for("the-server-got-upgraded").context("the connection, after the upgrade")?;
        hosts.wait_for_silence()?;
        ensure!(hosts.reaches()?, "the user does not reach the server after the upgrade:\n{}", hosts.server.journal());

        done += follow(&mut hosts, &blocks, "End access")?;
        ensure!(!hosts.reaches()?, "the user still reaches the server");
        done += follow(&mut hosts, &blocks, "End protection")?;
        ensure!(hosts.knock()?.is_some(), "protection did not end");
        for machine in [&hosts.server, &hosts.laptop] {
            purge(machine)?;
        }
        ensure!(done == blocks.len(), "this test follows {done} of the {} code blocks", blocks.len());
        Ok(())
    });
}
