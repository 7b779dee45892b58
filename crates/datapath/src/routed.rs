//! Sends single datagrams along a fixed path: over IPv6, with a segment routing header (wire.md §8.12.1).

use std::io;
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use wire::Hops;

/// The option to send UDP checksums of zero over IPv6 (`linux/udp.h`), which `libc` does not have.
const UDP_NO_CHECK6_TX: i32 = 101;

/// Sends a datagram from the address `from` through these hops. The last hop has to be the address of `to`. Opens a
/// socket for each datagram, because few datagrams take this way: the kernel program sends all others.
///
/// # Errors
///
/// Fails if this host does not have the address `from`, or if the kernel does not send the datagram.
pub fn send(from: Ipv6Addr, to: SocketAddrV6, hops: &Hops, datagram: &[u8]) -> io::Result<()> {
    let list = hops.list();
    let count = list.len() as u8;
    let header = [&Hops::header(count, count.saturating_sub(1)), list.as_flattened()].concat();
    let socket = UdpSocket::bind(SocketAddrV6::new(from, 0, 0, 0))?;
    // A full queue drops packets, as any queue may.
    socket.set_nonblocking(true)?;
    set(&socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_TX, &1_i32.to_ne_bytes())?;
    set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RTHDR, &header)?;
    socket.send_to(datagram, to).map(drop)
}

fn set(socket: &UdpSocket, level: i32, option: i32, value: &[u8]) -> io::Result<()> {
    let length = value.len() as libc::socklen_t;
    // SAFETY: the descriptor is open, and `value` lives through the call and has the length passed.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.as_ptr().cast(), length) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
