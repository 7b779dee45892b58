//! Limits how many requests of one account are processed concurrently; the others wait. A request of another account
//! then competes only with these few, for the processor and at verifiers, which confirm grants in the order of their
//! arrival.

use crate::http::throttle::{Key, Throttle};
use crate::storage::verifiers_line;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of concurrent requests of one account. An agent that needs more waits some milliseconds.
const AT_WORK: usize = 4;

/// Makes each account's requests wait for its earlier ones, and for its rate.
pub struct RequestQueue {
    turns: Turns,
    throttle: Arc<Throttle>,
}

impl RequestQueue {
    /// Creates a queue whose rates `throttle` counts.
    pub fn new(throttle: Arc<Throttle>) -> Self {
        Self { turns: Turns::default(), throttle }
    }

    /// Waits until an account may make another request: until few of its requests are in progress, and it has made no
    /// more than 200 in a second. The turn lasts until it is dropped. Refusing would not help, because a refused client
    /// asks again at once.
    pub async fn turn(&self, person: &str) -> Turn<'_> {
        let turn = self.turns.wait(person).await;
        while let Err(wait) = self.throttle.charge(&[Key::Requests(person.into())], Instant::now()) {
            tokio::time::sleep(wait).await;
        }
        turn
    }

    /// Like [`Self::turn`], for the requests of a verifier that read the database.
    pub async fn turn_of_verifier(&self, verifier: &str) -> Turn<'_> {
        self.turn(&verifiers_line(verifier)).await
    }

    /// Waits until all requests of an account that have their [turn](Self::turn) now are done. Its later requests wait
    /// meanwhile.
    pub async fn drain(&self, person: &str) {
        drop(self.turns.wait_for(person, AT_WORK as u32).await);
    }
}

/// The accounts with requests, and the places of each.
#[derive(Default)]
struct Turns(Mutex<HashMap<String, Arc<Semaphore>>>);

/// A place among an account's concurrent requests, until this is dropped.
pub struct Turn<'t> {
    turns: &'t Turns,
    person: String,
    permits: Option<Arc<Semaphore>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Waits until one of the account's places is free, in order of arrival.
    async fn wait(&self, person: &str) -> Turn<'_> {
        self.wait_for(person, 1).await
    }

    async fn wait_for(&self, person: &str, count: u32) -> Turn<'_> {
        let permits = self.lock().entry(person.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(AT_WORK))).clone();
        // Created before waiting, so that a request that is cancelled meanwhile is cleaned up too.
        let mut turn = Turn { turns: self, person: person.to_owned(), permits: Some(permits.clone()), permit: None };
        // Fails only if the semaphore is closed, which never happens.
        turn.permit = permits.acquire_many_owned(count).await.ok();
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
        // Only the table still refers to the semaphore: no other request of the account waits or runs.
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
