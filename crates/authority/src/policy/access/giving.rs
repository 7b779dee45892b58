//! Consents for which nobody has asked. A delegate gives them at the console, an operator by a command. The delegation
//! bounds them as it bounds decisions about requests.

use super::{AccessRequests, Facts, exceeding, line, policy_changed, read_services, within};
use crate::http::problems::Problem;
use crate::now;
use crate::storage::{
    Database, Given, GivingDelegate, NewConsent, NewConsents, Operator, PersonFacts, Session, TokenHash, random_number,
};
use crate::webhook::Notice;
use axum::http::StatusCode;
use engine::model::Service;
use engine::policy::delegation::{Applicant, Decider, Exceeds};
use engine::policy::holder::Holder;
use engine::policy::{Subject, service};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The queue in which the consents of operators are recorded. No person has this name.
const OPERATORS: &str = "operators:";

/// The time for which a consent lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// A number of seconds.
    For(u32),
    /// Until this time, in Unix seconds.
    Until(u64),
}

/// A consent as it arrives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Giving {
    /// The holder: `alice`, `group:staff` or `tag:managed`.
    pub holder: String,
    /// Name of the receiver (the protected destination) that the holder may reach.
    pub receiver: String,
    /// The services in the notation of the policy file. If empty, the consent covers all that one delegation permits.
    pub services: Vec<String>,
    /// The time for which the consent lasts.
    pub term: Term,
    /// The note of the author.
    pub note: String,
}

/// The author of consents.
#[derive(Clone, Copy)]
pub enum Giver<'a> {
    /// A delegate, whose page was made for this version of the policy.
    Delegate(&'a Session, TokenHash, i64),
    /// An operator.
    Operator {
        /// Whether the consents come from a file. Webhooks get no messages about such consents.
        is_import: bool,
    },
}

/// A consent that was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenConsent {
    /// The number of the consent, 8 hex digits.
    pub id: String,
    /// The holder.
    pub holder: String,
    /// Name of the receiver (the protected destination) that the holder may reach.
    pub receiver: String,
    /// The services in the notation of the policy file.
    pub services: Vec<String>,
    /// Time at which the consent ends, in Unix seconds.
    pub until: u64,
}

/// A field of a [`Giving`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivingField {
    /// [`Giving::holder`].
    Holder,
    /// [`Giving::services`].
    Services,
    /// [`Giving::term`].
    Term,
    /// [`Giving::note`].
    Note,
}

/// The reason why no consent was given.
pub struct Refused {
    /// The index of the consent at fault, if a single consent is the reason why none was given.
    pub nth: Option<usize>,
    /// The field at fault, if a single field of that consent is the reason.
    pub field: Option<GivingField>,
    /// The reason.
    pub problem: Problem,
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self { nth: None, field: None, problem }
    }
}

impl From<anyhow::Error> for Refused {
    fn from(error: anyhow::Error) -> Self {
        Problem::from(error).into()
    }
}

/// A consent that is well-formed.
struct Read {
    holder: Holder,
    receiver: String,
    services: Vec<Service>,
    lifetime: u32,
    note: String,
}

impl AccessRequests {
    /// Gives consents that nobody requested, all of them or none. Waits up to seven seconds until the consents are in
    /// force at the other members of the cluster. Then notifies the holders' agents that are connected to this member.
    ///
    /// # Errors
    /// Fails if a consent is malformed or exceeds the delegation, its holder is the giver or does not exist, a limit is
    /// reached, another policy was put in force meanwhile, the giver's session has ended, or the database cannot be
    /// written.
    pub async fn give(
        &self,
        giver: Giver<'_>,
        by: Operator,
        givings: Vec<Giving>,
    ) -> Result<Vec<GivenConsent>, Refused> {
        let reads = givings.into_iter().enumerate().map(|(nth, giving)| read(nth, giving));
        let reads: Vec<Read> = reads.collect::<Result<_, _>>()?;
        let given = self.permit(giver, by, reads).await?;
        let whose = given.delegate.as_ref().map_or(OPERATORS, |delegate| delegate.person.as_str()).to_owned();
        let shown = given.consents.iter().map(|consent| GivenConsent {
            id: String::new(),
            holder: consent.holder.to_string(),
            receiver: consent.receiver.clone(),
            services: consent.services.iter().map(service).collect(),
            until: consent.until,
        });
        let mut shown: Vec<_> = shown.collect();
        let names: Vec<_> = given.consents.iter().map(|consent| consent.delegation.clone()).collect();
        let noticed = if matches!(giver, Giver::Operator { is_import: true }) { Vec::new() } else { shown.clone() };
        let give = move |database: &mut Database| database.give_access(&given, now());
        let notices = move |given: &Given| -> Vec<Notice> {
            let Given::Done(ids) = given else { return Vec::new() };
            let all = noticed.into_iter().zip(names).zip(ids);
            let all = all.map(|((consent, delegation), id)| Notice {
                event: "access_allowed",
                request: *id,
                person: consent.holder,
                receiver: consent.receiver,
                services: consent.services,
                lifetime: None,
                until: Some(consent.until),
                delegations: vec![delegation],
            });
            all.collect()
        };
        let ids = match self.record(&whose, give, notices).await? {
            Given::Done(ids) => ids,
            Given::SessionEnded => return Err(Problem::NotLoggedIn.into()),
            Given::Changed => return Err(policy_changed("open the page again, or repeat the command").into()),
            Given::HolderChanged(nth) => {
                return Err(Refused { nth: Some(nth), field: None, problem: policy_changed("try again") });
            }
            Given::NoPerson(nth) => return Err(at(nth, GivingField::Holder, nobody(giver, &shown[nth].holder))),
            Given::TooMany(nth, why) => {
                let problem = Problem::Access(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", why.into());
                return Err(Refused { nth: Some(nth), field: None, problem });
            }
        };
        for (consent, id) in shown.iter_mut().zip(&ids) {
            consent.id = id.to_string();
            tracing::info!(%id, holder = consent.holder, by = whose, "gave a consent without a request");
        }
        let (requests, holders) = (self.clone(), shown.iter().map(|consent| consent.holder.clone()));
        let holders: BTreeSet<String> = holders.collect();
        // The work goes on if the browser closes its connection.
        let told = tokio::spawn(async move {
            requests.sync.run_everywhere().await?;
            for holder in &holders {
                requests.tell_agents(holder).await;
            }
            anyhow::Ok(())
        });
        told.await.map_err(anyhow::Error::from)??;
        Ok(shown)
    }

    /// Finds the delegations on which the consents rest.
    async fn permit(&self, giver: Giver<'_>, by: Operator, reads: Vec<Read>) -> Result<NewConsents, Refused> {
        let delegate = match giver {
            Giver::Delegate(session, token, version) => Some((session, token, version)),
            Giver::Operator { .. } => None,
        };
        // The policy does not change here while this lock is held; the transaction notices if it has changed later.
        let policy = self.policy.read().await;
        // The first facts are those of the delegate.
        let author = delegate.map_or_else(String::new, |(session, ..)| session.person.clone());
        let named = reads.iter().map(|read| read.holder.person().unwrap_or_default().to_owned());
        let Facts { version, people } = self.facts(std::iter::once(author).chain(named).collect()).await?;
        let mut people = people.into_iter();
        let own = people.next().unwrap_or(PersonFacts { groups: Vec::new(), tags: Vec::new() });
        let subject = delegate.map(|(session, ..)| Subject { groups: &own.groups, ..Subject::person(&session.person) });
        let decider = subject.as_ref().map_or(Decider::Operator, Decider::Delegate);
        if delegate.is_some_and(|(_, _, shown)| shown != version) {
            // A name on the page could mean another receiver by now.
            return Err(policy_changed("open the page again").into());
        }
        let policy = policy.policy();
        let mut consents = Vec::new();
        for (nth, (read, facts)) in reads.into_iter().zip(people).enumerate() {
            let of_holder = |problem| at(nth, GivingField::Holder, problem);
            let Read { holder, receiver, services, lifetime, note } = read;
            if let Some((session, ..)) = delegate
                && holder.person() == Some(session.person.as_str())
            {
                let why = "nobody decides about themselves: another delegate has to give you access";
                return Err(of_holder(Problem::Access(StatusCode::FORBIDDEN, "own_request", why.into())));
            }
            if let Holder::Group(name) = &holder
                && !policy.has_group(name)
            {
                return Err(of_holder(nobody(giver, &holder.to_string())));
            }
            let applicant =
                Applicant { subject: holder.subject(&facts.groups, &facts.tags), delegations: None, is_unasked: true };
            let services = if services.is_empty() { policy.delegable(decider, applicant, &receiver) } else { services };
            let why = match giver {
                Giver::Delegate(..) => not_covered(),
                Giver::Operator { .. } => {
                    format!("no delegation of the policy covers {holder}, these services and the receiver {receiver}")
                }
            };
            let permitted = if services.is_empty() {
                Err(Exceeds::NotCovered)
            } else {
                policy.permitted(decider, applicant, &receiver, &services, lifetime)
            };
            let delegation = permitted.map_err(|exceeds| {
                let field = match exceeds {
                    Exceeds::NotCovered => GivingField::Holder,
                    Exceeds::TooLong(_) => GivingField::Term,
                };
                at(nth, field, exceeding(exceeds, &why))
            })?;
            let (delegation, label) = (delegation.name.clone(), delegation.label().to_string());
            consents.push(NewConsent {
                id: random_number()?,
                prefixes: policy.prefixes_of(&receiver).unwrap_or_default(),
                facts,
                holder,
                receiver,
                services,
                delegation,
                label,
                until: now() + u64::from(lifetime),
                note,
            });
        }
        let delegate = delegate.map(|(session, token, _)| GivingDelegate {
            session: token,
            person: session.person.clone(),
            groups: own.groups.clone(),
        });
        Ok(NewConsents { delegate, by, version, consents })
    }
}

/// Returns the refusal because of a field of one consent.
fn at(nth: usize, field: GivingField, problem: Problem) -> Refused {
    Refused { nth: Some(nth), field: Some(field), problem }
}

fn read(nth: usize, giving: Giving) -> Result<Read, Refused> {
    let refused = |field| move |problem| at(nth, field, problem);
    let Giving { holder, receiver, services, term, note } = giving;
    let lifetime = match term {
        Term::For(seconds) => Some(seconds),
        Term::Until(time) => u32::try_from(time.saturating_sub(now())).ok(),
    };
    Ok(Read {
        holder: holder.trim().parse().map_err(Problem::Malformed).map_err(refused(GivingField::Holder))?,
        services: read_services(&services).map_err(refused(GivingField::Services))?,
        lifetime: within(lifetime).map_err(refused(GivingField::Term))?,
        note: line("note", &note).map_err(refused(GivingField::Note))?,
        receiver,
    })
}

/// The message for a delegate whose consent no delegation covers. A delegate gets the same message if nobody has this
/// name. So the message does not reveal whether a name exists that no delegation covers.
fn not_covered() -> String {
    "no delegation lets you give these services of this receiver to a person, group or tag of this name".into()
}

/// Returns the problem that there is no such person or group.
fn nobody(giver: Giver<'_>, holder: &str) -> Problem {
    let why = match giver {
        Giver::Delegate(..) => not_covered(),
        Giver::Operator { .. } => match holder.strip_prefix("group:") {
            Some(group) => format!("the policy has no group {group}: add it to [groups]"),
            None => format!("there is no account {holder}, and no person of the identity provider has this name here"),
        },
    };
    Problem::Access(StatusCode::FORBIDDEN, "exceeds_delegation", why)
}
