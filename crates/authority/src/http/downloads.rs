//! Limits how many downloads of the audit trail run concurrently.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of concurrent downloads.
const MOST: usize = 2;

/// The permits for concurrent downloads of the audit trail.
pub struct Downloads(Arc<Semaphore>);

impl Default for Downloads {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST)))
    }
}

impl Downloads {
    /// Returns a permit for one download, or `None` if too many downloads are in progress. The permit must be dropped
    /// when the download ends.
    pub fn begin(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_owned().ok()
    }
}
