//! Grants issued, so that they can be listed, judged anew and revoked. Their keys are never stored.

use super::{AuditEvent, Database, Operator, TokenHash, devices, holders, identities, sessions};
use anyhow::{Context, Result, bail};
use engine::api::{GrantOwner, LivePair, RevokedGrant};
use engine::policy::{Scope, Subject};
use engine::verifier::CLOCK_SKEW_MAX;
use ipnet::IpNet;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, Transaction, params};
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::IpAddr;
use wire::{Destination, Epoch, Flags, Handle, Pair};

/// The columns that [`entry`] reads, in its order.
const ENTRY: &str =
    "handle, person, device, verifier, receiver, rule, source, address, protocol, port, prefix, flags, issued,
    expires, coalesce(revoked, ended)";
/// Where they are: a grant ends with its session, too.
const ENTRIES: &str = "grants LEFT JOIN session_slots USING (session)";
/// Of those the ones that neither were revoked nor ended with their session.
const HELD: &str = "revoked IS NULL AND ended IS NULL";

/// What became of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It is recorded.
    Done,
    /// Its session has ended.
    SessionEnded,
    /// The session or the person has as many as may be.
    TooMany {
        /// Until one of them ends.
        seconds: u64,
    },
}

/// A grant at the moment it is issued.
pub struct Issuance {
    /// The session it is issued to.
    pub session: TokenHash,
    /// Whose it is.
    pub owner: GrantOwner,
    /// The verifier it is for.
    pub verifier: String,
    /// Where the request came from.
    pub source: IpAddr,
    /// What was asked for.
    pub to: Destination,
    /// What it covers.
    pub scope: Scope,
    /// Its flags.
    pub flags: Flags,
}

/// A grant as it is listed.
#[derive(Debug, Serialize)]
pub struct GrantEntry {
    /// Its handle, 16 hex digits.
    pub handle: String,
    /// Whose it is.
    pub person: String,
    /// The device it was issued to.
    pub device: String,
    /// The verifier it is for.
    pub verifier: String,
    /// The receiver's name.
    pub receiver: String,
    /// The rule that allowed it.
    pub rule: String,
    /// Where the request came from.
    pub source: String,
    /// The address that was asked for.
    pub address: IpAddr,
    /// The protocol that was asked for.
    pub protocol: u8,
    /// The port that was asked for.
    pub port: u16,
    /// The addresses it covers.
    pub prefix: IpNet,
    /// Its flags (wire.md §3.2).
    pub flags: u8,
    /// When it was issued, Unix seconds.
    pub issued: u64,
    /// When it ends, Unix seconds.
    pub expires: u64,
    /// When it was revoked, Unix seconds.
    pub revoked: Option<u64>,
    /// The tags of its device.
    pub tags: Vec<String>,
    /// The groups of its person besides those of the policy.
    pub groups: Vec<String>,
}

impl GrantEntry {
    /// Who holds it.
    pub fn subject(&self) -> Subject<'_> {
        let source = self.source.parse().ok();
        Subject { person: &self.person, groups: &self.groups, tags: &self.tags, source }
    }

    /// What was asked for.
    pub fn to(&self) -> Destination {
        Destination { address: self.address, protocol: self.protocol, port: self.port }
    }

    /// Whether it is a pair of the suite `sha224` (wire.md §5.7).
    pub fn is_pair(&self) -> bool {
        u64::from_str_radix(&self.handle, 16).is_ok_and(|handle| Pair::of(Handle(handle)).is_some())
    }

    /// What it covers.
    pub fn scope(&self) -> Scope {
        let application = Flags(self.flags).has(Flags::PORT);
        Scope { prefix: self.prefix, service: application.then_some((self.protocol, self.port)) }
    }
}

/// A grant that was revoked, with those who must hear of it.
#[derive(Debug)]
pub struct Ended {
    /// The grant.
    pub grant: RevokedGrant,
    /// Its verifier.
    pub verifier: String,
    /// The session it was issued to.
    pub session: TokenHash,
}

/// Which grants a command revokes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// One.
    Grant(u64),
    /// One of this person.
    OwnGrant(String, u64),
    /// All of a person; their sessions end, too.
    Person(String),
    /// All of one device of a person; its sessions end, too.
    Device(String, String),
    /// All of one session, which ends, too.
    Session(TokenHash),
}

impl Database {
    /// Records grants, all in one transaction, for that is most of what recording one costs. Unless it is recorded a grant
    /// must not be handed out.
    pub fn add_grants<'g>(&mut self, grants: impl IntoIterator<Item = &'g Issuance>) -> Result<Vec<Recorded>> {
        self.write_soon(|transaction| grants.into_iter().map(|grant| add(transaction, grant)).collect())
    }

    /// Grants, newest first; only those that have neither ended nor been revoked unless `all`.
    pub fn grants(&self, now: u64, all: bool) -> Result<Vec<GrantEntry>> {
        let which = if all { "?1 = ?1".to_owned() } else { format!("expires > ?1 AND {HELD}") };
        let mut statement = self
            .connection
            .prepare_cached(&format!("SELECT {ENTRY} FROM {ENTRIES} WHERE {which} ORDER BY issued DESC, handle"))?;
        let rows = statement.query_and_then([now.cast_signed()], |row| entry(&self.connection, row))?;
        rows.collect()
    }

    /// A grant, ended or not.
    pub fn grant(&self, handle: u64) -> Result<Option<GrantEntry>> {
        let mut statement =
            self.connection.prepare_cached(&format!("SELECT {ENTRY} FROM {ENTRIES} WHERE handle = ?1"))?;
        let mut rows = statement.query([handle.cast_signed()])?;
        rows.next()?.map(|row| entry(&self.connection, row)).transpose()
    }

    /// The handles of a session's grants that have not ended, 16 hex digits each.
    pub fn handles_of_session(&self, token: &TokenHash, now: u64) -> Result<BTreeSet<String>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT handle FROM grants
             WHERE person = (SELECT person FROM sessions WHERE token = ?1) AND expires > ?2 AND session = ?1",
        )?;
        let rows = statement
            .query_map(params![token, now.cast_signed()], |row| Ok(format!("{:016x}", row.get::<_, i64>(0)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// A person's grants that have neither ended nor been revoked, newest first.
    pub fn live_grants_of(&self, person: &str, now: u64) -> Result<Vec<GrantEntry>> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT {ENTRY} FROM {ENTRIES} WHERE person = ?2 AND expires > ?1 AND {HELD} ORDER BY issued DESC, handle"
        ))?;
        let rows = statement.query_and_then(params![now.cast_signed(), person], |row| entry(&self.connection, row))?;
        rows.collect()
    }

    /// A person's grants that have not been revoked, those that have ended among them: their flows may live.
    pub(super) fn grants_to_judge(&self, person: &str) -> Result<Vec<GrantEntry>> {
        let mut statement =
            self.connection.prepare_cached(&format!("SELECT {ENTRY} FROM {ENTRIES} WHERE person = ?1 AND {HELD}"))?;
        let rows = statement.query_and_then([person], |row| entry(&self.connection, row))?;
        rows.collect()
    }

    /// Whose a grant of `verifier` is; its class is the policy's to say.
    pub fn grant_owner(&self, verifier: &str, handle: u64) -> Result<Option<GrantOwner>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT person, device, receiver, rule, issued, expires FROM grants WHERE handle = ?1 AND verifier = ?2",
        )?;
        let owner = statement.query_row(params![handle.cast_signed(), verifier], |row| {
            Ok(GrantOwner {
                handle,
                person: row.get(0)?,
                device: row.get(1)?,
                receiver: row.get(2)?,
                rule: row.get(3)?,
                issued: row.get::<_, i64>(4)?.cast_unsigned(),
                expires: row.get::<_, i64>(5)?.cast_unsigned(),
                class: 0,
            })
        });
        Ok(owner.optional()?)
    }

    /// Grants of `verifier` that may have ended. Without an entry: one that is revoked or unknown, or whose person or device
    /// is gone.
    pub fn grants_of(&self, verifier: &str, handles: &[u64]) -> Result<Vec<(RevokedGrant, Option<GrantEntry>)>> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT {ENTRY},
                (EXISTS (SELECT 1 FROM accounts WHERE accounts.person = grants.person)
                    OR EXISTS (SELECT 1 FROM identities WHERE identities.person = grants.person))
                AND EXISTS (SELECT 1 FROM devices
                    WHERE devices.person = grants.person AND devices.device = grants.device) AS there
             FROM {ENTRIES} WHERE handle = ?1 AND verifier = ?2",
        ))?;
        let mut look_up = |handle: u64| {
            let mut rows = statement.query(params![handle.cast_signed(), verifier])?;
            let Some(row) = rows.next()? else { return Ok((RevokedGrant { handle, expires: 0 }, None)) };
            let (entry, there): (_, bool) = (entry(&self.connection, row)?, row.get("there")?);
            let grant = RevokedGrant { handle, expires: row.get("expires")? };
            Ok((grant, Some(entry).filter(|entry| there && entry.revoked.is_none())))
        };
        handles.iter().map(|handle| look_up(*handle)).collect()
    }

    /// The grants of `verifier` that were revoked one by one and have not ended.
    pub fn revoked(&self, verifier: &str, now: u64) -> Result<Vec<RevokedGrant>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT handle, expires FROM grants WHERE expires > ?1 AND revoked IS NOT NULL AND verifier = ?2",
        )?;
        let rows = statement.query_map(params![ended_by(now), verifier], revoked_grant)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The pairs of `verifier` that have neither ended nor been revoked, where epochs last this long.
    pub fn pairs(&self, verifier: &str, now: u64, epoch_length: u32) -> Result<Vec<LivePair>> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT handle, issued, expires, account, slot FROM {ENTRIES}
             WHERE expires > ?1 AND {HELD} AND verifier = ?2 AND handle BETWEEN 0 AND ?3"
        ))?;
        let last = Pair::from_random(u64::MAX).handle().0.cast_signed();
        let rows = statement.query_map(params![now.cast_signed(), verifier, last], |row| {
            let issued = row.get::<_, i64>(1)?.cast_unsigned();
            let Epoch(epoch) = Epoch::at(issued, epoch_length);
            Ok(LivePair {
                handle: row.get::<_, i64>(0)?.cast_unsigned(),
                epoch,
                issued,
                expires: row.get(2)?,
                holder: holders::of(row.get(3)?, row.get(4)?).0,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The sessions' grants that have neither ended nor been revoked.
    pub fn live_of_sessions(&self, now: u64) -> Result<Vec<(TokenHash, RevokedGrant)>> {
        let mut statement = self
            .connection
            .prepare(&format!("SELECT handle, expires, session FROM {ENTRIES} WHERE expires > ?1 AND {HELD}"))?;
        let rows = statement.query_map([now.cast_signed()], |row| Ok((row.get(2)?, revoked_grant(row)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Whether there is, or ever was, what a command revokes.
    pub fn has(&self, which: &Which) -> Result<bool> {
        let has = |sql: &str, values: &[&dyn ToSql]| -> Result<bool> {
            Ok(self.connection.prepare_cached(sql)?.exists(values)?)
        };
        match which {
            Which::Grant(handle) => has("SELECT 1 FROM grants WHERE handle = ?1", &[&handle.cast_signed()]),
            Which::OwnGrant(person, handle) => {
                has("SELECT 1 FROM grants WHERE person = ?1 AND handle = ?2", &[person, &handle.cast_signed()])
            }
            Which::Person(person) => {
                Ok(self.knows(person)? || has("SELECT 1 FROM grants WHERE person = ?1", &[person])?)
            }
            Which::Session(token) => has("SELECT 1 FROM sessions WHERE token = ?1", &[token]),
            Which::Device(person, device) => {
                let known = devices::is_known(&self.connection, person, device)?;
                Ok(known || has("SELECT 1 FROM grants WHERE person = ?1 AND device = ?2", &[person, device])?)
            }
        }
    }

    /// Revokes grants as a command asks; gives how many ended by that. None, and nothing is written down, for a device of
    /// which nothing was left to end: people can repeat that at will.
    pub fn revoke(&mut self, which: &Which, by: &Operator, now: u64) -> Result<Option<usize>> {
        self.write(|transaction| {
            let grants = held(transaction, which, now)?;
            let event = match which {
                Which::Grant(handle) => {
                    let holder = holder(transaction, *handle)?;
                    let Some(holder) = holder else { bail!("no grant {handle:016x}: `grants` lists them") };
                    mark(transaction, "handle = ?3", now, &[&handle.cast_signed()])?;
                    AuditEvent::new("revoked").person(&holder).detail(format!("{handle:016x}"))
                }
                Which::OwnGrant(person, handle) => {
                    if holder(transaction, *handle)?.as_ref() != Some(person) {
                        bail!("{person} has no grant {handle:016x}");
                    }
                    mark(transaction, "handle = ?3", now, &[&handle.cast_signed()])?;
                    AuditEvent::new("revoked").person(person).detail(format!("{handle:016x}"))
                }
                Which::Person(person) => {
                    sessions::end_of_person(transaction, person, now)?;
                    AuditEvent::new("revoked").person(person).detail("all sessions and grants")
                }
                Which::Session(token) => {
                    let Some(session) = sessions::of_token(transaction, token, now)? else {
                        bail!("no such session: `session list` shows them");
                    };
                    sessions::end(transaction, token, now)?;
                    AuditEvent::new("revoked").person(&session.person).device(&session.device).detail("one session")
                }
                Which::Device(person, device) => {
                    if sessions::end_of_device(transaction, person, device, now)? == 0 {
                        return Ok(None);
                    }
                    AuditEvent::new("revoked").person(person).device(device).detail("all sessions and grants")
                }
            };
            event.by(by).write(transaction, now)?;
            Ok(Some(grants))
        })
    }

    /// Revokes grants that the policy does not permit.
    pub fn revoke_forbidden(&mut self, grants: &[(u64, String)], why: &str, now: u64) -> Result<()> {
        self.write(|transaction| revoke_forbidden(transaction, grants, why, now))
    }

    /// The grants that were issued since, whatever became of them, oldest first.
    pub fn grants_since(&self, since: u64) -> Result<Vec<GrantEntry>> {
        let mut statement = self
            .connection
            .prepare(&format!("SELECT {ENTRY} FROM {ENTRIES} WHERE issued >= ?1 ORDER BY issued, handle"))?;
        let rows = statement.query_and_then([since.cast_signed()], |row| entry(&self.connection, row))?;
        rows.collect()
    }

    /// The revoked grants that nobody was told of, which this call takes as told.
    pub fn take_unannounced(&mut self) -> Result<Vec<Ended>> {
        let waiting = "SELECT EXISTS (SELECT 1 FROM grants WHERE announced = 0)";
        if !self.connection.query_row(waiting, [], |row| row.get::<_, bool>(0))? {
            return Ok(Vec::new());
        }
        self.write_soon(|transaction| {
            let mut statement = transaction.prepare_cached(
                "UPDATE grants SET announced = 1 WHERE announced = 0 RETURNING handle, expires, verifier, session",
            )?;
            let rows = statement.query_map([], |row| {
                Ok(Ended { grant: revoked_grant(row)?, verifier: row.get(2)?, session: row.get(3)? })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// The verifiers whose grants were revoked after they had ended and which nobody told to recheck their flows; this
    /// call takes them as told.
    pub fn take_rechecks(&mut self) -> Result<Vec<String>> {
        let waiting: bool =
            self.connection.query_row("SELECT EXISTS (SELECT 1 FROM rechecks)", [], |row| row.get(0))?;
        if !waiting {
            return Ok(Vec::new());
        }
        self.write_soon(|transaction| {
            let mut statement = transaction.prepare_cached("DELETE FROM rechecks RETURNING verifier")?;
            let rows = statement.query_map([], |row| row.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

fn add(transaction: &Transaction<'_>, grant: &Issuance) -> Result<Recorded> {
    let Issuance { session, owner, verifier, source, to, scope, flags } = grant;
    let charged = holders::charge(transaction, session, verifier, owner.expires, owner.issued)?;
    if charged != Recorded::Done {
        return Ok(charged);
    }
    let mut statement = transaction.prepare_cached(
        "INSERT INTO grants (handle, session, person, device, verifier, receiver, rule, source, address,
            protocol, port, prefix, flags, issued, expires)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
    )?;
    statement.execute(params![
        owner.handle.cast_signed(),
        session,
        owner.person,
        owner.device,
        verifier,
        owner.receiver,
        owner.rule,
        source.to_string(),
        to.address.to_string(),
        to.protocol,
        scope.service.map_or(to.port, |(_, port)| port),
        scope.prefix.to_string(),
        flags.0,
        owner.issued.cast_signed(),
        owner.expires.cast_signed(),
    ])?;
    let detail = format!(
        "{:016x} to {} protocol {} port {}, until {}",
        owner.handle, to.address, to.protocol, to.port, owner.expires
    );
    let event = AuditEvent::new("granted").person(&owner.person).device(&owner.device).source(*source);
    let event = event.receiver(&owner.receiver).rule(&owner.rule).detail(detail);
    event.write(transaction, owner.issued)?;
    Ok(Recorded::Done)
}

pub(super) fn revoke_forbidden(
    transaction: &Transaction<'_>,
    grants: &[(u64, String)],
    why: &str,
    now: u64,
) -> Result<()> {
    for (handle, person) in grants {
        mark(transaction, "handle = ?3", now, &[&handle.cast_signed()])?;
        let event = AuditEvent::new("revoked").person(person);
        event.detail(format!("{handle:016x}: {why}")).write(transaction, now)?;
    }
    Ok(())
}

/// Revokes the grants of a session that verifiers can't know for its own.
pub(super) fn revoke_unnamed(
    transaction: &Transaction<'_>,
    session: &TokenHash,
    person: String,
    now: u64,
) -> Result<()> {
    mark(transaction, "person = ?3 AND session = ?4", now, &[&person, session])
}

pub(super) fn revoke_of_verifier(transaction: &Transaction<'_>, verifier: &str, now: u64) -> Result<()> {
    mark(transaction, "verifier = ?3", now, &[&verifier])
}

/// Marks the grants that `condition` (constant text, values from `?3` on) selects, ended ones, too: their flows may live.
/// Those that have not ended are to be announced; the verifiers of the others are to recheck their flows.
fn mark(transaction: &Transaction<'_>, condition: &'static str, now: u64, values: &[&dyn ToSql]) -> Result<()> {
    let mut statement = transaction.prepare_cached(&format!(
        "UPDATE grants SET revoked = ?1, announced = CASE WHEN expires > ?2 THEN 0 END
         WHERE revoked IS NULL AND {condition} RETURNING announced, verifier"
    ))?;
    let times: [&dyn ToSql; 2] = [&now.cast_signed(), &ended_by(now)];
    let values: Vec<_> = times.into_iter().chain(values.iter().copied()).collect();
    let mut rows = statement.query(values.as_slice())?;
    let mut rechecks = BTreeSet::new();
    while let Some(row) = rows.next()? {
        let verifier = row.get_ref(1)?.as_str()?;
        if row.get_ref(0)? == ValueRef::Null && !rechecks.contains(verifier) {
            rechecks.insert(verifier.to_owned());
        }
    }
    drop(rows);
    let mut recheck = transaction.prepare_cached("INSERT OR IGNORE INTO rechecks (verifier) VALUES (?1)")?;
    for verifier in &rechecks {
        recheck.execute([verifier])?;
    }
    Ok(())
}

/// A grant that ended by then has ended for verifiers, too, whose clocks may be behind.
fn ended_by(now: u64) -> i64 {
    now.cast_signed() - i64::from(CLOCK_SKEW_MAX)
}

/// How many grants would end by what a command revokes.
fn held(transaction: &Transaction<'_>, which: &Which, now: u64) -> Result<usize> {
    let count = |condition: &str, values: &[&dyn ToSql]| -> Result<usize> {
        let mut statement = transaction
            .prepare_cached(&format!("SELECT count(*) FROM {ENTRIES} WHERE expires > ?1 AND {HELD} AND {condition}"))?;
        let (since, mut all): (_, Vec<&dyn ToSql>) = (ended_by(now), Vec::new());
        all.push(&since);
        all.extend(values);
        let count: i64 = statement.query_row(all.as_slice(), |row| row.get(0))?;
        Ok(usize::try_from(count)?)
    };
    match which {
        Which::Grant(handle) | Which::OwnGrant(_, handle) => count("handle = ?2", &[&handle.cast_signed()]),
        Which::Person(person) => count("person = ?2", &[person]),
        Which::Device(person, device) => count("person = ?2 AND device = ?3", &[person, device]),
        Which::Session(token) => {
            count("person = (SELECT person FROM sessions WHERE token = ?2) AND session = ?2", &[token])
        }
    }
}

fn holder(transaction: &Transaction<'_>, handle: u64) -> Result<Option<String>> {
    let mut statement = transaction.prepare_cached("SELECT person FROM grants WHERE handle = ?1")?;
    Ok(statement.query_row([handle.cast_signed()], |row| row.get(0)).optional()?)
}

fn revoked_grant(row: &Row<'_>) -> rusqlite::Result<RevokedGrant> {
    Ok(RevokedGrant { handle: row.get::<_, i64>(0)?.cast_unsigned(), expires: row.get(1)? })
}

/// Reads [`ENTRY`].
fn entry(connection: &Connection, row: &Row<'_>) -> Result<GrantEntry> {
    let (address, prefix): (String, String) = (row.get(7)?, row.get(10)?);
    let (person, device): (String, String) = (row.get(1)?, row.get(2)?);
    Ok(GrantEntry {
        handle: format!("{:016x}", row.get::<_, i64>(0)?),
        tags: devices::tags_of(connection, &person, &device)?,
        groups: identities::groups_of(connection, &person)?,
        person,
        device,
        verifier: row.get(3)?,
        receiver: row.get(4)?,
        rule: row.get(5)?,
        source: row.get(6)?,
        address: address.parse().context("the grants table holds a broken address")?,
        protocol: row.get(8)?,
        port: row.get(9)?,
        prefix: prefix.parse().context("the grants table holds a broken prefix")?,
        flags: row.get(11)?,
        issued: row.get::<_, i64>(12)?.cast_unsigned(),
        expires: row.get::<_, i64>(13)?.cast_unsigned(),
        revoked: row.get::<_, Option<i64>>(14)?.map(i64::cast_unsigned),
    })
}
