//! UDP flows whose first datagrams carry tokens by the carrier `tail` (wire.md §4.1, §4.2), from a socket of this
//! process.

use crate::{Error, Session};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::tail::BLOCK_LEN;

/// Longest time between two tokens of a flow in use (wire.md §4.1), less a second for the way.
const TOKEN_EVERY: Duration = Duration::from_secs(14);
/// The path MTU that is assumed (wire.md §4.2.1).
const SAFE_MTU: usize = 1280;
const HEADERS_V4: usize = 20 + 8;
const HEADERS_V6: usize = 40 + 8;

/// A UDP flow to one address. The receiver's application gets each datagram as it was passed to [`Self::send`].
pub struct Datagrams {
    session: Session,
    socket: UdpSocket,
    to: SocketAddr,
    flow: Mutex<Flow>,
}

#[derive(Default)]
struct Flow {
    answered: bool,
    token: Option<Instant>,
}

impl Flow {
    fn needs_token(&self) -> bool {
        !self.answered || self.token.is_none_or(|at| at.elapsed() >= TOKEN_EVERY)
    }
}

impl Datagrams {
    pub(crate) fn open(session: Session, to: SocketAddr) -> Result<Self, Error> {
        let failed = |source| Error::Io { to, source };
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((any, 0)).map_err(failed)?;
        socket.connect(to).map_err(failed)?;
        // Fetches the grant, so that its absence is noticed here.
        session.datagram_block(to)?;
        Ok(Self { session, socket, to, flow: Mutex::default() })
    }

    /// Returns the socket, for timeouts and to wait on it. Datagrams that are sent on it directly carry no token.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Sends a datagram.
    ///
    /// # Errors
    ///
    /// Fails if there is no grant, or as `send(2)` does.
    pub fn send(&self, payload: &[u8]) -> Result<(), Error> {
        let failed = |source: io::Error| Error::Io { to: self.to, source };
        let mut flow = self.flow.lock().unwrap_or_else(PoisonError::into_inner);
        let block = if flow.needs_token() { self.session.datagram_block(self.to)? } else { None };
        let Some(block) = block else {
            return self.socket.send(payload).map(drop).map_err(failed);
        };
        flow.token = Some(Instant::now());
        if goes_alone(payload.len(), self.to) {
            self.socket.send(&block).map_err(failed)?;
            return self.socket.send(payload).map(drop).map_err(failed);
        }
        self.socket.send(&[payload, &block].concat()).map(drop).map_err(failed)
    }

    /// Receives a datagram, and returns its length.
    ///
    /// # Errors
    ///
    /// Fails as `recv(2)` does.
    pub fn receive(&self, room: &mut [u8]) -> Result<usize, Error> {
        let size = self.socket.recv(room).map_err(|source| Error::Io { to: self.to, source })?;
        self.flow.lock().unwrap_or_else(PoisonError::into_inner).answered = true;
        Ok(size)
    }
}

/// Reports whether the block has to be sent ahead of a payload of this length: it would not fit, or would look like a
/// block alone (wire.md §4.2.2).
fn goes_alone(length: usize, to: SocketAddr) -> bool {
    let headers = if to.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
    length == 0 || length + headers + BLOCK_LEN > SAFE_MTU
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_that_would_not_fit_is_preceded() {
        let (four, six) = ("192.0.2.1:7".parse().unwrap(), "[2001:db8::1]:7".parse().unwrap());
        assert!(goes_alone(0, four) && goes_alone(0, six));
        assert!(!goes_alone(1, four) && !goes_alone(1212, four) && goes_alone(1213, four));
        assert!(!goes_alone(1192, six) && goes_alone(1193, six));
    }

    #[test]
    fn tokens_stop_with_the_first_answer_for_some_seconds() {
        let mut flow = Flow { answered: false, token: Some(Instant::now()) };
        assert!(flow.needs_token());
        flow.answered = true;
        assert!(!flow.needs_token());
    }
}
