//! The sessions that have not ended, in memory.

use crate::now;
use crate::storage::{Database, Session, Storage, TokenHash};
use anyhow::Result;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

type Table = HashMap<TokenHash, Arc<Session>>;

/// The sessions by the hash of their token. Written by the storage's thread only, in the order of its writes to the
/// database, which is authoritative.
#[derive(Default)]
pub struct Sessions(RwLock<Table>);

impl Sessions {
    /// Returns the session of a bearer token, if it has not ended. A browser's console session is not one.
    pub fn get(&self, token: &TokenHash) -> Option<Arc<Session>> {
        self.any(token).filter(|session| session.ends.is_none())
    }

    /// Returns the session of each token, or `None`, as [`Self::get`] does for one.
    pub fn get_all<'t>(&self, tokens: impl Iterator<Item = &'t TokenHash>) -> Vec<Option<Arc<Session>>> {
        let (sessions, now) = (self.read(), now());
        let lives = |session: &&Arc<Session>| session.expires > now && session.ends.is_none();
        tokens.map(|token| sessions.get(token).filter(lives).cloned()).collect()
    }

    /// Returns the session of a browser at the console, if it has not ended.
    pub fn at_console(&self, token: &TokenHash) -> Option<Arc<Session>> {
        self.any(token).filter(|session| session.ends.is_some())
    }

    /// Returns the session of a token, of either kind, if it has not ended.
    pub fn any(&self, token: &TokenHash) -> Option<Arc<Session>> {
        self.read().get(token).filter(|session| session.expires > now()).cloned()
    }

    /// Returns the number of sessions.
    pub fn count(&self) -> usize {
        self.read().len()
    }

    /// Returns the tokens of a person's sessions.
    pub fn tokens_of(&self, person: &str) -> Vec<TokenHash> {
        self.read().iter().filter(|(_, session)| session.person == person).map(|(token, _)| *token).collect()
    }

    /// Returns when the next session expires, in Unix seconds.
    pub fn next_expiry(&self) -> Option<u64> {
        self.read().values().map(|session| session.expires).min()
    }

    /// Reports whether a person's sessions differ in their groups: those of the newest login count.
    pub fn groups_differ(&self, person: &str) -> bool {
        let sessions = self.read();
        let mut own = sessions.values().filter(|session| session.person == person).map(|session| &session.groups);
        own.next().is_some_and(|first| own.any(|groups| groups != first))
    }

    /// Adds a session that the database contains. To be called by the storage's thread, which also replaces all
    /// sessions when it synchronises them: it then misses none.
    pub fn insert(&self, token: TokenHash, session: Session) {
        self.write().insert(token, Arc::new(session));
    }

    /// Extends a console session after use, in the database and here.
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

    /// Replaces the table by what the database contains. To be called by the storage's thread.
    pub fn replace(&self, sessions: Table) {
        *self.write() = sessions;
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
