//! Sends and receives raw frames on a device, bypassing the namespace's own network stack.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike, bind, recvfrom, send, setsockopt, socket,
    sockopt::RcvBufForce,
};

use crate::net::Namespace;

/// Size of the receive buffer in bytes.
const RECEIVE_BUFFER: usize = 16 << 20;

/// Longest wait for room to send a frame.
const ROOM_WAIT: Duration = Duration::from_secs(5);

/// A packet socket on one device. It receives the frames that arrive after it was opened, and never outgoing frames.
/// The outermost VLAN tag of a received frame is missing, because the kernel stores it separately.
pub struct Port {
    socket: OwnedFd,
}

impl Port {
    /// Opens a packet socket on `device` of `namespace`.
    pub fn open(namespace: &Namespace, device: &str) -> Result<Self> {
        namespace.enter(|| Self::here(device)).with_context(|| format!("in {}", namespace.name()))
    }

    /// Opens a packet socket on `device` of the caller's current namespace.
    pub fn here(device: &str) -> Result<Self> {
        let open = || -> nix::Result<OwnedFd> {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            // Protocol 0 means that nothing is received until the socket is bound; otherwise it would get frames of
            // other devices.
            let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
            // Room for bursts. The limit of the system is low, so the option that ignores it is used.
            setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER)?;
            bind(socket.as_raw_fd(), &everything_on(if_nametoindex(device)?))?;
            Ok(socket)
        };
        Ok(Self { socket: open().with_context(|| format!("cannot open a packet socket on {device} (are you root?)"))? })
    }

    /// Sends a frame unchanged. While the socket's buffer or the device's queue is full, it waits, for at most [`ROOM_WAIT`].
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        let deadline = Instant::now() + ROOM_WAIT;
        let sent = loop {
            match self.try_send(frame) {
                Err(Errno::EAGAIN | Errno::ENOBUFS) if Instant::now() < deadline => sleep(Duration::from_micros(100)),
                sent => break sent.context("cannot send a frame")?,
            }
        };
        ensure!(sent == frame.len(), "only {sent} of {} bytes were sent", frame.len());
        Ok(())
    }

    /// Sends a frame unchanged, without waiting. Returns the number of bytes that were sent. `ENOBUFS` means that the
    /// frame was dropped, either by a full queue or by a program at the device.
    pub fn try_send(&self, frame: &[u8]) -> nix::Result<usize> {
        send(self.socket.as_raw_fd(), frame, MsgFlags::empty())
    }

    /// Passes incoming frames to `wanted` until it returns a value, for at most `within`. Returns that value.
    pub fn receive<T>(&self, within: Duration, mut wanted: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + within;
        loop {
            while let Some(frame) = self.next() {
                if let Some(found) = wanted(&frame) {
                    return Some(found);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            // Round up: otherwise the last part of a millisecond would be spent busy-waiting.
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            let _ = poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], timeout);
        }
    }

    /// Returns the next frame that has already arrived; `None` if there is none.
    fn next(&self) -> Option<Vec<u8>> {
        // Size of the largest frame that a virtual device delivers: 64 KiB of IP and the link's headers.
        let mut frame = vec![0; 65536 + 64];
        loop {
            match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut frame) {
                Ok((_, Some(from))) if from.pkttype() == libc::PACKET_OUTGOING => {}
                Ok((size, _)) => {
                    frame.truncate(size);
                    return Some(frame);
                }
                Err(Errno::EINTR) => {}
                Err(_) => return None,
            }
        }
    }
}

/// Returns the address that binds a packet socket to every protocol on one device.
fn everything_on(index: u32) -> LinkAddr {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the pointer refers to a whole sockaddr_ll that outlives the call, which copies it; its family states its
    // kind, and the length is that of the type.
    let copied =
        unsafe { LinkAddr::from_raw((&raw const address).cast(), Some(size_of_val(&address) as libc::socklen_t)) };
    copied.expect("its family and length are right")
}
