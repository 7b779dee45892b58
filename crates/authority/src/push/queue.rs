//! The queue between the push channel and the stream of one listener. It has room for a fixed number of events, and
//! takes little memory while it is empty, which is nearly always: an authority has such a queue for every agent and
//! every verifier.

use futures_util::Stream;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The state that both ends of a queue share.
#[derive(Default)]
struct Shared {
    events: VecDeque<Arc<str>>,
    /// Wakes the task that writes the stream.
    waker: Option<Waker>,
    /// Whether one of the two ends was dropped.
    is_closed: bool,
}

/// The end of a queue at which events go in. Dropping it ends the stream, after the events that are in the queue.
pub struct Sender {
    shared: Arc<Mutex<Shared>>,
    most: usize,
}

/// The end of a queue at which events come out.
pub struct EventQueue(Arc<Mutex<Shared>>);

/// Creates a queue that holds at most `most` events.
pub fn queue(most: usize) -> (Sender, EventQueue) {
    let shared = Arc::<Mutex<Shared>>::default();
    (Sender { shared: shared.clone(), most }, EventQueue(shared))
}

impl Sender {
    /// Adds events, so that the stream sends them together. Returns false, and adds nothing, if there is no room for
    /// them or the stream is gone.
    pub fn send(&self, events: &[Arc<str>]) -> bool {
        let mut shared = lock(&self.shared);
        if shared.is_closed || shared.events.len() + events.len() > self.most {
            return false;
        }
        shared.events.extend(events.iter().cloned());
        wake(shared);
        true
    }

    /// Reports whether the stream is gone.
    pub fn is_closed(&self) -> bool {
        lock(&self.shared).is_closed
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.is_closed = true;
        wake(shared);
    }
}

impl Stream for EventQueue {
    type Item = Arc<str>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Arc<str>>> {
        let mut shared = lock(&self.0);
        if let Some(event) = shared.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        if shared.is_closed {
            return Poll::Ready(None);
        }
        // Frees the memory of a queue that was in use.
        shared.events = VecDeque::new();
        shared.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        let mut shared = lock(&self.0);
        shared.is_closed = true;
        // The waker keeps the memory of its task. Both are dropped after the lock is free.
        let kept = (shared.waker.take(), std::mem::take(&mut shared.events));
        drop(shared);
        drop(kept);
    }
}

#[cfg(test)]
impl EventQueue {
    /// Takes the next event out of the queue, if there is one.
    pub fn take(&self) -> Option<Arc<str>> {
        lock(&self.0).events.pop_front()
    }

    /// Reports whether no event will be added any more.
    pub fn is_closed(&self) -> bool {
        lock(&self.0).is_closed
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Releases the lock, and then wakes the task that waits for the queue. The task takes the lock at once.
fn wake(mut shared: MutexGuard<'_, Shared>) {
    let waker = shared.waker.take();
    drop(shared);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, StreamExt};

    fn next(events: &mut EventQueue) -> Option<Option<Arc<str>>> {
        events.next().now_or_never()
    }

    #[test]
    fn events_come_out_in_order_until_the_sender_is_gone() {
        let (sender, mut events) = queue(3);
        let [a, b, c, d] = ["a", "b", "c", "d"].map(Arc::<str>::from);
        assert!(next(&mut events).is_none());
        assert!(sender.send(&[a.clone(), b.clone()]) && !sender.send(&[c.clone(), d.clone()]), "there is room for one");
        assert_eq!(next(&mut events), Some(Some(a)));
        assert!(sender.send(&[c.clone(), d.clone()]));
        drop(sender);
        let rest: Vec<_> = (0..3).filter_map(|_| next(&mut events).flatten()).collect();
        assert_eq!(rest, [b, c, d]);
        assert_eq!(next(&mut events), Some(None));
    }

    #[test]
    fn a_stream_that_is_gone_takes_nothing_and_keeps_nothing() {
        let (sender, events) = queue(2);
        let event = [Arc::<str>::from("a")];
        assert!(sender.send(&event) && !sender.is_closed());
        drop(events);
        assert!(sender.is_closed() && !sender.send(&event));
        assert_eq!(Arc::strong_count(&event[0]), 1);
    }

    #[tokio::test]
    async fn a_task_that_waits_is_woken_by_an_event_and_by_the_end() {
        let (sender, mut events) = queue(1);
        let task = tokio::spawn(async move {
            let first = events.next().await;
            (first, events.next().await)
        });
        tokio::task::yield_now().await;
        assert!(sender.send(&["a".into()]));
        tokio::task::yield_now().await;
        drop(sender);
        assert_eq!(task.await.unwrap(), (Some("a".into()), None));
    }
}
