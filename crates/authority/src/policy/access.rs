//! Requests for access to receivers, and the decisions of people to whom the policy delegates them. A consent applies
//! from the moment it is given, and its end also ends the grants that rest on it.

mod giving;

pub use giving::{GivenConsent, Giver, Giving, GivingField, Refused, Term};

use super::consent_table::ConsentTable;
use super::examinations::Examinations;
use super::{Enforcer, PolicyInForce};
use crate::grants::GrantIssuer;
use crate::http::problems::Problem;
use crate::login::Sessions;
use crate::now;
use crate::push::events::Push;
use crate::storage::{
    AccessEntry, AccessMark, AccessPage, AccessState, AccessVerdict, Database, Decided, NewRequest, Operator,
    PersonFacts, RequestOutcome, Session, Storage, TokenHash, random_number,
};
use crate::sync::Synchroniser;
use crate::webhook::{Notice, Webhooks};
use anyhow::Result;
use api::Requestable;
use axum::http::StatusCode;
use engine::document::duration;
use engine::model::Service;
use engine::policy::delegation::{Applicant, Decider, Delegation, Exceeds, MOST_SERVICES, RequestId};
use engine::policy::{Decision, Policy, Request, Subject, parse_service, service};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use wire::Destination;

/// Maximum number of characters of a reason or a note.
pub const MOST_TEXT: usize = 500;
/// Advice at the end of a message to a delegate whose page is outdated.
const LOOK_AGAIN: &str = "open the page again to see what you may decide now";
/// The longest time for which a person can request access, in seconds.
const LONGEST: u32 = 366 * 86_400;

/// Takes requests for access, and puts decisions about them into effect. Clones share everything.
#[derive(Clone)]
pub struct AccessRequests {
    pub(crate) storage: Arc<Storage>,
    pub(crate) policy: Arc<PolicyInForce>,
    pub(crate) consents: Arc<ConsentTable>,
    pub(crate) grants: Arc<GrantIssuer>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) push: Arc<Push>,
    pub(crate) sync: Arc<Synchroniser>,
    pub(crate) enforcer: Arc<Enforcer>,
    /// The examinations of grants that rested on consents which have ended.
    pub(crate) examinations: Arc<Mutex<Examinations>>,
    pub(crate) webhooks: Arc<Webhooks>,
}

/// A person's request as it arrives.
pub struct Asking<'a> {
    /// Name of the receiver.
    pub receiver: &'a str,
    /// The services in the notation of the policy file. If empty, the request is for all services for which the person
    /// may ask.
    pub services: &'a [String],
    /// The number of seconds for which the person wants access; `None` if the person does not say it.
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

/// The requests and consents about which a person may decide, each list in pages.
#[derive(Default)]
pub struct ToDecide {
    /// Requests without a decision, the newest first.
    pub open: AccessPage,
    /// Consents in effect, sorted by their end, earliest first.
    pub consents: AccessPage,
    /// The receivers about which the person may decide, by name. The value contains the services that the person can
    /// allow, and the longest time for which the person can allow them, in seconds.
    pub receivers: BTreeMap<String, (BTreeSet<String>, u32)>,
    /// The version of the policy by which the person may decide. It is 0, which no policy has, if the policy in force
    /// here is not the latest one in the database.
    pub version: i64,
}

/// The facts in the database on which a decision depends.
struct Facts {
    /// The version of the policy.
    version: i64,
    /// The groups of the people who are concerned and the tags of their devices, in the order in which the caller named
    /// the people.
    people: Vec<PersonFacts>,
}

impl AccessRequests {
    /// Returns the receivers to which the subject may request access.
    pub async fn requestable(&self, subject: &Subject<'_>) -> Vec<Requestable> {
        let read = |policy: &Policy| {
            let all = policy.requestable(subject).into_iter();
            let one = |(name, services): (&str, Vec<Service>)| Requestable {
                receiver: name.to_owned(),
                services: services.iter().map(service).collect(),
                addresses: policy.prefixes_of(name).unwrap_or_default(),
            };
            all.map(one).collect()
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
        let request = {
            // The policy does not change here while this lock is held; the transaction notices if it has changed later.
            let policy = self.policy.read().await;
            let Facts { version, mut people } = self.facts(vec![session.person.clone()]).await?;
            let (policy, groups) = (policy.policy(), people.pop().map(|of| of.groups).unwrap_or_default());
            let subject = Subject { groups: &groups, ..session.subject(source) };
            if wanted.is_empty() {
                wanted = policy.requestable(&subject).remove(receiver).unwrap_or_default();
                wanted.retain(|service| policy.may_ask(&subject, receiver, std::slice::from_ref(service)));
            }
            if wanted.is_empty() || !policy.may_ask(&subject, receiver, &wanted) {
                // If there is no such receiver, the answer is the same: it must not tell strangers which receivers
                // exist.
                let why = "nobody can allow you these services of a receiver with this name: `vouchsafe access list` \
                           and the console show for which receivers and services you can ask";
                return Err(Problem::Access(StatusCode::FORBIDDEN, "not_requestable", why.into()));
            }
            NewRequest {
                id: random_number()?,
                session: token,
                person: session.person.clone(),
                source,
                receiver: receiver.to_owned(),
                lifetime,
                reason,
                version,
                delegations: policy.delegations_about(&subject, receiver, &wanted),
                prefixes: policy.prefixes_of(receiver).unwrap_or_default(),
                services: wanted,
                groups,
            }
        };
        let notice = Notice {
            event: "access_asked",
            request: request.id,
            person: request.person.clone(),
            receiver: request.receiver.clone(),
            services: request.services.iter().map(service).collect(),
            lifetime: request.lifetime,
            until: None,
            delegations: request.delegations.clone(),
        };
        let ask = move |database: &mut Database| database.ask_access(&request, now());
        let notice = move |asked: &RequestOutcome| match asked {
            // Another request may have the number that was drawn.
            RequestOutcome::Done(id) => Some(Notice { request: *id, ..notice }),
            _ => None,
        };
        match self.record(&session.person, ask, notice).await? {
            RequestOutcome::Done(id) => {
                tracing::info!(person = session.person, %id, "asked for access");
                Ok(id)
            }
            RequestOutcome::SessionEnded => Err(Problem::NotLoggedIn),
            RequestOutcome::Already(id) => {
                let why = format!("your request {id} for this receiver waits for a decision: withdraw it to ask again");
                Err(Problem::Access(StatusCode::CONFLICT, "already_asked", why))
            }
            RequestOutcome::Changed => Err(policy_changed("ask again")),
            RequestOutcome::TooMany(why) => {
                Err(Problem::Access(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", why.into()))
            }
        }
    }

    /// Returns the facts on which a decision about these people depends. The caller holds a lock of the policy.
    async fn facts(&self, people: Vec<String>) -> Result<Facts, Problem> {
        let read = move |database: &mut Database| {
            let people = people.iter().map(|person| database.facts_of_person(person));
            Ok(Facts { people: people.collect::<Result<_>>()?, version: database.policy_version()? })
        };
        let facts = self.storage.call(read).await?;
        let followed = self.enforcer.version.load(Ordering::SeqCst);
        if followed != 0 && followed != facts.version {
            return Err(policy_changed("try again in a moment"));
        }
        Ok(facts)
    }

    /// Returns the receiver and the service that the subject can request after the policy has refused a destination.
    /// Returns `None` if the subject can't request any.
    pub async fn askable(&self, subject: Subject<'_>, to: Destination) -> Option<(String, String)> {
        let policy = self.policy.read().await;
        let request = Request { subject, to, now: now() };
        if !matches!(policy.decide_with(&request, &self.consents.current()), Decision::DefaultDeny { .. }) {
            return None;
        }
        let (receiver, wanted) = policy.policy().askable(&request)?;
        Some((receiver.name.clone(), service(&wanted)))
    }

    /// Returns a page of the requests of a person, newest first.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn of(&self, person: &str, after: Option<AccessMark>) -> Result<AccessPage, Problem> {
        let whose = person.to_owned();
        Ok(self.storage.read_for(person, move |database| database.access_requests_of(&whose, after)).await?)
    }

    /// Reports whether the subject may decide about at least one receiver.
    pub async fn is_delegate(&self, subject: &Subject<'_>) -> bool {
        self.policy.with(|policy| policy.delegated_to(subject).next().is_some()).await
    }

    /// Returns a page of the requests that the delegate may decide, without the delegate's own requests, and a page of
    /// the consents for the delegate's receivers.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn to_decide(
        &self,
        delegate: &Subject<'_>,
        (open, consents): (Option<AccessMark>, Option<AccessMark>),
    ) -> Result<ToDecide, Problem> {
        let read = |policy: &Policy| {
            let own = policy.delegated_to(delegate).map(|delegation| delegation.name.clone());
            let mut receivers: BTreeMap<String, (BTreeSet<String>, u32)> = BTreeMap::new();
            for delegation in policy.delegated_to(delegate) {
                for receiver in policy.receivers_of(delegation) {
                    let (services, longest) = receivers.entry(receiver.name.clone()).or_default();
                    services.extend(delegation.services_of(receiver).iter().map(service));
                    *longest = delegation.lifetime_max.max(*longest);
                }
            }
            (own.collect::<Vec<_>>(), receivers)
        };
        let (version, (delegations, own)) = {
            // The policy does not change here while this lock is held. If the database contains another policy, the
            // form to give access gets version 0, which no policy has.
            let policy = self.policy.read().await;
            (self.facts(Vec::new()).await.map_or(0, |facts| facts.version), read(policy.policy()))
        };
        if own.is_empty() {
            return Ok(ToDecide::default());
        }
        let receivers: Vec<_> = own.keys().cloned().collect();
        let person = delegate.person.to_owned();
        let read = move |database: &mut Database| {
            let open = database.open_access_requests(&receivers, &delegations, &person, open)?;
            Ok(ToDecide { open, consents: database.consents_for(&receivers, consents)?, receivers: own, version })
        };
        Ok(self.storage.read_for(delegate.person, read).await?)
    }

    /// Returns the longest time for which the delegate may allow the request, in seconds; `None` if no delegation
    /// covers the request.
    pub async fn longest(&self, delegate: &Subject<'_>, entry: &AccessEntry) -> Option<u32> {
        let services = entry.parsed_services();
        // The decision examines the person's groups and tags.
        let applicant = entry.applicant(&[], &[]);
        let longest = |policy: &Policy| {
            let own = policy.delegations_for(Decider::Delegate(delegate), applicant, &entry.receiver);
            own.filter(|own| policy.may_cover(own, &entry.receiver, &services)).map(|own| own.lifetime_max).max()
        };
        self.policy.with(longest).await
    }

    /// Returns a request about which the delegate may decide. Also returns it if somebody has already decided about it.
    ///
    /// # Errors
    /// Fails if there is no such request, or the database cannot be read.
    pub async fn request_for(&self, delegate: &Subject<'_>, id: RequestId) -> Result<AccessEntry, Problem> {
        let entry = self.request(delegate.person, id).await?;
        let (decider, applicant) = (Decider::Delegate(delegate), entry.applicant(&[], &[]));
        let is_delegate =
            |policy: &Policy| policy.delegations_for(decider, applicant, &entry.receiver).next().is_some();
        let is_theirs = entry.person != delegate.person && entry.is_current && self.policy.with(is_delegate).await;
        // The answer does not reveal who asks for which receiver.
        if is_theirs { Ok(entry) } else { Err(no_request()) }
    }

    /// Puts a delegate's decision into effect, and notifies the agents of the person who asked.
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
                    let why = "allow one or more of the services that the person asks for, and no others";
                    return Err(Problem::Access(StatusCode::FORBIDDEN, "exceeds_request", why.into()));
                }
                Some((services, within(Some(lifetime))?))
            }
        };
        let verdict = {
            // The policy does not change here while this lock is held; the transaction notices if it has changed later.
            let policy = self.policy.read().await;
            let people = vec![delegate.person.clone(), entry.person.clone()];
            let Facts { version, people } = self.facts(people).await?;
            let Ok([own, of_applicant]) = <[PersonFacts; 2]>::try_from(people) else { return Err(no_request()) };
            let subject = Subject { groups: &own.groups, ..Subject::person(&delegate.person) };
            let applicant = entry.applicant(&of_applicant.groups, &of_applicant.tags);
            let (policy, decider) = (policy.policy(), Decider::Delegate(&subject));
            let Some(first) = policy.delegations_for(decider, applicant, &entry.receiver).next() else {
                // A request that does not exist gets the same answer. So the answer does not reveal who asks for which
                // receiver.
                return Err(no_request());
            };
            let (delegation, allow) = match allow {
                None => (first, None),
                Some((services, lifetime)) => {
                    let why = "the delegation does not cover these services, or no longer covers the person who asks";
                    let delegation = permitted(policy, decider, applicant, &entry.receiver, &services, lifetime, why)?;
                    (delegation, Some((services, now() + u64::from(lifetime))))
                }
            };
            let (delegation, label) = (delegation.name.clone(), delegation.label().to_string());
            AccessVerdict {
                session: token,
                decider: delegate.person.clone(),
                by,
                version,
                groups: own.groups,
                applicant_groups: of_applicant.groups,
                applicant_tags: of_applicant.tags,
                delegation,
                label,
                allow,
                note,
            }
        };
        let is_allowed = verdict.allow.is_some();
        let until = verdict.allow.as_ref().map(|(_, until)| *until);
        let allowed = verdict.allow.as_ref().map(|(services, _)| services.iter().map(service).collect());
        let notice = Notice {
            event: if is_allowed { "access_allowed" } else { "access_refused" },
            request: id,
            person: entry.person,
            receiver: entry.receiver,
            services: allowed.unwrap_or(entry.services),
            lifetime: None,
            until,
            delegations: entry.delegations.unwrap_or_else(|| vec![verdict.delegation.clone()]),
        };
        let decide = move |database: &mut Database| database.decide_access(id, &verdict, now());
        let notice = move |decided: &Decided| matches!(decided, Decided::Done { .. }).then_some(notice);
        match self.record(&delegate.person, decide, notice).await? {
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
            Decided::PolicyChanged | Decided::GroupsChanged => Err(policy_changed(LOOK_AGAIN)),
            Decided::TooMany(why) => {
                Err(Problem::Access(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", why.into()))
            }
        }
    }

    /// Withdraws a request for access, or a consent, on behalf of the person of the session `who`. The person may
    /// withdraw their own requests and consents, and also consents for receivers about which they may decide. The
    /// grants that rested on the consent are revoked before this function returns.
    ///
    /// # Errors
    /// Fails if there is no such request, the request has already ended, or the database cannot be written.
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

    /// Withdraws a request or consent as [`Self::withdraw`] does, but only if it belongs to the person of the session
    /// `who`.
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
        let notice = |before: &Option<AccessEntry>| before.as_ref().map(withdrawn);
        let Some(before) = self.record(&who.person, withdraw, notice).await? else { return Err(already(&entry)) };
        tracing::info!(%id, person = before.person, by = who.person, "withdrew a request or consent");
        if before.state == AccessState::Allowed {
            let requests = self.clone();
            tokio::spawn(async move { requests.cut(&before.person).await }).await.map_err(anyhow::Error::from)??;
        }
        Ok(())
    }

    /// Records a change in a person's queue, and sends the notices that `notices` returns to webhooks. The work goes on
    /// if the caller closes the connection.
    async fn record<T: Send + 'static, N: IntoIterator<Item = Notice>>(
        &self,
        person: &str,
        change: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
        notices: impl FnOnce(&T) -> N + Send + 'static,
    ) -> Result<T, Problem> {
        let (requests, person) = (self.clone(), person.to_owned());
        let recorded = tokio::spawn(async move {
            let done = requests.storage.call_for(&person, change).await?;
            let notices: Vec<_> = notices(&done).into_iter().collect();
            for notice in &notices {
                requests.webhooks.announce(notice).await;
            }
            anyhow::Ok(done)
        });
        Ok(recorded.await.map_err(anyhow::Error::from)??)
    }

    /// Puts a new consent in force here and at the other members of the cluster, and makes the person's agents read
    /// their destinations again.
    async fn tell(&self, person: &str) -> Result<()> {
        self.sync.run_everywhere().await?;
        self.tell_agents(person).await;
        Ok(())
    }
}

/// Returns the delegation on which a consent rests, as [`Policy::permitted`] does. `why` is the message if no
/// delegation covers it.
fn permitted<'p>(
    policy: &'p Policy,
    decider: Decider<'p>,
    applicant: Applicant<'p>,
    receiver: &'p str,
    services: &[Service],
    lifetime: u32,
    why: &str,
) -> Result<&'p Delegation, Problem> {
    policy.permitted(decider, applicant, receiver, services, lifetime).map_err(|exceeds| exceeding(exceeds, why))
}

/// Returns the problem that a consent exceeds the delegations. `why` is the message if no delegation covers it.
fn exceeding(exceeds: Exceeds, why: &str) -> Problem {
    let why = match exceeds {
        Exceeds::NotCovered => why.to_owned(),
        Exceeds::TooLong(most) => format!("the delegation allows access for at most {}", duration(most)),
    };
    Problem::Access(StatusCode::FORBIDDEN, "exceeds_delegation", why)
}

/// Returns the notice that a request or consent was withdrawn. `before` is its state before.
fn withdrawn(before: &AccessEntry) -> Notice {
    let of_consent = || before.delegation.iter().cloned().collect();
    let asked = before.delegations.clone().filter(|_| !before.is_unasked());
    Notice {
        event: if before.state == AccessState::Open { "access_withdrawn" } else { "consent_withdrawn" },
        request: before.id,
        person: before.person.clone(),
        receiver: before.receiver.clone(),
        services: before.services.clone(),
        lifetime: None,
        until: None,
        delegations: asked.unwrap_or_else(of_consent),
    }
}

/// Reads the services of a request or decision.
fn read_services(words: &[String]) -> Result<Vec<Service>, Problem> {
    if words.len() > MOST_SERVICES {
        return Err(Problem::Malformed(format!(
            "you can name at most {MOST_SERVICES} services: write ranges of ports instead of single ports"
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

/// Returns the problem that the caller gets if a request does not exist, or if only other people may decide about it.
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

fn policy_changed(way_out: &str) -> Problem {
    let why = format!("the policy, or the groups of a person, have changed meanwhile: {way_out}");
    Problem::Access(StatusCode::CONFLICT, "policy_changed", why)
}

#[cfg(test)]
mod tests;
