//! Frames of one subject that wait for grants: a bounded queue, in order, with a time limit.

use super::frame::Frame;
use std::collections::VecDeque;
use std::time::Duration;
use wire::Destination;

/// Maximum number of waiting frames.
pub const FRAMES_MAX: usize = 64;
/// Maximum number of waiting bytes.
pub const BYTES_MAX: usize = 256 * 1024;
/// Time after which the application has given up or sent the packet again.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Queue {
    frames: VecDeque<(Destination, Frame, Duration)>,
    bytes: usize,
}

impl Queue {
    /// Appends a frame. Drops the oldest frames to make room; a SYN replaces the one that it repeats.
    pub fn push(&mut self, place: Destination, frame: Frame, now: Duration) {
        if self.frames.iter().any(|(other, waiting, _)| *other == place && waiting.is_repeated_by(&frame)) {
            return;
        }
        self.bytes += frame.len();
        self.frames.push_back((place, frame, now));
        while self.frames.len() > FRAMES_MAX || self.bytes > BYTES_MAX {
            let Some((_, dropped, _)) = self.frames.pop_front() else { break };
            self.bytes -= dropped.len();
        }
    }

    /// Removes and returns the first frame that `wanted` accepts.
    pub fn take(&mut self, wanted: impl Fn(&Destination, &Frame) -> bool) -> Option<(Destination, Frame)> {
        let index = self.frames.iter().position(|(place, frame, _)| wanted(place, frame))?;
        let (place, frame, _) = self.frames.remove(index)?;
        self.bytes -= frame.len();
        Some((place, frame))
    }

    /// Drops frames that have waited too long.
    pub fn expire(&mut self, now: Duration) {
        while self.frames.front().is_some_and(|(.., since)| now.saturating_sub(*since) > PATIENCE) {
            if let Some((_, dropped, _)) = self.frames.pop_front() {
                self.bytes -= dropped.len();
            }
        }
    }

    /// Returns the destinations that frames wait for, in order, each once.
    pub fn places(&self) -> Vec<Destination> {
        let mut places = Vec::new();
        for (place, ..) in &self.frames {
            if !places.contains(place) {
                places.push(*place);
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::tests::partial;
    use super::*;
    use wire::packet::{TCP, UDP};

    fn place() -> Destination {
        Destination { address: "198.51.100.2".parse().expect("address"), protocol: UDP, port: 443 }
    }

    fn frame(source_port: u16, protocol: u8, size: usize) -> Frame {
        let bytes = partial("192.0.2.1", source_port, "198.51.100.2", protocol, 443, &vec![0; size]);
        Frame::new(1, 14, 0, &bytes).expect("whole")
    }

    #[test]
    fn the_oldest_make_room() {
        let mut queue = Queue::default();
        for port in 0..=FRAMES_MAX as u16 {
            queue.push(place(), frame(port, UDP, 0), Duration::ZERO);
        }
        assert_eq!(queue.frames.len(), FRAMES_MAX);
        assert!(queue.take(|_, _| true).expect("one").1 == frame(1, UDP, 0));
        for port in 0..10 {
            queue.push(place(), frame(port, UDP, 32000), Duration::ZERO);
        }
        assert!(queue.bytes <= BYTES_MAX && queue.bytes > BYTES_MAX - 33000);
        while queue.take(|_, _| true).is_some() {}
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn a_repeated_syn_waits_once() {
        let mut queue = Queue::default();
        for second in 0..3 {
            queue.push(place(), frame(1, TCP, 0), Duration::from_secs(second));
        }
        assert_eq!(queue.frames.len(), 1);
        queue.expire(PATIENCE + Duration::from_millis(1));
        assert!(queue.places().is_empty());
        assert_eq!(queue.bytes, 0);
    }
}
