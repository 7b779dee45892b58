//! A socket that sends whole frames through interfaces and receives nothing.

use anyhow::{Context, Result};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A send-only packet socket.
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens the socket.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not open the socket.
    pub fn new() -> Result<Self> {
        // With protocol 0, the socket receives nothing.
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None);
        socket.map(Self).context("cannot open a packet socket (are you root?)")
    }

    /// Sends a frame, which begins with its link header, through the interface with the index `interface`.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not send the frame.
    pub fn send(&self, interface: u32, ether_type: u16, frame: &[u8]) -> std::io::Result<()> {
        let to = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: ether_type.to_be(),
            sll_ifindex: interface as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            // The frame includes its link header.
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: buffer and address live through the call and have the lengths passed.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                libc::MSG_DONTWAIT,
                std::ptr::from_ref(&to).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        if sent < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
