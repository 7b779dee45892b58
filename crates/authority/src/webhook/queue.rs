//! The messages of a webhook that wait to be delivered. After each failed attempt, a message waits longer for the next
//! one. Other messages do not wait for this message.
//!
//! The queue is bounded. If it is full, the oldest message of the person with the most messages gives way. So people
//! who make many requests displace their own messages first.

use super::message::Message;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of messages that wait to be sent to one webhook.
pub const MOST: usize = 256;
/// The first and the longest pause between two attempts to deliver a message. Each pause is twice as long as the one
/// before.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Time after which the authority gives up a message.
const GIVE_UP: Duration = Duration::from_secs(24 * 3600);

/// A message that waits.
#[derive(Debug)]
pub struct Waiting {
    /// The message.
    pub message: Message,
    /// Time from which it may be sent.
    due: Instant,
    /// Time since which it waits.
    since: Instant,
    /// Number of attempts that have failed.
    failed: u32,
}

impl Waiting {
    /// Returns a message that has not been sent yet.
    pub fn new(message: Message, now: Instant) -> Self {
        Self { message, due: now, since: now, failed: 0 }
    }

    /// Postpones the message after an attempt that failed. Returns false if the message has waited for 24 hours, so
    /// that the authority has to give it up.
    pub fn postpone(&mut self, now: Instant) -> bool {
        let factor = 1_u32.checked_shl(self.failed).unwrap_or(u32::MAX);
        self.due = now + PAUSES.0.saturating_mul(factor).min(PAUSES.1);
        self.failed += 1;
        now.duration_since(self.since) < GIVE_UP
    }
}

/// The messages that wait.
#[derive(Debug, Default)]
pub struct Queue(Vec<Waiting>);

impl Queue {
    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a message. If the queue is full, removes the oldest message of the person with the most messages, and
    /// returns it.
    pub fn add(&mut self, waiting: Waiting) -> Option<Message> {
        self.0.push(waiting);
        if self.0.len() <= MOST {
            return None;
        }
        let mut counts = HashMap::<&str, usize>::new();
        for waiting in &self.0 {
            *counts.entry(&waiting.message.person).or_default() += 1;
        }
        let rank = |waiting: &Waiting| (counts[waiting.message.person.as_str()], std::cmp::Reverse(waiting.since));
        let (at, _) = self.0.iter().enumerate().max_by_key(|(_, waiting)| rank(waiting))?;
        Some(self.0.swap_remove(at).message)
    }

    /// Returns the time from which the next message may be sent.
    pub fn next(&self) -> Option<Instant> {
        self.0.iter().map(|waiting| waiting.due).min()
    }

    /// Removes the message that has been due for the longest time, if any is due.
    pub fn take(&mut self, now: Instant) -> Option<Waiting> {
        let (at, first) = self.0.iter().enumerate().min_by_key(|(_, waiting)| waiting.due)?;
        (first.due <= now).then(|| self.0.swap_remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(person: &str, number: usize) -> Message {
        let (body, receiver) = (String::new(), String::new());
        Message { id: format!("{number}"), body, person: person.into(), receiver, name: String::new() }
    }

    #[test]
    fn a_message_that_fails_waits_longer_each_time_and_delays_no_other() {
        let begun = Instant::now();
        let mut queue = Queue::default();
        assert!(queue.next().is_none() && queue.take(begun).is_none());
        queue.add(Waiting::new(message("alice", 0), begun));
        let mut failed = queue.take(begun).unwrap();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert!(failed.postpone(begun));
            pauses.push(failed.due.duration_since(begun).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        queue.add(failed);
        assert!(queue.take(begun).is_none(), "not due yet");
        queue.add(Waiting::new(message("bob", 1), begun));
        assert_eq!(queue.take(begun).unwrap().message.id, "1");
        let end = queue.next().unwrap();
        assert_eq!(end.duration_since(begun), PAUSES.1);
        let mut last = queue.take(end).unwrap();
        assert!((0..100).all(|_| last.postpone(end)), "the number of attempts does not matter");
        assert!(!last.postpone(begun + GIVE_UP));
    }

    #[test]
    fn a_person_who_fills_the_queue_displaces_their_own_messages() {
        let begun = Instant::now();
        let mut queue = Queue::default();
        let wait = |person: &str, number: usize| {
            Waiting::new(message(person, number), begun + Duration::from_millis(number as u64))
        };
        assert!(queue.add(wait("alice", 0)).is_none() && queue.add(wait("bob", 1)).is_none());
        for number in 2..MOST {
            assert!(queue.add(wait("mallory", number)).is_none());
        }
        for number in 0..10 {
            assert_eq!(queue.add(wait("carol", MOST + number)).unwrap().id, format!("{}", 2 + number), "the oldest");
        }
        for number in 0..1000 {
            assert_eq!(queue.add(wait("mallory", 2 * MOST + number)).unwrap().person, "mallory");
        }
        assert_eq!(queue.len(), MOST);
        let left = |person: &str| queue.0.iter().filter(|waiting| waiting.message.person == person).count();
        assert_eq!(["alice", "bob", "carol"].map(left), [1, 1, 10]);
    }
}
