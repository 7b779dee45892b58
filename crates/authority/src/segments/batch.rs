//! Datagrams by the batch: one system call for many, either way.

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, setsockopt, sockopt};
use nix::sys::time::TimeVal;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use wire::ask::{Answer, REQUEST_LEN};

/// Datagrams in a batch, at most: those that come last wait for the others, some tenth of a millisecond.
pub const MOST: usize = 64;
/// How long nothing may come until the caller gets a turn.
const TURN: i64 = 100_000;
/// What the kernel holds of datagrams that nobody has read yet, bytes; less where it has a limit.
const ROOM: usize = 1 << 20;

/// A datagram's bytes: one more than a request has, so that longer ones are seen to be.
type Room = [u8; REQUEST_LEN + 1];

/// A socket, and what a batch takes.
pub struct Batches {
    socket: UdpSocket,
    received: MultiHeaders<SockaddrStorage>,
    /// Apart from the others: once sent with, headers keep pointers to where answers went.
    sent: MultiHeaders<SockaddrStorage>,
    rooms: Vec<Room>,
    from: Vec<(usize, SockaddrStorage)>,
}

/// A socket that batches can be received from.
pub fn bind(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, TURN))?;
    setsockopt(&socket, sockopt::RcvBuf, &ROOM)?;
    Ok(socket)
}

impl Batches {
    /// Takes a socket over that [`bind`] made.
    pub fn new(socket: UdpSocket) -> Self {
        let [received, sent] = [(); 2].map(|()| MultiHeaders::preallocate(MOST, None));
        Self { socket, received, sent, rooms: vec![[0; REQUEST_LEN + 1]; MOST], from: Vec::with_capacity(MOST) }
    }

    /// Receives what is there, or waits for one, but not for long: then there is none.
    pub fn receive(&mut self) -> std::io::Result<usize> {
        self.from.clear();
        let mut slices: Vec<_> = self.rooms.iter_mut().map(|room| [IoSliceMut::new(room)]).collect();
        let flags = MsgFlags::MSG_WAITFORONE;
        match recvmmsg(self.socket.as_raw_fd(), &mut self.received, slices.iter_mut(), flags, None) {
            Ok(received) => {
                let unknown = SockaddrStorage::from(SocketAddr::from(([0; 4], 0)));
                self.from.extend(received.map(|message| (message.bytes, message.address.unwrap_or(unknown))));
            }
            // ECONNREFUSED and its like are about an earlier answer that nobody took.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.from.len())
    }

    /// What was received in one place of the batch, and from where.
    pub fn datagram(&mut self, place: usize) -> Option<(&mut [u8], IpAddr)> {
        let (length, from) = self.from.get(place)?;
        let source = match (from.as_sockaddr_in(), from.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::V4(v4.ip()),
            (_, Some(v6)) => v6.ip().to_canonical(),
            _ => return None,
        };
        Some((self.rooms.get_mut(place)?.get_mut(..*length)?, source))
    }

    /// Sends answers to those in these places. What can't be delivered is lost, as datagrams may be.
    pub fn send(&mut self, answers: &[(usize, Answer)]) {
        let slices: Vec<_> = answers.iter().map(|(_, answer)| [IoSlice::new(answer)]).collect();
        let to: Vec<_> = answers.iter().map(|(place, _)| self.from.get(*place).map(|(_, from)| *from)).collect();
        let mut done = 0;
        while done < slices.len() {
            // Answers that wait for a neighbour's address must not keep others waiting.
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            let fd = self.socket.as_raw_fd();
            match sendmmsg(fd, &mut self.sent, &slices[done..], &to[done..], [], flags) {
                Ok(sent) => done += sent.count().max(1),
                // The first of them can't be sent; the others can.
                Err(error) => {
                    tracing::debug!("an answer could not be sent: {error}");
                    done += 1;
                }
            }
        }
    }
}
