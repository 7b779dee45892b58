//! Issued grants, recorded so that they can be listed, re-evaluated and revoked. Their keys are never stored.

use super::holders::{self, Recorded};
use super::revocation::{HELD, ended_by, mark, revoke_forbidden};
use super::{AuditEvent, Database, Operator, TokenHash, devices, identities, sessions};
use crate::convert;
use anyhow::{Context, Result, bail};
use api::{GrantOwner, LivePair, RevokedGrant};
use engine::model::Sealing;
use engine::policy::{Scope, Subject};
use ipnet::IpNet;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, Transaction, params};
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use std::net::IpAddr;
use wire::{Destination, Epoch, Flags, Handle, Pair};

/// The columns that [`entry`] reads, in its order.
const ENTRY: &str =
    "handle, person, device, verifier, receiver, rule, source, address, protocol, port, prefix, flags, issued,
    expires, coalesce(revoked, ended), sealing";
/// The tables of [`ENTRY`]'s columns: the session matters because a grant also ends with its session.
const ENTRIES: &str = "grants LEFT JOIN session_slots USING (session)";

/// The holder that a grant's handle names, as a number; 0 where the session has no slot or handles that name none.
const HOLDER: &str = "iif(slot IS NULL OR unnamed, 0, account << 8 | slot)";

/// A grant at the time of issue.
pub struct Issuance {
    /// The session that the grant is issued to.
    pub session: TokenHash,
    /// The grant's owner.
    pub owner: GrantOwner,
    /// The verifier that the grant is for.
    pub verifier: String,
    /// The source address of the request.
    pub source: IpAddr,
    /// The destination of the request.
    pub to: Destination,
    /// The scope of the grant.
    pub scope: Scope,
    /// The grant's flags.
    pub flags: Flags,
}

/// A grant as it is listed.
#[derive(Debug, Serialize)]
pub struct GrantEntry {
    /// The grant's handle.
    #[serde(serialize_with = "as_text")]
    pub handle: Handle,
    /// The person that the grant was issued to.
    pub person: String,
    /// The device that the grant was issued to.
    pub device: String,
    /// The verifier that the grant is for.
    pub verifier: String,
    /// The receiver's name.
    pub receiver: String,
    /// The rule that allowed the grant.
    pub rule: String,
    /// The source address of the request.
    pub source: IpAddr,
    /// The address requested.
    pub address: IpAddr,
    /// The protocol requested.
    pub protocol: u8,
    /// The port requested.
    pub port: u16,
    /// The addresses that the grant covers.
    pub prefix: IpNet,
    /// The grant's flags (wire.md §3.2).
    #[serde(serialize_with = "as_number")]
    pub flags: Flags,
    /// The rule's demand in a sealed tunnel at the time of issue; `None` if it demanded nothing.
    pub sealing: Option<api::Sealing>,
    /// Time of issue, in Unix seconds.
    pub issued: u64,
    /// Time of expiry, in Unix seconds.
    pub expires: u64,
    /// Time of revocation, in Unix seconds.
    pub revoked: Option<u64>,
    /// Tags of the device.
    pub tags: Vec<String>,
    /// Groups of the person, except those of the policy.
    pub groups: Vec<String>,
}

fn as_text<S: Serializer>(handle: &Handle, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(handle)
}

fn as_number<S: Serializer>(flags: &Flags, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(flags.0)
}

impl GrantEntry {
    /// Returns the subject of the grant.
    pub fn subject(&self) -> Subject<'_> {
        Subject { person: &self.person, groups: &self.groups, tags: &self.tags, source: Some(self.source) }
    }

    /// Returns the destination that was requested.
    pub fn to(&self) -> Destination {
        Destination { address: self.address, protocol: self.protocol, port: self.port }
    }

    /// Reports whether the grant is a pair of the suite `sha224` (wire.md §5.7).
    pub fn is_pair(&self) -> bool {
        Pair::of(self.handle).is_some()
    }

    /// Returns what the grant demands in a sealed tunnel. A demand of another version counts as none, so that the next
    /// evaluation by a policy that demands something ends the grant.
    pub fn sealing(&self) -> Sealing {
        self.sealing.as_ref().and_then(convert::demand).unwrap_or(Sealing::NONE)
    }

    /// Returns the scope of the grant.
    pub fn scope(&self) -> Scope {
        let application = self.flags.has(Flags::PORT);
        Scope { prefix: self.prefix, service: application.then_some((self.protocol, self.port)) }
    }
}

/// A revoked grant, with the parties to notify.
#[derive(Debug)]
pub struct Ended {
    /// The revoked grant.
    pub grant: RevokedGrant,
    /// The verifier of the grant.
    pub verifier: String,
    /// The session that the grant was issued to.
    pub session: TokenHash,
}

/// The grants that a command revokes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// A single grant.
    Grant(Handle),
    /// A single grant, if it belongs to this person.
    OwnGrant(String, Handle),
    /// All grants of a person, whose sessions end too.
    Person(String),
    /// All grants of one device of a person; its sessions end too.
    Device(String, String),
    /// All grants of one session, which ends too.
    Session(TokenHash),
}

impl Database {
    /// Records grants in one transaction, because the transaction is most of the cost of recording a grant. A grant
    /// must not be handed out unless it is recorded.
    pub fn add_grants<'g>(&mut self, grants: impl IntoIterator<Item = &'g Issuance>) -> Result<Vec<Recorded>> {
        self.write_soon(|transaction| grants.into_iter().map(|grant| add(transaction, grant)).collect())
    }

    /// Returns grants, newest first: all of them, or only those that have neither expired nor been revoked.
    pub fn grants(&self, now: u64, all: bool) -> Result<Vec<GrantEntry>> {
        let which = if all { "?1 = ?1".to_owned() } else { format!("expires > ?1 AND {HELD}") };
        let mut statement = self
            .connection
            .prepare_cached(&format!("SELECT {ENTRY} FROM {ENTRIES} WHERE {which} ORDER BY issued DESC, handle"))?;
        let rows = statement.query_and_then([now.cast_signed()], |row| entry(&self.connection, row))?;
        rows.collect()
    }

    /// Returns a grant, live or ended.
    pub fn grant(&self, handle: Handle) -> Result<Option<GrantEntry>> {
        let mut statement =
            self.connection.prepare_cached(&format!("SELECT {ENTRY} FROM {ENTRIES} WHERE handle = ?1"))?;
        let mut rows = statement.query([handle.0.cast_signed()])?;
        rows.next()?.map(|row| entry(&self.connection, row)).transpose()
    }

    /// Returns the handles of a session's unexpired grants.
    pub fn handles_of_session(&self, token: &TokenHash, now: u64) -> Result<BTreeSet<Handle>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT handle FROM grants
             WHERE person = (SELECT person FROM sessions WHERE token = ?1) AND expires > ?2 AND session = ?1",
        )?;
        let rows = statement.query_map(params![token, now.cast_signed()], handle)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns a person's live grants, newest first.
    pub fn live_grants_of(&self, person: &str, now: u64) -> Result<Vec<GrantEntry>> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT {ENTRY} FROM {ENTRIES} WHERE person = ?2 AND expires > ?1 AND {HELD} ORDER BY issued DESC, handle"
        ))?;
        let rows = statement.query_and_then(params![now.cast_signed(), person], |row| entry(&self.connection, row))?;
        rows.collect()
    }

    /// Returns a grant if it is live and this person's.
    pub fn live_grant_of(&self, person: &str, handle: Handle, now: u64) -> Result<Option<GrantEntry>> {
        let live = |grant: &GrantEntry| grant.person == person && grant.revoked.is_none() && grant.expires > now;
        Ok(self.grant(handle)?.filter(live))
    }

    /// Returns the owner of a grant of `verifier`. The class is left at 0, because the policy determines it.
    pub fn grant_owner(&self, verifier: &str, handle: Handle) -> Result<Option<GrantOwner>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT person, device, receiver, rule, issued, expires, sealing FROM grants WHERE handle = ?1 AND verifier = ?2",
        )?;
        let owner = statement.query_row(params![handle.0.cast_signed(), verifier], |row| {
            Ok(GrantOwner {
                handle: handle.0,
                person: row.get(0)?,
                device: row.get(1)?,
                receiver: row.get(2)?,
                rule: row.get(3)?,
                issued: row.get::<_, i64>(4)?.cast_unsigned(),
                expires: row.get::<_, i64>(5)?.cast_unsigned(),
                class: 0,
                sealing: sealing(row, 6)?,
            })
        });
        Ok(owner.optional()?)
    }

    /// Looks up grants of `verifier`, live or expired. The entry is `None` if the grant is revoked or unknown, or if
    /// its person or device no longer exists.
    pub fn grants_of(&self, verifier: &str, handles: &[Handle]) -> Result<Vec<(RevokedGrant, Option<GrantEntry>)>> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT {ENTRY},
                (EXISTS (SELECT 1 FROM accounts WHERE accounts.person = grants.person)
                    OR EXISTS (SELECT 1 FROM identities WHERE identities.person = grants.person))
                AND EXISTS (SELECT 1 FROM devices
                    WHERE devices.person = grants.person AND devices.device = grants.device) AS there,
                {HOLDER} AS holder
             FROM {ENTRIES} WHERE handle = ?1 AND verifier = ?2",
        ))?;
        let mut look_up = |Handle(handle): Handle| {
            let mut rows = statement.query(params![handle.cast_signed(), verifier])?;
            let Some(row) = rows.next()? else { return Ok((RevokedGrant { handle, expires: 0, holder: 0 }, None)) };
            let (entry, there): (_, bool) = (entry(&self.connection, row)?, row.get("there")?);
            let grant = RevokedGrant { handle, expires: row.get("expires")?, holder: row.get("holder")? };
            Ok((grant, Some(entry).filter(|entry| there && entry.revoked.is_none())))
        };
        handles.iter().map(|handle| look_up(*handle)).collect()
    }

    /// Returns the grants of `verifier` that were revoked individually and have not expired.
    pub fn revoked(&self, verifier: &str, now: u64) -> Result<Vec<RevokedGrant>> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT handle, expires, {HOLDER} FROM {ENTRIES}
             WHERE expires > ?1 AND revoked IS NOT NULL AND verifier = ?2",
        ))?;
        let rows = statement.query_map(params![ended_by(now), verifier], revoked_grant)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the live pairs of `verifier`, given the length of an epoch.
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

    /// Returns all live grants with their sessions.
    pub fn live_of_sessions(&self, now: u64) -> Result<Vec<(TokenHash, RevokedGrant)>> {
        let mut statement = self
            .connection
            .prepare(&format!("SELECT handle, expires, 0, session FROM {ENTRIES} WHERE expires > ?1 AND {HELD}"))?;
        let rows = statement.query_map([now.cast_signed()], |row| Ok((row.get(3)?, revoked_grant(row)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Reports whether the target of a revocation exists or ever existed.
    pub fn has(&self, which: &Which) -> Result<bool> {
        let has = |sql: &str, values: &[&dyn ToSql]| -> Result<bool> {
            Ok(self.connection.prepare_cached(sql)?.exists(values)?)
        };
        match which {
            Which::Grant(handle) => has("SELECT 1 FROM grants WHERE handle = ?1", &[&handle.0.cast_signed()]),
            Which::OwnGrant(person, handle) => {
                has("SELECT 1 FROM grants WHERE person = ?1 AND handle = ?2", &[person, &handle.0.cast_signed()])
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

    /// Revokes grants and returns how many ended by this. Returns `None`, and writes no audit entry, for a device with
    /// no session left to end, because users can repeat that at will.
    pub fn revoke(&mut self, which: &Which, by: &Operator, now: u64) -> Result<Option<usize>> {
        self.write(|transaction| {
            let grants = count_live(transaction, which, now)?;
            let event = match which {
                Which::Grant(handle) => {
                    let holder = holder(transaction, *handle)?;
                    let Some(holder) = holder else { bail!("no grant {handle}: `grants` lists them") };
                    mark(transaction, "handle = ?3", now, &[&handle.0.cast_signed()])?;
                    AuditEvent::new("revoked").person(&holder).detail(handle.to_string())
                }
                Which::OwnGrant(person, handle) => {
                    if holder(transaction, *handle)?.as_ref() != Some(person) {
                        bail!("{person} has no grant {handle}");
                    }
                    mark(transaction, "handle = ?3", now, &[&handle.0.cast_signed()])?;
                    AuditEvent::new("revoked").person(person).detail(handle.to_string())
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
    pub fn revoke_forbidden(&mut self, grants: &[(Handle, String)], why: &str, now: u64) -> Result<()> {
        self.write(|transaction| revoke_forbidden(transaction, grants, why, now))
    }

    /// Returns all grants issued since a time, live or ended, oldest first.
    pub fn grants_since(&self, since: u64) -> Result<Vec<GrantEntry>> {
        let mut statement = self
            .connection
            .prepare(&format!("SELECT {ENTRY} FROM {ENTRIES} WHERE issued >= ?1 ORDER BY issued, handle"))?;
        let rows = statement.query_and_then([since.cast_signed()], |row| entry(&self.connection, row))?;
        rows.collect()
    }

    /// Returns the revoked grants that have not been announced, and marks them as announced.
    pub fn take_unannounced(&mut self) -> Result<Vec<Ended>> {
        let waiting = "SELECT EXISTS (SELECT 1 FROM grants WHERE announced = 0)";
        if !self.connection.query_row(waiting, [], |row| row.get::<_, bool>(0))? {
            return Ok(Vec::new());
        }
        self.write_soon(|transaction| {
            let mut statement = transaction.prepare_cached(&format!(
                "UPDATE grants SET announced = 1 WHERE announced = 0 RETURNING handle, expires,
                    coalesce((SELECT {HOLDER} FROM session_slots WHERE session_slots.session = grants.session), 0),
                    verifier, session",
            ))?;
            let rows = statement.query_map([], |row| {
                Ok(Ended { grant: revoked_grant(row)?, verifier: row.get(3)?, session: row.get(4)? })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Returns the verifiers that must recheck their flows because grants were revoked after expiry, and clears the
    /// list.
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
            protocol, port, prefix, flags, issued, expires, sealing)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
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
        owner.sealing.as_ref().map(serde_json::to_string).transpose()?,
    ])?;
    let demanded = owner.sealing.as_ref().map(|sealing| format!(", {} in a sealed tunnel", sealing.treatment));
    let detail = format!(
        "{} to {} protocol {} port {}, until {}{}",
        Handle(owner.handle),
        to.address,
        to.protocol,
        to.port,
        owner.expires,
        demanded.unwrap_or_default()
    );
    let event = AuditEvent::new("granted").person(&owner.person).device(&owner.device).source(*source);
    let event = event.receiver(&owner.receiver).rule(&owner.rule).detail(detail);
    event.write(transaction, owner.issued)?;
    Ok(Recorded::Done)
}

/// Returns the number of live grants that a command would revoke.
fn count_live(transaction: &Transaction<'_>, which: &Which, now: u64) -> Result<usize> {
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
        Which::Grant(handle) | Which::OwnGrant(_, handle) => count("handle = ?2", &[&handle.0.cast_signed()]),
        Which::Person(person) => count("person = ?2", &[person]),
        Which::Device(person, device) => count("person = ?2 AND device = ?3", &[person, device]),
        Which::Session(token) => {
            count("person = (SELECT person FROM sessions WHERE token = ?2) AND session = ?2", &[token])
        }
    }
}

fn holder(transaction: &Transaction<'_>, handle: Handle) -> Result<Option<String>> {
    let mut statement = transaction.prepare_cached("SELECT person FROM grants WHERE handle = ?1")?;
    Ok(statement.query_row([handle.0.cast_signed()], |row| row.get(0)).optional()?)
}

/// Reads a row that begins with handle, expiry and [`HOLDER`].
fn revoked_grant(row: &Row<'_>) -> rusqlite::Result<RevokedGrant> {
    Ok(RevokedGrant { handle: handle(row)?.0, expires: row.get(1)?, holder: row.get(2)? })
}

/// Reads the handle in the first column.
fn handle(row: &Row<'_>) -> rusqlite::Result<Handle> {
    Ok(Handle(row.get::<_, i64>(0)?.cast_unsigned()))
}

/// Reads a row with the columns of [`ENTRY`].
fn entry(connection: &Connection, row: &Row<'_>) -> Result<GrantEntry> {
    let (source, address, prefix): (String, String, String) = (row.get(6)?, row.get(7)?, row.get(10)?);
    let (person, device): (String, String) = (row.get(1)?, row.get(2)?);
    Ok(GrantEntry {
        handle: handle(row)?,
        tags: devices::tags_of(connection, &person, &device)?,
        groups: identities::groups_of(connection, &person)?,
        person,
        device,
        verifier: row.get(3)?,
        receiver: row.get(4)?,
        rule: row.get(5)?,
        source: source.parse().context("the grants table contains a malformed source")?,
        address: address.parse().context("the grants table contains a malformed address")?,
        protocol: row.get(8)?,
        port: row.get(9)?,
        prefix: prefix.parse().context("the grants table contains a malformed prefix")?,
        flags: Flags(row.get(11)?),
        issued: row.get::<_, i64>(12)?.cast_unsigned(),
        expires: row.get::<_, i64>(13)?.cast_unsigned(),
        revoked: row.get::<_, Option<i64>>(14)?.map(i64::cast_unsigned),
        sealing: sealing(row, 15)?,
    })
}

/// Reads what a grant demands; what cannot be read is none.
fn sealing(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<api::Sealing>> {
    let text: Option<String> = row.get(column)?;
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
}
