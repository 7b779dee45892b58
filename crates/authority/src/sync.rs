//! Synchronises the authority's memory, and the listeners of its push channel, with the database.
//!
//! The database is authoritative; sessions, verifiers and preferences are also held in memory, so that a call costs no
//! look-up. Code that changes them writes the database first and then calls [`Synchroniser::run`].

use crate::login::Sessions;
use crate::now;
use crate::policy::{PolicyInForce, PreferenceTable};
use crate::push::events::{Listener, Push};
use crate::push::reports::Reports;
use crate::push::verifiers::Verifiers;
use crate::segments::{RequestLines, SegmentIssuer};
use crate::single_flight::SingleFlight;
use crate::storage::{Database, Ended, Storage};
use anyhow::Result;
use api::{Event, RevokedGrant};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Synchronises memory and listeners with the database.
pub struct Synchroniser {
    pub(crate) storage: Arc<Storage>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) verifiers: Arc<Verifiers>,
    pub(crate) preferences: Arc<PreferenceTable>,
    pub(crate) policy: Arc<PolicyInForce>,
    pub(crate) segments: Arc<SegmentIssuer>,
    pub(crate) lines: Arc<RequestLines>,
    pub(crate) push: Arc<Push>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) runs: SingleFlight,
}

impl Synchroniser {
    /// Closes the streams of sessions and verifiers that are gone, announces revoked grants, and makes verifiers
    /// recheck flows that outlived their grants. Concurrent calls share one run that begins after they were made. The
    /// caller must not hold a lock of the policy.
    pub async fn run(&self) -> Result<()> {
        self.runs.run(async || self.run_once().await).await
    }

    async fn run_once(&self) -> Result<()> {
        let Self { sessions, verifiers, preferences, push, .. } = self;
        let (sessions, verifiers) = (sessions.clone(), verifiers.clone());
        let (preferences, push) = (preferences.clone(), push.clone());
        // All by the storage's thread, which completes even if the caller is cancelled: each announcement is taken from
        // the database once.
        let synchronise = move |database: &mut Database| {
            let gone = database.take_ended_sessions()?;
            let (ended, rechecks) = (database.take_unannounced()?, database.take_rechecks()?);
            let choices = database.preferences()?.into_iter().map(|(person, own)| (person, Arc::new(own))).collect();
            let live: HashMap<_, _> =
                database.sessions(now())?.into_iter().map(|(token, session)| (token, Arc::new(session))).collect();
            let tokens: HashSet<_> = live.keys().copied().collect();
            let ids = database.verifier_tokens()?.into_iter().map(|(token, id)| (token, Arc::from(id))).collect();
            sessions.replace(live);
            verifiers.replace(ids);
            preferences.replace(choices);
            push.announce_ended(gone);
            push.announce_revoked(ended.into_iter().flat_map(|Ended { grant, verifier, session }| {
                // Sessions don't learn holders.
                let unnamed = RevokedGrant { holder: 0, ..grant };
                [(Listener::Verifier(verifier), grant), (Listener::Session(session), unnamed)]
            }));
            for verifier in rechecks {
                push.send(&Listener::Verifier(verifier), &Event::Recheck);
            }
            Ok(tokens)
        };
        let live = self.storage.call(synchronise).await?;
        self.lines.keep(|token| live.contains(token));
        if self.segments.any() {
            let withdrawn = self.segments.withdraw_forbidden(&*self.policy.read().await);
            self.segments.announce(&withdrawn);
        }
        self.close_streams();
        Ok(())
    }

    /// Closes the streams of listeners that are no longer authorised.
    pub fn close_streams(&self) {
        let ids = self.verifiers.ids();
        self.push.close_unless(|listener| match listener {
            Listener::Session(token) => self.sessions.any(token).is_some(),
            Listener::Verifier(id) => ids.contains(id.as_str()),
        });
        self.reports.keep(|verifier| ids.contains(verifier));
    }
}
