//! The session that a command is about, and the party that answers: the agent, where it runs, else the user's own
//! session.

use anyhow::{Result, bail};
use clap::Args;
use reach::own::OwnSession;
use reach::protocol::{Call, Reply, Request};
use reach::{Places, agent};
use std::path::PathBuf;
use std::sync::OnceLock;

/// The agent to talk to, and the user to act for
#[derive(Args, Clone)]
pub struct At {
    /// The agent's socket
    #[arg(long, value_name = "PATH", env = "VOUCHSAFE_AGENT_SOCKET", default_value = agent::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Act for this user (root only, at the agent) [default: yourself]
    #[arg(long, value_name = "UID", conflicts_with = "own")]
    uid: Option<u32>,
    #[command(flatten)]
    own: OwnPlace,
    /// Whether the command is one of `vouchsafe agent`.
    #[arg(skip)]
    agent_only: bool,
    /// The own session, once it has answered: it holds a login that was started.
    #[arg(skip)]
    session: OnceLock<OwnSession>,
}

/// A session of the user's own
#[derive(Args, Clone, Debug)]
pub struct OwnPlace {
    /// Use a session of your own, even where the agent runs
    #[arg(long)]
    own: bool,
    /// Folder of your own session [default: ~/.config/vouchsafe]
    #[arg(long, value_name = "DIR", env = "VOUCHSAFE_SESSION_DIR")]
    session_dir: Option<PathBuf>,
}

/// The session to connect with
#[derive(Args, Clone, Debug)]
pub struct Using {
    /// The agent's socket
    #[arg(long, value_name = "PATH", env = "VOUCHSAFE_AGENT_SOCKET", default_value = agent::DEFAULT_SOCKET)]
    socket: PathBuf,
    #[command(flatten)]
    own: OwnPlace,
}

impl Using {
    /// Returns the places where the session may be.
    pub fn places(&self) -> Result<Places> {
        Ok(Places { socket: (!self.own.own).then(|| self.socket.clone()), dir: dir(self.own.session_dir.as_ref())? })
    }
}

impl std::fmt::Debug for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("At").field("socket", &self.socket).field("uid", &self.uid).finish_non_exhaustive()
    }
}

impl At {
    /// Makes the command fail where no agent runs.
    pub fn agent_only(&mut self) {
        self.agent_only = true;
    }

    /// Makes a call.
    pub async fn call(&self, call: Call) -> Result<Reply> {
        let request = Request { uid: self.uid, call };
        if self.agent_only {
            return agent::call(&self.socket, &request).await;
        }
        if !self.own.own
            && let Some(reply) = agent::try_call(&self.socket, &request).await?
        {
            return Ok(reply);
        }
        if self.uid.is_some() {
            bail!("no agent listens at {}, and only an agent has sessions of other users", self.socket.display());
        }
        let session = match self.session.get() {
            Some(session) => session,
            None => self.session.get_or_init({
                let dir = dir(self.own.session_dir.as_ref())?;
                move || OwnSession::at(dir)
            }),
        };
        Ok(session.answer(request.call).await)
    }
}

fn dir(given: Option<&PathBuf>) -> Result<PathBuf> {
    match given {
        Some(dir) => Ok(dir.clone()),
        None => Ok(reach::default_dir()?),
    }
}
