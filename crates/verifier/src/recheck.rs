//! Asks the authority for the grants whose flows have to be cut. This is needed because a flow can outlive its grant,
//! and then no revocation names the grant. Only one request is in progress at a time. If something changes during a
//! request, another request follows.

use crate::shared::Shared;
use api::RevokedGrant;
use client::Error;
use follower::Backoff;
use std::future::pending;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Number of handles per call, fewer than the limit, so that other verifiers get their turn at the authority.
const PER_CALL: usize = 2048;
/// Grants whose flows are to be cut, and the error if the authority did not answer for all handles.
type Answer = (Vec<RevokedGrant>, Option<Error>);

/// Asks the authority, on demand, which grants' flows have to be cut, and asks again after failures.
pub struct Recheck {
    shared: Arc<Shared>,
    authority: client::Authority,
    asking: Option<JoinHandle<Answer>>,
    /// Whether to send another request after the one in progress, because something has changed since that request
    /// began.
    again: bool,
    /// The time of the next attempt after a failure. A new connection to the authority causes an attempt before this
    /// time.
    retry: Option<Instant>,
    backoff: Backoff,
    /// Whether the last request failed.
    is_failing: bool,
}

impl Recheck {
    pub fn new(shared: Arc<Shared>, authority: client::Authority) -> Self {
        Self {
            shared,
            authority,
            asking: None,
            again: false,
            retry: None,
            backoff: Backoff::AUTHORITY,
            is_failing: false,
        }
    }

    /// Sends a request to the authority now, or as soon as the request in progress has ended.
    pub fn want(&mut self) {
        self.again = self.asking.is_some();
        if self.asking.is_none() {
            self.retry = None;
            self.asking = Some(tokio::spawn(ask(self.shared.clone(), self.authority.clone())));
        }
    }

    /// Returns the number of answers that the authority still has to give for all calls of [`Self::want`] so far: 0, 1
    /// or 2.
    pub const fn outstanding(&self) -> u8 {
        match (&self.asking, self.retry) {
            (Some(_), _) if self.again => 2,
            (Some(_), _) | (None, Some(_)) => 1,
            (None, None) => 0,
        }
    }

    /// Reports whether the last request failed.
    pub const fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Waits for the authority's next answer, and returns the grants whose flows have to be cut. The caller can cancel
    /// the wait without losing an answer.
    pub async fn answer(&mut self) -> Vec<RevokedGrant> {
        loop {
            let Some(asking) = &mut self.asking else {
                match self.retry {
                    Some(time) => sleep_until(time).await,
                    None => pending().await,
                }
                self.want();
                continue;
            };
            let answer = asking.await;
            self.asking = None;
            let (cut, error) = answer.unwrap_or_else(|error| (Vec::new(), Some(Error::Other(error.to_string()))));
            if let Some(error) = error {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(
                        %error,
                        "cannot recheck flows with the authority: the flows continue until the authority answers"
                    );
                }
                self.retry = Some(Instant::now() + self.backoff.pause());
            } else {
                self.backoff.reset();
                self.is_failing = false;
            }
            if std::mem::take(&mut self.again) {
                self.want();
            }
            return cut;
        }
    }
}

async fn ask(shared: Arc<Shared>, authority: client::Authority) -> Answer {
    let mut cut = Vec::new();
    // Use a blocking thread: reading a long table takes a while.
    let handles = match tokio::task::spawn_blocking(move || shared.kernel().handles()).await {
        Ok(handles) => handles,
        Err(error) => return (cut, Some(Error::Other(error.to_string()))),
    };
    for handles in handles.chunks(PER_CALL) {
        match authority.flows_to_cut(handles).await {
            Ok(more) => cut.extend(more),
            Err(error) => return (cut, Some(error)),
        }
    }
    tracing::debug!(grants = handles.len(), cut = cut.len(), "rechecked");
    (cut, None)
}
