//! The place where a command finds the session: at the agent if it runs, otherwise in the user's own folder.

use anyhow::{Result, bail};
use clap::Args;
use ipnet::IpNet;
use reach::organisation::OrganisationName;
use reach::own::OwnSession;
use reach::protocol::{Call, Reply, Request};
use reach::{Places, agent};
use std::path::PathBuf;
use std::sync::OnceLock;

/// The agent's socket, and the user whose session is concerned
#[derive(Args, Clone)]
pub struct At {
    /// The agent's socket
    #[arg(long, value_name = "PATH", env = "VOUCHSAFE_AGENT_SOCKET", default_value = agent::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Act for this user (only root, at the agent) [default: yourself]
    #[arg(long, value_name = "UID", conflicts_with = "own")]
    uid: Option<u32>,
    #[command(flatten)]
    own: OwnPlace,
    /// The organisation that the command concerns.
    #[arg(skip)]
    organisation: Option<OrganisationName>,
    /// The networks for which the organisation's authority may speak, if the command states them.
    #[arg(skip)]
    networks: Vec<IpNet>,
    /// Whether the command belongs to `vouchsafe agent` and needs an agent.
    #[arg(skip)]
    agent_only: bool,
    /// The user's own session, once it has answered a call. It is kept because it contains a login that was started but
    /// not finished.
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
    /// Returns the two places where the session can be.
    ///
    /// # Errors
    ///
    /// Fails if `--session-dir` is not given and [`reach::default_dir`] fails.
    pub fn places(&self) -> Result<Places> {
        Ok(Places { socket: (!self.own.own).then(|| self.socket.clone()), dir: dir(self.own.session_dir.as_ref())? })
    }

    /// Asks the agent to seal all packets to protected destinations that this process, or any process that it starts,
    /// sends.
    ///
    /// # Errors
    /// Fails if the command uses the user's own session (`--own`), if no agent runs, or if the agent refuses
    /// `treatment`.
    pub fn treat(&self, treatment: &str) -> Result<()> {
        if self.own.own {
            bail!("--treatment: a session of your own has no sealed tunnels: leave out --own");
        }
        let call = Call::Treat { process: std::process::id(), treatment: treatment.to_owned() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        match runtime.block_on(agent::call(&self.socket, &Request::own(call)))? {
            Reply::Refused { text, .. } => bail!("--treatment: {text}"),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("At").field("socket", &self.socket).field("uid", &self.uid).finish_non_exhaustive()
    }
}

impl At {
    /// Sets the organisation that the command is about, and the networks for which the organisation may speak.
    pub fn set_organisation(&mut self, organisation: Option<OrganisationName>, networks: Vec<IpNet>) {
        (self.organisation, self.networks) = (organisation, networks);
    }

    /// Makes the command fail if no agent runs.
    pub fn agent_only(&mut self) {
        self.agent_only = true;
    }

    /// Makes a call to the agent. If no agent runs, or with `--own`, the user's own session answers, except if the
    /// command needs an agent.
    ///
    /// # Errors
    ///
    /// Fails if neither can answer.
    pub async fn call(&self, call: Call) -> Result<Reply> {
        let (organisation, networks) = (self.organisation.clone(), self.networks.clone());
        let request = Request { uid: self.uid, organisation, networks, call };
        if self.agent_only {
            return agent::call(&self.socket, &request).await;
        }
        if !self.own.own
            && let Some(reply) = agent::try_call(&self.socket, &request).await?
        {
            return Ok(reply);
        }
        if self.uid.is_some() {
            bail!(
                "no agent listens at {}, and only an agent has sessions of other users: start `vouchsafe agent run` as \
                 root, or check `--socket`",
                self.socket.display()
            );
        }
        let session = match self.session.get() {
            Some(session) => session,
            None => self.session.get_or_init({
                let dir = dir(self.own.session_dir.as_ref())?;
                move || OwnSession::at(dir)
            }),
        };
        Ok(session.answer(request).await)
    }
}

fn dir(given: Option<&PathBuf>) -> Result<PathBuf> {
    match given {
        Some(dir) => Ok(dir.clone()),
        None => Ok(reach::default_dir()?),
    }
}
