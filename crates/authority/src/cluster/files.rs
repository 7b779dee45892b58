//! The files that members share through the database: the master keys and `networks.toml`. The policy needs no file,
//! because the database contains it.

use super::membership::TTL;
use crate::storage::Database;
use anyhow::Result;
use zeroize::Zeroizing;

/// Name of the master keys in the table `shared`.
pub const MASTER_KEYS: &str = "master.key";
/// Name of the text of `networks.toml` in the table `shared`.
pub const NETWORKS: &str = "networks.toml";
/// Key in the table `shared`. The value is a number of seconds, in decimal: the time for which a member may renew a
/// lease after the cluster has recorded the lease's end. The storage also reads this value.
pub const LATE: &str = "late";

/// Maximum delay, in seconds, after which a member that has contact with etcd learns of a change.
const SLACK: u32 = 30;

/// The files that the members share. A field is `None` if the members do not share the file yet.
pub struct SharedFiles {
    /// The master keys, as in `master.key`.
    pub keys: Option<Zeroizing<Vec<u8>>>,
    /// The text of `networks.toml`.
    pub networks: Option<String>,
}

/// Reads the files that members share.
///
/// # Errors
/// Fails if the database cannot be read, or a text is not UTF-8.
pub fn read(database: &Database) -> Result<SharedFiles> {
    let keys = database.shared(MASTER_KEYS)?.map(Zeroizing::new);
    let networks = database.shared(NETWORKS)?.map(String::from_utf8).transpose()?;
    Ok(SharedFiles { keys, networks })
}

/// Returns the maximum time for which a member may renew leases without contact, in seconds. The other members keep
/// records of revoked grants longer than that.
///
/// # Errors
/// Fails if the database cannot be read.
pub fn most_grace(database: &Database) -> Result<u32> {
    Ok(late(database)?.saturating_sub(SLACK + TTL))
}

/// Returns the time for which a member may renew a lease after the cluster has recorded the lease's end, in seconds.
/// Returns 0 for an authority in no cluster.
///
/// # Errors
/// Fails if the database cannot be read.
pub fn late(database: &Database) -> Result<u32> {
    let text = database.shared(LATE)?.and_then(|text| String::from_utf8(text).ok());
    Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Makes all members keep their records of revoked grants for at least as long as a member may renew leases with this
/// `grace`, in seconds.
///
/// # Errors
/// Fails if the database cannot be written.
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
