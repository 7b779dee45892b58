//! Calls to the agent over its UNIX socket (see [`crate::protocol`]).

use crate::protocol::{Call, Reply, Request, Status};
use anyhow::{Context, Result};
use shell::control::{self, Role};
use std::path::Path;
use std::time::Duration;

/// The usual path of the agent's socket.
pub const DEFAULT_SOCKET: &str = "/run/vouchsafe/agent.sock";
/// The agent's names in error messages.
pub const ROLE: Role = Role {
    name: "agent",
    allowed: "requires access to the socket's folder",
    way_out: "a second agent needs its own --socket",
};
/// Maximum duration of a whole call.
const CALL: Duration = Duration::from_secs(90);

/// Makes a call to the agent that listens at `path`. Returns `None` if no agent listens there.
///
/// # Errors
///
/// Fails if the caller is not allowed to connect, or if the answer can't be read.
pub async fn try_call(path: &Path, request: &Request) -> Result<Option<Reply>> {
    let Some(line) = control::call(path, &ROLE, request, CALL).await? else { return Ok(None) };
    let reply = serde_json::from_slice(&line);
    reply.context("cannot read the agent's answer: its version may differ from that of this command").map(Some)
}

/// Makes a call to the agent that listens at `path`.
///
/// # Errors
///
/// Fails if no agent listens there, and for the reasons of [`try_call`].
pub async fn call(path: &Path, request: &Request) -> Result<Reply> {
    try_call(path, request).await?.with_context(|| {
        format!("no agent listens at {} (start it with `vouchsafe agent run`, as root)", path.display())
    })
}

/// Returns the state of the agent that listens at `path`, as this user sees it. Returns `None` if no agent listens
/// there.
///
/// # Errors
///
/// Fails for the reasons of [`try_call`].
pub async fn status(path: &Path) -> Result<Option<Status>> {
    match try_call(path, &Request::own(Call::Status)).await? {
        Some(Reply::Status(status)) => Ok(Some(*status)),
        Some(_) => anyhow::bail!("the agent answered with something other than its status"),
        None => Ok(None),
    }
}
