//! A queue in which the threads wait for their turn to use a lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which the thread that has waited longest gets the lock. In between, the first thread that comes gets it.
/// If the lock were handed over for every frame, every frame would wait until a sleeping thread runs again.
const HANDOVER: Duration = Duration::from_micros(500);

/// A lock without a value. At intervals of [`HANDOVER`], it goes to the thread that has waited longest. If n threads
/// use the lock, each of them waits for at most about n times [`HANDOVER`] and n frames.
#[derive(Default)]
pub(crate) struct Line {
    is_taken: AtomicBool,
    /// Number of waiting threads. A thread needs the lock of `waiting` only if this number is not 0.
    length: AtomicUsize,
    waiting: Mutex<Waiting>,
    moved: Condvar,
}

/// The threads that wait, by their tickets.
#[derive(Default)]
struct Waiting {
    tickets: VecDeque<u64>,
    next: u64,
    /// The ticket of the thread to which the lock was handed over. `None` after this thread has noticed it.
    called: Option<u64>,
    /// Time at which the lock was last handed over to a waiting thread.
    last: Option<Instant>,
}

/// The right to use what the lock protects. Dropping this value releases the lock for the next thread.
pub(crate) struct Head<'l>(&'l Line);

impl Line {
    /// Waits until this thread has the lock.
    pub fn enter(&self) -> Head<'_> {
        if !self.take() {
            self.wait();
        }
        Head(self)
    }

    fn take(&self) -> bool {
        self.is_taken.compare_exchange(false, true, SeqCst, SeqCst).is_ok()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        let mut waiting = self.waiting();
        let ticket = waiting.next;
        waiting.next += 1;
        waiting.tickets.push_back(ticket);
        // Before the attempt to take the line: `leave` reads the length after it has freed the line. So either this
        // thread sees that the line is free, or `leave` sees this thread.
        self.length.store(waiting.tickets.len(), SeqCst);
        loop {
            if waiting.called == Some(ticket) {
                waiting.called = None;
                return;
            }
            if self.take() {
                waiting.tickets.retain(|other| *other != ticket);
                self.length.store(waiting.tickets.len(), SeqCst);
                return;
            }
            waiting = self.moved.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Hands the lock over to the thread that has waited longest, if [`HANDOVER`] is over. The lock stays taken
    /// meanwhile, so no other thread can get it first. Returns whether the lock was handed over.
    fn hand_over(&self) -> bool {
        let mut waiting = self.waiting();
        if waiting.last.is_some_and(|last| last.elapsed() < HANDOVER) {
            return false;
        }
        let Some(ticket) = waiting.tickets.pop_front() else { return false };
        (waiting.called, waiting.last) = (Some(ticket), Some(Instant::now()));
        self.length.store(waiting.tickets.len(), SeqCst);
        drop(waiting);
        // Threads with other tickets continue to wait.
        self.moved.notify_all();
        true
    }

    fn leave(&self) {
        if self.length.load(SeqCst) > 0 && self.hand_over() {
            return;
        }
        self.is_taken.store(false, SeqCst);
        if self.length.load(SeqCst) > 0 {
            // A thread that has just found the line taken holds this lock until it sleeps, and would miss the call.
            drop(self.waiting());
            self.moved.notify_one();
        }
    }
}

impl Drop for Head<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_is_at_the_head_and_none_sleeps_for_ever() {
        let (line, inside) = (Line::default(), AtomicUsize::new(0));
        let (line, inside) = (&line, &inside);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let _head = line.enter();
                        assert_eq!(inside.fetch_add(1, SeqCst), 0);
                        inside.fetch_sub(1, SeqCst);
                    }
                });
            }
        });
        assert!(!line.is_taken.load(SeqCst) && line.waiting().tickets.is_empty());
    }
}
