//! Puts changes into effect: of the policy, of its inputs, and of the master keys. Each change revokes what it forbids.

use super::candidate::{Candidate, into_huge_pages};
use super::in_force::PolicyInForce;
use crate::grants::GrantIssuer;
use crate::keys::{Keyring, MasterKeys};
use crate::push::events::{Listener, Push};
use crate::segments::SegmentIssuer;
use crate::storage::{Operator, PolicyChange, Storage};
use crate::sync::Synchroniser;
use crate::{Directory, Settings, now};
use anyhow::Result;
use api::Event;
use engine::policy::Compiled;
use shell::table::count;
use std::fmt;
use std::sync::Arc;

/// A version of the policy that was put in force, and what that did.
#[derive(Debug)]
pub struct Applied {
    /// The number of the version.
    pub version: i64,
    /// The numbers of receivers and rules in words.
    pub summary: String,
    /// The grants and segments that are no longer allowed.
    pub ended: Reevaluated,
}

/// The grants and segments that a re-evaluation ended.
#[derive(Debug, Default)]
pub struct Reevaluated {
    /// Number of grants that were revoked.
    pub revoked: usize,
    /// Number of withdrawals of consent to segments.
    pub withdrawn: usize,
}

impl fmt::Display for Reevaluated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} revoked", count(self.revoked, "grant"))?;
        match self.withdrawn {
            0 => Ok(()),
            some => write!(f, "; {} of consent to segments", count(some, "withdrawal")),
        }
    }
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, summary, ended } = self;
        write!(f, "version {version}: {summary} in force; {ended}")
    }
}

/// Puts changes into effect.
pub struct Enforcer {
    pub(crate) settings: Arc<Settings>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) policy: Arc<PolicyInForce>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) grants: Arc<GrantIssuer>,
    pub(crate) segments: Arc<SegmentIssuer>,
    pub(crate) push: Arc<Push>,
    pub(crate) sync: Arc<Synchroniser>,
}

impl Enforcer {
    /// Puts a policy and the current `networks.toml` in force. `text`, if given, also replaces the policy file; without
    /// it, the file is read. Nothing changes if the policy is invalid, or if `after` is given and is not the version in
    /// force.
    pub async fn apply(
        &self,
        text: Option<String>,
        note: String,
        by: Option<Operator>,
        after: Option<i64>,
    ) -> Result<Applied> {
        let (directory, max_lifetime) = (self.directory.clone(), self.settings.max_lifetime);
        let replaces = text.is_some();
        let read = move || {
            let candidate = match text {
                Some(text) => Candidate::new(text, "policy.toml", max_lifetime),
                None => Candidate::read(&directory, None),
            };
            anyhow::Ok((candidate?, directory.read_networks()?))
        };
        let (candidate, networks) = tokio::task::spawn_blocking(read).await??;
        let (summary, Candidate { policy, text }) = (candidate.summary(), candidate);
        let mut in_force = self.policy.write().await;
        // A decision that begins from here on waits for the lock, and is then made by the new policy.
        self.storage.end_basis();
        let time = now();
        let forbidden = self.grants.forbidden(&policy, time).await?;
        let revoked = forbidden.len();
        let recorded = format!("{summary} in force; {} revoked", count(revoked, "grant"));
        let change = PolicyChange { text, note, by, summary: recorded, after };
        let directory = self.directory.clone();
        let version = self
            .storage
            .call(move |database| {
                let put = || if replaces { directory.replace_policy(&change.text) } else { Ok(()) };
                database.apply_policy(&change, &forbidden, time, put)
            })
            .await?;
        self.policy.note_evaluation(policy.policy(), time);
        self.segments.replace_networks(networks, &policy);
        let withdrawn = self.segments.withdraw_forbidden(&policy);
        *in_force = policy;
        drop(in_force);
        into_huge_pages();
        // Announce receivers before revocations: a verifier that reads its configuration at the first event then sees
        // both.
        self.push.broadcast(&Event::Policy);
        self.segments.announce(&withdrawn);
        self.sync.run().await?;
        let ended = Reevaluated { revoked, withdrawn: withdrawn.statements.len() };
        let applied = Applied { version, summary, ended };
        tracing::info!("policy: {applied}");
        Ok(applied)
    }

    /// Re-evaluates the grants if time windows of the policy opened or closed; to be called every second.
    pub async fn follow_time(&self) -> Result<()> {
        if self.policy.evaluation_is_due(now()) {
            self.reevaluate("a time window opened or closed").await?;
        }
        Ok(())
    }

    /// Re-evaluates grants and segments after an input of the policy changed: the time, the tags of a device, the
    /// groups of a person. Revokes what is no longer allowed, and makes all listeners fetch the policy's answers again.
    pub async fn reevaluate(&self, why: &'static str) -> Result<Reevaluated> {
        self.sync.run().await?;
        // With the write lock, no segment that was decided under the earlier state can be recorded afterwards.
        let policy = self.policy.write().await;
        self.storage.end_basis();
        let revoked = self.revoke_forbidden(&policy, why).await?;
        let withdrawn = self.segments.withdraw_forbidden(&policy);
        drop(policy);
        self.push.broadcast(&Event::Policy);
        self.segments.announce(&withdrawn);
        self.sync.run().await?;
        let ended = Reevaluated { revoked, withdrawn: withdrawn.statements.len() };
        tracing::info!("{why}: {ended}");
        Ok(ended)
    }

    /// Revokes the live grants that the policy denies, and records until when these decisions hold. Returns the number
    /// of revoked grants.
    pub async fn revoke_forbidden(&self, policy: &Compiled, why: &'static str) -> Result<usize> {
        let now = now();
        let forbidden = self.grants.forbidden(policy, now).await?;
        let count = forbidden.len();
        if count > 0 {
            self.storage.call(move |database| database.revoke_forbidden(&forbidden, why, now)).await?;
        }
        self.policy.note_evaluation(policy.policy(), now);
        Ok(count)
    }

    /// Puts other master keys in use and makes verifiers fetch theirs. With `anew`, the keys in use changed too:
    /// sessions are then notified that their grants ended, so that agents request new ones. Admitted flows continue.
    /// Returns the number of grants that ended.
    pub async fn replace_keys(&self, keys: MasterKeys, anew: bool) -> Result<usize> {
        // With the write lock, no segment that was made with the previous key can be recorded afterwards.
        let policy = self.policy.write().await;
        self.keyring.replace(keys);
        self.storage.end_basis();
        self.segments.forget_keys();
        let time = now();
        let live =
            if anew { self.storage.call(move |database| database.live_of_sessions(time)).await? } else { Vec::new() };
        drop(policy);
        self.push.broadcast(&Event::Policy);
        let ended = live.len();
        self.push.announce_revoked(live.into_iter().map(|(session, grant)| (Listener::Session(session), grant)));
        tracing::info!(anew, ended, "rotated the master key");
        Ok(ended)
    }
}
