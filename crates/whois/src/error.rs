//! Reasons why an application can't learn who is behind a connection.

use std::fmt::{Display, Formatter};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

/// Reason why an application can't learn who is behind a connection.
#[derive(Debug)]
pub enum Error {
    /// The application's own socket can't be used.
    Socket(io::Error),
    /// The verifier can't be reached, or has not answered in time.
    Unreachable {
        /// The verifier's socket.
        socket: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The verifier refuses to answer. `docs/identity.md` lists the statuses.
    Refused {
        /// The status of the verifier's answer.
        status: u16,
        /// The reason that the verifier gives.
        why: String,
    },
    /// The connection does not come from a gateway. Only a gateway's statement about the person counts.
    NotAGateway(IpAddr),
    /// The answer or the header does not have the right form. The text is the reason.
    Malformed(&'static str),
}

impl Display for Error {
    fn fmt(&self, to: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(error) => write!(to, "the connection can't be used: {error}"),
            Self::Unreachable { socket, error } => write!(
                to,
                "the verifier does not answer at {}: {error}; is `identity_socket` set in verifier.toml?",
                socket.display()
            ),
            Self::Refused { status, why } => write!(to, "the verifier refuses ({status}): {}", why.trim_end()),
            Self::NotAGateway(peer) => {
                write!(to, "{peer} is not one of the gateways that name people: close the connection")
            }
            Self::Malformed(what) => write!(to, "malformed: {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Socket(error) | Self::Unreachable { error, .. } => Some(error),
            _ => None,
        }
    }
}
