//! Revocation of single grants, below everything that decides which: the rows are marked, and the announcements to
//! verifiers are queued.

use super::{AuditEvent, TokenHash};
use anyhow::Result;
use engine::verifier::CLOCK_SKEW_MAX;
use rusqlite::types::ValueRef;
use rusqlite::{ToSql, Transaction};
use std::collections::BTreeSet;
use wire::Handle;

/// Condition for grants that neither were revoked nor ended with their session.
pub(super) const HELD: &str = "revoked IS NULL AND ended IS NULL";

/// Revokes grants that the policy or the person does not permit, each with an audit entry.
pub(super) fn revoke_forbidden(
    transaction: &Transaction<'_>,
    grants: &[(Handle, String)],
    why: &str,
    now: u64,
) -> Result<()> {
    for (handle, person) in grants {
        mark(transaction, "handle = ?3", now, &[&handle.0.cast_signed()])?;
        let event = AuditEvent::new("revoked").person(person);
        event.detail(format!("{handle}: {why}")).write(transaction, now)?;
    }
    Ok(())
}

/// Revokes the grants of a session individually, because their handles don't identify the session to verifiers.
pub(super) fn revoke_unnamed(
    transaction: &Transaction<'_>,
    session: &TokenHash,
    person: String,
    now: u64,
) -> Result<()> {
    mark(transaction, "person = ?3 AND session = ?4", now, &[&person, session])
}

/// Revokes the grants for a verifier.
pub(super) fn revoke_of_verifier(transaction: &Transaction<'_>, verifier: &str, now: u64) -> Result<()> {
    mark(transaction, "verifier = ?3", now, &[&verifier])
}

/// Makes the verifiers for which a person's live sessions had grants recheck their flows.
pub(super) fn recheck_of_person(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    let mut recheck = transaction.prepare_cached(
        "INSERT OR IGNORE INTO rechecks (verifier) SELECT verifier FROM account_numbers
         JOIN session_slots USING (account) JOIN session_verifiers USING (session)
         WHERE person = ?1 AND slot IS NOT NULL AND ended IS NULL",
    )?;
    recheck.execute([person])?;
    Ok(())
}

/// Revokes the grants that `condition` selects (constant text, values from `?3` on), including expired ones, whose
/// flows may be live. Unexpired grants are queued for announcement; for the others, the verifiers are queued for a
/// recheck of their flows.
pub(super) fn mark(
    transaction: &Transaction<'_>,
    condition: &'static str,
    now: u64,
    values: &[&dyn ToSql],
) -> Result<()> {
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

/// Returns the expiry time up to which a grant has expired for verifiers too, whose clocks may be behind.
pub(super) fn ended_by(now: u64) -> i64 {
    now.cast_signed() - i64::from(CLOCK_SKEW_MAX)
}
