//! Commands that query or change the user's session and grants. They parse arguments and print answers. The agent does
//! the work. If no agent runs, the user's own session does it.

mod access;
mod discover;
mod login;
mod ping;
mod redirect;
mod words;

use crate::at::At;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use engine::agent::Consent;
use engine::model::Target;
use ipnet::IpNet;
use reach::protocol::{Call, GrantWays, Reply, Status};
use shell::table::Table;
use shell::{print, println};
use std::io::Write;
use std::net::ToSocketAddrs;
use std::process::ExitCode;
use words::{ago, left, service};

const LOGIN: &str = "Examples:
  vouchsafe login example.org
  vouchsafe login --authority https://server.example.org:8443 --ca ca.pem
  vouchsafe login --authority https://server.example.org:8443 --ca ca.pem --device-code
  vouchsafe login --authority https://server.example.org:8443 --ca ca.pem --user alice
  vouchsafe login --authority https://server.example.org:8443 --service-key backup.key";
const ALLOW: &str = "Examples:
  vouchsafe grants allow server.example.org:22
  vouchsafe grants allow 192.0.2.0/24";

/// The commands about the session, under `vouchsafe` and, for the agent only, under `vouchsafe agent`
#[derive(Subcommand, Debug)]
pub enum SessionCommand {
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
    /// Ask for access to receivers for which somebody else decides
    #[command(subcommand)]
    Access(access::AccessCommand),
    /// Show step by step what happens to a first packet
    Ping(ping::PingArguments),
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
        /// The agent's socket, and the user whose session is concerned
        #[command(flatten)]
        at: At,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Allow tokens in packets to a destination
    #[command(after_help = ALLOW)]
    Allow(RuleArguments),
    /// Forbid tokens in packets to a destination: these packets are sent without your identity
    Deny(RuleArguments),
    /// Forget the rule for a destination
    Forget(RuleArguments),
}

/// The destination of a rule
#[derive(Args, Debug)]
pub struct RuleArguments {
    #[command(flatten)]
    at: At,
    /// An address, a network or a name, with or without port: 192.0.2.1, 192.0.2.0/24:22, [2001:db8::1]:443, host:22
    destination: String,
}

/// Runs a command. Returns exit code 1 if the answer is no.
///
/// # Errors
///
/// Fails if the command could not be carried out; the caller then exits with code 2.
pub async fn run(command: SessionCommand) -> Result<ExitCode> {
    match command {
        SessionCommand::Login(arguments) => login::run(*arguments).await,
        SessionCommand::Logout(arguments) => login::logout(arguments).await,
        SessionCommand::Discover(arguments) => discover::run(arguments).await,
        SessionCommand::Status(arguments) => status(arguments).await,
        SessionCommand::Grants(command) => grants(command).await,
        SessionCommand::Access(command) => access::run(command).await,
        SessionCommand::Ping(arguments) => ping::run(arguments).await,
    }
}

/// Runs a command at the agent.
///
/// # Errors
///
/// Fails if no agent runs, or if the command could not be carried out.
pub async fn run_at_agent(mut command: SessionCommand) -> Result<ExitCode> {
    let at = match &mut command {
        SessionCommand::Login(arguments) => &mut arguments.at,
        SessionCommand::Logout(arguments) => &mut arguments.at,
        SessionCommand::Discover(arguments) => &mut arguments.at,
        SessionCommand::Status(arguments) => &mut arguments.at,
        SessionCommand::Grants(GrantsCommand::List { at, .. }) => at,
        SessionCommand::Grants(
            GrantsCommand::Allow(arguments) | GrantsCommand::Deny(arguments) | GrantsCommand::Forget(arguments),
        ) => &mut arguments.at,
        SessionCommand::Access(command) => command.at(),
        SessionCommand::Ping(arguments) => &mut arguments.at,
    };
    at.agent_only();
    run(command).await
}

/// Prints the reason for a negative answer. Returns exit code 1.
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
        bail!("no input");
    }
    Ok(line)
}

async fn status(arguments: StatusArguments) -> Result<ExitCode> {
    let status = match arguments.at.call(Call::Status).await? {
        Reply::Status(status) => status,
        other => return unexpected(other),
    };
    let code = if status.sessions().next().is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(code);
    }
    if code == ExitCode::FAILURE {
        println!("not logged in: run `vouchsafe login DOMAIN` or `vouchsafe login --authority URL`");
    }
    for (name, session) in status.sessions() {
        let of = if status.organisations.len() > 1 { format!("{name}: ") } else { String::new() };
        println!("{of}{} on {}, session ends in {}", session.person, session.device, left(session.expires, status.now));
        let in_use = session.in_use.as_ref().unwrap_or(&session.authority);
        match &session.trouble {
            None => println!("authority {in_use}: reachable"),
            Some(trouble) => println!("authority {in_use}: {trouble}"),
        }
        let GrantWays { udp, https } = session.grants_by;
        if udp + https > 0 {
            println!("grants received: {udp} by UDP, {https} over HTTPS");
        }
        let others: Vec<_> = session.authorities.iter().filter(|url| *url != in_use).cloned().collect();
        if !others.is_empty() {
            println!("other authorities of the cluster: {}", others.join(" "));
        }
    }
    organisations(&status);
    if let Some(dir) = &status.own {
        println!(
            "no agent puts tokens into packets here: the session is your own, in {}; use it by `vouchsafe connect`, \
             `run` and `proxy`",
            dir.display()
        );
    }
    if status.tunnels.iter().any(|tunnel| tunnel.keys_exported) {
        println!(
            "DANGER: the agent writes the keys of your sealed tunnels to a file, for debugging; everybody who has this file \
             can read what the tunnels carry"
        );
    }
    let is_own = |authority: &str| status.sessions().any(|(_, session)| session.authority == authority);
    for discovered in status.discovered.iter().filter(|discovered| !is_own(&discovered.authority)) {
        println!("{}", discover::sentence(discovered));
    }
    if status.own.is_none() {
        let interfaces = status.interfaces.iter().map(|interface| {
            vec![interface.name.clone(), interface.trouble.clone().unwrap_or_else(|| interface.attachment.clone())]
        });
        print!("\n{}", Table::new(&["INTERFACE", "ATTACHED"], interfaces));
        let counters = status.counters.iter().map(|(name, count)| vec![name.clone(), count.to_string()]);
        print!("\n{}", Table::new(&["PACKETS", "COUNT"], counters));
        if !status.tunnel_queues.is_empty() {
            let queues =
                status.tunnel_queues.iter().enumerate().map(|(number, queue)| {
                    vec![number.to_string(), queue.sealed.to_string(), queue.opened.to_string()]
                });
            print!("\n{}", Table::new(&["TUNNEL QUEUE", "BYTES SEALED", "BYTES OPENED"], queues));
        }
    }
    let destinations = status.sessions().flat_map(|(_, session)| &session.destinations);
    let destinations = destinations.map(|receiver| {
        let services: Vec<_> =
            receiver.services.iter().map(|span| service(span.protocol, span.first_port, span.last_port)).collect();
        vec![receiver.name.clone(), receiver.prefix.to_string(), services.join(" ")]
    });
    print!("\n{}", Table::new(&["RECEIVER", "ADDRESS", "SERVICES"], destinations));
    Ok(code)
}

/// Prints the networks of the user's organisations, and the claims that are ignored.
fn organisations(status: &Status) {
    let list = |networks: &[IpNet]| networks.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" ");
    if status.organisations.len() > 1 {
        let rows = status.organisations.iter().map(|one| {
            let networks =
                one.networks.as_deref().map_or_else(|| "all that no other organisation has".to_owned(), list);
            let person = one.session.as_ref().map_or("-", |session| &session.person);
            vec![one.name.clone(), person.to_owned(), networks]
        });
        print!("\n{}\n", Table::new(&["ORGANISATION", "PERSON", "NETWORKS"], rows));
    }
    for one in status.organisations.iter().filter(|one| !one.refused.is_empty()) {
        println!(
            "the authority of {} claims {}, for which it may not speak: this claim is ignored",
            one.name,
            list(&one.refused)
        );
    }
    for why in status.organisations.iter().flat_map(|one| &one.refused_members) {
        println!("the agent does not connect to an authority: {why}");
    }
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

/// Parses a destination as users write it. A name stands for all its addresses.
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
