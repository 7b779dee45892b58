//! Asks for path segments by UDP, on a line that the authority gives over HTTPS (wire.md §8.13). Where that leads nowhere it
//! asks over HTTPS, as if there were no lines.

use crate::{Authority, Error};
use engine::api::{PathSegment, Problem, SegmentRequest};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use wire::ask::{ANSWER_LEN, LineKey, LineNumber, QUESTION_LEN, Question, REPLY_LEN, Refusal, Reply};

/// How long an answer is waited for, each time that is asked.
const WAITS: [Duration; 3] = [Duration::from_millis(200), Duration::from_millis(400), Duration::from_millis(800)];
/// How long no line is asked for after one on which nothing was ever answered, or where the authority has none.
const PAUSE: Duration = Duration::from_secs(300);

/// Asks an authority for segments, by UDP where that works. Clones share their line.
#[derive(Clone)]
pub struct Asker {
    authority: Authority,
    state: Arc<tokio::sync::Mutex<State>>,
}

#[derive(Default)]
struct State {
    line: Option<Arc<Line>>,
    not_before: Option<Instant>,
}

/// A line, and who waits for answers on it.
struct Line {
    ends: Arc<Ends>,
    reader: AbortHandle,
}

struct Ends {
    socket: UdpSocket,
    number: LineNumber,
    key: LineKey,
    counter: AtomicU64,
    /// By the counters of the requests.
    waiting: Mutex<HashMap<u64, mpsc::Sender<[u8; REPLY_LEN]>>>,
    answered: AtomicBool,
}

impl Asker {
    /// Asks an authority in the name of the session whose token it has.
    pub fn new(authority: Authority) -> Self {
        Self { authority, state: Arc::default() }
    }

    /// Whose session it asks in.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Has a line before the first question comes.
    pub async fn ready(&self) {
        self.line().await;
    }

    /// Asks for a path segment of a virtual network: as [`Authority::segment`], but sooner answered.
    pub async fn segment(&self, request: &SegmentRequest) -> Result<PathSegment, Error> {
        let Some(question) = question(request) else { return self.authority.segment(request).await };
        if let Some(line) = self.line().await {
            if let Some(reply) = line.ends.ask(&question).await {
                return answer(&reply);
            }
            self.give_up(&line).await;
        }
        self.authority.segment(request).await
    }

    /// The line, which is asked for if there is none; `None` while there is no use in asking.
    async fn line(&self) -> Option<Arc<Line>> {
        let mut state = self.state.lock().await;
        if state.line.is_some() || state.not_before.is_some_and(|not_before| Instant::now() < not_before) {
            return state.line.clone();
        }
        match self.open().await {
            Ok(line) => state.line = Some(Arc::new(line)),
            Err(error) => {
                tracing::debug!("segments are asked for over HTTPS: {error}");
                let is_lasting = matches!(&error, Error::Refused(problem) if problem.status == 404);
                state.not_before = Some(Instant::now() + if is_lasting { PAUSE } else { WAITS[0] });
            }
        }
        state.line.clone()
    }

    async fn open(&self) -> Result<Line, Error> {
        let broken = || Error::Other("the authority's answer is broken: this is no line".into());
        let line = self.authority.line().await?;
        let (number, key) = line.read().ok_or_else(broken)?;
        let (host, _) = crate::host(&self.authority.base);
        let unreachable = |error: std::io::Error| Error::Unreachable(format!("by UDP, port {}: {error}", line.port));
        let mut addresses = tokio::net::lookup_host((host, line.port)).await.map_err(unreachable)?;
        let address = addresses.next().ok_or_else(|| Error::Unreachable("its name has no address".into()))?;
        let own = if address.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind(SocketAddr::new(own, 0)).await.map_err(unreachable)?;
        socket.connect(address).await.map_err(unreachable)?;
        let ends = Arc::new(Ends {
            socket,
            number,
            key,
            counter: AtomicU64::new(0),
            waiting: Mutex::default(),
            answered: AtomicBool::new(false),
        });
        let reader = tokio::spawn(ends.clone().read()).abort_handle();
        Ok(Line { ends, reader })
    }

    /// Hangs up where there was no answer. A line that has worked is asked for anew: the authority may have been restarted.
    async fn give_up(&self, line: &Arc<Line>) {
        let mut state = self.state.lock().await;
        if !state.line.as_ref().is_some_and(|current| Arc::ptr_eq(current, line)) {
            return;
        }
        state.line = None;
        if line.ends.answered.load(Ordering::Relaxed) {
            tracing::info!("the authority does not answer by UDP any more: asked over HTTPS, for another line, too");
        } else {
            tracing::warn!("the authority does not answer by UDP: segments are asked for over HTTPS for some minutes");
            state.not_before = Some(Instant::now() + PAUSE);
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Ends {
    /// Asks until there is an answer, each time with a counter of its own; `None` if there is none in time.
    async fn ask(&self, question: &[u8; QUESTION_LEN]) -> Option<[u8; REPLY_LEN]> {
        let (sender, mut answers) = mpsc::channel(WAITS.len());
        let weak = sender.downgrade();
        let mut asked = Asked { of: self, counters: Vec::with_capacity(WAITS.len()) };
        let mut held = Some(sender);
        for wait in WAITS {
            let counter = self.counter.fetch_add(1, Ordering::Relaxed) + 1;
            // Only those who wait hold it: if the reader lets go of them, nobody will answer.
            self.waiting().insert(counter, held.take().or_else(|| weak.upgrade())?);
            asked.counters.push(counter);
            let request = self.key.seal_request(self.number, counter, question)?;
            if let Err(error) = self.socket.send(&request).await {
                tracing::debug!("a request for a segment could not be sent: {error}");
            }
            match tokio::time::timeout(wait, answers.recv()).await {
                Ok(answer) => return answer,
                Err(_) => tracing::debug!(counter, "no answer yet"),
            }
        }
        None
    }

    /// Hands answers to those who wait for them.
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
                // Nobody listens there, mostly: there is nothing to wait for.
                Err(error) => {
                    tracing::debug!("answers by UDP: {error}");
                    self.waiting().clear();
                }
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, mpsc::Sender<[u8; REPLY_LEN]>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one caller asked; nobody waits for it after that.
struct Asked<'a> {
    of: &'a Ends,
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

/// `None` if it can't be asked by UDP: the authority will say why.
fn question(request: &SegmentRequest) -> Option<[u8; QUESTION_LEN]> {
    let SegmentRequest { network, sender, sending, to, sender_port } = request;
    let (receiver, protocol, port) = (to.address, to.protocol, to.port);
    let (sender, sending, sender_port) = (*sender, *sending, *sender_port);
    Question { network, sender, sending, receiver, protocol, port, sender_port }.encode()
}

fn answer(reply: &[u8; REPLY_LEN]) -> Result<PathSegment, Error> {
    let broken = || Error::Other("the authority's answer is broken: this is no segment".into());
    match Reply::decode(reply).ok_or_else(broken)? {
        Reply::Given(given) => PathSegment::heard(&given).ok_or_else(broken),
        Reply::Refused { reason, text } => {
            let problem = |status| Problem { r#type: reason.name().into(), title: text.into(), status, detail: None };
            Err(match reason {
                Refusal::Denied | Refusal::NoRule | Refusal::NoReceiver | Refusal::NoSegment => {
                    Error::Denied(problem(403))
                }
                Refusal::Busy => Error::Refused(problem(503)),
                Refusal::NotLoggedIn => Error::NotLoggedIn,
                Refusal::Internal => Error::Refused(problem(500)),
            })
        }
    }
}
