//! Sends calls to the authorities of a cluster until one answers.
//!
//! Some calls can be carried out twice without harm. If an authority does not answer such a call quickly, the client
//! also sends the call to a second authority and, if this one is silent as well, to a third. The client uses the answer
//! that arrives first. It sends any other call to an authority that has just answered. It tries a second authority only
//! if the first one certainly did not carry out the call.

use crate::Error;
use crate::call::{Call, Failure, attempt, read};
use crate::choice::Turn;
use crate::cluster::{Cluster, shown};
use reqwest::{Response, StatusCode, Url};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Maximum time that a call waits for its turn if no authority of the cluster answers.
const TURN_TIME: Duration = Duration::from_secs(1);
/// Time that a silent authority still has to answer a call that another authority has answered. After this time, the
/// silent authority counts as failed.
const REST: Duration = Duration::from_secs(1);
/// Time for which the client repeats a call if every authority refuses it because the cluster has no majority. An
/// election of etcd's leader takes less time.
const MAJORITY_TIME: Duration = Duration::from_secs(4);
/// Pause between such repetitions.
const MAJORITY_PAUSE: Duration = Duration::from_millis(250);
/// Maximum number of authorities that get the same call at the same time: one that is slow, one that has been cut off,
/// and one that works.
const TOGETHER_MAX: usize = 3;
/// Number of authorities that may be asked again because an answer broke off.
const BROKEN_ANSWERS_MAX: usize = 2;

/// A request under way.
struct Request {
    url: Url,
    started: Duration,
    response: Pin<Box<dyn Future<Output = Result<Response, Failure>> + Send>>,
}

impl Cluster {
    /// Makes a call. Returns the URL of the authority that answered, and the status and the body of the answer.
    pub async fn call(self: &Arc<Self>, call: &Call) -> Result<(Url, StatusCode, Vec<u8>), Error> {
        let mut broken = 0;
        loop {
            let (url, response) = self.send(call).await?;
            let status = response.status();
            match read(response).await {
                Ok(body) => return Ok((url, status, body)),
                Err(Error::Unreachable(_)) if call.repeats && self.are_several() && broken < BROKEN_ANSWERS_MAX => {
                    broken += 1;
                    self.change(|choice, now| choice.failed(&url, now, now));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a call until an authority answers. Returns the authority's URL, and the answer, whose body has not been
    /// received yet.
    pub async fn send(self: &Arc<Self>, call: &Call) -> Result<(Url, Response), Error> {
        let until = self.now() + MAJORITY_TIME;
        loop {
            match self.send_once(call).await {
                // No authority carried out the call, so it may be sent again even if it changes something.
                Err(Error::Refused(problem)) if problem.is_no_majority() && self.now() < until => {
                    sleep(MAJORITY_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Sends a call to one authority after the other until one answers. Tries an authority again only if it failed
    /// while another one was silent, and only within [`MAJORITY_TIME`].
    async fn send_once(self: &Arc<Self>, call: &Call) -> Result<(Url, Response), Error> {
        if !self.are_several() {
            let url = self.used();
            let response = attempt(self.request(&url, call)?).await?;
            return Ok((url, response));
        }
        let first = if call.repeats { None } else { self.reachable().await? };
        let answer = self.race(call, first).await;
        self.tend();
        answer
    }

    /// Returns the URL of an authority that has answered just now. If there is only one authority, returns its URL
    /// without asking it. Returns `None` if authorities answer, but none of them can serve every call.
    pub async fn reachable(self: &Arc<Self>) -> Result<Option<Url>, Error> {
        let used = {
            let choice = self.choice();
            choice.is_fresh(self.now()).then(|| choice.used().clone())
        };
        if used.is_some() || !self.are_several() {
            return Ok(Some(used.unwrap_or_else(|| self.used())));
        }
        match self.race(&Call::health(), None).await {
            Ok((url, _)) => Ok(Some(url)),
            Err(error @ Error::Unreachable(_)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Asks one authority after the other, `first` before the others. If the call is repeatable, up to [`TOGETHER_MAX`]
    /// are asked at the same time.
    async fn race(self: &Arc<Self>, call: &Call, first: Option<Url>) -> Result<(Url, Response), Error> {
        let (until, again_until) = (self.now() + TURN_TIME, self.now() + MAJORITY_TIME);
        let (mut first, mut tried, mut running) = (first, Vec::new(), Vec::new());
        let (mut errors, mut failed) = (Errors::default(), Vec::new());
        // How long to wait before another authority is asked while one is still silent.
        let mut pause = None;
        loop {
            if running.is_empty() {
                let turn = match first.take() {
                    Some(url) => Turn::Ask(url),
                    // Only the authority that issued the segment knows it, so its pause after a failure does not count.
                    None if errors.unknown_segment.is_some() => {
                        self.change(|choice, now| choice.next_or_failed(&tried, now))
                    }
                    None => self.change(|choice, now| choice.next(&tried, now)),
                };
                match turn {
                    Turn::Ask(url) => running.push(self.start(call, url, &mut tried)?),
                    Turn::Wait(pause) if self.now() < until => {
                        sleep(pause).await;
                        continue;
                    }
                    Turn::Wait(_) | Turn::Over => return Err(errors.last(self.choice().urls().count())),
                }
            }
            let patience = match &running[..] {
                // Each further request waits longer, because every one of them is work for the cluster.
                [.., last] if call.repeats && running.len() < TOGETHER_MAX => {
                    let patience = || self.choice().patience(&last.url) * running.len() as u32;
                    Some(pause.take().unwrap_or_else(patience))
                }
                _ => None,
            };
            let ended = match patience {
                Some(patience) => timeout(patience, ended(&mut running)).await.ok(),
                None => Some(ended(&mut running).await),
            };
            let Some((url, started, outcome)) = ended else {
                let turn = self.change(|choice, now| match choice.next_or_failed(&tried, now) {
                    // Every authority was asked. Those that failed may work again before the silent one answers.
                    Turn::Over if now < again_until => {
                        tried.retain(|url| !failed.contains(url));
                        failed.clear();
                        choice.next_or_failed(&tried, now)
                    }
                    turn => turn,
                });
                match turn {
                    Turn::Ask(url) => running.push(self.start(call, url, &mut tried)?),
                    Turn::Wait(wait) => pause = Some(wait),
                    Turn::Over => {}
                }
                continue;
            };
            self.note(&url, started, &outcome);
            match outcome {
                Ok(response) => {
                    running.into_iter().for_each(|other| self.watch_rest(other));
                    return Ok((url, response));
                }
                Err(Failure::Unreached { error, is_unsent }) if !is_unsent && !call.repeats => return Err(error),
                Err(Failure::Unreached { error, .. }) => {
                    failed.push(url.clone());
                    errors.unreached = Some((url, error));
                }
                Err(Failure::Unable(error)) => {
                    failed.push(url);
                    errors.unable = Some(error);
                }
                Err(Failure::NotLoggedIn) => errors.is_unknown = true,
                Err(Failure::UnknownSegment(error)) if call.shows_segment() => errors.unknown_segment = Some(error),
                Err(Failure::UnknownSegment(error)) => return Err(error),
                // An authority under load refuses what another one, which is still at work, possibly grants.
                Err(Failure::Final(error)) if !running.is_empty() && is_of_one(&error) => errors.refused = Some(error),
                Err(Failure::Final(error)) => return Err(error),
            }
        }
    }

    fn start(&self, call: &Call, url: Url, tried: &mut Vec<Url>) -> Result<Request, Error> {
        tried.push(url.clone());
        let response: Pin<Box<dyn Future<Output = Result<Response, Failure>> + Send>> = match self.request(&url, call) {
            Ok(request) => Box::pin(attempt(request)),
            // Another authority of the cluster may be at an address to which the client may connect.
            Err(error @ Error::Unreachable(_)) => {
                Box::pin(std::future::ready(Err(Failure::Unreached { error, is_unsent: true })))
            }
            Err(error) => return Err(error),
        };
        Ok(Request { url, started: self.now(), response })
    }

    /// Waits a little longer for an authority that was silent while another one answered, to learn whether it is only
    /// slow.
    fn watch_rest(self: &Arc<Self>, request: Request) {
        let cluster = self.clone();
        let Request { url, started, response } = request;
        tokio::spawn(async move {
            let silent = || Failure::Unreached {
                error: Error::Unreachable("the authority does not answer".into()),
                is_unsent: false,
            };
            let outcome = timeout(REST, response).await.unwrap_or_else(|_| Err(silent()));
            cluster.note(&url, started, &outcome);
        });
    }
}

/// Waits until one of the requests ends, and removes it.
async fn ended(running: &mut Vec<Request>) -> (Url, Duration, Result<Response, Failure>) {
    poll_fn(|context| {
        for index in 0..running.len() {
            if let Poll::Ready(outcome) = running[index].response.as_mut().poll(context) {
                let Request { url, started, .. } = running.swap_remove(index);
                return Poll::Ready((url, started, outcome));
            }
        }
        Poll::Pending
    })
    .await
}

/// Reports whether an error concerns only the authority that answered: it has too much to do, or something in it
/// failed.
fn is_of_one(error: &Error) -> bool {
    matches!(error, Error::Refused(problem) if problem.status == 429 || problem.status >= 500)
}

/// The failures of the authorities that were asked.
#[derive(Default)]
struct Errors {
    /// The answer of an authority that knows the token, but not the segment in the request.
    unknown_segment: Option<Error>,
    /// Whether an authority answered that it does not know the token.
    is_unknown: bool,
    /// The refusal of an authority for a reason that concerns only this authority ([`is_of_one`]).
    refused: Option<Error>,
    unable: Option<Error>,
    unreached: Option<(Url, Error)>,
}

impl Errors {
    /// Returns the error that says most. `count` is the number of authorities in the cluster.
    fn last(self, count: usize) -> Error {
        match self {
            // An authority that could not be asked has possibly issued the segment.
            Self { unknown_segment: Some(error), unable: None, unreached: None, .. } => error,
            // An authority that answers knows all tokens but the newest. Even if the token is one of these, it is of
            // use only when an authority that knows it answers.
            Self { is_unknown: true, unknown_segment: None, .. } => Error::NotLoggedIn,
            Self { refused: Some(error), .. } => error,
            Self { unable: Some(error), .. } => error,
            Self { unreached: Some((url, Error::Unreachable(why))), .. } => {
                Error::Unreachable(format!("none of the cluster's {count} authorities answers; {}: {why}", shown(&url)))
            }
            Self { unreached: Some((url, error)), .. } => Error::Other(format!("{}: {error}", shown(&url))),
            Self { .. } => Error::Unreachable("no authority of the cluster answers; trying again in a moment".into()),
        }
    }
}
