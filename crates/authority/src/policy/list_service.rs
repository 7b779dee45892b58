//! Puts the lists in force at the running server.

use super::candidate::into_huge_pages;
use super::{Enforcer, PolicyInForce};
use crate::grants::GrantIssuer;
use crate::lists::{Follower, Store, Touched};
use crate::login::Sessions;
use crate::push::events::{Listener, Push};
use crate::storage::{Database, Storage};
use crate::sync::Synchroniser;
use crate::{Directory, now};
use anyhow::Result;
use api::Event;
use shell::table::count;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of people whose grants are evaluated one by one. If there are more people, all grants are evaluated.
const MOST_PEOPLE: usize = 64;
/// Maximum time that the server spends on merging changes of the lists, each second.
const FOLD: Duration = Duration::from_millis(300);
/// The reason for revocations in the audit trail.
const WHY: &str = "a list changed";

/// Puts the lists in force: the entries of the file `lists.db`, which say who may reach which addresses. A member of a
/// cluster has no lists.
pub struct ListService {
    pub(crate) directory: Arc<Directory>,
    pub(crate) is_member: bool,
    pub(crate) storage: Arc<Storage>,
    pub(crate) policy: Arc<PolicyInForce>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) grants: Arc<GrantIssuer>,
    pub(crate) enforcer: Arc<Enforcer>,
    pub(crate) push: Arc<Push>,
    pub(crate) sync: Arc<Synchroniser>,
    pub(crate) follower: Arc<Mutex<Follower>>,
    pub(crate) state: FollowState,
}

/// How far the server has followed the lists.
#[derive(Default)]
pub struct FollowState {
    /// Locked while a task follows the lists, so that only one task does so at a time.
    turn: tokio::sync::Mutex<()>,
    /// The time up to which the server has revoked the grants of entries that have ended.
    evaluated: AtomicU64,
    /// Whether there may be grants that the lists in force forbid.
    unfinished: AtomicBool,
}

impl ListService {
    /// Puts the lists in force when the server starts. Grants are evaluated afterwards.
    ///
    /// # Errors
    /// Fails if the file of lists cannot be read.
    pub async fn load(&self) -> Result<()> {
        let _turn = self.state.turn.lock().await;
        self.state.evaluated.store(now(), Ordering::SeqCst);
        self.read().await.map(drop)
    }

    /// Puts changes of the lists in force, and revokes the grants that they forbid. Returns a sentence for the
    /// operator.
    ///
    /// # Errors
    /// Fails if the file of lists cannot be read, or the database cannot be read or written.
    pub async fn follow(&self) -> Result<String> {
        let _turn = self.state.turn.lock().await;
        let (touched, time) = (self.read().await?, now());
        let (entries, ended) = {
            let policy = self.policy.read().await;
            let lists = policy.lists();
            (lists.len(), lists.any_ends(self.state.evaluated.load(Ordering::SeqCst), time))
        };
        if ended {
            self.state.unfinished.store(true, Ordering::SeqCst);
        }
        let revoked = match &touched {
            None if !self.state.unfinished.load(Ordering::SeqCst) => 0,
            Some(Touched { persons, all: false }) if !ended => {
                let people = self.sessions.logged_in(persons);
                if people.len() <= MOST_PEOPLE { self.cut(&people).await? } else { self.evaluate().await? }
            }
            _ => self.evaluate().await?,
        };
        self.state.evaluated.store(time, Ordering::SeqCst);
        self.state.unfinished.store(false, Ordering::SeqCst);
        Ok(format!("in force: {}; {} revoked", of(entries), count(revoked, "grant")))
    }

    /// Follows the lists and maintains their file, as a task of its own: reading a list of many entries takes minutes.
    /// The server calls this every second.
    pub fn tick(self: &Arc<Self>) {
        if self.is_member || self.state.turn.try_lock().is_err() {
            return;
        }
        let service = self.clone();
        tokio::spawn(async move {
            if let Err(error) = service.maintain().await {
                tracing::error!("cannot follow the lists; trying again: {error:#}");
            }
        });
    }

    async fn maintain(&self) -> Result<()> {
        self.follow().await?;
        let follower = self.follower.clone();
        let fold = move || {
            let mut follower = follower.lock().unwrap_or_else(PoisonError::into_inner);
            follower.fold(Instant::now() + FOLD)?;
            follower.is_unaudited()
        };
        if tokio::task::spawn_blocking(fold).await?? {
            let directory = self.directory.clone();
            let settle = move |database: &mut Database| {
                // A command that holds the lock writes its entry itself.
                let Ok(_lock) = Store::lock(&directory) else { return Ok(()) };
                Store::open(&directory)?.map_or(Ok(()), |store| store.settle_audit(database))
            };
            self.storage.call(settle).await?;
        }
        Ok(())
    }

    /// Reads the changes of the file and puts them in force.
    async fn read(&self) -> Result<Option<Touched>> {
        if self.is_member {
            return Ok(None);
        }
        let follower = self.follower.clone();
        let follow = move || follower.lock().unwrap_or_else(PoisonError::into_inner).follow();
        let Some((lists, touched)) = tokio::task::spawn_blocking(follow).await?? else { return Ok(None) };
        let was_unfinished = self.state.unfinished.swap(true, Ordering::SeqCst);
        let before = {
            let mut policy = self.policy.write().await;
            // A grant that was decided before this line is not recorded afterwards, but decided again.
            self.storage.end_basis();
            policy.set_lists(lists)
        };
        // A list of many entries takes seconds to free.
        tokio::task::spawn_blocking(move || drop(before));
        if touched.all {
            into_huge_pages();
        }
        Ok(Some(Touched { all: touched.all || was_unfinished, ..touched }))
    }

    /// Revokes the grants of all people that are no longer allowed.
    async fn evaluate(&self) -> Result<usize> {
        Ok(self.enforcer.reevaluate(WHY).await?.revoked)
    }

    /// Revokes the grants of some people that are no longer allowed, and makes their agents read their destinations
    /// again.
    async fn cut(&self, people: &[String]) -> Result<usize> {
        let mut revoked = 0;
        for person in people {
            let forbidden = self.grants.forbidden_of(person, now()).await?;
            revoked += forbidden.len();
            if !forbidden.is_empty() {
                let revoke = move |database: &mut Database| database.revoke_forbidden(&forbidden, WHY, now());
                self.storage.revoke_for(person, revoke).await?;
            }
        }
        if !people.is_empty() {
            self.sync.run().await?;
        }
        for token in people.iter().flat_map(|person| self.sessions.tokens_of(person)) {
            self.push.send(&Listener::Session(token), &Event::Policy);
        }
        Ok(revoked)
    }
}

fn of(entries: usize) -> String {
    if entries == 1 { "1 entry of lists".to_owned() } else { format!("{entries} entries of lists") }
}
