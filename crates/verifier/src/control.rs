//! The control socket: one JSON object per line in each direction. A request is a [`Request`], such as
//! `{"request":"whois","client":"203.0.113.5:4711"}`. The answer is `{"ok": …}`, or `{"error": "…"}` with one line for
//! people.
//!
//! The kernel reports the user behind each connection. Root and the daemon's own user are allowed to make every
//! request. The users in the setting `whois_users` are allowed to make `whois` requests. All other users get an error.

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
    /// Requests an overview of the verifier. The answer is a [`crate::view::Status`].
    Status,
    /// Requests all flows. The answer is a list of [`crate::view::Flow`].
    Flows,
    /// Requests the counters and the latest samples of dropped packets. The answer is a [`crate::view::Drops`].
    Drops {
        /// Requests only samples with this number or a higher one.
        #[serde(default)]
        from: u64,
    },
    /// Requests the flows of one client. The answer is a list of [`crate::view::Flow`], empty if there is none.
    Whois {
        /// The client's address and port, as the server sees it.
        client: SocketAddr,
        /// The server's address and port. If there are many flows, the answer comes much faster with this address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server: Option<SocketAddr>,
    },
    /// Requests the current and past leases of inside addresses. The answer is a list of
    /// [`crate::view::InsideAddress`].
    Addresses,
    /// Asks whether a packet without a token would pass. The answer is a [`crate::view::Verdict`].
    ExplainPacket {
        /// The client's address and port.
        from: SocketAddr,
        /// The server's address and port.
        to: SocketAddr,
        /// The IP protocol number.
        protocol: u8,
    },
    /// Asks whether a frame would pass, and checks its token. The answer is a [`crate::view::Verdict`].
    ExplainFrame {
        /// The whole Ethernet frame in hex.
        frame: String,
        /// When the frame arrived, Unix seconds; now if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        time: Option<u64>,
    },
    /// Asks whether the policy would grant a person access. The answer is an [`api::PersonExplanation`].
    ExplainPerson {
        /// The person, with assumed facts about them.
        #[serde(flatten)]
        requester: Requester,
        /// The server's address and port.
        to: SocketAddr,
        /// The IP protocol number.
        protocol: u8,
    },
    /// Confirms the protection that is on trial, so that it stays. The answer is a sentence.
    Confirm,
    /// Ends protection and the daemon. The answer is a sentence.
    Detach,
}

/// A person, real or hypothetical. The daemon is asked whether this person would get a grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requester {
    /// The person's name.
    pub person: String,
    /// The device that the person uses, so that its tags apply; `None` for no device.
    #[serde(default)]
    pub device: Option<String>,
    /// Groups to assume in addition to those that the authority knows of the person.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Device tags to assume in addition to those that the authority knows of the device.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The address from which the person would send requests to the authority; `None` for no address.
    #[serde(default)]
    pub source: Option<IpAddr>,
    /// The organisation whose authority is asked; `None` for the first one that may speak for the server.
    #[serde(default)]
    pub organisation: Option<String>,
}

/// Name of the instance if the command line names none. It is part of the path of the verifier's pins.
pub const DEFAULT_INSTANCE: &str = "main";

/// Returns the path of an instance's control socket.
pub fn default_socket(instance: &str) -> PathBuf {
    let name = if instance == DEFAULT_INSTANCE { "verifier.sock".into() } else { format!("verifier-{instance}.sock") };
    Path::new("/run/vouchsafe").join(name)
}

/// Listens at `path`. Every user can connect; [`Access`] decides which requests are answered.
///
/// # Errors
///
/// Fails if another daemon listens there, or if the socket can't be made.
pub fn listen(path: &Path) -> Result<UnixListener> {
    control::listen(path, &ROLE)
}

/// Serves the control socket until the future is dropped. The function `answer` makes the answer to each request.
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

/// Sends a request to the daemon that listens at `path`, and returns its answer.
///
/// # Errors
///
/// Fails if no daemon listens at `path`, or if the daemon refuses the request or does not answer in time.
pub async fn ask<T: DeserializeOwned>(path: &Path, request: &Request) -> Result<T> {
    let answer = try_ask(path, request).await?;
    answer.with_context(|| format!("no verifier listens at {}: start `vouchsafe verifier run`", path.display()))
}

/// Sends a request to the daemon that listens at `path`, and returns its answer. Returns `None` if no daemon listens
/// there.
///
/// # Errors
///
/// Fails if the daemon refuses the request, or does not answer in time.
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
