//! Sessions: how they begin and end, and who is notified of their end.

use crate::http::problems::Problem;
use crate::login::credentials;
use crate::now;
use crate::push::events::Listener;
use crate::state::Authority;
use crate::storage::{AuditEvent, Database, Ended, Login, Proof, Session, TokenHash};
use anyhow::Result;
use api::Event;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use zeroize::Zeroizing;

impl Authority {
    /// Returns the session of a bearer token, if it has not ended. A browser's console session is not one.
    pub fn session(&self, token: &TokenHash) -> Option<Arc<Session>> {
        self.any_session(token).filter(|session| session.ends.is_none())
    }

    /// Returns the session of each token, or `None`, as [`Self::session`] does for one.
    pub(crate) fn sessions_of<'t>(&self, tokens: impl Iterator<Item = &'t TokenHash>) -> Vec<Option<Arc<Session>>> {
        let (sessions, now) = (self.sessions.read().unwrap_or_else(PoisonError::into_inner), now());
        let lives = |session: &&Arc<Session>| session.expires > now && session.ends.is_none();
        tokens.map(|token| sessions.get(token).filter(lives).cloned()).collect()
    }

    /// Returns the session of a browser at the console, if it has not ended.
    pub fn console_session(&self, token: &TokenHash) -> Option<Arc<Session>> {
        self.any_session(token).filter(|session| session.ends.is_some())
    }

    fn any_session(&self, token: &TokenHash) -> Option<Arc<Session>> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.get(token).filter(|session| session.expires > now()).cloned()
    }

    /// Returns the tokens of a person's sessions.
    pub(crate) fn tokens_of(&self, person: &str) -> Vec<TokenHash> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.iter().filter(|(_, session)| session.person == person).map(|(token, _)| *token).collect()
    }

    /// Extends a console session after use.
    pub async fn prolong_session(&self, token: TokenHash, person: &str, idle: u32) -> Result<()> {
        let (expires, live) = (now() + u64::from(idle), self.sessions.clone());
        let prolong = move |database: &mut Database| {
            database.prolong_session(token, expires)?;
            let mut live = live.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(session) = live.get_mut(&token) {
                let ends = session.ends.unwrap_or(expires);
                Arc::make_mut(session).expires = expires.min(ends);
            }
            Ok(())
        };
        self.storage.call_for(person, prolong).await
    }

    /// Records a login whose proof was verified, and returns the session for its holder.
    pub async fn add_session(
        &self,
        person: String,
        device: String,
        proof: Proof,
        source: IpAddr,
    ) -> Result<api::Session, Problem> {
        let now = now();
        let expires = now + u64::from(self.config.session_lifetime);
        let (tags, groups) = (Vec::new(), Vec::new());
        let (ends, holder) = (None, wire::Holder::default());
        let session = Session { person: person.clone(), device: device.clone(), expires, tags, groups, ends, holder };
        let token = self.begin_session(session, proof, source).await?;
        Ok(api::Session { token: token.to_string(), person, device, expires, now })
    }

    /// Records a login whose proof was verified, and returns a new token for its holder.
    pub async fn begin_session(
        &self,
        mut session: Session,
        proof: Proof,
        source: IpAddr,
    ) -> Result<Zeroizing<String>, Problem> {
        let (token, hash) = credentials::new_token::<32>()?;
        let (person, device, live) = (session.person.clone(), session.device.clone(), self.sessions.clone());
        let add = move |database: &mut Database| {
            let login = database.add_session(hash, &session, &proof, source, now())?;
            if let Login::Done { tags, groups, holder, .. } = &login {
                (session.tags, session.groups, session.holder) = (tags.clone(), groups.clone(), *holder);
                // By this thread, which also replaces all sessions when it synchronises them: it then misses none.
                live.write().unwrap_or_else(PoisonError::into_inner).insert(hash, Arc::new(session));
            }
            Ok(login)
        };
        let displaced = match self.storage.call_for(&person, add).await? {
            Login::Done { displaced, .. } => displaced,
            Login::Outdated => return Err(Problem::WrongPassword),
            Login::TooMany { seconds } => return Err(Problem::TooMany(Duration::from_secs(seconds))),
            Login::NameTaken => {
                let event = AuditEvent::new("login_failed").person(&person).source(source);
                self.audit_refusal(event.detail("the name belongs to somebody else here")).await?;
                return Err(Problem::NameTaken(person));
            }
        };
        tracing::info!(person, device, %source, "logged in");
        self.throttle.remember(person.clone(), source);
        if self.groups_differ(&person) {
            self.judge_anew("a login brought news of groups").await?;
        } else if displaced {
            self.sync().await?;
        }
        Ok(token)
    }

    /// Reports whether a person's sessions differ in their groups: those of the newest login count.
    fn groups_differ(&self, person: &str) -> bool {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        let mut own = sessions.values().filter(|session| session.person == person).map(|session| &session.groups);
        own.next().is_some_and(|first| own.any(|groups| groups != first))
    }

    /// Ends expired sessions in the database and at the verifiers. Returns when the next one expires, in Unix seconds.
    pub(crate) async fn end_expired(&self) -> Result<Option<u64>> {
        let expires = || {
            let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
            sessions.values().map(|session| session.expires).min()
        };
        let time = now();
        if expires().is_some_and(|expires| expires <= time) {
            self.storage.call(move |database| database.end_expired_sessions(time)).await?;
            self.sync().await?;
        }
        Ok(expires())
    }

    /// Synchronises memory and listeners with the database: closes the streams of sessions and verifiers that are gone,
    /// announces revoked grants, and makes verifiers recheck flows that outlived their grants.
    pub async fn sync(&self) -> Result<()> {
        self.syncing.run(async || self.sync_alone().await).await
    }

    async fn sync_alone(&self) -> Result<()> {
        let (kept_sessions, kept_verifiers) = (self.sessions.clone(), self.verifiers.clone());
        let (kept_preferences, push) = (self.preferences.clone(), self.push.clone());
        // All by the storage's thread, which completes even if the caller is cancelled: each announcement is taken from
        // the database once.
        let synchronise = move |database: &mut Database| {
            let gone = database.take_ended_sessions()?;
            let (ended, rechecks) = (database.take_unannounced()?, database.take_rechecks()?);
            let preferences =
                database.preferences()?.into_iter().map(|(person, own)| (person, Arc::new(own))).collect();
            let sessions = database.sessions(now())?.into_iter();
            let sessions: HashMap<_, _> = sessions.map(|(token, session)| (token, Arc::new(session))).collect();
            let verifiers = database.verifier_tokens()?.into_iter().map(|(token, id)| (token, Arc::from(id))).collect();
            let live: HashSet<_> = sessions.keys().copied().collect();
            *kept_sessions.write().unwrap_or_else(PoisonError::into_inner) = sessions;
            *kept_verifiers.write().unwrap_or_else(PoisonError::into_inner) = verifiers;
            *kept_preferences.write().unwrap_or_else(PoisonError::into_inner) = preferences;
            push.tell_ended(gone);
            push.tell_revoked(ended.into_iter().flat_map(|Ended { grant, verifier, session }| {
                [(Listener::Verifier(verifier), grant), (Listener::Session(session), grant)]
            }));
            for verifier in rechecks {
                push.tell(&Listener::Verifier(verifier), &Event::Recheck);
            }
            Ok(live)
        };
        let live = self.storage.call(synchronise).await?;
        self.datagrams.keep(|token| live.contains(token));
        if self.has_segments() {
            self.withdraw_forbidden(&*self.policy.read().await);
        }
        self.close_streams();
        Ok(())
    }

    /// Closes the streams of listeners that are no longer authorised.
    pub fn close_streams(&self) {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        let verifiers = self.verifiers.read().unwrap_or_else(PoisonError::into_inner);
        let ids: HashSet<&str> = verifiers.values().map(|id| &**id).collect();
        let now = now();
        self.push.close_unless(|listener| match listener {
            Listener::Session(token) => sessions.get(token).is_some_and(|session| session.expires > now),
            Listener::Verifier(id) => ids.contains(id.as_str()),
        });
        self.reports.keep(|verifier| ids.contains(verifier));
    }
}
