//! The control socket: one JSON object per line in, one per line out. A request is a [`Request`], such as
//! `{"request":"whois","client":"203.0.113.5:4711"}`; the answer is `{"ok": …}` or `{"error":"one line for people"}`.
//!
//! The kernel reports the user behind each connection: root and the daemon's own user may make every request, the users
//! of the setting `whois_users` may make `whois` requests, all others get an error.

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shell::control::{self, Access, Requests, Role};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// The verifier's names in error messages.
const ROLE: Role = Role {
    name: "verifier",
    allowed: "only root may use it, and `whois_users` may use `whois`",
    way_out: "a second verifier needs its own --instance and --dir",
};
/// The longest request, in bytes: a frame of 64 KiB in hex.
const MOST: u64 = 160 * 1024;

/// A request to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The verifier at a glance: [`crate::view::Status`].
    Status,
    /// All flows: a list of [`crate::view::Flow`].
    Flows,
    /// Drops: [`crate::view::Drops`].
    Drops {
        /// Only samples with this number or a later one.
        #[serde(default)]
        from: u64,
    },
    /// The flows of one client: a list of [`crate::view::Flow`], empty if there is none.
    Whois {
        /// The client's address and port, as the server sees it.
        client: SocketAddr,
        /// The server's address and port, if the application knows them: much faster if there are many flows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server: Option<SocketAddr>,
    },
    /// Current and past leases of inside addresses: a list of [`crate::view::InsideAddress`].
    Addresses,
    /// Whether this packet would pass: [`crate::view::Verdict`].
    ExplainPacket {
        /// The client.
        from: SocketAddr,
        /// The server.
        to: SocketAddr,
        /// The IP protocol number.
        protocol: u8,
    },
    /// Whether this packet would pass, its token included: [`crate::view::Verdict`].
    ExplainFrame {
        /// The whole Ethernet frame in hex.
        frame: String,
        /// When the frame arrived, Unix seconds; now if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        time: Option<u64>,
    },
    /// Whether the policy would let this person in: [`api::PersonExplanation`].
    ExplainPerson {
        /// The person, with assumed facts about them.
        #[serde(flatten)]
        requester: Requester,
        /// The server.
        to: SocketAddr,
        /// The IP protocol number.
        protocol: u8,
    },
    /// Keep the protection that is on trial; the answer is a sentence.
    Confirm,
    /// End protection; the answer is a sentence.
    Detach,
}

/// A person, real or hypothetical, about whom the policy is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requester {
    /// The person's name.
    pub person: String,
    /// The person's device, whose tags apply.
    #[serde(default)]
    pub device: Option<String>,
    /// Groups in addition to those that the authority knows.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Tags in addition to those that the authority knows.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The address from which the person would ask the authority.
    #[serde(default)]
    pub source: Option<IpAddr>,
}

/// Instance of a verifier that was given no name. Part of the path of its pins.
pub const DEFAULT_INSTANCE: &str = "main";

/// Returns the path of an instance's control socket.
pub fn default_socket(instance: &str) -> PathBuf {
    let name = if instance == DEFAULT_INSTANCE { "verifier.sock".into() } else { format!("verifier-{instance}.sock") };
    Path::new("/run/vouchsafe").join(name)
}

/// Listens at `path`. Any user may connect; [`Access`] decides which requests are answered. Fails if another daemon
/// listens.
pub fn listen(path: &Path) -> Result<UnixListener> {
    control::listen(path, &ROLE)
}

/// Answers requests with `answer` until the future is dropped.
pub async fn serve<F, A>(listener: UnixListener, access: Access, answer: F)
where
    F: Fn(Request) -> A + Send + Sync + 'static,
    A: Future<Output = Result<serde_json::Value>> + Send + 'static,
{
    let is_whois = |request: &Request| matches!(request, Request::Whois { .. });
    let requests = Requests::new(&ROLE, access, MOST, answer);
    control::serve(
        listener,
        requests.with_limited(is_whois, "you may use `whois` only: all other commands require root"),
    )
    .await;
}

/// Sends a request to the daemon that listens at `path`.
pub async fn ask<T: DeserializeOwned>(path: &Path, request: &Request) -> Result<T> {
    let answer = try_ask(path, request).await?;
    answer.with_context(|| format!("no verifier listens at {}: is `vouchsafe verifier run` running?", path.display()))
}

/// Like [`ask`], but returns `None` if no daemon listens.
pub async fn try_ask<T: DeserializeOwned>(path: &Path, request: &Request) -> Result<Option<T>> {
    control::ask(path, &ROLE, request).await
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
    }
}
