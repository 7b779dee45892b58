//! `vouchsafe transfer`: sends client keys in band (wire.md §5.4) for the authority on this host. This process has the
//! kernel programs and the privileges that they require; the authority has the keys, and passes them one at a time.
//!
//! ```no_run
//! use clap::Parser;
//!
//! #[derive(Parser)]
//! struct Command {
//!     #[command(flatten)]
//!     arguments: key_transfer::Arguments,
//! }
//!
//! # async fn start() -> anyhow::Result<()> {
//! // This is what `vouchsafe transfer --interface eth0` does. It needs root.
//! let command = Command::parse_from(["vouchsafe transfer", "--interface", "eth0"]);
//! key_transfer::run(command.arguments).await?;
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use api::key_transfer::{DEFAULT_SOCKET, HandOver, HandedOver};
use clap::Args;
use datapath::interface::Interface;
use datapath::key_transfer::Transfers;
use shell::lines;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use wire::ls::KeyTransfer;
use wire::map::FlowKey;
use wire::packet::TCP;

/// Time limit for a request of the authority: reading it, writing to the kernel, and sending the answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum time that a key waits for an outgoing packet of its flow. Such a packet comes soon, because the authority is
/// about to send the answer over HTTPS that names the key's pair.
const WITHIN: Duration = Duration::from_secs(5);
/// Pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum length of a message, in bytes.
const MOST: u64 = 1024;

const EXAMPLES: &str = "Example, for an authority that runs as the user vouchsafe:
  sudo vouchsafe transfer --interface eth0 --user vouchsafe
and in authority.toml:
  key_transfer = \"/run/vouchsafe-transfer/socket\"";

/// Send client keys of the published scheme in band, for the authority on this host
///
/// Anyone who reads packets between the authority and a client learns the keys: see docs/threats.md before you use
/// this. An agent receives keys in band only if the agent's setting `key_transfer` names the authority. All other
/// agents receive them by HTTPS.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// An interface by which clients reach the authority; may be repeated
    #[arg(long, value_name = "IF", required = true, env = "VOUCHSAFE_TRANSFER_INTERFACE", value_delimiter = ',')]
    interface: Vec<String>,
    /// The port on which the authority listens
    #[arg(long, default_value_t = 8443, env = "VOUCHSAFE_TRANSFER_PORT")]
    port: u16,
    /// The socket on which the authority's requests arrive
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, env = "VOUCHSAFE_TRANSFER_SOCKET")]
    socket: PathBuf,
    /// The user that the authority runs as; only this user and root may send requests [default: only root]
    #[arg(long, value_name = "USER", env = "VOUCHSAFE_TRANSFER_USER")]
    user: Option<String>,
}

/// Sends keys until a signal arrives. If keys still wait then, their clients get them by HTTPS.
///
/// # Errors
///
/// Fails if the kernel programs can't be loaded or attached, if the socket for the authority's requests can't be made,
/// or if there is no user of the given name.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { interface, port, socket, user } = arguments;
    let user = user.as_deref().map(uid_of).transpose()?;
    let mut transfers = Transfers::load(port)?;
    for name in &interface {
        transfers.attach(&Interface::named(name)?)?;
    }
    let listener = lines::listen(&socket, "process for key transfer", "use another --socket")?;
    shell::println!("listening at {}; keys go out by {}", socket.display(), interface.join(", "));
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        never = serve(&listener, &transfers, user) => match never {},
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    let _ = std::fs::remove_file(&socket);
    let (asked, handed) = transfers.counts()?;
    tracing::info!(asked, handed, "stopped; keys are no longer sent in band");
    Ok(ExitCode::SUCCESS)
}

fn uid_of(name: &str) -> Result<u32> {
    if let Ok(uid) = name.parse() {
        return Ok(uid);
    }
    let user = nix::unistd::User::from_name(name).with_context(|| format!("cannot look up the user {name:?}"))?;
    Ok(user.with_context(|| format!("--user: no user is called {name:?}"))?.uid.as_raw())
}

async fn serve(listener: &UnixListener, transfers: &Transfers, user: Option<u32>) -> std::convert::Infallible {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Usually the process is out of file descriptors.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(caller) = stream.peer_cred().map(|caller| caller.uid()) else { continue };
        if caller != 0 && Some(caller) != user {
            tracing::warn!(uid = caller, "access denied: only root and the user of --user may send requests");
            continue;
        }
        match tokio::time::timeout(PATIENCE, answer(stream, transfers)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!("cannot serve the authority's request, so the client gets its key by HTTPS: {error:#}")
            }
            Err(_) => tracing::warn!(
                "the authority did not send its request, or did not read the answer, within {PATIENCE:?}, so this \
                 process has closed the connection, and the client gets its key by HTTPS"
            ),
        }
    }
}

async fn answer(stream: UnixStream, transfers: &Transfers) -> Result<()> {
    let (reader, mut writer) = stream.into_split();
    let line = lines::read(&mut BufReader::new(reader), MOST)
        .await?
        .context("the authority closed the connection without a request")?;
    let answer = match hand_over(&line, transfers) {
        Ok(true) => HandedOver::Yes,
        Ok(false) => HandedOver::No,
        Err(error) => HandedOver::Failed(format!("{error:#}")),
    };
    Ok(writer.write_all(&lines::encode(&answer)?).await?)
}

fn hand_over(line: &[u8], transfers: &Transfers) -> Result<bool> {
    let HandOver { client, server, content } = serde_json::from_slice(line)?;
    let Some(content) = hex::decode(content).ok().and_then(|bytes| bytes.try_into().ok()) else {
        bail!("the request's `content` must be 35 bytes, in hex");
    };
    let flow = FlowKey::new((*client.ip()).into(), client.port(), (*server.ip()).into(), server.port(), TCP);
    let handed = transfers.hand_over(&flow, &KeyTransfer::decode(&content), WITHIN)?;
    tracing::debug!(%client, handed, "request to send a key");
    Ok(handed)
}
