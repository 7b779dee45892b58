//! Removal of a person's records that are stored by name, so that the next owner of the name does not inherit them.

use super::{devices, preferences};
use anyhow::Result;
use rusqlite::Transaction;

/// Deletes a person's devices with their tags, and the person's choices.
pub(super) fn forget(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    devices::forget(transaction, person)?;
    preferences::forget(transaction, person)
}
