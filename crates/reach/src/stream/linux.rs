//! Linux: TCP Fast Open without a cookie puts any bytes into a SYN, without privileges (tcp(7)).

use super::{Block, descriptor, io_error, raw};
use crate::Error;
use nix::sys::socket::SockaddrStorage;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Bit of `tcpi_options`: the peer has acknowledged the data in the SYN.
const SYN_DATA: u8 = 32;
/// `TCP_CLOSE`: the state of a new socket.
const STATE_CLOSE: u8 = 7;
/// Number of bytes of `struct tcp_info` that are read, and offsets in it. These fields are the same since Linux 2.6.
const INFO_LEN: usize = 104;
const INFO_OPTIONS: usize = 5;
const INFO_ROUND_TRIP: usize = 68;
/// `TCP_AO_INFO`, Linux 6.7.
const AO_INFO: i32 = 40;

/// Sends a SYN with the block as its data.
///
/// # Errors
///
/// Returns the reason why the SYN was not sent with the whole block.
pub fn send_syn(socket: BorrowedFd<'_>, address: &SockaddrStorage, block: &Block, to: SocketAddr) -> Result<(), Error> {
    let on: libc::c_int = 1;
    // SAFETY: the value is an int and lives through the call.
    let set = unsafe {
        libc::setsockopt(
            descriptor(socket),
            libc::IPPROTO_TCP,
            libc::TCP_FASTOPEN_NO_COOKIE,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if set != 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::ENOPROTOOPT | libc::EINVAL) => Error::KernelTooOld(""),
            Some(libc::EOPNOTSUPP) => Error::Signed("MPTCP", to),
            _ => io_error(to, error),
        });
    }
    let flags = libc::MSG_FASTOPEN | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let (name, length) = raw(address);
    // SAFETY: block and address live through the call, with their own lengths.
    let sent = unsafe { libc::sendto(descriptor(socket), block.as_ptr().cast(), block.len(), flags, name, length) };
    if usize::try_from(sent) == Ok(block.len()) {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    // The stack may have sent the SYN with a part of the block, or without it. It must not send the rest.
    disconnect(socket);
    Err(match (sent, error.raw_os_error()) {
        (0.., _) | (_, Some(libc::EINPROGRESS)) => Error::NotSent,
        (_, Some(libc::EOPNOTSUPP)) => Error::FastOpenOff,
        _ => io_error(to, error),
    })
}

/// Ends the attempt to connect. The socket keeps its options and can connect again.
pub fn disconnect(socket: BorrowedFd<'_>) {
    let none = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // SAFETY: the address lives through the call and has this length.
    unsafe { libc::connect(descriptor(socket), &raw const none, size_of_val(&none) as libc::socklen_t) };
    // Reading the error clears it.
    let _ = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::SocketError);
}

/// Reports whether the peer has acknowledged the block in the SYN.
pub fn took_data(socket: BorrowedFd<'_>) -> bool {
    info(socket).is_some_and(|info| info[INFO_OPTIONS] & SYN_DATA != 0)
}

/// Reports whether a socket is neither connected nor connecting nor listening.
pub fn is_unconnected(socket: BorrowedFd<'_>) -> bool {
    info(socket).is_some_and(|info| info[0] == STATE_CLOSE)
}

/// Returns the round-trip time of a connection, if known.
pub fn round_trip(socket: BorrowedFd<'_>) -> Option<Duration> {
    let micros = u32::from_ne_bytes(*info(socket)?[INFO_ROUND_TRIP..].first_chunk()?);
    (micros > 0).then(|| Duration::from_micros(micros.into()))
}

/// Returns the name of a TCP option of this socket that breaks if a verifier changes sequence numbers: `TCP-AO` or
/// `MPTCP`. Returns `None` if the socket has neither. The kernel does not report whether the socket has keys for MD5
/// signatures.
pub fn signs(socket: BorrowedFd<'_>) -> Option<&'static str> {
    let mut protocol: libc::c_int = 0;
    if option(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut protocol.to_ne_bytes()).is_some_and(|bytes| {
        protocol = i32::from_ne_bytes(bytes);
        protocol == libc::IPPROTO_MPTCP
    }) {
        return Some("MPTCP");
    }
    let mut room = [0_u8; 64];
    let mut length = room.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the room.
    let got = unsafe {
        libc::getsockopt(descriptor(socket), libc::IPPROTO_TCP, AO_INFO, room.as_mut_ptr().cast(), &raw mut length)
    };
    (got == 0).then_some("TCP-AO")
}

fn option<const N: usize>(socket: BorrowedFd<'_>, level: i32, name: i32, room: &mut [u8; N]) -> Option<[u8; N]> {
    let mut length = N as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the room.
    let got = unsafe { libc::getsockopt(descriptor(socket), level, name, room.as_mut_ptr().cast(), &raw mut length) };
    (got == 0 && length as usize == N).then_some(*room)
}

fn info(socket: BorrowedFd<'_>) -> Option<[u8; INFO_LEN]> {
    option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut [0; INFO_LEN])
}

#[cfg(test)]
mod tests {
    use super::super::{Plan, answers_without_verifier, connect};
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::time::Instant;

    #[test]
    fn a_server_without_a_verifier_gets_a_reset_and_not_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let to = listener.local_addr().expect("an address");
        let plan = Plan { to, deadline: Instant::now() + Duration::from_secs(2), round_trip: None };
        let outcome = connect(&plan, |_| Ok([0x55; 40]));
        assert!(matches!(outcome, Err(Error::NotTaken { .. })), "{:?}", outcome.err());
        assert!(answers_without_verifier(to).expect("a SYN"), "nobody is noticed to answer");
        let (mut stream, _) = listener.accept().expect("the SYN was a SYN");
        stream.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
        let read = stream.read(&mut [0; 100]);
        assert!(read.is_err() || read.is_ok_and(|size| size <= 40), "more than the block came");
    }

    /// Decision 101 depends on this.
    #[test]
    fn a_syn_that_asks_for_a_cookie_has_no_room_for_a_token() {
        let listener = TcpListener::bind("127.86.83.1:0").expect("a listener");
        let to = listener.local_addr().expect("an address");
        let socket = super::super::open(nix::sys::socket::AddressFamily::Inet).expect("a socket");
        let address = SockaddrStorage::from(to);
        let (name, length) = raw(&address);
        let (block, flags) = ([0x55_u8; 40], libc::MSG_FASTOPEN | libc::MSG_DONTWAIT);
        let fd = descriptor(std::os::fd::AsFd::as_fd(&socket));
        // SAFETY: block and address live through the call, with their own lengths.
        let sent = unsafe { libc::sendto(fd, block.as_ptr().cast(), block.len(), flags, name, length) };
        assert_eq!((sent, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EINPROGRESS)));
    }

    #[test]
    fn a_closed_port_refuses() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let to = listener.local_addr().expect("an address");
        drop(listener);
        assert!(!answers_without_verifier(to).expect("a SYN"), "a closed port answers nothing");
        let plan = Plan { to, deadline: Instant::now() + Duration::from_secs(2), round_trip: None };
        match connect(&plan, |_| Ok([0x55; 40])) {
            Err(Error::Io { source, .. }) => assert_eq!(source.raw_os_error(), Some(libc::ECONNREFUSED)),
            other => panic!("{:?}", other.err()),
        }
    }
}
