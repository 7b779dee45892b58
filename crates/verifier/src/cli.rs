//! `vouchsafe verifier …`: parses arguments and prints answers. The module `daemon` does the work. Questions go to a
//! running daemon through its control socket.

use crate::control::{self, Request};
use crate::directory::Directory;
use crate::settings::{Flags, duration, network};
use crate::{daemon, organisations, view};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use datapath::Pins;
use datapath::tcp_in_udp::Devices;
use datapath::transparent::Diversion;
use engine::model::Service;
use engine::policy::parse_service;
use follower::{Enrolment, State};
use ipnet::IpNet;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shell::{print, println};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

mod explain;
mod tables;

use tables::{address_table, drop_cells, flow_table, show_drops, show_flow, show_status};

/// Interval at which `drops --follow` polls.
const FOLLOW: Duration = Duration::from_millis(300);
/// How long `detach` waits for a daemon that is shutting down.
const ENDING: Duration = Duration::from_secs(10);
/// Exit code for a negative answer.
const NO: ExitCode = ExitCode::FAILURE;

const RUN: &str = "Examples:
  vouchsafe verifier run --observe                 # let refused packets pass, and show them
  vouchsafe verifier run --try 5m                  # protect, for five minutes unless confirmed
  vouchsafe verifier run --interface eth0 --tcp-idle 2h";
/// Parses an address with a port.
fn endpoint(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write ADDR:PORT, such as 203.0.113.5:4711 or [2001:db8::5]:4711")
}

/// Protects this host, or the hosts behind it
#[derive(Subcommand, Debug)]
pub enum VerifierCommand {
    /// Make this verifier known to its authority
    Enrol {
        /// The verifier's directory
        #[command(flatten)]
        home: Home,
        /// The authority to enrol at
        #[command(flatten)]
        at: Authority,
        /// Enrol even if already enrolled; settings are kept
        #[arg(long)]
        again: bool,
        /// The further organisation to enrol at
        #[command(flatten)]
        further: Further,
    },
    /// Run the verifier. When it exits, protection continues in the kernel; see `detach`
    #[command(after_help = RUN)]
    Run {
        /// The verifier's directory
        #[command(flatten)]
        home: Home,
        /// The daemon of this instance
        #[command(flatten)]
        daemon: Daemon,
        /// The authority to enrol at, if this verifier is not enrolled yet
        #[command(flatten)]
        at: FirstRun,
        /// End protection after this time unless `confirm` is run, so that you can't lock yourself out for good
        #[arg(long, value_name = "TIME", value_parser = duration)]
        r#try: Option<u32>,
        /// Settings
        #[command(flatten)]
        flags: Box<Flags>,
    },
    /// Keep the protection that `run --try` started
    Confirm(Daemon),
    /// End protection, and stop the daemon if it runs
    Detach(Daemon),
    /// Show interfaces, keys, tables and the state of the connection to the authority; exit code 1 if packets can reach
    /// a protected service unchecked
    Status(Look),
    /// List the admitted flows and the people behind them
    Flows(Look),
    /// List the inside addresses of this gateway's pool: current and, since the daemon started, past owners
    Addresses(Look),
    /// Show drops: packets per reason, and the latest drops
    Drops {
        /// The daemon to ask
        #[command(flatten)]
        look: Look,
        /// Print drops as they happen
        #[arg(long)]
        follow: bool,
    },
    /// Show the person behind a connection; exit code 1 if there is no such flow
    Whois {
        /// The daemon to ask
        #[command(flatten)]
        look: Look,
        /// The client's address and port, as the server sees it; IPv6 as [ADDR]:PORT
        #[arg(value_name = "ADDR:PORT", value_parser = endpoint)]
        client: SocketAddr,
    },
    /// Show whether a packet would pass, or whether a person would get a grant, and why; exit code 1 if not
    #[command(after_help = explain::EXAMPLES)]
    Explain {
        /// The daemon to ask
        #[command(flatten)]
        look: Look,
        /// The packet or person to explain
        #[command(flatten)]
        question: explain::Question,
    },
}

/// The verifier's directory
#[derive(Args, Debug)]
pub struct Home {
    /// The verifier's directory
    #[arg(long, value_name = "DIR", env = "VOUCHSAFE_VERIFIER_DIR", default_value = "/var/lib/vouchsafe/verifier")]
    dir: PathBuf,
}

/// The authority to enrol at
#[derive(Args, Debug)]
pub struct Authority {
    /// The authority: https://HOST:PORT, or a name for which DNS lists the authority's servers (SRV). The authority's
    /// certificate must be for this name
    #[arg(long, value_name = "URL|NAME", env = "VOUCHSAFE_AUTHORITY")]
    authority: String,
    /// The CA certificate to trust for the authority [default: the system's]
    #[arg(long, value_name = "FILE", env = "VOUCHSAFE_CA")]
    ca: Option<PathBuf>,
    /// The one-time code that `vouchsafe authority verifier add` printed
    #[arg(long, env = "VOUCHSAFE_CODE", hide_env_values = true)]
    code: String,
}

/// A further organisation, whose authority decides about some of this verifier's receivers
#[derive(Args, Debug)]
pub struct Further {
    /// Enrol at the authority of a further organisation, and give it this name
    #[arg(long, value_name = "NAME", value_parser = organisations::name)]
    organisation: Option<String>,
    /// With --organisation: a network for which this authority may speak; may be repeated
    #[arg(long = "network", value_name = "NET", value_parser = network, requires = "organisation")]
    networks: Vec<IpNet>,
    /// With --organisation: a service for which this authority may speak in its networks; may be repeated [default: all]
    #[arg(long = "service", value_name = "SERVICE", value_parser = parse_service, requires = "organisation")]
    services: Vec<Service>,
}

impl Further {
    /// Enrols at the authority of the organisation `name`, for the verifier in `directory`.
    async fn enrol(self, name: &str, directory: &Directory, at: &Authority, again: bool) -> Result<()> {
        let (stored, default) = directory.read()?;
        let Some(stored) = stored else {
            bail!("enrol at the default organisation first: run `vouchsafe verifier enrol` without --organisation")
        };
        let others = directory.organisations()?;
        if others.len() >= organisations::NAMED_MAX && !others.iter().any(|other| other == name) {
            bail!("a verifier has at most {} further organisations", organisations::NAMED_MAX);
        }
        let own = directory.organisation(name);
        let (before, Flags { networks, services, .. }) = own.read()?;
        if before.is_some() && !again {
            bail!("{} holds an enrolment already: use --again to enrol again", own.file().display());
        }
        let had = if before.is_some() { networks.clone() } else { Vec::new() };
        let networks = if self.networks.is_empty() { networks } else { self.networks };
        let services = if self.services.is_empty() { services } else { self.services };
        if networks.is_empty() {
            bail!("say for which networks the authority of {name} may speak: --network NET");
        }
        if default.networks.is_empty() {
            let new: Vec<_> = networks.iter().filter(|network| !had.contains(network)).copied().collect();
            let verifier = directory.enrolment(&stored)?.verifier.clone();
            let known = State::load(directory.folder(), &verifier).map(|known| known.config.receivers);
            let receivers = client::convert::receivers(&known.unwrap_or_default());
            refuse_to_open(&organisations::within(&receivers, &new), name, directory)?;
        }
        let at = (at.authority.as_str(), at.ca.as_deref(), at.code.as_str());
        let enrolment = own.enrol_organisation((&networks, &services), at).await?;
        println!("enrolled at {name} as {}; its limits are in {}", enrolment.verifier, own.file().display());
        println!("restart the verifier to let the people of {name} in");
        Ok(())
    }
}

/// Fails if the networks of the organisation `name` take `lost` receivers from the default organisation.
fn refuse_to_open(lost: &[String], name: &str, directory: &Directory) -> Result<()> {
    const NAMED: usize = 8;
    let more = if lost.len() > NAMED { format!(" and {} more", lost.len() - NAMED) } else { String::new() };
    ensure!(
        lost.is_empty(),
        "the default organisation protects receivers in the networks of {name}, which would then be open to everybody: \
         {}{more}. Set `networks` in {}, so that the default organisation may also speak for them, or choose other \
         networks for {name}",
        lost[..lost.len().min(NAMED)].join(", "),
        directory.file().display()
    );
    Ok(())
}

/// Reads the enrolments at further organisations.
fn further(directory: &Directory) -> Result<Vec<daemon::Organisation>> {
    let mut all = Vec::new();
    for name in directory.organisations()? {
        let own = directory.organisation(&name);
        let file = own.file();
        let (stored, mut flags) = own.read()?;
        let (networks, services) = (std::mem::take(&mut flags.networks), std::mem::take(&mut flags.services));
        if flags != Flags::default() {
            bail!(
                "{} may contain only an enrolment, `networks` and `services`: the other settings belong in {}",
                file.display(),
                directory.file().display()
            );
        }
        let Some(stored) = stored else {
            tracing::warn!(
                organisation = name,
                "ignoring the organisation: {} holds no enrolment; run `vouchsafe verifier enrol --organisation NAME`",
                file.display()
            );
            continue;
        };
        if networks.is_empty() {
            bail!("{}: `networks` is missing. It says for which networks the authority may speak", file.display());
        }
        let enrolment = own.enrolment(&stored)?;
        all.push(daemon::Organisation { name, directory: own, enrolment, networks, services });
    }
    if all.len() > organisations::NAMED_MAX {
        bail!("a verifier has at most {} further organisations, not {}", organisations::NAMED_MAX, all.len());
    }
    Ok(all)
}

/// The authority to enrol at, if this verifier is not enrolled yet
#[derive(Args, Debug)]
pub struct FirstRun {
    /// At the first run: the authority, as `enrol` takes it
    #[arg(long, value_name = "URL|NAME", env = "VOUCHSAFE_AUTHORITY")]
    authority: Option<String>,
    /// At the first run: the CA certificate to trust for the authority [default: the system's]
    #[arg(long, value_name = "FILE", env = "VOUCHSAFE_CA")]
    ca: Option<PathBuf>,
    /// At the first run: the one-time code that `vouchsafe authority verifier add` printed
    #[arg(long, env = "VOUCHSAFE_CODE", hide_env_values = true, requires = "authority")]
    code: Option<String>,
    /// At the first run: the file that contains the code
    #[arg(long, value_name = "FILE", env = "VOUCHSAFE_CODE_FILE", conflicts_with = "code", requires = "authority")]
    code_file: Option<PathBuf>,
}

impl FirstRun {
    /// Enrols the verifier in `directory`.
    async fn enrol(&self, directory: &Directory) -> Result<Enrolment> {
        let file = self.code_file.as_ref().map(|file| {
            let code = std::fs::read_to_string(file);
            code.with_context(|| format!("cannot read the code for the first run from {}", file.display()))
        });
        let code = self.code.clone().or(file.transpose()?);
        let (Some(authority), Some(code)) = (&self.authority, code) else {
            bail!(
                "{} names no authority: run `vouchsafe verifier enrol`, or give --authority and --code",
                directory.file().display()
            )
        };
        directory.enrol(authority, self.ca.as_deref(), code.trim()).await
    }
}

/// The daemon that the command talks to
#[derive(Args, Debug)]
pub struct Daemon {
    /// Name of the verifier, if several run on this host
    #[arg(long, value_name = "NAME", env = "VOUCHSAFE_VERIFIER_INSTANCE", default_value = control::DEFAULT_INSTANCE, value_parser = instance)]
    instance: String,
    /// The daemon's socket [default: /run/vouchsafe/verifier.sock, or verifier-NAME.sock for another instance]
    #[arg(long, value_name = "PATH", env = "VOUCHSAFE_VERIFIER_SOCKET")]
    socket: Option<PathBuf>,
}

impl Daemon {
    fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| control::default_socket(&self.instance))
    }

    async fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        let socket = self.socket();
        if let Some(answer) = control::try_ask(&socket, request).await? {
            return Ok(answer);
        }
        let pins = Pins::existing("verifier", &self.instance).filter(|pins| !pins.links().is_empty());
        let state = match pins {
            None => "",
            Some(pins) if pins.is_observing() => "; its attached programs keep counting, and let refused packets pass",
            Some(_) => "; protection stays in force without the daemon (`vouchsafe verifier detach` ends protection)",
        };
        bail!(
            "no verifier listens at {}: start `vouchsafe verifier run`, or check `--socket` and `--instance`{state}",
            socket.display()
        )
    }
}

/// A question to the daemon
#[derive(Args, Debug)]
pub struct Look {
    /// The daemon to ask
    #[command(flatten)]
    daemon: Daemon,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses the name of an instance, which becomes part of paths.
fn instance(text: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if (1..=32).contains(&text.len()) && text.chars().all(fine) {
        Ok(text.to_owned())
    } else {
        Err("1 to 32 letters, digits, `-` or `_`".to_owned())
    }
}

/// Runs a command. The exit code is 1 if the answer to a question is no, and 2 for errors.
///
/// # Errors
///
/// Fails if the arguments contradict each other, if enrolment fails, if the daemon can't start, or if the running
/// daemon does not answer the command's question.
pub async fn run(command: VerifierCommand) -> Result<ExitCode> {
    match command {
        VerifierCommand::Enrol {
            home,
            at,
            again,
            further: Further { organisation: Some(name), networks, services },
        } => {
            let further = Further { organisation: None, networks, services };
            further.enrol(&name, &Directory::at(home.dir), &at, again).await?;
            Ok(ExitCode::SUCCESS)
        }
        VerifierCommand::Enrol { home, at, again, .. } => {
            let directory = Directory::at(home.dir);
            if directory.read()?.0.is_some() && !again {
                bail!("{} holds an enrolment already: use --again to enrol again", directory.file().display());
            }
            let enrolment = directory.enrol(&at.authority, at.ca.as_deref(), &at.code).await?;
            println!("enrolled as {}; settings are in {}", enrolment.verifier, directory.file().display());
            Ok(ExitCode::SUCCESS)
        }
        VerifierCommand::Run { home, daemon, at, r#try, flags } => {
            let directory = Directory::at(home.dir);
            let (enrolment, file) = directory.read()?;
            let enrolment = match enrolment {
                Some(stored) => directory.enrolment(&stored)?,
                None => at.enrol(&directory).await?,
            };
            let settings = flags.or(file).settings();
            let trial = r#try.map(|seconds| Duration::from_secs(seconds.into()));
            let socket = daemon.socket();
            let (organisations, instance) = (further(&directory)?, daemon.instance);
            let start = daemon::Start { directory, instance, socket, settings, enrolment, organisations, trial };
            daemon::run(start).await
        }
        VerifierCommand::Confirm(daemon) => {
            println!("{}", daemon.ask::<String>(&Request::Confirm).await?);
            Ok(ExitCode::SUCCESS)
        }
        VerifierCommand::Detach(daemon) => detach(&daemon).await,
        VerifierCommand::Status(look) => {
            let status: view::Status = look.daemon.ask(&Request::Status).await?;
            look.show(&status, show_status)?;
            let is_open = status.not_attached.iter().any(|interface| interface.open);
            Ok(if is_open { NO } else { ExitCode::SUCCESS })
        }
        VerifierCommand::Flows(look) => {
            let flows: Vec<view::Flow> = look.daemon.ask(&Request::Flows).await?;
            look.show(&flows, |flows| print!("{}", flow_table(flows)))
        }
        VerifierCommand::Addresses(look) => {
            let all: Vec<view::InsideAddress> = look.daemon.ask(&Request::Addresses).await?;
            look.show(&all, |all| print!("{}", address_table(all)))
        }
        VerifierCommand::Drops { look, follow: true } => follow(&look).await,
        VerifierCommand::Drops { look, follow: false } => {
            let drops: view::Drops = look.daemon.ask(&Request::Drops { from: 0 }).await?;
            look.show(&drops, show_drops)
        }
        VerifierCommand::Whois { look, client } => {
            let request = Request::Whois { client, server: None };
            let flows: Vec<view::Flow> = look.daemon.ask(&request).await?;
            if flows.is_empty() && !look.json {
                println!("no flow from {client}");
                return Ok(NO);
            }
            look.show(&flows, |flows| flows.iter().for_each(show_flow))?;
            Ok(if flows.is_empty() { NO } else { ExitCode::SUCCESS })
        }
        VerifierCommand::Explain { look, question } => explain::run(&look, question).await,
    }
}

async fn detach(daemon: &Daemon) -> Result<ExitCode> {
    let trouble = match control::try_ask::<String>(&daemon.socket(), &Request::Detach).await {
        Ok(Some(done)) => {
            println!("{done}");
            return Ok(ExitCode::SUCCESS);
        }
        Ok(None) => None,
        // The daemon may be shutting down, and leaves the pins behind.
        Err(error) => Some(error),
    };
    match (Pins::existing("verifier", &daemon.instance), trouble) {
        (Some(pins), trouble) => {
            if let Some(error) = trouble {
                let deadline = Instant::now() + ENDING;
                while pins.lock().is_err() {
                    if Instant::now() > deadline {
                        return Err(error);
                    }
                    tokio::time::sleep(FOLLOW).await;
                }
            }
            Devices::remove(&pins.name())?;
            pins.remove()?;
            Diversion::of(&pins.name()).clear()?;
            println!("detached: nothing is protected now");
            Ok(ExitCode::SUCCESS)
        }
        (None, Some(error)) if !nix::unistd::geteuid().is_root() => Err(error),
        (None, _) => {
            println!("nothing to detach: instance {} protects nothing", daemon.instance);
            Ok(NO)
        }
    }
}

async fn follow(look: &Look) -> Result<ExitCode> {
    let mut from = 0;
    loop {
        let drops: view::Drops = look.daemon.ask(&Request::Drops { from }).await?;
        for dropped in &drops.samples {
            from = dropped.number + 1;
            if look.json {
                println!("{}", serde_json::to_string(dropped)?);
            } else {
                println!("{}", drop_cells(dropped).join("  "));
            }
        }
        tokio::time::sleep(FOLLOW).await;
    }
}

impl Look {
    fn show<T: Serialize>(&self, answer: &T, show: impl FnOnce(&T)) -> Result<ExitCode> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(answer)?);
        } else {
            show(answer);
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser, Debug)]
    struct Program {
        #[command(subcommand)]
        command: VerifierCommand,
    }

    fn parse(line: &str) -> Result<VerifierCommand, clap::Error> {
        Program::try_parse_from(["verifier"].into_iter().chain(line.split(' '))).map(|program| program.command)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Program::command().debug_assert();
    }

    #[tokio::test]
    async fn a_new_organisation_gets_no_networks_in_which_the_default_one_protects_receivers() {
        let room = tempfile::tempdir().expect("room");
        let directory = Directory::at(room.path());
        let write = |settings: &str| {
            let enrolment = "authority = \"https://127.0.0.1:1\"\nverifier = \"edge\"\ntoken = \"t\"\n";
            let text = zeroize::Zeroizing::new(format!("{settings}\n{enrolment}").into_bytes());
            directory.folder().write("verifier.toml", &text).expect("written");
        };
        write("");
        let state = serde_json::json!({
            "config": {
                "verifier": "edge", "epoch_length": 3600, "max_lifetime": 300, "revoked": [], "now": 0,
                "receivers": [{"name": "shop", "prefix": "192.0.2.7/32", "services": []}],
            },
            "keys": {"keys": [], "proofs": null, "now": 0},
        });
        let state: State = serde_json::from_value(state).expect("a state");
        state.store(directory.folder()).expect("stored");
        let enrol = async |network: &str| {
            let networks = vec![network.parse().expect("a network")];
            let further = Further { organisation: None, networks, services: Vec::new() };
            let at = Authority { authority: "https://127.0.0.1:1".into(), ca: None, code: "code".into() };
            format!("{:#}", further.enrol("acme", &directory, &at, false).await.expect_err("nobody listens"))
        };
        let refusal = enrol("192.0.2.0/24").await;
        assert!(refusal.contains("shop (192.0.2.7/32)") && refusal.contains("`networks`"), "{refusal}");
        let others = enrol("198.51.100.0/24").await;
        assert!(!others.contains("open to everybody"), "{others}");
        write("networks = [\"192.0.2.7\"]");
        let shared = enrol("192.0.2.0/24").await;
        assert!(!shared.contains("open to everybody"), "{shared}");
    }

    #[test]
    fn flags_become_settings() {
        let VerifierCommand::Run { flags, r#try, .. } =
            parse("run --interface eth0 --interface eth1 --tcp-idle 2h --observe --try 60s").expect("valid")
        else {
            panic!("not run")
        };
        assert_eq!((r#try, flags.observe, flags.no_adopt), (Some(60), true, false));
        assert_eq!((flags.interface.len(), flags.tcp_idle), (2, Some(7200)));
        assert!(parse("run --replay-buckets 1000").is_err() && parse("run --max-flows 0").is_err());
        assert!(parse("run --instance ../x").is_err() && parse("run --code x").is_err());
        assert!(parse("run --code-file x").is_err() && parse("run --authority a --code x --code-file x").is_err());
    }
}
