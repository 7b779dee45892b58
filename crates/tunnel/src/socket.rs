//! The tunnel's UDP socket. One system call sends or receives many records (`UDP_SEGMENT`, `UDP_GRO`).

use crate::path::Paths;
use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use seal::Run;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Length of each buffer for received datagrams, in bytes: the most that `UDP_GRO` joins.
const BUFFER: usize = 64 * 1024;
/// Number of buffers that one system call fills.
const BUFFERS: usize = 8;
/// Number of bytes that may wait in the socket. The kernel allows root to exceed its usual limit.
const QUEUE: usize = 4 << 20;
/// Maximum time for which the socket waits if the network card's queue is full.
const FULL: Duration = Duration::from_millis(20);

/// A bound UDP socket for a tunnel's datagrams.
pub struct Socket {
    socket: UdpSocket,
    /// Whether the socket is for both IPv4 and IPv6. If so, it uses IPv4-mapped addresses.
    is_ipv6: bool,
    state: UdpSocketState,
    /// The paths. All sockets of one service share them, because an ICMP error possibly arrives at a socket other than
    /// the one that sent the datagram.
    paths: Arc<Mutex<Paths>>,
}

/// Buffers for received datagrams.
pub struct Buffers {
    bytes: Vec<u8>,
    metas: [RecvMeta; BUFFERS],
    count: usize,
}

impl Default for Buffers {
    fn default() -> Self {
        Self { bytes: vec![0; BUFFER * BUFFERS], metas: [RecvMeta::default(); BUFFERS], count: 0 }
    }
}

/// Datagrams from one address, which are adjacent in memory.
pub struct Arrived<'b> {
    /// Address and port of the sender.
    pub from: SocketAddr,
    /// The address of this host to which the datagrams were sent, if it is known.
    pub to: Option<IpAddr>,
    /// The datagrams. Each has `stride` bytes; only the last one may be shorter.
    pub bytes: &'b mut [u8],
    /// Length of each datagram, in bytes.
    pub stride: usize,
}

impl Buffers {
    /// Returns buffers without room, for a thread that receives nothing.
    pub fn empty() -> Self {
        Self { bytes: Vec::new(), metas: [RecvMeta::default(); BUFFERS], count: 0 }
    }

    /// Returns the datagrams that the last call of [`Socket::receive`] received.
    pub fn arrived(&mut self) -> impl Iterator<Item = Arrived<'_>> {
        self.bytes.chunks_mut(BUFFER).zip(&self.metas).take(self.count).filter_map(|(bytes, meta)| {
            let bytes = bytes.get_mut(..meta.len)?;
            (meta.stride > 0).then_some(Arrived {
                from: SocketAddr::new(meta.addr.ip().to_canonical(), meta.addr.port()),
                to: meta.dst_ip.map(|ip| ip.to_canonical()),
                bytes,
                stride: meta.stride,
            })
        })
    }
}

impl Socket {
    /// Takes over a bound socket.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not accept an option of the socket.
    pub fn new(socket: UdpSocket) -> Result<Self> {
        Self::sharing(socket, Arc::default())
    }

    fn sharing(socket: UdpSocket, paths: Arc<Mutex<Paths>>) -> Result<Self> {
        let state = UdpSocketState::new((&socket).into()).context("cannot set up the tunnel's UDP socket")?;
        for queue in [true, false] {
            // Without the necessary capability, the socket keeps the kernel's default size.
            let _ = if queue {
                setsockopt(&socket, sockopt::RcvBufForce, &QUEUE)
            } else {
                setsockopt(&socket, sockopt::SndBufForce, &QUEUE)
            };
        }
        // The kernel keeps ICMP errors until `read_errors` reads them.
        state.enable_transport_errors((&socket).into()).context("cannot set up the tunnel's UDP socket for errors")?;
        let is_ipv6 = socket.local_addr()?.is_ipv6();
        Ok(Self { socket, is_ipv6, state, paths })
    }

    /// Binds `count` sockets to one address. The kernel chooses the socket for a datagram by the datagram's addresses
    /// and ports, so all datagrams of a tunnel arrive at one socket.
    ///
    /// # Errors
    ///
    /// Fails if anybody else has the address, or if the kernel does not accept an option of a socket.
    pub fn several(at: SocketAddr, count: usize) -> Result<Vec<Self>> {
        // The first socket is bound without SO_REUSEPORT, which fails even if another process has the port with it.
        let first = UdpSocket::bind(at)?;
        let (at, paths) = (first.local_addr()?, Arc::default());
        if count > 1 {
            setsockopt(&first, sockopt::ReusePort, &true)?;
        }
        let mut all = vec![Self::sharing(first, Arc::clone(&paths))?];
        for _ in 1..count {
            let family = if at.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            let next = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
            setsockopt(&next, sockopt::ReusePort, &true)?;
            bind(next.as_raw_fd(), &SockaddrStorage::from(at))
                .with_context(|| format!("cannot bind a further socket to {at}"))?;
            all.push(Self::sharing(UdpSocket::from(next), Arc::clone(&paths))?);
        }
        Ok(all)
    }

    /// Returns the address to which the socket is bound.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not report the address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn paths(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the socket's cookie, by which kernel programs recognise its packets.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not assign a cookie.
    pub fn cookie(&self) -> io::Result<u64> {
        let mut cookie = 0u64;
        let mut length = size_of::<u64>() as libc::socklen_t;
        // SAFETY: the buffer has the eight bytes that SO_COOKIE fills, and `length` says so.
        let done = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_COOKIE,
                std::ptr::from_mut(&mut cookie).cast(),
                &mut length,
            )
        };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
    }

    /// Returns an address in the form that the socket uses.
    fn mapped(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(ip) if self.is_ipv6 => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
            _ => address,
        }
    }

    /// Sends the records of these runs to one address. If `source` is given, sends from this address. Returns the
    /// number of datagrams that the kernel did not send.
    pub fn send<'b>(&self, runs: impl Iterator<Item = Run<'b>>, to: SocketAddr, source: Option<IpAddr>) -> usize {
        let mut lost = 0;
        for run in runs {
            let most = run.segment * self.state.max_gso_segments();
            for bytes in run.bytes.chunks(most) {
                let transmit = Transmit {
                    destination: self.mapped(to),
                    ecn: None,
                    contents: bytes,
                    segment_size: Some(run.segment),
                    src_ip: source,
                };
                if let Err(error) = self.send_one(&transmit) {
                    if quinn_udp::is_msg_size_err(&error) {
                        self.paths().recheck(to.ip());
                    }
                    tracing::debug!(%to, segment = run.segment, "cannot send records: {error}");
                    lost += bytes.len().div_ceil(run.segment);
                }
            }
        }
        lost
    }

    /// Sends one datagram. If `source` is given, sends from this address.
    pub fn send_single(&self, datagram: &[u8], to: SocketAddr, source: Option<IpAddr>) {
        let transmit = Transmit {
            destination: self.mapped(to),
            ecn: None,
            contents: datagram,
            segment_size: None,
            src_ip: source,
        };
        if let Err(error) = self.send_one(&transmit) {
            tracing::debug!(%to, "cannot send a message of the tunnel: {error}");
        }
    }

    fn send_one(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut last = io::ErrorKind::WouldBlock.into();
        for _ in 0..3 {
            match self.state.try_send((&self.socket).into(), transmit) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
                    let _ = poll(&mut ready, PollTimeout::from(FULL.as_millis() as u16));
                }
                // Perhaps an ICMP error about an earlier datagram, to any other end.
                Err(error) if may_be_of_another(&error) => last = error,
                done => return done,
            }
        }
        Err(last)
    }

    /// Receives the datagrams that have arrived into `buffers`. Returns `false` if no datagram has arrived.
    pub fn receive(&self, buffers: &mut Buffers) -> bool {
        let Buffers { bytes, metas, count } = buffers;
        let mut rooms: [IoSliceMut<'_>; BUFFERS] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        for (room, bytes) in rooms.iter_mut().zip(bytes.chunks_mut(BUFFER)) {
            *room = IoSliceMut::new(bytes);
        }
        *count = self.state.recv((&self.socket).into(), &mut rooms, metas).unwrap_or(0);
        *count > 0
    }

    /// Returns the length in bytes of the longest datagram payload that fits the path to `to`, as far as is known.
    pub fn room(&self, to: SocketAddr, now: u64) -> usize {
        self.paths().room(to.ip(), now)
    }

    /// Reads the ICMP errors that have arrived, and learns from them how long datagrams may be. Until the errors are
    /// read, polling reports an error on the socket.
    pub fn read_errors(&self, now: u64) {
        self.paths().read_errors(self.socket.as_raw_fd(), now);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reports whether an error of a call may be an ICMP error about an earlier datagram.
fn may_be_of_another(error: &io::Error) -> bool {
    const CODES: [i32; 6] =
        [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EMSGSIZE, libc::EPROTO, libc::EACCES];
    error.raw_os_error().is_some_and(|code| CODES.contains(&code))
}
