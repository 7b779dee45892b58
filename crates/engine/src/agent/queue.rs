//! The frames of one subject that wait for grants. The queue is bounded, keeps the order, and has a time limit.

use super::frame::Frame;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wire::Destination;

/// Maximum number of waiting frames.
pub const FRAMES_MAX: usize = 64;
/// Maximum length of all waiting frames together, in bytes.
pub const BYTES_MAX: usize = 256 * 1024;
/// Longest time for which a frame waits. By then the application has given up, or has sent the packet again.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Queue {
    /// The frames, by number, in the order of arrival.
    frames: BTreeMap<u64, Waiting>,
    /// The numbers of the frames to each destination.
    places: BTreeMap<Destination, BTreeSet<u64>>,
    arrived: u64,
    bytes: usize,
}

struct Waiting {
    place: Destination,
    frame: Frame,
    since: Duration,
}

impl Queue {
    /// Appends a frame, and drops the oldest frames if there is no room. If the frame is a SYN that retransmits a
    /// waiting SYN, appends nothing.
    pub fn push(&mut self, place: Destination, frame: Frame, now: Duration) {
        let mut there = self.places.get(&place).into_iter().flatten().filter_map(|number| self.frames.get(number));
        if there.any(|waiting| waiting.frame.is_repeated_by(&frame)) {
            return;
        }
        self.arrived += 1;
        self.bytes += frame.len();
        self.places.entry(place).or_default().insert(self.arrived);
        self.frames.insert(self.arrived, Waiting { place, frame, since: now });
        while self.frames.len() > FRAMES_MAX || self.bytes > BYTES_MAX {
            let Some((oldest, _)) = self.frames.first_key_value() else { break };
            self.remove(*oldest);
        }
    }

    /// Removes and returns the oldest of the frames to this destination for which `wanted` returns true.
    pub fn take(&mut self, place: &Destination, wanted: impl Fn(&Frame) -> bool) -> Option<Frame> {
        let mut numbers = self.places.get(place)?.iter();
        let number = numbers.find(|number| self.frames.get(number).is_some_and(|waiting| wanted(&waiting.frame)))?;
        self.remove(*number)
    }

    fn remove(&mut self, number: u64) -> Option<Frame> {
        let Waiting { place, frame, .. } = self.frames.remove(&number)?;
        self.bytes -= frame.len();
        if let Some(numbers) = self.places.get_mut(&place) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.places.remove(&place);
            }
        }
        Some(frame)
    }

    /// Drops frames that have waited too long.
    pub fn expire(&mut self, now: Duration) {
        while let Some((number, waiting)) = self.frames.first_key_value()
            && now.saturating_sub(waiting.since) > PATIENCE
        {
            self.remove(*number);
        }
    }

    pub fn waits_for(&self, place: &Destination) -> bool {
        self.places.contains_key(place)
    }

    /// Returns the destinations of the waiting frames, without duplicates, in the order in which the oldest frame to
    /// each destination arrived.
    pub fn places(&self) -> Vec<Destination> {
        let firsts = self.places.iter().filter_map(|(place, numbers)| Some((*numbers.first()?, *place)));
        let in_order: BTreeMap<u64, Destination> = firsts.collect();
        in_order.into_values().collect()
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
        assert!(queue.take(&place(), |_| true).expect("one") == frame(1, UDP, 0));
        for port in 0..10 {
            queue.push(place(), frame(port, UDP, 32000), Duration::ZERO);
        }
        assert!(queue.bytes <= BYTES_MAX && queue.bytes > BYTES_MAX - 33000);
        while queue.take(&place(), |_| true).is_some() {}
        assert_eq!((queue.bytes, queue.places.len()), (0, 0));
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
