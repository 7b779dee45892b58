//! The database for tasks: one thread does the work that writes, another what only reads. Work waits in a line for each account,
//! and the lines have turns: an account that asks for much waits behind itself.

use super::{Database, Issuance, Recorded};
use anyhow::{Context, Result, anyhow};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

/// Grants that are recorded together, at most: the next in turn waits for them.
const MOST_TOGETHER: usize = 64;
/// Work of one account that waits in its line; more waits to get there.
const LINE: usize = 64;
/// The line of the authority itself.
const OWN: &str = "";

/// What a thread is to do.
enum Job {
    Work(Box<dyn FnOnce(&mut Database) + Send>),
    Grant(Box<Waiting>),
}

/// A grant that waits to be recorded.
struct Waiting {
    grant: Issuance,
    answer: oneshot::Sender<Result<Recorded>>,
}

/// The database for tasks.
#[derive(Clone)]
pub struct Storage {
    writer: Arc<Worker>,
    reader: Arc<Worker>,
}

impl Storage {
    /// Starts the threads. They end when the last clone is dropped, or with [`Self::close`].
    pub fn start(database: Database) -> Result<Self> {
        let reader = Arc::new(Worker::start("storage-reads", database.reader()?)?);
        Ok(Self { writer: Arc::new(Worker::start("storage", database)?), reader })
    }

    /// Records a grant, together with others that wait at the same time. Done even if the caller goes away.
    pub async fn add_grant(&self, grant: Issuance) -> Result<Recorded> {
        let (answer, answered) = oneshot::channel();
        let person: Arc<str> = grant.owner.person.as_str().into();
        self.writer.send(person, Job::Grant(Box::new(Waiting { grant, answer }))).await?;
        answered.await.map_err(|_| gone())?
    }

    /// Closes the database once all work before this is done.
    pub async fn close(&self) {
        self.reader.close().await;
        self.writer.close().await;
    }

    /// Does some work of the authority's own with the database. Work that was begun is done even if the caller goes away.
    pub async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer.call(OWN, work).await
    }

    /// As [`Self::call`], for a person: it waits in the person's line.
    pub async fn call_for<T: Send + 'static>(
        &self,
        person: &str,
        work: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer.call(person, work).await
    }

    /// Reads for a person, beside the work that writes.
    pub async fn read_for<T: Send + 'static>(
        &self,
        person: &str,
        work: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.reader.call(person, work).await
    }
}

/// A thread with a database, and the work that waits for it.
struct Worker {
    lines: Arc<Lines>,
    /// Nobody sends: it closes when the thread has closed its database.
    closed: watch::Receiver<()>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.lines.end();
    }
}

impl Worker {
    fn start(name: &str, mut database: Database) -> Result<Self> {
        let lines = Arc::new(Lines::default());
        let (open, closed) = watch::channel(());
        let taken = lines.clone();
        std::thread::Builder::new().name(name.into()).spawn(move || {
            while let Some(turn) = taken.take() {
                match turn {
                    Turn::Work(work, _room) => work(&mut database),
                    Turn::Grants(waiting) => record(&mut database, waiting),
                }
            }
            // First: a caller that waits for the end finds the file closed.
            drop(database);
            drop(open);
        })?;
        Ok(Self { lines, closed })
    }

    async fn call<T: Send + 'static>(
        &self,
        whose: &str,
        work: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        self.send(whose.into(), Job::Work(Box::new(move |database| drop(answer.send(work(database)))))).await?;
        answered.await.map_err(|_| gone())?
    }

    async fn send(&self, whose: Arc<str>, job: Job) -> Result<()> {
        let room = self.lines.room(&whose).acquire_owned().await?;
        self.lines.add(whose, job, room)
    }

    async fn close(&self) {
        self.lines.end();
        // Nothing is ever sent: it fails once the thread is gone.
        let _ = self.closed.clone().changed().await;
    }
}

/// What a thread does next.
enum Turn {
    Work(Box<dyn FnOnce(&mut Database) + Send>, OwnedSemaphorePermit),
    Grants(Vec<(Box<Waiting>, OwnedSemaphorePermit)>),
}

/// The work that waits, by whose it is.
#[derive(Default)]
struct Lines {
    waiting: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    lines: HashMap<Arc<str>, Line>,
    /// The lines with work in them, the next in turn first.
    turns: VecDeque<Arc<str>>,
    ends: bool,
}

struct Line {
    jobs: VecDeque<(Job, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
}

impl Lines {
    /// The room in a line.
    fn room(&self, whose: &Arc<str>) -> Arc<Semaphore> {
        match self.lock().lines.get(whose) {
            Some(line) => line.room.clone(),
            None => Arc::new(Semaphore::new(LINE)),
        }
    }

    /// Puts work at the end of a line.
    fn add(&self, whose: Arc<str>, job: Job, room: OwnedSemaphorePermit) -> Result<()> {
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

    /// Has the thread end once no work waits.
    fn end(&self) {
        self.lock().ends = true;
        self.more.notify_one();
    }

    /// Waits for work; none if there will be no more.
    fn take(&self) -> Option<Turn> {
        let mut queue = self.lock();
        loop {
            match queue.next(|_| true) {
                Some((Job::Work(work), room)) => return Some(Turn::Work(work, room)),
                Some((Job::Grant(first), room)) => {
                    let mut grants = vec![(first, room)];
                    queue.add_grants(&mut grants);
                    return Some(Turn::Grants(grants));
                }
                None if queue.ends => return None,
                None => queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// The first work of the line whose turn it is, if it is `wanted`; the line's next turn comes after those of all others.
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

    /// Adds grants that wait at the head of their lines, one of each: more of one account's would make the others wait longer.
    fn add_grants(&mut self, grants: &mut Vec<(Box<Waiting>, OwnedSemaphorePermit)>) {
        for _ in 0..self.turns.len().min(MOST_TOGETHER - 1) {
            if let Some((Job::Grant(grant), room)) = self.next(|job| matches!(job, Job::Grant(_))) {
                grants.push((grant, room));
            }
        }
    }
}

/// Records grants in one transaction.
fn record(database: &mut Database, waiting: Vec<(Box<Waiting>, OwnedSemaphorePermit)>) {
    match database.add_grants(waiting.iter().map(|(waiting, _)| &waiting.grant)) {
        Ok(recorded) => {
            for ((waiting, _), recorded) in waiting.into_iter().zip(recorded) {
                drop(waiting.answer.send(Ok(recorded)));
            }
        }
        // One whose handle is taken, for instance. None of them is recorded: each by itself, so that it takes no other along.
        Err(error) if is_about_one(&error) => {
            for (waiting, _) in waiting {
                let recorded = database.add_grants([&waiting.grant]).and_then(|recorded| {
                    recorded.into_iter().next().context("a grant was neither recorded nor refused")
                });
                drop(waiting.answer.send(recorded));
            }
        }
        // The disk is full, or another process holds the database: to try each would take as many times as long.
        Err(error) => {
            for (waiting, _) in waiting {
                drop(waiting.answer.send(Err(anyhow!("{error:#}"))));
            }
        }
    }
}

/// Whether a statement failed because of what it was to write.
fn is_about_one(error: &anyhow::Error) -> bool {
    let code = error.downcast_ref().and_then(rusqlite::Error::sqlite_error_code);
    code == Some(rusqlite::ErrorCode::ConstraintViolation)
}

fn gone() -> anyhow::Error {
    anyhow!("the storage thread is gone")
}
