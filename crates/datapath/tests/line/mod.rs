//! Sends unmodified frames to an interface of the namespace in which the sender was created.

use datapath::interface::Interface;
use nix::libc;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Sends frames through an interface.
pub struct Sender(OwnedFd);

impl Sender {
    pub fn new(interface: &str) -> Self {
        let index = Interface::named(interface).expect("an interface").index;
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: this descriptor has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: integers only, for which zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        (address.sll_family, address.sll_ifindex) = (libc::AF_PACKET as u16, index as i32);
        let length = size_of_val(&address) as u32;
        // SAFETY: the descriptor is open, and the address lives through the call.
        let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        Self(fd)
    }

    pub fn send(&self, frame: &[u8]) {
        // SAFETY: the descriptor is open, and the frame lives through the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }
}
