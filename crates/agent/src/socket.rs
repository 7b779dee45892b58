//! The UNIX socket between command line and daemon (see [`crate::protocol`]).

use crate::protocol::{Call, Reply, Request};
use anyhow::{Context, Result, bail};
use shell::lines;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How long a caller may take to say something, and to take an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an answer may take: a login asks the authority.
const ANSWER: Duration = Duration::from_secs(60);
/// How long the command line waits in all.
const CALL: Duration = Duration::from_secs(90);
/// The longest message, in bytes: a login brings certificates along.
const MOST: u64 = 1024 * 1024;
/// Callers at a time, of one user and of all. Root's places are apart, so that nobody takes them.
const CALLERS_OF_USER: usize = 4;
const CALLERS_OF_ROOT: usize = 16;
const CALLERS: usize = 128;

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
    lines::listen(path, "agent", "a second one needs another --socket")
}

/// Who calls at the moment: connections per user.
#[derive(Clone, Default)]
struct Callers(Arc<Mutex<HashMap<u32, usize>>>);

impl Callers {
    /// A place for one more connection of this user, if there is one.
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

/// A connection's place; free again when dropped.
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

/// Hands every call on until the future is dropped.
pub async fn serve(listener: UnixListener, commands: mpsc::Sender<Command>) {
    let callers = Callers::default();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, mostly: some will come back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(credentials) = stream.peer_cred() else { continue };
        let Some(caller) = callers.admit(credentials.uid()) else {
            let text = "too many connections to the agent at a time".to_owned();
            if let Ok(line) = lines::encode(&refused("busy", text)) {
                let _ = stream.try_write(&line);
            }
            continue;
        };
        let commands = commands.clone();
        tokio::spawn(async move {
            if let Err(error) = converse(stream, &caller, commands).await {
                tracing::debug!(uid = caller.uid, "caller: {error:#}");
            }
        });
    }
}

async fn converse(stream: UnixStream, caller: &Caller, commands: mpsc::Sender<Command>) -> Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    while let Some(line) = timeout(PATIENCE, lines::read(&mut reader, MOST)).await?? {
        let reply = match serde_json::from_slice::<Request>(&line) {
            Err(error) => refused("malformed", format!("the call can't be read: {error}")),
            Ok(Request { uid: Some(uid), .. }) if uid != caller.uid && caller.uid != 0 => {
                refused("not_yours", "only root may act for other users".to_owned())
            }
            Ok(Request { uid, call }) => {
                let (reply, answer) = oneshot::channel();
                let command = Command { uid: uid.unwrap_or(caller.uid), call, reply };
                let answered = timeout(ANSWER, async {
                    commands.send(command).await?;
                    answer.await.context("the daemon is ending")
                });
                answered.await.unwrap_or_else(|_| Ok(refused("slow", "no answer in time".to_owned())))?
            }
        };
        timeout(PATIENCE, writer.write_all(&lines::encode(&reply)?)).await??;
    }
    Ok(())
}

fn refused(kind: &str, text: String) -> Reply {
    Reply::Refused { kind: kind.to_owned(), text }
}

/// Calls the daemon that listens at `path`.
pub async fn call(path: &Path, request: &Request) -> Result<Reply> {
    timeout(CALL, ask(path, request)).await.context("the agent doesn't answer")?
}

async fn ask(path: &Path, request: &Request) -> Result<Reply> {
    let stream = UnixStream::connect(path).await;
    let stream = stream.with_context(|| {
        format!("no agent answers at {} (start it with `vouchsafe agent run`, as root)", path.display())
    })?;
    let (reader, mut writer) = stream.into_split();
    // An agent that has no place for us says so without reading.
    let written = writer.write_all(&lines::encode(request)?).await;
    match lines::read(&mut BufReader::new(reader), MOST).await? {
        Some(line) => serde_json::from_slice(&line).context("the agent's answer can't be read: another version?"),
        None => {
            written?;
            bail!("the agent hung up")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let request = Request { uid: None, call: Call::Logout };
        let reply = call(&path, &request).await.expect("an answer");
        assert!(matches!(reply, Reply::Refused { kind, .. } if kind == "busy"));
        drop(silent);
        // Sooner than their silence would have ended them.
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
