//! The lock of a pump's end, which the threads of the queues share with everybody else.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value that is locked in turn. The threads of the queues lock it for every frame. Without turns, a thread of a queue
/// would have the lock again before somebody who waits for it is awake, who would wait as long as there is traffic.
pub struct Turns<E> {
    value: Mutex<E>,
    /// Held by whoever is next to lock `value`.
    turn: Mutex<()>,
    /// Held by the thread of a queue while it waits for `value` and while it has it. So everybody else competes with one
    /// thread at a time, however many queues there are.
    queues: Mutex<()>,
}

/// The locked value, in a thread of a queue.
pub struct Turn<'t, E> {
    // The fields are dropped in this order.
    value: MutexGuard<'t, E>,
    _queues: MutexGuard<'t, ()>,
}

impl<E> Turns<E> {
    pub fn new(value: E) -> Self {
        Self { value: Mutex::new(value), turn: Mutex::new(()), queues: Mutex::new(()) }
    }

    /// Locks the value. Waits for one frame at most.
    pub fn lock(&self) -> MutexGuard<'_, E> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the value in a thread of a queue.
    pub fn lock_in_queue(&self) -> Turn<'_, E> {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
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

/// The value as one piece of work in a thread of a queue uses it: locked when it is needed, and released when the work
/// can do without.
pub struct Access<'t, E> {
    turns: &'t Turns<E>,
    turn: Option<Turn<'t, E>>,
    keeps: bool,
}

impl<'t, E> Access<'t, E> {
    pub fn new(turns: &'t Turns<E>) -> Self {
        Self { turns, turn: None, keeps: false }
    }

    /// Creates an access that stays locked until it is dropped.
    pub fn keeping(turns: &'t Turns<E>) -> Self {
        Self { turns, turn: None, keeps: true }
    }

    /// Returns the value, which is locked from now on.
    pub fn get(&mut self) -> &mut E {
        self.turn.get_or_insert_with(|| self.turns.lock_in_queue())
    }

    /// Lets others lock the value, unless this access keeps it.
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
}
