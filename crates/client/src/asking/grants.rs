//! Requests grants by UDP (wire.md §8.14). If no answer comes within a short time, the client also sends the request over
//! HTTPS, and uses the answer that arrives first.

use super::{Asker, Line};
use crate::{Error, convert};
use api::{Grant, GrantRequest, Problem};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use wire::Destination;
use wire::ask::grant::{GrantAnswer, GrantQuestion};
use wire::ask::{REPLY_LEN, Refusal};

/// Time to wait for an answer by UDP before the client sends the request over HTTPS, too.
const PATIENCE: Duration = Duration::from_millis(200);
/// Time after which an answer by UDP counts as lost. The authority waits up to 500 ms for a verifier.
const LOST: Duration = Duration::from_secs(2);

/// Time between two renewals of a line.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

/// The way by which the answer to a request for a grant came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By UDP, on a line.
    Udp,
    /// Over HTTPS.
    Https,
}

impl Asker {
    /// Requests a grant by UDP. Requests it as [`Authority::grant`](crate::Authority::grant) does if there is no line,
    /// if the request can't be sent by UDP, or if a refusal by UDP is not final. After 200 ms without an answer by UDP,
    /// also requests the grant over HTTPS, and takes the first answer. Returns the grant, and the way by which it came.
    ///
    /// # Errors
    ///
    /// Fails as [`Authority::grant`](crate::Authority::grant) does.
    pub async fn grant(&self, request: &GrantRequest) -> Result<(Grant, Way), Error> {
        let mut by_https = pin!(async { self.authority.grant(request).await.map(|grant| (grant, Way::Https)) });
        if let Some(mut by_udp) = self.ask_for_grant(request) {
            // Requests over HTTPS do this, too.
            self.authority.cluster.tend();
            let reply = match timeout(PATIENCE, &mut by_udp).await {
                Ok(reply) => reply,
                Err(_) => tokio::select! {
                    reply = &mut by_udp => reply,
                    answer = &mut by_https => return answer,
                },
            };
            if let Some(answer) = self.read(reply.ok().flatten(), request) {
                return answer;
            }
        }
        by_https.await
    }

    /// Gets another line in the background, because the present one possibly does not work any more: this host is in
    /// another network, or the authority was restarted.
    pub fn renew_line(&self) {
        self.renewal.again.store(true, Ordering::SeqCst);
        if self.renewal.is_running.swap(true, Ordering::SeqCst) {
            return;
        }
        let asker = self.clone();
        tokio::spawn(async move {
            let renewal = &asker.renewal;
            loop {
                while renewal.again.swap(false, Ordering::SeqCst) {
                    {
                        let mut state = asker.state.lock().await;
                        state.line = None;
                        (state.not_before, state.unanswered) = (None, 0);
                    }
                    asker.ready().await;
                    tokio::time::sleep(RENEWAL_PAUSE).await;
                }
                renewal.is_running.store(false, Ordering::SeqCst);
                // A call may have come before the line above, and have left its work to this task.
                if !renewal.again.load(Ordering::SeqCst) || renewal.is_running.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        });
    }

    /// Sends a request by UDP, once. Returns the task that waits for the answer. The task continues if the caller stops
    /// waiting, and drops the line if no answer comes. Returns `None` if there is no line, or if the request can't be
    /// sent by UDP; then gets a line in the background.
    fn ask_for_grant(&self, request: &GrantRequest) -> Option<JoinHandle<Option<[u8; REPLY_LEN]>>> {
        // A key in band follows the connection on which the client requested the grant.
        if request.in_band {
            return None;
        }
        // If the state is locked, a line is being opened.
        let line = self.state.try_lock().ok()?.current(self.authority.cluster.used());
        let Some(line) = line else {
            let asker = self.clone();
            tokio::spawn(async move { asker.ready().await });
            return None;
        };
        let GrantRequest { address, protocol, port, consented, .. } = *request;
        let to = Destination { address, protocol, port };
        let question = GrantQuestion { to, consented, time: line.time() };
        let question = question.encode().filter(|_| line.takes_grants)?;
        let asker = self.clone();
        Some(tokio::spawn(async move {
            let reply = line.channel.ask(&question, &[LOST]).await;
            if reply.is_none() {
                asker.give_up(&line).await;
            }
            reply
        }))
    }

    /// Reads an answer by UDP. Returns `None` if the client has to send the request over HTTPS: if no answer came, if
    /// the reason of a refusal applies only to UDP, or if an answer over HTTPS says more.
    fn read(&self, reply: Option<[u8; REPLY_LEN]>, request: &GrantRequest) -> Option<Result<(Grant, Way), Error>> {
        let reply = reply?;
        let (reason, text) = match GrantAnswer::decode(&reply)? {
            GrantAnswer::Given(given) => {
                let grant = convert::grant_by_udp(&given, request)?;
                return Some(Ok((grant, Way::Udp)));
            }
            GrantAnswer::Refused { reason, text } => (reason, text),
        };
        tracing::debug!(reason = reason.name(), "the authority refuses a grant by UDP");
        let problem = |status| {
            let (title, detail) = match text.split_once('\n') {
                Some((title, rule)) => (title, Some(rule.to_owned())),
                None => (text, None),
            };
            Problem { r#type: reason.name().into(), title: title.into(), status, detail }
        };
        match reason {
            Refusal::Denied | Refusal::NoRule | Refusal::NoReceiver | Refusal::Withheld | Refusal::CantIssue => {
                Some(Err(Error::Denied(problem(403))))
            }
            Refusal::TooMany => Some(Err(Error::Refused(problem(429)))),
            Refusal::OtherAddress | Refusal::Stale => {
                self.renew_line();
                None
            }
            Refusal::NoSegment
            | Refusal::Busy
            | Refusal::NotLoggedIn
            | Refusal::Internal
            | Refusal::NoMajority
            | Refusal::OverHttps => None,
        }
    }
}

impl Line {
    /// Returns the present time by the authority's clock, in Unix seconds.
    fn time(&self) -> u32 {
        let (time, since) = self.clock;
        u32::try_from(time.saturating_add(since.elapsed().as_secs())).unwrap_or(u32::MAX)
    }
}

impl super::State {
    /// Returns the line, unless the client has begun to use another authority.
    fn current(&mut self, used: reqwest::Url) -> Option<Arc<Line>> {
        self.follow(used);
        self.line.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authority;

    /// An authority sends as many events as it likes, each of which may ask for another line.
    #[tokio::test]
    async fn an_authority_can_not_make_tasks_wait_for_lines_without_end() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = Authority::new(&format!("https://{}", silent.local_addr().unwrap()), None).unwrap();
        let asker = Asker::new(authority);
        let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let before = alive();
        for _ in 0..10_000 {
            asker.renew_line();
            tokio::task::yield_now().await;
        }
        assert!(alive() < before + 20, "{} tasks", alive());
    }
}
