//! The identity of receivers. The policy knows a receiver by its name only, and a name can be given to another
//! receiver. So this module counts the *generations* of each name for which somebody has requested access. A name
//! begins a new generation when a policy comes into force in which the name is missing, or has none of the addresses
//! that it had before. A request, and the consent that answers it, belong to one generation.

use super::Database;
use anyhow::Result;
use ipnet::IpNet;
use rusqlite::{Transaction, params};

impl Database {
    /// Returns the names of the receivers to which somebody has requested access.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn access_receivers(&self) -> Result<Vec<String>> {
        let mut names = self.connection.prepare_cached("SELECT receiver FROM access_receivers")?;
        Ok(names.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?)
    }
}

/// Begins new generations of the names that a policy gives to other receivers or to no receiver. `addresses` returns
/// the addresses that a receiver of the policy has. `is_new` states that the policy comes into force now.
pub(super) fn follow(
    transaction: &Transaction<'_>,
    addresses: &dyn Fn(&str) -> Option<Vec<IpNet>>,
    is_new: bool,
) -> Result<()> {
    let known = {
        let mut known = transaction.prepare_cached("SELECT receiver, prefixes FROM access_receivers")?;
        let rows = known.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect::<Result<Vec<(String, Option<String>)>, _>>()?
    };
    let mut is_changed = false;
    for (receiver, before) in known {
        let after = addresses(&receiver);
        let is_same = match (&before, &after) {
            (Some(before), Some(after)) => have_common(&serde_json::from_str::<Vec<IpNet>>(before)?, after),
            (None, Some(_)) => !is_new,
            (_, None) => false,
        };
        let text = serde_json::to_string(&after.unwrap_or_default())?;
        if before.as_deref() == Some(text.as_str()) {
            continue;
        }
        let begin = i64::from(!is_same);
        is_changed |= !is_same;
        let update = "UPDATE access_receivers SET prefixes = ?2, generation = generation + ?3 WHERE receiver = ?1";
        transaction.prepare_cached(update)?.execute(params![receiver, text, begin])?;
    }
    if is_changed {
        note_change(transaction)?;
    }
    Ok(())
}

/// Returns the generation of a receiver to which somebody requests access. `prefixes` are the receiver's addresses in
/// the policy in force.
pub(super) fn generation(transaction: &Transaction<'_>, receiver: &str, prefixes: &[IpNet]) -> Result<i64> {
    let begin =
        "INSERT OR IGNORE INTO access_receivers (receiver, generation, settled, prefixes) VALUES (?1, 1, 1, ?2)";
    transaction.prepare_cached(begin)?.execute(params![receiver, serde_json::to_string(prefixes)?])?;
    let mut read = transaction.prepare_cached("SELECT generation FROM access_receivers WHERE receiver = ?1")?;
    Ok(read.query_row([receiver], |row| row.get(0))?)
}

/// Forgets receivers about which there is no request.
pub(super) fn prune(transaction: &Transaction<'_>) -> Result<()> {
    let unused = "DELETE FROM access_receivers WHERE receiver NOT IN (SELECT receiver FROM access_requests)";
    transaction.prepare_cached(unused)?.execute([])?;
    Ok(())
}

/// Counts a change of consents, so that each server reads them again.
pub(super) fn note_change(transaction: &Transaction<'_>) -> Result<()> {
    transaction.prepare_cached("UPDATE consent_changes SET made = made + 1")?.execute([])?;
    Ok(())
}

fn have_common(some: &[IpNet], others: &[IpNet]) -> bool {
    some.iter().any(|one| others.iter().any(|other| one.contains(other) || other.contains(one)))
}
