//! Revocation of single grants. This module marks their rows, and triggers queue the announcements to verifiers. Other
//! modules decide which grants to revoke.

use super::audit::chain;
use super::{AuditEvent, TokenHash};
use anyhow::Result;
use engine::verifier::CLOCK_SKEW_MAX;
use rusqlite::types::ValueRef;
use rusqlite::{ToSql, Transaction};
use std::collections::BTreeSet;
use wire::Handle;

/// Maximum number of grants that one transaction revokes. So many revocations, with their audit entries, fit into one
/// entry of a cluster's log.
pub(super) const REVOKED_AT_ONCE: u32 = 10_000;

/// The condition in SQL for grants that were not revoked and whose session has not ended.
pub(super) const HELD: &str = "revoked IS NULL AND ended IS NULL";

/// The triggers that queue rechecks, from format 15 on. The statement that fires the triggers resolves conflicts by an
/// update, and SQLite then ignores an `OR IGNORE` in the triggers. The triggers therefore check themselves whether a
/// recheck is already queued.
pub(super) const RECHECKS: &str = "
DROP TRIGGER rechecks_begin;
DROP TRIGGER rechecks_go_on;
CREATE TRIGGER rechecks_begin AFTER INSERT ON recheck_marks
    WHEN NOT EXISTS (SELECT 1 FROM rechecks WHERE verifier = NEW.verifier)
    BEGIN INSERT INTO rechecks (verifier) VALUES (NEW.verifier); END;
CREATE TRIGGER rechecks_go_on AFTER UPDATE OF mark ON recheck_marks
    WHEN NOT EXISTS (SELECT 1 FROM rechecks WHERE verifier = NEW.verifier)
    BEGIN INSERT INTO rechecks (verifier) VALUES (NEW.verifier); END;
";

/// Revokes grants that the policy or the person's choices forbid, each with an audit entry.
pub(super) fn revoke_forbidden(
    transaction: &Transaction<'_>,
    grants: &[(Handle, String)],
    why: &str,
    now: u64,
) -> Result<()> {
    let mut events = Vec::new();
    for (handle, person) in grants {
        // Another member of the cluster may have revoked the grant meanwhile.
        if mark(transaction, "handle = ?3", now, &[&handle.0.cast_signed()])? > 0 {
            events.push(AuditEvent::new("revoked").person(person).detail(format!("{handle}: {why}")));
        }
    }
    chain::append_acts(transaction, events, now)
}

/// Revokes the grants of a session individually, because their handles don't identify the session to verifiers.
pub(super) fn revoke_unnamed(
    transaction: &Transaction<'_>,
    session: &TokenHash,
    person: String,
    now: u64,
) -> Result<()> {
    mark(transaction, "person = ?3 AND session = ?4", now, &[&person, session])?;
    Ok(())
}

/// Revokes up to [`REVOKED_AT_ONCE`] grants for a verifier, and reports whether there are possibly more.
pub(super) fn revoke_of_verifier(transaction: &Transaction<'_>, verifier: &str, now: u64) -> Result<bool> {
    let some = "handle IN (SELECT handle FROM grants WHERE verifier = ?3 AND revoked IS NULL LIMIT ?4)";
    Ok(mark(transaction, some, now, &[&verifier, &REVOKED_AT_ONCE])? == REVOKED_AT_ONCE as usize)
}

/// Queues a recheck for the verifiers for which a person's live sessions had grants. These verifiers then ask the
/// authority which of their flows to cut.
pub(super) fn recheck_of_person(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    let mut recheck = transaction.prepare_cached(
        "INSERT INTO recheck_marks (verifier, mark) SELECT DISTINCT verifier, 1 FROM account_numbers
         JOIN session_slots USING (account) JOIN session_verifiers USING (session)
         WHERE person = ?1 AND slot IS NOT NULL AND ended IS NULL
         ON CONFLICT DO UPDATE SET mark = mark + 1",
    )?;
    recheck.execute([person])?;
    Ok(())
}

/// Queues a recheck for all verifiers, after a change that concerns everybody who has some group or tag.
pub(super) fn recheck_all(transaction: &Transaction<'_>) -> Result<()> {
    let mut recheck = transaction.prepare_cached(
        "INSERT INTO recheck_marks (verifier, mark) SELECT verifier, 1 FROM verifiers WHERE true
         ON CONFLICT DO UPDATE SET mark = mark + 1",
    )?;
    recheck.execute([])?;
    Ok(())
}

/// Revokes the grants that the SQL text `condition` selects. The first placeholder in `condition` is `?3`. Also revokes
/// expired grants, because their flows may still be live. Queues unexpired grants for announcement. The announcement
/// names only handles with which a token can still be made. So, if the first lease of a grant has expired, queues a
/// recheck at the grant's verifier. Returns the number of revoked grants.
pub(super) fn mark(
    transaction: &Transaction<'_>,
    condition: &'static str,
    now: u64,
    values: &[&dyn ToSql],
) -> Result<usize> {
    let mut statement = transaction.prepare_cached(&format!(
        "UPDATE grants SET revoked = ?1, announced = CASE WHEN expires > ?2 THEN 0 END
         WHERE revoked IS NULL AND {condition}
         RETURNING announced IS NULL OR issued + lease <= ?2, verifier"
    ))?;
    let times: [&dyn ToSql; 2] = [&now.cast_signed(), &ended_by(now)];
    let values: Vec<_> = times.into_iter().chain(values.iter().copied()).collect();
    let mut rows = statement.query(values.as_slice())?;
    let (mut rechecks, mut revoked) = (BTreeSet::new(), 0);
    while let Some(row) = rows.next()? {
        revoked += 1;
        let verifier = row.get_ref(1)?.as_str()?;
        if row.get_ref(0)? == ValueRef::Integer(1) && !rechecks.contains(verifier) {
            rechecks.insert(verifier.to_owned());
        }
    }
    drop(rows);
    let mut recheck = transaction.prepare_cached(
        "INSERT INTO recheck_marks (verifier, mark) VALUES (?1, 1) ON CONFLICT DO UPDATE SET mark = mark + 1",
    )?;
    for verifier in &rechecks {
        recheck.execute([verifier])?;
    }
    Ok(revoked)
}

/// Returns the latest expiry time, in Unix seconds, of grants that have expired even for verifiers whose clocks are
/// behind.
pub(super) fn ended_by(now: u64) -> i64 {
    now.cast_signed() - i64::from(CLOCK_SKEW_MAX)
}
