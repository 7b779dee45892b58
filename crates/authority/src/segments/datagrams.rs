//! Answers requests for segments that arrive by UDP (wire.md §8.13). One thread receives requests, decides them and
//! sends the answers, batch by batch. The thread also receives requests for grants, which `granting` answers.

use super::account::{self, Account, Details, Full};
use super::batch::{self, Answers, Batches, Sender};
use super::granting::{GrantDatagram, GrantService, Later};
use super::lines::RequestLines;
use super::{Refusal, Requester, SegmentIssuer, others, to_of};
use crate::http::problems::Problem;
use crate::login::Sessions;
use crate::now;
use crate::policy::PolicyInForce;
use crate::storage::{AuditEvent, AuditLog, Session, Storage, TokenHash};
use anyhow::{Context, Result};
use engine::issuing::lines::{LineRequest, Unanswered};
use engine::model::{Given, Issued};
use engine::policy::Permit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use wire::ask::{AnyQuestion, GIVEN_MAX, GivenReply, Question, REPLY_LEN, Refusal as Reason, Reply, TEXT_MAX};

/// A handle of the thread that answers requests. The thread ends soon after the handle is dropped.
pub struct Answering {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

impl Answering {
    /// Starts a thread that serves requests at this address. Returns the handle, the bound address, and a receiver that
    /// gets the error if the thread fails. Must be called from an asynchronous task, whose runtime runs the tasks that
    /// answer requests for new grants.
    ///
    /// # Errors
    /// Fails if the address cannot be bound, or the thread cannot be started.
    pub fn start(
        address: SocketAddr,
        service: Arc<DatagramService>,
    ) -> Result<(Self, SocketAddr, oneshot::Receiver<anyhow::Error>)> {
        let socket = batch::bind(address).with_context(|| format!("cannot listen for requests by UDP on {address}"))?;
        let address = socket.local_addr()?;
        let _ = service.lines.port.set(address.port());
        let ends = Arc::new(AtomicBool::new(false));
        let (failed, failure) = oneshot::channel();
        let ended = ends.clone();
        let (sender, runtime) = (Sender::new(&socket)?, Handle::current());
        let thread = std::thread::Builder::new().name("segments".into()).spawn(move || {
            let mut batches = Batches::new(socket);
            let mut later = Later::new(sender, runtime);
            while !ended.load(Ordering::Relaxed) {
                if let Err(error) = service.answer_batch(&mut batches, &mut later) {
                    let _ = failed.send(anyhow::Error::new(error).context("cannot receive requests by UDP"));
                    return;
                }
            }
        })?;
        Ok((Self { ends, thread: Some(thread) }, address, failure))
    }

    /// Stops the thread and waits until it has ended.
    pub async fn end(mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

/// An authentic request for a segment, from a batch of datagrams. It will be answered.
struct InBatch<'d> {
    index: usize,
    source: IpAddr,
    request: LineRequest<'d, TokenHash>,
    question: Question<'d>,
}

/// An issued segment with the segment for its answers and the policy's permit, or the reason why the segment is
/// refused.
type Decided<'p> = Result<(Issued, Permit<'p>), Refusal>;

/// The numbers of requests, by outcome.
#[derive(Default)]
struct Counts {
    given: AtomicU64,
    refused: [AtomicU64; Reason::ALL.len()],
    unanswered: [AtomicU64; Unanswered::ALL.len()],
}

/// Receives requests by UDP, and answers those for segments.
pub struct DatagramService {
    pub(crate) grants: Arc<GrantService>,
    pub(crate) issuer: Arc<SegmentIssuer>,
    pub(crate) lines: Arc<RequestLines>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) policy: Arc<PolicyInForce>,
    pub(crate) audit: Arc<AuditLog>,
    pub(crate) storage: Arc<Storage>,
    account: Account,
    counts: Counts,
}

impl DatagramService {
    /// Creates the service. [`Answering::start`] runs it.
    pub fn new(
        issuer: Arc<SegmentIssuer>,
        lines: Arc<RequestLines>,
        sessions: Arc<Sessions>,
        policy: Arc<PolicyInForce>,
        audit: Arc<AuditLog>,
        storage: Arc<Storage>,
        grants: Arc<GrantService>,
    ) -> Self {
        let (account, counts) = Default::default();
        Self { grants, issuer, lines, sessions, policy, audit, storage, account, counts }
    }

    /// Returns the number of requests for segments for each outcome, with the outcome's name. Includes the datagrams
    /// that get no answer.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let Counts { given, refused, unanswered } = &self.counts;
        let refused = Reason::ALL.iter().zip(refused).map(|(reason, count)| (reason.name(), count));
        let unanswered = Unanswered::ALL.iter().zip(unanswered).map(|(why, count)| (why.name(), count));
        let all = [("given", given)].into_iter().chain(refused).chain(unanswered);
        all.map(|(name, count)| (name, count.load(Ordering::Relaxed))).collect()
    }

    fn answer_batch(&self, batches: &mut Batches, later: &mut Later) -> std::io::Result<()> {
        if batches.receive()? == 0 {
            return Ok(());
        }
        let (mut batch, mut grants) = (Vec::with_capacity(batch::MOST), Vec::new());
        let mut lines = self.lines.lock();
        let now = self.lines.clock();
        for (index, (datagram, from)) in batches.datagrams().enumerate() {
            let source = from.ip().to_canonical();
            match lines.read(datagram, source, now) {
                Ok(request) => match request.question {
                    AnyQuestion::Segment(question) => batch.push(InBatch { index, source, request, question }),
                    AnyQuestion::Grant(question) => {
                        let LineRequest { holder, key, counter, is_from_opener, .. } = request;
                        grants.push(GrantDatagram { index, from, holder, key, counter, is_from_opener, question });
                    }
                },
                Err(why) => count(&self.counts.unanswered[why as usize]),
            }
        }
        drop(lines);
        let answers = self.answers(&batch);
        batches.send(&answers);
        let answers = self.grants.answer(grants, later);
        batches.send(&answers);
        self.grants.note_sent();
        Ok(())
    }

    fn answers(&self, batch: &[InBatch<'_>]) -> Answers {
        let mut answers = Answers::for_at_most(batch.len());
        if batch.is_empty() {
            return answers;
        }
        // The lock is held until all segments are recorded, so that a change of policy finds every segment issued
        // before it.
        let policy = self.policy.blocking_read();
        let (networks, now) = (self.issuer.networks(), now());
        let changes = self.sessions.changes();
        let sessions = self.sessions.get_all(batch.iter().map(|one| &one.request.holder));
        let decide = |InBatch { request, question, .. }: &InBatch<'_>, session: Option<&Arc<Session>>| {
            let requester = Requester { token: request.holder, session: session.ok_or(Refusal::NotLoggedIn)?, now };
            let (given, permit) = self.issuer.give(&policy, &networks, requester, question)?;
            let answers = || {
                let (room, path) = (room_beside(&given), question.path.unwrap_or(0));
                self.issuer.answers_to(&policy, &networks, requester, &given, path, room)
            };
            let answers = question.answers.then(answers).flatten().unwrap_or_default();
            // A client that names no path would take an answer with the number of other paths for malformed.
            let others = question.path.map_or(0, |_| others(&networks, &given));
            Ok::<_, Refusal>((Issued { given, answers, others }, permit))
        };
        for (one, begun) in batch.iter().zip(&sessions) {
            let decided: Decided<'_> = decide(one, begun.as_ref());
            // The segment is recorded now. If its session ends or changes after this line, the book is re-evaluated.
            let session = match begun {
                Some(_) if self.sessions.changes() == changes => begun.clone(),
                Some(begun) => self.sessions.get(&one.request.holder).filter(|session| session.allows_as(begun)),
                None => None,
            };
            let reply = match session {
                Some(session) => self.reply(one, &session, decided, now),
                None => self.refuse(Refusal::NotLoggedIn),
            };
            if let Some(answer) = one.request.key.seal_answer(one.request.counter, &reply) {
                answers.push(one.index, answer);
            }
        }
        answers
    }

    fn reply(&self, one: &InBatch<'_>, session: &Arc<Session>, decided: Decided<'_>, now: u64) -> [u8; REPLY_LEN] {
        let InBatch { source, request: LineRequest { holder, .. }, question, .. } = one;
        let (account, token, source) = (&self.account, *holder, *source);
        // A segment that cannot be recorded is not issued.
        let given = match decided {
            Ok((issued, permit)) => {
                let details = || Details {
                    session: session.clone(),
                    network: question.network.to_owned(),
                    receiver: permit.receiver.name.clone(),
                    rule: permit.rule.label().clone(),
                };
                let (with_answers, rule) = (!issued.answers.is_empty(), permit.rule.label());
                let noted = account::Given::new(token, source, &issued.given, to_of(question), with_answers, rule);
                account.given(noted, details).map_err(|Full| Refusal::TooMany).and_then(|()| encode(&issued, now))
            }
            Err(Refusal::Denied(explanation, kind)) => {
                tracing::debug!("denied: {}", explanation.text);
                let event = AuditEvent::new("denied").person(&session.person).device(&session.device);
                // The limit is per person: the source of a datagram may be forged.
                let written = self.audit.admits(&event);
                let noted =
                    if written { account.denied(event.source(source).detail(&explanation.text)) } else { Ok(()) };
                noted.map_err(|Full| Refusal::TooMany).and(Err(Refusal::Denied(explanation, kind)))
            }
            Err(refusal) => Err(refusal),
        };
        match given {
            Ok(reply) => {
                count(&self.counts.given);
                reply
            }
            Err(refusal) => self.refuse(refusal),
        }
    }

    fn refuse(&self, refusal: Refusal) -> [u8; REPLY_LEN] {
        let (reason, text) = in_words(refusal);
        count(&self.counts.refused[reason as usize - 1]);
        // `encode` cannot fail here, because a truncated text always fits.
        Reply::Refused { reason, text: fitting(&text) }.encode().unwrap_or([0xff; REPLY_LEN])
    }

    /// Writes to the audit trail which segments were issued and denied since the last call. Entries that cannot be
    /// written wait for the next call.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub async fn settle_account(&self) -> Result<()> {
        let mut taken = self.account.take();
        loop {
            let events = taken.next_events();
            let written = events.len();
            if written == 0 {
                return Ok(());
            }
            self.storage.call(move |database| database.audit_all(&events, now())).await?;
            taken.forget_last(written);
        }
    }
}

/// Returns the number of bytes that remain in an answer with this segment. The return segment has to fit into them.
fn room_beside(given: &Given) -> usize {
    GIVEN_MAX.saturating_sub(given.option().len() + 16 * given.hops.len())
}

fn encode(Issued { given, answers, others }: &Issued, now: u64) -> Result<[u8; REPLY_LEN], Refusal> {
    let hops: Vec<_> = given.hops.iter().map(Ipv6Addr::octets).collect();
    let reply = GivenReply {
        vni: given.vni,
        now: u32::try_from(now).unwrap_or(u32::MAX),
        receiving: given.ends.receiving,
        option: &given.option(),
        hops: &hops,
        answers,
        others: *others,
    };
    let none = || Refusal::Internal(anyhow::anyhow!("a segment is too long for an answer"));
    Reply::Given(reply).encode().ok_or_else(none)
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Returns the reason code and the message of a refusal.
fn in_words(refusal: Refusal) -> (Reason, String) {
    let problem = match refusal {
        Refusal::Internal(error) => {
            tracing::error!("cannot answer a request for a segment: {error:#}");
            return (Reason::Internal, "internal error: see the authority's log".into());
        }
        other => Problem::from(other).said(),
    };
    let reason = Reason::ALL.into_iter().find(|reason| reason.name() == problem.r#type);
    (reason.unwrap_or(Reason::NoSegment), problem.title)
}

/// Truncates a text to the maximum length that an answer can contain.
fn fitting(text: &str) -> &str {
    text.get(..text.floor_char_boundary(TEXT_MAX)).unwrap_or_default()
}
