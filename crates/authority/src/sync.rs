//! Synchronises the authority's tables in memory, and the listeners of its push channel, with the database.
//!
//! The database is authoritative. Sessions, verifiers, preferences and consents are also held in memory, so that a call
//! needs no look-up in the database. Code that changes one of them writes the database first and then calls
//! [`Synchroniser::run`].

use crate::cluster::confirm::{Confirmation, Followed};
use crate::leases::Leases;
use crate::login::Sessions;
use crate::now;
use crate::policy::{ConsentTable, PolicyInForce, PreferenceTable};
use crate::push::events::{Listener, Push};
use crate::push::reports::Reports;
use crate::push::verifiers::Verifiers;
use crate::segments::{RequestLines, SegmentIssuer};
use crate::single_flight::SingleFlight;
use crate::storage::{Database, Storage};
use anyhow::Result;
use api::Event;
use engine::model::random_keys::RandomKeys;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Synchronises tables in memory and listeners with the database.
pub struct Synchroniser {
    pub(crate) storage: Arc<Storage>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) verifiers: Arc<Verifiers>,
    pub(crate) preferences: Arc<PreferenceTable>,
    pub(crate) consents: Arc<ConsentTable>,
    pub(crate) policy: Arc<PolicyInForce>,
    pub(crate) segments: Arc<SegmentIssuer>,
    pub(crate) lines: Arc<RequestLines>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) push: Arc<Push>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) confirmation: Arc<Confirmation>,
    pub(crate) runs: SingleFlight,
    /// Whether the authority still has to notify the listeners that the policy changed.
    pub(crate) is_policy_untold: Arc<AtomicBool>,
    /// Whether a run has begun and has not ended: it goes on, or it failed, or its caller was cancelled.
    pub(crate) is_unfinished: AtomicBool,
}

impl Synchroniser {
    /// Reads sessions, verifiers, preferences and consents from the database into memory. Announces ended sessions and
    /// revoked grants, and makes verifiers ask about flows that outlived their grants. Withdraws consent to segments
    /// that are no longer allowed. Closes the streams of sessions and verifiers that no longer exist. Concurrent calls
    /// share one run that begins after they were made. The caller must not hold a lock of the policy.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written.
    pub async fn run(&self) -> Result<()> {
        self.runs.run(async || self.run_once().await).await
    }

    /// Reports whether the last run is unfinished: it is still in progress, has failed or was cancelled. A client that
    /// closes its connection cancels the run that serves its call. Another run is then necessary, because the cancelled
    /// one may not have withdrawn consent to segments.
    pub fn is_unfinished(&self) -> bool {
        self.is_unfinished.load(Ordering::SeqCst)
    }

    /// Does what [`Self::run`] does, and notifies all listeners that the policy changed, together with the revocations.
    /// If the run fails, still notifies them that the policy changed.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written.
    pub async fn run_for_policy(&self) -> Result<()> {
        self.is_policy_untold.store(true, Ordering::SeqCst);
        let done = self.run().await;
        if self.is_policy_untold.swap(false, Ordering::SeqCst) {
            self.push.broadcast(&Event::Policy);
        }
        done
    }

    /// Does what [`Self::run`] does, and waits until the connected verifiers have carried out what was announced to
    /// them, and the other members of the cluster have followed. Waits for three seconds at most, in a cluster for
    /// seven. Logs the verifiers and members that have not done so in this time.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written.
    pub async fn run_everywhere(&self) -> Result<()> {
        self.run().await?;
        let followed = self.confirmation.wait().await?;
        if followed.is_late() || !followed.absent.is_empty() {
            tracing::warn!("a change is recorded{followed}");
        }
        Ok(())
    }

    /// Waits until the connected verifiers have carried out everything that was announced to them, and the other
    /// members of the cluster have followed everything that this member has recorded. Waits for three seconds at most,
    /// in a cluster for seven.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn confirmed(&self) -> Result<Followed> {
        self.confirmation.wait().await
    }

    async fn run_once(&self) -> Result<()> {
        self.is_unfinished.store(true, Ordering::SeqCst);
        let Self { sessions, verifiers, preferences, push, .. } = self;
        let (sessions, verifiers) = (sessions.clone(), verifiers.clone());
        let (preferences, push) = (preferences.clone(), push.clone());
        let (leases, consents) = (self.leases.clone(), self.consents.clone());
        let is_policy_untold = self.is_policy_untold.clone();
        // The storage thread does all of this, because its work completes even if the caller is cancelled: each
        // announcement is taken from the database only once.
        let synchronise = move |database: &mut Database| {
            let (gone, rechecks) = (database.take_ended_sessions()?, database.take_rechecks()?);
            let choices = database.preferences()?.into_iter().map(|(person, own)| (person, Arc::new(own))).collect();
            let made = database.consent_changes()?;
            let given = if made == consents.made() { None } else { Some((made, database.consents()?)) };
            preferences.replace(choices);
            if let Some((made, given)) = given {
                consents.replace(made, given);
            }
            // The revocations are announced before the sessions are read, which takes long if there are many. The new
            // choices and consents already decide about requests for other grants in this time.
            let ended = database.take_unannounced()?;
            leases.remove_revoked(&ended);
            let revoked = leases.announcements(&ended, now());
            if is_policy_untold.swap(false, Ordering::SeqCst) {
                push.announce_policy(revoked);
            } else {
                push.announce_revoked(revoked);
            }
            let live = database.sessions(now())?.into_iter().map(|(token, session)| (token, Arc::new(session)));
            let live: RandomKeys<_, _> = live.collect();
            let tokens: HashSet<_> = live.keys().copied().collect();
            let ids = database.verifier_tokens()?.into_iter().map(|(token, id)| (token, Arc::from(id))).collect();
            sessions.replace(live);
            verifiers.replace(ids);
            push.announce_ended(gone);
            leases.keep(&tokens, now());
            for verifier in rechecks {
                push.send(&Listener::Verifier(verifier), &Event::Recheck);
            }
            Ok(tokens)
        };
        let live = self.storage.call(synchronise).await?;
        self.lines.keep(|token| live.contains(token));
        self.storage.keep_sessions(&live);
        if self.segments.any() {
            let withdrawn = self.segments.withdraw_forbidden(&*self.policy.read().await);
            self.segments.announce(&withdrawn);
        }
        self.close_streams();
        self.is_unfinished.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Closes the streams of sessions that have ended and of verifiers that were removed.
    pub fn close_streams(&self) {
        let ids = self.verifiers.ids();
        self.push.close_unless(|listener| match listener {
            Listener::Session(token) => self.sessions.any(token).is_some(),
            Listener::Verifier(id) => ids.contains(id.as_str()),
        });
        self.reports.keep(|verifier| ids.contains(verifier));
    }
}
