//! A daemon's control socket: one JSON object per line in each direction. The kernel reports the user behind each
//! connection. A [`Service`] decides to which users it replies, and how many connections each user can have.
//!
//! Most daemons reply with an [`Answer`] and accept root and their own user: [`Requests`] is the service for them.

mod requests;

pub use requests::{Access, Requests};

use crate::lines;
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

/// How long the daemon serves a connection whose user it refuses.
const REFUSAL: Duration = Duration::from_secs(1);
/// Pause after a failure to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a client waits for an answer by [`ask`].
const ANSWER: Duration = Duration::from_secs(60);

/// The texts that name a daemon in error messages. The daemon and its clients use them.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// The daemon's name.
    pub name: &'static str,
    /// Text that says which users are allowed to send requests. It is appended to the error that all other users get.
    pub allowed: &'static str,
    /// Advice for the error that another daemon already listens at the path.
    pub way_out: &'static str,
}

/// A daemon's answer to a request: a value, or an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    /// The result of the request.
    Ok(T),
    /// The reason for refusal or failure.
    Error(String),
}

/// A daemon's decision about a new connection.
pub enum Admission<P> {
    /// The daemon answers requests. The connection holds the permit `P` until it ends.
    Serve(P),
    /// The daemon sends this line in place of an answer, and closes the connection. The connection holds the permit `P`
    /// until then.
    Refuse(P, Vec<u8>),
    /// There is no room for the connection: the daemon sends this line, which can be empty, and closes the connection
    /// at once.
    Full(Vec<u8>),
}

/// The limits of one connection to the socket.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum length of a request, in bytes.
    pub request: u64,
    /// Time limit for a client to send a request. A second limit of the same length applies to sending the answer to
    /// the client.
    pub patience: Duration,
}

/// The daemon's side of a control socket.
pub trait Service: Send + Sync + 'static {
    /// A permit of the connection limit; dropping it makes room for another connection.
    type Permit: Send + 'static;

    /// Returns the limits of each connection.
    fn limits(&self) -> Limits;

    /// Decides about a new connection of this user.
    fn admit(&self, user: u32) -> Admission<Self::Permit>;

    /// Answers a request of this user. The answer is a line in the form that [`lines::encode`] returns.
    ///
    /// # Errors
    ///
    /// Fails if the daemon is stopping, or if the answer can't be encoded. The connection then ends without an answer.
    /// If the daemon refuses the request, the refusal is the answer.
    fn answer(&self, user: u32, request: &[u8]) -> impl Future<Output = Result<Vec<u8>>> + Send;
}

/// Listens at `path`. Every user can connect; the [`Service`] decides to which users the daemon replies.
///
/// # Errors
///
/// Fails if another daemon listens there, or if the socket cannot be made.
pub fn listen(path: &Path, role: &Role) -> Result<UnixListener> {
    lines::listen(path, role.name, role.way_out)
}

/// Serves connections until the caller drops the returned future.
pub async fn serve(listener: UnixListener, service: impl Service) {
    let service = Arc::new(service);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Usually the process is out of file descriptors: connections that end will free some.
                tracing::warn!("cannot accept a connection to the control socket: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(user) = stream.peer_cred().map(|peer| peer.uid()) else { continue };
        match service.admit(user) {
            Admission::Serve(permit) => {
                let service = service.clone();
                tokio::spawn(async move {
                    let _permit = permit;
                    if let Err(error) = converse(stream, user, &*service).await {
                        tracing::debug!(user, "cannot serve a connection to the control socket: {error:#}");
                    }
                });
            }
            Admission::Refuse(permit, line) => {
                tracing::debug!(user, "denied access to the control socket");
                let most = service.limits().request;
                tokio::spawn(async move {
                    let _permit = permit;
                    let _ = timeout(REFUSAL, refuse(stream, most, &line)).await;
                });
            }
            Admission::Full(line) => {
                let _ = stream.try_write(&line);
            }
        }
    }
}

/// Reads the request before refusing it: if the socket is closed with unread bytes, the kernel discards the answer.
async fn refuse(mut stream: UnixStream, most: u64, line: &[u8]) -> Result<()> {
    lines::read(&mut BufReader::new(&mut stream), most).await?;
    Ok(stream.write_all(line).await?)
}

async fn converse(stream: UnixStream, user: u32, service: &impl Service) -> Result<()> {
    let Limits { request, patience } = service.limits();
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    while let Some(line) = timeout(patience, lines::read(&mut reader, request)).await?? {
        let answer = service.answer(user, &line).await?;
        timeout(patience, writer.write_all(&answer)).await??;
    }
    Ok(())
}

/// Sends a request to the daemon that listens at `path`, and returns the daemon's answer as one line; `None` if no
/// daemon listens there.
///
/// # Errors
///
/// Fails if the caller is not allowed to connect, or if the daemon does not answer within `patience`.
pub async fn call(path: &Path, role: &Role, request: &impl Serialize, patience: Duration) -> Result<Option<Vec<u8>>> {
    let name = role.name;
    let mut stream = match UnixStream::connect(path).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => return Ok(None),
        Err(error) => {
            let is_denied = error.kind() == ErrorKind::PermissionDenied;
            let allowed = if is_denied { format!("; {}", role.allowed) } else { String::new() };
            return Err(error).with_context(|| format!("cannot reach the {name} at {}{allowed}", path.display()));
        }
    };
    let exchange = async {
        // A daemon that refuses may close the connection before it has read the request.
        let _ = stream.write_all(&lines::encode(request)?).await;
        let line = lines::read(&mut BufReader::new(&mut stream), u64::MAX).await?;
        line.with_context(|| format!("the {name} closed the connection without an answer"))
    };
    timeout(patience, exchange)
        .await
        .with_context(|| format!("the {name} did not answer within {patience:?}"))?
        .map(Some)
}

/// Sends a request to the daemon that listens at `path`, and returns the value in [`Answer::Ok`]; `None` if no daemon
/// listens.
///
/// # Errors
///
/// Fails if [`call`] fails or if the answer is malformed. If the daemon replies with [`Answer::Error`], fails with the
/// text of that answer.
pub async fn ask<T: DeserializeOwned>(path: &Path, role: &Role, request: &impl Serialize) -> Result<Option<T>> {
    let Some(line) = call(path, role, request, ANSWER).await? else { return Ok(None) };
    match serde_json::from_slice(&line).with_context(|| format!("the {}'s answer is malformed", role.name))? {
        Answer::Ok(answer) => Ok(Some(answer)),
        Answer::Error(why) => bail!(why),
    }
}
