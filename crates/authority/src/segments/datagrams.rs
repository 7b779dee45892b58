//! State of the UDP service for segments: the lines of sessions, and counters of the outcomes.

use super::account::Account;
use crate::storage::TokenHash;
use engine::issuing::lines::{Lines, Unanswered};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use wire::ask::Refusal as Reason;

/// State of the UDP service for segments.
#[derive(Default)]
pub struct Datagrams {
    lines: Mutex<Lines<TokenHash>>,
    /// The port of the service, once it runs.
    pub(super) port: OnceLock<u16>,
    pub(super) account: Account,
    pub(super) counts: Counts,
}

/// Number of requests by outcome.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) given: AtomicU64,
    pub(super) refused: [AtomicU64; Reason::ALL.len()],
    pub(super) unanswered: [AtomicU64; Unanswered::ALL.len()],
}

impl Datagrams {
    /// Removes the lines of the sessions for which `is_kept` returns false.
    pub(crate) fn keep(&self, is_kept: impl Fn(&TokenHash) -> bool) {
        self.lines().keep(is_kept);
    }

    /// Returns the number of requests by the name of the outcome.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let Counts { given, refused, unanswered } = &self.counts;
        let refused = Reason::ALL.iter().zip(refused).map(|(reason, count)| (reason.name(), count));
        let unanswered = Unanswered::ALL.iter().zip(unanswered).map(|(why, count)| (why.name(), count));
        let all = [("given", given)].into_iter().chain(refused).chain(unanswered);
        all.map(|(name, count)| (name, count.load(Ordering::Relaxed))).collect()
    }

    pub(super) fn lines(&self) -> MutexGuard<'_, Lines<TokenHash>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
