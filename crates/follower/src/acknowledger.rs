//! Confirms the marks on a role's event stream.

use crate::Backoff;
use client::{Authority, Error};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Pauses after a confirmation that has not reached the authority. A command of the authority waits for the
/// confirmation for a few seconds, so the first pause is short.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));

/// Confirms marks to the authority, in a separate task. A mark is an event that the role confirms as soon as it has
/// carried out all events before the mark. On one event stream, the authority sends a mark only after the previous one
/// was confirmed, so one confirmation at a time is enough.
pub struct Acknowledger {
    authority: Authority,
    sending: Option<JoinHandle<()>>,
}

impl Acknowledger {
    /// Creates an acknowledger for the marks of this authority. `authority` has the role's token.
    pub const fn new(authority: Authority) -> Self {
        Self { authority, sending: None }
    }

    /// Starts to confirm a mark. Sends the confirmation again until the authority accepts it. Gives up the confirmation
    /// of an earlier mark, for which the authority no longer waits.
    pub fn confirm(&mut self, mark: u64) {
        self.end();
        self.sending = Some(tokio::spawn(send(self.authority.clone(), mark)));
    }

    fn end(&mut self) {
        if let Some(sending) = self.sending.take() {
            sending.abort();
        }
    }
}

impl Drop for Acknowledger {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sends a confirmation until the authority takes it. The authority does not know the mark if the stream has ended, or
/// if the call has reached another member of the cluster. In the first case, the mark of the next stream ends the
/// attempts.
async fn send(authority: Authority, mark: u64) {
    let mut pauses = PAUSES;
    loop {
        match authority.confirm_mark(mark).await {
            Ok(()) | Err(Error::NotLoggedIn) => return,
            Err(error) => tracing::debug!(%error, "cannot confirm to the authority that its events are carried out"),
        }
        sleep(pauses.pause()).await;
    }
}
