//! Puts changes into effect: changes of the policy, of its inputs, and of the master keys. Each change revokes the
//! grants that it forbids.

use super::candidate::{Candidate, into_huge_pages};
use super::in_force::PolicyInForce;
use crate::cluster::confirm::Followed;
use crate::cluster::contact::{Contact, Standing};
use crate::cluster::files;
use crate::grants::GrantIssuer;
use crate::keys::{Keyring, MasterKeys};
use crate::leases::Leases;
use crate::push::events::{Listener, Push};
use crate::segments::SegmentIssuer;
use crate::storage::{Database, Operator, PolicyChange, Storage};
use crate::sync::Synchroniser;
use crate::{Directory, Settings, lists, now};
use anyhow::{Context, Result, bail};
use api::{Event, RevokedGrant};
use engine::policy::Compiled;
use shell::table::count;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// A version of the policy that was put in force, and the numbers of grants and segments that it ended.
#[derive(Debug)]
pub struct Applied {
    /// The number of the version of the policy.
    pub version: i64,
    /// The numbers of receivers and rules in words.
    pub summary: String,
    /// The numbers of grants and segments that the version ended.
    pub ended: Reevaluated,
    /// The other members of the cluster and the verifiers, and which of them have followed the change.
    pub followed: Followed,
}

/// The numbers of grants and segments that a re-evaluation ended.
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
        let Self { version, summary, ended, followed } = self;
        write!(f, "version {version}: {summary} in force; {ended}{followed}")
    }
}

/// Puts changes of the policy, of its inputs and of the master keys into effect.
pub struct Enforcer {
    pub(crate) settings: Arc<Settings>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) policy: Arc<PolicyInForce>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) grants: Arc<GrantIssuer>,
    pub(crate) segments: Arc<SegmentIssuer>,
    pub(crate) push: Arc<Push>,
    pub(crate) sync: Arc<Synchroniser>,
    pub(crate) contact: Arc<Contact>,
    /// The version of the policy in force.
    pub(crate) version: AtomicI64,
    /// Whether the database may contain grants that the policy in force forbids.
    pub(crate) must_reevaluate: AtomicBool,
    /// The text of `networks.toml` that the members of the cluster share, in the latest version that this member has
    /// followed.
    pub(crate) networks: tokio::sync::Mutex<Option<String>>,
}

impl Enforcer {
    /// Puts a policy in force as [`Self::put_in_force`] does, and waits for the other members and the verifiers as
    /// [`Synchroniser::confirmed`] does.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Self::put_in_force`].
    pub async fn apply(
        &self,
        text: Option<String>,
        note: String,
        by: Option<Operator>,
        after: Option<i64>,
    ) -> Result<Applied> {
        let applied = self.put_in_force(text, note, by, after).await?;
        self.confirm(applied).await
    }

    /// Waits until the other members and the verifiers have followed a policy that was put in force.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn confirm(&self, applied: Applied) -> Result<Applied> {
        let applied = Applied { followed: self.sync.confirmed().await?, ..applied };
        tracing::info!("policy: {applied}");
        Ok(applied)
    }

    /// Puts a policy and the current `networks.toml` in force. If `text` is given, it is the policy, and also replaces
    /// the content of the policy file. If `text` is `None`, the policy is read from the policy file. Holds the policy's
    /// write lock while the new version is recorded.
    ///
    /// # Errors
    /// Fails if the policy or `networks.toml` cannot be read or is not valid, a test of the policy fails, the policy
    /// uses a list that does not exist (a cluster has no lists), or `after` is given and is not the version in force.
    /// Also fails if the database or the policy file cannot be written, for example because this member has lost
    /// contact with its cluster. If the new version was not recorded, nothing changes.
    pub async fn put_in_force(
        &self,
        text: Option<String>,
        note: String,
        by: Option<Operator>,
        after: Option<i64>,
    ) -> Result<Applied> {
        let (directory, max_lifetime) = (self.directory.clone(), self.settings.max_lifetime);
        let replaces = text.is_some();
        let standing = self.contact.standing();
        if !standing.may_record() {
            // This method does not take the lock here, because all decisions would then wait until the database gives
            // up.
            bail!(standing.sentence(now()));
        }
        let read = move || {
            let candidate = match text {
                Some(text) => Candidate::new(text, "policy.toml", max_lifetime),
                None => Candidate::read(&directory, None),
            };
            let candidate = candidate?;
            lists::check(&directory, candidate.policy.policy())?;
            anyhow::Ok((candidate, directory.read_networks()?, directory.networks_text()?))
        };
        let (candidate, networks, networks_text) = tokio::task::spawn_blocking(read).await??;
        let (summary, Candidate { mut policy, text }) = (candidate.summary(), candidate);
        let mut in_force = self.policy.write().await;
        policy.set_lists(in_force.lists().clone());
        // A decision that begins after this line waits for the lock, and the new policy makes it.
        self.storage.end_basis();
        let time = now();
        let forbidden = self.grants.forbidden(&policy, time).await?;
        let revoked = forbidden.len();
        let recorded = format!("{summary} in force; {} revoked", count(revoked, "grant"));
        let change = PolicyChange { text, note, by, summary: recorded, after };
        let (directory, consents) = (self.directory.clone(), self.grants.consents.clone());
        let record = move |database: &mut Database| {
            let put = || if replaces { directory.replace_policy(&change.text) } else { Ok(()) };
            let addresses = |name: &str| policy.policy().prefixes_of(name);
            let version = database.apply_policy(&change, &forbidden, time, &addresses, put)?;
            // The policy may give the name of a receiver to another receiver. Consents for the earlier receiver end
            // now.
            consents.follow(database);
            Ok((version, policy))
        };
        let (version, policy) = self.storage.call(record).await?;
        self.policy.note_evaluation(policy.policy(), time);
        self.segments.replace_networks(networks, &policy);
        let withdrawn = self.segments.withdraw_forbidden(&policy);
        *in_force = policy;
        self.version.store(version, Ordering::SeqCst);
        drop(in_force);
        into_huge_pages();
        let finished = self.finish_in_cluster(standing, networks_text).await;
        let synchronised = self.sync.run_for_policy().await;
        self.segments.announce(&withdrawn);
        synchronised?;
        // The policy is in force in any case, so the listeners have been told before a failure is reported.
        let ended = Reevaluated { revoked: revoked + finished?, withdrawn: withdrawn.statements.len() };
        Ok(Applied { version, summary, ended, followed: Followed::default() })
    }

    /// Completes a change of the policy in a cluster: revokes forbidden grants that another member recorded just before
    /// the change, and gives the members the text of `networks.toml`. Returns the number of revoked grants.
    async fn finish_in_cluster(&self, standing: Standing, networks: String) -> Result<usize> {
        if standing == Standing::Alone {
            return Ok(0);
        }
        // After the change is recorded, no member records a grant that an earlier policy allowed.
        self.must_reevaluate.store(true, Ordering::SeqCst);
        let revoked = self.revoke_forbidden(&*self.policy.read().await, "the policy changed").await.context(
            "the policy is in force, but grants that other members recorded just before it are not yet revoked; this \
             member tries again",
        )?;
        self.must_reevaluate.store(false, Ordering::SeqCst);
        let mut shared = self.networks.lock().await;
        if shared.as_deref() != Some(networks.as_str()) {
            let text = networks.clone().into_bytes();
            let share = move |database: &mut Database| database.change_shared(files::NETWORKS, |_| Ok(Some(text)));
            self.storage.call(share).await.context(
                "the policy is in force, but networks.toml is in force at this member only: run `vouchsafe authority \
                 policy reload` again",
            )?;
            *shared = Some(networks);
        }
        Ok(revoked)
    }

    /// Re-evaluates grants and segments if a time window of the policy opened or closed since the last evaluation, or
    /// if the evaluation after a change of the policy has failed. The server calls this every second.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Self::reevaluate`].
    pub async fn follow_time(&self) -> Result<()> {
        if self.policy.evaluation_is_due(now()) {
            self.reevaluate("a time window opened or closed").await?;
        }
        if self.must_reevaluate.load(Ordering::SeqCst) {
            self.reevaluate("the policy changed").await?;
            self.must_reevaluate.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Re-evaluates grants and segments after an input of the policy changed: the time, the tags of a device, or the
    /// groups of a person. Revokes the grants, and withdraws consent to the segments, that the policy no longer allows.
    /// Then makes all listeners read their configuration or destinations again.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written.
    pub async fn reevaluate(&self, why: &'static str) -> Result<Reevaluated> {
        self.sync.run().await?;
        // While this holds the write lock, no segment that was decided under the earlier state can be recorded.
        let policy = self.policy.write().await;
        self.storage.end_basis();
        let revoked = self.revoke_forbidden(&policy, why).await?;
        let withdrawn = self.segments.withdraw_forbidden(&policy);
        drop(policy);
        let synchronised = self.sync.run_for_policy().await;
        self.segments.announce(&withdrawn);
        synchronised?;
        let ended = Reevaluated { revoked, withdrawn: withdrawn.statements.len() };
        tracing::info!("{why}: {ended}");
        Ok(ended)
    }

    /// Revokes the live grants that the policy denies, and records the time of this evaluation. Returns the number of
    /// revoked grants.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written.
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

    /// Puts new master keys in use and makes verifiers fetch their keys. `anew` states that the new keys also replace
    /// the keys of the current and earlier epochs, so that all live grants end. In this case, the authority tells
    /// sessions that their grants ended, so that agents request new grants. Admitted flows continue. Returns the number
    /// of grants that ended.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn replace_keys(&self, keys: MasterKeys, anew: bool) -> Result<usize> {
        // While this holds the write lock, no segment that was made with the previous key can be recorded.
        let policy = self.policy.write().await;
        let time = now();
        self.storage.end_basis();
        let (ended, told) = if anew { self.end_leases(time).await? } else { (0, Vec::new()) };
        self.keyring.replace(keys);
        self.storage.end_basis();
        self.segments.forget_keys();
        drop(policy);
        self.push.broadcast(&Event::Policy);
        self.push.announce_revoked(told);
        tracing::info!(anew, ended, "rotated the master key");
        Ok(ended)
    }

    /// Ends the leases of all live grants. Returns the number of these grants, and what to tell their sessions. Must be
    /// called before the keys are replaced, because the grants' handles are computed from the keys.
    async fn end_leases(&self, time: u64) -> Result<(usize, Vec<(Listener, RevokedGrant)>)> {
        let leases = self.leases.clone();
        let end = move |database: &mut Database| {
            let live = database.live_of_sessions(time)?;
            leases.clear();
            let mut told = leases.announcements(&live, time);
            told.retain(|(listener, _)| matches!(listener, Listener::Session(_)));
            Ok((live.len(), told))
        };
        self.storage.call(end).await
    }
}
