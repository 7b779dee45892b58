//! Account numbers and session slots. A handle identifies its holder by these two numbers (wire.md §3.9), so that
//! verifiers can enforce budgets. This module also counts the grants of each account for the limits. Counting rows of
//! the table of grants instead would be slow for an account with many grants.
//!
//! An account's number is never reused. A session's slot within the account is free again only when no grant of the
//! session can be in use, and when the end of the session has been announced. Otherwise verifiers would mistake the new
//! session for the old one.

use super::leases::learned_within;
use super::{Database, PIECE, TokenHash, revocation};
use anyhow::{Context, Result};
use api::RevokedSession;
use engine::verifier::CLOCK_SKEW_MAX;
use rusqlite::{OptionalExtension, Transaction, params};
use wire::Holder;

/// Maximum number of unexpired grants of one session, including revoked ones.
const MOST_OF_SESSION: u32 = 1024;
/// Maximum number of unexpired grants of one account in all its sessions.
const MOST_OF_ACCOUNT: u32 = 4096;
/// Maximum numbers of unexpired grants of one session and of one account that can be renewed. The limits are lower than
/// those above, because these grants are unexpired for hours. Grants beyond them are recorded for each lease.
const RENEWABLE_OF_SESSION: u32 = 256;
const RENEWABLE_OF_ACCOUNT: u32 = 1024;
/// Number of grants of an account that can be recorded in a burst. After that, one grant can be recorded each second.
/// This bounds the disk space that an account can take: 100 000 grants with their audit entries take about 50 MB.
const RECORDS_AT_ONCE: u64 = 100_000;

/// Number of slots of an account.
const SLOTS: usize = 256;

/// In `session_slots`, `until` is the time at which the last grant of an ended session has expired for verifiers too.
/// `told` becomes 0 with the end of a session that had grants, which puts the session into the queue `untold`. A slot
/// that is free again is NULL. `unnamed` is 1 for sessions with grants from before format 10, whose handles contain no
/// holder. `unexpired` counts unexpired grants, including revoked ones, and some expired ones, which [`charge`]
/// subtracts. `paced` is the time, in Unix seconds, up to which the account has used its rate of records. `lease` is
/// the longest lease of the session's grants, in seconds. The default is the longest lifetime that a grant from before
/// format 12 can have.
pub(super) const SCHEMA: &str = "
CREATE TABLE account_numbers (
    account INTEGER PRIMARY KEY AUTOINCREMENT, person TEXT UNIQUE, last_slot INTEGER NOT NULL,
    unexpired INTEGER NOT NULL DEFAULT 0, paced INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE session_slots (
    session BLOB PRIMARY KEY, account INTEGER NOT NULL, owner TEXT NOT NULL, slot INTEGER, ended INTEGER, until INTEGER,
    told INTEGER, unnamed INTEGER NOT NULL DEFAULT 0, unexpired INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX slots_in_use ON session_slots (account, slot) WHERE slot IS NOT NULL;
CREATE INDEX ended_sessions ON session_slots (until) WHERE until IS NOT NULL;
CREATE INDEX ends_to_tell ON session_slots (session) WHERE told = 0;
CREATE TABLE session_verifiers (
    session BLOB NOT NULL, verifier TEXT NOT NULL, until INTEGER NOT NULL,
    lease INTEGER NOT NULL DEFAULT 86400, PRIMARY KEY (session, verifier)
) STRICT, WITHOUT ROWID;
CREATE TABLE unexpired_grants (
    account INTEGER NOT NULL, expires INTEGER NOT NULL, session BLOB NOT NULL, grants INTEGER NOT NULL,
    PRIMARY KEY (account, expires, session)
) STRICT, WITHOUT ROWID;
";

/// The latest expiry, in SQL, of the leases that are still valid after a session's end. `of` is a row of
/// `session_verifiers`.
const LAST_LEASE: &str = concat!("max(min(of.until, ended + of.lease + ", learned_within!(), "), ended)");

/// The result of recording a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The grant is recorded, and ends with its first lease.
    Done,
    /// The grant is recorded, and can be renewed.
    Renewable,
    /// The session has ended. The grant is not recorded or, if the client has it already, is recorded as revoked.
    SessionEnded,
    /// The basis of the decision has ended meanwhile: the caller must decide again. The grant's number is unused.
    Outdated,
    /// Another grant has the number: the caller must take another number, and decide again.
    NumberTaken,
    /// The session or the account has reached its limit on unexpired grants.
    TooMany {
        /// Number of seconds until a grant of the account expires, so that there is room for another.
        seconds: u64,
    },
}

/// The result of counting a grant against the limits of its session and of its account.
pub struct Charged {
    /// The result of recording the grant.
    pub recorded: Recorded,
    /// How many more renewable grants of the session can be recorded now, if the account records no other grants.
    pub room: u32,
}

impl From<Recorded> for Charged {
    fn from(recorded: Recorded) -> Self {
        Self { recorded, room: 0 }
    }
}

/// The result of requesting a slot for a session.
pub(super) enum Slot {
    /// The session has a slot.
    Given(Holder),
    /// All slots are in use.
    NoneFree {
        /// Number of seconds until a slot is free.
        seconds: u64,
    },
}

impl Database {
    /// Returns the ended sessions that this authority has not announced, and removes them from the queue of
    /// announcements. The result contains each session once for every verifier for which the session had grants.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn take_ended_sessions(&mut self) -> Result<Vec<(String, RevokedSession)>> {
        let waiting = "SELECT EXISTS (SELECT 1 FROM untold)";
        if !self.connection.query_row(waiting, [], |row| row.get::<_, bool>(0))? {
            return Ok(Vec::new());
        }
        self.write_local(|transaction| {
            let mut ended = transaction.prepare_cached(&format!(
                "SELECT verifier, account, slot, {LAST_LEASE} + ?1 FROM untold
                 CROSS JOIN session_slots USING (session) CROSS JOIN session_verifiers AS of USING (session)",
            ))?;
            let ended = ended.query_map([CLOCK_SKEW_MAX], |row| {
                let Holder(holder) = of(row.get(1)?, row.get(2)?);
                Ok((row.get(0)?, RevokedSession { holder, expires: row.get(3)? }))
            })?;
            let ended = ended.collect::<Result<_, _>>()?;
            transaction.execute("DELETE FROM untold", [])?;
            Ok(ended)
        })
    }

    /// Returns each ended session that had a grant for `verifier` with a time of expiry after `now`.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn revoked_sessions(&self, verifier: &str, now: u64) -> Result<Vec<RevokedSession>> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT account, slot, {LAST_LEASE} + ?3 FROM session_slots AS ends
             JOIN session_verifiers AS of USING (session)
             WHERE ends.until > ?2 AND slot IS NOT NULL AND of.verifier = ?1 AND {LAST_LEASE} + ?3 > ?2",
        ))?;
        let rows = statement.query_map(params![verifier, now.cast_signed(), CLOCK_SKEW_MAX], |row| {
            let Holder(holder) = of(row.get(0)?, row.get(1)?);
            Ok(RevokedSession { holder, expires: row.get(2)? })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

/// Assigns the next free slot of the person's account to a new session.
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
            format!(
                "{person} has {SLOTS} live sessions, the maximum: end some with `vouchsafe authority revoke --device`"
            )
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

/// A grant that is to be counted.
pub(super) struct Charge<'a> {
    pub session: &'a TokenHash,
    pub verifier: &'a str,
    /// The end of the grant's first lease, in Unix seconds.
    pub expires: u64,
    /// The end of the grant's last lease, in Unix seconds, if the grant can be renewed.
    pub until: Option<u64>,
    pub now: u64,
    /// Whether the client has the grant already. Then the grant counts even if a limit is reached.
    pub is_issued: bool,
}

/// Counts a new grant of a session, unless the session has ended or a limit is reached. The duration does not depend on
/// the number of the account's earlier grants.
pub(super) fn charge(transaction: &Transaction<'_>, grant: &Charge<'_>) -> Result<Charged> {
    let Charge { session, verifier, expires, until, now, is_issued } = *grant;
    let mut find =
        transaction.prepare_cached("SELECT account FROM session_slots WHERE session = ?1 AND ended IS NULL")?;
    let Some(account) = find.query_row([session], |row| row.get::<_, u32>(0)).optional()? else {
        return Ok(Recorded::SessionEnded.into());
    };
    take_off_ended(transaction, account, now)?;
    let mut counts = transaction.prepare_cached(
        "SELECT account_numbers.unexpired, session_slots.unexpired, paced FROM session_slots
         JOIN account_numbers USING (account) WHERE session = ?1",
    )?;
    let (of_account, of_session, paced): (u32, u32, i64) =
        counts.query_row([session], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    if (of_account >= MOST_OF_ACCOUNT || of_session >= MOST_OF_SESSION) && !is_issued {
        let mut first = transaction.prepare_cached("SELECT min(expires) FROM unexpired_grants WHERE account = ?1")?;
        let first: Option<i64> = first.query_row([account], |row| row.get(0))?;
        let seconds = first.map_or(0, |first| first.cast_unsigned().saturating_sub(now));
        return Ok(Recorded::TooMany { seconds }.into());
    }
    let paced = paced.cast_unsigned().max(now) + 1;
    if let Some(seconds) = paced.checked_sub(now + RECORDS_AT_ONCE).filter(|seconds| *seconds > 0 && !is_issued) {
        return Ok(Recorded::TooMany { seconds }.into());
    }
    let pace = "UPDATE account_numbers SET paced = ?2 WHERE account = ?1";
    transaction.prepare_cached(pace)?.execute(params![account, paced.cast_signed()])?;
    let has_room = of_account < RENEWABLE_OF_ACCOUNT && of_session < RENEWABLE_OF_SESSION;
    let (recorded, ends) = match until.filter(|_| has_room) {
        Some(until) => (Recorded::Renewable, until),
        None => (Recorded::Done, expires),
    };
    let mut add = transaction.prepare_cached(
        "INSERT INTO unexpired_grants (account, expires, session, grants) VALUES (?1, ?2, ?3, 1)
         ON CONFLICT DO UPDATE SET grants = grants + 1",
    )?;
    add.execute(params![account, ends.cast_signed(), session])?;
    change_counts(transaction, account, session, 1)?;
    let mut note = transaction.prepare_cached(
        "INSERT INTO session_verifiers (session, verifier, until, lease) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT DO UPDATE SET until = max(until, excluded.until), lease = max(lease, excluded.lease)
         WHERE excluded.until > until OR excluded.lease > lease",
    )?;
    note.execute(params![session, verifier, ends.cast_signed(), expires.saturating_sub(now).cast_signed()])?;
    let left =
        [RENEWABLE_OF_ACCOUNT.saturating_sub(of_account + 1), RENEWABLE_OF_SESSION.saturating_sub(of_session + 1)];
    let of_rate = u32::try_from((now + RECORDS_AT_ONCE).saturating_sub(paced)).unwrap_or(u32::MAX);
    Ok(Charged { recorded, room: left.into_iter().fold(of_rate, u32::min) })
}

/// Subtracts expired grants from the counts of an account and its sessions, each grant once.
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

/// Records the end of a session, which also ends its grants. This changes only a few rows, however many grants there
/// are. If the session had no grants, its slot is free at once.
pub(super) fn end(transaction: &Transaction<'_>, session: &TokenHash, now: u64) -> Result<()> {
    let mut note = transaction.prepare_cached(concat!(
        "UPDATE session_slots SET ended = ?2, (until, told) = (
            SELECT coalesce(max(max(min(of.until, ?2 + of.lease + ",
        learned_within!(),
        ")), ?2) + ?3, 0), CASE WHEN count(*) > 0 THEN 0 END
            FROM session_verifiers AS of WHERE of.session = session_slots.session)
         WHERE session = ?1 AND ended IS NULL RETURNING account, until, unnamed, owner",
    ))?;
    let ended = note.query_row(params![session, now.cast_signed(), CLOCK_SKEW_MAX], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    });
    let Some((account, until, unnamed, owner)) = ended.optional()? else { return Ok(()) };
    shorten_counts(transaction, account, session, until)?;
    if unnamed { revocation::revoke_unnamed(transaction, session, owner, now) } else { Ok(()) }
}

/// Makes the grants of an ended session count until `until` at most: none of them can be renewed any more.
fn shorten_counts(transaction: &Transaction<'_>, account: u32, session: &TokenHash, until: i64) -> Result<()> {
    let mut later = transaction.prepare_cached(
        "DELETE FROM unexpired_grants WHERE account = ?1 AND expires > ?2 AND session = ?3 RETURNING grants",
    )?;
    let later = later.query_map(params![account, until, session], |row| row.get::<_, i64>(0))?;
    let grants = later.sum::<rusqlite::Result<i64>>()?;
    if grants > 0 {
        let mut add = transaction.prepare_cached(
            "INSERT INTO unexpired_grants (account, expires, session, grants) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT DO UPDATE SET grants = grants + excluded.grants",
        )?;
        add.execute(params![account, until, session, grants])?;
    }
    Ok(())
}

/// Gives the account number of the person `before` to the name `now`.
pub(super) fn rename(transaction: &Transaction<'_>, before: &str, now: &str) -> Result<()> {
    forget(transaction, now)?;
    transaction.execute("UPDATE account_numbers SET person = ?2 WHERE person = ?1", [before, now])?;
    Ok(())
}

/// Detaches an account number from its name, so that a later account of that name gets a new number.
pub(super) fn forget(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    transaction.execute("UPDATE account_numbers SET person = NULL WHERE person = ?1", [person])?;
    Ok(())
}

/// Deletes the rows of ended sessions whose grants are no longer recorded, because all of them would have ended by
/// `before`, in Unix seconds. (A recorded grant counts as live if the row of its session is missing.) Deletes at most
/// [`PIECE`] rows, and reports whether there are possibly more.
pub(super) fn prune(transaction: &Transaction<'_>, before: i64) -> Result<bool> {
    let mut over = transaction.prepare_cached(
        "DELETE FROM session_slots WHERE session IN (
            SELECT session FROM session_slots AS slots WHERE until <= ?1 AND NOT EXISTS (
                SELECT 1 FROM session_verifiers AS of WHERE of.session = slots.session AND of.until > ?1) LIMIT ?2)
         RETURNING session",
    )?;
    let over = over.query_map(params![before, PIECE], |row| row.get(0))?.collect::<Result<Vec<TokenHash>, _>>()?;
    let mut forget = transaction.prepare_cached("DELETE FROM session_verifiers WHERE session = ?1")?;
    over.iter().try_for_each(|session| forget.execute([session]).map(drop))?;
    Ok(over.len() == PIECE as usize)
}

/// Returns the holder with this account number and slot, or the default holder if either is NULL.
pub(super) fn of(account: Option<u32>, slot: Option<u8>) -> Holder {
    account.zip(slot).and_then(|(account, slot)| Holder::new(account, slot)).unwrap_or_default()
}

/// Returns the number of a person's account and the slot that was assigned last. An account gets its number with its
/// first session.
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
