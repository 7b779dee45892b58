//! The table of sessions that have not ended, in memory.

use crate::now;
use crate::storage::{Database, Session, Storage, TokenHash};
use anyhow::Result;
use engine::model::random_keys::RandomKeys;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The keys are hashes of tokens, which the authority draws at random.
type Table = RandomKeys<TokenHash, Arc<Session>>;

/// The sessions by the hash of their token. The database is authoritative. Only the storage thread writes this table,
/// in the order of its writes to the database.
#[derive(Default)]
pub struct Sessions {
    table: RwLock<Table>,
    /// How often the table was locked for a change.
    changes: AtomicU64,
}

impl Sessions {
    /// Returns the agent's session with this token. Returns `None` if the session has ended, or if it is a browser's
    /// session at the console.
    pub fn get(&self, token: &TokenHash) -> Option<Arc<Session>> {
        self.any(token).filter(|session| session.ends.is_none())
    }

    /// For each token, returns the agent's session or `None`, as [`Self::get`] does.
    pub fn get_all<'t>(&self, tokens: impl Iterator<Item = &'t TokenHash>) -> Vec<Option<Arc<Session>>> {
        let (sessions, now) = (self.read(), now());
        let lives = |session: &&Arc<Session>| session.expires > now && session.ends.is_none();
        tokens.map(|token| sessions.get(token).filter(lives).cloned()).collect()
    }

    /// Returns the number of changes of the table that have begun. Read the number before you call [`Self::get_all`].
    /// As long as the number stays the same, the table has the sessions that `get_all` returned, although a session can
    /// have expired meanwhile.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Returns the session of a browser at the console, if it has not ended.
    pub fn at_console(&self, token: &TokenHash) -> Option<Arc<Session>> {
        self.any(token).filter(|session| session.ends.is_some())
    }

    /// Returns the session with this token, an agent's or a browser's, if it has not ended.
    pub fn any(&self, token: &TokenHash) -> Option<Arc<Session>> {
        self.read().get(token).filter(|session| session.expires > now()).cloned()
    }

    /// Returns the number of sessions in the table. It includes sessions that expired a moment ago.
    pub fn count(&self) -> usize {
        self.read().len()
    }

    /// Returns the token hashes of a person's sessions.
    pub fn tokens_of(&self, person: &str) -> Vec<TokenHash> {
        self.tokens_where(|session| session.person == person)
    }

    /// Returns the token hashes of the sessions for which `which` returns true.
    pub fn tokens_where(&self, which: impl Fn(&Session) -> bool) -> Vec<TokenHash> {
        self.read().iter().filter(|(_, session)| which(session)).map(|(token, _)| *token).collect()
    }

    /// Returns the names in `people` that belong to people with a session, sorted.
    pub fn logged_in(&self, people: &BTreeSet<String>) -> Vec<String> {
        if people.is_empty() {
            return Vec::new();
        }
        let sessions = self.read();
        let found: BTreeSet<&String> = sessions.values().filter_map(|session| people.get(&session.person)).collect();
        found.into_iter().cloned().collect()
    }

    /// Returns the time at which the next session expires, in Unix seconds, or `None` if there is no session.
    pub fn next_expiry(&self) -> Option<u64> {
        self.read().values().map(|session| session.expires).min()
    }

    /// Reports whether two sessions of a person have different groups. This happens if the person's groups changed at
    /// the latest login. The groups of the latest login then apply to all sessions of the person.
    pub fn groups_differ(&self, person: &str) -> bool {
        let sessions = self.read();
        let mut own = sessions.values().filter(|session| session.person == person).map(|session| &session.groups);
        own.next().is_some_and(|first| own.any(|groups| groups != first))
    }

    /// Adds a session that the database contains. Must be called on the storage thread. A call on another thread could
    /// come after the storage thread has read the sessions for [`Self::replace`], which would remove the new session.
    pub fn insert(&self, token: TokenHash, session: Session) {
        self.write().insert(token, Arc::new(session));
    }

    /// Extends a console session to `idle` seconds from now in the database and in the table, but not beyond the
    /// session's latest end.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub async fn prolong(self: &Arc<Self>, storage: &Storage, token: TokenHash, person: &str, idle: u32) -> Result<()> {
        let (expires, sessions) = (now() + u64::from(idle), self.clone());
        let prolong = move |database: &mut Database| {
            database.prolong_session(token, expires)?;
            if let Some(session) = sessions.write().get_mut(&token) {
                let ends = session.ends.unwrap_or(expires);
                Arc::make_mut(session).expires = expires.min(ends);
            }
            Ok(())
        };
        storage.call_for(person, prolong).await
    }

    /// Replaces the table by the sessions that the database contains. Must be called on the storage thread.
    pub fn replace(&self, sessions: Table) {
        *self.write() = sessions;
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        let table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        self.changes.fetch_add(1, Ordering::SeqCst);
        table
    }
}
