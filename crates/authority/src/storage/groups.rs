//! The groups of people that the policy does not define: those that the identity provider reports, or those of a
//! service account.

use super::names;
use anyhow::Result;
use rusqlite::{Connection, OptionalExtension};

/// Returns a person's groups, except groups that the policy defines.
pub(super) fn groups_of(connection: &Connection, person: &str) -> Result<Vec<String>> {
    let mut statement = connection.prepare_cached("SELECT groups FROM identities WHERE person = ?1")?;
    Ok(names(statement.query_row([person], |row| row.get(0)).optional()?))
}
