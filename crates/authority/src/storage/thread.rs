//! Asynchronous access to the database. One thread writes, and another thread only reads. Each account has its own
//! queue for work. The threads serve the queues in turn, so that an account with many requests delays only itself.
//!
//! A task must not hold a lock that accounts share while it waits for an account's queue ([`Storage::call_for`],
//! [`Storage::read_for`], [`Storage::add_grant`]): an account that fills its queue would delay everybody. Two rules
//! take the place of such a lock. A grant is recorded only if the [`Basis`] that it was decided on has not ended. And
//! tables in memory that repeat the database are changed only by the thread that writes, in the order of its writes.
//! Work that ends a person's access has a queue of its own ([`Storage::revoke_for`]), because the person can fill their
//! other queue.
//!
//! An authority that is in no cluster writes a grant to the journal ([`Storage::journal_grant`]) and gives it to the
//! client; the thread records it soon afterwards. The client waits for one write to a file instead of a transaction.
//!
//! In a cluster, other members change the database, too. The server calls [`Storage::set_followed`] to state the last
//! entry of the log that its memory reflects. A *decisive* entry changes what decisions depend on. A grant that was
//! decided before such an entry is not recorded after it.

mod journaled;
mod lines;

use super::journal::Journal;
use super::{Database, Issuance, Recorded, TokenHash, Unavailable, is_about_one};
use crate::now;
use anyhow::{Context, Result, anyhow};
use journaled::Journaled;
use lines::{Job, Lines, Turn};
use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot, watch};

/// Maximum number of grants recorded in one transaction. Other work waits until it ends.
const MOST_TOGETHER: usize = 64;
/// Capacity of an account's queue. Tasks with further work wait until there is room.
const LINE: usize = 64;
/// Maximum time for which a decision waits until memory reflects what other members of the cluster have recorded.
const FOLLOWS: Duration = Duration::from_secs(4);
/// Maximum time for which a reader waits until the grants of the journal are recorded.
const SETTLES: Duration = Duration::from_secs(1);
/// The name of the queue for the authority's own work.
const OWN: &str = "";
/// Number of counters of ended bases. Several people share a counter, and nobody can choose with whom they share it.
const COUNTERS: usize = 1024;

/// Returns the name of a verifier's queue. No person's queue has the same name, because names of persons contain no
/// space.
pub fn verifiers_line(verifier: &str) -> String {
    format!("verifier {verifier}")
}

/// Returns the name of the queue for work that ends a person's access. No other queue has the same name.
pub(crate) fn revocations_line(person: &str) -> String {
    format!("revocations {person}")
}

/// Identifies the state on which the authority decides a grant of a person: policy, sessions and keys, and the person's
/// choices and consents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Basis {
    ended: Ended,
    /// The number of the last entry of the cluster's log that memory reflects.
    followed: u64,
}

/// How many bases this process has ended so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ended {
    /// How many times the process has ended the basis of all people.
    of_all: u64,
    /// How many times the process has ended the basis of the person, or of somebody else with the same counter.
    of_person: u64,
}

/// Counts the bases that this process has ended.
struct Bases {
    of_all: AtomicU64,
    of_people: Vec<AtomicU64>,
    state: RandomState,
}

impl Default for Bases {
    fn default() -> Self {
        let of_people = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        Self { of_all: AtomicU64::new(0), of_people, state: RandomState::new() }
    }
}

impl Bases {
    fn of(&self, person: &str) -> &AtomicU64 {
        &self.of_people[self.state.hash_one(person) as usize % COUNTERS]
    }

    fn ended(&self, person: &str) -> Ended {
        Ended { of_all: self.of_all.load(Ordering::SeqCst), of_person: self.of(person).load(Ordering::SeqCst) }
    }
}

/// A grant that waits to be recorded.
struct Waiting {
    grant: Issuance,
    basis: Basis,
    /// The thread calls this with the result, unless the basis has ended or the database failed.
    begin: Box<dyn FnOnce(Recorded) + Send>,
    answer: oneshot::Sender<Result<Recorded>>,
}

impl Waiting {
    /// Returns the grant, and the last entry of the cluster's log that the decision reflects.
    fn decided(&self) -> (&Issuance, u64) {
        (&self.grant, self.basis.followed)
    }

    /// Tells the caller the result. Before that, calls `begin` with the result, unless the result is
    /// [`Recorded::Outdated`].
    fn answer(self, recorded: Recorded) {
        if recorded != Recorded::Outdated {
            (self.begin)(recorded);
        }
        drop(self.answer.send(Ok(recorded)));
    }
}

/// Asynchronous access to the database, through one thread that writes and one that reads. Clones share these threads.
#[derive(Clone)]
pub struct Storage {
    writer: Arc<Worker>,
    reader: Arc<Worker>,
    bases: Arc<Bases>,
    followed: Arc<watch::Sender<u64>>,
    news: Arc<Notify>,
}

impl Storage {
    /// Starts the threads. They end when the last clone is dropped, or after [`Self::close`].
    ///
    /// # Errors
    /// Fails if the database cannot be opened a second time, or a thread cannot be started.
    pub fn start(mut database: Database) -> Result<Self> {
        let (bases, news) = (Arc::<Bases>::default(), Arc::<Notify>::default());
        // The server reads its memory from the database later.
        let followed = Arc::new(watch::Sender::new(database.applied()?));
        let journal = database.take_journal()?;
        let start = |name, database, journal| Worker::start(name, database, journal, bases.clone(), news.clone());
        let reader = Arc::new(start("storage-reads", database.reader()?, None)?);
        let writer = Arc::new(start("storage", database, journal)?);
        Ok(Self { writer, reader, bases, followed, news })
    }

    /// Records that the server's memory reflects the entries of the cluster's log up to `number`.
    pub fn set_followed(&self, number: u64) {
        self.followed.send_if_modified(|followed| {
            let is_later = number > *followed;
            *followed = number.max(*followed);
            is_later
        });
    }

    /// Waits until the server's memory reflects the entries of the cluster's log up to `number`.
    ///
    /// # Errors
    /// Fails with [`Unavailable`] if this takes too long.
    pub async fn followed(&self, number: u64) -> Result<()> {
        let mut followed = self.followed.subscribe();
        let waited = tokio::time::timeout(FOLLOWS, followed.wait_for(|followed| *followed >= number)).await;
        let late = || {
            let why = "this member has not yet applied the changes that other members have recorded".to_owned();
            Unavailable { why, maybe_done: false }
        };
        waited.ok().and_then(Result::ok).ok_or_else(late)?;
        Ok(())
    }

    /// Waits until the server's memory reflects everything that the database contains now.
    ///
    /// # Errors
    /// Fails with [`Unavailable`] if this takes too long. Also fails if the database cannot be read.
    pub async fn wait_until_current(&self) -> Result<()> {
        let applied = self.call(|database| database.applied()).await?;
        self.followed(applied).await
    }

    /// Returns a [`Notify`] that is notified when a write has applied changes that this process did not make.
    /// [`Database::take_changes`] then returns these changes.
    pub fn news(&self) -> Arc<Notify> {
        self.news.clone()
    }

    /// Returns the basis for a decision that begins now, about a request of this person. The caller must call this
    /// method before it reads anything on which the decision depends.
    pub fn basis(&self, person: &str) -> Basis {
        let followed = *self.followed.borrow();
        Basis { ended: self.bases.ended(person), followed }
    }

    /// Ends the current basis of all people, so that grants that were decided on it are no longer recorded. Must be
    /// called after a change has taken effect, and before the caller reads the grants that the change possibly forbids.
    pub fn end_basis(&self) {
        self.bases.of_all.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the current basis of one person, as [`Self::end_basis`] does, for a change that concerns nobody else.
    /// People can cause such changes, so these must not make the authority decide everybody's requests again.
    pub fn end_basis_of(&self, person: &str) {
        self.bases.of(person).fetch_add(1, Ordering::SeqCst);
    }

    /// Records a grant, together with others that are waiting, if its basis has not ended. Completes even if the caller
    /// is cancelled. The thread then calls `begin` with the result, unless the grant's basis has ended or the database
    /// cannot be written.
    ///
    /// # Errors
    /// Fails if the database cannot be written, or the threads have ended.
    pub async fn add_grant(
        &self,
        grant: Issuance,
        basis: Basis,
        begin: impl FnOnce(Recorded) + Send + 'static,
    ) -> Result<Recorded> {
        let (answer, answered) = oneshot::channel();
        let (person, begin): (Arc<str>, _) = (grant.owner.person.as_str().into(), Box::new(begin));
        self.writer.send(person, Job::Grant(Box::new(Waiting { grant, basis, begin, answer }))).await?;
        answered.await.map_err(|_| gone())?
    }

    /// Writes a grant to the journal. The caller may then give the grant to its client at once, and must call
    /// [`Self::wake`] afterwards. The thread records the grant before any work that is queued later; after a crash, the
    /// next start records it. Returns false if the grant must be recorded by [`Self::add_grant`] instead, for example
    /// because the thread is busy, the grant's basis has ended, or the thread does not know whether the session has
    /// room for the grant.
    ///
    /// The thread calls `begin` when it has recorded the grant, with [`Recorded::Renewable`], [`Recorded::Done`], or
    /// [`Recorded::SessionEnded`]. In the last case, the grant is recorded as revoked, and `begin` must tell the
    /// verifier.
    pub fn journal_grant(&self, grant: Issuance, basis: Basis, begin: impl FnOnce(Recorded) + Send + 'static) -> bool {
        let person = grant.owner.person.clone();
        let still = || basis.ended == self.bases.ended(&person);
        let (begin, has_waited) = (Box::new(begin), false);
        self.writer.lines.journal(Journaled { grant, basis, has_waited, begin }, still)
    }

    /// Makes the thread notice that the journal has accepted grants.
    pub fn wake(&self) {
        self.writer.lines.wake();
    }

    /// Forgets how many grants can be recorded in the sessions that are not in `live`.
    pub fn keep_sessions(&self, live: &HashSet<TokenHash>) {
        self.writer.lines.keep_rooms(live);
    }

    /// Waits until the grants that the journal has accepted are recorded, so that [`Database::open_to_read`] finds
    /// them.
    ///
    /// # Errors
    /// Fails with [`Unavailable`] if they cannot be recorded.
    pub async fn settle(&self) -> Result<()> {
        self.settle_some(None).await
    }

    /// Waits until all grants that the journal has accepted for a session are recorded, so that they can be renewed.
    ///
    /// # Errors
    /// Fails with [`Unavailable`] if they cannot be recorded.
    pub async fn settle_session(&self, session: &TokenHash) -> Result<()> {
        self.settle_some(Some(session)).await
    }

    async fn settle_some(&self, session: Option<&TokenHash>) -> Result<()> {
        let Some((mut recorded, accepted)) = self.writer.lines.hurry(session)? else { return Ok(()) };
        let waited = tokio::time::timeout(SETTLES, recorded.wait_for(|recorded| *recorded >= accepted)).await;
        waited.ok().and_then(Result::ok).map(drop).ok_or_else(unsettled)
    }

    /// Closes the database after all queued work is done.
    pub async fn close(&self) {
        self.reader.close().await;
        self.writer.close().await;
    }

    /// Runs work with the database in the authority's own queue. Work that is queued completes even if the caller is
    /// cancelled.
    ///
    /// # Errors
    /// Fails if `work` failed, or the thread has ended.
    pub async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer.call(OWN, work).await
    }

    /// Runs work with the database in the queue of a person; see [`Self::call`].
    ///
    /// # Errors
    /// Fails if `work` failed, or the thread has ended.
    pub async fn call_for<T: Send + 'static>(
        &self,
        person: &str,
        work: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer.call(person, work).await
    }

    /// Runs work that ends access of a person. This work has a separate queue, because the person can fill their own
    /// queue. See [`Self::call`].
    ///
    /// # Errors
    /// Fails if `work` failed, or the thread has ended.
    pub async fn revoke_for<T: Send + 'static>(
        &self,
        person: &str,
        work: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer.call(&revocations_line(person), work).await
    }

    /// Runs read-only work in the queue of a person, concurrently with work that writes.
    ///
    /// # Errors
    /// Fails if `work` failed, the thread has ended, or the grants of the journal cannot be recorded.
    pub async fn read_for<T: Send + 'static>(
        &self,
        person: &str,
        work: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.settle().await?;
        self.reader.call(person, work).await
    }

    /// Runs read-only work in the queue of a verifier; see [`Self::read_for`].
    ///
    /// # Errors
    /// Fails if `work` failed, the thread has ended, or the grants of the journal cannot be recorded.
    pub async fn read_for_verifier<T: Send + 'static>(
        &self,
        verifier: &str,
        work: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.settle().await?;
        self.reader.call(&verifiers_line(verifier), work).await
    }
}

/// A thread with its database connection, and the work queued for it.
struct Worker {
    lines: Arc<Lines>,
    /// Closes when the thread has closed its database. Carries no messages.
    closed: watch::Receiver<()>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.lines.end();
    }
}

impl Worker {
    fn start(
        name: &str,
        mut database: Database,
        journal: Option<Journal>,
        bases: Arc<Bases>,
        news: Arc<Notify>,
    ) -> Result<Self> {
        let lines = Arc::new(Lines::new(journal));
        let (open, closed) = watch::channel(());
        let taken = lines.clone();
        std::thread::Builder::new().name(name.into()).spawn(move || {
            let _ends = Ends(taken.clone());
            while let Some(turn) = taken.take() {
                match turn {
                    Turn::Work(work, _room) => work(&mut database),
                    Turn::Grants(waiting) => record(&mut database, &taken, still_based(&bases, waiting)),
                    Turn::Journaled(grants) => record_journaled(&mut database, &taken, &bases, grants),
                }
                if database.has_changes() {
                    news.notify_one();
                }
            }
            // The database is dropped before `open`, so that a caller that waits for the thread's end finds the file
            // closed.
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
        // No message is ever sent: `changed` fails once the thread has ended.
        let _ = self.closed.clone().changed().await;
    }
}

/// Ends the queues of a thread when the thread ends.
struct Ends(Arc<Lines>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Returns the grants whose basis has not ended. Tells the callers of the other grants that these are outdated.
fn still_based(
    bases: &Bases,
    waiting: Vec<(Box<Waiting>, OwnedSemaphorePermit)>,
) -> Vec<(Box<Waiting>, OwnedSemaphorePermit)> {
    let is_current = |of: &Waiting| of.basis.ended == bases.ended(&of.grant.owner.person);
    let (current, outdated): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(waiting, _)| is_current(waiting));
    for (waiting, _) in outdated {
        waiting.answer(Recorded::Outdated);
    }
    current
}

/// Records grants in one transaction.
fn record(database: &mut Database, lines: &Lines, waiting: Vec<(Box<Waiting>, OwnedSemaphorePermit)>) {
    if waiting.is_empty() {
        return;
    }
    match database.add_decided(waiting.iter().map(|(waiting, _)| waiting.decided())) {
        Ok(charged) => {
            lines.note_room(waiting.iter().zip(&charged).map(|((of, _), charged)| (&of.grant.session, charged.room)));
            for ((waiting, _), charged) in waiting.into_iter().zip(charged) {
                waiting.answer(charged.recorded);
            }
        }
        // One of the grants is at fault, for example with a duplicate handle. Nothing was recorded. Each grant is
        // retried alone, so that the fault does not affect the others.
        Err(error) if is_about_one(&error) => {
            for (waiting, _) in waiting {
                let recorded = database.add_decided([waiting.decided()]).and_then(|recorded| {
                    recorded.into_iter().next().context("a grant was neither recorded nor refused")
                });
                match recorded {
                    Ok(charged) => waiting.answer(charged.recorded),
                    Err(error) => drop(waiting.answer.send(Err(error))),
                }
            }
        }
        // The database or the cluster is at fault: the disk is full, another process locks the file, or etcd does not
        // answer. Retrying each grant would multiply the delay.
        Err(error) => {
            for (waiting, _) in waiting {
                let unavailable = error.downcast_ref::<Unavailable>().cloned().map(anyhow::Error::from);
                drop(waiting.answer.send(Err(unavailable.unwrap_or_else(|| anyhow!("{error:#}")))));
            }
        }
    }
}

/// Records grants of the journal in one transaction. A grant that waited while its basis ended is recorded as revoked,
/// because nobody has examined it since.
fn record_journaled(database: &mut Database, lines: &Lines, bases: &Bases, grants: Vec<Journaled>) {
    let is_outdated = |of: &Journaled| of.has_waited && of.basis.ended != bases.ended(&of.grant.owner.person);
    match database.add_journaled(grants.iter().map(|of| (&of.grant, is_outdated(of))), now()) {
        Ok(charged) => {
            lines.note_room(grants.iter().zip(&charged).map(|(of, charged)| (&of.grant.session, charged.room)));
            let count = grants.len();
            grants.into_iter().zip(charged).for_each(|(journaled, charged)| (journaled.begin)(charged.recorded));
            lines.note_recorded(count);
        }
        Err(error) if is_about_one(&error) => {
            let count = grants.len();
            for journaled in grants {
                let recorded = database.add_journaled([(&journaled.grant, is_outdated(&journaled))], now());
                let recorded = recorded.map(|charged| charged.first().map(|charged| charged.recorded));
                if let Err(error) = &recorded {
                    let (handle, person) = (wire::Handle(journaled.grant.owner.handle), &journaled.grant.owner.person);
                    tracing::error!(%handle, person, "a grant cannot be recorded, so it is revoked: {error:#}");
                }
                (journaled.begin)(recorded.ok().flatten().unwrap_or(Recorded::SessionEnded));
            }
            lines.note_recorded(count);
        }
        Err(error) => {
            tracing::error!("cannot record grants that clients have already; the journal keeps them: {error:#}");
            lines.put_back(grants);
        }
    }
}

/// Keeps new work of an account out of its queues until this value is dropped.
#[cfg(test)]
pub(crate) struct Held([Arc<tokio::sync::Semaphore>; 2]);

#[cfg(test)]
impl Drop for Held {
    fn drop(&mut self) {
        self.0.iter().for_each(|room| room.add_permits(LINE));
    }
}

#[cfg(test)]
impl Storage {
    /// Reports whether the thread that writes could not record grants of the journal.
    pub(crate) fn has_failed(&self) -> bool {
        self.writer.lines.has_failed()
    }

    /// Reports whether the thread that writes waits for work.
    pub(crate) fn is_idle(&self) -> bool {
        self.writer.lines.is_idle()
    }

    /// Leaves no room in the queues of an account, so that further work of the account waits. The queues must be empty.
    pub(crate) fn hold(&self, whose: &str) -> Held {
        Held([&self.writer, &self.reader].map(|worker| {
            let room = Arc::new(tokio::sync::Semaphore::new(0));
            worker.lines.hold(whose, room.clone());
            room
        }))
    }
}

/// Returns the error for a caller that needs the grants of the journal in the database. To such a caller, a grant that
/// a client uses would look as if it did not exist.
fn unsettled() -> anyhow::Error {
    Unavailable { why: "the latest grants are not recorded yet".to_owned(), maybe_done: false }.into()
}

fn gone() -> anyhow::Error {
    anyhow!("the storage thread has ended")
}
