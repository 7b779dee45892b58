//! The control socket: one JSON object per line in each direction. The answer to a [`Request`] is `{"ok": …}` or
//! `{"error": "…"}`. Only root and the daemon's own user are allowed to send requests. The kernel reports which user is
//! at the other end of a connection.

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shell::control::{self, Access, Requests, Role};
use std::path::Path;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

/// The tunnel endpoint's names in error messages.
const ROLE: Role = Role {
    name: "tunnel endpoint",
    allowed: "only root may use it",
    way_out: "a second tunnel endpoint needs its own --instance and --dir",
};
/// Maximum length of a request, in bytes.
const MOST: u64 = 4096;

/// A request to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Requests an overview of the endpoint. The answer is a [`crate::view::Status`].
    Status,
    /// Requests the list of segments. The answer is a list of [`crate::view::Segment`].
    Segments,
    /// Removes all kernel state and ends the daemon. The answer is a sentence.
    Detach,
}

/// A request to the daemon's loop, and the channel for the answer.
pub type Command = (Request, oneshot::Sender<Result<Value>>);

/// Listens at `path`. Every user can connect, but only root and the daemon's own user get answers.
///
/// # Errors
///
/// Fails if another daemon listens there, or if the socket can't be made.
pub fn listen(path: &Path) -> Result<UnixListener> {
    control::listen(path, &ROLE)
}

/// Forwards requests to the daemon's loop until the future is dropped.
pub async fn serve(listener: UnixListener, commands: mpsc::Sender<Command>) {
    let answer = move |request| {
        let commands = commands.clone();
        async move {
            let (reply, answer) = oneshot::channel();
            let _ = commands.send((request, reply)).await;
            answer.await.context("the tunnel endpoint is stopping").flatten()
        }
    };
    control::serve(listener, Requests::new(&ROLE, Access::new(Vec::new()), MOST, answer)).await;
}

/// Sends a request to the daemon that listens at `path`. Returns `None` if no daemon listens there.
///
/// # Errors
///
/// Fails if the daemon refuses the request or does not answer in time.
pub async fn try_ask<T: DeserializeOwned>(path: &Path, request: Request) -> Result<Option<T>> {
    control::ask(path, &ROLE, &request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_loop_answers_until_it_ends() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("svtep.sock");
        let (commands, mut requests) = mpsc::channel::<Command>(1);
        let serving = tokio::spawn(serve(listen(&path).unwrap(), commands));
        let answering = tokio::spawn(async move {
            let (request, reply) = requests.recv().await.unwrap();
            let _ = reply.send(Ok(serde_json::to_value(request).unwrap()));
        });
        let answer: Value = try_ask(&path, Request::Status).await.unwrap().unwrap();
        assert_eq!(answer, serde_json::json!({"request": "status"}));
        answering.await.unwrap();
        let error = try_ask::<Value>(&path, Request::Status).await.unwrap_err().to_string();
        assert!(error.starts_with("the tunnel endpoint is stopping"), "{error}");
        serving.abort();
    }
}
