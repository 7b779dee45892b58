//! The loop that moves packets between a TUN device and a UDP socket. It runs on one thread; an [`End`] decides what
//! happens to each packet.

use crate::cut::{Cut, NotCut};
use crate::device::{Device, FRAME_MAX, VIRTIO_LEN};
use crate::join::Joiner;
use crate::pack::{Packer, Unpacker};
use crate::packet::{Layout, TCP, Virtio};
use crate::socket::{Buffers, Socket};
use crate::too_long;
use anyhow::{Context, Result};
use engine::tunnel::{Dropped, Millis, Packet, Received};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::time::{ClockId, clock_gettime};
use seal::{Batch, Mode};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::seal::record::OVERHEAD;
use wire::seal::{BlockHead, Compression, Part, Suite, Suites, Treatment};

/// Number of frames that are read from the device before the socket gets its turn, and the other way round.
const TURN: usize = 16;
/// Interval between calls of [`End::poll`], in milliseconds.
const TICK: Millis = 50;
/// Maximum number of waiting frames that are sent before other frames get their turn.
const RESUMED: usize = 256;
/// Number of bytes of records that are collected before they are sent.
const COLLECTED: usize = 48 * 1024;

/// The current time on two clocks: milliseconds of a clock that is never set back and goes on while the machine sleeps,
/// and Unix seconds.
pub type Times = (Millis, u32);

/// A datagram to another end.
pub struct Message {
    /// The destination address and port.
    pub to: SocketAddr,
    /// The local address from which to send; `None` if the kernel chooses it.
    pub source: Option<IpAddr>,
    /// Payload of the datagram.
    pub datagram: Vec<u8>,
}

/// The tunnel into which the packets of one frame from the device go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way<K> {
    /// The key by which the [`End`] identifies the tunnel.
    pub tunnel: K,
    /// Address and port of the other end.
    pub to: SocketAddr,
    /// The local address from which to send; `None` if the kernel chooses it.
    pub source: Option<IpAddr>,
}

/// How the packets of one frame from the device are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    /// Treatment of the records that carry the packets.
    pub treatment: Treatment,
    /// Suites from which the one for the records is chosen.
    pub suites: Suites,
    /// Whether to compress the frame before it is sealed.
    pub compress: Mode,
}

/// How a packet that came through a tunnel was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Treatment of the records that carried the packet.
    pub treatment: Treatment,
    /// Suite of the records that carried the packet.
    pub suite: Suite,
    /// Whether the packet was compressed.
    pub is_compressed: bool,
}

/// Decides about packets on behalf of a pump. [`AgentEnd`](crate::AgentEnd) and [`VerifierEnd`](crate::VerifierEnd)
/// implement it.
pub trait End: Send {
    /// The key by which the implementation identifies a tunnel.
    type Tunnel: Copy + PartialEq;

    /// Returns the tunnel for a frame from the device, and how to seal the frame's packets; `None` if the frame is to
    /// be dropped. The implementation is allowed to change the addresses in `packet`.
    fn route(
        &mut self,
        packet: &mut [u8],
        layout: &Layout,
        virtio: Virtio,
        times: Times,
    ) -> Option<(Way<Self::Tunnel>, How)>;

    /// Seals a packet, and appends the record to `out`. Returns `false` if the packet can't be sealed.
    fn seal(&mut self, tunnel: Self::Tunnel, packet: &Packet<'_>, times: Times, out: &mut Batch) -> bool;

    /// Seals the blocks of a compressed frame, and appends the records to `out`. Returns `false` if the frame has to be
    /// sent uncompressed, packet by packet.
    fn seal_block<'p>(
        &mut self,
        tunnel: Self::Tunnel,
        how: (How, Compression),
        parts: impl Iterator<Item = (Part, &'p [u8])>,
        times: Times,
        out: &mut Batch,
    ) -> bool;

    /// Opens a datagram. Returns its tunnel and its content; `None` if the end drops the datagram or has dealt with it
    /// itself. Appends the end's own answers to `replies`.
    fn receive<'d>(
        &mut self,
        from: SocketAddr,
        to: Option<IpAddr>,
        datagram: &'d mut [u8],
        times: Times,
        replies: &mut Vec<Message>,
    ) -> Option<(Self::Tunnel, Received<'d>)>;

    /// Reports whether a packet or super-packet is allowed to come out of `tunnel`. The implementation is allowed to
    /// change the addresses in `packet`. `partial` means that the transport checksum is partial.
    fn admit(
        &mut self,
        tunnel: Self::Tunnel,
        packet: &mut [u8],
        layout: &Layout,
        partial: bool,
        sealed: Sealed,
        times: Times,
    ) -> bool;

    /// Called after the frame that [`Self::route`] or [`Self::admit`] has accepted was compressed, or came compressed,
    /// with its length before and after compression.
    fn compressed(&mut self, _before: usize, _after: usize) {}

    /// Does the work that is due. Appends to `replies` the datagrams that are to be sent.
    fn poll(&mut self, times: Times, replies: &mut Vec<Message>);

    /// Removes and returns a frame, with its virtio header, that [`Self::route`] put aside because its tunnel was not
    /// ready, and that can be routed now.
    fn ready(&mut self, _: Times) -> Option<Vec<u8>> {
        None
    }

    /// Called before [`Self::poll`] if somebody has called [`Pump::wake`], because something outside of the pump
    /// changed.
    fn woken(&mut self) {}
}

/// Counters of the packets that a pump has moved and dropped.
#[derive(Debug, Default)]
pub struct Counts {
    /// Number of bytes of packets that were sealed.
    pub sealed: AtomicU64,
    /// Number of bytes of packets that were opened.
    pub opened: AtomicU64,
    /// Number of packets from the device that had no tunnel when they came, or that could not be sealed. Some of the
    /// former wait, and are sent later.
    pub not_sealed: AtomicU64,
    /// Number of packets from the device that are too long for the path.
    pub too_long: AtomicU64,
    /// Number of records that the kernel did not send.
    pub not_sent: AtomicU64,
    /// Number of super-packets that the kernel did not accept at the device.
    pub not_taken: AtomicU64,
    /// Number of bytes of packets that were compressed: before compression, and after it.
    pub compressed: [AtomicU64; 2],
    /// Number of compressed blocks that contained no well-formed packet.
    pub malformed: AtomicU64,
}

/// Counts a record that an end dropped; the counters are in the order of [`Dropped::ALL`].
pub(crate) fn note(counters: &mut [u64; Dropped::ALL.len()], why: Dropped) {
    let index = Dropped::ALL.iter().position(|known| *known == why);
    if let Some(counter) = index.and_then(|index| counters.get_mut(index)) {
        *counter += 1;
    }
}

fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

/// A running pump. Dropping it ends the pump and removes the device.
pub struct Pump<E> {
    shared: Arc<Shared<E>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared<E> {
    end: Mutex<E>,
    /// Held by whoever is next to lock `end`. Without it, the pump, which locks `end` for each frame, would have the lock
    /// again before a thread that waits for it is awake, and that thread would wait as long as there is traffic.
    turn: Mutex<()>,
    stop: AtomicBool,
    wake: EventFd,
    counts: Counts,
}

impl<E> Shared<E> {
    /// Locks the end, in turn.
    fn lock(&self) -> MutexGuard<'_, E> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: End + 'static> Pump<E> {
    /// Starts a pump on a thread of its own.
    ///
    /// # Errors
    ///
    /// Fails if the thread can't be started.
    pub fn start(device: Device, socket: Socket, end: E) -> Result<Self> {
        let wake =
            EventFd::from_flags(nix::sys::eventfd::EfdFlags::EFD_NONBLOCK | nix::sys::eventfd::EfdFlags::EFD_CLOEXEC)
                .context("cannot make an event descriptor")?;
        let shared = Arc::new(Shared {
            end: Mutex::new(end),
            turn: Mutex::new(()),
            stop: AtomicBool::new(false),
            wake,
            counts: Counts::default(),
        });
        let running = shared.clone();
        let thread = std::thread::Builder::new()
            .name("tunnel".into())
            .spawn(move || Loop::new(device, socket, running).run())
            .context("cannot start a thread")?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl<E> Pump<E> {
    /// Locks the end and returns it, at the latest when the pump has done with the present frame. The pump waits as long
    /// as the lock is held. Call [`Self::wake`] after a change that makes work due.
    pub fn end(&self) -> MutexGuard<'_, E> {
        self.shared.lock()
    }

    /// Makes the pump poll its end at once.
    pub fn wake(&self) {
        // If the write fails, the counter is not zero because nobody has read it yet, so the pump wakes anyway.
        let _ = self.shared.wake.write(1);
    }

    /// Reports whether the pump's thread runs. If it has ended, the device is gone, so that the kernel drops packets that
    /// are sent there.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Returns the pump's counters of moved and dropped packets.
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
    /// The tunnel into which the collected records go.
    way: Option<Way<E::Tunnel>>,
    replies: Vec<Message>,
    polled: Millis,
    packer: Packer,
    unpacker: Unpacker,
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
            packer: Packer::default(),
            unpacker: Unpacker::default(),
        }
    }

    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let mut ready = [
                PollFd::new(self.device.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.shared.wake.as_fd(), PollFlags::POLLIN),
            ];
            let begun = Instant::now();
            match poll(&mut ready, PollTimeout::from(TICK as u16)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return tracing::error!("the tunnel's thread cannot wait for packets: {error}"),
            }
            self.packer.waited(begun);
            let is_ready = ready.each_ref().map(|file| file.any().unwrap_or(false));
            let has_error = ready[1].revents().is_some_and(|events| events.contains(PollFlags::POLLERR));
            let times = times();
            if has_error {
                self.socket.read_errors(times.0);
            }
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
                let mut end = self.shared.lock();
                if is_ready[2] {
                    end.woken();
                }
                end.poll(times, &mut self.replies);
                drop(end);
                // The token that opens the tunnel's UDP flow at the verifier is among the replies, and has to go first.
                self.reply();
                self.resume(times);
            }
            self.reply();
        }
    }

    /// Reads frames from the device, seals them and sends the records.
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

    /// Sends frames that waited for their tunnel.
    fn resume(&mut self, times: Times) {
        for _ in 0..RESUMED {
            let held = self.shared.lock().ready(times);
            let Some(held) = held else { break };
            let Some(room) = self.frame.get_mut(..held.len()) else { continue };
            room.copy_from_slice(&held);
            self.frame(held.len(), times);
        }
        self.flush();
    }

    fn frame(&mut self, length: usize, times: Times) {
        let Some(frame) = self.frame.get_mut(..length) else { return };
        let Some((head, packet)) = frame.split_at_mut_checked(VIRTIO_LEN) else { return };
        let (Some(virtio), Some(layout)) = (Virtio::read(head), Layout::of(packet)) else {
            return count(&self.shared.counts.not_sealed, 1);
        };
        let shared = self.shared.clone();
        let mut addresses = [0; 32];
        let addresses = addresses.get_mut(..layout.addresses(packet).len()).unwrap_or_default();
        addresses.copy_from_slice(layout.addresses(packet));
        let mut end = shared.lock();
        let Some((way, how)) = end.route(packet, &layout, virtio, times) else {
            return count(&shared.counts.not_sealed, 1);
        };
        if self.way.is_some_and(|before| before != way) {
            flush(&mut self.socket, &mut self.batch, &mut self.way, &shared.counts);
        }
        let room = self.socket.room(way.to, times.0) - OVERHEAD;
        self.way = Some(way);
        // A packet that would be too long must not pass only because it shrinks: its sender has to learn the length.
        let carried = too_long::carried(packet, &layout);
        let fits = packet.len() <= room.max(carried) || virtio.segment > 0 || layout.protocol == TCP;
        if how.compress != Mode::Never && fits {
            let length = packet.len();
            // The block's head takes the place of the virtio header, which has been read.
            let head = BlockHead { segment: virtio.segment, partial: virtio.partial };
            let (_, block) = frame.split_at_mut(VIRTIO_LEN - BlockHead::LEN);
            block[..BlockHead::LEN].copy_from_slice(&head.encode());
            if let Some((compression, short)) = self.packer.pack(how.compress, &layout, block)
                && let Some(parts) = seal::parts(short, room)
                && end.seal_block(way.tunnel, (how, compression), parts, times, &mut self.batch)
            {
                count(&shared.counts.sealed, length);
                count(&shared.counts.compressed[0], length);
                end.compressed(length, short.len());
                return count(&shared.counts.compressed[1], short.len());
            }
        }
        let Some(packet) = frame.get(VIRTIO_LEN..) else { return };
        let mut cut = match Cut::new(packet, layout, virtio, room) {
            Ok(cut) => cut,
            Err(NotCut::TooLong) if packet.len() <= carried => {
                let head = BlockHead { segment: virtio.segment, partial: virtio.partial }.encode();
                let block = too_long::stored(&[&head, packet].concat());
                let parts = seal::parts(&block, room);
                let how = (how, Compression::Lz4);
                let is_sealed =
                    parts.is_some_and(|parts| end.seal_block(way.tunnel, how, parts, times, &mut self.batch));
                return match is_sealed {
                    true => count(&shared.counts.sealed, packet.len()),
                    false => count(&shared.counts.not_sealed, 1),
                };
            }
            Err(NotCut::TooLong) => {
                if let Some(answer) = too_long::answer(packet, &layout, addresses, room.max(carried)) {
                    // If the kernel drops it, the sender's next packet gets another.
                    let _ = self.device.write(&[IoSlice::new(&[0; VIRTIO_LEN]), IoSlice::new(&answer)]);
                }
                return count(&shared.counts.too_long, 1);
            }
            Err(NotCut::Malformed) => return count(&shared.counts.not_sealed, 1),
        };
        let How { treatment, suites, .. } = how;
        while let Some(piece) = cut.next_piece() {
            let packet = Packet { treatment, suites, lane: 0, partial: piece.partial, parts: &piece.parts };
            if end.seal(way.tunnel, &packet, times, &mut self.batch) {
                count(&shared.counts.sealed, piece.parts[0].len() + piece.parts[1].len());
            } else {
                count(&shared.counts.not_sealed, 1);
            }
        }
    }

    fn flush(&mut self) {
        flush(&mut self.socket, &mut self.batch, &mut self.way, &self.shared.counts);
    }

    /// Receives datagrams from the socket, opens them and writes the packets to the device.
    fn receive(&mut self, times: Times) {
        if !self.socket.receive(&mut self.buffers) {
            return;
        }
        let shared = self.shared.clone();
        let mut end = shared.lock();
        let mut joiner = Joiner::default();
        let mut not_taken = 0;
        for arrived in self.buffers.arrived() {
            for datagram in arrived.bytes.chunks_mut(arrived.stride) {
                let received = end.receive(arrived.from, arrived.to, datagram, times, &mut self.replies);
                match received {
                    Some((tunnel, Received::Packet { treatment, suite, partial, packet, .. })) => {
                        let sealed = Sealed { treatment, suite, is_compressed: false };
                        let Some(layout) = Layout::of(packet) else { continue };
                        if end.admit(tunnel, packet, &layout, partial, sealed, times) {
                            count(&shared.counts.opened, packet.len());
                            not_taken += usize::from(joiner.push(packet, layout, partial, &self.device).is_err());
                        }
                    }
                    Some((tunnel, Received::Block { suite, block })) => {
                        // Packets that came before the block go before it.
                        not_taken += usize::from(joiner.flush(&self.device).is_err());
                        let Some(mut whole) = self.unpacker.unpack(&block) else {
                            count(&shared.counts.malformed, 1);
                            continue;
                        };
                        // A packet that is only too long for one record is stored as it is.
                        let is_compressed = block.bytes.len() < whole.packet.len();
                        let sealed = Sealed { treatment: block.treatment, suite, is_compressed };
                        let (layout, partial) = (whole.layout, whole.virtio.partial);
                        if end.admit(tunnel, whole.packet, &layout, partial, sealed, times) {
                            count(&shared.counts.opened, whole.packet.len());
                            if is_compressed {
                                end.compressed(whole.packet.len(), block.bytes.len());
                            }
                            not_taken += usize::from(whole.write(&self.device).is_err());
                        }
                    }
                    // Frames may wait for it.
                    Some((_, Received::Open)) => self.polled = 0,
                    _ => {}
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pump_that_always_has_frames_lets_others_lock_its_end() {
        let shared = Shared {
            end: Mutex::new(0u32),
            turn: Mutex::new(()),
            stop: AtomicBool::new(false),
            wake: EventFd::new().expect("a descriptor"),
            counts: Counts::default(),
        };
        let frames = AtomicU64::new(0);
        let (shared, frames, longest) = (&shared, &frames, Duration::from_millis(500));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while !shared.stop.load(Ordering::Relaxed) {
                    let mut end = shared.lock();
                    *end += 1;
                    frames.fetch_add(1, Ordering::Relaxed);
                    let begun = Instant::now();
                    while begun.elapsed() < Duration::from_micros(50) {
                        std::hint::spin_loop();
                    }
                }
            });
            let waited: Vec<_> = (0..1000)
                .map(|_| {
                    // Ask in the middle of a frame, as most do while there is traffic.
                    let before = frames.load(Ordering::Relaxed);
                    while frames.load(Ordering::Relaxed) == before {
                        std::hint::spin_loop();
                    }
                    let begun = Instant::now();
                    drop(shared.lock());
                    begun.elapsed()
                })
                .collect();
            shared.stop.store(true, Ordering::Relaxed);
            let total: Duration = waited.iter().sum();
            assert!(waited.iter().all(|one| *one < longest), "{:?}", waited.iter().max());
            assert!(total < Duration::from_secs(5), "{total:?} for a thousand turns of 50 µs");
        });
    }
}
