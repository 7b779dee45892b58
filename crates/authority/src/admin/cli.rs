//! `vouchsafe authority …`: parses the arguments and prints the results. The modules `admin` and `http::server` do the
//! work.

mod access;
mod audit;
mod cluster;
mod dns;
mod lists;
mod policy;
mod revoke;
mod score;
mod segments;
mod service;
mod session;
mod webhook;

use crate::admin::control::{self, Command};
use crate::admin::{self, Factor, backup};
use crate::directory::default_names;
use crate::http::openapi;
use crate::storage::Database;
use crate::{Directory, Server, now, settings, tls};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use engine::model::Service;
use serde::Serialize;
use shell::table::{Table, count, utc};
use shell::{print, println};
use std::io::{IsTerminal, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use zeroize::Zeroizing;

const WRITE_DEVICE: &str = "write the device as PERSON/DEVICE, as `vouchsafe authority device list` shows it";

/// The option that names the authority's directory.
#[derive(Args, Debug)]
pub struct At {
    /// The authority's directory
    #[arg(long, value_name = "DIR", env = "VOUCHSAFE_AUTHORITY_DIR", default_value = "/var/lib/vouchsafe/authority")]
    dir: PathBuf,
}

impl At {
    fn directory(&self) -> Directory {
        Directory::at(&self.dir)
    }

    fn database(&self) -> Result<Database> {
        self.directory().open_database()
    }
}

/// Options of every command that prints a list.
// Clap would name a group after this type, and a variant `List` of a command has the same name.
#[derive(Args, Debug)]
#[group(skip)]
pub struct List {
    /// The authority's directory
    #[command(flatten)]
    at: At,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Run and administer the authority: accounts, policy, verifiers, grants
#[derive(Subcommand, Debug)]
pub enum AuthorityCommand {
    /// Make the directory: configuration, master key, TLS certificate, example policy, database
    Init {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// A DNS name or address by which clients reach the authority; may be repeated [default: this host's name,
        /// localhost, 127.0.0.1, ::1]
        #[arg(long = "name", value_name = "HOST")]
        names: Vec<String>,
        /// Address and port at which the API listens
        #[arg(long, value_name = "ADDR:PORT", default_value_t = settings::DEFAULT_LISTEN)]
        listen: SocketAddr,
    },
    /// Run the server
    Run {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// Listen at this address instead of the configured one
        #[arg(long, value_name = "ADDR:PORT")]
        listen: Option<SocketAddr>,
    },
    /// Serve the domain of [dns] with the record by which agents find this authority, or print that record
    Dns(dns::DnsArguments),
    /// Manage accounts
    #[command(subcommand)]
    User(UserCommand),
    /// Manage devices and their tags
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Manage service accounts: machines that log in with a key
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// List sessions, and renew them with the identity provider
    #[command(subcommand)]
    Session(session::SessionCommand),
    /// Manage verifiers
    #[command(subcommand)]
    Verifier(VerifierCommand),
    /// Check, compare, try and apply policies
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// End grants early and cut their established flows. Waits until the connected verifiers have confirmed the end
    Revoke(revoke::RevokeArguments),
    /// List grants
    Grants {
        /// Options of the list
        #[command(flatten)]
        list: List,
        /// Include grants that expired or were revoked
        #[arg(long)]
        all: bool,
        /// List only the grant that has or had this handle, live or ended
        #[arg(long, conflicts_with = "all")]
        handle: Option<wire::Handle>,
    },
    /// List and reset people's scores, which applications lower by complaints
    #[command(subcommand)]
    Score(score::ScoreCommand),
    /// List consents and requests for access, withdraw them, and give consents
    #[command(subcommand)]
    Access(access::AccessCommand),
    /// Show and test the webhooks, to which the authority sends messages about requests for access
    #[command(subcommand)]
    Webhook(webhook::WebhookCommand),
    /// Import, change and show lists: entries about who may reach which addresses
    #[command(subcommand)]
    Lists(lists::ListsCommand),
    /// List the path segments in force: those that the running server issued and that have neither ended nor been
    /// withdrawn
    Segments(segments::SegmentsArgs),
    /// Write configuration, policy, keys and database to a new file of mode 0600; the server may be running
    Backup {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The file to write; `-` is standard output, for example to an encryption program
        file: PathBuf,
    },
    /// Recreate the directory from a backup; refuses a directory that is not empty
    Restore {
        /// The directory to create
        #[command(flatten)]
        at: At,
        /// The backup file; `-` is standard input
        file: PathBuf,
        /// Keep sessions and grants: those that were ended after the backup was made become valid again
        #[arg(long)]
        keep_sessions: bool,
    },
    /// Make a new master key, used from the epoch after the next; grants and flows are not affected
    RotateMasterKey {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The old key is compromised: use the new one at once. Flows continue, agents request new grants
        #[arg(long)]
        compromised: bool,
    },
    /// Print the description of the HTTPS API (OpenAPI, JSON)
    Openapi,
    /// List the audit trail, export it, or verify it
    Audit(audit::AuditArgs),
    /// Run several authorities that share their state over etcd
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Move the state of the authority to another store, as `cluster init` or `cluster leave` does
    Migrate(cluster::MigrateArguments),
}

/// Manage accounts
#[derive(Subcommand, Debug)]
pub enum UserCommand {
    /// Add an account; asks for its password
    Add {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The person's name
        name: String,
        /// Give the account a second factor and print the address for the authenticator app
        #[arg(long)]
        totp: bool,
        /// The source of the password
        #[command(flatten)]
        password: Password,
    },
    /// List accounts, people of the identity provider who have logged in, and their devices
    List(List),
    /// Remove an account, or forget a person of the identity provider; sessions and grants end
    Remove {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The person's name
        name: String,
    },
    /// Change a password; the account's sessions and grants end, and its passkeys are removed
    Passwd {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The person's name
        name: String,
        /// Replace the account's second factor and print the address for the authenticator app
        #[arg(long)]
        totp: bool,
        /// Remove the account's second factor
        #[arg(long, conflicts_with = "totp")]
        no_totp: bool,
        /// The source of the password
        #[command(flatten)]
        password: Password,
    },
}

/// Manage devices and their tags
#[derive(Subcommand, Debug)]
pub enum DeviceCommand {
    /// Set the tags of a device, for rules about "tag:NAME"; replaces all previous tags, and removes them if no tag is
    /// given
    Tag {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The device
        #[arg(value_name = "PERSON/DEVICE")]
        device: String,
        /// Tags of the device
        #[arg(value_name = "TAG")]
        tags: Vec<String>,
    },
    /// List devices
    List(List),
}

/// The place from which a command takes a password
#[derive(Args, Debug)]
pub struct Password {
    /// Read the password from this file [default: prompt, or standard input if it is not a terminal]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

/// Manage verifiers
#[derive(Subcommand, Debug)]
pub enum VerifierCommand {
    /// Add a verifier and print its one-time enrolment code, valid for 24 hours
    Add {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The verifier's id, as the policy names it
        id: String,
        /// Print another code for an existing verifier
        #[arg(long)]
        renew: bool,
    },
    /// List verifiers
    List(List),
    /// Remove a verifier; its token becomes invalid and the grants for it end
    Remove {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The verifier's id
        id: String,
    },
}

impl Password {
    fn read(&self) -> Result<Zeroizing<String>> {
        let read = if let Some(file) = &self.password_file {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?
        } else if std::io::stdin().is_terminal() {
            let first = Zeroizing::new(rpassword::prompt_password("Password: ")?);
            let second = Zeroizing::new(rpassword::prompt_password("Repeat the password: ")?);
            if first != second {
                bail!("the two passwords differ");
            }
            return Ok(first);
        } else {
            let mut text = String::new();
            std::io::stdin().take(64 * 1024).read_to_string(&mut text)?;
            text
        };
        let read = Zeroizing::new(read);
        Ok(Zeroizing::new(read.trim_end_matches(['\r', '\n']).to_owned()))
    }
}

/// Runs `command`. Returns exit code 1 if `command` was carried out, but its answer is no: for example, the policy
/// denies a request, a check finds a fault, or there is nothing to revoke.
///
/// # Errors
/// Fails if the command could not be carried out; the caller then exits with code 2.
pub async fn run(command: AuthorityCommand) -> Result<ExitCode> {
    match command {
        AuthorityCommand::Init { at, names, listen } => init(&at, names, listen)?,
        AuthorityCommand::Run { at, listen } => serve(&at, listen).await?,
        AuthorityCommand::Dns(arguments) => return dns::run(arguments).await,
        AuthorityCommand::User(command) => user(command).await?,
        AuthorityCommand::Device(command) => device(command).await?,
        AuthorityCommand::Service(command) => service::run(command).await?,
        AuthorityCommand::Session(command) => return session::run(command).await,
        AuthorityCommand::Verifier(command) => verifier(command).await?,
        AuthorityCommand::Policy(command) => return policy::run(command).await,
        AuthorityCommand::Revoke(arguments) => return revoke::run(arguments).await,
        AuthorityCommand::Grants { list, all, handle } => {
            let database = list.at.database()?;
            let grants = match handle {
                Some(handle) => database.grant(handle)?.into_iter().collect(),
                None => database.grants(now(), all)?,
            };
            show(&list, &grants, &["HANDLE", "PERSON", "DEVICE", "TO", "RECEIVER", "RULE", "UNTIL"], |grant| {
                let until = match grant.revoked {
                    Some(time) if time < grant.expires => format!("revoked {}", utc(time)),
                    _ => utc(grant.expires),
                };
                let service = Service { protocol: grant.protocol, first_port: grant.port, last_port: grant.port };
                let to = format!("{} {}", grant.prefix, engine::policy::service(&service));
                let handle = grant.handle.to_string();
                let texts = [&handle, &grant.person, &grant.device, &to, &grant.receiver, &grant.rule, &until];
                texts.map(Clone::clone).to_vec()
            })?;
        }
        AuthorityCommand::Access(command) => return access::run(command).await,
        AuthorityCommand::Webhook(command) => return webhook::run(command).await,
        AuthorityCommand::Lists(command) => return lists::run(command).await,
        AuthorityCommand::Score(command) => return score::run(command).await,
        AuthorityCommand::Segments(arguments) => return segments::run(arguments).await,
        AuthorityCommand::Backup { at, file } => {
            if file.as_os_str() == "-" {
                backup::write(&at.directory(), std::io::stdout().lock(), "standard output")?;
            } else {
                backup::write_file(&at.directory(), &file)?;
                println!(
                    "wrote {}; it contains every secret: encrypt it before it leaves this machine",
                    file.display()
                );
            }
        }
        AuthorityCommand::Restore { at, file, keep_sessions } => {
            let directory = at.directory();
            let heads = if file.as_os_str() == "-" {
                backup::restore(&directory, std::io::stdin().lock(), "standard input", keep_sessions)?
            } else {
                backup::restore(&directory, backup::open(&file)?, &file.display().to_string(), keep_sessions)?
            };
            println!("created {}; its audit trails are complete and end at", directory.path().display());
            heads.iter().for_each(|head| println!("{head}"));
        }
        AuthorityCommand::RotateMasterKey { at, compromised } => {
            println!("{}", admin::rotate_master_key(&at.directory(), compromised).await?);
        }
        AuthorityCommand::Openapi => print!("{}", openapi::text()),
        AuthorityCommand::Audit(arguments) => return audit::run(arguments).await,
        AuthorityCommand::Cluster(command) => return cluster::run(command).await,
        AuthorityCommand::Migrate(arguments) => return cluster::migrate(arguments).await,
    }
    Ok(ExitCode::SUCCESS)
}

fn init(at: &At, names: Vec<String>, listen: SocketAddr) -> Result<()> {
    let names = if names.is_empty() { default_names() } else { names };
    let directory = at.directory();
    let fingerprint = directory.init(&names, listen)?;
    println!("created {} for {}", directory.path().display(), names.join(", "));
    println!("give {} to agents and verifiers; its SHA-256 fingerprint is", directory.ca().display());
    println!("{fingerprint}");
    println!(
        "next: edit {}, run `vouchsafe authority user add`, give {} to the user that runs the authority (`chown -R`), \
        and start the authority as this user: `vouchsafe authority run`, or its service",
        directory.policy().display(),
        directory.path().display()
    );
    Ok(())
}

async fn serve(at: &At, listen: Option<SocketAddr>) -> Result<()> {
    let directory = at.directory();
    let mut server = Server::start(directory.clone(), listen).await?;
    let fingerprint = tls::fingerprint(&std::fs::read(directory.ca())?)?;
    println!("listening on {}; the CA's fingerprint is {fingerprint}", server.address());
    let (mut interrupt, mut terminate, mut hang_up) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    loop {
        tokio::select! {
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            // By convention, SIGHUP makes a daemon reload its configuration.
            _ = hang_up.recv() => if let Some(control::Reply::Refused(why)) =
                control::send(&directory, Command::ApplyPolicy { text: None, note: "reload by signal".into(), by: None }).await? {
                tracing::error!("cannot apply the edited policy; the policy in force stays: {why}");
            },
            error = server.failed() => return Err(error),
        }
    }
    server.stop().await;
    Ok(())
}

async fn user(command: UserCommand) -> Result<()> {
    match command {
        UserCommand::Add { at, name, totp, password } => {
            let address = admin::add_account(&at.directory(), &name, &password.read()?, totp).await?;
            println!("added {name}");
            if let Some(address) = address {
                println!("the second factor for the authenticator app, which cannot be shown again:\n{}", *address);
            }
        }
        UserCommand::List(list) => {
            let accounts = list.at.database()?.accounts()?;
            show(&list, &accounts, &["PERSON", "FROM", "SECOND FACTOR", "GROUPS", "CREATED", "DEVICES"], |account| {
                let factor = if account.totp { "totp" } else { "-" };
                let from = account.issuer.clone().unwrap_or_else(|| "here".into());
                let [groups, devices] = [&account.groups, &account.devices].map(|names| or_dash(names));
                vec![account.person.clone(), from, factor.into(), groups, utc(account.created), devices]
            })?;
        }
        UserCommand::Remove { at, name } => {
            admin::remove_account(&at.directory(), &name).await?;
            println!("removed {name}");
        }
        UserCommand::Passwd { at, name, totp, no_totp, password } => {
            let factor = match (totp, no_totp) {
                (true, _) => Factor::Renew,
                (_, true) => Factor::Remove,
                _ => Factor::Keep,
            };
            let changed = admin::change_password(&at.directory(), &name, &password.read()?, factor).await?;
            let (passkeys, address) = changed;
            println!("changed the password of {name}; the account's sessions ended; passkeys removed: {passkeys}");
            if let Some(address) = address {
                println!("the second factor for the authenticator app, which cannot be shown again:\n{}", *address);
            }
        }
    }
    Ok(())
}

/// Formats a list of names as a table cell; an empty list becomes `-`.
fn or_dash(names: &[String]) -> String {
    if names.is_empty() { "-".into() } else { names.join(", ") }
}

async fn device(command: DeviceCommand) -> Result<()> {
    match command {
        DeviceCommand::Tag { at, device, tags } => {
            let (person, name) = device.split_once('/').context(WRITE_DEVICE)?;
            println!("{}", admin::tag_device(&at.directory(), person, name, &tags).await?);
        }
        DeviceCommand::List(list) => {
            let devices = list.at.database()?.devices(None)?;
            show(&list, &devices, &["PERSON", "DEVICE", "TAGS", "LAST LOGIN"], |device| {
                vec![device.person.clone(), device.device.clone(), or_dash(&device.tags), utc(device.last_login)]
            })?;
        }
    }
    Ok(())
}

async fn verifier(command: VerifierCommand) -> Result<()> {
    match command {
        VerifierCommand::Add { at, id, renew } => {
            let code = admin::add_verifier(&at.directory(), &id, renew).await?;
            eprintln!("enrolment code of {id}, for a single use within 24 hours:");
            println!("{}", *code);
        }
        VerifierCommand::List(list) => {
            let verifiers = list.at.database()?.verifiers()?;
            show(&list, &verifiers, &["VERIFIER", "CREATED", "ENROLLED", "CODE UNTIL"], |verifier| {
                let or_dash = |time: Option<u64>| time.map_or_else(|| "-".into(), utc);
                let times = [utc(verifier.created), or_dash(verifier.enrolled), or_dash(verifier.code_expires)];
                [vec![verifier.verifier.clone()], times.to_vec()].concat()
            })?;
        }
        VerifierCommand::Remove { at, id } => {
            admin::remove_verifier(&at.directory(), &id).await?;
            println!("removed {id}");
        }
    }
    Ok(())
}

fn show<T: Serialize>(list: &List, items: &[T], head: &[&str], row: impl Fn(&T) -> Vec<String>) -> Result<()> {
    if list.json {
        println!("{}", serde_json::to_string_pretty(items)?);
    } else {
        print!("{}", Table::new(head, items.iter().map(row)));
    }
    Ok(())
}
