//! Who may ask for segments by UDP, and what became of their requests.

use super::account::Account;
use crate::storage::TokenHash;
use engine::lines::{Lines, Unanswered};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use wire::ask::Refusal as Reason;

/// Who may ask by UDP, and what became of what was asked.
#[derive(Default)]
pub struct Datagrams {
    lines: Mutex<Lines<TokenHash>>,
    /// Where requests are taken, once they are.
    pub(super) port: OnceLock<u16>,
    pub(super) account: Account,
    pub(super) counts: Counts,
}

/// How many requests came to what.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) given: AtomicU64,
    pub(super) refused: [AtomicU64; Reason::ALL.len()],
    pub(super) unanswered: [AtomicU64; Unanswered::ALL.len()],
}

impl Datagrams {
    /// Takes away the lines of sessions that are not kept.
    pub(crate) fn keep(&self, is_kept: impl Fn(&TokenHash) -> bool) {
        self.lines().keep(is_kept);
    }

    /// How many requests came to what, by name.
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
