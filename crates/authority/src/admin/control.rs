//! The control socket, through which commands tell the running server that the database or the policy file changed.
//! Only root and the directory's owner may use it.

use crate::Directory;
use crate::cluster::confirm::Followed;
use crate::cluster::status::NO_MEMBER;
use crate::policy::access::{GivenConsent, Giver, Giving};
use crate::segments::listed::SegmentFilter;
use crate::state::Authority;
use crate::storage::{AuditEvent, Operator};
use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shell::lines;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinSet;

/// Maximum time that the command waits for the server's reply, and that the server takes to serve one command.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which the server answers [`LOADING`] if it is still reading lists.
const LOADS: Duration = Duration::from_secs(2);
/// The line with which the server answers [`Command::Lists`] if it is still reading the lists.
pub const LOADING: &str = "the server reads the lists";
/// Maximum number of commands that are served at the same time. Nearly all of them wait for verifiers.
const COMMANDS: usize = 64;
/// Pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum length of a message, in bytes: a policy of maximum length still fits after JSON has escaped its characters.
const MOST: u64 = 8 * engine::policy::MOST_TEXT as u64;

/// A command that the command line sends to the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Synchronise the server's memory with the database, because the database changed; answered by [`Acted`].
    Sync,
    /// Evaluate all grants again, because tags or groups changed in the database and the policy depends on them;
    /// answered by [`Acted`].
    #[serde(rename = "judge")]
    Reevaluate,
    /// Put changes of the lists in force; answered by [`Acted`]. If the server is still reading the lists, the text is
    /// [`LOADING`].
    Lists,
    /// Read the master keys again, because they changed.
    ReloadKeys {
        /// Whether keys that are in use changed. If false, only future keys changed.
        anew: bool,
    },
    /// Put a policy in force.
    ApplyPolicy {
        /// The policy's text. If absent, the server reads the policy file.
        text: Option<String>,
        /// The note that is recorded with the version.
        note: String,
        /// The operator who makes the change, if known.
        by: Option<Operator>,
    },
    /// Renew all sessions, or the sessions of one person, with the identity provider now.
    RenewSessions {
        /// The person whose sessions are renewed; the sessions of all persons if absent.
        person: Option<String>,
    },
    /// State what this member of a cluster may do now; answered by a [`Standing`](crate::cluster::contact::Standing).
    Standing,
    /// Accept that the audit trails of this member of a cluster lack entries that it has published earlier.
    AcceptTrails {
        /// The operator who accepts the loss of the entries.
        by: Operator,
    },
    /// State how many messages the webhooks have delivered; answered by a list of
    /// [`WebhookState`](crate::webhook::WebhookState).
    Webhooks,
    /// Give consents without requests, all or none; answered by [`Gave`].
    GiveAccess {
        /// The consents.
        consents: Vec<Giving>,
        /// The operator who gives the consents.
        by: Operator,
        /// Whether the consents come from a file.
        is_import: bool,
    },
    /// List the path segments in force; answered by a [`SegmentList`](crate::segments::listed::SegmentList).
    Segments(SegmentFilter),
}

/// The reply to [`Command::Sync`], [`Command::Reevaluate`] and [`Command::Lists`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acted {
    /// One line for the operator.
    pub done: String,
    /// The verifiers and the other members of the cluster, and which of them have followed the change.
    pub followed: Followed,
}

/// The reply to [`Command::GiveAccess`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gave {
    /// The consents are in force.
    Given(Vec<GivenConsent>),
    /// No consent was given.
    Refused {
        /// The index of the consent that cannot be given. `None` if the reason does not concern a single consent.
        nth: Option<usize>,
        /// The reason.
        why: String,
    },
}

/// The server's reply to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// The server has carried out the command. The value is one line for the operator, or the data that the command
    /// requests.
    Done(T),
    /// The server refused the command, or could not carry it out. The text is the reason.
    Refused(String),
}

/// Sends a command to the server of `directory`. The reply is one line for the operator. Returns `None` if no server is
/// running.
///
/// # Errors
/// Fails for the same reasons as [`ask`].
pub async fn send(directory: &Directory, command: Command) -> Result<Option<Reply<String>>> {
    ask(directory, command).await
}

/// Sends a command to the server of `directory` and returns its reply, or `None` if no server is running.
///
/// # Errors
/// Fails if the server's control socket cannot be opened, the server does not reply within 30 s, or the reply is
/// malformed.
pub async fn ask<T: DeserializeOwned>(directory: &Directory, command: Command) -> Result<Option<Reply<T>>> {
    let path = directory.control_socket();
    let stream = match UnixStream::connect(&path).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot reach the authority at {}", path.display())),
    };
    let (reader, mut writer) = stream.into_split();
    let exchange = async {
        writer.write_all(&lines::encode(&command)?).await?;
        read(reader).await
    };
    tokio::time::timeout(PATIENCE, exchange)
        .await
        .with_context(|| format!("the authority did not answer within {PATIENCE:?}"))?
        .map(Some)
}

/// Listens on the control socket of the directory, and replaces a socket that an earlier server left behind. The caller
/// must hold the directory's lock.
///
/// # Errors
/// Fails if the earlier socket cannot be removed, or the new one cannot be created.
pub fn listen(directory: &Directory) -> Result<UnixListener> {
    let path = directory.control_socket();
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).with_context(|| {
            format!(
                "cannot remove the earlier control socket {}: remove it, then start the authority again",
                path.display()
            )
        }),
        _ => UnixListener::bind(&path).with_context(|| format!("cannot create the control socket {}", path.display())),
    }
}

/// Serves commands until the future is dropped. Commands act one after the other, but several may wait for verifiers
/// and for members of the cluster at the same time: a verifier that never confirms does not hold up other commands.
///
/// # Errors
/// Fails if the directory's owner cannot be read.
pub(crate) async fn serve(listener: UnixListener, authority: Arc<Authority>) -> Result<()> {
    let owner = authority.directory.owner()?;
    let (turns, mut served) = (Arc::new(Mutex::new(())), JoinSet::new());
    loop {
        while served.try_join_next().is_some() {}
        if served.len() >= COMMANDS {
            served.join_next().await;
        }
        let Ok((stream, _)) = listener.accept().await else {
            // The process has usually run out of file descriptors; connections that end will free some.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(caller) = stream.peer_cred().map(|caller| caller.uid()) else { continue };
        if caller != 0 && caller != owner {
            tracing::warn!(
                uid = caller,
                "denied access to the control socket: only root and the directory's owner may use it"
            );
            continue;
        }
        let (authority, turns) = (authority.clone(), turns.clone());
        served.spawn(async move {
            match tokio::time::timeout(PATIENCE, answer(stream, authority, turns)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!("cannot serve a command at the control socket: {error:#}"),
                Err(_) => tracing::warn!(
                    "a command at the control socket took longer than {PATIENCE:?}; it may still take effect"
                ),
            }
        });
    }
}

/// The turn of a command: only one command at a time holds it. A command ends its turn when it has acted, before it
/// waits for verifiers and members of the cluster. A command that needs no turn ends it before it acts.
type Turn = OwnedMutexGuard<()>;

async fn answer(stream: UnixStream, authority: Arc<Authority>, turns: Arc<Mutex<()>>) -> Result<()> {
    let (reader, mut writer) = stream.into_split();
    let command = read(reader).await?;
    // The command runs as a separate task, so that it completes even if the time limit expires.
    let done = tokio::spawn(async move { act(&authority, command, turns.lock_owned().await).await }).await?;
    let reply = done.map_or_else(|error| Reply::Refused(format!("{error:#}")), Reply::Done);
    Ok(writer.write_all(&lines::encode(&reply)?).await?)
}

async fn act(authority: &Arc<Authority>, command: Command, turn: Turn) -> Result<Value> {
    let line = match command {
        Command::Segments(filter) => {
            let authority = authority.clone();
            // Listing takes long, so it runs on a blocking thread and does not delay other tasks.
            let list = tokio::task::spawn_blocking(move || authority.segments.list(&filter)).await??;
            return Ok(serde_json::to_value(list)?);
        }
        Command::Webhooks => return Ok(serde_json::to_value(authority.webhooks.states())?),
        Command::Standing => return Ok(serde_json::to_value(authority.contact.standing())?),
        Command::AcceptTrails { by } => {
            let cluster = authority.members.cluster().context(NO_MEMBER)?;
            let lost = cluster.lost_heads().context("etcd has not answered since the start: try again later")?;
            ensure!(!lost.is_empty(), "nothing to accept: the audit trails here contain all that was published");
            let detail = format!("audit trails lack entries that this member has published: {}", lost.join(" and "));
            authority.audit.write(AuditEvent::new("audit_accepted").detail(detail).by(&by)).await?;
            cluster.set_lost_heads(Vec::new());
            Ok(format!("accepted that the audit trails do not contain {} any more", lost.join(" and ")))
        }
        Command::Sync => {
            authority.follower.refresh().await?;
            authority.sync.run().await?;
            return acted(authority, "synchronised with the server".into(), turn).await;
        }
        Command::Reevaluate => {
            authority.follower.refresh().await?;
            let done = authority.enforcer.reevaluate("tags, groups or consents changed").await?;
            return acted(authority, done.to_string(), turn).await;
        }
        Command::Lists => {
            let lists = authority.lists.clone();
            let follow = tokio::spawn(async move { lists.follow().await });
            return match tokio::time::timeout(LOADS, follow).await {
                Ok(done) => acted(authority, done??, turn).await,
                // The task continues. Meanwhile, other commands get their turn.
                Err(_) => acted(authority, LOADING.into(), turn).await,
            };
        }
        Command::GiveAccess { consents, by, is_import } => {
            // The database decides about each call as a whole, so it needs no turn.
            drop(turn);
            let gave = match authority.access.give(Giver::Operator { is_import }, by, consents).await {
                Ok(given) => Gave::Given(given),
                Err(refused) => Gave::Refused { nth: refused.nth, why: refused.problem.said().title },
            };
            return Ok(serde_json::to_value(gave)?);
        }
        Command::ReloadKeys { anew } => {
            let keys = authority.directory.read_master_keys()?;
            authority.enforcer.replace_keys(keys, anew).await?;
            drop(turn);
            Ok(format!("the verifiers are notified{}", authority.sync.confirmed().await?))
        }
        Command::RenewSessions { person } => {
            // The identity provider determines how long this takes, and revocations must not wait for it.
            drop(turn);
            authority.renewal.renew_now(person).await.map(|done| done.to_string())
        }
        Command::ApplyPolicy { text, note, by } => {
            let applied = authority.enforcer.put_in_force(text, note, by, None).await?;
            drop(turn);
            authority.enforcer.confirm(applied).await.map(|done| done.to_string())
        }
    };
    line.map(Value::String)
}

/// Ends the command's turn, waits until the verifiers and the other members of the cluster have followed, and returns
/// the reply.
async fn acted(authority: &Authority, done: String, turn: Turn) -> Result<Value> {
    drop(turn);
    Ok(serde_json::to_value(Acted { done, followed: authority.sync.confirmed().await? })?)
}

async fn read<T: DeserializeOwned>(reader: tokio::net::unix::OwnedReadHalf) -> Result<T> {
    let line = lines::read(&mut BufReader::new(reader), MOST).await?;
    Ok(serde_json::from_slice(
        &line.context("the connection to the control socket was closed before a message arrived")?,
    )?)
}
