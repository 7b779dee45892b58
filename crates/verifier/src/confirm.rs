//! Confirms to the authority the grants that this verifier has heard of, so that whoever asked for one gets it.

use engine::api::{Confirm, LIVE_FLOWS_MAX};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

/// Handles that wait to be confirmed; beyond that somebody waits for the authority's patience to end.
const QUEUE: usize = LIVE_FLOWS_MAX;

/// What confirms, beside everything else.
pub struct Confirmer {
    confirms: Confirm,
    handles: Sender<u64>,
    task: JoinHandle<()>,
}

impl Confirmer {
    /// Confirms what this verifier could not admit without having heard of it.
    pub fn new(authority: client::Authority, confirms: Confirm) -> Self {
        let (handles, heard) = channel(QUEUE);
        Self { confirms, handles, task: tokio::spawn(keep(authority, heard)) }
    }

    /// What this confirms.
    pub fn confirms(&self) -> Confirm {
        self.confirms
    }

    /// Confirms a grant of this kind.
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

async fn keep(authority: client::Authority, mut heard: Receiver<u64>) {
    let mut handles = Vec::new();
    while heard.recv_many(&mut handles, LIVE_FLOWS_MAX).await > 0 {
        if let Err(error) = authority.heard(std::mem::take(&mut handles)).await {
            tracing::debug!(%error, "cannot confirm");
        }
    }
}
