//! Periodic renewal of the identities of logged-in people, so that a person who leaves a group or the organisation
//! loses the access that depended on it.

use super::provider::{Provider, Refusal, Verified};
use crate::now;
use crate::policy::Enforcer;
use crate::storage::{Renewable, Renewed, Storage};
use anyhow::Result;
use futures_util::StreamExt;
use openidconnect::RefreshToken;
use shell::table::count;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Interval at which the authority looks for sessions whose renewal is due.
pub const LOOK: Duration = Duration::from_secs(5);
/// Maximum number of sessions that are renewed concurrently.
const AT_A_TIME: usize = 8;

/// The result of a round of renewals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renewals {
    /// Number of logins about which the provider was asked.
    pub checked: usize,
    /// Number of logins whose person's groups changed.
    pub changed: usize,
    /// Number of sessions that ended. Includes sessions of devices whose login came from another session that ended.
    pub ended: usize,
    /// Number of logins about which the provider gave no answer, or whose answer could not be recorded. The sessions of
    /// these logins continue.
    pub failed: usize,
    /// Number of revoked grants.
    pub revoked: usize,
}

impl fmt::Display for Renewals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { checked, changed, ended, failed, revoked } = self;
        write!(
            f,
            "{} checked: {changed} with changed groups, {ended} ended, {failed} without an answer; ",
            count(*checked, "login")
        )?;
        write!(f, "{} revoked", count(*revoked, "grant"))
    }
}

/// Renews the identities of the people in sessions that began at the identity provider.
pub struct Renewal {
    pub(crate) provider: Arc<Option<Provider>>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) enforcer: Arc<Enforcer>,
    /// Locked while the authority makes requests to the provider, because a refresh token may be valid for one use
    /// only.
    pub(crate) round: tokio::sync::Mutex<()>,
}

impl Renewal {
    /// Renews the sessions whose last renewal is longer ago than the configured interval. Does nothing without an
    /// identity provider.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written. A provider that does not answer is not an error.
    pub async fn renew_due(&self) -> Result<()> {
        let Some(provider) = &*self.provider else { return Ok(()) };
        let before = now().saturating_sub(provider.settings.refresh.into());
        let done = self.renew(None, before).await?;
        if done.checked > 0 {
            tracing::debug!("{done}");
        }
        Ok(())
    }

    /// Renews all sessions, or all sessions of `person`, now.
    ///
    /// # Errors
    /// Fails if the authority has no identity provider, or the database cannot be read or written.
    pub async fn renew_now(&self, person: Option<String>) -> Result<Renewals> {
        anyhow::ensure!(
            self.provider.is_some(),
            "the authority has no identity provider: authority.toml has no [oidc]"
        );
        self.renew(person, now()).await
    }

    async fn renew(&self, person: Option<String>, before: u64) -> Result<Renewals> {
        let _round = self.round.lock().await;
        let due = self.storage.call(move |database| database.renewable(person.as_deref(), before, now())).await?;
        let done = Mutex::new(Renewals { checked: due.len(), ..Renewals::default() });
        let note = |change: &dyn Fn(&mut Renewals)| change(&mut done.lock().unwrap_or_else(PoisonError::into_inner));
        futures_util::stream::iter(due)
            .for_each_concurrent(AT_A_TIME, |session| async {
                match self.renew_one(session).await {
                    Ok(Some(Renewed::Same)) => {}
                    Ok(Some(Renewed::Groups)) => note(&|done| done.changed += 1),
                    Ok(Some(Renewed::Ended(sessions))) => note(&|done| done.ended += sessions),
                    Ok(None) => note(&|done| done.failed += 1),
                    Err(error) => {
                        tracing::error!("cannot record the identity provider's answer about a session: {error:#}");
                        note(&|done| done.failed += 1);
                    }
                }
            })
            .await;
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        if done.changed + done.ended > 0 {
            done.revoked = self.enforcer.reevaluate("the identity provider changed groups").await?.revoked;
            tracing::info!("{done}");
        }
        Ok(done)
    }

    /// Renews the sessions of one login. Returns `None` if the provider gave no answer.
    async fn renew_one(&self, login: Renewable) -> Result<Option<Renewed>> {
        let Some(provider) = &*self.provider else { return Ok(None) };
        let token = RefreshToken::new(login.refresh_token.to_string());
        match provider.renew(&login.subject, &token).await {
            Ok(Verified { identity, refresh_token }) => {
                let token = refresh_token.unwrap_or(token).into_secret();
                let token = zeroize::Zeroizing::new(token);
                let renew =
                    move |database: &mut crate::storage::Database| database.renew(&login, &identity, &token, now());
                self.storage.call(renew).await.map(Some)
            }
            Err(Refusal::No(why)) => {
                let end = move |database: &mut crate::storage::Database| database.end_by_provider(&login, &why, now());
                Ok(Some(Renewed::Ended(self.storage.call(end).await?)))
            }
            Err(Refusal::Unavailable(error)) => {
                tracing::warn!(person = login.person, "cannot check a session with the identity provider: {error:#}");
                Ok(None)
            }
        }
    }
}
