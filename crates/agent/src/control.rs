//! The UNIX socket on which commands reach the daemon (see [`reach::protocol`]).

use anyhow::{Context, Result};
use ipnet::IpNet;
use reach::agent::ROLE;
use reach::login::refused;
use reach::organisation::OrganisationName;
use reach::protocol::{Call, Reply, Request};
use shell::control::{self, Admission, Limits, Service};
use shell::lines;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Maximum time for a client to send a request, and to receive an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum time until the daemon answers. It is long, because the daemon calls the authority for a login.
const ANSWER: Duration = Duration::from_secs(60);
/// Maximum length of a message, in bytes. It is large because a login contains certificates.
const MOST: u64 = 1024 * 1024;
/// Maximum number of concurrent connections of one user. Root's connections have a limit of their own, so that users
/// can't use them up.
const CALLERS_OF_USER: usize = 4;
const CALLERS_OF_ROOT: usize = 16;
const CALLERS: usize = 128;

/// A call to the daemon, and the channel for its answer.
pub struct Command {
    /// The user in whose session the daemon carries out the call.
    pub uid: u32,
    /// The organisation at which the user logs in or out; `None` for the default organisation.
    pub organisation: Option<OrganisationName>,
    /// At a login: the networks for which the organisation's authority may speak. If empty, these networks stay as they
    /// are.
    pub networks: Vec<IpNet>,
    /// The call that the daemon carries out.
    pub call: Call,
    /// Channel for the answer.
    pub reply: oneshot::Sender<Reply>,
}

/// Opens the socket at `path`. Every user of this machine can connect to it.
///
/// # Errors
///
/// Fails if the socket can't be made.
pub fn listen(path: &Path) -> Result<UnixListener> {
    control::listen(path, &ROLE)
}

/// Current number of connections per user.
#[derive(Clone, Default)]
struct Callers(Arc<Mutex<HashMap<u32, usize>>>);

impl Callers {
    /// Reserves a connection for this user. Returns `None` if the user, or all users together, have the maximum
    /// already.
    fn admit(&self, uid: u32) -> Option<Caller> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.get(&uid).copied().unwrap_or_default();
        let room = match uid {
            0 => own < CALLERS_OF_ROOT,
            _ => {
                let others: usize = all.iter().filter(|(uid, _)| **uid != 0).map(|(_, count)| count).sum();
                own < CALLERS_OF_USER && others < CALLERS
            }
        };
        room.then(|| {
            all.insert(uid, own + 1);
            Caller { uid, callers: self.clone() }
        })
    }
}

/// A reserved connection, which is released on drop.
struct Caller {
    uid: u32,
    callers: Callers,
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut all = self.callers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.uid);
            }
        }
    }
}

/// Accepts connections and forwards calls until the future is dropped.
pub async fn serve(listener: UnixListener, commands: mpsc::Sender<Command>) {
    control::serve(listener, Calls { callers: Callers::default(), commands }).await;
}

/// Handles the connections of all users. A user calls on their own behalf, root on behalf of any user.
struct Calls {
    callers: Callers,
    commands: mpsc::Sender<Command>,
}

impl Service for Calls {
    type Permit = Caller;

    fn limits(&self) -> Limits {
        Limits { request: MOST, patience: PATIENCE }
    }

    fn admit(&self, user: u32) -> Admission<Caller> {
        match self.callers.admit(user) {
            Some(caller) => Admission::Serve(caller),
            None => {
                let refusal = refused("busy", "the agent has too many connections already: try again later".to_owned());
                Admission::Full(lines::encode(&refusal).unwrap_or_default())
            }
        }
    }

    async fn answer(&self, user: u32, request: &[u8]) -> Result<Vec<u8>> {
        let reply = match serde_json::from_slice::<Request>(request) {
            Err(error) => refused("malformed", format!("cannot read the request: {error}")),
            Ok(Request { uid: Some(uid), .. }) if uid != user && user != 0 => {
                refused("not_yours", "only root may act for other users".to_owned())
            }
            Ok(Request { uid, organisation, networks, call }) => {
                let (reply, answer) = oneshot::channel();
                let command = Command { uid: uid.unwrap_or(user), organisation, networks, call, reply };
                let answered = timeout(ANSWER, async {
                    self.commands.send(command).await?;
                    answer.await.context("the agent is stopping")
                });
                answered
                    .await
                    .unwrap_or_else(|_| Ok(refused("slow", format!("the agent did not answer within {ANSWER:?}"))))?
            }
        };
        lines::encode(&reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reach::agent::call;
    use tokio::net::UnixStream;

    #[test]
    fn nobody_takes_all_places() {
        let callers = Callers::default();
        let mut own: Vec<_> = (0..CALLERS_OF_USER).map(|_| callers.admit(1000).expect("room")).collect();
        assert!(callers.admit(1000).is_none());
        let _other = callers.admit(1001).expect("room");
        own.pop();
        assert!(callers.admit(1000).is_some());
        let mut all = Vec::new();
        (2000..3000).for_each(|uid| all.extend(callers.admit(uid)));
        assert!(callers.admit(3001).is_none() && callers.admit(0).is_some());
        drop((own, all));
        assert!(callers.admit(3001).is_some());
    }

    #[tokio::test]
    async fn a_silent_caller_locks_nobody_out() {
        let folder = std::env::temp_dir().join(format!("vouchsafe-socket-{}", std::process::id()));
        let path = folder.join("agent.sock");
        let listener = listen(&path).expect("a socket");
        let (sender, mut commands) = mpsc::channel::<Command>(1);
        let served = tokio::spawn(serve(listener, sender));
        let answers = tokio::spawn(async move {
            while let Some(command) = commands.recv().await {
                let _ = command.reply.send(Reply::Done { text: "yes".to_owned() });
            }
        });
        let mut silent = Vec::new();
        for _ in 0..CALLERS_OF_ROOT.max(CALLERS_OF_USER) {
            silent.push(UnixStream::connect(&path).await.expect("connects"));
        }
        let request = Request::own(Call::Logout { forget: false });
        let reply = call(&path, &request).await.expect("an answer");
        assert!(matches!(reply, Reply::Refused { kind, .. } if kind == "busy"));
        drop(silent);
        // The daemon must answer well before the timeout for silent clients.
        let deadline = std::time::Instant::now() + PATIENCE / 2;
        let reply = loop {
            match call(&path, &request).await.expect("an answer") {
                Reply::Refused { kind, .. } if kind == "busy" && std::time::Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                reply => break reply,
            }
        };
        assert!(matches!(reply, Reply::Done { .. }));
        served.abort();
        answers.abort();
        let _ = std::fs::remove_dir_all(folder);
    }
}
