//! Sessions: how they begin and end, and who is notified of their end.

use crate::http::problems::Problem;
use crate::login::credentials;
use crate::now;
use crate::push::events::Listener;
use crate::state::Authority;
use crate::storage::{AuditEvent, Database, Login, Proof, Session, TokenHash};
use anyhow::Result;
use api::{Event, RevokedGrant, RevokedSession};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use zeroize::Zeroizing;

/// Maximum number of revoked grants or sessions in one event: about 32 KiB.
const REVOKED_PER_EVENT: usize = 512;

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
    pub async fn prolong_session(&self, token: TokenHash, idle: u32) -> Result<()> {
        let expires = now() + u64::from(idle);
        self.storage.call(move |database| database.prolong_session(token, expires)).await?;
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = sessions.get_mut(&token) {
            let ends = session.ends.unwrap_or(expires);
            Arc::make_mut(session).expires = expires.min(ends);
        }
        Ok(())
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
        mut kept: Session,
        proof: Proof,
        source: IpAddr,
    ) -> Result<Zeroizing<String>, Problem> {
        let (token, hash) = credentials::new_token::<32>()?;
        let syncing = self.syncing.pause().await;
        let session = kept.clone();
        let add = move |database: &mut Database| database.add_session(hash, &session, &proof, source, now());
        let displaced = match self.storage.call_for(&kept.person, add).await? {
            Login::Done { displaced, tags, groups, holder } => {
                (kept.tags, kept.groups, kept.holder) = (tags, groups, holder);
                displaced
            }
            Login::Outdated => return Err(Problem::WrongPassword),
            Login::TooMany { seconds } => return Err(Problem::TooMany(Duration::from_secs(seconds))),
            Login::NameTaken => {
                let event = AuditEvent::new("login_failed").person(&kept.person).source(source);
                self.audit_refusal(event.detail("the name belongs to somebody else here")).await?;
                return Err(Problem::NameTaken(kept.person));
            }
        };
        let Session { person, device, .. } = kept.clone();
        tracing::info!(person, device, %source, "logged in");
        self.throttle.remember(person.clone(), source);
        self.sessions.write().unwrap_or_else(PoisonError::into_inner).insert(hash, Arc::new(kept));
        drop(syncing);
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
        let (sessions, verifiers, gone, ended, rechecks, preferences) = self
            .storage
            .call(|database| {
                let gone = database.take_ended_sessions()?;
                let (ended, rechecks) = (database.take_unannounced()?, database.take_rechecks()?);
                let preferences = database.preferences()?;
                Ok((database.sessions(now())?, database.verifier_tokens()?, gone, ended, rechecks, preferences))
            })
            .await?;
        let sessions: HashMap<_, _> = sessions.into_iter().map(|(token, session)| (token, Arc::new(session))).collect();
        let live: HashSet<_> = sessions.keys().copied().collect();
        let verifiers = verifiers.into_iter().map(|(token, id)| (token, Arc::from(id))).collect();
        let preferences = preferences.into_iter().map(|(person, own)| (person, Arc::new(own))).collect();
        *self.preferences.write().unwrap_or_else(PoisonError::into_inner) = preferences;
        *self.sessions.write().unwrap_or_else(PoisonError::into_inner) = sessions;
        self.datagrams.keep(|token| live.contains(token));
        *self.verifiers.write().unwrap_or_else(PoisonError::into_inner) = verifiers;
        self.tell_ended(gone);
        let mut told: HashMap<Listener, Vec<RevokedGrant>> = HashMap::new();
        for ended in ended {
            told.entry(Listener::Verifier(ended.verifier)).or_default().push(ended.grant);
            told.entry(Listener::Session(ended.session)).or_default().push(ended.grant);
        }
        if !told.is_empty() {
            tracing::info!(listeners = told.len(), "announcing revoked grants");
        }
        self.tell_revoked(told);
        if self.has_segments() {
            self.withdraw_forbidden(&*self.policy.read().await);
        }
        for verifier in rechecks {
            self.push.tell(&Listener::Verifier(verifier), &Event::Recheck);
        }
        self.close_streams();
        Ok(())
    }

    /// Notifies verifiers of ended sessions: one statement per session, however many grants it had.
    fn tell_ended(&self, gone: Vec<(String, RevokedSession)>) {
        let mut told: HashMap<String, Vec<RevokedSession>> = HashMap::new();
        for (verifier, session) in gone {
            told.entry(verifier).or_default().push(session);
        }
        for (verifier, sessions) in told {
            tracing::info!(verifier, sessions = sessions.len(), "announcing ended sessions");
            let listener = Listener::Verifier(verifier);
            for sessions in sessions.chunks(REVOKED_PER_EVENT) {
                self.push.tell(&listener, &Event::SessionsRevoked { sessions: sessions.to_vec() });
            }
        }
    }

    /// Notifies listeners of revoked grants.
    pub(crate) fn tell_revoked(&self, told: HashMap<Listener, Vec<RevokedGrant>>) {
        for (listener, grants) in told {
            for grants in grants.chunks(REVOKED_PER_EVENT) {
                self.push.tell(&listener, &Event::Revoked { grants: grants.to_vec() });
            }
        }
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
