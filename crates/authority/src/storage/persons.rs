//! Removal of the records that are stored under a person's name, so that the next owner of the name does not inherit
//! them.

use super::{devices, preferences, scores};
use anyhow::Result;
use rusqlite::Transaction;

/// Deletes a person's devices with their tags, the person's choices, and the person's score.
pub(super) fn forget(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    devices::forget(transaction, person)?;
    scores::forget(transaction, person)?;
    preferences::forget(transaction, person)
}
