//! Requests path segments and grants by UDP. Such requests need a *line*: a number and a key, which the authority
//! issues over HTTPS (wire.md §8.13, §8.14). If the authority issues no lines or does not answer by UDP, requests go
//! over HTTPS.

mod grants;

pub use grants::Way;

use crate::{Authority, Error, convert, owner};
use api::Problem;
use engine::model::{Given, Issued, SegmentRequest};
use reqwest::Url;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use wire::Ends;
use wire::ask::{ANSWER_LEN, LineKey, LineNumber, QUESTION_LEN, Question, REPLY_LEN, Refusal, Reply};

/// Time to wait for an answer after each transmission of a request.
const WAITS: [Duration; 3] = [Duration::from_millis(200), Duration::from_millis(400), Duration::from_millis(800)];
/// Maximum time for which a request waits for a line. The authority from which the client requests the line may have
/// been cut off. Over HTTPS, another authority can answer the request.
const OPENING: Duration = Duration::from_millis(300);
/// Number of transmissions of a request to an authority in a cluster. It is lower than elsewhere, because another
/// authority can answer over HTTPS sooner.
const TRIES_IN_CLUSTER: usize = 2;
/// The first and the longest time until the client requests another line, if no answer ever arrived on the last line.
/// Each such line doubles the time. An authority that has just started may not answer in time, and a firewall may stop
/// all datagrams.
const PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// The error for an answer that contains no segment for the addresses of the request.
const NO_SEGMENT: Error = Error::Unusable("the answer contains no valid segment");

/// Requests segments and grants from an authority: by UDP if that works, otherwise over HTTPS. All clones of an `Asker`
/// use the same line. Each authority of a cluster issues its own lines. If the client begins to use another authority,
/// the asker requests a line from that authority.
#[derive(Clone)]
pub struct Asker {
    authority: Authority,
    state: Arc<tokio::sync::Mutex<State>>,
    renewal: Arc<Renewal>,
}

/// State of the task that requests another line: whether it runs, and whether it has to request one more line
/// afterwards. An authority can make a client request lines as often as it likes. So there is only one task, which
/// pauses between requests.
#[derive(Default)]
struct Renewal {
    is_running: AtomicBool,
    again: AtomicBool,
}

#[derive(Default)]
struct State {
    line: Option<Arc<Line>>,
    not_before: Option<Instant>,
    /// How many lines in a row got no answer at all.
    unanswered: u32,
    /// The authority that the client used when it last needed a line.
    used: Option<Url>,
}

/// A line, and the task that reads answers on it.
struct Line {
    /// URL of the authority that issued the line.
    url: Url,
    channel: Arc<Channel>,
    reader: AbortHandle,
    /// Whether the authority accepts requests for grants on this line.
    takes_grants: bool,
    /// Whether a request for a segment on this line may ask for the return segment, too.
    takes_answers: bool,
    /// Whether a request for a segment on this line may name a path.
    takes_paths: bool,
    /// The time at which the line was opened: by the authority's clock, in Unix seconds, and by this machine's clock.
    clock: (u64, Instant),
}

struct Channel {
    socket: UdpSocket,
    number: LineNumber,
    key: LineKey,
    counter: AtomicU64,
    /// Channels for the replies. The key is the counter of the request.
    waiting: Mutex<HashMap<u64, mpsc::Sender<[u8; REPLY_LEN]>>>,
    answered: AtomicBool,
}

impl Asker {
    /// Creates an asker. Its requests belong to the session of `authority`'s token.
    pub fn new(authority: Authority) -> Self {
        Self { authority, state: Arc::default(), renewal: Arc::default() }
    }

    /// Returns the client of the authority that this asker uses for its requests.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Requests a line in advance, so that the first request for a segment need not wait for the line.
    pub async fn ready(&self) {
        self.line().await;
    }

    /// Requests a path segment of a virtual network: by UDP if there is a line and the authority answers on it,
    /// otherwise as [`Authority::segment`] does.
    ///
    /// # Errors
    ///
    /// Fails as [`Authority::segment`] does. Also fails if the answer contains no segment for the addresses of the
    /// request.
    pub async fn segment(&self, request: &SegmentRequest) -> Result<Given, Error> {
        self.request(request, false).await.map(|issued| issued.given)
    }

    /// Requests a path segment as [`Self::segment`] does, together with the return segment. The answer lacks the return
    /// segment if the authority does not issue it, for example because it is too old.
    ///
    /// # Errors
    ///
    /// Fails as [`Self::segment`] does.
    pub async fn segment_with_answers(&self, request: &SegmentRequest) -> Result<Issued, Error> {
        self.request(request, true).await
    }

    /// Requests a path segment together with the return segment, over HTTPS: an answer by UDP may have no room for
    /// both.
    ///
    /// # Errors
    ///
    /// Fails as [`Self::segment`] does.
    pub async fn both_segments(&self, request: &SegmentRequest) -> Result<Issued, Error> {
        self.over_https(request, true).await
    }

    async fn request(&self, request: &SegmentRequest, with_answers: bool) -> Result<Issued, Error> {
        let line = match question(request, false, false) {
            Some(_) => self.line_soon().await,
            None => None,
        };
        if let Some(line) = line
            && let Some(question) = question(request, with_answers && line.takes_answers, line.takes_paths)
            && (line.takes_paths || request.path == 0)
        {
            let tries = if self.authority.cluster.are_several() { TRIES_IN_CLUSTER } else { WAITS.len() };
            match line.channel.ask(&question, &WAITS[..tries]).await.map(|reply| answer(&reply, request)) {
                // Over HTTPS, another authority of the cluster can answer.
                Some(Err(Error::Refused(problem))) if problem.is_no_majority() => {}
                Some(answer) => return answer,
                None => {
                    // Another request may be opening a line, which must not delay this one.
                    let asker = self.clone();
                    tokio::spawn(async move { asker.give_up(&line).await });
                }
            }
        }
        self.over_https(request, with_answers).await
    }

    async fn over_https(&self, request: &SegmentRequest, with_answers: bool) -> Result<Issued, Error> {
        // An authority that does not know the query ignores it.
        let path = format!("v1/segments?answers={with_answers}&path={}", request.path);
        let answer: api::PathSegment =
            self.authority.repeatable_post(&path, &convert::segment_request(request)).await?;
        let given = convert::segment(&answer, request.sending, request.sender, request.to.address);
        let answers = hex::decode(&answer.answers).unwrap_or_default();
        Ok(Issued { given: given.map_err(|_| NO_SEGMENT)?, answers, others: answer.others })
    }

    /// Requests a return segment for packets that arrived with the segment `shown`.
    ///
    /// # Errors
    ///
    /// Fails as [`Authority::answer_segment`] does. Also fails if the answer contains no segment for the reverse
    /// direction of `shown`.
    pub async fn answer_segment(&self, shown: &Given) -> Result<Given, Error> {
        let answer = self.authority.answer_segment(&convert::answer_request(shown)).await?;
        let Ends { receiving, sender, receiver, .. } = shown.ends;
        convert::segment(&answer, receiving, receiver, sender).map_err(|_| NO_SEGMENT)
    }

    /// Does what [`Self::line`] does, but waits for [`OPENING`] at most. After this time, the request for the line
    /// continues, so that later requests can use the line.
    async fn line_soon(&self) -> Option<Arc<Line>> {
        let line = async {
            let mut state = self.state.lock().await;
            state.follow(self.authority.cluster.used());
            if state.line.is_some() || state.pauses() {
                return state.line.clone();
            }
            drop(state);
            let asker = self.clone();
            tokio::spawn(async move { asker.line().await }).await.ok().flatten()
        };
        tokio::time::timeout(OPENING, line).await.ok().flatten()
    }

    /// Returns the line, requesting one if there is none; `None` if the request fails, or failed a short time ago.
    async fn line(&self) -> Option<Arc<Line>> {
        let mut state = self.state.lock().await;
        state.follow(self.authority.cluster.used());
        if state.line.is_some() || state.pauses() {
            return state.line.clone();
        }
        match self.open().await {
            Ok(line) => state.line = Some(Arc::new(line)),
            Err(error) => {
                tracing::debug!("there is no line, so requests go over HTTPS: {error}");
                let is_lasting = matches!(&error, Error::Refused(problem) if problem.status == 404);
                state.not_before = Some(Instant::now() + if is_lasting { PAUSES.1 } else { WAITS[0] });
            }
        }
        state.line.clone()
    }

    async fn open(&self) -> Result<Line, Error> {
        let broken = || Error::Other("the authority's answer is malformed: no valid line for requests by UDP".into());
        let (line, url, remote) = self.authority.line_of().await?;
        let clock = (line.now, Instant::now());
        let (number, key) = line.read().ok_or_else(broken)?;
        let unreachable = |error: std::io::Error| {
            Error::Unreachable(format!(
                "cannot open a socket for requests by UDP to port {} of the authority: {error}",
                line.port
            ))
        };
        // The authority answers requests for grants only if they come from the address from which the client got the
        // line. So they have to go to the address at which the authority gave it.
        let unknown = || Error::Unreachable("the address at which the authority answered is not known".into());
        let address = SocketAddr::new(remote.ok_or_else(unknown)?.ip(), line.port);
        let own = if address.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let bind = || std::net::UdpSocket::bind(SocketAddr::new(own, 0));
        let socket = owner::as_user(self.authority.owner, bind).map_err(unreachable)?;
        socket.set_nonblocking(true).map_err(unreachable)?;
        socket.connect(address).map_err(unreachable)?;
        let socket = UdpSocket::from_std(socket).map_err(unreachable)?;
        let channel = Arc::new(Channel {
            socket,
            number,
            key,
            counter: AtomicU64::new(0),
            waiting: Mutex::default(),
            answered: AtomicBool::new(false),
        });
        let reader = tokio::spawn(channel.clone().read()).abort_handle();
        let (takes_grants, takes_answers, takes_paths) = (line.grants, line.answers, line.paths);
        Ok(Line { url, channel, reader, takes_grants, takes_answers, takes_paths, clock })
    }

    /// Drops a line on which no answer arrived in time. If the line had worked before, the next request for a segment
    /// also requests a new line, because the authority may have been restarted. Otherwise no line is requested during a
    /// [pause](PAUSES).
    async fn give_up(&self, line: &Arc<Line>) {
        let mut state = self.state.lock().await;
        if !state.line.as_ref().is_some_and(|current| Arc::ptr_eq(current, line)) {
            return;
        }
        state.line = None;
        if line.channel.answered.load(Ordering::Relaxed) {
            state.unanswered = 0;
            tracing::info!(
                "the authority no longer answers by UDP: the client sends the next request over HTTPS, and requests \
                 another line"
            );
        } else {
            let pause = pause_after(state.unanswered);
            tracing::warn!("the authority does not answer by UDP: requests go over HTTPS for {} s", pause.as_secs());
            state.unanswered = state.unanswered.saturating_add(1);
            state.not_before = Some(Instant::now() + pause);
        }
    }
}

/// Returns the pause after a line without any answer. `before` is the number of lines in a row before it that got no
/// answer, either.
fn pause_after(before: u32) -> Duration {
    PAUSES.0.saturating_mul(1_u32.checked_shl(before).unwrap_or(u32::MAX)).min(PAUSES.1)
}

impl State {
    /// Reports whether no line may be requested at present.
    fn pauses(&self) -> bool {
        self.not_before.is_some_and(|not_before| Instant::now() < not_before)
    }

    /// Forgets the line, and failures to get one, if the client has begun to use another authority.
    fn follow(&mut self, used: Url) {
        if self.used.as_ref() != Some(&used) {
            self.line.take_if(|line| line.url != used);
            (self.not_before, self.unanswered) = (None, 0);
            self.used = Some(used);
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Channel {
    /// Sends the request once for each time in `waits`, each time with a new counter, until an answer arrives. Returns
    /// `None` if no answer arrives in time, or if no request can be made.
    async fn ask(&self, question: &[u8; QUESTION_LEN], waits: &[Duration]) -> Option<[u8; REPLY_LEN]> {
        let (sender, mut answers) = mpsc::channel(WAITS.len());
        let weak = sender.downgrade();
        let mut asked = Asked { of: self, counters: Vec::with_capacity(waits.len()) };
        let mut held = Some(sender);
        for wait in waits {
            let counter = self.counter.fetch_add(1, Ordering::Relaxed) + 1;
            // Only `waiting` holds the sender: if the reader clears that map, no answer will come, and `recv` returns
            // at once.
            self.waiting().insert(counter, held.take().or_else(|| weak.upgrade())?);
            asked.counters.push(counter);
            let request = self.key.seal_request(self.number, counter, question)?;
            if let Err(error) = self.socket.send(&request).await {
                tracing::debug!("cannot send a request by UDP: {error}");
            }
            match tokio::time::timeout(*wait, answers.recv()).await {
                Ok(answer) => return answer,
                Err(_) => tracing::debug!(counter, "no answer yet"),
            }
        }
        None
    }

    /// Delivers answers to the callers that wait for them.
    async fn read(self: Arc<Self>) {
        let mut room = [0; ANSWER_LEN + 1];
        loop {
            match self.socket.recv(&mut room).await {
                Ok(length) => {
                    let opened = room.get_mut(..length).and_then(|answer| self.key.open_answer(answer));
                    let Some((counter, reply)) = opened else { continue };
                    if !self.answered.swap(true, Ordering::Relaxed) {
                        tracing::info!("the authority answers by UDP");
                    }
                    if let Some(waiting) = self.waiting().remove(&counter) {
                        let _ = waiting.try_send(*reply);
                    }
                }
                // Usually no process listens on that port, so that waiting is useless.
                Err(error) => {
                    tracing::debug!("cannot receive answers by UDP: {error}");
                    self.waiting().clear();
                }
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, mpsc::Sender<[u8; REPLY_LEN]>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counters of one caller's pending requests; dropping this removes them from [`Channel::waiting`].
struct Asked<'a> {
    of: &'a Channel,
    counters: Vec<u64>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut waiting = self.of.waiting();
        for counter in &self.counters {
            waiting.remove(counter);
        }
    }
}

/// Encodes a request. Returns `None` if it can't be made by UDP. The caller then sends it over HTTPS, and the
/// authority's answer gives the reason. `answers` says whether the request asks for the return segment, too, and
/// `paths` whether it names the path.
fn question(request: &SegmentRequest, answers: bool, paths: bool) -> Option<[u8; QUESTION_LEN]> {
    let SegmentRequest { network, sender, sending, to, sender_port, path } = request;
    let (receiver, protocol, port) = (to.address, to.protocol, to.port);
    let (sender, sending, sender_port) = (*sender, *sending, *sender_port);
    let path = paths.then_some(*path);
    Question { network, sender, sending, receiver, protocol, port, sender_port, answers, path }.encode()
}

fn answer(reply: &[u8; REPLY_LEN], request: &SegmentRequest) -> Result<Issued, Error> {
    let broken = || Error::Other("the authority's answer is malformed: it contains no valid segment".into());
    match Reply::decode(reply).ok_or_else(broken)? {
        Reply::Given(reply) => {
            let given = convert::segment_by_udp(&reply, request).map_err(|_| NO_SEGMENT)?;
            Ok(Issued { given, answers: reply.answers.to_vec(), others: reply.others })
        }
        Reply::Refused { reason, text } => {
            let problem = |status| Problem { r#type: reason.name().into(), title: text.into(), status, detail: None };
            Err(match reason {
                Refusal::Denied | Refusal::NoRule | Refusal::NoReceiver | Refusal::NoSegment => {
                    Error::Denied(problem(403))
                }
                Refusal::NotLoggedIn => Error::NotLoggedIn,
                Refusal::Internal => Error::Refused(problem(500)),
                _ => Error::Refused(problem(503)),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_after_lines_without_an_answer_doubles_up_to_five_minutes() {
        let pauses: Vec<_> = (0..8).map(|before| pause_after(before).as_secs()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(pause_after(31), PAUSES.1);
        assert_eq!(pause_after(u32::MAX), PAUSES.1);
    }
}
