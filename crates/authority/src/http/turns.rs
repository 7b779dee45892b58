//! Limits how many requests of one account are processed concurrently; the others wait. A request of another account
//! then competes only with these few, for the processor and at verifiers, which confirm grants in the order of their
//! arrival.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of concurrent requests of one account. An agent that needs more waits some milliseconds.
const AT_WORK: usize = 4;

/// The accounts with requests, and the places of each.
#[derive(Default)]
pub struct Turns(Mutex<HashMap<String, Arc<Semaphore>>>);

/// A place among an account's concurrent requests, until this is dropped.
pub struct Turn<'t> {
    turns: &'t Turns,
    person: String,
    places: Option<Arc<Semaphore>>,
    place: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Waits until one of the account's places is free, in order of arrival.
    pub async fn wait(&self, person: &str) -> Turn<'_> {
        self.wait_for(person, 1).await
    }

    /// Waits until all the account's requests that have a place now are done. Its later requests wait meanwhile.
    pub async fn wait_for_all(&self, person: &str) {
        drop(self.wait_for(person, AT_WORK as u32).await);
    }

    async fn wait_for(&self, person: &str, count: u32) -> Turn<'_> {
        let places = self.lock().entry(person.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(AT_WORK))).clone();
        // Created before waiting, so that a request that is cancelled meanwhile is cleaned up too.
        let mut turn = Turn { turns: self, person: person.to_owned(), places: Some(places.clone()), place: None };
        // Fails only if the semaphore is closed, which never happens.
        turn.place = places.acquire_many_owned(count).await.ok();
        turn
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Semaphore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.place = None;
        let mut all = self.turns.lock();
        self.places = None;
        // Only the table still refers to the semaphore: no other request of the account waits or runs.
        if all.get(&self.person).is_some_and(|places| Arc::strong_count(places) == 1) {
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
