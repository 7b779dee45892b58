//! The process that makes a system call: its memory and its sockets.

use super::child::{pidfd, take_fd};
use nix::sys::socket::{SockaddrIn, SockaddrIn6, SockaddrLike, SockaddrStorage};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Maximum length of an address, in bytes.
const ADDRESS_MAX: usize = 28;

/// An address in the form in which the program wrote it, and the same address in Rust's form.
pub struct Address {
    /// The address for system calls.
    pub raw: SockaddrStorage,
    /// The address and port. An IPv4-mapped IPv6 address is converted to IPv4.
    pub to: SocketAddr,
}

/// Reads `N` bytes of a thread's memory.
///
/// # Errors
///
/// Fails with the system's error.
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

/// Reads an Internet address from a thread's memory. Returns `None` if the address is of another kind, or if the kernel
/// will reject it.
///
/// # Errors
///
/// Fails if the memory can't be read.
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

/// Returns the id of the process to which a thread belongs; `None` if the thread has ended.
pub fn process_of(thread: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Returns a copy of a thread's descriptor.
///
/// # Errors
///
/// Fails with the system's error.
pub fn socket(thread: i32, descriptor: u64) -> io::Result<OwnedFd> {
    let descriptor = i32::try_from(descriptor as u32).map_err(|_| io::ErrorKind::InvalidInput)?;
    let process = match pidfd(thread, libc::O_EXCL) {
        Ok(process) => process,
        Err(_) => pidfd(process_of(thread).unwrap_or(thread), 0)?,
    };
    take_fd(&process, descriptor)
}

/// Returns the number of the socket's inode, which identifies the socket among all sockets of this machine.
///
/// # Errors
///
/// Fails with the system's error.
pub fn identity(socket: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(nix::sys::stat::fstat(socket)?.st_ino)
}

/// The kind of a descriptor: whether it is a socket, and of which protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP, including Multipath TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Any other kind of socket or file.
    Other,
}

/// Returns the kind of the descriptor `socket`.
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

/// Returns the time limit for connecting that the program itself has set on the socket (`SO_SNDTIMEO`); `None` if it
/// has set none.
pub fn time_limit(socket: BorrowedFd<'_>) -> Option<Duration> {
    let time = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::SendTimeout).ok()?;
    let time = Duration::new(time.tv_sec().try_into().ok()?, u32::try_from(time.tv_usec()).ok()? * 1000);
    (!time.is_zero()).then_some(time)
}

/// Sends a datagram on a copy of a program's socket, without blocking: to `address`, or to the address to which the
/// socket is connected.
///
/// # Errors
///
/// Fails with the system's error.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], address: Option<&SockaddrStorage>) -> io::Result<()> {
    let (name, length) = address.map_or((std::ptr::null(), 0), |address| (address.as_ptr(), address.len()));
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: bytes and address live through the call, with their own lengths.
    let sent = unsafe { libc::sendto(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags, name, length) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
