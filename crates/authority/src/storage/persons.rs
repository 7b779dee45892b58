//! Removal of the records under a person's name, so that a later owner of the name does not inherit them.

use super::{access, devices, preferences, scores};
use anyhow::Result;
use rusqlite::Transaction;

/// Deletes a person's devices with their tags, the person's choices, requests and consents, and the person's score.
pub(super) fn forget(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    devices::forget(transaction, person)?;
    scores::forget(transaction, person)?;
    access::forget(transaction, person)?;
    preferences::forget(transaction, person)
}
