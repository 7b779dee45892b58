//! AF_XDP sockets, each on one queue of an interface, and the memory for frames that several sockets share.

use super::ring::{Mapping, Ring};
use crate::interface::Interface;
use anyhow::{Context, Result};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes of memory per frame, of which the kernel reserves the first 256.
const FRAME: usize = 2048;
/// Length of the longest frame, in bytes.
pub const FRAME_MAX: usize = FRAME - 256;

/// Memory for frames. Each frame belongs to the kernel, or is in a socket's ring, or is in the list of free frames.
pub struct Frames {
    memory: Mapping,
    free: Vec<u64>,
}

impl Frames {
    /// Allocates memory for this many frames.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not provide the memory.
    pub fn new(count: usize) -> Result<Self> {
        let free = (0..count).map(|number| (number * FRAME) as u64).collect();
        Ok(Self { memory: Mapping::new(count * FRAME, None)?, free })
    }

    /// Returns frames to the list of free frames. Each address can point anywhere into its frame.
    pub fn give_back(&mut self, addresses: impl IntoIterator<Item = u64>) {
        self.free.extend(addresses.into_iter().map(|address| address & !(FRAME as u64 - 1)));
    }

    fn take(&mut self, most: u32) -> impl Iterator<Item = u64> + '_ {
        let rest = self.free.len().saturating_sub(most as usize);
        self.free.drain(rest..)
    }

    /// Returns the bytes of each of these received frames, or `None` if one of them is outside of the memory for
    /// frames.
    pub fn bytes(&mut self, frames: &[libc::xdp_desc]) -> Option<Vec<&mut [u8]>> {
        let memory = &self.memory;
        let bytes = |frame: &libc::xdp_desc| {
            let (start, length) = (usize::try_from(frame.addr).ok()?, frame.len as usize);
            (start % FRAME + length <= FRAME && start + length <= memory.len()).then(|| {
                // SAFETY: the bytes are inside one frame of the memory, which lives as long as `self`. INVARIANT: a
                // frame is in one ring, or in `free`, or here, so that nothing else refers to it.
                unsafe { std::slice::from_raw_parts_mut(memory.start().add(start).as_ptr(), length) }
            })
        };
        frames.iter().map(bytes).collect()
    }
}

/// An AF_XDP socket on one queue of an interface.
pub struct Socket {
    pub received: Ring<libc::xdp_desc>,
    sending: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    sent: Ring<u64>,
    fd: OwnedFd,
    /// While this socket is open, the network card also receives frames that are addressed to other hosts.
    _promiscuous: OwnedFd,
}

/// Makes the interface promiscuous until the result is dropped, because frames that cross are addressed to other hosts.
fn promiscuous(interface: &Interface) -> Result<OwnedFd> {
    // SAFETY: a system call without pointers; the returned descriptor has no other owner. Protocol 0: nothing is
    // received.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    anyhow::ensure!(fd >= 0, "cannot open a packet socket: {}", Error::last_os_error());
    // SAFETY: as above.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: integers only, for which zero is valid.
    let mut wanted: libc::packet_mreq = unsafe { std::mem::zeroed() };
    (wanted.mr_ifindex, wanted.mr_type) = (interface.index as i32, libc::PACKET_MR_PROMISC as u16);
    let length = size_of_val(&wanted) as u32;
    // SAFETY: the descriptor is open, and `wanted` lives through the call.
    let result = unsafe {
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP);
        libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const wanted).cast(), length)
    };
    let error = Error::last_os_error();
    anyhow::ensure!(result == 0, "cannot set interface {} to promiscuous mode: {error}", interface.name);
    Ok(fd)
}

impl Socket {
    /// Opens queue 0 of an interface, with room for `size` frames in each direction. If `sharing` is given, uses the
    /// memory of that socket.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not open the socket, does not accept one of its options, or does not bind it to the
    /// interface.
    pub fn open(interface: &Interface, frames: &mut Frames, size: u32, sharing: Option<&Self>) -> Result<Self> {
        // SAFETY: a system call without pointers; the returned descriptor has no other owner.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        anyhow::ensure!(
            fd >= 0,
            "cannot open an AF_XDP socket (the kernel lacks support, or the process lacks permission): {}",
            Error::last_os_error()
        );
        // SAFETY: as above.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        if sharing.is_none() {
            // SAFETY: integers only, for which zero is valid.
            let mut memory: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
            memory.addr = frames.memory.start().as_ptr() as u64;
            memory.len = frames.memory.len() as u64;
            memory.chunk_size = FRAME as u32;
            set(&fd, libc::XDP_UMEM_REG, &memory).context("cannot share memory for frames with the kernel")?;
        }
        let sizes = [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING];
        for ring in sizes {
            set(&fd, ring, &size).context("cannot create a ring")?;
        }
        // SAFETY: integers only, for which zero is valid.
        let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
        get(&fd, libc::XDP_MMAP_OFFSETS, &mut offsets).context("cannot read the offsets of the rings")?;
        let borrowed = fd.as_fd();
        let mut socket = Self {
            received: Ring::new(borrowed, libc::XDP_PGOFF_RX_RING, size, &offsets.rx)?,
            sending: Ring::new(borrowed, libc::XDP_PGOFF_TX_RING, size, &offsets.tx)?,
            fill: Ring::new(borrowed, libc::XDP_UMEM_PGOFF_FILL_RING as i64, size, &offsets.fr)?,
            sent: Ring::new(borrowed, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64, size, &offsets.cr)?,
            fd,
            _promiscuous: promiscuous(interface)?,
        };
        socket.refill(frames);
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            // A socket that shares memory has the mode of the first socket.
            sxdp_flags: if sharing.is_some() { libc::XDP_SHARED_UMEM } else { libc::XDP_COPY },
            sxdp_ifindex: interface.index,
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: sharing.map_or(0, |other| other.fd.as_raw_fd() as u32),
        };
        let length = size_of_val(&address) as u32;
        // SAFETY: the descriptor is open, and the address lives through the call.
        let result = unsafe { libc::bind(socket.fd.as_raw_fd(), (&raw const address).cast(), length) };
        let error = Error::last_os_error();
        anyhow::ensure!(result == 0, "cannot receive the frames of {}: {error}", interface.name);
        Ok(socket)
    }

    /// Gives the kernel as many free frames as fit into the ring. The kernel stores arriving packets in these frames.
    pub fn refill(&mut self, frames: &mut Frames) {
        let room = self.fill.room();
        self.fill.put(frames.take(room));
    }

    /// Queues frames for sending, in the order of `frames`, until no room is left. Returns the number of queued frames.
    pub fn send(&mut self, frames: &[libc::xdp_desc]) -> usize {
        let count = frames.len().min(self.sending.room() as usize);
        self.sending.put(frames[..count].iter().copied());
        count
    }

    /// Makes the kernel send the queued frames, as far as it can at once. Frames that the kernel has sent are free
    /// again afterwards.
    ///
    /// # Errors
    ///
    /// Fails if the kernel can't send the frames, for a reason other than a full queue.
    pub fn push(&mut self, frames: &mut Frames) -> Result<()> {
        if self.sending.unread() > 0 {
            // SAFETY: the descriptor is open, and only the ring's frames are sent.
            let sent = unsafe {
                libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
            };
            let error = Error::last_os_error();
            // Frames that the kernel has no room for now stay in the ring.
            let later = matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ENOBUFS | libc::ENETDOWN));
            if sent < 0 && !later && error.kind() != ErrorKind::WouldBlock {
                return Err(error).context("cannot send frames");
            }
        }
        self.sent.take(u32::MAX, |address| frames.give_back([address]));
        Ok(())
    }

    /// Returns the number of frames that arrived but that the kernel could not pass to this process.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not report its counters of the socket.
    pub fn missed(&self) -> Result<u64> {
        // SAFETY: integers only, for which zero is valid.
        let mut counts: libc::xdp_statistics = unsafe { std::mem::zeroed() };
        get(&self.fd, libc::XDP_STATISTICS, &mut counts).context("cannot read the count of missed frames")?;
        // Frames for which no buffer was available are counted in rx_dropped.
        Ok(counts.rx_dropped + counts.rx_ring_full)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn set<T>(fd: &OwnedFd, option: i32, value: &T) -> Result<()> {
    let (at, length) = (std::ptr::from_ref(value).cast(), size_of::<T>() as u32);
    // SAFETY: the descriptor is open, and `length` bytes are readable.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, at, length) };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error().into()) }
}

/// Reads a socket option. `T` consists of integers, for which any bytes are valid.
fn get<T>(fd: &OwnedFd, option: i32, value: &mut T) -> Result<()> {
    let mut length = size_of::<T>() as u32;
    let at = std::ptr::from_mut(value).cast();
    // SAFETY: the descriptor is open, and `length` bytes are writable.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, at, &raw mut length) };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error().into()) }
}
