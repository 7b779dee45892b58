//! Account numbers and session slots, by which a handle identifies its holder (wire.md §3.9), so that verifiers can
//! enforce budgets. The limits on grants per account are also counted here, because counting an account's grants would
//! take longer the more it had.
//!
//! An account's number is never reused. A session's slot is not reused within the account while a grant of the session
//! can be in use or its end is being announced to verifiers, which would mistake the new session for the old one.

use super::{Database, TokenHash, revocation};
use anyhow::{Context, Result};
use api::RevokedSession;
use engine::verifier::CLOCK_SKEW_MAX;
use rusqlite::{OptionalExtension, Transaction, params};
use wire::Holder;

/// Maximum number of unexpired grants of one session, including revoked ones.
const MOST_OF_SESSION: u32 = 1024;
/// Maximum number of unexpired grants of one account in all its sessions.
const MOST_OF_ACCOUNT: u32 = 4096;

/// Number of slots of an account.
const SLOTS: usize = 256;

/// `until` is when the last grant of an ended session has expired for verifiers too; `told` is 0 until its end has been
/// announced. A slot that is free again is NULL. Sessions with grants from before format 10 are `unnamed`: those
/// handles identify no holder. `unexpired` counts unexpired grants, including revoked ones, and some expired ones,
/// which [`charge`] subtracts.
pub(super) const SCHEMA: &str = "
CREATE TABLE account_numbers (
    account INTEGER PRIMARY KEY AUTOINCREMENT, person TEXT UNIQUE, last_slot INTEGER NOT NULL,
    unexpired INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE session_slots (
    session BLOB PRIMARY KEY, account INTEGER NOT NULL, owner TEXT NOT NULL, slot INTEGER, ended INTEGER, until INTEGER,
    told INTEGER, unnamed INTEGER NOT NULL DEFAULT 0, unexpired INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX slots_in_use ON session_slots (account, slot) WHERE slot IS NOT NULL;
CREATE INDEX ended_sessions ON session_slots (until) WHERE until IS NOT NULL;
CREATE INDEX ends_to_tell ON session_slots (session) WHERE told = 0;
CREATE TABLE session_verifiers (
    session BLOB NOT NULL, verifier TEXT NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (session, verifier)
) STRICT, WITHOUT ROWID;
CREATE TABLE unexpired_grants (
    account INTEGER NOT NULL, expires INTEGER NOT NULL, session BLOB NOT NULL, grants INTEGER NOT NULL,
    PRIMARY KEY (account, expires, session)
) STRICT, WITHOUT ROWID;
";

/// Result of recording a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The grant is recorded.
    Done,
    /// The grant's session has ended.
    SessionEnded,
    /// The basis of the decision has changed meanwhile: decide again.
    Outdated,
    /// The session or the account has reached its limit.
    TooMany {
        /// Seconds until one of these grants ends.
        seconds: u64,
    },
}

/// Result of requesting a slot for a session.
pub(super) enum Slot {
    /// The session has a slot.
    Given(Holder),
    /// All slots are in use.
    NoneFree {
        /// Seconds until a slot is free.
        seconds: u64,
    },
}

impl Database {
    /// Returns the ended sessions that have not been announced, each with every verifier that it had grants for, and
    /// marks them as announced.
    pub fn take_ended_sessions(&mut self) -> Result<Vec<(String, RevokedSession)>> {
        let waiting = "SELECT EXISTS (SELECT 1 FROM session_slots WHERE told = 0)";
        if !self.connection.query_row(waiting, [], |row| row.get::<_, bool>(0))? {
            return Ok(Vec::new());
        }
        self.write_soon(|transaction| {
            let mut ended = transaction.prepare_cached(
                "SELECT verifier, account, slot, max(of.until, ended) + ?1 FROM session_slots
                 JOIN session_verifiers AS of USING (session) WHERE told = 0",
            )?;
            let ended = ended.query_map([CLOCK_SKEW_MAX], |row| {
                let Holder(holder) = of(row.get(1)?, row.get(2)?);
                Ok((row.get(0)?, RevokedSession { holder, expires: row.get(3)? }))
            })?;
            let ended = ended.collect::<Result<_, _>>()?;
            transaction.execute("UPDATE session_slots SET told = NULL WHERE told = 0", [])?;
            Ok(ended)
        })
    }

    /// Returns the ended sessions whose grants for `verifier` would not have expired yet.
    pub fn revoked_sessions(&self, verifier: &str, now: u64) -> Result<Vec<RevokedSession>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT account, slot, max(of.until, ended) + ?3 FROM session_slots AS ends
             JOIN session_verifiers AS of USING (session)
             WHERE ends.until > ?2 AND slot IS NOT NULL AND of.verifier = ?1 AND max(of.until, ended) + ?3 > ?2",
        )?;
        let rows = statement.query_map(params![verifier, now.cast_signed(), CLOCK_SKEW_MAX], |row| {
            let Holder(holder) = of(row.get(0)?, row.get(1)?);
            Ok(RevokedSession { holder, expires: row.get(2)? })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

/// Assigns the account's next free slot to a new session.
pub(super) fn begin(transaction: &Transaction<'_>, session: &TokenHash, person: &str, now: u64) -> Result<Slot> {
    let (account, last_slot) = account_of(transaction, person)?;
    let released = "UPDATE session_slots SET slot = NULL WHERE account = ?1 AND slot IS NOT NULL AND until <= ?2";
    transaction.prepare_cached(released)?.execute(params![account, now.cast_signed()])?;
    let mut used =
        transaction.prepare_cached("SELECT slot, until FROM session_slots WHERE account = ?1 AND slot IS NOT NULL")?;
    let used = used.query_map([account], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let used: Vec<(u8, Option<i64>)> = used.collect::<Result<_, _>>()?;
    let mut taken = [false; SLOTS];
    for (slot, _) in &used {
        taken[usize::from(*slot)] = true;
    }
    let free = (1..=SLOTS).map(|step| last_slot.wrapping_add(step as u8)).find(|slot| !taken[usize::from(*slot)]);
    let Some(slot) = free else {
        let first = used.iter().filter_map(|(_, until)| *until).min().with_context(|| {
            format!("all {SLOTS} sessions of {person} are live: end some with `vouchsafe authority revoke`")
        })?;
        return Ok(Slot::NoneFree { seconds: first.cast_unsigned().saturating_sub(now) });
    };
    let add = "INSERT INTO session_slots (session, account, owner, slot) VALUES (?1, ?2, ?3, ?4)";
    transaction.prepare_cached(add)?.execute(params![session, account, person, slot])?;
    let last = "UPDATE account_numbers SET last_slot = ?2 WHERE account = ?1";
    transaction.prepare_cached(last)?.execute(params![account, slot])?;
    let holder = Holder::new(account, slot).context("all 16 777 215 numbers for accounts have been assigned")?;
    Ok(Slot::Given(holder))
}

/// Counts a new grant for a session, unless a limit is reached. The time taken does not depend on the account's earlier
/// requests.
pub(super) fn charge(
    transaction: &Transaction<'_>,
    session: &TokenHash,
    verifier: &str,
    expires: u64,
    now: u64,
) -> Result<Recorded> {
    let mut find =
        transaction.prepare_cached("SELECT account FROM session_slots WHERE session = ?1 AND ended IS NULL")?;
    let Some(account) = find.query_row([session], |row| row.get::<_, u32>(0)).optional()? else {
        return Ok(Recorded::SessionEnded);
    };
    take_off_ended(transaction, account, now)?;
    let mut counts = transaction.prepare_cached(
        "SELECT account_numbers.unexpired, session_slots.unexpired FROM session_slots JOIN account_numbers USING (account)
         WHERE session = ?1",
    )?;
    let (of_account, of_session): (u32, u32) = counts.query_row([session], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if of_account >= MOST_OF_ACCOUNT || of_session >= MOST_OF_SESSION {
        let mut first = transaction.prepare_cached("SELECT min(expires) FROM unexpired_grants WHERE account = ?1")?;
        let first: Option<i64> = first.query_row([account], |row| row.get(0))?;
        let seconds = first.map_or(0, |first| first.cast_unsigned().saturating_sub(now));
        return Ok(Recorded::TooMany { seconds });
    }
    let mut add = transaction.prepare_cached(
        "INSERT INTO unexpired_grants (account, expires, session, grants) VALUES (?1, ?2, ?3, 1)
         ON CONFLICT DO UPDATE SET grants = grants + 1",
    )?;
    add.execute(params![account, expires.cast_signed(), session])?;
    change_counts(transaction, account, session, 1)?;
    let mut note = transaction.prepare_cached(
        "INSERT INTO session_verifiers (session, verifier, until) VALUES (?1, ?2, ?3)
         ON CONFLICT DO UPDATE SET until = excluded.until WHERE excluded.until > until",
    )?;
    note.execute(params![session, verifier, expires.cast_signed()])?;
    Ok(Recorded::Done)
}

/// Subtracts expired grants from an account's counts, each of them once.
fn take_off_ended(transaction: &Transaction<'_>, account: u32, now: u64) -> Result<()> {
    let mut ended = transaction.prepare_cached(
        "DELETE FROM unexpired_grants WHERE account = ?1 AND expires <= ?2 RETURNING session, grants",
    )?;
    let ended = ended.query_map(params![account, now.cast_signed()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let ended: Vec<(TokenHash, i64)> = ended.collect::<Result<_, _>>()?;
    ended.iter().try_for_each(|(session, grants)| change_counts(transaction, account, session, -grants))
}

fn change_counts(transaction: &Transaction<'_>, account: u32, session: &TokenHash, by: i64) -> Result<()> {
    let of_account = "UPDATE account_numbers SET unexpired = unexpired + ?2 WHERE account = ?1";
    transaction.prepare_cached(of_account)?.execute(params![account, by])?;
    let of_session = "UPDATE session_slots SET unexpired = unexpired + ?2 WHERE session = ?1";
    transaction.prepare_cached(of_session)?.execute(params![session, by])?;
    Ok(())
}

/// Records the end of a session, which also ends its grants, in one row however many there are. The slot of a session
/// without grants is free at once.
pub(super) fn end(transaction: &Transaction<'_>, session: &TokenHash, now: u64) -> Result<()> {
    let mut note = transaction.prepare_cached(
        "UPDATE session_slots SET ended = ?2, (until, told) = (
            SELECT coalesce(max(max(of.until), ?2) + ?3, 0), CASE WHEN count(*) > 0 THEN 0 END
            FROM session_verifiers AS of WHERE of.session = session_slots.session)
         WHERE session = ?1 AND ended IS NULL RETURNING unnamed, owner",
    )?;
    let ended =
        note.query_row(params![session, now.cast_signed(), CLOCK_SKEW_MAX], |row| Ok((row.get(0)?, row.get(1)?)));
    match ended.optional()? {
        Some((true, owner)) => revocation::revoke_unnamed(transaction, session, owner, now),
        _ => Ok(()),
    }
}

/// Renames a person, who keeps the account number.
pub(super) fn rename(transaction: &Transaction<'_>, before: &str, now: &str) -> Result<()> {
    forget(transaction, now)?;
    transaction.execute("UPDATE account_numbers SET person = ?2 WHERE person = ?1", [before, now])?;
    Ok(())
}

/// Detaches an account number from its name: a later account of that name gets a new number.
pub(super) fn forget(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    transaction.execute("UPDATE account_numbers SET person = NULL WHERE person = ?1", [person])?;
    Ok(())
}

/// Deletes sessions that ended so long ago that their grants have been deleted.
pub(super) fn prune(transaction: &Transaction<'_>, before: i64) -> Result<()> {
    transaction.execute(
        "DELETE FROM session_verifiers WHERE session IN (SELECT session FROM session_slots WHERE until <= ?1)",
        [before],
    )?;
    transaction.execute("DELETE FROM session_slots WHERE until <= ?1", [before])?;
    Ok(())
}

/// Returns the holder for two columns, or the default holder if either is NULL.
pub(super) fn of(account: Option<u32>, slot: Option<u8>) -> Holder {
    account.zip(slot).and_then(|(account, slot)| Holder::new(account, slot)).unwrap_or_default()
}

/// Returns the number and the last slot of a person's account, which gets its number with the first session.
fn account_of(transaction: &Transaction<'_>, person: &str) -> Result<(u32, u8)> {
    let mut numbers = transaction.prepare_cached("SELECT account, last_slot FROM account_numbers WHERE person = ?1")?;
    let number = numbers.query_row([person], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    if let Some(number) = number {
        return Ok(number);
    }
    let last_slot = u8::MAX;
    let add = "INSERT INTO account_numbers (person, last_slot) VALUES (?1, ?2)";
    transaction.execute(add, params![person, last_slot])?;
    let account =
        u32::try_from(transaction.last_insert_rowid()).context("all numbers for accounts have been assigned")?;
    Ok((account, last_slot))
}
