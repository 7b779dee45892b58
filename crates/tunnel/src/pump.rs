//! The loop that moves packets between a device and a socket. It has one thread; an [`End`] says what happens to the
//! packets.

use crate::cut::{Cut, NotCut};
use crate::device::{Device, FRAME_MAX, VIRTIO_LEN};
use crate::join::Joiner;
use crate::packet::{Layout, Virtio};
use crate::socket::{Buffers, Socket};
use anyhow::{Context, Result};
use engine::tunnel::Millis;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::time::{ClockId, clock_gettime};
use seal::Batch;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Frames taken from the device before the socket gets its turn, and the other way round.
const TURN: usize = 16;
/// Interval between calls of [`End::poll`].
const TICK: Millis = 50;
/// Bytes of records that are collected before they are sent.
const COLLECTED: usize = 48 * 1024;

/// Times that an end needs: a clock that is never set back and goes on while the machine sleeps, in milliseconds, and
/// Unix seconds.
pub type Times = (Millis, u32);

/// A message for the other end.
pub struct Message {
    /// The destination.
    pub to: SocketAddr,
    /// The local address to send from, if it matters.
    pub source: Option<IpAddr>,
    /// The datagram.
    pub datagram: Vec<u8>,
}

/// Where the packets of a frame go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way<K> {
    /// The end's name for the tunnel.
    pub tunnel: K,
    /// The other end's address.
    pub to: SocketAddr,
    /// The local address to send from, if it matters.
    pub source: Option<IpAddr>,
}

/// A packet that came through a tunnel.
pub struct Opened<'d> {
    /// The packet.
    pub packet: &'d [u8],
    /// Its parts.
    pub layout: Layout,
    /// Whether its transport checksum is only begun.
    pub partial: bool,
}

/// Answers a pump's questions about packets: an agent's tunnels, or a verifier's.
pub trait End: Send {
    /// The end's name for a tunnel.
    type Tunnel: Copy + PartialEq;

    /// Decides about a frame from the device, and may change its addresses. `None` drops it.
    fn route(&mut self, packet: &mut [u8], layout: &Layout, virtio: Virtio, times: Times) -> Option<Way<Self::Tunnel>>;

    /// Seals a packet of the frame that was routed last, and appends it to `out`; `false` if it can't be sent.
    fn seal(&mut self, tunnel: Self::Tunnel, parts: [&[u8]; 2], partial: bool, times: Times, out: &mut Batch) -> bool;

    /// Opens a datagram. Returns the packet in it if there is one; the end's own answers go to `replies`.
    fn open<'d>(
        &mut self,
        from: SocketAddr,
        to: Option<IpAddr>,
        datagram: &'d mut [u8],
        times: Times,
        replies: &mut Vec<Message>,
    ) -> Option<Opened<'d>>;

    /// Does what is due.
    fn poll(&mut self, times: Times, replies: &mut Vec<Message>);
}

/// Counts of what a pump dropped and moved.
#[derive(Debug, Default)]
pub struct Counts {
    /// Bytes of packets sealed.
    pub sealed: AtomicU64,
    /// Bytes of packets opened.
    pub opened: AtomicU64,
    /// Packets from the device that have no way, or could not be sealed.
    pub not_sealed: AtomicU64,
    /// Packets from the device that are too long for the path.
    pub too_long: AtomicU64,
    /// Records that the kernel did not send.
    pub not_sent: AtomicU64,
    /// Super-packets that the kernel did not take from the device.
    pub not_taken: AtomicU64,
}

fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

/// A running pump. It ends when this is dropped, and with it the device.
pub struct Pump<E> {
    shared: Arc<Shared<E>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared<E> {
    end: Mutex<E>,
    stop: AtomicBool,
    wake: EventFd,
    counts: Counts,
}

impl<E: End + 'static> Pump<E> {
    /// Starts a pump on a thread of its own.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start(device: Device, socket: Socket, end: E) -> Result<Self> {
        let wake =
            EventFd::from_flags(nix::sys::eventfd::EfdFlags::EFD_NONBLOCK | nix::sys::eventfd::EfdFlags::EFD_CLOEXEC)
                .context("cannot make an event descriptor")?;
        let shared =
            Arc::new(Shared { end: Mutex::new(end), stop: AtomicBool::new(false), wake, counts: Counts::default() });
        let running = shared.clone();
        let thread = std::thread::Builder::new()
            .name("tunnel".into())
            .spawn(move || Loop::new(device, socket, running).run())
            .context("cannot start a thread")?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl<E> Pump<E> {
    /// Locks the end: the pump waits meanwhile. Call [`Self::wake`] after a change that makes something due.
    pub fn end(&self) -> MutexGuard<'_, E> {
        self.shared.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the pump poll its end at once.
    pub fn wake(&self) {
        // The counter of a descriptor that nobody has read yet is not zero: that is enough.
        let _ = self.shared.wake.write(1);
    }

    /// Returns the counts.
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }
}

impl<E> Drop for Pump<E> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads the clocks.
pub fn times() -> Times {
    let read = |id| clock_gettime(id).map(Duration::from).unwrap_or_default();
    (read(ClockId::CLOCK_BOOTTIME).as_millis() as Millis, read(ClockId::CLOCK_REALTIME).as_secs() as u32)
}

struct Loop<E: End> {
    device: Device,
    socket: Socket,
    shared: Arc<Shared<E>>,
    frame: Vec<u8>,
    buffers: Buffers,
    batch: Batch,
    /// Where the batch goes to.
    way: Option<Way<E::Tunnel>>,
    replies: Vec<Message>,
    polled: Millis,
}

impl<E: End> Loop<E> {
    fn new(device: Device, socket: Socket, shared: Arc<Shared<E>>) -> Self {
        Self {
            device,
            socket,
            shared,
            frame: vec![0; FRAME_MAX],
            buffers: Buffers::default(),
            batch: Batch::default(),
            way: None,
            replies: Vec::new(),
            polled: 0,
        }
    }

    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let mut ready = [
                PollFd::new(self.device.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.shared.wake.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut ready, PollTimeout::from(TICK as u16)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return tracing::error!("the tunnel's thread cannot wait for packets: {error}"),
            }
            let is_ready = ready.each_ref().map(|file| file.any().unwrap_or(false));
            let times = times();
            if is_ready[0]
                && let Err(error) = self.send(times)
            {
                return tracing::error!(device = self.device.name(), "the tunnel's device is gone: {error}");
            }
            if is_ready[1] {
                self.receive(times);
            }
            if is_ready[2] {
                let _ = self.shared.wake.read();
            }
            if is_ready[2] || times.0.saturating_sub(self.polled) >= TICK {
                self.polled = times.0;
                let mut end = self.shared.end.lock().unwrap_or_else(PoisonError::into_inner);
                end.poll(times, &mut self.replies);
            }
            self.reply();
        }
    }

    /// Seals frames from the device.
    fn send(&mut self, times: Times) -> io::Result<()> {
        for _ in 0..TURN {
            let Some(length) = self.device.read(&mut self.frame)? else { break };
            self.frame(length, times);
            if self.batch.len() >= COLLECTED {
                self.flush();
            }
        }
        self.flush();
        Ok(())
    }

    fn frame(&mut self, length: usize, times: Times) {
        let Some((head, packet)) =
            self.frame.get_mut(..length).and_then(|frame| frame.split_at_mut_checked(VIRTIO_LEN))
        else {
            return;
        };
        let (Some(virtio), Some(layout)) = (Virtio::read(head), Layout::of(packet)) else {
            return count(&self.shared.counts.not_sealed, 1);
        };
        let shared = self.shared.clone();
        let mut end = shared.end.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(way) = end.route(packet, &layout, virtio, times) else {
            return count(&shared.counts.not_sealed, 1);
        };
        if self.way.is_some_and(|before| before != way) {
            flush(&mut self.socket, &mut self.batch, &mut self.way, &shared.counts);
        }
        let room = self.socket.room(way.to, times.0) - wire::seal::record::OVERHEAD;
        let mut cut = match Cut::new(packet, layout, virtio, room) {
            Ok(cut) => cut,
            Err(NotCut::TooLong) => return count(&shared.counts.too_long, 1),
            Err(NotCut::Malformed) => return count(&shared.counts.not_sealed, 1),
        };
        self.way = Some(way);
        while let Some(piece) = cut.next_piece() {
            if end.seal(way.tunnel, piece.parts, piece.partial, times, &mut self.batch) {
                count(&shared.counts.sealed, piece.parts[0].len() + piece.parts[1].len());
            } else {
                count(&shared.counts.not_sealed, 1);
            }
        }
    }

    fn flush(&mut self) {
        flush(&mut self.socket, &mut self.batch, &mut self.way, &self.shared.counts);
    }

    /// Opens datagrams from the socket.
    fn receive(&mut self, times: Times) {
        if !self.socket.receive(&mut self.buffers) {
            return;
        }
        let shared = self.shared.clone();
        let mut end = shared.end.lock().unwrap_or_else(PoisonError::into_inner);
        let mut joiner = Joiner::default();
        let mut not_taken = 0;
        for arrived in self.buffers.arrived() {
            for datagram in arrived.bytes.chunks_mut(arrived.stride) {
                let opened = end.open(arrived.from, arrived.to, datagram, times, &mut self.replies);
                let Some(Opened { packet, layout, partial }) = opened else { continue };
                count(&shared.counts.opened, packet.len());
                not_taken += usize::from(joiner.push(packet, layout, partial, &self.device).is_err());
            }
        }
        not_taken += usize::from(joiner.flush(&self.device).is_err());
        count(&shared.counts.not_taken, not_taken);
    }

    fn reply(&mut self) {
        for Message { to, source, datagram } in self.replies.drain(..) {
            self.socket.send_single(&datagram, to, source);
        }
    }
}

fn flush<K: Copy>(socket: &mut Socket, batch: &mut Batch, way: &mut Option<Way<K>>, counts: &Counts) {
    if let Some(Way { to, source, .. }) = way.take()
        && !batch.is_empty()
    {
        count(&counts.not_sent, socket.send(batch, to, source));
    }
    batch.clear();
}
