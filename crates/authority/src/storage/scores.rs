//! The score of each person: 100 without complaints. A complaint of an application lowers the score, and half of the
//! missing points come back in each half-life. While a person's score is below the bound, the tag [`LOW_SCORE`] applies
//! to all of the person's devices.
//!
//! Complaints are counted by the hour, so that one application can't lower the scores of many people at once.

use super::{AuditEvent, Database, Operator, PIECE, leases};
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
/// The limit of a verifier, as a multiple of the limit of one application.
const SHARES_OF_VERIFIER: u32 = 4;
/// A score with fewer missing points than this is forgotten.
const FORGOTTEN: f64 = 0.5;

/// Selects the scores that are due. [`EACH`] selects all scores.
const DUE: &str = "SELECT person, missing, at, low FROM scores WHERE due <= ?1";
const EACH: &str = "SELECT person, missing, at, low FROM scores WHERE ?1 > 0";

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

/// Additions of format 13. `due` is the time at which a low score recovers to the bound, or at which a score that is
/// not low is forgotten. The table `score_changes` has one row with two counters. The first counts how many times a
/// score has become low or ceased to be low. The second is the value of the first at the last evaluation of the grants.
pub(super) const CHANGES: &str = "
ALTER TABLE scores ADD COLUMN due INTEGER NOT NULL DEFAULT 0;
DROP INDEX low_scores;
CREATE INDEX scores_due ON scores (due);
CREATE TABLE score_changes (made INTEGER NOT NULL, evaluated INTEGER NOT NULL) STRICT;
INSERT INTO score_changes (made, evaluated) VALUES (0, 0);
";

/// The terms by which scores change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreTerms {
    /// Number of seconds in which half of the missing points come back.
    pub half_life: u32,
    /// The bound: a score below it is low.
    pub low: u32,
    /// Maximum number of points by which one application lowers the scores of all people together in an hour.
    pub per_application: u32,
}

impl ScoreTerms {
    /// Returns how many points are still missing at `now`, if `missing` points were missing at `since`.
    fn left(&self, missing: f64, since: u64, now: u64) -> f64 {
        let lives = now.saturating_sub(since) as f64 / f64::from(self.half_life);
        missing * (-lives).exp2()
    }

    /// Reports whether a score is below the bound. A score with fewer than [`FORGOTTEN`] missing points is never low,
    /// because otherwise nobody would reach a bound of 100 again.
    fn is_low(&self, missing: f64) -> bool {
        missing >= FORGOTTEN && FULL - missing < f64::from(self.low)
    }

    /// Returns the time at which a score next changes by itself: a low score then recovers to the bound, and any other
    /// score is then forgotten.
    fn due(&self, Stored { missing, at, low }: &Stored) -> u64 {
        let to = if *low { (FULL - f64::from(self.low)).max(FORGOTTEN) } else { FORGOTTEN };
        let lives = (missing / to).log2().max(0.0);
        // The conversion of a number that is too large gives the largest number.
        at.saturating_add((lives * f64::from(self.half_life)).ceil() as u64)
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
    /// The conduct about which the application complains.
    pub about: &'static str,
    /// Number of points by which the complaint lowers the score.
    pub points: u32,
}

/// The result of a complaint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complained {
    /// The complaint has lowered the score.
    Done {
        /// The person's score.
        score: u32,
        /// Whether the score has fallen below the bound with this complaint.
        fell: bool,
    },
    /// The verifier has no such grant.
    NoGrant,
    /// The application, or its verifier, has used its limit of points for this hour.
    TooMany {
        /// Number of seconds until the next hour.
        seconds: u64,
    },
}

/// An entry of the list of scores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScoreEntry {
    /// Name of the person.
    pub person: String,
    /// The score, from 0 to 100.
    pub score: u32,
    /// Whether the score is below the bound, so that the tag [`LOW_SCORE`] applies to the person's devices.
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
    /// Lowers the score of the person behind a grant. Refuses a complaint that would exceed a limit.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
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
            store(transaction, person, &Stored { missing, at: now, low }, Some(terms))?;
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

    /// Ends the low scores that have recovered to the bound, and forgets those that have recovered altogether. Reads
    /// only the scores that are due. With `all`, reads all scores, because the terms may have changed. If `terms` is
    /// `None`, no score is low.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn settle_scores(&mut self, terms: Option<ScoreTerms>, all: bool, now: u64) -> Result<()> {
        let mut statement = self.connection.prepare_cached(if all { EACH } else { DUE })?;
        let until = if all { i64::MAX } else { now.cast_signed() };
        let people = statement.query_map([until], |row| row.get(0))?;
        let mut people: Vec<String> = people.collect::<Result<_, _>>()?;
        drop(statement);
        while !people.is_empty() {
            let piece = people.split_off(people.len().saturating_sub(PIECE as usize));
            self.write(|transaction| piece.iter().try_for_each(|person| settle(transaction, person, terms, now)))?;
        }
        Ok(())
    }

    /// Returns the number of changes of low scores, if the last of these changes came after the last evaluation of the
    /// grants. Otherwise returns `None`.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn unevaluated_changes(&self) -> Result<Option<i64>> {
        let mut made = self.connection.prepare_cached("SELECT made FROM score_changes WHERE made > evaluated")?;
        Ok(made.query_row([], |row| row.get(0)).optional()?)
    }

    /// Records that the grants were evaluated after `made` changes of low scores.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn note_evaluated_changes(&mut self, made: i64) -> Result<()> {
        self.write(|transaction| {
            transaction.execute("UPDATE score_changes SET evaluated = max(evaluated, ?1)", [made])?;
            Ok(())
        })
    }

    /// Sets a person's score back to 100. Reports whether a lower score was stored. The complaints of this hour still
    /// count against the limits of their applications.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
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
    /// Fails if the database cannot be read.
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

/// Reads the columns `missing`, `at` and `low`, which follow a person's name.
fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Stored> {
    Ok(Stored { missing: row.get(1)?, at: row.get::<_, i64>(2)?.cast_unsigned(), low: row.get(3)? })
}

fn stored(transaction: &Transaction<'_>, person: &str) -> Result<Option<Stored>> {
    let mut statement = transaction.prepare_cached("SELECT person, missing, at, low FROM scores WHERE person = ?1")?;
    Ok(statement.query_row([person], read).optional()?)
}

/// Stores a score. Without terms, the score is not due until the terms change.
fn store(transaction: &Transaction<'_>, person: &str, score: &Stored, terms: Option<ScoreTerms>) -> Result<()> {
    let due = terms.map_or(i64::MAX, |terms| i64::try_from(terms.due(score)).unwrap_or(i64::MAX));
    let Stored { missing, at, low } = score;
    let store = "INSERT OR REPLACE INTO scores (person, missing, at, low, due) VALUES (?1, ?2, ?3, ?4, ?5)";
    transaction.prepare_cached(store)?.execute(params![person, missing, at.cast_signed(), low, due])?;
    Ok(())
}

/// Brings a person's stored score up to date.
fn settle(transaction: &Transaction<'_>, person: &str, terms: Option<ScoreTerms>, now: u64) -> Result<()> {
    // The score may have changed since it was found to be due.
    let Some(stored) = stored(transaction, person)? else { return Ok(()) };
    let left = terms.map(|terms| (terms, terms.left(stored.missing, stored.at, now)));
    let low = left.is_some_and(|(terms, left)| terms.is_low(left));
    if low != stored.low {
        let event = AuditEvent::new(if low { "score_low" } else { "score_recovered" });
        event.person(person).write(transaction, now)?;
        note_change(transaction)?;
    }
    if left.is_some_and(|(_, left)| left < FORGOTTEN) {
        return forget(transaction, person);
    }
    store(transaction, person, &Stored { missing: stored.missing, at: stored.at, low }, terms)?;
    // The time at which a score is due is rounded. So `store` may have set a time that is not later than `now`.
    let later = "UPDATE scores SET due = ?2 WHERE person = ?1 AND due <= ?3";
    let now = now.cast_signed();
    transaction.prepare_cached(later)?.execute(params![person, now + 1, now])?;
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

/// Moves the score of the person `before`, and the counts of complaints about this person, to the name `now`.
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

/// Deletes up to [`PIECE`] counts of earlier hours, and reports whether there are possibly more.
pub(super) fn prune(transaction: &Transaction<'_>, now: u64) -> Result<bool> {
    let piece = "DELETE FROM complaints WHERE (hour, verifier, application, person) IN (
        SELECT hour, verifier, application, person FROM complaints WHERE hour < ?1 LIMIT ?2)";
    let deleted = transaction.execute(piece, params![(now / HOUR).cast_signed(), PIECE])?;
    Ok(deleted == PIECE as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scores_that_are_due_are_found_without_reading_the_others() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection.execute_batch(SCHEMA).unwrap();
        connection.execute_batch(CHANGES).unwrap();
        let plan = format!("EXPLAIN QUERY PLAN {DUE}");
        let plan: String = connection.query_row(&plan, [1], |row| row.get(3)).unwrap();
        assert!(plan.contains("SEARCH") && plan.contains("scores_due"), "{plan}");
    }
}
