//! Limits how many requests of one account are processed concurrently; further requests wait. All requests share the
//! processor, and they queue at the verifiers, which confirm grants in the order of their arrival. With this limit, an
//! account's request waits for at most a few requests of every other account.

use crate::http::throttle::{Key, Throttle};
use crate::storage::verifiers_line;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of concurrent requests of one account. An agent that needs more waits some milliseconds.
const AT_WORK: usize = 4;

/// Makes requests wait while too many requests of the same account are in progress, or while the account exceeds its
/// rate.
pub struct RequestQueue {
    turns: Turns,
    throttle: Arc<Throttle>,
}

impl RequestQueue {
    /// Creates a queue that limits the rate of each account with a token bucket in `throttle`.
    pub fn new(throttle: Arc<Throttle>) -> Self {
        Self { turns: Turns::default(), throttle }
    }

    /// Waits until the account is allowed to make another request: at most four are processed concurrently, and 200 in
    /// a second on average. The turn lasts until it is dropped. The queue delays requests and does not refuse them,
    /// because a refused client would send its request again at once.
    pub async fn turn(&self, person: &str) -> Turn<'_> {
        let turn = self.charged_turn(person).await;
        while let Err(wait) = self.throttle.charge(&[Key::Requests(person.into())], Instant::now()) {
            tokio::time::sleep(wait).await;
        }
        turn
    }

    /// Waits for the turn of a request whose token was taken from the account's bucket before; see [`Self::turn`].
    pub async fn charged_turn(&self, person: &str) -> Turn<'_> {
        self.turns.wait(person).await
    }

    /// Reports whether the account is idle: none of its requests is in progress or waits. A request that needs no turn
    /// may be answered only while the account is idle. Otherwise it would take the token for which another request of
    /// the account waits.
    pub fn is_idle(&self, person: &str) -> bool {
        !self.turns.lock().contains_key(person)
    }

    /// Waits for the turn of a verifier's request that reads the database; see [`Self::turn`].
    pub async fn turn_of_verifier(&self, verifier: &str) -> Turn<'_> {
        self.turn(&verifiers_line(verifier)).await
    }
}

/// For each account with requests, the semaphore for its concurrent requests.
#[derive(Default)]
struct Turns(Mutex<HashMap<String, Arc<Semaphore>>>);

/// A permit for one request of an account. Dropping it lets the account's next request proceed.
pub struct Turn<'t> {
    turns: &'t Turns,
    person: String,
    permits: Option<Arc<Semaphore>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Waits for a permit for one request of the account, in order of arrival.
    async fn wait(&self, person: &str) -> Turn<'_> {
        let permits = self.lock().entry(person.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(AT_WORK))).clone();
        // Created before waiting, so that the table is cleaned up even if the request is cancelled while it waits.
        let mut turn = Turn { turns: self, person: person.to_owned(), permits: Some(permits.clone()), permit: None };
        // `acquire_owned` fails only if the semaphore is closed, which never happens.
        turn.permit = permits.acquire_owned().await.ok();
        turn
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Semaphore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.permit = None;
        let mut all = self.turns.lock();
        self.permits = None;
        // If only the table still refers to the semaphore, no other request of the account waits or runs.
        if all.get(&self.person).is_some_and(|permits| Arc::strong_count(permits) == 1) {
            all.remove(&self.person);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn an_account_waits_behind_itself_only_and_is_forgotten() {
        let turns = Turns::default();
        let mut own: Vec<_> = (0..AT_WORK).filter_map(|_| turns.wait("mallory").now_or_never()).collect();
        assert_eq!(own.len(), AT_WORK);
        let mut next = Box::pin(turns.wait("mallory"));
        assert!(next.as_mut().now_or_never().is_none());
        assert!(turns.wait("alice").now_or_never().is_some());
        own.pop();
        let next = next.now_or_never();
        assert!(next.is_some());
        let gone = Box::pin(turns.wait("mallory"));
        drop((own, next, gone));
        assert!(turns.lock().is_empty());
    }
}
