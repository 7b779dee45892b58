//! The score of each person: 100 without complaints. A complaint of an application takes points off, and half of what is
//! missing comes back in each half-life. While a person's score is below the bound, the tag [`LOW_SCORE`] applies to all
//! of the person's devices.
//!
//! Complaints are counted by the hour, so that one application can't lower the scores of many people at once.

use super::{AuditEvent, Database, Operator, leases};
use anyhow::Result;
use rusqlite::{OptionalExtension, Transaction, params};
use serde::Serialize;

/// The tag of people whose score is below the bound. Administrators can't give it to a device.
pub const LOW_SCORE: &str = "low-score";

/// The score of a person without complaints.
const FULL: f64 = 100.0;
const HOUR: u64 = 3600;
/// Maximum number of points that one application takes off one person's score in an hour.
const MOST_ABOUT_ONE: u32 = 60;
/// How many applications of one verifier together reach the limit of the verifier.
const SHARES_OF_VERIFIER: u32 = 4;
/// A score with fewer missing points than this is forgotten.
const FORGOTTEN: f64 = 0.5;

/// `missing` is the number of points below 100 at the time `at`. `low` is 1 while the score is below the bound.
pub(super) const SCHEMA: &str = "
CREATE TABLE scores (
    person TEXT PRIMARY KEY, missing REAL NOT NULL, at INTEGER NOT NULL, low INTEGER NOT NULL
) STRICT;
CREATE INDEX low_scores ON scores (person) WHERE low = 1;
CREATE TABLE complaints (
    hour INTEGER NOT NULL, verifier TEXT NOT NULL, application TEXT NOT NULL, person TEXT NOT NULL,
    points INTEGER NOT NULL, PRIMARY KEY (hour, verifier, application, person)
) STRICT, WITHOUT ROWID;
";

/// From format 13 on. The table has one row: how many times a score has become low or ceased to be low, and how many of
/// these changes the grants have been evaluated after.
pub(super) const CHANGES: &str = "
CREATE TABLE score_changes (made INTEGER NOT NULL, evaluated INTEGER NOT NULL) STRICT;
INSERT INTO score_changes (made, evaluated) VALUES (0, 0);
";

/// How scores change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreTerms {
    /// Number of seconds in which half of the missing points come back.
    pub half_life: u32,
    /// The bound: a score below it is low.
    pub low: u32,
    /// Maximum number of points that one application takes off in an hour, all people together.
    pub per_application: u32,
}

impl ScoreTerms {
    /// Returns how many of the missing points are left after some time.
    fn left(&self, missing: f64, since: u64, now: u64) -> f64 {
        let lives = now.saturating_sub(since) as f64 / f64::from(self.half_life);
        missing * (-lives).exp2()
    }

    fn is_low(&self, missing: f64) -> bool {
        FULL - missing < f64::from(self.low)
    }
}

/// A complaint of an application about the person behind a connection.
#[derive(Clone, Debug)]
pub struct NewComplaint {
    /// The verifier that admitted the connection.
    pub verifier: String,
    /// The application that complains.
    pub application: String,
    /// Handle of the grant that admitted the connection.
    pub handle: wire::Handle,
    /// The person's conduct.
    pub about: &'static str,
    /// The number of points to take off.
    pub points: u32,
}

/// The result of a complaint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complained {
    /// The points are taken off.
    Done {
        /// The person's score.
        score: u32,
        /// Whether the score has fallen below the bound with this complaint.
        fell: bool,
    },
    /// The verifier has no such grant.
    NoGrant,
    /// The application, or its verifier, has taken off as many points in this hour as it may.
    TooMany {
        /// Number of seconds until the next hour.
        seconds: u64,
    },
}

/// An entry of the list of scores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScoreEntry {
    /// The person.
    pub person: String,
    /// The score, from 0 to 100.
    pub score: u32,
    /// Whether the score is below the bound, so that the tag applies.
    pub low: bool,
}

/// A stored score.
struct Stored {
    missing: f64,
    at: u64,
    low: bool,
}

/// The person behind a grant.
struct Accused {
    person: String,
    device: String,
    receiver: String,
}

/// Finds the person behind a grant of this verifier by the number of the account, because the person's name may have
/// changed, and another person may have it now. Returns `None` if the person no longer exists.
fn accused(transaction: &Transaction<'_>, verifier: &str, handle: wire::Handle) -> Result<Option<Accused>> {
    let mut find = transaction.prepare_cached(
        "SELECT account_numbers.person, device, receiver FROM grants JOIN session_slots USING (session)
         JOIN account_numbers USING (account) WHERE handle = ?1 AND verifier = ?2 AND account_numbers.person IS NOT NULL",
    )?;
    let first = leases::first(transaction, handle)?;
    let found = find.query_row(params![first.0.cast_signed(), verifier], |row| {
        Ok(Accused { person: row.get(0)?, device: row.get(1)?, receiver: row.get(2)? })
    });
    Ok(found.optional()?)
}

fn score(missing: f64) -> u32 {
    (FULL - missing).clamp(0.0, FULL).floor() as u32
}

impl Database {
    /// Takes points off the score of the person behind a grant. Refuses a complaint that would exceed a limit.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn complain(&mut self, complaint: &NewComplaint, terms: ScoreTerms, now: u64) -> Result<Complained> {
        let NewComplaint { verifier, application, handle, about, points } = complaint;
        self.write(|transaction| {
            let Some(accused) = accused(transaction, verifier, *handle)? else { return Ok(Complained::NoGrant) };
            let used = |application: Option<&str>, person: Option<&str>| -> Result<u32> {
                let sum = "SELECT coalesce(sum(points), 0) FROM complaints
                    WHERE hour = ?1 AND verifier = ?2 AND (?3 IS NULL OR application = ?3) AND (?4 IS NULL OR person = ?4)";
                let hour = (now / HOUR).cast_signed();
                let mut sum = transaction.prepare_cached(sum)?;
                Ok(sum.query_row(params![hour, verifier, application, person], |row| row.get(0))?)
            };
            let person = accused.person.as_str();
            let exceeds = |used: u32, most: u32| used.saturating_add(*points) > most;
            if exceeds(used(Some(application), Some(person))?, MOST_ABOUT_ONE)
                || exceeds(used(Some(application), None)?, terms.per_application)
                || exceeds(used(None, None)?, terms.per_application.saturating_mul(SHARES_OF_VERIFIER))
            {
                return Ok(Complained::TooMany { seconds: HOUR - now % HOUR });
            }
            let count = "INSERT INTO complaints (hour, verifier, application, person, points) VALUES (?1, ?2, ?3, ?4, ?5)
                ON CONFLICT DO UPDATE SET points = points + excluded.points";
            let hour = (now / HOUR).cast_signed();
            transaction.prepare_cached(count)?.execute(params![hour, verifier, application, person, points])?;
            let before = stored(transaction, person)?;
            let left = before.as_ref().map_or(0.0, |before| terms.left(before.missing, before.at, now));
            let missing = (left + f64::from(*points)).min(FULL);
            let (was_low, low) = (before.is_some_and(|before| before.low), terms.is_low(missing));
            store(transaction, person, &Stored { missing, at: now, low })?;
            let detail = format!("{about}, {points} points, by {application} at {verifier}: score {}", score(missing));
            let event = AuditEvent::new("complaint").person(person).device(&accused.device).receiver(&accused.receiver);
            event.detail(detail).write(transaction, now)?;
            if low && !was_low {
                let event = AuditEvent::new("score_low").person(person);
                event.detail(format!("below {}: tag:{LOW_SCORE} applies", terms.low)).write(transaction, now)?;
                note_change(transaction)?;
            }
            Ok(Complained::Done { score: score(missing), fell: low && !was_low })
        })
    }

    /// Ends the low scores that have recovered to the bound. With `all`, also finds those that are below it because the
    /// bound has changed, and forgets those that have recovered altogether. Without terms, no score is low.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn settle_scores(&mut self, terms: Option<ScoreTerms>, all: bool, now: u64) -> Result<()> {
        let mut statement =
            self.connection.prepare_cached("SELECT person, missing, at, low FROM scores WHERE low = 1 OR ?1")?;
        let rows = statement.query_map([all], |row| Ok((row.get::<_, String>(0)?, read(row)?)))?;
        let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
        drop(statement);
        let is_low =
            |stored: &Stored| terms.is_some_and(|terms| terms.is_low(terms.left(stored.missing, stored.at, now)));
        let has_recovered =
            |stored: &Stored| terms.is_some_and(|terms| terms.left(stored.missing, stored.at, now) < FORGOTTEN);
        let recovered: Vec<_> = rows.iter().filter(|(_, stored)| !stored.low && has_recovered(stored)).collect();
        if !recovered.is_empty() {
            self.write(|transaction| recovered.iter().try_for_each(|(person, _)| forget(transaction, person)))?;
        }
        let changed: Vec<_> = rows.iter().filter(|(_, stored)| is_low(stored) != stored.low).collect();
        if changed.is_empty() {
            return Ok(());
        }
        self.write(|transaction| {
            for (person, stored) in changed {
                let low = !stored.low;
                store(transaction, person, &Stored { low, ..*stored })?;
                let event = AuditEvent::new(if low { "score_low" } else { "score_recovered" });
                event.person(person).write(transaction, now)?;
            }
            note_change(transaction)
        })
    }

    /// Returns the number of changes made to low scores if the grants have not been evaluated after the last of them.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn unevaluated_changes(&self) -> Result<Option<i64>> {
        let mut made = self.connection.prepare_cached("SELECT made FROM score_changes WHERE made > evaluated")?;
        Ok(made.query_row([], |row| row.get(0)).optional()?)
    }

    /// Records that the grants were evaluated after this number of changes.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn note_evaluated_changes(&mut self, made: i64) -> Result<()> {
        self.write(|transaction| {
            transaction.execute("UPDATE score_changes SET evaluated = max(evaluated, ?1)", [made])?;
            Ok(())
        })
    }

    /// Forgets all complaints about a person. Returns whether there were any.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn reset_score(&mut self, person: &str, by: &Operator, now: u64) -> Result<bool> {
        self.write(|transaction| {
            if stored(transaction, person)?.is_none() {
                return Ok(false);
            }
            forget(transaction, person)?;
            AuditEvent::new("score_reset").person(person).by(by).write(transaction, now)?;
            Ok(true)
        })
    }

    /// Returns the scores below 100, lowest first.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn scores(&self, terms: ScoreTerms, now: u64) -> Result<Vec<ScoreEntry>> {
        let mut statement = self.connection.prepare_cached("SELECT person, missing, at, low FROM scores")?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, read(row)?)))?;
        let mut all = Vec::new();
        for row in rows {
            let (person, Stored { missing, at, low }) = row?;
            all.push(ScoreEntry { person, score: score(terms.left(missing, at, now)), low });
        }
        all.sort_by(|one, other| (one.score, &one.person).cmp(&(other.score, &other.person)));
        Ok(all)
    }
}

/// Reads the columns `missing`, `at` and `low` behind a person's name.
fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Stored> {
    Ok(Stored { missing: row.get(1)?, at: row.get::<_, i64>(2)?.cast_unsigned(), low: row.get(3)? })
}

fn stored(transaction: &Transaction<'_>, person: &str) -> Result<Option<Stored>> {
    let mut statement = transaction.prepare_cached("SELECT person, missing, at, low FROM scores WHERE person = ?1")?;
    Ok(statement.query_row([person], read).optional()?)
}

fn store(transaction: &Transaction<'_>, person: &str, score: &Stored) -> Result<()> {
    let Stored { missing, at, low } = score;
    let store = "INSERT OR REPLACE INTO scores (person, missing, at, low) VALUES (?1, ?2, ?3, ?4)";
    transaction.prepare_cached(store)?.execute(params![person, missing, at.cast_signed(), low])?;
    Ok(())
}

/// Records that the grants must be evaluated again.
fn note_change(transaction: &Transaction<'_>) -> Result<()> {
    transaction.prepare_cached("UPDATE score_changes SET made = made + 1")?.execute([])?;
    Ok(())
}

/// Deletes a person's score. The complaints of this hour still count against the limits of their applications.
pub(super) fn forget(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    transaction.execute("DELETE FROM scores WHERE person = ?1", [person])?;
    Ok(())
}

/// Gives the score of the person `before`, and the counts of complaints about this person, to the name `now`.
pub(super) fn rename(transaction: &Transaction<'_>, before: &str, now: &str) -> Result<()> {
    transaction.execute("UPDATE OR REPLACE scores SET person = ?2 WHERE person = ?1", [before, now])?;
    // An earlier person of the new name may have been complained about in this hour.
    transaction.execute(
        "INSERT INTO complaints (hour, verifier, application, person, points)
         SELECT hour, verifier, application, ?2, points FROM complaints WHERE person = ?1
         ON CONFLICT DO UPDATE SET points = points + excluded.points",
        [before, now],
    )?;
    transaction.execute("DELETE FROM complaints WHERE person = ?1", [before])?;
    Ok(())
}

/// Deletes the counts of earlier hours.
pub(super) fn prune(transaction: &Transaction<'_>, now: u64) -> Result<()> {
    transaction.execute("DELETE FROM complaints WHERE hour < ?1", [(now / HOUR).cast_signed()])?;
    Ok(())
}
