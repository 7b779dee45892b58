//! Requests for access, and the consents that answer them. A consent is a request that was allowed: it has the same row
//! and the same number. A consent can also be given without a request, to a person, a group or a tag.
//!
//! The number of requests and consents is limited for each person, for each receiver and for each day. So nobody can
//! fill the table or another person's list.

mod entry;
mod given;
mod outdated;
mod pages;
mod unexamined;

pub use entry::{AccessEntry, AccessState};
pub use given::{Given, GivingDelegate, NewConsent, NewConsents};
pub use pages::{AccessMark, AccessPage};
pub use unexamined::Unexamined;

use super::receivers::{self, note_change};
use super::{AuditEvent, Database, Operator, PIECE, TokenHash, devices, groups, policies, revocation};
use crate::login::credentials;
use anyhow::Result;
use engine::model::Service;
use engine::policy::delegation::{Consent, Consents, RequestId};
use engine::policy::holder::Holder;
use engine::policy::service;
use entry::{COLUMNS, entries, number, read};
use ipnet::IpNet;
use rusqlite::{OptionalExtension, Transaction, params};
use std::net::IpAddr;
use std::num::NonZeroU32;

/// Maximum number of requests of a person that wait for a decision.
const MOST_OPEN_OF_PERSON: i64 = 8;
/// Maximum number of requests that a person makes in a day, because each writes to the audit trail.
const MOST_ASKED_IN_DAY: i64 = 32;
/// Maximum number of requests about a receiver that wait for a decision.
const MOST_OPEN_OF_RECEIVER: i64 = 256;
/// Maximum number of consents that a person has.
const MOST_CONSENTS_OF_PERSON: i64 = 64;
/// Maximum number of consents for a receiver.
const MOST_CONSENTS_OF_RECEIVER: i64 = 1000;
/// Number of seconds for which requests are kept: those without a decision after they were made, the others after they
/// were decided or ended.
const KEPT: i64 = 30 * 86_400;
const DAY: i64 = 86_400;

/// The tables of requests and consents, from format 15 on. `allowed` is 1 while a consent is in effect. The number in
/// `consent_changes` grows with each change of consents, so that the server reads the consents only after a change.
pub(super) const SCHEMA: &str = "
CREATE TABLE access_requests (
    id INTEGER PRIMARY KEY, person TEXT NOT NULL, receiver TEXT NOT NULL, services TEXT NOT NULL,
    lifetime INTEGER, reason TEXT NOT NULL, asked INTEGER NOT NULL, state TEXT NOT NULL,
    allowed INTEGER NOT NULL DEFAULT 0, delegation TEXT, decider TEXT, decided INTEGER, note TEXT, until INTEGER,
    ended INTEGER, ender TEXT
) STRICT;
CREATE INDEX access_requests_of_person ON access_requests (person, asked);
CREATE INDEX access_requests_open ON access_requests (receiver, asked) WHERE state = 'open';
CREATE INDEX access_requests_allowed ON access_requests (receiver, until) WHERE allowed = 1;
CREATE TABLE consent_changes (one INTEGER PRIMARY KEY CHECK (one = 1), made INTEGER NOT NULL) STRICT;
INSERT INTO consent_changes (one, made) VALUES (1, 0);
";

/// Additions of format 16. `delegations` contains the names of the delegations that covered the person at the request,
/// in JSON; NULL for requests of earlier formats. A request belongs to a receiver in one of its generations (see
/// `receivers.rs`). `prefixes` contains the addresses of the receiver, in JSON; NULL if they are not known yet.
/// Requests of earlier generations than `settled` have ended. `access_unexamined` contains the people, groups and tags
/// whose consent has ended and whose grants are not yet examined. Each row has the number of the latest change that
/// ended such a consent.
pub(super) const FORMAT_16: &str = "
ALTER TABLE access_requests ADD COLUMN delegations TEXT;
ALTER TABLE access_requests ADD COLUMN generation INTEGER NOT NULL DEFAULT 1;
CREATE TABLE access_receivers (
    receiver TEXT PRIMARY KEY, generation INTEGER NOT NULL, settled INTEGER NOT NULL, prefixes TEXT
) STRICT;
INSERT INTO access_receivers (receiver, generation, settled) SELECT DISTINCT receiver, 1, 1 FROM access_requests;
CREATE TABLE access_unexamined (person TEXT PRIMARY KEY, change INTEGER NOT NULL) STRICT;
";

/// A request that a person makes.
#[derive(Clone, Debug)]
pub struct NewRequest {
    /// A random number, which the request gets unless another request has it.
    pub id: RequestId,
    /// The session in which the person asks.
    pub session: TokenHash,
    /// The person who asks.
    pub person: String,
    /// The source address of the request.
    pub source: IpAddr,
    /// Name of the receiver.
    pub receiver: String,
    /// The services that the person asks for.
    pub services: Vec<Service>,
    /// The number of seconds for which the person wants access, if they said so.
    pub lifetime: Option<u32>,
    /// The reason that the person gives.
    pub reason: String,
    /// The version of the policy by which the person may ask.
    pub version: i64,
    /// The groups that the person had when the policy was consulted. If they have changed meanwhile, the request is not
    /// recorded.
    pub groups: Vec<String>,
    /// Names of the delegations that cover the person.
    pub delegations: Vec<String>,
    /// The addresses of the receiver.
    pub prefixes: Vec<IpNet>,
}

/// The result of [`Database::ask_access`]: the number of the recorded request, or the reason why it was not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The request was recorded under this number.
    Done(RequestId),
    /// The session has ended.
    SessionEnded,
    /// The person already waits for a decision about this receiver, in the request with this number.
    Already(RequestId),
    /// The policy or the person's groups have changed since the request was checked.
    Changed,
    /// A limit is reached; the text says which one and what to do.
    TooMany(&'static str),
}

/// A delegate's decision about a request.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The session in which the delegate decides.
    pub session: TokenHash,
    /// Name of the delegate.
    pub decider: String,
    /// The delegate as an operator, for the audit trail.
    pub by: Operator,
    /// The version of the policy that makes the person a delegate.
    pub version: i64,
    /// The groups that the delegate had when the policy was consulted. If they have changed meanwhile, the decision is
    /// not recorded.
    pub groups: Vec<String>,
    /// The groups that the person who asks had when the policy was consulted. If they have changed meanwhile, no
    /// consent is recorded.
    pub applicant_groups: Vec<String>,
    /// The tags that the devices of the person who asks had when the policy was consulted. If they have changed
    /// meanwhile, no consent is recorded.
    pub applicant_tags: Vec<String>,
    /// Name of the delegation.
    pub delegation: String,
    /// The label of the delegation, for the audit trail.
    pub label: String,
    /// The services and the end of the consent; `None` if the delegate refuses.
    pub allow: Option<(Vec<Service>, u64)>,
    /// The note of the delegate.
    pub note: String,
}

/// The result of [`Database::decide_access`]: the decision was recorded, or the reason why it was not recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decided {
    /// The decision was recorded.
    Done {
        /// The person who asked.
        person: String,
    },
    /// There is no such request.
    NoRequest,
    /// The request is not open any more; this is its state now.
    Already(Box<AccessEntry>),
    /// The delegate's session has ended.
    SessionEnded,
    /// The request is the delegate's own, so only other delegates may decide about it.
    Own,
    /// Another policy was put in force meanwhile.
    PolicyChanged,
    /// The groups of the delegate, or the groups or tags of the person who asks, have changed meanwhile.
    GroupsChanged,
    /// A limit is reached; the text says which one and what to do.
    TooMany(&'static str),
}

impl Database {
    /// Records a person's request for access.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn ask_access(&mut self, request: &NewRequest, now: u64) -> Result<RequestOutcome> {
        self.write(|transaction| {
            let NewRequest { id, session, person, source, receiver, services, lifetime, reason, .. } = request;
            if !has_session(transaction, session, person, now)? {
                // The account may have been removed, and somebody else may get its name.
                return Ok(RequestOutcome::SessionEnded);
            }
            let known = groups::groups_of(transaction, person)?;
            if policies::version(transaction)? != request.version || known != request.groups {
                return Ok(RequestOutcome::Changed);
            }
            let same = "SELECT id FROM access_requests WHERE person = ?1 AND receiver = ?2 AND state = 'open'";
            if let Some(id) = transaction.query_row(same, [person, receiver], |row| row.get(0)).optional()? {
                return Ok(RequestOutcome::Already(number(id)?));
            }
            let count = |sql: &str, value: &str, since: i64| -> Result<i64> {
                Ok(transaction.prepare_cached(sql)?.query_row(params![value, since], |row| row.get(0))?)
            };
            let of_person = "SELECT count(*) FROM access_requests WHERE person = ?1 AND state = 'open' AND asked > ?2";
            if count(of_person, person, 0)? >= MOST_OPEN_OF_PERSON {
                return Ok(RequestOutcome::TooMany("you have 8 requests that nobody has decided: withdraw one first"));
            }
            // Consents for which the person did not ask don't count.
            let in_day =
                "SELECT count(*) FROM access_requests WHERE person = ?1 AND asked > ?2 AND delegations IS NOT '[]'";
            if count(in_day, person, now.cast_signed() - DAY)? >= MOST_ASKED_IN_DAY {
                return Ok(RequestOutcome::TooMany("you have made 32 requests in a day: ask again tomorrow"));
            }
            let of_receiver =
                "SELECT count(*) FROM access_requests WHERE receiver = ?1 AND state = 'open' AND asked > ?2";
            if count(of_receiver, receiver, 0)? >= MOST_OPEN_OF_RECEIVER {
                return Ok(RequestOutcome::TooMany(
                    "256 requests for this receiver wait for a decision: ask again later",
                ));
            }
            let id = free_number(transaction, *id)?;
            let generation = receivers::generation(transaction, receiver, &request.prefixes)?;
            let texts: Vec<_> = services.iter().map(service).collect();
            transaction.execute(
                "INSERT INTO access_requests
                    (id, person, receiver, services, lifetime, reason, asked, state, delegations, generation)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'open', ?8, ?9)",
                params![
                    id.0.get(),
                    person,
                    receiver,
                    serde_json::to_string(&texts)?,
                    lifetime,
                    reason,
                    now.cast_signed(),
                    serde_json::to_string(&request.delegations)?,
                    generation
                ],
            )?;
            let event = AuditEvent::new("access_asked").person(person).source(*source).receiver(receiver);
            event.detail(detail(id, &[&texts.join(", "), reason])).write(transaction, now)?;
            Ok(RequestOutcome::Done(id))
        })
    }

    /// Records a delegate's decision about a request that is open. The first decision counts.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn decide_access(&mut self, id: RequestId, verdict: &Verdict, now: u64) -> Result<Decided> {
        self.write(|transaction| {
            let Verdict { session, decider, by, version, delegation, label, allow, note, .. } = verdict;
            if !has_session(transaction, session, decider, now)? {
                return Ok(Decided::SessionEnded);
            }
            if policies::version(transaction)? != *version {
                return Ok(Decided::PolicyChanged);
            }
            if groups::groups_of(transaction, decider)? != verdict.groups {
                return Ok(Decided::GroupsChanged);
            }
            let Some(entry) = entry_of(transaction, id)?.filter(|entry| entry.is_current) else {
                return Ok(Decided::NoRequest);
            };
            if entry.state != AccessState::Open {
                return Ok(Decided::Already(Box::new(entry)));
            }
            if entry.person == *decider {
                return Ok(Decided::Own);
            }
            let AccessEntry { person, receiver, .. } = entry;
            if allow.is_some()
                && (groups::groups_of(transaction, &person)? != verdict.applicant_groups
                    || devices::tags_of_person(transaction, &person)? != verdict.applicant_tags)
            {
                return Ok(Decided::GroupsChanged);
            }
            let time = now.cast_signed();
            let (name, said) = match allow {
                None => {
                    let refuse = "UPDATE access_requests SET state = 'refused', delegation = ?2, decider = ?3,
                                      decided = ?4, note = ?5 WHERE id = ?1";
                    transaction.execute(refuse, params![id.0.get(), delegation, decider, time, note])?;
                    ("access_refused", String::new())
                }
                Some((services, until)) => {
                    let count = |column: &str, value: &str| -> Result<i64> {
                        let sql = format!("SELECT count(*) FROM access_requests WHERE {column} = ?1 AND allowed = 1");
                        Ok(transaction.prepare_cached(&sql)?.query_row([value], |row| row.get(0))?)
                    };
                    if count("person", &person)? >= MOST_CONSENTS_OF_PERSON {
                        return Ok(Decided::TooMany("the person has 64 consents: withdraw one of them first"));
                    }
                    if count("receiver", &receiver)? >= MOST_CONSENTS_OF_RECEIVER {
                        return Ok(Decided::TooMany("the receiver has 1000 consents: withdraw one of them first"));
                    }
                    let texts: Vec<_> = services.iter().map(service).collect();
                    transaction.execute(
                        "UPDATE access_requests SET state = 'allowed', allowed = 1, delegation = ?2, decider = ?3,
                             decided = ?4, note = ?5, services = ?6, until = ?7 WHERE id = ?1",
                        params![
                            id.0.get(),
                            delegation,
                            decider,
                            time,
                            note,
                            serde_json::to_string(&texts)?,
                            until.cast_signed()
                        ],
                    )?;
                    note_change(transaction)?;
                    ("access_allowed", format!("{} until {}", texts.join(", "), shell::table::utc(*until)))
                }
            };
            let event = AuditEvent::new(name).person(&person).receiver(&receiver).rule(label).by(by);
            event.detail(detail(id, &[&said, note])).write(transaction, now)?;
            Ok(Decided::Done { person })
        })
    }

    /// Withdraws a request that is open, or a consent that is in effect. Returns the request as it was before. Returns
    /// `None` if there is no such open request or consent in effect, or if `only_of` names a person to whom it does not
    /// belong.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn withdraw_access(
        &mut self,
        id: RequestId,
        only_of: Option<&str>,
        by: &Operator,
        now: u64,
    ) -> Result<Option<AccessEntry>> {
        self.write(|transaction| {
            let Some(entry) = entry_of(transaction, id)? else { return Ok(None) };
            let is_live = matches!(entry.state, AccessState::Open | AccessState::Allowed);
            if !is_live || only_of.is_some_and(|person| person != entry.person) {
                return Ok(None);
            }
            withdraw(transaction, &entry, by, now)?;
            Ok(Some(entry))
        })
    }

    /// Withdraws up to 500 consents that `decider` has given, and returns them.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn withdraw_consents_by(&mut self, decider: &str, by: &Operator, now: u64) -> Result<Vec<AccessEntry>> {
        self.write(|transaction| {
            let sql = format!("SELECT {COLUMNS} FROM access_requests WHERE decider = ?1 AND allowed = 1 LIMIT {PIECE}");
            let given = entries(transaction.prepare_cached(&sql)?.query_map([decider], read)?)?;
            given.iter().try_for_each(|entry| withdraw(transaction, entry, by, now))?;
            Ok(given)
        })
    }

    /// Ends the consents with these numbers, because their time is over. Returns the people, groups and tags that had
    /// the consents; their grants are then [unexamined](Self::unexamined).
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn expire_consents(&mut self, ids: &[RequestId], now: u64) -> Result<Vec<String>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.write(|transaction| {
            let mut people = Vec::new();
            for id in ids {
                // Another member of the cluster may have ended the consent.
                let Some(entry) = entry_of(transaction, *id)?.filter(|entry| entry.state == AccessState::Allowed)
                else {
                    continue;
                };
                end(transaction, &entry, AccessState::Expired, None, now)?;
                let event = AuditEvent::new("consent_expired").person(&entry.person).receiver(&entry.receiver);
                event.detail(id.to_string()).write(transaction, now)?;
                people.push(entry.person);
            }
            people.sort();
            people.dedup();
            Ok(people)
        })
    }

    /// Returns how many times the consents have changed so far.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn consent_changes(&self) -> Result<i64> {
        let mut read = self.connection.prepare_cached("SELECT made FROM consent_changes")?;
        Ok(read.query_row([], |row| row.get(0))?)
    }

    /// Returns the consents that are in effect.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn consents(&self) -> Result<Consents> {
        let sql = format!("SELECT {COLUMNS} FROM access_requests WHERE allowed = 1");
        let all = entries(self.connection.prepare_cached(&sql)?.query_map([], read)?)?;
        Ok(all.into_iter().filter(|entry| entry.is_current).filter_map(consent).collect())
    }

    /// Returns the consents that were in effect at some time since `since`, for decisions about requests of the past.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn consents_since(&self, since: u64) -> Result<Consents> {
        let sql = format!("SELECT {COLUMNS} FROM access_requests WHERE until >= ?1 AND coalesce(ended, ?1) >= ?1");
        let all = entries(self.connection.prepare_cached(&sql)?.query_map([since.cast_signed()], read)?)?;
        let consents: Consents = all.into_iter().filter_map(consent).collect();
        Ok(consents.of_the_past())
    }

    /// Returns the request or consent with this number, or `None` if there is none.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn access_request(&self, id: RequestId) -> Result<Option<AccessEntry>> {
        entry_of(&self.connection, id)
    }

    /// Returns all requests that are open and all consents that are in effect; with `all`, also the refused, withdrawn
    /// and expired ones that are still recorded.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn access_requests(&self, all: bool) -> Result<Vec<AccessEntry>> {
        let which = if all { "1 = 1" } else { "state IN ('open', 'allowed')" };
        let sql = format!("SELECT {COLUMNS} FROM access_requests WHERE {which} ORDER BY receiver, asked, id");
        entries(self.connection.prepare_cached(&sql)?.query_map([], read)?)
    }
}

/// Deletes a person's requests and consents.
pub(super) fn forget(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    unexamined::forget(transaction, person)?;
    let delete = "DELETE FROM access_requests WHERE person = ?1 RETURNING allowed";
    let mut delete = transaction.prepare_cached(delete)?;
    let allowed = delete.query_map([person], |row| row.get(0))?.collect::<Result<Vec<bool>, _>>()?;
    if allowed.contains(&true) {
        note_change(transaction)?;
    }
    Ok(())
}

/// Deletes up to [`PIECE`] requests whose time is over, and reports whether there are possibly more.
pub(super) fn prune(transaction: &Transaction<'_>, now: u64) -> Result<bool> {
    let piece = "DELETE FROM access_requests WHERE id IN (
        SELECT id FROM access_requests WHERE allowed = 0 AND coalesce(ended, decided, asked) < ?1 LIMIT ?2)";
    let deleted = transaction.execute(piece, params![now.cast_signed() - KEPT, PIECE])?;
    receivers::prune(transaction)?;
    Ok(deleted == PIECE as usize)
}

fn withdraw(transaction: &Transaction<'_>, entry: &AccessEntry, by: &Operator, now: u64) -> Result<()> {
    end(transaction, entry, AccessState::Withdrawn, Some(by), now)?;
    withdrawn(entry).by(by).detail(entry.id.to_string()).write(transaction, now)
}

/// Returns the event of a withdrawal.
fn withdrawn(entry: &AccessEntry) -> AuditEvent {
    let name = if entry.state == AccessState::Open { "access_withdrawn" } else { "consent_withdrawn" };
    AuditEvent::new(name).person(&entry.person).receiver(&entry.receiver)
}

/// After the identity provider has renamed the person `before` to `now`, makes `now` the author of this person's
/// consents. A consent to a group or a tag does not count for its author, and so still does not count for this person.
pub(super) fn rename(transaction: &Transaction<'_>, before: &str, now: &str) -> Result<()> {
    let change = "UPDATE access_requests SET decider = ?2 WHERE decider = ?1";
    if transaction.execute(change, [before, now])? > 0 {
        note_change(transaction)?;
    }
    Ok(())
}

/// Ends a request or a consent. The end of a consent makes verifiers ask about flows that outlived their grants, and
/// makes members of the cluster examine the holder's grants.
fn end(
    transaction: &Transaction<'_>,
    entry: &AccessEntry,
    state: AccessState,
    by: Option<&Operator>,
    now: u64,
) -> Result<()> {
    transaction.execute(
        "UPDATE access_requests SET state = ?2, allowed = 0, ended = ?3, ender = ?4 WHERE id = ?1",
        params![entry.id.0.get(), state.name(), now.cast_signed(), by.map(Operator::name)],
    )?;
    if entry.state == AccessState::Allowed {
        note_change(transaction)?;
        match entry.person.parse() {
            Ok(Holder::Group(_) | Holder::Tag(_)) => revocation::recheck_all(transaction)?,
            _ => revocation::recheck_of_person(transaction, &entry.person)?,
        }
        unexamined::note(transaction, &entry.person)?;
    }
    Ok(())
}

/// Reports whether the person's session lives. The account then exists, because its sessions end with it.
fn has_session(transaction: &Transaction<'_>, token: &TokenHash, person: &str, now: u64) -> Result<bool> {
    let live = "SELECT 1 FROM sessions WHERE token = ?1 AND person = ?2 AND expires > ?3";
    Ok(transaction.prepare_cached(live)?.exists(params![token, person, now.cast_signed()])?)
}

/// Returns a number that no request has: `drawn` if that is free.
fn free_number(transaction: &Transaction<'_>, mut drawn: RequestId) -> Result<RequestId> {
    let mut taken = transaction.prepare_cached("SELECT 1 FROM access_requests WHERE id = ?1")?;
    while taken.exists([drawn.0.get()])? {
        drawn = random_number()?;
    }
    Ok(drawn)
}

/// Draws a number for a request. Numbers are random, so that a page that shows a deleted request does not decide about
/// a later request with the same number.
///
/// # Errors
/// Fails if the system has no random numbers.
pub fn random_number() -> Result<RequestId> {
    loop {
        if let Some(drawn) = NonZeroU32::new(u32::from_be_bytes(credentials::random()?)) {
            return Ok(RequestId(drawn));
        }
    }
}

/// Returns the detail of an audit entry: the number of the request, and the parts that are not empty.
fn detail(id: RequestId, parts: &[&str]) -> String {
    let parts: Vec<_> = parts.iter().filter(|part| !part.is_empty()).copied().collect();
    if parts.is_empty() { id.to_string() } else { format!("{id}: {}", parts.join("; ")) }
}

fn entry_of(connection: &rusqlite::Connection, id: RequestId) -> Result<Option<AccessEntry>> {
    let sql = format!("SELECT {COLUMNS} FROM access_requests WHERE id = ?1");
    let found = connection.prepare_cached(&sql)?.query_row([id.0.get()], read).optional()?;
    found.map(TryInto::try_into).transpose()
}

/// Returns the consent of a request, with its holder, if there was one.
fn consent(entry: AccessEntry) -> Option<(String, Consent)> {
    let services = entry.parsed_services();
    let AccessEntry { id, person, receiver, delegation, decider, decided, until, ended, .. } = entry;
    let until = until?;
    // Requests of the second in which a consent was withdrawn may have come before.
    let until = ended.map_or(until, |ended| until.min(ended + 1));
    let by = decider?.into();
    Some((person, Consent { id, receiver, services, delegation: delegation?, by, from: decided?, until }))
}
