//! Confirms to the authority that this verifier knows a grant. The authority waits a short time for this confirmation
//! before it sends the grant to its client.

use api::{Confirm, LIVE_FLOWS_MAX};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

/// Maximum number of handles queued for confirmation. If the queue is full, a handle is not confirmed, and its client
/// waits until the authority's timeout.
const QUEUE: usize = LIVE_FLOWS_MAX;

/// Confirms to the authority, in a separate task, that its announcements of grants have arrived at this verifier.
pub struct Confirmer {
    confirms: Confirm,
    handles: Sender<u64>,
    task: JoinHandle<()>,
}

impl Confirmer {
    /// Starts the task. `confirms` determines which kinds of grants are confirmed.
    pub fn new(authority: client::Authority, confirms: Confirm) -> Self {
        let (handles, queued) = channel(QUEUE);
        Self { confirms, handles, task: tokio::spawn(keep(authority, queued)) }
    }

    /// Queues a grant's handle for confirmation, if grants of this kind are confirmed.
    pub fn note(&self, kind: Confirm, handle: u64) {
        if kind <= self.confirms {
            let _ = self.handles.try_send(handle);
        }
    }
}

impl Drop for Confirmer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(authority: client::Authority, mut queued: Receiver<u64>) {
    let mut handles = Vec::new();
    while queued.recv_many(&mut handles, LIVE_FLOWS_MAX).await > 0 {
        if let Err(error) = authority.acknowledge(std::mem::take(&mut handles)).await {
            tracing::debug!(%error, "cannot confirm grants to the authority");
        }
    }
}
