//! Grants whose owners the verifier has to request from the authority, because flows in sealed tunnels use them. The
//! accounts take turns, so that an account with many grants delays only itself.

use engine::agent::Turns;
use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Maximum number of grants that wait.
const ROOM: usize = 1024;
/// Time after which the authority may be asked about the same grant again.
const AGAIN: Duration = Duration::from_secs(1);

/// Handles of grants whose owners the authority has yet to name.
pub struct Unnamed {
    queue: Mutex<Queue>,
    arrived: Notify,
}

struct Queue {
    turns: Turns<u64>,
    /// Handles of the grants that wait and of the grants in `taken`.
    known: HashSet<u64>,
    /// Handles that were taken within the last second, oldest first.
    taken: VecDeque<(Instant, u64)>,
}

impl Default for Unnamed {
    fn default() -> Self {
        let queue = Queue { turns: Turns::new(ROOM), known: HashSet::new(), taken: VecDeque::new() };
        Self { queue: Mutex::new(queue), arrived: Notify::new() }
    }
}

impl Unnamed {
    /// Adds a grant of an account, unless it waits already or was taken within the last second. If there is no room,
    /// drops a grant of the account that has the most grants waiting. The next packet of that grant's flow adds the
    /// grant again.
    #[cfg(any(feature = "seal", test))]
    pub fn push(&self, account: u32, handle: u64) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.forget();
        if queue.known.insert(handle) {
            if let Some(dropped) = queue.turns.push(account, handle) {
                queue.known.remove(&dropped);
            }
            self.arrived.notify_one();
        }
    }

    /// Waits until there is a grant, and removes and returns its handle. Accounts with waiting grants take turns.
    pub async fn take(&self) -> u64 {
        loop {
            if let Some(handle) = self.try_take() {
                return handle;
            }
            self.arrived.notified().await;
        }
    }

    fn try_take(&self) -> Option<u64> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.forget();
        let handle = queue.turns.pop()?;
        queue.taken.push_back((Instant::now(), handle));
        Some(handle)
    }
}

impl Queue {
    fn forget(&mut self) {
        while let Some((_, handle)) = self.taken.front().filter(|(at, _)| at.elapsed() >= AGAIN) {
            self.known.remove(handle);
            self.taken.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_account_delays_no_other() {
        let unnamed = Unnamed::default();
        for handle in 0..100_000 {
            unnamed.push(1, handle);
        }
        unnamed.push(2, 1_000_000);
        assert_eq!([unnamed.try_take(), unnamed.try_take()], [Some(0), Some(1_000_000)]);
    }

    #[test]
    fn a_grant_waits_once_and_is_asked_for_once_a_second() {
        let unnamed = Unnamed::default();
        for _ in 0..1000 {
            unnamed.push(1, 7);
        }
        assert_eq!(unnamed.try_take(), Some(7));
        unnamed.push(1, 7);
        assert_eq!(unnamed.try_take(), None);
        for taken in &mut unnamed.queue.lock().expect("no panic").taken {
            taken.0 -= AGAIN;
        }
        unnamed.push(1, 7);
        assert_eq!(unnamed.try_take(), Some(7));
    }

    #[test]
    fn what_was_dropped_for_lack_of_room_can_come_again() {
        let unnamed = Unnamed::default();
        for handle in 0..=ROOM as u64 {
            unnamed.push(1, handle);
        }
        assert_eq!(unnamed.try_take(), Some(0));
        unnamed.push(1, ROOM as u64);
        assert_eq!(std::iter::from_fn(|| unnamed.try_take()).last(), Some(ROOM as u64));
    }
}
