//! `vouchsafe authority cluster …`: makes an authority a member of a cluster, and shows the cluster.

use super::{At, count};
use crate::admin::control::{self, Command, Reply};
use crate::cluster::bundle::{self, Etcd, Left};
use crate::cluster::contact::Standing;
use crate::cluster::status::Status;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use shell::{print, println};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

/// Run several authorities that share their state over etcd
#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// Make this authority the first member of a new cluster; stop its server first
    Init(InitArguments),
    /// Write an invitation, with which another host becomes a member; it contains every secret of the authority
    Invite {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The name of the new member
        name: String,
        /// The URL at which agents and verifiers will reach the new member, such as https://b.example.org:8443
        #[arg(long)]
        url: String,
        /// A DNS name or address for the new member's certificate; may be repeated [default: the host in --url]
        #[arg(long = "name-of-host", value_name = "HOST")]
        hosts: Vec<String>,
        /// The file to write, of mode 0600: move it to the new host, and delete it there after `cluster join`
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Create the directory of a new member from an invitation, with a copy of the cluster's state
    Join {
        /// The directory to create
        #[command(flatten)]
        at: At,
        /// The invitation that `cluster invite` wrote
        file: PathBuf,
        /// Listen at this address instead of the one in the invitation
        #[arg(long, value_name = "ADDR:PORT")]
        listen: Option<SocketAddr>,
        /// A URL of etcd as this host reaches it, the nearest first; may be repeated [default: those in the invitation]
        #[arg(long = "etcd", value_name = "URL")]
        etcd: Vec<String>,
    },
    /// Turn this member into an authority that is in no cluster and keeps its copy of the state; stop its server first
    Leave {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// Leave although etcd does not answer: the copy may lack the latest changes
        #[arg(long)]
        without_etcd: bool,
        /// Leave although there are other members. They must not continue to run: only this authority continues with
        /// the state
        #[arg(long)]
        keep_state: bool,
    },
    /// Remove a member that will never come back from the list of members
    Remove {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// Remove the member even if it is running
        #[arg(long)]
        force: bool,
        /// The name of the member
        name: String,
    },
    /// Show etcd, the members, and the changes that each of them has followed; exit code 1 if something needs attention
    Status {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// The files with which members and etcd authenticate each other
#[derive(Args, Debug)]
pub struct EtcdTls {
    /// The CA certificates that etcd's certificates must be signed by [default: those of the system]
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// The certificate that members show to etcd
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    etcd_cert: Option<PathBuf>,
    /// The key of the certificate that members show to etcd
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
}

/// The options of `cluster init`
#[derive(Args, Debug)]
pub struct InitArguments {
    /// The authority's directory
    #[command(flatten)]
    at: At,
    /// A URL of etcd, such as https://192.0.2.11:2379; repeat it for each server, the nearest first
    #[arg(long = "etcd", value_name = "URL", required = true)]
    etcd: Vec<String>,
    /// The name of this member
    #[arg(long)]
    name: String,
    /// The URL at which agents and verifiers reach this member, such as https://a.example.org:8443
    #[arg(long)]
    url: String,
    #[command(flatten)]
    tls: EtcdTls,
}

/// Moves the state of the authority to another store
#[derive(Args, Debug)]
pub struct MigrateArguments {
    /// `etcd` makes the authority the first member of a cluster, as `cluster init` does. `etcd://HOST:PORT` does the
    /// same with the etcd at https://HOST:PORT; further servers follow after commas. `sqlite` takes a member out of its
    /// cluster, as `cluster leave` does
    #[arg(long, value_name = "STORE")]
    to: Store,
    /// The options of `cluster init` and of `cluster leave`
    #[command(flatten)]
    options: MigrateOptions,
}

/// The options of `cluster init` and of `cluster leave`, all of them optional
#[derive(Args, Debug)]
pub struct MigrateOptions {
    /// The authority's directory
    #[command(flatten)]
    at: At,
    /// A URL of etcd; repeat it for each server, the nearest first
    #[arg(long = "etcd", value_name = "URL", required_if_eq("to", "etcd"))]
    etcd: Vec<String>,
    /// The name of this member
    #[arg(long, required_if_eq("to", "etcd"))]
    name: Option<String>,
    /// The URL at which agents and verifiers reach this member
    #[arg(long, required_if_eq("to", "etcd"))]
    url: Option<String>,
    #[command(flatten)]
    tls: EtcdTls,
    /// Leave although etcd does not answer: the copy may lack the latest changes
    #[arg(long)]
    without_etcd: bool,
    /// Leave although there are other members. They must not continue to run: only this authority continues with the
    /// state
    #[arg(long)]
    keep_state: bool,
}

/// A store of the authority's state
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// A cluster over etcd. The URLs of etcd's servers, if `--to` names them.
    Etcd(Vec<String>),
    /// An authority in no cluster, with its state in an SQLite file.
    Sqlite,
}

impl FromStr for Store {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let servers = match text {
            "etcd" => return Ok(Self::Etcd(Vec::new())),
            "sqlite" => return Ok(Self::Sqlite),
            _ => text.strip_prefix("etcd://").ok_or("the stores are etcd, etcd://HOST:PORT and sqlite")?,
        };
        let url = |server: &str| {
            let is_server = server.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && !host.contains(['/', '@', '?', '#']) && port.parse::<u16>().is_ok()
            });
            if is_server {
                Ok(format!("https://{server}"))
            } else {
                Err(format!("{server:?} is not a server of etcd, such as 192.0.2.11:2379"))
            }
        };
        servers.split(',').map(url).collect::<Result<_, _>>().map(Self::Etcd)
    }
}

pub(super) async fn run(command: ClusterCommand) -> Result<ExitCode> {
    match command {
        ClusterCommand::Init(arguments) => blocking(move || init(arguments)).await,
        ClusterCommand::Invite { at, name, url, hosts, out } => {
            let (directory, written) = (at.directory(), out.clone());
            let invited = name.clone();
            blocking(move || bundle::invite(&directory, &invited, &hosts, &url, &written)).await?;
            println!("wrote {} for member {name}; it contains every secret of the authority", out.display());
            println!("next: move it to the new host, and run there: vouchsafe authority cluster join FILE");
            Ok(ExitCode::SUCCESS)
        }
        ClusterCommand::Join { at, file, listen, etcd } => {
            let (directory, invitation) = (at.directory(), file.clone());
            let config = blocking(move || bundle::join(&directory, &invitation, listen, &etcd)).await?;
            println!("created {}: member {} of cluster {}", at.directory().path().display(), config.name, config.id);
            println!(
                "next: delete {}, give the directory to the user that runs the authority (chown -R), and start it",
                file.display()
            );
            Ok(ExitCode::SUCCESS)
        }
        ClusterCommand::Leave { at, without_etcd, keep_state } => leave(at, without_etcd, keep_state).await,
        ClusterCommand::Remove { at, force, name } => {
            let (directory, removed) = (at.directory(), name.clone());
            blocking(move || bundle::remove(&directory, &removed, force)).await?;
            println!(
                "removed {name}. If somebody else has the member's disk, they still have the cluster's key: let all \
                 members leave, make a new cluster, and rotate the master key (docs/cluster.md)"
            );
            Ok(ExitCode::SUCCESS)
        }
        ClusterCommand::Status { at, json } => status(&at, json).await,
    }
}

/// Runs `vouchsafe authority migrate`.
pub(super) async fn migrate(MigrateArguments { to, options }: MigrateArguments) -> Result<ExitCode> {
    let MigrateOptions { at, etcd, name, url, tls, without_etcd, keep_state } = options;
    match to {
        Store::Sqlite => leave(at, without_etcd, keep_state).await,
        Store::Etcd(named) => {
            let name = name.context("`--to etcd://…` needs `--name`, the name of this member")?;
            let url = url.context("`--to etcd://…` needs `--url`, at which agents and verifiers reach this member")?;
            let arguments = InitArguments { at, etcd: [named, etcd].concat(), name, url, tls };
            blocking(move || init(arguments)).await
        }
    }
}

fn init(arguments: InitArguments) -> Result<ExitCode> {
    let InitArguments { at, etcd, name, url, tls } = arguments;
    let EtcdTls { etcd_ca, etcd_cert, etcd_key } = tls;
    let reached = Etcd { endpoints: etcd, ca: etcd_ca, certificate: etcd_cert, key: etcd_key };
    let id = bundle::init(&at.directory(), &reached, &name, &url)?;
    println!("made cluster {id}; this authority is its member {name}");
    println!("next: start the authority, then run `vouchsafe authority cluster invite` for each further member");
    Ok(ExitCode::SUCCESS)
}

async fn leave(at: At, without_etcd: bool, keep_state: bool) -> Result<ExitCode> {
    let directory = at.directory();
    let Left { name, unknown } = blocking(move || bundle::leave(&directory, without_etcd, keep_state)).await?;
    println!("this authority was member {name}, and is in no cluster now; it keeps accounts, policy, grants and keys");
    if let Some(why) = unknown {
        println!(
            "etcd did not answer ({why}): this copy may lack the latest changes, and the other members still list \
             {name}"
        );
    }
    if keep_state {
        println!(
            "the other members must not continue: they would issue grants with the same keys. Delete their directories"
        );
    }
    Ok(ExitCode::SUCCESS)
}

async fn status(at: &At, json: bool) -> Result<ExitCode> {
    let directory = at.directory();
    let standing = match control::ask::<Standing>(&directory, Command::Standing).await {
        Ok(Some(Reply::Done(standing))) => Some(standing),
        Ok(Some(Reply::Refused(_)) | None) => None,
        Err(error) => {
            eprintln!("note: the running server did not answer: {error:#}");
            None
        }
    };
    let status = blocking(move || Status::read(&directory, standing)).await?;
    if json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print!("{status}");
        let missing = status.members.iter().filter(|member| member.is_there == Some(false)).count();
        if missing > 0 {
            println!(
                "\n{} without contact with etcd (NO in the column THERE). If a member will never come back, run \
                 `vouchsafe authority cluster remove NAME`; otherwise start it",
                count(missing, "member")
            );
        }
    }
    Ok(if status.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs `work` on a blocking thread, because the database of a member waits for etcd.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_by_a_word_or_by_the_servers_of_etcd() {
        assert_eq!("sqlite".parse(), Ok(Store::Sqlite));
        assert_eq!("etcd".parse(), Ok(Store::Etcd(Vec::new())));
        let urls = vec!["https://192.0.2.11:2379".to_owned(), "https://[2001:db8::1]:2379".to_owned()];
        assert_eq!("etcd://192.0.2.11:2379,[2001:db8::1]:2379".parse(), Ok(Store::Etcd(urls)));
        for text in ["postgres", "etcd:", "https://192.0.2.11:2379"] {
            assert!(text.parse::<Store>().unwrap_err().contains("etcd://HOST:PORT"), "{text}");
        }
        for text in ["etcd://", "etcd://a", "etcd://a:b", "etcd://a:1,", "etcd://a:1/path", "etcd://u@a:1", "etcd://:1"]
        {
            assert!(text.parse::<Store>().unwrap_err().contains("is not a server of etcd"), "{text}");
        }
    }
}
