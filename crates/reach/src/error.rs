//! Reasons why there is no connection, in words that name the way out.

use std::io;
use std::net::SocketAddr;

/// Reason why a connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no session, neither at an agent nor in the user's own folder, or it has ended.
    #[error("not logged in, or the session has ended: run `vouchsafe login`")]
    NotLoggedIn,
    /// The session's files can't be used.
    #[error("{0}")]
    Folder(String),
    /// The policy denies the grant.
    #[error("{to}: the policy denies it: {why}")]
    Denied {
        /// The destination.
        to: SocketAddr,
        /// The authority's reason.
        why: String,
    },
    /// The authority gave no usable answer.
    #[error("{to} is protected, and there is no grant for it: {why}")]
    NoGrant {
        /// The destination.
        to: SocketAddr,
        /// The reason.
        why: String,
    },
    /// No SYN was answered.
    #[error(
        "{to} did not answer {tries} SYNs with tokens within {} ms. The host may be down; the network may drop SYNs \
         that carry data (the agent then helps as little; try another network); or the verifier dropped the tokens: \
         `vouchsafe verifier drops` there gives the reason, `no_token` if its `carriers` lack `stream`",
        waited.as_millis()
    )]
    Silence {
        /// The destination.
        to: SocketAddr,
        /// How many SYNs were sent.
        tries: u32,
        /// How long they were waited for.
        waited: std::time::Duration,
    },
    /// Something answered the SYN without taking the token. The connection was reset.
    #[error(
        "{to} answered without taking the token, so no verifier that knows the carrier `stream` is on the way, or a \
         middlebox answered in its place; the connection was reset before anything else was sent"
    )]
    NotTaken {
        /// The destination.
        to: SocketAddr,
    },
    /// The kernel does not put data into SYNs.
    #[error(
        "this machine does not send data in SYNs: net.ipv4.tcp_fastopen lacks bit 1. As root: `sysctl -w \
         net.ipv4.tcp_fastopen=1` (in a container: on its own network namespace, when it is started)"
    )]
    FastOpenOff,
    /// The kernel is too old, or is not one of those that can do it.
    #[error("this kernel can't put a token into a SYN without privileges: Linux 4.15 or later is needed{0}")]
    KernelTooOld(&'static str),
    /// The kernel sent the SYN without the token.
    #[error(
        "the kernel sent the SYN without the token: its Fast Open is paused after a failure on some path \
         (net.ipv4.tcp_fastopen_blackhole_timeout_sec), or the path's segments are too small"
    )]
    NotSent,
    /// The socket has an option under which a verifier can't take the token.
    #[error("{0} covers the sequence numbers that the verifier changes, so a token can't be sent: turn it off for {1}")]
    Signed(&'static str, SocketAddr),
    /// The name has no address.
    #[error("{host}: {why}")]
    NoAddress {
        /// The name.
        host: String,
        /// The resolver's reason.
        why: String,
    },
    /// The connection failed for another reason, such as a refusal.
    #[error("{to}: {source}")]
    Io {
        /// The destination.
        to: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Returns the system's error number that comes closest.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotLoggedIn | Self::Folder(_) | Self::Denied { .. } | Self::NoGrant { .. } => libc::EACCES,
            Self::Silence { .. } => libc::ETIMEDOUT,
            Self::NotTaken { .. } => libc::ECONNRESET,
            Self::FastOpenOff | Self::KernelTooOld(_) | Self::NotSent | Self::Signed(..) => libc::EOPNOTSUPP,
            Self::NoAddress { .. } => libc::EADDRNOTAVAIL,
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}
