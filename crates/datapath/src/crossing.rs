//! Frames that cross from one interface to another through a process that verifies each of them (AF_XDP).
//!
//! The caller's function `verify` gets every frame that arrives at either interface. It gets frames in batches, and can
//! change them in place. Frames that it accepts leave through the other interface. All memory is allocated at the
//! start. The host's own stack sees none of these frames.

mod ring;
mod socket;

use crate::attachments::link::Link;
use crate::interface::Interface;
use crate::object::{self, Loaded, Opened};
use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use socket::{Frames, Socket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/crossing.bpf.o"));

/// Maximum number of frames in one batch. It is limited because the result of `verify` in [`Crossing::turn`] has one
/// bit per frame.
pub const BATCH: usize = 32;
/// Length of the longest frame that can cross, in bytes.
pub const FRAME_MAX: usize = socket::FRAME_MAX;
/// Length of an Ethernet header, in bytes.
const ETHERNET: usize = 14;
/// Number of frames that may wait in each direction. Each takes 2 KiB, and as much again if it is on its way out.
const WAITING: u32 = 1024;

/// Counters of frames. `verify` is the function that the caller passes to [`Crossing::turn`]. Each frame in `received`
/// is also counted in `passed`, `refused` or `no_room`, as soon as its fate is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of frames that `verify` has seen.
    pub received: u64,
    /// Number of frames that have left, or will leave, through the other interface.
    pub passed: u64,
    /// Number of frames that `verify` rejected.
    pub refused: u64,
    /// Number of frames that `verify` accepted but that were dropped, because too many frames were still waiting to be
    /// sent.
    pub no_room: u64,
    /// Number of frames that `verify` has not seen, because they were too long or the kernel had no buffer for them.
    pub missed: u64,
    /// Number of frames that `verify` has not seen, because they arrived at a queue without a socket.
    pub unserved: u64,
}

/// Two interfaces between which this process forwards frames.
pub struct Crossing {
    sides: [Side; 2],
    frames: Frames,
    counts: Counts,
}

struct Side {
    // Dropped before the socket: no frame arrives while the socket closes.
    _link: Link,
    object: Loaded,
    socket: Socket,
}

impl Crossing {
    /// Takes over both interfaces. From then on until the result is dropped, frames that arrive at these interfaces
    /// wait for a call of [`Crossing::turn`].
    ///
    /// # Errors
    ///
    /// Fails if an interface has another XDP program, several queues, or frames that are too long.
    pub fn open(one: &Interface, other: &Interface) -> Result<Self> {
        object::log_through_tracing();
        let mut frames = Frames::new(4 * WAITING as usize)?;
        let first = Side::open(one, &mut frames, None)?;
        let second = Side::open(other, &mut frames, Some(&first.socket))?;
        Ok(Self { sides: [first, second], frames, counts: Counts::default() })
    }

    /// Calls `verify` for each interface with up to [`BATCH`] frames that arrived there, and forwards the frames whose
    /// bit is set in the result of `verify`. The lowest bit stands for the first frame. Returns the number of frames
    /// that `verify` has seen.
    ///
    /// # Errors
    ///
    /// Fails if the kernel can't send the frames, for a reason other than a full queue.
    pub fn turn(&mut self, mut verify: impl FnMut(&mut [&mut [u8]]) -> u32) -> Result<usize> {
        let [one, other] = &mut self.sides;
        let (counts, frames) = (&mut self.counts, &mut self.frames);
        let there = cross(&mut one.socket, &mut other.socket, frames, counts, &mut verify)?;
        let back = cross(&mut other.socket, &mut one.socket, frames, counts, &mut verify)?;
        Ok(there + back)
    }

    /// Waits until a frame arrives, but at most for `most`.
    ///
    /// # Errors
    ///
    /// Fails if the system call for waiting fails.
    pub fn wait(&self, most: Duration) -> Result<()> {
        let mut sockets = self.sides.each_ref().map(|side| PollFd::new(side.socket.as_fd(), PollFlags::POLLIN));
        let most = PollTimeout::try_from(most).unwrap_or(PollTimeout::MAX);
        match nix::poll::poll(&mut sockets, most) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait for frames"),
        }
    }

    /// Returns the current counters.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not report its counters.
    pub fn counts(&self) -> Result<Counts> {
        let mut counts = self.counts;
        for side in &self.sides {
            counts.missed += side.socket.missed()?;
            counts.unserved += side.object.table::<u32, u64>("unserved")?.sum_at(0)?;
        }
        Ok(counts)
    }
}

impl Side {
    fn open(interface: &Interface, frames: &mut Frames, sharing: Option<&Socket>) -> Result<Self> {
        let name = &interface.name;
        let queues = std::fs::read_dir(format!("/sys/class/net/{name}/queues"));
        let receiving = |entry: &std::fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b"rx-");
        let queues = queues.map(|entries| entries.flatten().filter(receiving).count()).unwrap_or(1);
        anyhow::ensure!(
            queues == 1,
            "interface {name} has {queues} queues, but frames can cross from one queue only: run ethtool -L {name} \
             combined 1"
        );
        let longest = interface.mtu().unwrap_or_default() as usize + ETHERNET;
        anyhow::ensure!(
            longest <= FRAME_MAX,
            "frames of interface {name} may be {longest} bytes long, but at most {FRAME_MAX} bytes can cross: lower \
             its MTU"
        );
        let socket = Socket::open(interface, frames, WAITING, sharing)?;
        let object = Opened::new("crossing", OBJECT)?.load("crossing")?;
        object.table::<u32, u32>("sockets")?.set(&0, &(socket.as_fd().as_raw_fd() as u32))?;
        let program = object.program("cross")?;
        let link = Link::attach_xdp(program.as_fd(), interface);
        let (link, _) = link.with_context(|| format!("cannot attach an XDP program to interface {name}"))?;
        Ok(Self { _link: link, object, socket })
    }
}

fn cross(
    from: &mut Socket,
    to: &mut Socket,
    frames: &mut Frames,
    counts: &mut Counts,
    verify: &mut impl FnMut(&mut [&mut [u8]]) -> u32,
) -> Result<usize> {
    let mut came = Vec::with_capacity(BATCH);
    from.received.take(BATCH as u32, |frame| came.push(frame));
    if !came.is_empty() {
        let mut bytes = frames.bytes(&came).context("the kernel returned an invalid frame number")?;
        let passes = verify(&mut bytes);
        let (mut passing, mut refused) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        for (place, frame) in came.iter().enumerate() {
            if passes >> place & 1 != 0 { passing.push(*frame) } else { refused.push(frame.addr) }
        }
        let sent = to.send(&passing);
        let no_room = &passing[sent..];
        counts.received += came.len() as u64;
        counts.passed += sent as u64;
        counts.refused += refused.len() as u64;
        counts.no_room += no_room.len() as u64;
        frames.give_back(refused.into_iter().chain(no_room.iter().map(|frame| frame.addr)));
    }
    to.push(frames)?;
    from.refill(frames);
    Ok(came.len())
}
