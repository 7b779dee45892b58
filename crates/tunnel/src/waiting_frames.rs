//! Frames from the device that wait for their tunnel, because the tunnel's grant or the verifier's answer has not
//! arrived yet. Each tunnel has room for a few frames of its own, so that the frames of one tunnel take no room from
//! those of another. The number of tunnels is limited by the legs that the agent has set.

use crate::legs::Key;
use engine::tunnel::Millis;
use std::collections::{HashMap, VecDeque};

/// Maximum number of frames that wait for one tunnel.
const FRAMES_MAX: usize = 64;
/// Maximum length of all frames that wait for one tunnel, in bytes.
const BYTES_MAX: usize = 256 * 1024;
/// Longest time for which a frame waits. A token in it must still be valid at the verifier.
const PATIENCE: Millis = 10_000;

/// The waiting frames, by tunnel. No queue is empty.
#[derive(Default)]
pub(crate) struct WaitingFrames(HashMap<Key, Queue>);

#[derive(Default)]
struct Queue {
    frames: VecDeque<Frame>,
    bytes: usize,
}

struct Frame {
    bytes: Vec<u8>,
    /// Length of the longest packet that is cut from the frame.
    length: usize,
    since: Millis,
}

impl WaitingFrames {
    /// Appends a frame with its virtio header; `length` is the length of the longest packet in it. Returns `false` if
    /// there is no room.
    pub fn push(&mut self, key: Key, bytes: Vec<u8>, length: usize, now: Millis) -> bool {
        let used = self.0.get(&key).map_or((0, 0), |queue| (queue.frames.len(), queue.bytes));
        if used.0 >= FRAMES_MAX || used.1 + bytes.len() > BYTES_MAX {
            return false;
        }
        let queue = self.0.entry(key).or_default();
        queue.bytes += bytes.len();
        queue.frames.push_back(Frame { bytes, length, since: now });
        true
    }

    /// Removes and returns a frame whose tunnel accepts it. `takes` gets a tunnel and the length of the longest packet
    /// in a frame, and returns whether the tunnel accepts the frame. Of a tunnel's frames, returns the oldest one that
    /// the tunnel accepts.
    pub fn take(&mut self, takes: impl Fn(&Key, usize) -> bool) -> Option<Vec<u8>> {
        let is_taken = |(key, queue): (&Key, &Queue)| {
            Some((*key, queue.frames.iter().position(|frame| takes(key, frame.length))?))
        };
        let (key, position) = self.0.iter().find_map(is_taken)?;
        let queue = self.0.get_mut(&key)?;
        let frame = queue.frames.remove(position)?;
        queue.bytes -= frame.bytes.len();
        if queue.frames.is_empty() {
            self.0.remove(&key);
        }
        Some(frame.bytes)
    }

    /// Drops frames that have waited too long. Returns their number.
    pub fn expire(&mut self, now: Millis) -> u64 {
        let mut dropped = 0;
        self.0.retain(|_, queue| {
            while queue.frames.front().is_some_and(|frame| now.saturating_sub(frame.since) >= PATIENCE)
                && let Some(frame) = queue.frames.pop_front()
            {
                queue.bytes -= frame.bytes.len();
                dropped += 1;
            }
            !queue.frames.is_empty()
        });
        dropped
    }

    /// Drops the frames of tunnels that have ended.
    pub fn forget(&mut self, is_gone: impl Fn(&Key) -> bool) {
        self.0.retain(|key, _| !is_gone(key));
    }
}
