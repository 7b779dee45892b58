//! The files that members share through the database: the master keys and `networks.toml`. The policy is in the
//! database anyway.

use super::membership::TTL;
use crate::storage::Database;
use anyhow::Result;
use zeroize::Zeroizing;

/// Name of the master keys in the table `shared`.
pub const MASTER_KEYS: &str = "master.key";
/// Name of the text of `networks.toml` in the table `shared`.
pub const NETWORKS: &str = "networks.toml";
/// Name, in the table `shared`, of the time for which a member may renew a lease after the cluster has recorded its end,
/// in seconds as a decimal number. The storage reads it, too.
pub const LATE: &str = "late";

/// Seconds by which a member learns late of a change without having lost contact.
const SLACK: u32 = 30;

/// The files that members share; `None` for a file that they do not share yet.
pub struct SharedFiles {
    /// The master keys, as in `master.key`.
    pub keys: Option<Zeroizing<Vec<u8>>>,
    /// The text of `networks.toml`.
    pub networks: Option<String>,
}

/// Reads the files that members share.
///
/// # Errors
/// The database cannot be read, or a text is not UTF-8.
pub fn read(database: &Database) -> Result<SharedFiles> {
    let keys = database.shared(MASTER_KEYS)?.map(Zeroizing::new);
    let networks = database.shared(NETWORKS)?.map(String::from_utf8).transpose()?;
    Ok(SharedFiles { keys, networks })
}

/// Returns the time for which a member may renew leases without contact, in seconds, so that the other members still
/// remember what ended.
///
/// # Errors
/// The database cannot be read.
pub fn most_grace(database: &Database) -> Result<u32> {
    Ok(late(database)?.saturating_sub(SLACK + TTL))
}

/// Returns the time for which a member may renew a lease after the cluster has recorded its end, in seconds; 0 for an
/// authority alone.
///
/// # Errors
/// The database cannot be read.
pub fn late(database: &Database) -> Result<u32> {
    let text = database.shared(LATE)?.and_then(|text| String::from_utf8(text).ok());
    Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Makes all members remember what ended for as long as a member with this `grace`, in seconds, may renew leases.
///
/// # Errors
/// The database cannot be written.
pub fn note_grace(database: &mut Database, grace: u32) -> Result<()> {
    let wanted = grace.saturating_add(SLACK + TTL);
    if late(database)? >= wanted {
        return Ok(());
    }
    database.change_shared(LATE, |before| {
        let before = before.and_then(|text| String::from_utf8(text).ok()?.parse().ok()).unwrap_or(0);
        Ok(Some(wanted.max(before).to_string().into_bytes()))
    })
}
