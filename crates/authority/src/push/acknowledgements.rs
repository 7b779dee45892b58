//! Acknowledgements: a verifier confirms that it has received a grant's announcement. The authority waits for the
//! acknowledgement before it gives the grant to the client, so that a first packet does not reach the verifier before
//! the announcement.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use wire::Handle;

/// Maximum time that the authority waits for confirmations. A verifier that hangs delays a grant by this much, and the
/// client may then have to send its first packet twice.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of confirmations counted per grant: two (for a pair and for its owner) from each of a verifier's
/// streams.
const MOST: usize = 8;

/// A verifier's id and a grant's handle.
type Key = (String, Handle);

/// Counters of the confirmations by which verifiers say that they have received a grant's announcement.
#[derive(Default)]
pub struct Acknowledgements(Mutex<HashMap<Key, Arc<Semaphore>>>);

impl Acknowledgements {
    /// Starts counting a verifier's confirmations of a grant. Counting ends when the result is dropped.
    pub fn expect(&self, verifier: &str, handle: Handle) -> Expected<'_> {
        let (key, acks) = ((verifier.to_owned(), handle), Arc::new(Semaphore::new(0)));
        self.lock().insert(key.clone(), acks.clone());
        Expected { of: self, key, acks }
    }

    /// Records that a verifier has confirmed these grants.
    pub fn note(&self, verifier: &str, handles: &[Handle]) {
        let expected = self.lock();
        for handle in handles {
            let acks = expected.get(&(verifier.to_owned(), *handle));
            if let Some(acks) = acks.filter(|acks| acks.available_permits() < MOST) {
                acks.add_permits(1);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Semaphore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Acknowledgements expected for one grant.
pub struct Expected<'a> {
    of: &'a Acknowledgements,
    key: Key,
    acks: Arc<Semaphore>,
}

impl Expected<'_> {
    /// Waits until `count` confirmations have arrived, for at most 500 ms. Reports whether they arrived.
    pub async fn wait(&self, count: usize) -> bool {
        let count = count.min(MOST) as u32;
        timeout(PATIENCE, self.acks.acquire_many(count)).await.is_ok()
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
        let acknowledgements = Acknowledgements::default();
        let expected = acknowledgements.expect("edge", Handle(7));
        assert!(expected.wait(0).await);
        acknowledgements.note("edge", &[Handle(7), Handle(8)]);
        acknowledgements.note("other", &[Handle(7)]);
        assert!(expected.wait(1).await && !expected.wait(2).await);
        acknowledgements.note("edge", &[Handle(7)]);
        assert!(expected.wait(2).await);
        drop(expected);
        assert!(acknowledgements.lock().is_empty());
    }
}
