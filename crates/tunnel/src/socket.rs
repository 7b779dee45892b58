//! The tunnel's UDP socket: one system call sends or takes many records (`UDP_SEGMENT`, `UDP_GRO`).

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use seal::Batch;
use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// Bytes of each buffer for received datagrams: what `UDP_GRO` may join.
const BUFFER: usize = 64 * 1024;
/// Buffers that one system call fills.
const BUFFERS: usize = 8;
/// Bytes that may wait in the socket. The kernel allows root to exceed its limit for others.
const QUEUE: usize = 4 << 20;
/// Time for which the kernel's answer about a path's length is used, in milliseconds.
const PATH: u64 = 10_000;
/// Number of paths remembered.
const PATHS_MAX: usize = 4096;
/// How long a full queue of the network card is waited for.
const FULL: Duration = Duration::from_millis(20);

/// A bound socket.
pub struct Socket {
    socket: UdpSocket,
    /// Whether it takes both families: IPv4 addresses are mapped then.
    is_ipv6: bool,
    state: UdpSocketState,
    /// Longest datagram payload to an address, and when it was asked for.
    paths: HashMap<IpAddr, (usize, u64)>,
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

/// Datagrams from one address, which lie one behind the other.
pub struct Arrived<'b> {
    /// The sender.
    pub from: SocketAddr,
    /// This host's address that they were sent to, if the kernel said.
    pub to: Option<IpAddr>,
    /// The datagrams, each of `stride` bytes, except that the last may be shorter.
    pub bytes: &'b mut [u8],
    /// Bytes of each datagram.
    pub stride: usize,
}

impl Buffers {
    /// Returns what the last call of [`Socket::receive`] brought.
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
    /// If the kernel refuses an option.
    pub fn new(socket: UdpSocket) -> Result<Self> {
        let state = UdpSocketState::new((&socket).into()).context("cannot set up the tunnel's UDP socket")?;
        for queue in [true, false] {
            // Without the capability, the kernel's default stays.
            let _ = if queue {
                setsockopt(&socket, sockopt::RcvBufForce, &QUEUE)
            } else {
                setsockopt(&socket, sockopt::SndBufForce, &QUEUE)
            };
        }
        let is_ipv6 = socket.local_addr()?.is_ipv6();
        Ok(Self { socket, is_ipv6, state, paths: HashMap::new() })
    }

    /// Returns the kernel's number for the socket, by which programs recognise its packets.
    ///
    /// # Errors
    /// If the kernel has none.
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

    /// Returns an address as the socket wants it.
    fn mapped(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(ip) if self.is_ipv6 => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
            _ => address,
        }
    }

    /// Sends all records of a batch to one address, from the given address if there is one. Returns the number of
    /// datagrams that the kernel did not take.
    pub fn send(&mut self, batch: &Batch, to: SocketAddr, source: Option<IpAddr>) -> usize {
        let mut lost = 0;
        for run in batch.runs() {
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
                    if quinn_udp_too_long(&error) {
                        self.paths.remove(&to.ip());
                    }
                    tracing::debug!(%to, segment = run.segment, "cannot send records: {error}");
                    lost += bytes.len().div_ceil(run.segment);
                }
            }
        }
        lost
    }

    /// Sends one datagram.
    pub fn send_single(&mut self, datagram: &[u8], to: SocketAddr, source: Option<IpAddr>) {
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
        for _ in 0..3 {
            match self.state.try_send((&self.socket).into(), transmit) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
                    let _ = poll(&mut ready, PollTimeout::from(FULL.as_millis() as u16));
                }
                // An ICMP error about an earlier datagram.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                done => return done,
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Receives what has arrived; `false` if nothing has.
    pub fn receive(&self, buffers: &mut Buffers) -> bool {
        let Buffers { bytes, metas, count } = buffers;
        let mut rooms: [IoSliceMut<'_>; BUFFERS] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        for (room, bytes) in rooms.iter_mut().zip(bytes.chunks_mut(BUFFER)) {
            *room = IoSliceMut::new(bytes);
        }
        *count = self.state.recv((&self.socket).into(), &mut rooms, metas).unwrap_or(0);
        *count > 0
    }

    /// Returns the longest datagram payload that fits the path to `to`, as far as the kernel knows.
    pub fn room(&mut self, to: SocketAddr, now: u64) -> usize {
        if let Some((room, asked)) = self.paths.get(&to.ip())
            && now.saturating_sub(*asked) < PATH
        {
            return *room;
        }
        if self.paths.len() >= PATHS_MAX {
            self.paths.clear();
        }
        let headers = if to.is_ipv4() { 28 } else { 48 };
        let room = path_mtu(to).unwrap_or(1280).clamp(576, 65_535) - headers;
        self.paths.insert(to.ip(), (room, now));
        room
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn quinn_udp_too_long(error: &io::Error) -> bool {
    quinn_udp::is_msg_size_err(error)
}

/// Asks the kernel for the path MTU, by a connected socket that sends nothing.
fn path_mtu(to: SocketAddr) -> Option<usize> {
    let any: IpAddr = if to.is_ipv4() { [0u8; 4].into() } else { [0u8; 16].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    let mut mtu: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    let (level, option) =
        if to.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    // SAFETY: the option's value is an int that lives through the call, and so does its length.
    let done = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, std::ptr::from_mut(&mut mtu).cast(), &mut length)
    };
    if done == 0 { usize::try_from(mtu).ok() } else { None }
}
