//! Requests for access to receivers, and the decisions of people to whom the policy delegates them. A consent applies
//! from the moment it is given, and its end also ends the grants that rest on it.

use super::consent_table::ConsentTable;
use super::{Enforcer, PolicyInForce};
use crate::grants::GrantIssuer;
use crate::http::problems::Problem;
use crate::http::turns::RequestQueue;
use crate::login::Sessions;
use crate::now;
use crate::push::events::{Listener, Push};
use crate::storage::{
    AccessEntry, AccessState, AccessVerdict, Asked, Database, Decided, NewRequest, Operator, Session, Storage,
    TokenHash, random_number,
};
use crate::sync::Synchroniser;
use anyhow::Result;
use api::Event;
use axum::http::StatusCode;
use engine::document::duration;
use engine::model::Service;
use engine::policy::delegation::{MOST_SERVICES, RequestId};
use engine::policy::{Policy, Subject, parse_service, service};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Maximum number of characters of a reason or a note.
pub const MOST_TEXT: usize = 500;
/// Maximum number of consents that one transaction ends.
const PIECE: usize = 500;
/// The reason for revocations in the audit trail.
const ENDED: &str = "the consent ended";
/// The longest time for which a person can ask, in seconds.
const LONGEST: u32 = 366 * 86_400;

/// Takes requests for access, and puts decisions about them into effect. Clones share everything.
#[derive(Clone)]
pub struct AccessRequests {
    pub(crate) storage: Arc<Storage>,
    pub(crate) policy: Arc<PolicyInForce>,
    pub(crate) consents: Arc<ConsentTable>,
    pub(crate) grants: Arc<GrantIssuer>,
    pub(crate) queue: Arc<RequestQueue>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) push: Arc<Push>,
    pub(crate) sync: Arc<Synchroniser>,
    pub(crate) enforcer: Arc<Enforcer>,
    /// People whose consent has ended, and whose grants are not yet examined.
    pub(crate) unexamined: Arc<Mutex<BTreeSet<String>>>,
    pub(crate) look: Arc<NextLook>,
}

/// When the next consent ends, as far as it is known.
#[derive(Default)]
pub struct NextLook {
    at: AtomicU64,
    /// The number of changes of consents, and the version of the policy, for which `at` was computed.
    made: AtomicI64,
    version: AtomicI64,
}

/// A person's request as it arrives.
pub struct Asking<'a> {
    /// Name of the receiver.
    pub receiver: &'a str,
    /// The services in the notation of the policy file; all for which the person may ask if empty.
    pub services: &'a [String],
    /// The number of seconds for which the person wants access.
    pub lifetime: Option<u64>,
    /// The reason that the person gives.
    pub reason: &'a str,
}

/// A delegate's decision as it arrives.
pub struct Deciding<'a> {
    /// The services and the number of seconds that the delegate allows; `None` if the delegate refuses.
    pub allow: Option<(Vec<String>, u32)>,
    /// The note of the delegate.
    pub note: &'a str,
}

/// The requests and consents about which a person may decide.
#[derive(Default)]
pub struct ToDecide {
    /// Requests without a decision, the oldest first.
    pub open: Vec<AccessEntry>,
    /// Consents in effect, the next to end first.
    pub consents: Vec<AccessEntry>,
}

impl AccessRequests {
    /// Returns the receivers for which the subject may ask, each with the services in the notation of the policy file.
    pub async fn requestable(&self, subject: &Subject<'_>) -> Vec<(String, Vec<String>)> {
        let read = |policy: &Policy| {
            let all = policy.requestable(subject).into_iter();
            all.map(|(name, services)| (name.to_owned(), services.iter().map(service).collect())).collect()
        };
        self.policy.with(read).await
    }

    /// Records the request of the session's person.
    ///
    /// # Errors
    /// Fails if the request is malformed, no delegation covers it, a limit is reached, or the database cannot be
    /// written.
    pub async fn ask(
        &self,
        session: &Session,
        token: TokenHash,
        source: IpAddr,
        asking: Asking<'_>,
    ) -> Result<RequestId, Problem> {
        let Asking { receiver, services, lifetime, reason } = asking;
        let reason = line("reason", reason)?;
        let lifetime = lifetime.map(|seconds| within(u32::try_from(seconds).ok())).transpose()?;
        let mut wanted = read_services(services)?;
        let subject = session.subject(source);
        let may = |policy: &Policy| {
            if wanted.is_empty() {
                wanted = policy.requestable(&subject).remove(receiver).unwrap_or_default();
                wanted.retain(|service| policy.may_ask(&subject, receiver, std::slice::from_ref(service)));
            }
            !wanted.is_empty() && policy.may_ask(&subject, receiver, &wanted)
        };
        if !self.policy.with(may).await {
            // Also if there is no such receiver: the answer must not tell strangers which receivers exist.
            let why = "nobody can allow you these services of a receiver of this name: the list of requests shows the \
                       receivers and services for which you can ask";
            return Err(Problem::Access(StatusCode::FORBIDDEN, "not_requestable", why.into()));
        }
        let person = session.person.clone();
        let receiver = receiver.to_owned();
        let id = random_number()?;
        let request = NewRequest { id, session: token, person, source, receiver, services: wanted, lifetime, reason };
        let ask = move |database: &mut Database| database.ask_access(&request, now());
        match self.storage.call_for(&session.person, ask).await? {
            Asked::Done(id) => {
                tracing::info!(person = session.person, %id, "asked for access");
                Ok(id)
            }
            Asked::SessionEnded => Err(Problem::NotLoggedIn),
            Asked::Already(id) => {
                let why = format!("your request {id} for this receiver waits for a decision: withdraw it to ask again");
                Err(Problem::Access(StatusCode::CONFLICT, "already_asked", why))
            }
            Asked::TooMany(why) => Err(Problem::Access(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", why.into())),
        }
    }

    /// Returns the requests of a person, newest first.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn of(&self, person: &str) -> Result<Vec<AccessEntry>, Problem> {
        let whose = person.to_owned();
        Ok(self.storage.read_for(person, move |database| database.access_requests_of(&whose)).await?)
    }

    /// Reports whether the subject may decide about any receiver.
    pub async fn is_delegate(&self, subject: &Subject<'_>) -> bool {
        self.policy.with(|policy| policy.delegated_to(subject).next().is_some()).await
    }

    /// Returns the requests that the delegate may decide, without the delegate's own requests.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn to_decide(&self, delegate: &Subject<'_>) -> Result<ToDecide, Problem> {
        let receivers = |policy: &Policy| -> BTreeSet<String> {
            let all = policy.delegated_to(delegate).flat_map(|delegation| policy.receivers_of(delegation));
            all.map(|receiver| receiver.name.clone()).collect()
        };
        let receivers: Vec<_> = self.policy.with(receivers).await.into_iter().collect();
        if receivers.is_empty() {
            return Ok(ToDecide::default());
        }
        let read = move |database: &mut Database| database.access_requests_for(&receivers);
        let (mut open, consents) = self.storage.read_for(delegate.person, read).await?;
        open.retain(|entry| entry.person != delegate.person);
        Ok(ToDecide { open, consents })
    }

    /// Returns the longest time for which the delegate may allow the request; `None` if no delegation covers it.
    pub async fn longest(&self, delegate: &Subject<'_>, entry: &AccessEntry) -> Option<u32> {
        let services = entry.parsed_services();
        let longest = |policy: &Policy| {
            policy.delegation_for(delegate, &entry.receiver, &services).map(|delegation| delegation.lifetime_max)
        };
        self.policy.with(longest).await
    }

    /// Puts a delegate's decision into effect, and tells the agents of the person who asked.
    ///
    /// # Errors
    /// Fails if the decision is malformed or exceeds the delegation, the request is the delegate's own or was decided
    /// before, another policy was put in force meanwhile, or the database cannot be written.
    pub async fn decide(
        &self,
        delegate: &Session,
        token: TokenHash,
        by: Operator,
        id: RequestId,
        deciding: Deciding<'_>,
    ) -> Result<(), Problem> {
        let note = line("note", deciding.note)?;
        let subject = Subject { groups: &delegate.groups, ..Subject::person(&delegate.person) };
        let entry = self.request(&delegate.person, id).await?;
        let asked = entry.parsed_services();
        let allow = match deciding.allow {
            None => None,
            Some((services, lifetime)) => {
                let services = read_services(&services)?;
                let is_part = |service: &Service| {
                    asked.iter().any(|own| {
                        own.protocol == 0
                            || own.protocol == service.protocol
                                && own.first_port <= service.first_port
                                && service.last_port <= own.last_port
                    })
                };
                if services.is_empty() || !services.iter().all(is_part) {
                    let why = "allow some of the services that the person asks for, and no others";
                    return Err(Problem::Access(StatusCode::FORBIDDEN, "exceeds_request", why.into()));
                }
                Some((services, within(Some(lifetime))?))
            }
        };
        let verdict = {
            // The policy does not change here while this lock is held; the transaction notices if it has changed later.
            let policy = self.policy.read().await;
            let version = self.storage.call(|database| database.policy_version()).await?;
            let followed = self.enforcer.version.load(Ordering::SeqCst);
            if followed != 0 && followed != version {
                return Err(policy_changed());
            }
            let policy = policy.policy();
            let mut own = policy.delegated_to(&subject);
            let Some(first) = own.find(|delegation| policy.concerns(delegation, &entry.receiver)) else {
                // A request that does not exist gets the same answer. So the answer does not reveal who asks for which receiver.
                return Err(no_request());
            };
            let (delegation, allow) = match allow {
                None => (first, None),
                Some((services, lifetime)) => {
                    let able = policy.delegation_for(&subject, &entry.receiver, &services);
                    let Some(delegation) = able else {
                        let why = "the delegation does not cover these services";
                        return Err(Problem::Access(StatusCode::FORBIDDEN, "exceeds_delegation", why.into()));
                    };
                    if lifetime > delegation.lifetime_max {
                        let why = format!("the delegation allows {} at most", duration(delegation.lifetime_max));
                        return Err(Problem::Access(StatusCode::FORBIDDEN, "exceeds_delegation", why));
                    }
                    (delegation, Some((services, now() + u64::from(lifetime))))
                }
            };
            AccessVerdict {
                session: token,
                decider: delegate.person.clone(),
                by,
                version,
                delegation: delegation.name.clone(),
                label: delegation.label().to_string(),
                allow,
                note,
            }
        };
        let is_allowed = verdict.allow.is_some();
        let decide = move |database: &mut Database| database.decide_access(id, &verdict, now());
        match self.storage.call_for(&delegate.person, decide).await? {
            Decided::Done { person } => {
                tracing::info!(%id, person, by = delegate.person, is_allowed, "decided a request for access");
                if is_allowed {
                    let requests = self.clone();
                    // The work goes on if the browser closes its connection.
                    tokio::spawn(async move { requests.tell(&person).await }).await.map_err(anyhow::Error::from)??;
                }
                Ok(())
            }
            Decided::NoRequest => Err(no_request()),
            Decided::Already(entry) => Err(already(&entry)),
            Decided::SessionEnded => Err(Problem::NotLoggedIn),
            Decided::Own => {
                let why = "your own request is for others to decide";
                Err(Problem::Access(StatusCode::FORBIDDEN, "own_request", why.into()))
            }
            Decided::PolicyChanged => Err(policy_changed()),
            Decided::TooMany(why) => {
                Err(Problem::Access(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", why.into()))
            }
        }
    }

    /// Withdraws a request or consent of the person who asked, or a consent about whose receiver the person may decide.
    /// The grants that rested on it are revoked before this function returns.
    ///
    /// # Errors
    /// Fails if there is no such request, it has ended before, or the database cannot be written.
    pub async fn withdraw(&self, who: &Session, by: Operator, id: RequestId) -> Result<(), Problem> {
        let subject = Subject { groups: &who.groups, ..Subject::person(&who.person) };
        let entry = self.request(&who.person, id).await?;
        let is_delegate = |policy: &Policy| {
            policy.delegated_to(&subject).any(|delegation| policy.concerns(delegation, &entry.receiver))
        };
        let is_own = entry.person == who.person;
        if !is_own && (entry.state == AccessState::Open || !self.policy.with(is_delegate).await) {
            return Err(no_request());
        }
        self.withdraw_entry(who, by, id, entry).await
    }

    /// Withdraws a request or consent of the person who asked, as [`Self::withdraw`] does.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Self::withdraw`].
    pub async fn withdraw_own(&self, who: &Session, by: Operator, id: RequestId) -> Result<(), Problem> {
        let entry = self.request(&who.person, id).await?;
        if entry.person != who.person {
            return Err(no_request());
        }
        self.withdraw_entry(who, by, id, entry).await
    }

    async fn request(&self, asker: &str, id: RequestId) -> Result<AccessEntry, Problem> {
        let found = self.storage.read_for(asker, move |database| database.access_request(id)).await?;
        found.ok_or_else(no_request)
    }

    async fn withdraw_entry(
        &self,
        who: &Session,
        by: Operator,
        id: RequestId,
        entry: AccessEntry,
    ) -> Result<(), Problem> {
        let withdraw = move |database: &mut Database| database.withdraw_access(id, None, &by, now());
        let Some(before) = self.storage.call_for(&who.person, withdraw).await? else { return Err(already(&entry)) };
        tracing::info!(%id, person = before.person, by = who.person, "withdrew a request or consent");
        if before.state == AccessState::Allowed {
            let requests = self.clone();
            tokio::spawn(async move { requests.cut(&before.person).await }).await.map_err(anyhow::Error::from)??;
        }
        Ok(())
    }

    /// Ends the consents whose time is over, and the grants that rested on them. The server calls this every second.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written.
    pub async fn follow_time(&self) -> Result<()> {
        let (made, consents, time) = (self.consents.made(), self.consents.current(), now());
        let version = self.enforcer.version.load(Ordering::SeqCst);
        let look = &self.look;
        let is_known = look.made.load(Ordering::SeqCst) == made && look.version.load(Ordering::SeqCst) == version;
        if !is_known || look.at.load(Ordering::SeqCst) <= time {
            let (ended, next) = self.policy.with(|policy| policy.ended_consents(&consents, time)).await;
            for piece in ended.chunks(PIECE) {
                let piece = piece.to_vec();
                let people = self.storage.call(move |database| database.expire_consents(&piece, now())).await?;
                self.unexamined().extend(people);
            }
            look.at.store(next.unwrap_or(u64::MAX), Ordering::SeqCst);
            look.made.store(made, Ordering::SeqCst);
            look.version.store(version, Ordering::SeqCst);
        }
        loop {
            let first = self.unexamined().first().cloned();
            let Some(person) = first else { return Ok(()) };
            self.cut(&person).await?;
        }
    }

    fn unexamined(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.unexamined.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Puts a new consent in force here and at the other members of the cluster, and makes the person's agents read
    /// their destinations again.
    async fn tell(&self, person: &str) -> Result<()> {
        self.sync.run_everywhere().await?;
        self.tell_agents(person);
        Ok(())
    }

    /// Revokes the grants of a person that are no longer allowed after a consent has ended. If this fails,
    /// [`Self::follow_time`] tries again.
    async fn cut(&self, person: &str) -> Result<()> {
        self.unexamined().insert(person.to_owned());
        self.sync.run().await?;
        // From here on, the consent allows nothing. Grants that it allowed before are recorded before `drain` returns,
        // or their recording is queued before the revocation.
        self.queue.drain(person).await;
        let forbidden = self.grants.forbidden_of(person, now()).await?;
        let count = forbidden.len();
        if count > 0 {
            let revoke = move |database: &mut Database| database.revoke_forbidden(&forbidden, ENDED, now());
            self.storage.call_for(person, revoke).await?;
        }
        self.unexamined().remove(person);
        tracing::info!(person, revoked = count, "a consent ended");
        self.sync.run_everywhere().await?;
        self.tell_agents(person);
        Ok(())
    }

    fn tell_agents(&self, person: &str) {
        for token in self.sessions.tokens_of(person) {
            self.push.send(&Listener::Session(token), &Event::Policy);
        }
    }
}

/// Reads the services of a request or decision.
fn read_services(words: &[String]) -> Result<Vec<Service>, Problem> {
    if words.len() > MOST_SERVICES {
        return Err(Problem::Malformed(format!(
            "at most {MOST_SERVICES} services in a request: write ranges of ports"
        )));
    }
    let fault = |fault| Problem::Access(StatusCode::FORBIDDEN, "not_requestable", fault);
    words.iter().map(|word| parse_service(word).map_err(fault)).collect()
}

/// Checks a text of one line.
fn line(name: &str, text: &str) -> Result<String, Problem> {
    if text.chars().count() > MOST_TEXT || text.contains(char::is_control) {
        return Err(Problem::Malformed(format!("the {name} must be one line of at most {MOST_TEXT} characters")));
    }
    Ok(text.trim().to_owned())
}

fn within(lifetime: Option<u32>) -> Result<u32, Problem> {
    let malformed = || Problem::Malformed(format!("the time must be from 1m to {}", duration(LONGEST)));
    lifetime.filter(|lifetime| (60..=LONGEST).contains(lifetime)).ok_or_else(malformed)
}

/// Returns the problem that the caller gets if a request does not exist, or if others decide about it.
pub(crate) fn no_request() -> Problem {
    Problem::NotFound("request for access that you can decide or withdraw")
}

fn already(entry: &AccessEntry) -> Problem {
    let by = match (entry.state, &entry.decider) {
        (AccessState::Allowed | AccessState::Refused, Some(decider)) => format!(" by {decider}"),
        _ => String::new(),
    };
    let why = format!("the request {} is already {}{by}: nothing was changed", entry.id, entry.state.name());
    Problem::Access(StatusCode::CONFLICT, "already_decided", why)
}

fn policy_changed() -> Problem {
    let why = "the policy has changed meanwhile: open the page again to see what you may decide now";
    Problem::Access(StatusCode::CONFLICT, "policy_changed", why.into())
}
