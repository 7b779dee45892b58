//! Issued grants. They are recorded so that they can be listed, re-evaluated and revoked; their keys are never stored.

use super::holders::{self, Charge, Charged, Recorded};
use super::leases::{self, Announced, LeaseTerms, RENEWABLE};
use super::revocation::{HELD, mark};
use super::{AuditEvent, Database, TokenHash, devices, identities, replica};
use crate::convert;
use anyhow::{Context, Result};
use api::{GrantOwner, LivePair, RevokedGrant};
use engine::model::Sealing;
use engine::policy::{Scope, Subject};
use ipnet::IpNet;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use std::net::IpAddr;
use wire::{Destination, Epoch, Flags, Handle, Pair};

/// The columns that [`entry`] reads, in its order.
const ENTRY: &str =
    "handle, person, device, verifier, receiver, rule, source, address, protocol, port, prefix, flags, issued,
    expires, coalesce(revoked, ended), sealing, lease";
/// The tables that contain the columns of [`ENTRY`]. The session's row is joined because a grant also ends with its
/// session.
pub(super) const ENTRIES: &str = "grants LEFT JOIN session_slots USING (session)";

/// The holder that a grant's handle contains, as a number. It is 0 if the session has no slot, or if the handles of its
/// grants contain no holder.
pub(super) const HOLDER: &str = "iif(slot IS NULL OR unnamed, 0, account << 8 | slot)";

/// A grant that is to be recorded.
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
    /// The addresses and the service that the grant covers.
    pub scope: Scope,
    /// The grant's flags.
    pub flags: Flags,
    /// If the grant may be renewed: its lease terms, and the end of its last lease in Unix seconds.
    pub renewable: Option<(LeaseTerms, u64)>,
}

/// A recorded grant.
#[derive(Debug, Serialize)]
pub struct GrantEntry {
    /// The grant's first handle. A grant that is renewed has another handle in each epoch.
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
    /// The address of the requested destination.
    pub address: IpAddr,
    /// The protocol number of the requested destination.
    pub protocol: u8,
    /// The port of the requested destination.
    pub port: u16,
    /// The addresses that the grant covers.
    pub prefix: IpNet,
    /// The grant's flags (wire.md §3.2).
    #[serde(serialize_with = "as_number")]
    pub flags: Flags,
    /// The rule's demands on a sealed tunnel at the time of issue; `None` if the rule had none.
    pub sealing: Option<api::Sealing>,
    /// Time of issue, in Unix seconds.
    pub issued: u64,
    /// Time at which the grant's last lease can end, in Unix seconds.
    pub expires: u64,
    /// Maximum length of a lease, in seconds; `None` if the grant cannot be renewed.
    pub lease: Option<u32>,
    /// Time at which the grant was revoked or its session ended, in Unix seconds.
    pub revoked: Option<u64>,
    /// The current tags of the device.
    pub tags: Vec<String>,
    /// The current groups of the person, except groups that the policy defines.
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

    /// Returns the grant's demands on a sealed tunnel. If this version cannot read the demands, it treats them as
    /// absent. The next evaluation by a rule with demands then ends the grant.
    pub fn sealing(&self) -> Sealing {
        self.sealing.as_ref().and_then(convert::demand).unwrap_or(Sealing::NONE)
    }

    /// Returns the scope of the grant.
    pub fn scope(&self) -> Scope {
        let application = self.flags.has(Flags::PORT);
        Scope { prefix: self.prefix, service: application.then_some((self.protocol, self.port)) }
    }
}

/// A grant whose end the authority announces, with the verifier and the session that have to hear of it.
#[derive(Debug)]
pub struct Ended {
    /// The grant.
    pub grant: Announced,
    /// The id of the grant's verifier.
    pub verifier: String,
    /// The session that the grant was issued to.
    pub session: TokenHash,
}

impl Database {
    /// Records grants. For each grant, in the same order, returns whether it was recorded or why not. One transaction
    /// records all of them, because most of the cost is the transaction. The caller must not give a grant to a client
    /// if the grant was not recorded.
    ///
    /// # Errors
    /// Fails if the database cannot be written; then no grant is recorded.
    pub fn add_grants<'g>(&mut self, grants: impl IntoIterator<Item = &'g Issuance>) -> Result<Vec<Recorded>> {
        let charged = self.add_decided(grants.into_iter().map(|grant| (grant, u64::MAX)))?;
        Ok(charged.into_iter().map(|charged| charged.recorded).collect())
    }

    /// Records grants as [`Self::add_grants`] does. With each grant comes the number of the last entry of the cluster's
    /// log that was known when the grant was decided. If a later entry changed what decisions depend on, the grant is
    /// refused as outdated.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Self::add_grants`].
    pub(super) fn add_decided<'g>(
        &mut self,
        grants: impl IntoIterator<Item = (&'g Issuance, u64)>,
    ) -> Result<Vec<Charged>> {
        let is_member = self.is_member();
        self.write_soon(|transaction| {
            let decisive = if is_member { replica::decisive(transaction)? } else { 0 };
            let record = |(grant, followed): (&Issuance, u64)| match followed < decisive {
                true => Ok(Recorded::Outdated.into()),
                false => add(transaction, grant, is_member),
            };
            grants.into_iter().map(record).collect()
        })
    }

    /// Records grants that clients have already, except grants that the database contains. The flag of each grant
    /// states whether the grant is outdated. The result is [`Recorded::SessionEnded`] in two cases. If a grant is
    /// outdated or its session has ended, this method records the grant as revoked. If another grant has the same
    /// handle, this method revokes that grant, so that neither of the two stays usable.
    ///
    /// # Errors
    /// Fails if the database cannot be written; then no grant is recorded.
    pub(super) fn add_journaled<'g>(
        &mut self,
        grants: impl IntoIterator<Item = (&'g Issuance, bool)>,
        now: u64,
    ) -> Result<Vec<Charged>> {
        let add = |transaction: &Transaction<'_>, (grant, is_outdated): (&Issuance, bool)| {
            add_journaled(transaction, grant, is_outdated, now)
        };
        self.write_soon(|transaction| grants.into_iter().map(|grant| add(transaction, grant)).collect())
    }

    /// Returns grants, newest first. With `all`, returns every recorded grant; otherwise the grants that have neither
    /// expired nor been revoked at `now`.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn grants(&self, now: u64, all: bool) -> Result<Vec<GrantEntry>> {
        let which = if all { "?1 = ?1".to_owned() } else { format!("expires > ?1 AND {HELD}") };
        let mut statement = self
            .connection
            .prepare_cached(&format!("SELECT {ENTRY} FROM {ENTRIES} WHERE {which} ORDER BY issued DESC, handle"))?;
        let rows = statement.query_and_then([now.cast_signed()], |row| entry(&self.connection, row))?;
        rows.collect()
    }

    /// Returns the grant with this handle; `None` if there is no record of it. The handle may be the grant's first or a
    /// later one, and the grant may have ended.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn grant(&self, handle: Handle) -> Result<Option<GrantEntry>> {
        let mut statement =
            self.connection.prepare_cached(&format!("SELECT {ENTRY} FROM {ENTRIES} WHERE handle = ?1"))?;
        let mut rows = statement.query([self.first_handle(handle)?.0.cast_signed()])?;
        rows.next()?.map(|row| entry(&self.connection, row)).transpose()
    }

    /// Returns the handles of a session's grants that have not expired at `now`.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn handles_of_session(&self, token: &TokenHash, now: u64) -> Result<BTreeSet<Handle>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT handle FROM grants
             WHERE person = (SELECT person FROM sessions WHERE token = ?1) AND expires > ?2 AND session = ?1",
        )?;
        let rows = statement.query_map(params![token, now.cast_signed()], handle)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the grants of a person that are live at `now`, newest first.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn live_grants_of(&self, person: &str, now: u64) -> Result<Vec<GrantEntry>> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT {ENTRY} FROM {ENTRIES} WHERE person = ?2 AND expires > ?1 AND {HELD} ORDER BY issued DESC, handle"
        ))?;
        let rows = statement.query_and_then(params![now.cast_signed(), person], |row| entry(&self.connection, row))?;
        rows.collect()
    }

    /// Returns the grant with this handle if it is live at `now` and belongs to this person.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn live_grant_of(&self, person: &str, handle: Handle, now: u64) -> Result<Option<GrantEntry>> {
        let live = |grant: &GrantEntry| grant.person == person && grant.revoked.is_none() && grant.expires > now;
        Ok(self.grant(handle)?.filter(live))
    }

    /// Returns the owner of a grant for `verifier`, or `None` if there is no such grant. The class in the result is 0,
    /// because the database does not contain it: the caller must set the class from the policy.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn grant_owner(&self, verifier: &str, handle: Handle) -> Result<Option<GrantOwner>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT person, device, receiver, rule, issued, expires, sealing FROM grants WHERE handle = ?1 AND \
             verifier = ?2",
        )?;
        let first = self.first_handle(handle)?;
        let owner = statement.query_row(params![first.0.cast_signed(), verifier], |row| {
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

    /// Looks up grants for `verifier`, live or expired, in the order of `handles`. In the result, the [`GrantEntry`] is
    /// `None` for a grant that is revoked or unknown, or whose person or device no longer exists.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
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
            let first = self.first_handle(Handle(handle))?;
            let mut rows = statement.query(params![first.0.cast_signed(), verifier])?;
            let Some(row) = rows.next()? else { return Ok((RevokedGrant { handle, expires: 0, holder: 0 }, None)) };
            let (entry, there): (_, bool) = (entry(&self.connection, row)?, row.get("there")?);
            let grant = RevokedGrant { handle, expires: row.get("expires")?, holder: row.get("holder")? };
            Ok((grant, Some(entry).filter(|entry| there && entry.revoked.is_none())))
        };
        handles.iter().map(|handle| look_up(*handle)).collect()
    }

    /// Returns the pairs for `verifier` that are live at `now`. `epoch_length` is the length of an epoch, in seconds.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
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

    /// Returns all grants that are live at `now`, with the session and the verifier of each.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn live_of_sessions(&self, now: u64) -> Result<Vec<Ended>> {
        let mut statement = self.connection.prepare(&format!(
            "SELECT handle, expires, {HOLDER}, verifier, session, {RENEWABLE} FROM {ENTRIES}
             WHERE expires > ?1 AND {HELD}"
        ))?;
        let rows = statement.query_map([now.cast_signed()], ended)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns all grants issued at or after `since`, in Unix seconds, and earlier grants that could still be renewed
    /// at `since`. Contains live and ended grants, oldest first.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn grants_since(&self, since: u64) -> Result<Vec<GrantEntry>> {
        let mut statement = self.connection.prepare(&format!(
            "SELECT {ENTRY} FROM {ENTRIES}
                 WHERE issued >= ?1 OR (number IS NOT NULL AND min(expires, coalesce(revoked, ended, expires)) >= ?1)
                 ORDER BY issued, handle"
        ))?;
        let rows = statement.query_and_then([since.cast_signed()], |row| entry(&self.connection, row))?;
        rows.collect()
    }

    /// Returns the revoked grants that this authority has not announced, and removes them from the queue of
    /// announcements.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn take_unannounced(&mut self) -> Result<Vec<Ended>> {
        let waiting = "SELECT EXISTS (SELECT 1 FROM unannounced)";
        if !self.connection.query_row(waiting, [], |row| row.get::<_, bool>(0))? {
            return Ok(Vec::new());
        }
        self.write_local(|transaction| {
            let mut statement = transaction.prepare_cached(&format!(
                "SELECT handle, expires, {HOLDER}, verifier, session, {RENEWABLE} FROM unannounced
                 CROSS JOIN grants USING (handle) LEFT JOIN session_slots USING (session)",
            ))?;
            let rows = statement.query_map([], ended)?.collect::<Result<_, _>>()?;
            transaction.execute("DELETE FROM unannounced", [])?;
            Ok(rows)
        })
    }

    /// Returns the verifiers that must ask the authority which flows to cut, and removes them from the stored list.
    /// Such a verifier possibly has flows that are no longer allowed and that no announcement names.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn take_rechecks(&mut self) -> Result<Vec<String>> {
        let waiting: bool =
            self.connection.query_row("SELECT EXISTS (SELECT 1 FROM rechecks)", [], |row| row.get(0))?;
        if !waiting {
            return Ok(Vec::new());
        }
        self.write_local(|transaction| {
            let mut statement = transaction.prepare_cached("DELETE FROM rechecks RETURNING verifier")?;
            let rows = statement.query_map([], |row| row.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

fn add(transaction: &Transaction<'_>, grant: &Issuance, is_member: bool) -> Result<Charged> {
    let number = grant.renewable.map(|(renewable, _)| renewable.number);
    if let Some(number) = number
        && leases::is_taken(transaction, number)?
    {
        return Ok(Recorded::NumberTaken.into());
    }
    let charged = charge(transaction, grant, false)?;
    let renewable = match (charged.recorded, grant.renewable) {
        (Recorded::Done, _) => None,
        (Recorded::Renewable, Some(renewable)) => Some(renewable),
        _ => return Ok(charged),
    };
    // Even a grant that can't be renewed has a handle that derives from its number.
    if let Some(number) = number
        && !is_member
    {
        leases::take(transaction, number)?;
    }
    insert(transaction, grant, renewable)?;
    Ok(charged)
}

/// Records a grant that its client has already.
fn add_journaled(transaction: &Transaction<'_>, grant: &Issuance, is_outdated: bool, now: u64) -> Result<Charged> {
    let handle = grant.owner.handle.cast_signed();
    let is_this = "SELECT session = ?2 AND verifier = ?3 AND receiver = ?4 FROM grants WHERE handle = ?1";
    let values = params![handle, grant.session, grant.verifier, grant.owner.receiver];
    let found = transaction.prepare_cached(is_this)?.query_row(values, |row| row.get(0)).optional()?;
    match found {
        Some(true) => return Ok(Recorded::Done.into()),
        Some(false) => {
            mark(transaction, "handle = ?3", now, &[&handle])?;
            return Ok(Recorded::SessionEnded.into());
        }
        None => {}
    }
    let mut renewable = grant.renewable;
    if let Some((LeaseTerms { number, .. }, _)) = renewable {
        // If another grant has the number, that grant keeps it.
        if leases::is_taken(transaction, number)? {
            renewable = None;
        } else {
            leases::take(transaction, number)?;
        }
    }
    let charged = charge(transaction, grant, true)?;
    let ends = is_outdated || charged.recorded == Recorded::SessionEnded;
    let can_be_renewed = !ends && charged.recorded == Recorded::Renewable;
    insert(transaction, grant, renewable.filter(|_| can_be_renewed))?;
    if ends {
        mark(transaction, "handle = ?3", now, &[&handle])?;
        return Ok(Recorded::SessionEnded.into());
    }
    match renewable {
        None if can_be_renewed => Ok(Charged { recorded: Recorded::Done, ..charged }),
        _ => Ok(charged),
    }
}

fn charge(transaction: &Transaction<'_>, grant: &Issuance, is_issued: bool) -> Result<Charged> {
    let Issuance { session, owner, verifier, renewable, .. } = grant;
    let until = renewable.map(|(_, until)| until);
    let (expires, now) = (owner.expires, owner.issued);
    holders::charge(transaction, &Charge { session, verifier, expires, until, now, is_issued })
}

/// Adds the row of a grant, and its entry in the audit trail. Without `renewable`, the grant ends with its first lease.
fn insert(transaction: &Transaction<'_>, grant: &Issuance, renewable: Option<(LeaseTerms, u64)>) -> Result<()> {
    let Issuance { session, owner, verifier, source, to, scope, flags, .. } = grant;
    let until = renewable.map_or(owner.expires, |(_, until)| until);
    let renewable = renewable.map(|(renewable, _)| renewable);
    let mut statement = transaction.prepare_cached(
        "INSERT INTO grants (handle, session, person, device, verifier, receiver, rule, source, address,
            protocol, port, prefix, flags, issued, expires, sealing, number, lease)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)",
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
        until.cast_signed(),
        owner.sealing.as_ref().map(serde_json::to_string).transpose()?,
        renewable.map(|renewable| renewable.number),
        renewable.map(|renewable| renewable.lease),
    ])?;
    let demanded = owner.sealing.as_ref().map(|sealing| format!(", {} in a sealed tunnel", sealing.treatment));
    let leases = renewable.map(|renewable| format!(" in leases of {} s", renewable.lease));
    let detail = format!(
        "{} to {} protocol {} port {}, until {until}{}{}",
        Handle(owner.handle),
        to.address,
        to.protocol,
        to.port,
        leases.unwrap_or_default(),
        demanded.unwrap_or_default()
    );
    let event = AuditEvent::new("granted").person(&owner.person).device(&owner.device).source(*source);
    let event = event.receiver(&owner.receiver).rule(&owner.rule).detail(detail);
    event.write(transaction, owner.issued)
}

/// Reads a row with the columns handle, expiry, [`HOLDER`], verifier, session and [`RENEWABLE`].
fn ended(row: &Row<'_>) -> rusqlite::Result<Ended> {
    let grant = leases::announced(row, revoked_grant(row)?, 5)?;
    Ok(Ended { grant, verifier: row.get(3)?, session: row.get(4)? })
}

/// Reads a row that begins with the columns handle, expiry and [`HOLDER`].
pub(super) fn revoked_grant(row: &Row<'_>) -> rusqlite::Result<RevokedGrant> {
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
        lease: row.get(16)?,
    })
}

/// Reads a grant's demands on a sealed tunnel. NULL and text that cannot be read are `None`.
fn sealing(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<api::Sealing>> {
    let text: Option<String> = row.get(column)?;
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
}

/// Reads a grant's demands on a sealed tunnel; see [`GrantEntry::sealing`].
pub(super) fn sealing_of(row: &Row<'_>, column: usize) -> rusqlite::Result<Sealing> {
    Ok(sealing(row, column)?.as_ref().and_then(convert::demand).unwrap_or(Sealing::NONE))
}
