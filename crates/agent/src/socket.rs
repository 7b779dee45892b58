//! The UNIX socket between command line and daemon (see [`crate::protocol`]).

use crate::protocol::{Call, Reply, Request};
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// How long a silent caller may stay.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an answer may take; a login asks the authority twice.
const ANSWER: Duration = Duration::from_secs(40);
/// The longest message, in bytes: a login brings certificates along.
const MOST: u64 = 1024 * 1024;
/// Callers at a time.
const CALLERS: usize = 64;

/// A call, whose session it is about, and where the answer goes.
pub struct Command {
    /// The user acted for.
    pub uid: u32,
    /// The call.
    pub call: Call,
    /// Takes the answer.
    pub reply: oneshot::Sender<Reply>,
}

/// Listens at `path`, for every user of this machine.
pub fn listen(path: &Path) -> Result<UnixListener> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    anyhow::ensure!(
        std::os::unix::net::UnixStream::connect(path).is_err(),
        "another agent listens at {}; a second one needs another --socket",
        path.display()
    );
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove the old {}", path.display()));
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
    let everybody = fs::Permissions::from_mode(0o666);
    fs::set_permissions(path, everybody).with_context(|| format!("cannot open {} to all users", path.display()))?;
    Ok(listener)
}

/// Hands every call on until the future is dropped.
pub async fn serve(listener: UnixListener, commands: mpsc::Sender<Command>) {
    let callers = Arc::new(Semaphore::new(CALLERS));
    loop {
        let Ok(slot) = callers.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, mostly: some will come back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let commands = commands.clone();
        tokio::spawn(async move {
            if let Err(error) = converse(stream, commands).await {
                tracing::debug!("caller: {error:#}");
            }
            drop(slot);
        });
    }
}

async fn converse(stream: UnixStream, commands: mpsc::Sender<Command>) -> Result<()> {
    let caller = stream.peer_cred().context("the kernel doesn't say who calls")?.uid();
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    while let Some(line) = tokio::time::timeout(PATIENCE, line(&mut reader)).await?? {
        let reply = match serde_json::from_slice::<Request>(&line) {
            Err(error) => refused("malformed", format!("the call can't be read: {error}")),
            Ok(Request { uid: Some(uid), .. }) if uid != caller && caller != 0 => {
                refused("not_yours", "only root may act for other users".to_owned())
            }
            Ok(Request { uid, call }) => {
                let (reply, answer) = oneshot::channel();
                let command = Command { uid: uid.unwrap_or(caller), call, reply };
                let answer = async {
                    commands.send(command).await?;
                    answer.await.context("the daemon is ending")
                };
                match tokio::time::timeout(ANSWER, answer).await {
                    Ok(answer) => answer?,
                    Err(_) => refused("other", "the agent gave no answer in time".to_owned()),
                }
            }
        };
        writer.write_all(&encoded(&reply)?).await?;
    }
    Ok(())
}

fn refused(kind: &str, text: String) -> Reply {
    Reply::Refused { kind: kind.to_owned(), text }
}

/// Calls the daemon that listens at `path`.
pub async fn call(path: &Path, request: &Request) -> Result<Reply> {
    let stream = UnixStream::connect(path).await;
    let stream = stream.with_context(|| {
        format!("no agent answers at {} (start it with `vouchsafe agent run`, as root)", path.display())
    })?;
    let (reader, mut writer) = stream.into_split();
    writer.write_all(&encoded(request)?).await?;
    match line(&mut BufReader::new(reader)).await? {
        Some(line) => serde_json::from_slice(&line).context("the agent's answer can't be read: another version?"),
        None => bail!("the agent hung up"),
    }
}

fn encoded(message: &impl serde::Serialize) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

async fn line(reader: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(MOST).read_until(b'\n', &mut line).await?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) => bail!("a message without end"),
    }
}
