//! The work that is queued for a storage thread: a queue for each account, and the grants of the journal.

use super::journaled::{Due, Journaled, JournaledGrants};
use super::{LINE, MOST_TOGETHER, Waiting, gone, unsettled};
use crate::storage::journal::Journal;
use crate::storage::{Database, TokenHash};
use anyhow::Result;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// A unit of work for a thread.
pub(super) enum Job {
    Work(Box<dyn FnOnce(&mut Database) + Send>),
    Grant(Box<Waiting>),
}

/// The work that a thread does next.
pub(super) enum Turn {
    Work(Box<dyn FnOnce(&mut Database) + Send>, OwnedSemaphorePermit),
    Grants(Vec<(Box<Waiting>, OwnedSemaphorePermit)>),
    Journaled(Vec<Journaled>),
}

/// The queued work, by account, and the grants of the journal that are to be recorded.
pub(super) struct Lines {
    waiting: Mutex<Queue>,
    more: Condvar,
    /// Whether the journal has accepted grants that the thread possibly has not noticed.
    has_unnoticed: AtomicBool,
    /// How many of the grants that the journal has accepted are recorded.
    recorded: watch::Sender<u64>,
}

struct Queue {
    lines: HashMap<Arc<str>, Line>,
    /// The names of the queues that have work, in the order in which they are served.
    turns: VecDeque<Arc<str>>,
    ends: bool,
    /// Whether the thread is doing work other than recording grants.
    is_at_work: bool,
    journaled: JournaledGrants,
}

pub(super) struct Line {
    jobs: VecDeque<(Job, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
}

impl Lines {
    /// Creates empty queues. Without a journal, every grant is recorded before its client gets it.
    pub fn new(journal: Option<Journal>) -> Self {
        let waiting = Queue {
            lines: HashMap::new(),
            turns: VecDeque::new(),
            ends: false,
            is_at_work: false,
            journaled: JournaledGrants::new(journal),
        };
        Self {
            waiting: Mutex::new(waiting),
            more: Condvar::new(),
            has_unnoticed: AtomicBool::new(false),
            recorded: watch::Sender::new(0),
        }
    }

    /// Returns the semaphore that limits the length of a queue.
    pub fn room(&self, whose: &Arc<str>) -> Arc<Semaphore> {
        match self.lock().lines.get(whose) {
            Some(line) => line.room.clone(),
            None => Arc::new(Semaphore::new(LINE)),
        }
    }

    /// Appends work to a queue.
    pub fn add(&self, whose: Arc<str>, job: Job, room: OwnedSemaphorePermit) -> Result<()> {
        let mut queue = self.lock();
        if queue.ends {
            return Err(gone());
        }
        let semaphore = room.semaphore().clone();
        let line = queue.lines.entry(whose.clone()).or_insert_with(|| Line { jobs: VecDeque::new(), room: semaphore });
        line.jobs.push_back((job, room));
        if line.jobs.len() == 1 {
            queue.turns.push_back(whose);
        }
        drop(queue);
        self.more.notify_one();
        Ok(())
    }

    /// Writes a grant to the journal if the thread is idle, no work is queued, and `still` returns true, which means
    /// that the grant's basis has not ended. All work that is queued later finds the grant recorded. Reports whether the
    /// journal has the grant.
    pub fn journal(&self, grant: Journaled, still: impl FnOnce() -> bool) -> bool {
        let mut queue = self.lock();
        let is_idle = !queue.ends && !queue.is_at_work && queue.turns.is_empty();
        let is_accepted = is_idle && still() && queue.journaled.accept(grant);
        self.has_unnoticed.fetch_or(is_accepted, Ordering::Relaxed);
        is_accepted
    }

    /// Wakes the thread if the journal has accepted grants since the last call.
    pub fn wake(&self) {
        if self.has_unnoticed.load(Ordering::Relaxed) && self.has_unnoticed.swap(false, Ordering::Relaxed) {
            self.more.notify_one();
        }
    }

    /// Makes the thread record the grants of the journal at once. With `session`, does so only if one of these grants
    /// belongs to that session. Returns a receiver that shows the number of recorded grants, and the value that this
    /// number has when all grants of the journal are recorded. Returns `None` if the caller need not wait.
    ///
    /// # Errors
    /// Fails if the grants could not be recorded a short time ago.
    pub fn hurry(&self, session: Option<&TokenHash>) -> Result<Option<(watch::Receiver<u64>, u64)>> {
        let mut queue = self.lock();
        if session.is_some_and(|session| !queue.journaled.has(session)) {
            return Ok(None);
        }
        let accepted = queue.journaled.hurry();
        drop(queue);
        let accepted = accepted.ok_or_else(unsettled)?;
        if *self.recorded.borrow() >= accepted {
            return Ok(None);
        }
        self.more.notify_one();
        Ok(Some((self.recorded.subscribe(), accepted)))
    }

    /// Notes for sessions how many more of their grants may be recorded.
    pub fn note_room<'s>(&self, rooms: impl IntoIterator<Item = (&'s TokenHash, u32)>) {
        let mut queue = self.lock();
        rooms.into_iter().for_each(|(session, room)| queue.journaled.note_room(session, room));
    }

    /// Forgets the sessions that are not in `live`.
    pub fn keep_rooms(&self, live: &HashSet<TokenHash>) {
        self.lock().journaled.keep_rooms(live);
    }

    /// Notes that `count` more grants of the journal are recorded.
    pub fn note_recorded(&self, count: usize) {
        self.lock().journaled.note_recorded();
        self.recorded.send_modify(|recorded| *recorded += count as u64);
    }

    /// Puts grants that the thread could not record back into the list of grants to record. The thread tries again
    /// later.
    pub fn put_back(&self, grants: Vec<Journaled>) {
        self.lock().journaled.put_back(grants);
    }

    /// Ends the queues when their thread has ended, also by a panic. Callers whose work is still queued get an error,
    /// because their channels are dropped.
    pub fn abandon(&self) {
        let mut queue = self.lock();
        queue.ends = true;
        queue.turns.clear();
        let left = std::mem::take(&mut queue.lines);
        drop(queue);
        drop(left);
    }

    /// Makes the thread end once no work is queued.
    pub fn end(&self) {
        self.lock().ends = true;
        self.more.notify_one();
    }

    /// Waits for work. Returns `None` if the thread must end.
    pub fn take(&self) -> Option<Turn> {
        let mut queue = self.lock();
        queue.is_at_work = false;
        loop {
            let has_other_work = queue.ends || !queue.turns.is_empty();
            let wait = match queue.journaled.due(has_other_work) {
                Due::Now(grants) => return Some(Turn::Journaled(grants)),
                Due::In(wait) => Some(wait),
                Due::Never => None,
            };
            match queue.next(|_| true) {
                Some((Job::Work(work), room)) => {
                    queue.is_at_work = true;
                    return Some(Turn::Work(work, room));
                }
                Some((Job::Grant(first), room)) => {
                    let mut grants = vec![(first, room)];
                    queue.add_grants(&mut grants);
                    return Some(Turn::Grants(grants));
                }
                None if queue.ends => return None,
                None => {
                    queue = match wait {
                        None => self.more.wait(queue).unwrap_or_else(PoisonError::into_inner),
                        Some(wait) => self.more.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0,
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Returns the first job of the next queue if the job is `wanted`. In any case, the queue goes to the end of the
    /// order if it still has work.
    fn next(&mut self, wanted: impl Fn(&Job) -> bool) -> Option<(Job, OwnedSemaphorePermit)> {
        let whose = self.turns.pop_front()?;
        let line = self.lines.get_mut(&whose)?;
        let found = if line.jobs.front().is_some_and(|(job, _)| wanted(job)) { line.jobs.pop_front() } else { None };
        if line.jobs.is_empty() {
            self.lines.remove(&whose);
        } else {
            self.turns.push_back(whose);
        }
        found
    }

    /// Adds grants from the heads of other queues, at most one from each, because more from one account would delay the
    /// others.
    fn add_grants(&mut self, grants: &mut Vec<(Box<Waiting>, OwnedSemaphorePermit)>) {
        for _ in 0..self.turns.len().min(MOST_TOGETHER - 1) {
            if let Some((Job::Grant(grant), room)) = self.next(|job| matches!(job, Job::Grant(_))) {
                grants.push((grant, room));
            }
        }
    }
}

#[cfg(test)]
impl Lines {
    /// Reports whether the thread could not record grants of the journal.
    pub fn has_failed(&self) -> bool {
        self.lock().journaled.hurry().is_none()
    }

    /// Reports whether the thread waits for work.
    pub fn is_idle(&self) -> bool {
        let queue = self.lock();
        !queue.is_at_work && queue.turns.is_empty()
    }

    /// Creates an empty queue for an account. The semaphore `room` limits the length of the queue.
    pub fn hold(&self, whose: &str, room: Arc<Semaphore>) {
        let line = Line { jobs: VecDeque::new(), room };
        assert!(self.lock().lines.insert(whose.into(), line).is_none(), "{whose} has work queued");
    }
}
