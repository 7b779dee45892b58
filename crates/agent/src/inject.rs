//! The socket through which held frames are sent again. The kernel program knows it by its cookie, and the subject by its
//! mark; nobody else can make packets on behalf of a subject.

use anyhow::{Context, Result};
use engine::agent::Subject;
use engine::agent::frame::Ready;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};
use std::os::fd::{AsRawFd, OwnedFd};

/// A packet socket that only sends.
pub struct Injector {
    socket: OwnedFd,
    cookie: u64,
}

impl Injector {
    /// Opens the socket.
    pub fn new() -> Result<Self> {
        // Protocol 0: it receives nothing.
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None);
        let socket = socket.context("cannot open a packet socket (are you root?)")?;
        let cookie = cookie(&socket).context("the packet socket has no cookie")?;
        Ok(Self { socket, cookie })
    }

    /// What the kernel program knows the socket by.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Sends a frame out of `interface` for a subject.
    pub fn send(&self, subject: Subject, interface: u32, frame: &Ready) -> Result<()> {
        setsockopt(&self.socket, sockopt::Mark, &subject.number()).context("cannot mark the packet")?;
        let to = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: frame.ether_type.to_be(),
            sll_ifindex: interface as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            // The frame brings its header along.
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: buffer and address live through the call and have the lengths given.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.bytes.as_ptr().cast(),
                frame.bytes.len(),
                libc::MSG_DONTWAIT,
                std::ptr::from_ref(&to).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        if sent < 0 {
            return Err(std::io::Error::last_os_error()).context("cannot send a held packet");
        }
        Ok(())
    }
}

fn cookie(socket: &OwnedFd) -> std::io::Result<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as u32;
    // SAFETY: the buffer has the eight bytes that SO_COOKIE fills, and `len` says so.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            std::ptr::from_mut(&mut len),
        )
    };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(cookie) }
}
