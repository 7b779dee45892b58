//! Consents for which nobody has asked: a delegate or an operator gives them. The row of such a consent names no
//! delegations, because there was no request that delegations could have covered.

use super::{DAY, MOST_CONSENTS_OF_PERSON, MOST_CONSENTS_OF_RECEIVER, detail, free_number, has_session};
use crate::storage::receivers::{self, note_change};
use crate::storage::{AuditEvent, Database, Operator, PersonFacts, TokenHash, devices, groups, identities, policies};
use anyhow::Result;
use engine::model::Service;
use engine::policy::delegation::RequestId;
use engine::policy::holder::Holder;
use engine::policy::service;
use ipnet::IpNet;
use rusqlite::{Transaction, params};
use std::collections::{BTreeSet, HashMap};

/// The value of `delegations` in rows for which nobody has asked. Requests have at least one delegation.
pub(super) const UNASKED: &str = "[]";
/// Maximum number of consents without a request that a delegate gives in a day, because each writes to the audit trail
/// and makes agents read their destinations again.
const MOST_GIVEN_IN_DAY: i64 = 256;
/// Maximum number of groups that have consents, because a decision looks for the person in each.
const MOST_GROUPS: i64 = 256;

/// Consents that somebody gives without a request. Either all of them are recorded or none.
#[derive(Debug)]
pub struct NewConsents {
    /// The delegate who gives them; `None` for an operator.
    pub delegate: Option<GivingDelegate>,
    /// The author as an operator, for the audit trail.
    pub by: Operator,
    /// The version of the policy that permits the consents.
    pub version: i64,
    /// The consents.
    pub consents: Vec<NewConsent>,
}

/// A delegate who gives consents.
#[derive(Debug)]
pub struct GivingDelegate {
    /// The session in which the delegate gives them.
    pub session: TokenHash,
    /// Name of the delegate.
    pub person: String,
    /// The groups that the delegate had when the policy was consulted. If they have changed meanwhile, no consent is
    /// recorded.
    pub groups: Vec<String>,
}

/// A consent that is given without a request.
#[derive(Debug)]
pub struct NewConsent {
    /// A random number, which the consent gets unless another consent or request has it.
    pub id: RequestId,
    /// The holder of the consent.
    pub holder: Holder,
    /// The groups and tags that the holder, if it is a person, had when the policy was consulted. If they have changed
    /// meanwhile, no consent is recorded.
    pub facts: PersonFacts,
    /// Name of the receiver.
    pub receiver: String,
    /// The addresses of the receiver.
    pub prefixes: Vec<IpNet>,
    /// The services that the consent covers.
    pub services: Vec<Service>,
    /// Name of the delegation.
    pub delegation: String,
    /// The label of the delegation, for the audit trail.
    pub label: String,
    /// Time at which the consent ends, in Unix seconds.
    pub until: u64,
    /// The note of the author.
    pub note: String,
}

/// The result of giving consents. If one consent is the reason why none was recorded, the result contains its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// The consents were recorded under these numbers.
    Done(Vec<RequestId>),
    /// The delegate's session has ended.
    SessionEnded,
    /// Another policy was put in force, or the delegate's groups have changed, since the consents were checked.
    Changed,
    /// The groups or tags of the person have changed since the consents were checked.
    HolderChanged(usize),
    /// There is no account of this name.
    NoPerson(usize),
    /// A limit is reached; the text says which one and what to do.
    TooMany(usize, &'static str),
}

impl Database {
    /// Records consents that a delegate or an operator gives without a request.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn give_access(&mut self, given: &NewConsents, now: u64) -> Result<Given> {
        self.write(|transaction| {
            if let Some(GivingDelegate { session, person, groups }) = &given.delegate {
                if !has_session(transaction, session, person, now)? {
                    return Ok(Given::SessionEnded);
                }
                if groups::groups_of(transaction, person)? != *groups {
                    return Ok(Given::Changed);
                }
            }
            if policies::version(transaction)? != given.version {
                return Ok(Given::Changed);
            }
            if let Some(refused) = refused(transaction, given, now)? {
                return Ok(refused);
            }
            let ids = given.consents.iter().map(|consent| record(transaction, consent, given, now));
            let ids = ids.collect::<Result<_>>()?;
            note_change(transaction)?;
            Ok(Given::Done(ids))
        })
    }
}

/// Returns the reason why a consent cannot be recorded, if there is one.
fn refused(transaction: &Transaction<'_>, given: &NewConsents, now: u64) -> Result<Option<Given>> {
    if let Some(GivingDelegate { person, .. }) = &given.delegate {
        let in_day = "SELECT count(*) FROM access_requests WHERE decider = ?1 AND delegations = ?2 AND asked > ?3";
        let values = params![person, UNASKED, now.cast_signed() - DAY];
        let before: i64 = transaction.prepare_cached(in_day)?.query_row(values, |row| row.get(0))?;
        if before + given.consents.len() as i64 > MOST_GIVEN_IN_DAY {
            let why = "you have given 256 consents without a request in a day: let people ask, or ask an operator";
            return Ok(Some(Given::TooMany(0, why)));
        }
    }
    let count = |column: &str, value: &str| -> Result<i64> {
        let sql = format!("SELECT count(*) FROM access_requests WHERE {column} = ?1 AND allowed = 1");
        Ok(transaction.prepare_cached(&sql)?.query_row([value], |row| row.get(0))?)
    };
    let with_consents = "SELECT DISTINCT person FROM access_requests WHERE allowed = 1 AND person LIKE 'group:%'";
    let mut with_consents = transaction.prepare_cached(with_consents)?;
    let groups = with_consents.query_map([], |row| row.get(0))?.collect::<Result<BTreeSet<String>, _>>()?;
    let mut new_groups = BTreeSet::new();
    // The consents of this call count, too.
    let (mut of_holders, mut of_receivers) = (HashMap::new(), HashMap::new());
    for (nth, NewConsent { holder, facts, receiver, .. }) in given.consents.iter().enumerate() {
        let name = holder.to_string();
        if let Some(person) = holder.person() {
            if !identities::is_known(transaction, person)? && !identities::has_account(transaction, person)? {
                return Ok(Some(Given::NoPerson(nth)));
            }
            if groups::groups_of(transaction, person)? != facts.groups
                || devices::tags_of_person(transaction, person)? != facts.tags
            {
                return Ok(Some(Given::HolderChanged(nth)));
            }
        }
        if matches!(holder, Holder::Group(_)) && !groups.contains(&name) {
            new_groups.insert(name.clone());
            if (groups.len() + new_groups.len()) as i64 > MOST_GROUPS {
                let why = "256 groups have consents: withdraw those of a group, or give persons or tags access";
                return Ok(Some(Given::TooMany(nth, why)));
            }
        }
        let of_holder = of_holders.entry(name.clone()).or_insert(0);
        *of_holder += 1;
        if count("person", &name)? + *of_holder > MOST_CONSENTS_OF_PERSON {
            let why = "the person, group or tag has 64 consents: withdraw one of them first";
            return Ok(Some(Given::TooMany(nth, why)));
        }
        let of_receiver = of_receivers.entry(receiver.as_str()).or_insert(0);
        *of_receiver += 1;
        if count("receiver", receiver)? + *of_receiver > MOST_CONSENTS_OF_RECEIVER {
            return Ok(Some(Given::TooMany(nth, "the receiver has 1000 consents: withdraw one of them first")));
        }
    }
    Ok(None)
}

fn record(transaction: &Transaction<'_>, consent: &NewConsent, given: &NewConsents, now: u64) -> Result<RequestId> {
    let id = free_number(transaction, consent.id)?;
    let generation = receivers::generation(transaction, &consent.receiver, &consent.prefixes)?;
    let texts: Vec<_> = consent.services.iter().map(service).collect();
    let (holder, time) = (consent.holder.to_string(), now.cast_signed());
    let decider = given.delegate.as_ref().map_or_else(|| given.by.name(), |delegate| delegate.person.as_str());
    let mut insert = transaction.prepare_cached(
        "INSERT INTO access_requests
            (id, person, receiver, services, reason, asked, state, allowed, delegation, decider, decided, note, until,
             delegations, generation)
         VALUES (?1, ?2, ?3, ?4, '', ?5, 'allowed', 1, ?6, ?7, ?5, ?8, ?9, ?10, ?11)",
    )?;
    insert.execute(params![
        id.0.get(),
        holder,
        consent.receiver,
        serde_json::to_string(&texts)?,
        time,
        consent.delegation,
        decider,
        consent.note,
        consent.until.cast_signed(),
        UNASKED,
        generation
    ])?;
    let said = format!("{} until {}, without a request", texts.join(", "), shell::table::utc(consent.until));
    let event = AuditEvent::new("access_allowed").person(&holder).receiver(&consent.receiver).rule(&consent.label);
    event.by(&given.by).detail(detail(id, &[&said, &consent.note])).write(transaction, now)?;
    Ok(id)
}
