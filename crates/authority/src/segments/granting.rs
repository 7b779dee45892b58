//! Answers requests for grants that arrive by UDP (wire.md §8.14). If a request only renews a lease, or the journal
//! accepts its grant, the thread that received the request answers it. A task answers any other request, as the handler
//! of the same call over HTTPS does. The number of such tasks is limited, for each account and for all accounts
//! together.
//!
//! The thread serves all accounts. So it decides a request only after it has charged the request to its account.

use super::batch::{Answers, Sender};
use crate::grants::{AtOnce, GrantIssuer, IssuedGrant};
use crate::http::problems::Problem;
use crate::http::throttle::{Key, Throttle};
use crate::http::turns::{RequestQueue, Turn};
use crate::now;
use crate::policy::PolicyInForce;
use crate::storage::TokenHash;
use api::GrantRequest;
use engine::model::{Compress, Grant, Sealing, Secret};
use engine::policy::{Compiled, GrantSuite, Permit, Policy};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use wire::ask::grant::{GrantAnswer, GrantQuestion, GrantReply, NAMES_MAX, TIME_MAX, TunnelTerms};
use wire::ask::{Answer, LineKey, REPLY_LEN, Refusal as Reason, TEXT_MAX};
use zeroize::Zeroizing;

/// Maximum number of requests that wait for an answer. They take some 4 MB.
const MOST: usize = 4096;
/// Maximum number of waiting requests of one account, in all its sessions.
const MOST_OF_PERSON: usize = 64;
/// Time after which the authority drops a request that still waits for its turn. The client has sent the request over
/// HTTPS by then.
const LATE: Duration = Duration::from_secs(2);

const OTHER_ADDRESS: &str =
    "the session did not get its line from this address, or got the line more than an hour ago: get another line";
const STALE: &str = "the time in the request is not the authority's time: get another line";
const BUSY: &str = "too many requests for grants at a time: send this one over HTTPS";
const OVER_HTTPS: &str = "this grant does not fit into a datagram: request it over HTTPS";

/// The plaintext of an answer, which may contain a grant's key.
type Plain = Zeroizing<[u8; REPLY_LEN]>;

/// A request that is sealed with the key of the session's line.
pub struct GrantDatagram {
    /// The request's index in its batch.
    pub index: usize,
    /// The address and port to which the answer goes. If the socket is an IPv6 socket, an IPv4 address is an
    /// IPv4-mapped IPv6 address.
    pub from: SocketAddr,
    /// The session to which the authority issued the line.
    pub holder: TokenHash,
    /// The line's key.
    pub key: LineKey,
    /// The request's counter.
    pub counter: u64,
    /// Whether the request came from the address from which the session got the line (its key for requests by UDP),
    /// within an hour after that.
    pub is_from_opener: bool,
    /// The content of the request.
    pub question: GrantQuestion,
}

impl GrantDatagram {
    fn source(&self) -> IpAddr {
        self.from.ip().to_canonical()
    }

    fn request(&self) -> GrantRequest {
        let GrantQuestion { to, consented, .. } = self.question;
        GrantRequest { address: to.address, protocol: to.protocol, port: to.port, consented, in_band: false }
    }

    /// Seals the answer to this request. The caller must not call this function twice for one request.
    fn answer(&self, reply: &Plain) -> Option<Answer> {
        self.key.seal_answer(self.counter, reply)
    }
}

/// How far the receiving thread has come with a request that it leaves to a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The account is not charged, and nothing is decided.
    Received,
    /// The account is charged. The authority can't answer the request without waiting.
    Charged,
}

/// The tasks that answer requests which the receiving thread can't answer without waiting. Dropping this value ends
/// them.
pub struct Later {
    sender: Arc<Sender>,
    runtime: Handle,
    tasks: JoinSet<()>,
}

impl Later {
    /// Creates the value. The tasks run on `runtime`.
    pub fn new(sender: Sender, runtime: Handle) -> Self {
        Self { sender: Arc::new(sender), runtime, tasks: JoinSet::new() }
    }
}

/// The numbers of answers, by outcome.
#[derive(Default)]
struct Counts {
    given: AtomicU64,
    refused: [AtomicU64; Reason::ALL.len()],
}

/// Answers requests for grants that arrive by UDP.
pub struct GrantService {
    grants: Arc<GrantIssuer>,
    queue: Arc<RequestQueue>,
    throttle: Arc<Throttle>,
    policy: Arc<PolicyInForce>,
    waiting: Mutex<Waiting>,
    counts: Counts,
}

impl GrantService {
    /// Creates the service.
    pub fn new(
        grants: Arc<GrantIssuer>,
        queue: Arc<RequestQueue>,
        throttle: Arc<Throttle>,
        policy: Arc<PolicyInForce>,
    ) -> Self {
        let (waiting, counts) = Default::default();
        Self { grants, queue, throttle, policy, waiting, counts }
    }

    /// Returns the number of answers for each outcome, with the outcome's name.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let Counts { given, refused } = &self.counts;
        let refused = Reason::ALL.iter().zip(refused).map(|(reason, count)| (reason.name(), count));
        let all = [("given", given)].into_iter().chain(refused);
        all.map(|(name, count)| (name, count.load(Ordering::Relaxed))).collect()
    }

    /// Returns the answers to those requests that the authority can answer without waiting. Starts tasks that answer
    /// the others.
    pub fn answer(self: &Arc<Self>, batch: Vec<GrantDatagram>, later: &mut Later) -> Answers {
        while later.tasks.try_join_next().is_some() {}
        let (mut answers, mut left) = (Answers::default(), Vec::new());
        if batch.is_empty() {
            return answers;
        }
        let policy = self.policy.blocking_read();
        let now = now();
        for datagram in batch {
            match self.answer_at_once(&policy, &datagram, now) {
                Ok(reply) => {
                    if let Some(answer) = datagram.answer(&reply) {
                        answers.push(datagram.index, answer);
                    }
                }
                Err(progress) => left.push((datagram, progress)),
            }
        }
        drop(policy);
        left.into_iter().for_each(|(datagram, progress)| self.answer_later(datagram, progress, later));
        answers
    }

    fn answer_at_once(&self, policy: &Compiled, datagram: &GrantDatagram, now: u64) -> Result<Plain, Progress> {
        if !datagram.is_from_opener {
            return Ok(self.refuse(Reason::OtherAddress, OTHER_ADDRESS));
        }
        if now.abs_diff(datagram.question.time.into()) > TIME_MAX.into() {
            return Ok(self.refuse(Reason::Stale, STALE));
        }
        let session = self.grants.sessions.get(&datagram.holder).ok_or(Progress::Received)?;
        // A decision takes the thread's time, whatever it says. If the account has used up its rate, or has work in its
        // queue, the request waits for its turn, as it would over HTTPS.
        let own = Key::Requests(session.person.clone());
        if !self.queue.is_idle(&session.person) || self.throttle.charge(&[own], Instant::now()).is_err() {
            return Err(Progress::Received);
        }
        self.issue_at_once(policy, datagram).ok_or(Progress::Charged)
    }

    /// Answers a request for a grant that can be issued without waiting, or that does not fit into an answer. Returns
    /// `None` for any other request. The caller must have charged the account.
    fn issue_at_once(&self, policy: &Compiled, datagram: &GrantDatagram) -> Option<Plain> {
        let (request, source) = (datagram.request(), datagram.source());
        match self.grants.issue_at_once(policy, datagram.holder, &request, source, fits) {
            AtOnce::Issued(issued) => Some(self.given(&issued)),
            AtOnce::Unfit => Some(self.refuse(Reason::OverHttps, OVER_HTTPS)),
            AtOnce::Later => None,
        }
    }

    /// Makes the storage thread record new grants. The caller must send the answers before this call, so that clients
    /// do not wait for the thread.
    pub fn note_sent(&self) {
        self.grants.storage.wake();
    }

    /// Starts a task that answers a request, or refuses the request if too many others wait.
    fn answer_later(self: &Arc<Self>, datagram: GrantDatagram, progress: Progress, later: &mut Later) {
        let session = self.grants.sessions.get(&datagram.holder);
        let place = session.as_ref().map(|session| Place::take(self, &session.person));
        let (session, place) = match (session, place) {
            (Some(session), Some(Some(place))) => (session, place),
            (None, _) => {
                let (reason, text) = in_words(&Problem::NotLoggedIn);
                return send(&later.sender, &datagram, &self.refuse(reason, &text));
            }
            (Some(_), _) => return send(&later.sender, &datagram, &self.refuse(Reason::Busy, BUSY)),
        };
        let (service, sender, begun) = (self.clone(), later.sender.clone(), Instant::now());
        let task = async move {
            let _place = place;
            let turn = match progress {
                Progress::Received => service.queue.turn(&session.person).await,
                Progress::Charged => service.queue.charged_turn(&session.person).await,
            };
            if begun.elapsed() > LATE {
                return;
            }
            let at_once = match progress {
                Progress::Received => service.issue_at_once(&*service.policy.read().await, &datagram),
                Progress::Charged => None,
            };
            let reply = match at_once {
                Some(reply) => reply,
                None => service.issue(&turn, &datagram).await,
            };
            send(&sender, &datagram, &reply);
            service.note_sent();
        };
        let mut task = Box::pin(task);
        if progress == Progress::Charged {
            // The first poll decides the request and passes it to the storage thread, while the runtime still wakes a
            // thread for the rest of the task.
            let _runtime = later.runtime.enter();
            if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                return;
            }
        }
        later.tasks.spawn_on(task, &later.runtime);
    }

    /// Answers a request as the handler of the same call over HTTPS does.
    async fn issue(&self, turn: &Turn<'_>, datagram: &GrantDatagram) -> Plain {
        let (request, source) = (datagram.request(), datagram.source());
        match self.grants.issue(turn, datagram.holder, &request, source).await {
            Ok(issued) => self.given(&issued),
            Err(problem) => {
                if let Problem::Internal(error) = &problem {
                    tracing::error!("cannot answer a request for a grant: {error:#}");
                }
                let (reason, text) = in_words(&problem);
                self.refuse(reason, &text)
            }
        }
    }

    fn given(&self, issued: &IssuedGrant) -> Plain {
        match encode(issued) {
            Some(reply) => {
                self.counts.given.fetch_add(1, Ordering::Relaxed);
                reply.into()
            }
            None => self.refuse(Reason::OverHttps, OVER_HTTPS),
        }
    }

    fn refuse(&self, reason: Reason, text: &str) -> Plain {
        self.counts.refused[reason as usize - 1].fetch_add(1, Ordering::Relaxed);
        let text = text.get(..text.floor_char_boundary(TEXT_MAX)).unwrap_or_default();
        // `encode` cannot fail here, because a truncated text always fits.
        GrantAnswer::Refused { reason, text }.encode().unwrap_or([0xff; REPLY_LEN]).into()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn send(sender: &Sender, datagram: &GrantDatagram, reply: &Plain) {
    if let Some(answer) = datagram.answer(reply) {
        sender.send(&answer, datagram.from);
    }
}

/// The numbers of requests that wait for an answer.
#[derive(Default)]
struct Waiting {
    all: usize,
    of_persons: HashMap<String, usize>,
}

/// The place of one waiting request. Dropping this value makes room for another request.
struct Place {
    service: Arc<GrantService>,
    person: String,
}

impl Place {
    /// Takes a place for a request of this person. Returns `None` if no place is free.
    fn take(service: &Arc<GrantService>, person: &str) -> Option<Self> {
        let mut waiting = service.waiting();
        let of_person = waiting.of_persons.get(person).copied().unwrap_or_default();
        if waiting.all >= MOST || of_person >= MOST_OF_PERSON {
            return None;
        }
        waiting.all += 1;
        waiting.of_persons.insert(person.to_owned(), of_person + 1);
        Some(Self { service: service.clone(), person: person.to_owned() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.service.waiting();
        waiting.all -= 1;
        if let Some(of_person) = waiting.of_persons.get_mut(&self.person) {
            *of_person -= 1;
            if *of_person == 0 {
                waiting.of_persons.remove(&self.person);
            }
        }
    }
}

/// Reports whether a grant for this permit fits into an answer.
fn fits(permit: &Permit<'_>, policy: &Policy) -> bool {
    let receiver = permit.receiver;
    let names = receiver.name.len() + permit.label().len();
    let is_header = permit.terms.suite != GrantSuite::Sha224;
    is_header && names <= NAMES_MAX && terms(&permit.terms.sealing, &policy.tunnels_of(&receiver.verifier)).is_some()
}

/// Encodes a grant. Returns `None` if it does not fit into an answer.
fn encode(issued: &IssuedGrant) -> Option<[u8; REPLY_LEN]> {
    let Grant { secret, receiver, rule, carrier, sealing, tunnels, .. } = &issued.grant;
    let Secret::Grant(header, key) = secret else { return None };
    let reply = GrantReply {
        now: u32::try_from(issued.now).ok()?,
        header: *header,
        key: key.clone(),
        carrier: *carrier,
        receiver,
        rule,
        tunnel: terms(sealing, tunnels)?,
    };
    reply.encode()
}

/// Returns a rule's demands on sealed tunnels and the addresses of the tunnels; `Some(None)` if there is no tunnel.
/// Returns `None` if an answer has no room for these addresses.
fn terms(sealing: &Sealing, tunnels: &[SocketAddr]) -> Option<Option<TunnelTerms>> {
    if tunnels.is_empty() {
        return Some(None);
    }
    let Sealing { treatment, compress, suites, forward_secrecy, rekey } = *sealing;
    let compress = match compress {
        None => 0,
        Some(Compress::Never) => 1,
        Some(Compress::Auto) => 2,
        Some(Compress::Always) => 3,
    };
    let treatment = treatment.of_records();
    let mut terms = TunnelTerms { treatment, compress, suites, forward_secrecy, rekey, ipv4: None, ipv6: None };
    for tunnel in tunnels {
        let (is_taken, port) = match tunnel.ip() {
            IpAddr::V4(address) => (terms.ipv4.replace((address, tunnel.port())).is_some(), tunnel.port()),
            IpAddr::V6(address) => (terms.ipv6.replace((address, tunnel.port())).is_some(), tunnel.port()),
        };
        if is_taken || port == 0 {
            return None;
        }
    }
    Some(Some(terms))
}

/// Returns the reason code and the message of a refusal. If a rule denies the request, its label is in the second line.
fn in_words(problem: &Problem) -> (Reason, String) {
    let api::Problem { r#type, title, detail, .. } = problem.said();
    let reason = Reason::ALL.into_iter().find(|reason| reason.name() == r#type).unwrap_or(Reason::OverHttps);
    let text = detail.map_or_else(|| title.clone(), |rule| format!("{title}\n{rule}"));
    (reason, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn tunnels_fit_if_there_is_one_of_each_family() {
        let [four, other, six, none] = ["192.0.2.1:4499", "192.0.2.2:4499", "[2001:db8::1]:4499", "192.0.2.1:0"]
            .map(|tunnel| tunnel.parse::<SocketAddr>().unwrap());
        let of = |tunnels: &[SocketAddr]| terms(&Sealing::NONE, tunnels);
        assert_eq!(of(&[]), Some(None));
        let both = of(&[six, four]).flatten().unwrap();
        assert_eq!(
            (both.ipv4, both.ipv6),
            (Some(([192, 0, 2, 1].into(), 4499)), Some(("2001:db8::1".parse().unwrap(), 4499)))
        );
        assert_eq!((both.treatment, both.compress, both.rekey), (None, 0, Sealing::REKEY));
        assert!(of(&[four, other]).is_none() && of(&[none]).is_none());
    }

    #[test]
    fn a_problem_has_a_number_and_the_rule_in_a_second_line() {
        let explanation = |rule: Option<&str>| engine::policy::Explanation {
            allowed: false,
            receiver: None,
            rule: rule.map(str::to_owned),
            text: "no".into(),
        };
        let denied = |rule| in_words(&Problem::Denied(explanation(rule), "denied"));
        assert_eq!(denied(Some("policy.toml:7")), (Reason::Denied, "no\npolicy.toml:7".into()));
        assert_eq!(denied(None), (Reason::Denied, "no".into()));
        assert_eq!(in_words(&Problem::NoMajority).0, Reason::NoMajority);
        assert_eq!(in_words(&Problem::TooManyGrants(Duration::ZERO)).0, Reason::TooMany);
        assert_eq!(in_words(&Problem::Internal(anyhow!("a secret"))).1, "internal error: see the authority's log");
        assert_eq!(in_words(&Problem::WrongForm).0, Reason::OverHttps, "a problem that grants do not have");
    }
}
