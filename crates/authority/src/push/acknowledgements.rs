//! Confirmations that verifiers have received a grant: a first packet must not overtake its grant's announcement.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Time limit for a confirmation. A verifier that hangs delays a grant by this much; the client may then have to send
/// its first packet twice.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of confirmations counted per grant: two from each of a verifier's streams.
const MOST: usize = 8;

/// A verifier's id and a grant's handle.
type Key = (String, u64);

/// Confirmations that the authority waits for.
#[derive(Default)]
pub struct Confirmations(Mutex<HashMap<Key, Arc<Semaphore>>>);

impl Confirmations {
    /// Starts counting a verifier's confirmations of a grant.
    pub fn expect(&self, verifier: &str, handle: u64) -> Expected<'_> {
        let (key, heard) = ((verifier.to_owned(), handle), Arc::new(Semaphore::new(0)));
        self.lock().insert(key.clone(), heard.clone());
        Expected { of: self, key, heard }
    }

    /// Records that a verifier has confirmed these grants.
    pub fn note(&self, verifier: &str, handles: &[u64]) {
        let expected = self.lock();
        for handle in handles {
            let heard = expected.get(&(verifier.to_owned(), *handle));
            if let Some(heard) = heard.filter(|heard| heard.available_permits() < MOST) {
                heard.add_permits(1);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Semaphore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Confirmations expected for one grant.
pub struct Expected<'a> {
    of: &'a Confirmations,
    key: Key,
    heard: Arc<Semaphore>,
}

impl Expected<'_> {
    /// Waits for `count` confirmations, for at most `PATIENCE`. Reports whether they arrived.
    pub async fn wait(&self, count: usize) -> bool {
        let count = count.min(MOST) as u32;
        timeout(PATIENCE, self.heard.acquire_many(count)).await.is_ok()
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.of.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_grant_waits_for_all_streams_and_not_for_ever() {
        let confirmations = Confirmations::default();
        let expected = confirmations.expect("edge", 7);
        assert!(expected.wait(0).await);
        confirmations.note("edge", &[7, 8]);
        confirmations.note("other", &[7]);
        assert!(expected.wait(1).await && !expected.wait(2).await);
        confirmations.note("edge", &[7]);
        assert!(expected.wait(2).await);
        drop(expected);
        assert!(confirmations.lock().is_empty());
    }
}
