//! The loops that move packets between a TUN device and UDP sockets, one on a thread for each queue of the device. They
//! share an [`End`], which decides what happens to each packet. A thread does not hold the end's lock while it reads,
//! writes, compresses or decompresses. It holds the lock while it routes, seals or opens.

use crate::cut::{Cut, NotCut};
use crate::device::{Device, FRAME_MAX, VIRTIO_LEN};
use crate::end::{End, Message, Sealed, Times, Way};
use crate::fit::Fit;
use crate::join::Joiner;
use crate::pack::{Packer, Unpacker};
use crate::packet::{Layout, TCP, Virtio};
use crate::socket::{Buffers, Socket};
use crate::spin::Spin;
use crate::too_long;
use crate::turns::{Access, Turns};
use anyhow::{Context, Result, ensure};
use engine::tunnel::{Millis, Received};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::EventFd;
use nix::time::{ClockId, clock_gettime};
use seal::{Batch, Mode};
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};
use wire::seal::record::{LANES, OVERHEAD};
use wire::seal::{BlockHead, Compression};

/// Number of frames that are read from the device before the socket gets its turn, and the other way round.
const TURN: usize = 16;
/// Interval between calls of [`End::poll`], in milliseconds.
const TICK: Millis = 50;
/// Maximum number of waiting frames that are sent before other frames get their turn.
const RESUMED: usize = 256;

/// Number of packets that usually arrive together: the records in a datagram of 64 KiB.
const ADMITTED: usize = 64;

/// Maximum number of queues. Each queue seals in a lane of its own (wire.md §9.7).
pub const QUEUES_MAX: usize = LANES as usize;

/// Returns the number of queues for a device if the operator has set no number: half the number of processors, but at
/// least one and at most [`QUEUES_MAX`]. The other half of the processors is left to the applications, which do about
/// as much work for each byte.
pub fn default_queues() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| (processors.get() / 2).clamp(1, QUEUES_MAX))
}

/// Counters of the packets that a pump has moved and dropped.
#[derive(Debug, Default)]
pub struct Counts {
    /// Number of bytes of packets that were sealed.
    pub sealed: AtomicU64,
    /// Number of bytes of packets that were opened.
    pub opened: AtomicU64,
    /// Number of packets from the device that could not be sealed, or whose tunnel was not open when they came. The
    /// number includes packets that wait for their tunnel to open and are sent later.
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

fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

/// Numbers of bytes that one queue has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of bytes of packets that the queue's thread has sealed.
    pub sealed: u64,
    /// Number of bytes of packets that the queue's thread has opened.
    pub opened: u64,
}

/// A running pump. Dropping it ends the pump and removes the device.
pub struct Pump<E> {
    shared: Arc<Shared<E>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

struct Shared<E> {
    end: Turns<E>,
    stop: AtomicBool,
    /// Whether somebody has called [`Pump::wake`].
    woken: AtomicBool,
    queues: Vec<Queue>,
    counts: Counts,
}

/// The part of a queue that all threads see.
struct Queue {
    wake: EventFd,
    sealed: AtomicU64,
    opened: AtomicU64,
}

impl Queue {
    fn wake(&self) {
        // If the write fails, the counter is not zero because nobody has read it yet, so the thread wakes anyway.
        let _ = self.wake.write(1);
    }
}

impl<E: End + 'static> Pump<E> {
    /// Starts a pump, with a thread for each of the device's queues. There is either one socket for each queue, or one
    /// socket for all queues. With one socket, the thread of the first queue receives, and all threads send.
    ///
    /// # Errors
    ///
    /// Fails if a thread or an event descriptor can't be made, if there is no queue or there are more queues than
    /// lanes, or if the number of sockets is neither 1 nor the number of queues.
    pub fn start(device: Vec<Device>, sockets: Vec<Socket>, end: E) -> Result<Self> {
        let (queues, receivers) = (device.len(), sockets.len());
        ensure!((1..=QUEUES_MAX).contains(&queues), "a tunnel's device has 1 to {QUEUES_MAX} queues, not {queues}");
        ensure!(
            receivers == 1 || receivers == queues,
            "{receivers} sockets for {queues} queues: there must be one socket, or one for each queue"
        );
        let flags = nix::sys::eventfd::EfdFlags::EFD_NONBLOCK | nix::sys::eventfd::EfdFlags::EFD_CLOEXEC;
        let queue = |_| -> Result<Queue> {
            let wake = EventFd::from_flags(flags).context("cannot make an event descriptor")?;
            Ok(Queue { wake, sealed: AtomicU64::new(0), opened: AtomicU64::new(0) })
        };
        let shared = Arc::new(Shared {
            end: Turns::new(end),
            stop: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            queues: (0..queues).map(queue).collect::<Result<_>>()?,
            counts: Counts::default(),
        });
        let mut pump = Self { shared, threads: Vec::new() };
        let sockets: Vec<_> = sockets.into_iter().map(Arc::new).collect();
        for (number, device) in device.into_iter().enumerate() {
            let own = sockets.get(number);
            let (Some(socket), receives) = (own.or(sockets.first()).cloned(), own.is_some()) else { continue };
            let shared = pump.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("tunnel{number}"))
                .spawn(move || Loop::new(number, device, (socket, receives), shared).run());
            pump.threads.push(thread.context("cannot start a thread for a queue of the tunnels")?);
        }
        Ok(pump)
    }
}

impl<E> Pump<E> {
    /// Locks the end and returns it. Waits at most until the pump has finished the present frame. The pump waits as
    /// long as the caller holds the lock. After a change that makes work due, the caller has to call [`Self::wake`].
    pub fn end(&self) -> MutexGuard<'_, E> {
        self.shared.end.lock()
    }

    /// Makes the pump poll its end at once.
    pub fn wake(&self) {
        self.shared.woken.store(true, Ordering::Release);
        self.shared.queues.iter().take(1).for_each(Queue::wake);
    }

    /// Reports whether the pump's threads run. If one thread has ended, the others end, too, and the device is gone.
    /// The kernel then drops packets to the device.
    pub fn is_running(&self) -> bool {
        !self.threads.is_empty() && self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Returns the pump's counters of moved and dropped packets.
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// Returns the load of each queue.
    pub fn loads(&self) -> Vec<Load> {
        let load = |queue: &Queue| Load {
            sealed: queue.sealed.load(Ordering::Relaxed),
            opened: queue.opened.load(Ordering::Relaxed),
        };
        self.shared.queues.iter().map(load).collect()
    }
}

impl<E> Shared<E> {
    /// Counts bytes of packets that the thread of a queue has sealed.
    fn sealed(&self, queue: u8, bytes: usize) {
        count(&self.counts.sealed, bytes);
        self.queues.get(usize::from(queue)).into_iter().for_each(|queue| count(&queue.sealed, bytes));
    }

    /// Counts bytes of packets that the thread of a queue has opened.
    fn opened(&self, queue: u8, bytes: usize) {
        count(&self.counts.opened, bytes);
        self.queues.get(usize::from(queue)).into_iter().for_each(|queue| count(&queue.opened, bytes));
    }

    /// Makes all threads end.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.queues.iter().for_each(Queue::wake);
    }
}

impl<E> Drop for Pump<E> {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Returns the current time on the two clocks of [`Times`].
pub fn times() -> Times {
    let read = |id| clock_gettime(id).map(Duration::from).unwrap_or_default();
    (read(ClockId::CLOCK_BOOTTIME).as_millis() as Millis, read(ClockId::CLOCK_REALTIME).as_secs() as u32)
}

struct Loop<E: End> {
    /// Number of the queue, which is also the number of its lane.
    number: u8,
    device: Device,
    socket: Arc<Socket>,
    /// Whether this thread receives from the socket.
    receives: bool,
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
    fit: Fit,
    spin: Spin,
}

/// If one thread ends, whatever the reason, the others end too: packets on a queue that nobody reads would be lost.
impl<E: End> Drop for Loop<E> {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl<E: End> Loop<E> {
    fn new(number: usize, device: Device, (socket, receives): (Arc<Socket>, bool), shared: Arc<Shared<E>>) -> Self {
        Self {
            number: number as u8,
            device,
            socket,
            receives,
            shared,
            frame: vec![0; FRAME_MAX],
            buffers: if receives { Buffers::default() } else { Buffers::empty() },
            batch: Batch::default(),
            way: None,
            replies: Vec::new(),
            polled: 0,
            packer: Packer::default(),
            unpacker: Unpacker::default(),
            fit: Fit::default(),
            spin: Spin::new(Instant::now()),
        }
    }

    fn run(mut self) {
        let shared = self.shared.clone();
        let Some(queue) = shared.queues.get(usize::from(self.number)) else { return };
        // The first thread does the work that is due at certain times. The others sleep while there are no packets.
        let tends = self.number == 0;
        let patience = if tends { PollTimeout::from(TICK as u16) } else { PollTimeout::NONE };
        if tends {
            self.fit.look(self.device.name(), times().0);
        }
        while !shared.stop.load(Ordering::Relaxed) {
            let mut ready = [
                PollFd::new(self.device.as_fd(), PollFlags::POLLIN),
                PollFd::new(queue.wake.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
            ];
            let begun = Instant::now();
            match self.spin.wait(&mut ready[..if self.receives { 3 } else { 2 }], patience) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return tracing::error!("the tunnel's thread cannot wait for packets: {error}"),
            }
            self.packer.waited(begun);
            let [mut has_frames, is_woken, has_datagrams] = ready.each_ref().map(|file| file.any().unwrap_or(false));
            let has_error = ready[2].revents().is_some_and(|events| events.contains(PollFlags::POLLERR));
            let times = times();
            if has_error {
                self.socket.read_errors(times.0);
            }
            if has_datagrams {
                // Packets out of a tunnel are often answered at once. The answers need no further `poll`.
                has_frames |= self.receive(&shared, times);
            }
            if has_frames && let Err(error) = self.send(&shared, times) {
                return tracing::error!(device = self.device.name(), "the tunnel's device is gone: {error}");
            }
            if is_woken {
                let _ = queue.wake.read();
            }
            if tends && (is_woken || times.0.saturating_sub(self.polled) >= TICK) {
                self.tend(&shared, times);
            }
            self.reply();
        }
    }

    /// Does the work that is due, and sends frames that waited for their tunnel.
    fn tend(&mut self, shared: &Shared<E>, times: Times) {
        self.polled = times.0;
        let mut end = Access::new(&shared.end);
        if shared.woken.swap(false, Ordering::Acquire) {
            end.get().woken();
        }
        end.get().poll(times, &mut self.replies);
        // The token that opens a tunnel's UDP flow at the verifier may be among the replies, and has to go first. If
        // another thread's record went before it, the verifier would drop the record.
        if !E::SENDS_TOKENS {
            end.release();
        }
        self.reply();
        end.keep();
        self.resume(shared, &mut end, times);
        drop(end);
        self.fit.look(self.device.name(), times.0);
    }

    /// Sends frames that waited for their tunnel. Other threads' frames must not overtake them. So the caller has to
    /// keep `end` locked until these frames are sent.
    fn resume(&mut self, shared: &Shared<E>, end: &mut Access<'_, E>, times: Times) {
        for _ in 0..RESUMED {
            let Some(waited) = end.get().ready(times) else { break };
            let Some(room) = self.frame.get_mut(..waited.len()) else { continue };
            room.copy_from_slice(&waited);
            self.frame(shared, end, waited.len(), times);
        }
        self.flush(&shared.counts);
    }

    /// Reads frames from the device, seals them and sends the records.
    fn send(&mut self, shared: &Shared<E>, times: Times) -> io::Result<()> {
        let mut end = Access::new(&shared.end);
        for _ in 0..TURN {
            let Some(length) = self.device.read(&mut self.frame)? else { break };
            self.spin.moved(length);
            self.frame(shared, &mut end, length, times);
            if self.batch.has_pushed() {
                // A token or an initiation: no other thread's record may go before it.
                self.flush(&shared.counts);
            }
            end.release();
            // Full runs leave at once. The rest waits for the records of the next frame, if there is one.
            if let Some(Way { to, source, .. }) = self.way {
                count(&shared.counts.not_sent, self.socket.send(self.batch.full_runs(), to, source));
                self.batch.remove_full();
            }
        }
        self.flush(&shared.counts);
        Ok(())
    }

    fn frame(&mut self, shared: &Shared<E>, end: &mut Access<'_, E>, length: usize, times: Times) {
        let (counts, lane) = (&shared.counts, self.number);
        let Some(frame) = self.frame.get_mut(..length) else { return };
        let Some((head, packet)) = frame.split_at_mut_checked(VIRTIO_LEN) else { return };
        let (Some(virtio), Some(layout)) = (Virtio::read(head), Layout::of(packet)) else {
            return count(&counts.not_sealed, 1);
        };
        let mut addresses = [0; 32];
        let addresses = addresses.get_mut(..layout.addresses(packet).len()).unwrap_or_default();
        addresses.copy_from_slice(layout.addresses(packet));
        let Some((way, how)) = end.get().route(packet, &layout, virtio, times) else {
            return count(&counts.not_sealed, 1);
        };
        let flow = end.get().latest();
        if self.way.is_some_and(|before| before != way) {
            end.release();
            flush(&self.socket, &mut self.batch, &mut self.way, counts);
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
            end.release();
            if let Some((compression, short)) = self.packer.pack(how.compress, &layout, block)
                && let Some(parts) = seal::parts(short, room)
                && end.get().seal_block(way.tunnel, (how, compression, lane), parts, times, &mut self.batch)
            {
                shared.sealed(lane, length);
                count(&counts.compressed[0], length);
                flow.into_iter().for_each(|flow| end.get().compressed(flow, length, short.len()));
                return count(&counts.compressed[1], short.len());
            }
        }
        let Some(packet) = frame.get_mut(VIRTIO_LEN..) else { return };
        let length = packet.len();
        let cut = match Cut::new(packet, layout, virtio, room) {
            Ok(cut) => cut,
            Err(NotCut::TooLong) if length <= carried => {
                let head = BlockHead { segment: virtio.segment, partial: virtio.partial }.encode();
                let block = too_long::stored(&[&head[..], packet].concat());
                let parts = seal::parts(&block, room);
                let how = (how, Compression::Lz4, lane);
                let is_sealed =
                    parts.is_some_and(|parts| end.get().seal_block(way.tunnel, how, parts, times, &mut self.batch));
                return match is_sealed {
                    true => shared.sealed(lane, length),
                    false => count(&counts.not_sealed, 1),
                };
            }
            Err(NotCut::TooLong) => {
                end.release();
                if let Some(answer) = too_long::answer(packet, &layout, addresses, room.max(carried)) {
                    // If the kernel drops the answer, the sender gets another answer to its next packet.
                    let _ = self.device.write(&[IoSlice::new(&[0; VIRTIO_LEN]), IoSlice::new(&answer)]);
                }
                return count(&counts.too_long, 1);
            }
            Err(NotCut::Malformed) => return count(&counts.not_sealed, 1),
        };
        let (bytes, failed) = end.get().seal(way.tunnel, (how, lane), cut, times, &mut self.batch);
        shared.sealed(lane, bytes);
        if failed > 0 {
            count(&counts.not_sealed, failed);
        }
    }

    fn flush(&mut self, counts: &Counts) {
        flush(&self.socket, &mut self.batch, &mut self.way, counts);
    }

    /// Receives datagrams from the socket, opens them and writes the packets to the device. Returns whether there was a
    /// packet in them.
    fn receive(&mut self, shared: &Shared<E>, times: Times) -> bool {
        if !self.socket.receive(&mut self.buffers) {
            return false;
        }
        let (mut end, lane) = (Access::new(&shared.end), self.number);
        let (mut joiner, mut admitted) = (Joiner::default(), Vec::with_capacity(ADMITTED));
        let (mut not_taken, mut opened) = (0, 0);
        for arrived in self.buffers.arrived() {
            for datagram in arrived.bytes.chunks_mut(arrived.stride) {
                let received = end.get().receive(arrived.from, arrived.to, datagram, times, &mut self.replies);
                match received {
                    Some((tunnel, Received::Packet { treatment, suite, partial, packet, .. })) => {
                        let sealed = Sealed { treatment, suite, is_compressed: false };
                        let Some(layout) = Layout::of(packet) else { continue };
                        if end.get().admit(tunnel, packet, &layout, partial, sealed, times) {
                            opened += packet.len();
                            admitted.push((&*packet, layout, partial));
                        }
                    }
                    Some((tunnel, Received::Block { suite, block })) => {
                        end.release();
                        // Packets that came before the block go before it.
                        reply(&mut self.replies, &self.socket);
                        not_taken += write(&mut joiner, &mut admitted, &self.device);
                        not_taken += usize::from(joiner.flush(&self.device).is_err());
                        let Some(mut whole) = self.unpacker.unpack(&block) else {
                            count(&shared.counts.malformed, 1);
                            continue;
                        };
                        // A packet that is only too long for one record is stored as it is.
                        let is_compressed = block.bytes.len() < whole.packet.len();
                        let sealed = Sealed { treatment: block.treatment, suite, is_compressed };
                        let (layout, partial) = (whole.layout, whole.virtio.partial);
                        if end.get().admit(tunnel, whole.packet, &layout, partial, sealed, times) {
                            opened += whole.packet.len();
                            if is_compressed && let Some(flow) = end.get().latest() {
                                end.get().compressed(flow, whole.packet.len(), block.bytes.len());
                            }
                            end.release();
                            not_taken += usize::from(whole.write(&self.device).is_err());
                        }
                    }
                    // Frames may wait for it. Until they are sent, no other thread must find the tunnel open.
                    Some((_, Received::Open)) => {
                        end.keep();
                        match lane {
                            0 => self.polled = 0,
                            _ => shared.queues.iter().take(1).for_each(Queue::wake),
                        }
                    }
                    _ => {}
                }
            }
            end.release();
            // A packet that came behind an initiation may be answered at once, and another thread may seal the answer.
            // The response has to go first: before it, the other end can't open the answer.
            reply(&mut self.replies, &self.socket);
            not_taken += write(&mut joiner, &mut admitted, &self.device);
        }
        not_taken += usize::from(joiner.flush(&self.device).is_err());
        count(&shared.counts.not_taken, not_taken);
        shared.opened(lane, opened);
        self.spin.moved(opened);
        if end.keeps() {
            // The answer to the other end's response goes first. A token that is due goes before the first record.
            self.reply();
            self.resume(shared, &mut end, times);
        }
        opened > 0
    }

    fn reply(&mut self) {
        reply(&mut self.replies, &self.socket);
    }
}

fn reply(replies: &mut Vec<Message>, socket: &Socket) {
    for Message { to, source, datagram } in replies.drain(..) {
        socket.send_single(&datagram, to, source);
    }
}

/// Writes packets to the device, joined where possible. Returns how often the kernel did not take a super-packet.
fn write<'d>(joiner: &mut Joiner<'d>, packets: &mut Vec<(&'d [u8], Layout, bool)>, device: &Device) -> usize {
    let packets = packets.drain(..);
    packets.filter(|(packet, layout, partial)| joiner.push(packet, *layout, *partial, device).is_err()).count()
}

fn flush<K: Copy>(socket: &Socket, batch: &mut Batch, way: &mut Option<Way<K>>, counts: &Counts) {
    if let Some(Way { to, source, .. }) = way.take()
        && !batch.is_empty()
    {
        count(&counts.not_sent, socket.send(batch.runs(), to, source));
    }
    batch.clear();
}
