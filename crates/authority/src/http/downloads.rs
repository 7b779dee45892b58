//! Limits how many audit trails are downloaded concurrently.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of concurrent downloads.
const MOST: usize = 2;

/// The downloads of the audit trail.
pub struct Downloads(Arc<Semaphore>);

impl Default for Downloads {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST)))
    }
}

impl Downloads {
    /// Permits one download until the permit is dropped; returns `None` if too many are in progress.
    pub fn begin(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_owned().ok()
    }
}
