//! Account numbers and session slots: what a handle says of its holder (wire.md §3.9), which verifiers budget by.
//!
//! An account's number is never given to another. A session's slot is not given to another of its account while a grant of it
//! can be in use, or its end is announced to verifiers: they would take the new session for the old one.

use super::TokenHash;
use anyhow::{Context, Result};
use engine::verifier::CLOCK_SKEW_MAX;
use rusqlite::{OptionalExtension, Transaction, params};
use wire::Holder;

/// Slots of an account.
const SLOTS: usize = 256;

/// `until` is when the last grant of an ended session has ended for verifiers, too. A slot that is free again is NULL.
pub(super) const SCHEMA: &str = "
CREATE TABLE account_numbers (
    account INTEGER PRIMARY KEY AUTOINCREMENT, person TEXT UNIQUE, last_slot INTEGER NOT NULL
) STRICT;
CREATE TABLE session_slots (
    session BLOB PRIMARY KEY, account INTEGER NOT NULL, slot INTEGER, ended INTEGER, until INTEGER
) STRICT;
CREATE UNIQUE INDEX slots_in_use ON session_slots (account, slot) WHERE slot IS NOT NULL;
CREATE TABLE session_verifiers (
    session BLOB NOT NULL, verifier TEXT NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (session, verifier)
) STRICT, WITHOUT ROWID;
";

/// What becomes of a session that wants a slot.
pub(super) enum Slot {
    /// It has one.
    Given(Holder),
    /// All are in use.
    NoneFree {
        /// Until one is free.
        seconds: u64,
    },
}

/// Gives a new session of a person's the account's next free slot.
pub(super) fn begin(transaction: &Transaction<'_>, session: &TokenHash, person: &str, now: u64) -> Result<Slot> {
    let (account, last_slot) = account_of(transaction, person)?;
    let released = "UPDATE session_slots SET slot = NULL WHERE account = ?1 AND slot IS NOT NULL AND until <= ?2";
    transaction.prepare_cached(released)?.execute(params![account, now.cast_signed()])?;
    let mut used = transaction
        .prepare_cached("SELECT slot, until FROM session_slots WHERE account = ?1 AND slot IS NOT NULL")?;
    let used = used.query_map([account], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let used: Vec<(u8, Option<i64>)> = used.collect::<Result<_, _>>()?;
    let mut taken = [false; SLOTS];
    for (slot, _) in &used {
        taken[usize::from(*slot)] = true;
    }
    let free = (1..=SLOTS).map(|step| last_slot.wrapping_add(step as u8)).find(|slot| !taken[usize::from(*slot)]);
    let Some(slot) = free else {
        let first = used.iter().filter_map(|(_, until)| *until).min().context("no slot of this account ever ends")?;
        return Ok(Slot::NoneFree { seconds: first.cast_unsigned().saturating_sub(now) });
    };
    let add = "INSERT INTO session_slots (session, account, slot) VALUES (?1, ?2, ?3)";
    transaction.prepare_cached(add)?.execute(params![session, account, slot])?;
    let last = "UPDATE account_numbers SET last_slot = ?2 WHERE account = ?1";
    transaction.prepare_cached(last)?.execute(params![account, slot])?;
    let holder = Holder::new(account, slot).context("the account numbers are used up: 16 777 215 were given")?;
    Ok(Slot::Given(holder))
}

/// Notes that a session has a grant for a verifier, which ends then.
pub(super) fn granted(transaction: &Transaction<'_>, session: &TokenHash, verifier: &str, expires: u64) -> Result<()> {
    let mut note = transaction.prepare_cached(
        "INSERT INTO session_verifiers (session, verifier, until) VALUES (?1, ?2, ?3)
         ON CONFLICT DO UPDATE SET until = excluded.until WHERE excluded.until > until",
    )?;
    note.execute(params![session, verifier, expires.cast_signed()])?;
    Ok(())
}

/// Notes that a session has ended. The slot of one that had no grant is free at once.
pub(super) fn end(transaction: &Transaction<'_>, session: &TokenHash, now: u64) -> Result<()> {
    let mut note = transaction.prepare_cached(
        "UPDATE session_slots SET ended = ?2, until = coalesce(
            (SELECT max(max(until), ?2) + ?3 FROM session_verifiers AS of
                WHERE of.session = session_slots.session HAVING count(*) > 0), 0)
         WHERE session = ?1 AND ended IS NULL",
    )?;
    note.execute(params![session, now.cast_signed(), CLOCK_SKEW_MAX])?;
    Ok(())
}

/// Notes that a person is called otherwise now: the number stays theirs.
pub(super) fn rename(transaction: &Transaction<'_>, before: &str, now: &str) -> Result<()> {
    forget(transaction, now)?;
    transaction.execute("UPDATE account_numbers SET person = ?2 WHERE person = ?1", [before, now])?;
    Ok(())
}

/// Forgets whose a number was: another account of that name gets another.
pub(super) fn forget(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    transaction.execute("UPDATE account_numbers SET person = NULL WHERE person = ?1", [person])?;
    Ok(())
}

/// Drops what is known of sessions that ended so long ago that their grants were dropped.
pub(super) fn prune(transaction: &Transaction<'_>, before: i64) -> Result<()> {
    transaction.execute(
        "DELETE FROM session_verifiers WHERE session IN (SELECT session FROM session_slots WHERE until <= ?1)",
        [before],
    )?;
    transaction.execute("DELETE FROM session_slots WHERE until <= ?1", [before])?;
    Ok(())
}

/// The holder of these numbers, as columns hold them; nobody without.
pub(super) fn of(account: Option<u32>, slot: Option<u8>) -> Holder {
    account.zip(slot).and_then(|(account, slot)| Holder::new(account, slot)).unwrap_or_default()
}

/// The number and the last slot of a person's account, which gets a number with its first session.
fn account_of(transaction: &Transaction<'_>, person: &str) -> Result<(u32, u8)> {
    let mut known = transaction.prepare_cached("SELECT account, last_slot FROM account_numbers WHERE person = ?1")?;
    let known = known.query_row([person], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    if let Some(known) = known {
        return Ok(known);
    }
    let last_slot = u8::MAX;
    let add = "INSERT INTO account_numbers (person, last_slot) VALUES (?1, ?2)";
    transaction.execute(add, params![person, last_slot])?;
    let account = u32::try_from(transaction.last_insert_rowid()).context("the account numbers are used up")?;
    Ok((account, last_slot))
}
