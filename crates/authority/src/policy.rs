//! Puts the text of a policy in force: the text is read within limits, checked by its own tests, recorded as a version,
//! and put in force as a whole or not at all.

pub(crate) mod candidate;
mod preferences;
pub mod replay;

use crate::now;
use crate::state::Authority;
use crate::storage::{Operator, PolicyChange};
use anyhow::Result;
use api::Event;
use candidate::{Candidate, into_huge_pages};
use shell::table::count;

impl Authority {
    /// Puts a policy and the current `networks.toml` in force. `text`, if given, also replaces the policy file; without
    /// it, the file is read. Nothing changes if the policy is invalid, or if `after` is given and is not the version in
    /// force.
    pub async fn apply_policy(
        &self,
        text: Option<String>,
        note: String,
        by: Option<Operator>,
        after: Option<i64>,
    ) -> Result<String> {
        let (directory, max_lifetime) = (self.directory.clone(), self.config.max_lifetime);
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
        // Whoever decides from here on waits for the lock, and then decides by the new policy.
        self.storage.end_basis();
        let time = now();
        let forbidden = self.forbidden(&policy, time).await?;
        let revoked = forbidden.len();
        let summary = format!("{summary} in force; {} revoked", count(revoked, "grant"));
        let change = PolicyChange { text, note, by, summary: summary.clone(), after };
        let directory = self.directory.clone();
        let version = self
            .storage
            .call(move |database| {
                let put = || if replaces { directory.replace_policy(&change.text) } else { Ok(()) };
                database.apply_policy(&change, &forbidden, time, put)
            })
            .await?;
        self.watch(policy.policy(), time);
        self.segments.describe(networks, &policy);
        *in_force = policy;
        drop(in_force);
        into_huge_pages();
        // Announce receivers before revocations: a verifier that reads its configuration at the first event then sees
        // both.
        self.push.tell_all(&Event::Policy);
        let before = self.withdrawn_so_far();
        self.sync().await?;
        let withdrawn = match (self.withdrawn_so_far() - before) as usize {
            0 => String::new(),
            some => format!("; {} of consent to segments", count(some, "withdrawal")),
        };
        let text = format!("version {version}: {summary}{withdrawn}");
        tracing::info!("policy: {text}");
        Ok(text)
    }
}
