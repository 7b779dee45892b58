//! The queue for packets between the tasks that read them from the kernel and the daemon's loop. If packets of several
//! users wait, the loop takes one packet of each user in turn.

use engine::agent::{Frame, Turns};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use wire::map::GrantSlot;

/// Maximum number of packets that wait for the loop.
const ROOM: usize = 1024;

/// A queued packet.
pub struct QueuedPacket {
    /// The subject and destination of the packet.
    pub slot: GrantSlot,
    /// The packet; `None` if it could not be read as a whole.
    pub frame: Option<Frame>,
}

/// The queue of packets that wait for the daemon's loop. All clones of a value refer to the same queue.
#[derive(Clone)]
pub struct PacketQueue(Arc<Shared>);

struct Shared {
    turns: Mutex<Turns<QueuedPacket>>,
    filled: Notify,
}

impl PacketQueue {
    /// Creates an empty queue.
    pub fn new() -> Self {
        Self(Arc::new(Shared { turns: Mutex::new(Turns::new(ROOM)), filled: Notify::new() }))
    }

    /// Appends a packet. If the queue is full, drops a packet of the user who has the most packets in the queue.
    pub fn push(&self, packet: QueuedPacket) {
        self.turns().push(packet.slot.subject, packet);
        self.0.filled.notify_one();
    }

    /// Waits for the next packet, and removes it from the queue. The caller can cancel the wait without losing a
    /// packet. Only one task at a time is allowed to call this method.
    pub async fn next(&self) -> QueuedPacket {
        loop {
            if let Some(packet) = self.pop() {
                return packet;
            }
            self.0.filled.notified().await;
        }
    }

    /// Removes and returns the next packet, if there is one in the queue.
    pub fn pop(&self) -> Option<QueuedPacket> {
        self.turns().pop()
    }

    fn turns(&self) -> MutexGuard<'_, Turns<QueuedPacket>> {
        self.0.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for PacketQueue {
    fn default() -> Self {
        Self::new()
    }
}
