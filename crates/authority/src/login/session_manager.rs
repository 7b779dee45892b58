//! Begins sessions, and ends those that have expired.

use super::credentials;
use super::sessions::Sessions;
use crate::http::problems::Problem;
use crate::http::throttle::Throttle;
use crate::policy::Enforcer;
use crate::storage::{AuditEvent, AuditLog, Database, Login, Proof, Session, Storage};
use crate::sync::Synchroniser;
use crate::{Settings, now};
use anyhow::Result;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// Begins sessions, and ends those that have expired.
pub struct SessionManager {
    pub(crate) settings: Arc<Settings>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) audit: Arc<AuditLog>,
    pub(crate) throttle: Arc<Throttle>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) sync: Arc<Synchroniser>,
    pub(crate) enforcer: Arc<Enforcer>,
}

impl SessionManager {
    /// Records an agent's login whose proof was verified. Returns the session with its bearer token.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Self::begin`].
    pub async fn begin_for_agent(
        &self,
        person: String,
        device: String,
        proof: Proof,
        source: IpAddr,
    ) -> Result<api::Session, Problem> {
        let now = now();
        let expires = now + u64::from(self.settings.session_lifetime);
        let (tags, groups) = (Vec::new(), Vec::new());
        let (ends, holder) = (None, wire::Holder::default());
        let session = Session { person: person.clone(), device: device.clone(), expires, tags, groups, ends, holder };
        let token = self.begin(session, proof, source).await?;
        Ok(api::Session { token: token.to_string(), person, device, expires, now })
    }

    /// Records a login whose proof was verified. Returns a new bearer token for the session. If the person's groups
    /// changed, grants are evaluated again.
    ///
    /// # Errors
    /// Fails if the proof is no longer valid, the person's name belongs to another identity, the account has no free
    /// slot for a session, or the database cannot be written.
    pub async fn begin(
        &self,
        mut session: Session,
        proof: Proof,
        source: IpAddr,
    ) -> Result<Zeroizing<String>, Problem> {
        let (token, hash) = credentials::new_token::<32>()?;
        let (person, device, sessions) = (session.person.clone(), session.device.clone(), self.sessions.clone());
        let add = move |database: &mut Database| {
            let login = database.add_session(hash, &session, &proof, source, now())?;
            if let Login::Done { tags, groups, holder, .. } = &login {
                (session.tags, session.groups, session.holder) = (tags.clone(), groups.clone(), *holder);
                sessions.insert(hash, session);
            }
            Ok(login)
        };
        let displaced = match self.storage.call_for(&person, add).await? {
            Login::Done { displaced, .. } => displaced,
            Login::Outdated => return Err(Problem::WrongPassword),
            Login::TooMany { seconds } => return Err(Problem::TooMany(Duration::from_secs(seconds))),
            Login::NameTaken => {
                let event = AuditEvent::new("login_failed").person(&person).source(source);
                self.audit.write_refusal(event.detail("the name belongs to another person here")).await?;
                return Err(Problem::NameTaken(person));
            }
        };
        tracing::info!(person, device, %source, "logged in");
        self.throttle.remember(person.clone(), source);
        if self.sessions.groups_differ(&person) {
            self.enforcer.reevaluate("groups changed at login").await?;
        } else if displaced {
            self.sync.run().await?;
        }
        Ok(token)
    }

    /// Ends expired sessions in the database and announces this to the verifiers. Returns the time at which the next
    /// session expires, in Unix seconds.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub async fn end_expired(&self) -> Result<Option<u64>> {
        let time = now();
        if self.sessions.next_expiry().is_some_and(|expires| expires <= time) {
            self.storage.call(move |database| database.end_expired_sessions(time)).await?;
            self.sync.run().await?;
        }
        Ok(self.sessions.next_expiry())
    }
}
