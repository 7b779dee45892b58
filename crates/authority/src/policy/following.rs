//! Puts changes into effect that another member of the cluster has recorded: a policy, master keys, `networks.toml`.
//! The other member has already revoked the grants that the change forbids.

use super::candidate::{Candidate, into_huge_pages};
use super::enforcer::Enforcer;
use crate::keys::MasterKeys;
use crate::now;
use anyhow::{Context, Result};
use api::Event;
use engine::policy::networks::Networks;
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

impl Enforcer {
    /// Puts the latest version of the policy in the database in force, unless it is in force already.
    ///
    /// # Errors
    /// Fails if the text of the latest version is not a valid policy here, one of its tests fails, the database cannot
    /// be read, or the policy file cannot be written. The version in force stays.
    pub async fn follow_policy(&self) -> Result<()> {
        // Each round of the follower comes here: the texts are read only if there is a later version.
        if self.storage.call(|database| database.policy_version()).await? <= self.version.load(Ordering::SeqCst) {
            return Ok(());
        }
        let read = |database: &mut crate::storage::Database| {
            let (version, text) = database.policy_in_force()?;
            Ok((version, text, database.policies()?.into_iter().map(|version| version.sha256).collect()))
        };
        let (version, text, recorded): (i64, String, HashSet<String>) = self.storage.call(read).await?;
        let (directory, max_lifetime) = (self.directory.clone(), self.settings.max_lifetime);
        let prepare = move || {
            let candidate = Candidate::new(text, &format!("version {version} of the policy"), max_lifetime)?;
            directory.follow_policy(&candidate.text, |text| recorded.contains(&hex::encode(Sha256::digest(text))))?;
            anyhow::Ok(candidate)
        };
        let candidate = tokio::task::spawn_blocking(prepare).await??;
        let (summary, Candidate { policy, .. }) = (candidate.summary(), candidate);
        let mut in_force = self.policy.write().await;
        if version <= self.version.load(Ordering::SeqCst) {
            // Meanwhile this member has put a later version in force.
            return Ok(());
        }
        // A decision that begins after this line waits for the lock, and the new policy makes it.
        self.storage.end_basis();
        self.policy.note_evaluation(policy.policy(), now());
        let withdrawn = self.segments.withdraw_forbidden(&policy);
        *in_force = policy;
        self.version.store(version, Ordering::SeqCst);
        drop(in_force);
        into_huge_pages();
        self.push.broadcast(&Event::Policy);
        self.segments.announce(&withdrawn);
        tracing::info!("version {version} of the policy, which another member recorded, is in force: {summary}");
        Ok(())
    }

    /// Puts the cluster's master keys in use, if they differ from the keys in use here.
    ///
    /// # Errors
    /// Fails if the keys are malformed, the key file cannot be written, or the database cannot be read.
    pub async fn follow_keys(&self, bytes: &[u8]) -> Result<()> {
        if self.keyring.is(bytes) {
            return Ok(());
        }
        let keys = MasterKeys::parse(bytes).context("the cluster's master keys are malformed")?;
        self.directory.replace_master_keys(bytes)?;
        let anew = self.keyring.differs_now(&keys, now());
        self.replace_keys(keys, anew).await?;
        Ok(())
    }

    /// Puts the cluster's text of `networks.toml` in force, and writes it to this member's file. Does nothing if this
    /// member has already followed this text.
    ///
    /// # Errors
    /// Fails if the text is not valid, or the file cannot be written.
    pub async fn follow_networks(&self, text: String) -> Result<()> {
        let networks = Networks::parse(&text).map_err(|faults| anyhow::anyhow!(faults.in_file("networks.toml")))?;
        let mut shared = self.networks.lock().await;
        if shared.as_deref() == Some(text.as_str()) {
            return Ok(());
        }
        let (directory, before, written) = (self.directory.clone(), shared.clone(), text.clone());
        let write = move || directory.follow_networks(&written, |there| before.as_deref() == Some(there));
        tokio::task::spawn_blocking(write).await??;
        let policy = self.policy.write().await;
        self.segments.replace_networks(networks, &policy);
        *shared = Some(text);
        let withdrawn = self.segments.withdraw_forbidden(&policy);
        drop(policy);
        self.push.broadcast(&Event::Policy);
        self.segments.announce(&withdrawn);
        Ok(())
    }
}
