//! The control socket: one JSON object per line in, one per line out: a [`Request`], answered by `{"ok": …}` or
//! `{"error":"one line for people"}`. The kernel says who asks: root and the daemon's own user, and nobody else.

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shell::lines;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it puts up with users who may not ask.
const STRANGERS_PATIENCE: Duration = Duration::from_secs(1);
/// The longest request, in bytes.
const MOST: u64 = 4096;
/// Connections at a time.
const CONNECTIONS: usize = 32;

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The endpoint at a glance: [`crate::view::Status`].
    Status,
    /// A list of [`crate::view::Segment`].
    Segments,
    /// End, and leave nothing in the kernel: a sentence.
    Detach,
}

/// The answer to a request.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer<T> {
    Ok(T),
    Error(String),
}

/// A request, and where its answer goes.
pub type Asked = (Request, oneshot::Sender<Result<Value>>);

/// Listens at `path`. Anyone may connect; only some are answered. Fails if another daemon listens there.
pub fn listen(path: &Path) -> Result<UnixListener> {
    lines::listen(path, "tunnel endpoint", "use another --instance and --dir")
}

/// Hands requests over until the future is dropped.
pub async fn serve(listener: UnixListener, asked: mpsc::Sender<Asked>) {
    let owner = nix::unistd::geteuid().as_raw();
    // Nobody takes the places of those who may ask.
    let [room, strangers] = [(); 2].map(|()| Arc::new(Semaphore::new(CONNECTIONS)));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, mostly: those that end will free some.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(user) = stream.peer_cred().map(|peer| peer.uid()) else { continue };
        let may = user == 0 || user == owner;
        let (room, patience) = if may { (&room, PATIENCE) } else { (&strangers, STRANGERS_PATIENCE) };
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let asked = may.then(|| asked.clone());
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = timeout(patience, converse(stream, asked)).await.unwrap_or(Ok(())) {
                tracing::debug!(user, "control socket: {error:#}");
            }
        });
    }
}

async fn converse(stream: UnixStream, asked: Option<mpsc::Sender<Asked>>) -> Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    while let Some(line) = lines::read(&mut reader, MOST).await? {
        let answer = match (&asked, serde_json::from_slice(&line)) {
            (None, _) => Answer::Error("you may not ask the tunnel endpoint: only root may".to_owned()),
            (_, Err(error)) => Answer::Error(format!("no such request: {error}")),
            (Some(asked), Ok(request)) => {
                let (reply, told) = oneshot::channel();
                let _ = asked.send((request, reply)).await;
                match told.await.context("the daemon ends").flatten() {
                    Ok(answer) => Answer::Ok(answer),
                    Err(error) => Answer::Error(format!("{error:#}")),
                }
            }
        };
        writer.write_all(&lines::encode(&answer)?).await?;
    }
    Ok(())
}

/// Asks the daemon that listens at `path`; `None` if none does.
pub async fn try_ask<T: DeserializeOwned>(path: &Path, request: Request) -> Result<Option<T>> {
    let mut stream = match UnixStream::connect(path).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("can't reach the tunnel endpoint at {}", path.display()));
        }
    };
    let exchange = async {
        // A daemon that refuses may have hung up before it heard the question.
        let _ = stream.write_all(&lines::encode(&request)?).await;
        lines::read(&mut BufReader::new(&mut stream), u64::MAX).await?.context("the tunnel endpoint hung up")
    };
    let line = timeout(PATIENCE, exchange).await.context("the tunnel endpoint does not answer")??;
    match serde_json::from_slice(&line).context("the tunnel endpoint's answer is broken")? {
        Answer::Ok(answer) => Ok(Some(answer)),
        Answer::Error(why) => bail!(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_are_plain_json_and_what_is_none_is_told() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("svtep.sock");
        let listener = listen(&path).unwrap();
        let (asked, mut requests) = mpsc::channel::<Asked>(1);
        let serving = tokio::spawn(serve(listener, asked));
        let answering = tokio::spawn(async move {
            while let Some((request, reply)) = requests.recv().await {
                let _ = reply.send(Ok(serde_json::to_value(request).unwrap()));
            }
        });
        let told: Value = try_ask(&path, Request::Status).await.unwrap().unwrap();
        assert_eq!(told, serde_json::json!({"request": "status"}));
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(b"{\"request\":\"statsu\"}\n").await.unwrap();
        let line = lines::read(&mut BufReader::new(&mut stream), 1000).await.unwrap().unwrap();
        assert!(String::from_utf8(line).unwrap().contains("no such request"));
        serving.abort();
        answering.abort();
        let _ = (serving.await, answering.await);
        assert!(try_ask::<Value>(&path, Request::Status).await.unwrap().is_none());
    }
}
