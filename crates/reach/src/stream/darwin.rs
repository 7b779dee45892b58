//! macOS and iOS: `connectx` puts the first bytes of a stream into the SYN. This code is untested: nobody has run it
//! yet.

use super::{Block, descriptor, io_error, raw};
use crate::Error;
use nix::sys::socket::SockaddrStorage;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// `CONNECT_DATA_IDEMPOTENT` and `CONNECT_DATA_AUTHENTICATED` of <sys/socket.h>: data in the SYN, without a cookie.
const FLAGS: libc::c_uint = 0x2 | 0x4;
/// `tcpi_tfo_syn_data_acked` of <netinet/tcp.h> is missing in `libc`. Its bit is found by the layout of `struct
/// tcp_connection_info`: it is in the flags after `tcpi_rttvar`. This is the structure's length.
const CONNECTION_INFO_LEN: usize = 112;

/// Sends a SYN with the block as its data.
///
/// # Errors
///
/// Returns the reason why the SYN was not sent.
pub fn send_syn(socket: BorrowedFd<'_>, address: &SockaddrStorage, block: &Block, to: SocketAddr) -> Result<(), Error> {
    let (name, length) = raw(address);
    let ends = libc::sa_endpoints_t {
        sae_srcif: 0,
        sae_srcaddr: std::ptr::null(),
        sae_srcaddrlen: 0,
        sae_dstaddr: name,
        sae_dstaddrlen: length,
    };
    let data = libc::iovec { iov_base: block.as_ptr().cast_mut().cast(), iov_len: block.len() };
    let mut sent = 0;
    // SAFETY: ends, address and data live through the call; the kernel only reads the data.
    let done = unsafe {
        libc::connectx(
            descriptor(socket),
            &raw const ends,
            libc::SAE_ASSOCID_ANY,
            FLAGS,
            &raw const data,
            1,
            &raw mut sent,
            std::ptr::null_mut(),
        )
    };
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        _ if done == 0 && sent == block.len() => Ok(()),
        Some(libc::EINPROGRESS) if sent == block.len() => Ok(()),
        Some(libc::EINPROGRESS) => Err(Error::NotSent),
        Some(libc::EOPNOTSUPP) => Err(Error::FastOpenOff),
        _ if done == 0 => Err(Error::NotSent),
        _ => Err(io_error(to, error)),
    }
}

/// Ends the attempt to connect.
pub fn disconnect(socket: BorrowedFd<'_>) {
    // SAFETY: the call takes numbers only.
    unsafe { libc::disconnectx(descriptor(socket), libc::SAE_ASSOCID_ANY, libc::SAE_CONNID_ANY) };
}

/// Reports whether the peer has acknowledged the block in the SYN.
pub fn took_data(socket: BorrowedFd<'_>) -> bool {
    // tcpi_tfo_syn_data_acked: the eighth bit of the flags.
    info(socket).is_some_and(|info| info[36] & 0x80 != 0)
}

/// Reports whether a socket is not connected.
pub fn is_unconnected(socket: BorrowedFd<'_>) -> bool {
    info(socket).is_some_and(|info| info[0] == 0)
}

/// Returns the round-trip time of a connection, if known.
pub fn round_trip(socket: BorrowedFd<'_>) -> Option<Duration> {
    let millis = u32::from_ne_bytes(*info(socket)?[28..].first_chunk()?);
    (millis > 0).then(|| Duration::from_millis(millis.into()))
}

/// Returns `None`: this system has no TCP option that forbids a verifier to change sequence numbers. On Linux, this
/// function returns the option's name.
pub fn signs(_: BorrowedFd<'_>) -> Option<&'static str> {
    None
}

fn info(socket: BorrowedFd<'_>) -> Option<[u8; CONNECTION_INFO_LEN]> {
    let mut room = [0; CONNECTION_INFO_LEN];
    let mut length = room.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the room.
    let got = unsafe {
        libc::getsockopt(
            descriptor(socket),
            libc::IPPROTO_TCP,
            libc::TCP_CONNECTION_INFO,
            room.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    (got == 0).then_some(room)
}
