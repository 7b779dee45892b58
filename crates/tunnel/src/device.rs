//! A TUN device that exchanges super-packets with the kernel: up to 64 KiB at a time in each direction.

use crate::steer;
use anyhow::{Context, Result};
use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions};
use std::hash::BuildHasher;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Length of the header before each packet (`struct virtio_net_hdr`), in bytes.
pub const VIRTIO_LEN: usize = 10;
/// Length of the longest packet with its virtio header, in bytes.
pub const FRAME_MAX: usize = VIRTIO_LEN + wire::seal::record::PACKET_MAX;

// Constants of linux/if_tun.h.
const TUN_F_CSUM: libc::c_uint = 0x01;
const TUN_F_TSO4: libc::c_uint = 0x02;
const TUN_F_TSO6: libc::c_uint = 0x04;
const TUN_F_TSO_ECN: libc::c_uint = 0x08;
const TUN_F_USO4: libc::c_uint = 0x20;
const TUN_F_USO6: libc::c_uint = 0x40;
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0;
const TUNSETVNETHDRSZ: libc::Ioctl = 0x4004_54d8;
const TUNSETVNETLE: libc::Ioctl = 0x4004_54dc;
const TUNSETSTEERINGEBPF: libc::Ioctl = 0x8004_54e0_u32 as libc::Ioctl;

/// A queue of a TUN device. The kernel removes the device when its last queue is closed, even if the process is killed.
pub struct Device {
    file: File,
    name: String,
    joins_datagrams: bool,
}

impl Device {
    /// Creates the device `name` with one queue, turned off, for packets of at most `mtu` bytes.
    ///
    /// # Errors
    ///
    /// Fails if the kernel has no TUN driver, if the process isn't root, or if a device of this name exists already.
    pub fn new(name: &str, mtu: u32) -> Result<Self> {
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL;
        let device = Self::open(name, flags)?;
        device.ask(libc::SIOCSIFMTU as _, |request| request.ifr_ifru.ifru_mtu = mtu as libc::c_int)?;
        Ok(device)
    }

    /// Creates the device `name` with several queues, turned off, for packets of at most `mtu` bytes. Returns the
    /// queues. All packets of a flow that the kernel sends into the device come out of one queue, in order.
    ///
    /// # Errors
    ///
    /// Fails as [`Self::new`] does, and if the kernel does not take the program that chooses a packet's queue.
    pub fn with_queues(name: &str, mtu: u32, queues: usize) -> Result<Vec<Self>> {
        if queues <= 1 {
            return Ok(vec![Self::new(name, mtu)?]);
        }
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE;
        let first = Self::open(name, flags | libc::IFF_TUN_EXCL)?;
        let mut all = vec![first];
        for _ in 1..queues {
            all.push(Self::open(name, flags)?);
        }
        if let Some(first) = all.first() {
            let program = steer::load(RandomState::new().hash_one(0) as u32)?;
            let mut file = program.as_raw_fd();
            ioctl(&first.file, TUNSETSTEERINGEBPF, std::ptr::from_mut(&mut file).cast()).with_context(|| {
                format!("cannot set the program that chooses the queues of the TUN device {name:?}")
            })?;
            first.ask(libc::SIOCSIFMTU as _, |request| request.ifr_ifru.ifru_mtu = mtu as libc::c_int)?;
        }
        Ok(all)
    }

    /// Opens a queue.
    fn open(name: &str, flags: libc::c_int) -> Result<Self> {
        let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun");
        let file =
            opened.context("cannot open /dev/net/tun: sealed tunnels need the kernel's `tun` driver, and root")?;
        let mut request = request(name)?;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        ioctl(&file, TUNSETIFF, std::ptr::from_mut(&mut request).cast())
            .with_context(|| format!("cannot create the TUN device {name:?}"))?;
        for (what, mut value) in [(TUNSETVNETHDRSZ, VIRTIO_LEN as libc::c_int), (TUNSETVNETLE, 1)] {
            ioctl(&file, what, std::ptr::from_mut(&mut value).cast()).with_context(|| {
                format!("cannot set the size and byte order of the virtio-net headers of the TUN device {name:?}")
            })?;
        }
        let without_udp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
        // Before Linux 6.2, TUN devices do not segment UDP.
        let joins_datagrams = set_offloads(&file, without_udp | TUN_F_USO4 | TUN_F_USO6).is_ok();
        if !joins_datagrams {
            set_offloads(&file, without_udp)
                .with_context(|| format!("cannot turn on the offloads of the TUN device {name:?}"))?;
        }
        Ok(Self { file, name: name.to_owned(), joins_datagrams })
    }

    fn ask(&self, what: libc::Ioctl, fill: impl FnOnce(&mut libc::ifreq)) -> Result<()> {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        let mut request = request(&self.name)?;
        fill(&mut request);
        ioctl(&socket, what, std::ptr::from_mut(&mut request).cast())
            .with_context(|| format!("cannot set up the TUN device {:?}", self.name))
    }

    /// Turns the device on. The caller must have attached its kernel programs to the device before, so that no packet
    /// escapes them.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not turn the device on.
    pub fn turn_on(&self) -> Result<()> {
        let flags = (libc::IFF_POINTOPOINT | libc::IFF_NOARP | libc::IFF_UP) as libc::c_short;
        self.ask(libc::SIOCSIFFLAGS as _, |request| request.ifr_ifru.ifru_flags = flags)
    }

    /// Reports whether the kernel accepts several UDP datagrams as one super-packet.
    pub fn joins_datagrams(&self) -> bool {
        self.joins_datagrams
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads a packet with its virtio header into `room`, and returns its length. Returns `None` if no packet is
    /// waiting.
    ///
    /// # Errors
    ///
    /// Fails if the device no longer exists.
    pub fn read(&self, room: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.file).read(room) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Passes a packet to the kernel. `parts` are the parts of the packet, and the first part begins with the virtio
    /// header.
    ///
    /// # Errors
    ///
    /// Fails if the kernel drops the packet.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        (&self.file).write_vectored(parts).map(drop)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn request(name: &str) -> Result<libc::ifreq> {
    // SAFETY: all fields of the structure are integers or arrays of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    anyhow::ensure!(
        !name.is_empty() && name.len() < request.ifr_name.len(),
        "{name:?} cannot be the name of a device: it has to have 1 to 15 bytes"
    );
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn set_offloads(file: &File, offloads: libc::c_uint) -> io::Result<()> {
    // TUNSETOFFLOAD takes its argument by value.
    ioctl(file, TUNSETOFFLOAD, offloads as usize as *mut libc::c_void)
}

fn ioctl(file: &impl AsRawFd, what: libc::Ioctl, argument: *mut libc::c_void) -> io::Result<()> {
    // SAFETY: every caller passes what the request takes: a pointer to a structure that lives through the call, or a
    // number.
    if unsafe { libc::ioctl(file.as_raw_fd(), what, argument) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
