//! The control socket: commands tell the running server that the database or the policy file changed. Only root and the
//! directory's owner may.

use crate::Directory;
use crate::state::Authority;
use crate::storage::Operator;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use shell::lines;
use shell::table::count;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it waits where no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The longest message, in bytes.
const MOST: u64 = 8 * engine::policy::MOST_TEXT as u64;

/// What the server is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// The database changed.
    Sync,
    /// What the policy goes by changed in the database: tags of a device, groups.
    Judge,
    /// The master keys changed.
    ReloadKeys {
        /// Whether those in use did.
        anew: bool,
    },
    /// Another policy is to be in force.
    ApplyPolicy {
        /// Its text; the policy file's where it is left out.
        text: Option<String>,
        /// How it comes about.
        note: String,
        /// Who changes it, if that is known.
        by: Option<Operator>,
    },
    /// Ask the identity provider about sessions now; of one person if given.
    RenewSessions {
        /// The person.
        person: Option<String>,
    },
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Done, with one line for people.
    Done(String),
    /// Not done, and why.
    Refused(String),
}

/// Tells the server of `directory`; `None` if none runs.
pub async fn tell(directory: &Directory, command: Command) -> Result<Option<Reply>> {
    let path = directory.control_socket();
    let stream = match UnixStream::connect(&path).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("can't reach the server at {}", path.display())),
    };
    let (reader, mut writer) = stream.into_split();
    let exchange = async {
        writer.write_all(&lines::encode(&command)?).await?;
        read(reader).await
    };
    tokio::time::timeout(PATIENCE, exchange).await.context("the server does not answer")?.map(Some)
}

/// Listens on the socket of the authority's directory. Whoever calls this holds the directory's lock.
pub fn listen(directory: &Directory) -> Result<UnixListener> {
    let path = directory.control_socket();
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context("can't remove the old socket"),
        _ => UnixListener::bind(&path).with_context(|| format!("can't listen on {}", path.display())),
    }
}

/// Answers commands until the future is dropped.
pub(crate) async fn serve(listener: UnixListener, authority: Arc<Authority>) -> Result<()> {
    let owner = authority.directory.owner()?;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, mostly: those that end will free some.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(caller) = stream.peer_cred().map(|caller| caller.uid()) else { continue };
        if caller != 0 && caller != owner {
            tracing::warn!(uid = caller, "control socket: refused");
            continue;
        }
        match tokio::time::timeout(PATIENCE, answer(stream, &authority)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("control socket: {error:#}"),
            Err(_) => tracing::warn!("control socket: a command took too long"),
        }
    }
}

async fn answer(stream: UnixStream, authority: &Arc<Authority>) -> Result<()> {
    let (reader, mut writer) = stream.into_split();
    let command = read(reader).await?;
    let authority = authority.clone();
    // A task of its own: what was begun is done to its end, also where the caller's patience ends.
    let done = tokio::spawn(async move { act(&authority, command).await }).await?;
    let reply = done.map_or_else(|error| Reply::Refused(format!("{error:#}")), Reply::Done);
    Ok(writer.write_all(&lines::encode(&reply)?).await?)
}

async fn act(authority: &Authority, command: Command) -> Result<String> {
    match command {
        Command::Sync => authority.sync().await.map(|()| "told the server".to_owned()),
        Command::Judge => {
            let revoked = authority.judge_anew("tags or groups changed").await?;
            Ok(format!("{} revoked", count(revoked, "grant")))
        }
        Command::ReloadKeys { anew } => authority.reload_keys(anew).await,
        Command::RenewSessions { person } => authority.renew_now(person).await.map(|done| done.to_string()),
        Command::ApplyPolicy { text, note, by } => authority.apply_policy(text, note, by, None).await,
    }
}

async fn read<T: for<'de> Deserialize<'de>>(reader: tokio::net::unix::OwnedReadHalf) -> Result<T> {
    let line = lines::read(&mut BufReader::new(reader), MOST).await?;
    Ok(serde_json::from_slice(&line.context("the other side hung up")?)?)
}
