//! Requests and consents for receivers whose names were given to other receivers.

use super::entry::{AccessState, COLUMNS, entries, read};
use super::{end, withdrawn};
use crate::storage::{Database, PIECE, policies, receivers};
use anyhow::Result;
use ipnet::IpNet;
use rusqlite::OptionalExtension;
use std::collections::HashMap;

impl Database {
    /// Records the addresses of the receivers whose addresses were not known when the database was converted.
    /// `addresses` must contain the addresses of the receivers in this `version` of the policy. If another version is
    /// in force, nothing changes.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written.
    pub fn note_receivers(&mut self, version: i64, addresses: &HashMap<String, Vec<IpNet>>) -> Result<()> {
        let unknown = "SELECT 1 FROM access_receivers WHERE prefixes IS NULL";
        if !self.connection.prepare_cached(unknown)?.exists([])? {
            return Ok(());
        }
        self.write(|transaction| {
            if policies::version(transaction)? == version {
                receivers::follow(transaction, &|name| addresses.get(name).cloned(), false)?;
            }
            Ok(())
        })
    }

    /// Ends up to 500 requests or consents for a receiver whose name now means another receiver, or none. Reports
    /// whether there are possibly more.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written.
    pub fn end_outdated_access(&mut self, now: u64) -> Result<bool> {
        let unsettled = "SELECT receiver FROM access_receivers WHERE settled < generation LIMIT 1";
        let found = self.connection.prepare_cached(unsettled)?.query_row([], |row| row.get(0)).optional()?;
        let Some(receiver): Option<String> = found else { return Ok(false) };
        self.write(|transaction| {
            for which in ["state = 'open'", "allowed = 1"] {
                let sql = format!(
                    "SELECT {COLUMNS} FROM access_requests WHERE {which} AND receiver = ?1 AND generation <> (
                        SELECT of.generation FROM access_receivers AS of WHERE of.receiver = ?1) LIMIT {PIECE}"
                );
                let outdated = entries(transaction.prepare_cached(&sql)?.query_map([&receiver], read)?)?;
                for entry in &outdated {
                    end(transaction, entry, AccessState::Withdrawn, None, now)?;
                    let detail = format!("{}: the name now means another receiver, or none", entry.id);
                    withdrawn(entry).detail(detail).write(transaction, now)?;
                }
                if !outdated.is_empty() {
                    return Ok(true);
                }
            }
            let settle = "UPDATE access_receivers SET settled = generation WHERE receiver = ?1";
            transaction.execute(settle, [&receiver])?;
            Ok(true)
        })
    }
}
