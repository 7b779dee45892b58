//! Reasons why a connection could not be made, in words that say what to do about it.

use std::io;
use std::net::SocketAddr;

/// Reason why a connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no session, neither at an agent nor in the user's own folder, or the session has ended.
    #[error("not logged in, or the session has ended: run `vouchsafe login`")]
    NotLoggedIn,
    /// The session's files can't be used.
    #[error("{0}")]
    Folder(String),
    /// The session's secret can't be read from the kernel's keyring.
    #[error(
        "cannot read the session's secret from the kernel's keyring, because you have as many keys as the kernel \
         allows (/proc/key-users). Remove some (keyctl(1)), or run `vouchsafe login` again: it then stores the secret \
         in a file"
    )]
    KeyringFull,
    /// The policy denies the request for a grant.
    #[error("{to}: the policy denies the grant: {why}")]
    Denied {
        /// The destination.
        to: SocketAddr,
        /// The authority's reason.
        why: String,
    },
    /// The authority gave no usable answer to the request for a grant.
    #[error("{to} is protected, and there is no grant for it: {why}")]
    NoGrant {
        /// The destination.
        to: SocketAddr,
        /// The reason why there is no grant.
        why: String,
    },
    /// None of the SYNs to the destination was answered.
    #[error(
        "{to} did not answer {tries} SYNs with tokens within {} ms. The host may be down; the network may drop SYNs \
         that carry data (try another network, or use the agent, which can send the token in other ways); or the \
         verifier dropped the tokens: `vouchsafe verifier drops` on the verifier's host gives the reason (`no_token` \
         if the verifier's `carriers` lack `stream`)",
        waited.as_millis()
    )]
    Silence {
        /// The destination.
        to: SocketAddr,
        /// Number of SYNs that were sent.
        tries: u32,
        /// Total time spent waiting for answers.
        waited: std::time::Duration,
    },
    /// The SYN was answered, but no verifier had removed the token in it. The connection was reset.
    #[error(
        "{to} answered, but the token was not removed: a middlebox on the path answered in its place (a transparent \
        proxy or a SYN proxy), or no verifier that knows the carrier `stream` is on the path. The connection was reset \
        before anything else was sent; try another network"
    )]
    NotTaken {
        /// The destination.
        to: SocketAddr,
    },
    /// The kernel's configuration forbids data in SYNs.
    #[error(
        "this machine does not send data in SYNs: net.ipv4.tcp_fastopen does not allow it. As root: `sysctl -w \
         net.ipv4.tcp_fastopen=1` (for a container, set this in the container's network namespace when you start it)"
    )]
    FastOpenOff,
    /// The kernel is too old, or lacks the required function. The text is an addition to the message.
    #[error("this kernel can't put a token into a SYN without privileges: Linux 4.15 or later is needed{0}")]
    KernelTooOld(&'static str),
    /// The kernel sent the SYN without the token in it.
    #[error(
        "the kernel sent the SYN without the token: its Fast Open is paused after a failure on some path \
         (net.ipv4.tcp_fastopen_blackhole_timeout_sec), or the path's segments are too small"
    )]
    NotSent,
    /// A verifier can't remove the token, because the socket has the TCP option named here, which covers sequence
    /// numbers. The address is the destination.
    #[error(
        "the TCP option {0} covers the sequence numbers that the verifier changes, so a token can't be sent: turn \
             {0} off for {1}"
    )]
    Signed(&'static str, SocketAddr),
    /// The host's name has no address.
    #[error("cannot find an address for {host}: {why}")]
    NoAddress {
        /// The host name.
        host: String,
        /// The resolver's reason.
        why: String,
    },
    /// The connection failed for another reason, for example because the host refused it.
    #[error("{to}: {source}")]
    Io {
        /// The destination.
        to: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Returns the system error number (`errno`) whose meaning is closest.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotLoggedIn | Self::Folder(_) | Self::KeyringFull | Self::Denied { .. } | Self::NoGrant { .. } => {
                libc::EACCES
            }
            Self::Silence { .. } => libc::ETIMEDOUT,
            Self::NotTaken { .. } => libc::ECONNRESET,
            Self::FastOpenOff | Self::KernelTooOld(_) | Self::NotSent | Self::Signed(..) => libc::EOPNOTSUPP,
            Self::NoAddress { .. } => libc::EADDRNOTAVAIL,
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}
