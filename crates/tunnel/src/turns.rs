//! The lock of a pump's end. The threads of the queues share it with all other threads.

use crate::line::{Head, Line};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value behind a lock for which no thread waits long, although the threads of the queues lock the value for every
/// frame. With an ordinary lock, a queue's thread would take the lock again before a waiting thread has woken up. The
/// waiting thread would then wait as long as there is traffic.
pub struct Turns<E> {
    value: Mutex<E>,
    /// Held by the thread that is next to lock `value`.
    turn: Mutex<()>,
    /// A thread of a queue holds this lock while it waits for `value` and while it uses `value`. So all other threads
    /// compete with only one thread at a time, however many queues there are. A queue that always has frames keeps no
    /// other queue from the lock for long.
    queues: Line,
}

/// The locked value, in a thread of a queue.
pub struct Turn<'t, E> {
    // The fields are dropped in this order.
    value: MutexGuard<'t, E>,
    _queues: Head<'t>,
}

impl<E> Turns<E> {
    pub fn new(value: E) -> Self {
        Self { value: Mutex::new(value), turn: Mutex::new(()), queues: Line::default() }
    }

    /// Locks the value. Waits for at most one frame.
    pub fn lock(&self) -> MutexGuard<'_, E> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the value in a thread of a queue. For each other queue, waits for at most about half a millisecond and one
    /// frame.
    pub fn lock_in_queue(&self) -> Turn<'_, E> {
        let queues = self.queues.enter();
        Turn { value: self.lock(), _queues: queues }
    }
}

impl<E> Deref for Turn<'_, E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.value
    }
}

impl<E> DerefMut for Turn<'_, E> {
    fn deref_mut(&mut self) -> &mut E {
        &mut self.value
    }
}

/// Access to the value for one piece of work in a thread of a queue. The value is locked when the work needs it, and
/// released when the work can continue without it.
pub struct Access<'t, E> {
    turns: &'t Turns<E>,
    turn: Option<Turn<'t, E>>,
    keeps: bool,
}

impl<'t, E> Access<'t, E> {
    pub fn new(turns: &'t Turns<E>) -> Self {
        Self { turns, turn: None, keeps: false }
    }

    /// Makes the access keep the lock until the access is dropped. An access that does not hold the lock now takes it
    /// at the next [`Self::get`], and keeps it from then on.
    pub fn keep(&mut self) {
        self.keeps = true;
    }

    /// Reports whether the access holds the lock until it is dropped.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Locks the value if it is not locked yet, and returns it. It stays locked until [`Self::release`].
    pub fn get(&mut self) -> &mut E {
        self.turn.get_or_insert_with(|| self.turns.lock_in_queue())
    }

    /// Releases the lock, unless [`Self::keeps`] says that it is held until this value is dropped.
    pub fn release(&mut self) {
        if !self.keeps {
            self.turn = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    fn spin(time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    /// Locks a thousand times while `queues` threads always have frames. Returns how long each time took.
    fn waits(queues: u64) -> Vec<Duration> {
        let (turns, stop, frames) = (Turns::new(0u32), AtomicBool::new(false), AtomicU64::new(0));
        let (turns, stop, frames) = (&turns, &stop, &frames);
        std::thread::scope(|scope| {
            for _ in 0..queues {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let mut end = turns.lock_in_queue();
                        *end += 1;
                        frames.fetch_add(1, Ordering::Relaxed);
                        spin(Duration::from_micros(50));
                    }
                });
            }
            let waited = (0..1000).map(|_| {
                // Ask in the middle of a frame, as most do while there is traffic.
                let before = frames.load(Ordering::Relaxed);
                while frames.load(Ordering::Relaxed) == before {
                    std::hint::spin_loop();
                }
                let begun = Instant::now();
                drop(turns.lock());
                begun.elapsed()
            });
            let waited = waited.collect();
            stop.store(true, Ordering::Relaxed);
            waited
        })
    }

    #[test]
    fn queues_that_always_have_frames_let_others_lock_their_end() {
        for queues in [1, 4] {
            let waited = waits(queues);
            let (total, longest): (Duration, _) = (waited.iter().sum(), waited.iter().max());
            assert!(longest < Some(&Duration::from_millis(500)), "{queues} queues: {longest:?}");
            assert!(total < Duration::from_secs(5), "{queues} queues: {total:?} for a thousand turns of 50 µs");
        }
    }

    /// Locks in this many threads of queues that always have frames, for a second. Returns for each thread how often it
    /// had the lock, and the longest time that it waited.
    fn shares(queues: u64) -> Vec<(u64, Duration)> {
        let (turns, begun) = (Turns::new(0u32), Instant::now());
        let turns = &turns;
        let work = move || {
            let (mut count, mut longest) = (0u64, Duration::ZERO);
            while begun.elapsed() < Duration::from_secs(1) {
                let asked = Instant::now();
                let mut end = turns.lock_in_queue();
                longest = longest.max(asked.elapsed());
                *end += 1;
                count += 1;
                spin(Duration::from_micros(50));
            }
            (count, longest)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..queues).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn queues_that_always_have_frames_let_each_other_lock_their_end() {
        for queues in [2, 5] {
            let shares = shares(queues);
            // They would share 20 000 turns of 50 µs. One of them does what is due at certain times.
            assert!(shares.iter().all(|(count, _)| *count >= 50), "{queues} queues: {shares:?}");
            let longest = Duration::from_millis(500);
            assert!(shares.iter().all(|(_, waited)| *waited < longest), "{queues} queues: {shares:?}");
        }
    }
}
