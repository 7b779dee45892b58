//! The socket through which the agent sends queued frames when their grant has arrived. The kernel program recognises
//! the socket by its cookie, and the subject by the packet's mark. No other process can send packets on behalf of a
//! subject in this way.

use anyhow::{Context, Result};
use datapath::packet_socket::PacketSocket;
use engine::agent::Frame;
use engine::agent::Subject;
use engine::agent::frame::Ready;
use nix::sys::socket::{setsockopt, sockopt};
use std::os::fd::{AsFd, AsRawFd};

/// A packet socket that only sends.
pub struct Injector {
    socket: PacketSocket,
    cookie: u64,
}

impl Injector {
    /// Opens the socket.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not open the socket.
    pub fn new() -> Result<Self> {
        let socket = PacketSocket::new()?;
        let cookie = cookie(&socket).context("cannot read the packet socket's cookie")?;
        Ok(Self { socket, cookie })
    }

    /// Returns the cookie by which the kernel program recognises the socket.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Sends the packet `ready` through the interface of `frame` on behalf of `subject`. `frame` is the queued frame
    /// from which `ready` was made. The packet's priority tells the kernel program which treatment the frame's sender
    /// asked for.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not send the frame.
    pub fn send(&self, subject: Subject, frame: &Frame, ready: &Ready) -> Result<()> {
        setsockopt(&self.socket, sockopt::Mark, &subject.number())
            .context("cannot set the owner's mark on the packet socket")?;
        setsockopt(&self.socket, sockopt::Priority, &frame.wish().into())
            .context("cannot set the treatment of a queued packet on the packet socket")?;
        self.socket
            .send(frame.interface, ready.ether_type, &ready.bytes)
            .with_context(|| format!("cannot send a queued packet on interface {}", frame.interface))
    }
}

fn cookie(socket: &impl AsFd) -> std::io::Result<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as u32;
    // SAFETY: the buffer has the eight bytes that SO_COOKIE fills, and `len` says so.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            std::ptr::from_mut(&mut len),
        )
    };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(cookie) }
}
