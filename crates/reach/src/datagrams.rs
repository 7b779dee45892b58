//! UDP flows whose datagrams carry tokens in the carrier `tail` (wire.md §4.1.3, §4.2). This process sends the
//! datagrams from a socket of its own.

use crate::{Error, Session};
use engine::agent::datagrams::{needs_token, note};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use wire::map::Conversation;
use wire::tail::BLOCK_LEN;

/// The path MTU that is assumed (wire.md §4.2.1).
const SAFE_MTU: usize = 1280;
const HEADERS_V4: usize = 20 + 8;
const HEADERS_V6: usize = 40 + 8;

/// A UDP flow to one address. The receiver's application gets each datagram as the caller passed it to [`Self::send`].
pub struct Datagrams {
    session: Session,
    socket: UdpSocket,
    to: SocketAddr,
    flow: Mutex<Flow>,
}

/// The flow's state; its times are seconds since it began.
struct Flow {
    began: Instant,
    state: Conversation,
}

impl Flow {
    fn new() -> Self {
        Self { began: Instant::now(), state: Conversation::default() }
    }

    /// Returns the state once another datagram is sent, and whether that datagram carries a token.
    fn next(&self) -> (Conversation, bool) {
        let now = u32::try_from(self.began.elapsed().as_secs()).unwrap_or(u32::MAX);
        let mut next = self.state;
        note(&mut next, now);
        let token = needs_token(&mut next, now);
        (next, token)
    }
}

impl Datagrams {
    pub(crate) fn open(session: Session, to: SocketAddr) -> Result<Self, Error> {
        let failed = |source| Error::Io { to, source };
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((any, 0)).map_err(failed)?;
        socket.connect(to).map_err(failed)?;
        // Fetch the grant now, so that the caller learns here if there is none.
        session.datagram_block(to)?;
        Ok(Self { session, socket, to, flow: Mutex::new(Flow::new()) })
    }

    /// Returns the socket, on which the caller can set timeouts and wait. A datagram that the caller sends on it
    /// directly carries no token.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Sends a datagram.
    ///
    /// # Errors
    ///
    /// Fails if there is no grant, and for the reasons of `send(2)`.
    pub fn send(&self, payload: &[u8]) -> Result<(), Error> {
        let failed = |source: io::Error| Error::Io { to: self.to, source };
        let mut flow = self.flow.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, token) = flow.next();
        let block = if token { self.session.datagram_block(self.to)? } else { None };
        flow.state = next;
        let Some(block) = block else {
            return self.socket.send(payload).map(drop).map_err(failed);
        };
        if goes_alone(payload.len(), self.to) {
            self.socket.send(&block).map_err(failed)?;
            return self.socket.send(payload).map(drop).map_err(failed);
        }
        self.socket.send(&[payload, &block].concat()).map(drop).map_err(failed)
    }

    /// Receives a datagram into `room` and returns the datagram's length in bytes.
    ///
    /// # Errors
    ///
    /// Fails for the reasons of `recv(2)`.
    pub fn receive(&self, room: &mut [u8]) -> Result<usize, Error> {
        let size = self.socket.recv(room).map_err(|source| Error::Io { to: self.to, source })?;
        self.flow.lock().unwrap_or_else(PoisonError::into_inner).state.answered = 1;
        Ok(size)
    }
}

/// Reports whether the block has to be sent in a datagram of its own ahead of a payload of this length: because both
/// together would be too long, or would look like a block alone (wire.md §4.2.2).
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
    fn tokens_become_few_without_an_answer_and_stop_with_one() {
        let mut flow = Flow::new();
        let send = |flow: &mut Flow| {
            let (next, token) = flow.next();
            flow.state = next;
            token
        };
        assert_eq!([(); 6].map(|()| send(&mut flow)), [true, true, true, true, false, false]);
        let mut flow = Flow::new();
        send(&mut flow);
        flow.state.answered = 1;
        assert!(!send(&mut flow));
    }
}
