//! The process that makes a call: its memory, its sockets.

use super::child::{pidfd, take_fd};
use nix::sys::socket::{SockaddrIn, SockaddrIn6, SockaddrLike, SockaddrStorage};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Longest address that is read.
const ADDRESS_MAX: usize = 28;

/// An address as the program wrote it, and what it means.
pub struct Address {
    /// For system calls.
    pub raw: SockaddrStorage,
    /// The address, IPv4 also where the program wrote an IPv4-mapped one.
    pub to: SocketAddr,
}

/// Reads a thread's memory.
pub fn read<const N: usize>(thread: i32, at: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let size = read_some(thread, at, &mut bytes)?;
    if size == N { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn read_some(thread: i32, at: u64, room: &mut [u8]) -> io::Result<usize> {
    let base = usize::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    let there = [RemoteIoVec { base, len: room.len() }];
    Ok(process_vm_readv(Pid::from_raw(thread), &mut [IoSliceMut::new(room)], &there)?)
}

/// Reads an Internet address; `None` if it is of another kind, or the kernel will refuse it.
pub fn address(thread: i32, at: u64, length: u64) -> io::Result<Option<Address>> {
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(ADDRESS_MAX);
    if at == 0 || length < size_of::<libc::sockaddr_in>() {
        return Ok(None);
    }
    let mut room = [0; ADDRESS_MAX];
    if read_some(thread, at, &mut room[..length])? != length {
        return Ok(None);
    }
    let family = i32::from(u16::from_ne_bytes([room[0], room[1]]));
    if family != libc::AF_INET && (family != libc::AF_INET6 || length < ADDRESS_MAX) {
        return Ok(None);
    }
    let size = if family == libc::AF_INET { size_of::<libc::sockaddr_in>() } else { ADDRESS_MAX };
    // SAFETY: the room holds `size` bytes of an address of this family.
    let raw = unsafe { SockaddrStorage::from_raw(room.as_ptr().cast(), Some(size as libc::socklen_t)) };
    let Some(raw) = raw else { return Ok(None) };
    let four = raw.as_sockaddr_in().map(|four: &SockaddrIn| SocketAddr::from(std::net::SocketAddrV4::from(*four)));
    let six = raw.as_sockaddr_in6().map(|six: &SockaddrIn6| SocketAddr::from(std::net::SocketAddrV6::from(*six)));
    let to = four.or(six).map(|to| SocketAddr::new(to.ip().to_canonical(), to.port()));
    Ok(to.map(|to| Address { raw, to }))
}

/// Returns the id of a thread's process.
pub fn process_of(thread: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Takes a copy of a thread's descriptor.
pub fn socket(thread: i32, descriptor: u64) -> io::Result<OwnedFd> {
    let descriptor = i32::try_from(descriptor as u32).map_err(|_| io::ErrorKind::InvalidInput)?;
    let process = match pidfd(thread, libc::O_EXCL) {
        Ok(process) => process,
        Err(_) => pidfd(process_of(thread).unwrap_or(thread), 0)?,
    };
    take_fd(&process, descriptor)
}

/// Returns a number that tells sockets apart.
pub fn identity(socket: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(nix::sys::stat::fstat(socket)?.st_ino)
}

/// The kinds of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP, Multipath TCP included.
    Tcp,
    /// UDP.
    Udp,
    /// Anything else.
    Other,
}

/// Returns the kind of a descriptor.
pub fn kind(socket: BorrowedFd<'_>) -> Kind {
    match (option(socket, libc::SO_TYPE), option(socket, libc::SO_PROTOCOL)) {
        (Some(libc::SOCK_STREAM), Some(libc::IPPROTO_TCP | libc::IPPROTO_MPTCP)) => Kind::Tcp,
        (Some(libc::SOCK_DGRAM), Some(libc::IPPROTO_UDP)) => Kind::Udp,
        _ => Kind::Other,
    }
}

fn option(socket: BorrowedFd<'_>, name: i32) -> Option<i32> {
    let mut value: libc::c_int = 0;
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the value.
    let got = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut length)
    };
    (got == 0).then_some(value)
}

/// Returns the program's own time limit for connecting.
pub fn time_limit(socket: BorrowedFd<'_>) -> Option<Duration> {
    let time = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::SendTimeout).ok()?;
    let time = Duration::new(time.tv_sec().try_into().ok()?, u32::try_from(time.tv_usec()).ok()? * 1000);
    (!time.is_zero()).then_some(time)
}

/// Sends a datagram that must not wait, on a copy of a program's socket: to `address`, or where it is connected.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], address: Option<&SockaddrStorage>) -> io::Result<()> {
    let (name, length) = address.map_or((std::ptr::null(), 0), |address| (address.as_ptr(), address.len()));
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: bytes and address live through the call, with their own lengths.
    let sent = unsafe { libc::sendto(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags, name, length) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
