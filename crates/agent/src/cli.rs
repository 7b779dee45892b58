//! `vouchsafe agent …`: parses arguments and prints answers. The daemon does the work.

mod discover;
mod login;
mod ping;
mod redirect;
mod words;

use crate::protocol::{Call, Reply, Request};
use crate::settings::{DEFAULT_INSTANCE, DEFAULT_SOCKET, Flags, Settings};
use crate::{control, daemon, kernel};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use engine::agent::Consent;
use engine::model::Target;
use shell::table::Table;
use shell::{print, println};
use std::io::Write;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::process::ExitCode;
use words::{ago, left, service};

/// The daemon to talk to, and the user to act for
#[derive(Args, Clone, Debug)]
pub struct At {
    /// The daemon's socket
    #[arg(long, value_name = "PATH", env = "VOUCHSAFE_AGENT_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Act for this user (root only) [default: yourself]
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
}

/// Runs the agent on this machine, or queries it
#[derive(Subcommand, Debug)]
pub enum AgentCommand {
    /// Run the daemon
    Run(Box<Flags>),
    /// Detach from every interface and remove the agent's state from the kernel, after the daemon has stopped for good
    Detach {
        /// The instance
        #[arg(long, value_name = "NAME", default_value = DEFAULT_INSTANCE, env = "VOUCHSAFE_AGENT_INSTANCE")]
        instance: String,
    },
    /// The agent's commands for users
    #[command(flatten)]
    Shortcut(Shortcut),
}

const LOGIN: &str = "Examples:
  vouchsafe login example.org
  vouchsafe login --authority https://server.example.org:8443 --ca ca.pem
  vouchsafe login --authority https://server.example.org:8443 --ca ca.pem --device-code
  vouchsafe login --authority https://server.example.org:8443 --ca ca.pem --user alice
  vouchsafe login --authority https://server.example.org:8443 --service-key backup.key";
const ALLOW: &str = "Examples:
  vouchsafe grants allow server.example.org:22
  vouchsafe grants allow 192.0.2.0/24";

/// The commands for users, also available directly under `vouchsafe`
#[derive(Subcommand, Debug)]
pub enum Shortcut {
    /// Log in to an authority
    #[command(after_help = LOGIN)]
    Login(Box<login::LoginArguments>),
    /// End the session
    Logout(login::LogoutArguments),
    /// Show which authority protects a domain, according to DNS
    Discover(discover::DiscoverArguments),
    /// Show your session and the state of the agent
    Status(StatusArguments),
    /// Manage your grants, and the destinations that your identity may go to
    #[command(subcommand)]
    Grants(GrantsCommand),
    /// Show step by step what happens to a first packet
    Ping(ping::PingArguments),
}

impl From<Shortcut> for AgentCommand {
    fn from(shortcut: Shortcut) -> Self {
        Self::Shortcut(shortcut)
    }
}

/// Show your session and the state of the agent
#[derive(Args, Debug)]
pub struct StatusArguments {
    #[command(flatten)]
    at: At,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Manage your grants, and the destinations that your identity may go to
#[derive(Subcommand, Debug)]
pub enum GrantsCommand {
    /// List your grants and rules
    List {
        /// The daemon to talk to, and the user to act for
        #[command(flatten)]
        at: At,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Allow tokens in packets to a destination
    #[command(after_help = ALLOW)]
    Allow(RuleArguments),
    /// Forbid tokens in packets to a destination: they are sent without identity
    Deny(RuleArguments),
    /// Forget the rule for a destination
    Forget(RuleArguments),
}

/// A rule's destination
#[derive(Args, Debug)]
pub struct RuleArguments {
    #[command(flatten)]
    at: At,
    /// An address, a network or a name, with or without port: 192.0.2.1, 192.0.2.0/24:22, [2001:db8::1]:443, host:22
    destination: String,
}

/// Runs a command. The exit code is 1 if the answer is no, and 2 for errors.
pub async fn run(command: AgentCommand) -> Result<ExitCode> {
    match command {
        AgentCommand::Run(flags) => {
            daemon::run(Settings::load(*flags)?).await?;
            Ok(ExitCode::SUCCESS)
        }
        AgentCommand::Detach { instance } => match datapath::Pins::existing("agent", &instance) {
            Some(pins) => {
                kernel::detach(&pins)?;
                println!("detached: packets no longer get tokens");
                Ok(ExitCode::SUCCESS)
            }
            None => no(&format!("nothing to detach: the kernel holds no state of agent instance {instance:?}")),
        },
        AgentCommand::Shortcut(Shortcut::Login(arguments)) => login::run(*arguments).await,
        AgentCommand::Shortcut(Shortcut::Logout(arguments)) => login::logout(arguments).await,
        AgentCommand::Shortcut(Shortcut::Discover(arguments)) => discover::run(arguments).await,
        AgentCommand::Shortcut(Shortcut::Status(arguments)) => status(arguments).await,
        AgentCommand::Shortcut(Shortcut::Grants(command)) => grants(command).await,
        AgentCommand::Shortcut(Shortcut::Ping(arguments)) => ping::run(arguments).await,
    }
}

impl At {
    async fn call(&self, call: Call) -> Result<Reply> {
        control::call(&self.socket, &Request { uid: self.uid, call }).await
    }
}

/// Prints the reason for a negative answer; returns exit code 1.
fn no(why: &str) -> Result<ExitCode> {
    eprintln!("vouchsafe: {why}");
    Ok(ExitCode::FAILURE)
}

fn done(reply: Reply) -> Result<ExitCode> {
    match reply {
        Reply::Done { text } => {
            println!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        other => unexpected(other),
    }
}

fn unexpected(reply: Reply) -> Result<ExitCode> {
    match reply {
        Reply::Refused { kind, text } if matches!(kind.as_str(), "unreachable" | "malformed" | "other") => bail!(text),
        Reply::Refused { text, .. } => no(&text),
        _ => bail!("unexpected answer from the agent: its version may differ from that of this command"),
    }
}

fn ask(what: &str) -> Result<String> {
    eprint!("{what}");
    std::io::stderr().flush()?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("cannot read the answer from standard input")?;
    let line = line.trim().to_owned();
    if line.is_empty() {
        bail!("the answer on standard input is empty: run the command again");
    }
    Ok(line)
}

async fn status(arguments: StatusArguments) -> Result<ExitCode> {
    let status = match arguments.at.call(Call::Status).await? {
        Reply::Status(status) => status,
        other => return unexpected(other),
    };
    let code = if status.session.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(code);
    }
    match &status.session {
        None => println!("not logged in: run `vouchsafe login DOMAIN` or `vouchsafe login --authority URL`"),
        Some(session) => {
            println!("{} on {}, session ends in {}", session.person, session.device, left(session.expires, status.now));
            match &session.trouble {
                None => println!("authority {}: reachable", session.authority),
                Some(trouble) => println!("authority {}: {trouble}", session.authority),
            }
        }
    }
    let own = status.session.as_ref().map(|session| session.authority.as_str());
    for discovered in status.discovered.iter().filter(|discovered| Some(discovered.authority.as_str()) != own) {
        println!("{}", discover::sentence(discovered));
    }
    let interfaces = status.interfaces.iter().map(|interface| {
        vec![interface.name.clone(), interface.trouble.clone().unwrap_or_else(|| interface.attachment.clone())]
    });
    print!("\n{}", Table::new(&["INTERFACE", "ATTACHED"], interfaces));
    let counters = status.counters.iter().map(|(name, count)| vec![name.clone(), count.to_string()]);
    print!("\n{}", Table::new(&["PACKETS", "COUNT"], counters));
    let destinations = status.session.iter().flat_map(|session| &session.destinations);
    let destinations = destinations.map(|receiver| {
        let services: Vec<_> =
            receiver.services.iter().map(|span| service(span.protocol, span.first_port, span.last_port)).collect();
        vec![receiver.name.clone(), receiver.prefix.to_string(), services.join(" ")]
    });
    print!("\n{}", Table::new(&["RECEIVER", "ADDRESS", "SERVICES"], destinations));
    Ok(code)
}

async fn grants(command: GrantsCommand) -> Result<ExitCode> {
    match command {
        GrantsCommand::List { at, json } => list(&at, json).await,
        GrantsCommand::Allow(arguments) => rule(arguments, Some(Consent::Allow)).await,
        GrantsCommand::Deny(arguments) => rule(arguments, Some(Consent::Deny)).await,
        GrantsCommand::Forget(arguments) => rule(arguments, None).await,
    }
}

async fn list(at: &At, json: bool) -> Result<ExitCode> {
    let reply = at.call(Call::Grants).await?;
    if json && matches!(reply, Reply::Grants { .. }) {
        println!("{}", serde_json::to_string_pretty(&reply)?);
        return Ok(ExitCode::SUCCESS);
    }
    let Reply::Grants { grants, rules, default, now } = reply else { return unexpected(reply) };
    let rows = grants.iter().map(|grant| {
        let port = grant.port.unwrap_or(u16::MAX);
        let service = service(grant.protocol.unwrap_or(0), grant.port.unwrap_or(0), port);
        vec![
            format!("{} {service}", grant.prefix),
            grant.receiver.clone(),
            if grant.rule.is_empty() { "-".to_owned() } else { grant.rule.clone() },
            left(grant.expires.into(), now),
            ago(grant.used.into(), now),
            grant.treatment.clone(),
        ]
    });
    let head = ["DESTINATION", "RECEIVER", "RULE", "EXPIRES", "USED", "TREATMENT"];
    print!("{}", Table::new(&head, rows));
    let rules = rules.iter().map(|rule| vec![rule.target.to_string(), rule.consent.name().to_owned()]);
    let rules = rules.chain([vec!["everything else".to_owned(), default.name().to_owned()]]);
    print!("\n{}", Table::new(&["YOUR RULES", "TOKENS"], rules));
    Ok(ExitCode::SUCCESS)
}

async fn rule(arguments: RuleArguments, consent: Option<Consent>) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for target in targets(&arguments.destination)? {
        let made = done(arguments.at.call(Call::Rule { target, consent }).await?)?;
        if made != ExitCode::SUCCESS {
            code = made;
        }
    }
    Ok(code)
}

/// Parses a destination as users write it; a name stands for all its addresses.
fn targets(text: &str) -> Result<Vec<Target>> {
    let error = match text.parse() {
        Ok(target) => return Ok(vec![target]),
        Err(error) => error,
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse().map_err(|_| error)?)),
        None => (text, None),
    };
    let addresses = (host, 0u16).to_socket_addrs().with_context(|| format!("cannot find the addresses of {host}"))?;
    let mut targets: Vec<_> = addresses.map(|address| Target::host(address.ip(), port)).collect();
    targets.sort();
    targets.dedup();
    Ok(targets)
}
