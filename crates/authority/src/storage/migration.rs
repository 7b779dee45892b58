//! Converts the database of an earlier version to the current format.

use super::{SCHEMA_VERSION, access, holders, identities, leases, replica, revocation, scores};
use anyhow::{Context, Result, bail};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::path::Path;

/// The earliest format that can be converted.
const EARLIEST: i64 = 9;

/// Checks the format of the database at `path`. Converts an earlier format to the current one, completely or not at
/// all.
pub(super) fn run(connection: &mut Connection, path: &Path) -> Result<()> {
    let shown = path.display();
    if version(connection)? == SCHEMA_VERSION {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have converted the database since `version` read its format.
    let found = version(&transaction)?;
    if !(EARLIEST..=SCHEMA_VERSION).contains(&found) {
        bail!(
            "{shown} has format {found}, but this version of Vouchsafe reads formats {EARLIEST} to {SCHEMA_VERSION} \
             only: use the version that wrote it"
        );
    }
    if found < 10 {
        name_holders(&transaction).with_context(|| format!("cannot convert {shown} from format {found} to 10"))?;
    }
    if found < 11 {
        // The new column contains the demands of a grant's rule on a sealed tunnel. Earlier rules had none.
        transaction
            .execute_batch("ALTER TABLE grants ADD COLUMN sealing TEXT")
            .with_context(|| format!("cannot convert {shown} from format {found} to 11"))?;
    }
    if found < 12 {
        count_leases(&transaction, found)
            .and_then(|()| link_devices(&transaction))
            .and_then(|()| Ok(transaction.execute_batch(scores::SCHEMA)?))
            .with_context(|| format!("cannot convert {shown} from format {found} to 12"))?;
    }
    if found < 13 {
        transaction
            .execute_batch(scores::CHANGES)
            .with_context(|| format!("cannot convert {shown} from format {found} to 13"))?;
    }
    if found < 14 {
        // Announcements that are pending go to the new queues.
        transaction
            .execute_batch(replica::SCHEMA)
            .with_context(|| format!("cannot convert {shown} from format {found} to 14"))?;
    }
    if found < 15 {
        transaction
            .execute_batch(revocation::RECHECKS)
            .and_then(|()| transaction.execute_batch(access::SCHEMA))
            .with_context(|| format!("cannot convert {shown} from format {found} to 15"))?;
    }
    if found < 16 {
        transaction
            .execute_batch(access::FORMAT_16)
            .with_context(|| format!("cannot convert {shown} from format {found} to 16"))?;
    }
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()?;
    tracing::info!(from = found, to = SCHEMA_VERSION, "converted the database to a new format");
    Ok(())
}

fn version(connection: &Connection) -> Result<i64> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

/// Converts to format 10, in which accounts have numbers, sessions have slots, and a grant ends with its session,
/// however the session ends. The handles of earlier grants contain no holder.
fn name_holders(transaction: &Transaction<'_>) -> Result<()> {
    transaction.execute_batch(holders::SCHEMA)?;
    transaction.execute_batch(
        "INSERT INTO account_numbers (person, last_slot)
            SELECT person, count(*) - 1 FROM sessions WHERE ends IS NULL GROUP BY person ORDER BY person;
         INSERT INTO session_slots (session, account, owner, slot, unnamed)
            SELECT token, account, person, row_number() OVER (PARTITION BY person ORDER BY created, sessions.rowid) - 1, 1
            FROM sessions JOIN account_numbers USING (person) WHERE ends IS NULL;
         INSERT INTO session_verifiers (session, verifier, until)
            SELECT session, verifier, max(expires) FROM grants
            WHERE session IN (SELECT session FROM session_slots) GROUP BY session, verifier;
         INSERT INTO unexpired_grants (account, expires, session, grants)
            SELECT account, expires, session, count(*) FROM grants JOIN account_numbers USING (person)
            WHERE expires > unixepoch() GROUP BY account, expires, session;
         UPDATE account_numbers SET unexpired = (
            SELECT coalesce(sum(grants), 0) FROM unexpired_grants AS of WHERE of.account = account_numbers.account);
         UPDATE session_slots SET unexpired = (
            SELECT coalesce(sum(grants), 0) FROM unexpired_grants AS of
            WHERE of.account = session_slots.account AND of.session = session_slots.session);
         UPDATE grants SET revoked = unixepoch(), announced = CASE WHEN expires > unixepoch() - 30 THEN 0 END
            WHERE revoked IS NULL AND session NOT IN (SELECT token FROM sessions);
         INSERT OR IGNORE INTO rechecks (verifier) SELECT verifier FROM verifiers;",
    )?;
    Ok(())
}

/// Converts to format 12, in which a grant can be renewed without another record. Earlier grants cannot be renewed, so
/// agents request new grants.
fn count_leases(transaction: &Transaction<'_>, found: i64) -> Result<()> {
    transaction.execute_batch(
        "ALTER TABLE grants ADD COLUMN number INTEGER;
         ALTER TABLE grants ADD COLUMN lease INTEGER;",
    )?;
    // The conversion to format 10 has created these tables in their current form.
    if found >= 10 {
        transaction.execute_batch(
            "ALTER TABLE session_verifiers ADD COLUMN lease INTEGER NOT NULL DEFAULT 86400;
             ALTER TABLE account_numbers ADD COLUMN paced INTEGER NOT NULL DEFAULT 0;",
        )?;
    }
    leases::begin(transaction)
}

/// Converts to format 12, in which the session of a device that a person logged in at the console belongs to the login
/// at the provider. Format 11 did not record this. The conversion assumes that the device was logged in from the latest
/// console session that has a refresh token and the same subject and session identifier.
fn link_devices(transaction: &Transaction<'_>) -> Result<()> {
    transaction.execute_batch(
        "ALTER TABLE provider_sessions ADD COLUMN login BLOB;
         UPDATE provider_sessions SET login = token;
         UPDATE provider_sessions AS device SET login = coalesce((
            SELECT token FROM provider_sessions AS console JOIN sessions USING (token)
            WHERE ends IS NOT NULL AND refresh_token IS NOT NULL AND console.subject = device.subject
                AND console.sid IS device.sid
            ORDER BY created DESC LIMIT 1), token)
         WHERE refresh_token IS NULL AND token IN (SELECT token FROM sessions WHERE ends IS NULL);
         DROP TRIGGER provider_sessions_end;",
    )?;
    transaction.execute_batch(identities::LOGINS)?;
    Ok(())
}
