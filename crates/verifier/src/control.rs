//! The control socket: one JSON object per line in, one per line out. A request is a [`Request`], such as
//! `{"request":"whois","client":"203.0.113.5:4711"}`; the answer is `{"ok": …}` or `{"error":"one line for people"}`.
//!
//! The kernel says who asks: root and the daemon's own user may ask everything, the users of the setting `whois_users`
//! may ask `whois`, everyone else gets an error.

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shell::lines;
use std::future::Future;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it puts up with users who may not ask.
const STRANGERS_PATIENCE: Duration = Duration::from_secs(1);
/// The longest request, in bytes: a frame of 64 KiB in hex.
const MOST: u64 = 160 * 1024;
/// Connections at a time, of each kind of users.
const CONNECTIONS: usize = 32;

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The verifier at a glance: [`crate::view::Status`].
    Status,
    /// All flows: a list of [`crate::view::Flow`].
    Flows,
    /// What was dropped: [`crate::view::Drops`].
    Drops {
        /// Only samples with this number or a later one.
        #[serde(default)]
        from: u64,
    },
    /// The flows of one client: a list of [`crate::view::Flow`], empty if there is none.
    Whois {
        /// The client's address and port, as the server sees it.
        client: SocketAddr,
        /// The server's, where the application knows it: much faster where there are many flows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server: Option<SocketAddr>,
    },
    /// Who has which inside address, and who had: a list of [`crate::view::InsideAddress`].
    Addresses,
    /// Would this packet pass: [`crate::view::Verdict`].
    ExplainPacket {
        /// The client.
        from: SocketAddr,
        /// The server.
        to: SocketAddr,
        /// The IP protocol number.
        protocol: u8,
    },
    /// Would this packet pass, its token included: [`crate::view::Verdict`].
    ExplainFrame {
        /// The whole Ethernet frame in hex.
        frame: String,
        /// When it came, Unix seconds; now if nothing is said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        time: Option<u64>,
    },
    /// Would the policy let this person in: [`engine::api::PersonExplanation`].
    ExplainPerson {
        /// Who.
        #[serde(flatten)]
        asker: Asker,
        /// The server.
        to: SocketAddr,
        /// The IP protocol number.
        protocol: u8,
    },
    /// Keep the protection that is being tried: a sentence.
    Confirm,
    /// End protection: a sentence.
    Detach,
}

/// Somebody who may not be here at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    /// The person's name.
    pub person: String,
    /// The device whose tags they have.
    #[serde(default)]
    pub device: Option<String>,
    /// Groups besides those that the authority knows of.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Tags besides those that the authority knows of.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Where they would ask the authority from.
    #[serde(default)]
    pub source: Option<IpAddr>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    /// What was asked for.
    Ok(T),
    /// Why not.
    Error(String),
}

/// Who may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The daemon's own user.
    pub owner: u32,
    /// Users who may ask `whois`.
    pub whois: Vec<u32>,
}

impl Access {
    /// Whether a user may ask this.
    pub fn allows(&self, user: u32, request: &Request) -> bool {
        self.is_full(user) || (self.whois.contains(&user) && matches!(request, Request::Whois { .. }))
    }

    fn is_full(&self, user: u32) -> bool {
        user == 0 || user == self.owner
    }

    fn is_known(&self, user: u32) -> bool {
        self.is_full(user) || self.whois.contains(&user)
    }
}

/// Where the daemon of an instance listens.
pub fn default_socket(instance: &str) -> PathBuf {
    let name = if instance == "main" { "verifier.sock".into() } else { format!("verifier-{instance}.sock") };
    Path::new("/run/vouchsafe").join(name)
}

/// Listens at `path`. Anyone may connect; who is answered is [`Access`]'s to say. Fails if another daemon does.
pub fn listen(path: &Path) -> Result<UnixListener> {
    lines::listen(path, "verifier", "use another --instance and --dir")
}

/// Answers requests by `answer` until the future is dropped.
pub async fn serve<F, A>(listener: UnixListener, access: Access, answer: F)
where
    F: Fn(Request) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Answer<serde_json::Value>> + Send + 'static,
{
    // Nobody takes the places of those who may do more.
    let [room, askers, strangers] = [(); 3].map(|()| Arc::new(Semaphore::new(CONNECTIONS)));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("control socket: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(user) = stream.peer_cred().map(|peer| peer.uid()) else { continue };
        if !access.is_known(user) {
            tracing::debug!(user, "control socket: refused");
            if let Ok(permit) = strangers.clone().try_acquire_owned() {
                tokio::spawn(async move {
                    let _permit = permit;
                    let _ = timeout(STRANGERS_PATIENCE, refuse(stream)).await;
                });
            }
            continue;
        }
        let room = if access.is_full(user) { &room } else { &askers };
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let (access, answer) = (access.clone(), answer.clone());
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = converse(stream, user, &access, answer).await {
                tracing::debug!(user, "control socket: {error:#}");
            }
        });
    }
}

/// Hears the question out, as the kernel throws an answer away that is sent by closing on unread bytes.
async fn refuse(mut stream: UnixStream) -> Result<()> {
    lines::read(&mut BufReader::new(&mut stream), MOST).await?;
    Ok(stream
        .write_all(&lines::encode(&Answer::<()>::Error(
            "you may not ask the verifier: only root may, and `whois_users` ask `whois`".into(),
        ))?)
        .await?)
}

async fn converse<F, A>(stream: UnixStream, user: u32, access: &Access, answer: F) -> Result<()>
where
    F: Fn(Request) -> A,
    A: Future<Output = Answer<serde_json::Value>>,
{
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    while let Some(line) = timeout(PATIENCE, lines::read(&mut reader, MOST)).await?? {
        let reply = match serde_json::from_slice(&line) {
            Err(error) => Answer::Error(format!("no such request: {error}")),
            Ok(request) if !access.allows(user, &request) => {
                Answer::Error("you may ask `whois` only: root may ask more".into())
            }
            Ok(request) => answer(request).await,
        };
        timeout(PATIENCE, writer.write_all(&lines::encode(&reply)?)).await??;
    }
    Ok(())
}

/// Asks the daemon that listens at `path`.
pub async fn ask<T: DeserializeOwned>(path: &Path, request: &Request) -> Result<T> {
    match try_ask(path, request).await? {
        Some(answer) => Ok(answer),
        None => bail!("no verifier listens at {}: is `vouchsafe verifier run` up?", path.display()),
    }
}

/// The same; `None` if no daemon listens.
pub async fn try_ask<T: DeserializeOwned>(path: &Path, request: &Request) -> Result<Option<T>> {
    let mut stream = match UnixStream::connect(path).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => return Ok(None),
        Err(error) => {
            let may = if error.kind() == ErrorKind::PermissionDenied {
                "; only root may, and `whois_users` ask `whois`"
            } else {
                ""
            };
            return Err(error).with_context(|| format!("can't reach the verifier at {}{may}", path.display()));
        }
    };
    let exchange = async {
        // A daemon that refuses may have hung up before it heard the question.
        let _ = stream.write_all(&lines::encode(request)?).await;
        lines::read(&mut BufReader::new(&mut stream), u64::MAX).await?.context("the verifier hung up")
    };
    let line = timeout(PATIENCE * 2, exchange).await.context("the verifier does not answer")??;
    match serde_json::from_slice(&line).context("the verifier's answer is broken")? {
        Answer::Ok(answer) => Ok(Some(answer)),
        Answer::Error(why) => bail!(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_plain_json() {
        let whois = r#"{"request":"whois","client":"[2001:db8::5]:4711"}"#;
        let request: Request = serde_json::from_str(whois).expect("a request");
        let client = "[2001:db8::5]:4711".parse().expect("an address and port");
        assert_eq!(request, Request::Whois { client, server: None });
        assert_eq!(serde_json::to_string(&request).expect("JSON"), whois);
        assert_eq!(serde_json::from_str::<Request>(r#"{"request":"status"}"#).expect("a request"), Request::Status);
        assert!(serde_json::from_str::<Request>(r#"{"request":"whois","clent":"1.2.3.4:5"}"#).is_err());
        assert_eq!(serde_json::to_string(&Answer::<()>::Error("no".into())).expect("JSON"), r#"{"error":"no"}"#);
    }

    #[test]
    fn users_get_what_they_may_have() {
        let access = Access { owner: 990, whois: vec![33] };
        let whois = Request::Whois { client: "1.2.3.4:5".parse().expect("an address and port"), server: None };
        assert!(access.allows(0, &Request::Detach) && access.allows(990, &Request::Detach));
        assert!(access.allows(33, &whois) && !access.allows(33, &Request::Flows));
        assert!(!access.allows(1000, &whois) && !access.is_known(1000));
    }
}
