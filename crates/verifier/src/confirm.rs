//! Confirms grants to the authority once this verifier knows them, so that the authority releases them to their
//! clients.

use api::{Confirm, LIVE_FLOWS_MAX};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

/// Handles queued for confirmation; if the queue is full, clients wait until the authority's timeout.
const QUEUE: usize = LIVE_FLOWS_MAX;

/// Sends confirmations in a task of its own.
pub struct Confirmer {
    confirms: Confirm,
    handles: Sender<u64>,
    task: JoinHandle<()>,
}

impl Confirmer {
    /// Starts the task. `confirms` is the kind of grant that this verifier must know before it can admit the client.
    pub fn new(authority: client::Authority, confirms: Confirm) -> Self {
        let (handles, queued) = channel(QUEUE);
        Self { confirms, handles, task: tokio::spawn(keep(authority, queued)) }
    }

    /// Queues a handle for confirmation if this verifier confirms grants of this kind.
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
