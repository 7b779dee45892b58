//! The queue of queued packets between the threads that read them and the loop, which serves its users in turn.

use engine::agent::{Frame, Turns};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use wire::map::GrantSlot;

/// Number of packets that may wait for the loop.
const ROOM: usize = 1024;

/// A queued packet.
pub struct QueuedPacket {
    /// The subject and destination of the packet.
    pub slot: GrantSlot,
    /// The packet, if it was handed over complete.
    pub frame: Option<Frame>,
}

/// The queue. Clones share it.
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

    /// Appends a packet. If the queue is full, a packet of the user with the most packets is lost, as any packet may
    /// be.
    pub fn push(&self, packet: QueuedPacket) {
        self.turns().push(packet.slot.subject, packet);
        self.0.filled.notify_one();
    }

    /// Waits for the next packet; safe to cancel. There is one caller only.
    pub async fn next(&self) -> QueuedPacket {
        loop {
            if let Some(packet) = self.pop() {
                return packet;
            }
            self.0.filled.notified().await;
        }
    }

    /// Returns the next packet, if there is one.
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
