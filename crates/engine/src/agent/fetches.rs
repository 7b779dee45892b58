//! A session's open requests for grants. Their number is limited. So one person gets only a share of the agent's
//! resources, even if a program scans all protected destinations, or if an authority never answers.

use super::FetchId;
use ipnet::IpNet;
use std::time::Duration;
use wire::{Destination, Handle};

/// Maximum number of open requests for destinations without a grant.
pub const FETCHES_MAX: usize = 64;
/// Maximum number of open requests that renew grants. Renewals have a limit of their own, so that they take no room
/// from requests for which packets wait.
pub const RENEWALS_MAX: usize = 64;
/// First pause before a failed request is repeated.
const PAUSE: Duration = Duration::from_millis(250);
/// Longest pause before a failed request is repeated: `PAUSE_WAITING` if frames wait for the answer, otherwise
/// `PAUSE_IDLE`.
const PAUSE_WAITING: Duration = Duration::from_secs(4);
pub const PAUSE_IDLE: Duration = Duration::from_secs(30);

/// The addresses and service of the latest grant for a receiver. The agent expects the next grant for this receiver to
/// cover the same addresses and service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Guess {
    pub prefix: IpNet,
    pub service: Option<(u8, u16)>,
}

/// A request to the authority.
pub(super) struct Fetch {
    pub id: FetchId,
    pub place: Destination,
    /// The addresses and service that the agent expected the grant to cover when it made the request.
    pub guess: Guess,
    pub renews: Option<Handle>,
    attempts: u32,
    /// Time at which to repeat the request; `None` while the request awaits its answer.
    retry: Option<Duration>,
}

#[derive(Default)]
pub(super) struct Fetches(Vec<Fetch>);

impl Fetches {
    /// Reports whether there is room for one more open request. Requests that renew a grant (`renews`) and all others
    /// have separate limits.
    pub fn has_room(&self, renews: bool) -> bool {
        let most = if renews { RENEWALS_MAX } else { FETCHES_MAX };
        self.0.iter().filter(|fetch| fetch.renews.is_some() == renews).count() < most
    }

    pub fn push(&mut self, id: FetchId, place: Destination, guess: Guess, renews: Option<Handle>) {
        self.0.push(Fetch { id, place, guess, renews, attempts: 0, retry: None });
    }

    /// Returns the open request whose answer is likely to cover this destination, if there is one.
    pub fn covering(&self, place: &Destination, guess: &Guess) -> Option<FetchId> {
        self.0.iter().find(|fetch| fetch.place == *place || fetch.guess == *guess).map(|fetch| fetch.id)
    }

    pub fn get(&self, id: FetchId) -> Option<&Fetch> {
        self.0.iter().find(|fetch| fetch.id == id)
    }

    pub fn take(&mut self, id: FetchId) -> Option<Fetch> {
        let index = self.0.iter().position(|fetch| fetch.id == id)?;
        Some(self.0.remove(index))
    }

    pub fn renews(&self, handle: Handle) -> bool {
        self.0.iter().any(|fetch| fetch.renews == Some(handle))
    }

    /// Records that a request got no usable answer, and sets the time at which to repeat it.
    pub fn failed(&mut self, now: Duration, id: FetchId) {
        if let Some(fetch) = self.0.iter_mut().find(|fetch| fetch.id == id) {
            let longest = if fetch.renews.is_some() { PAUSE_IDLE } else { PAUSE_WAITING };
            fetch.retry = Some(now + pause(fetch.attempts, longest));
            fetch.attempts += 1;
        }
    }

    pub fn retry_at_once(&mut self, now: Duration) {
        for fetch in &mut self.0 {
            fetch.retry = fetch.retry.map(|retry| retry.min(now));
        }
    }

    /// Returns the due requests for which `matters` returns true. The caller has to repeat them. Removes the other due
    /// requests.
    pub fn due(&mut self, now: Duration, matters: impl Fn(&Fetch) -> bool) -> Vec<(FetchId, Destination)> {
        let mut due = Vec::new();
        self.0.retain_mut(|fetch| {
            if fetch.retry.is_none_or(|at| at > now) {
                return true;
            }
            let matters = matters(fetch);
            if matters {
                fetch.retry = None;
                due.push((fetch.id, fetch.place));
            }
            matters
        });
        due
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the time at which the next failed request is to be repeated; `None` if no request is to be repeated.
    pub fn timeout(&self) -> Option<Duration> {
        self.0.iter().filter_map(|fetch| fetch.retry).min()
    }
}

/// Returns the time to wait after `attempts` failures, at most `longest`.
pub(super) fn pause(attempts: u32, longest: Duration) -> Duration {
    PAUSE.saturating_mul(1 << attempts.min(10)).min(longest)
}
