//! The destinations that the live grants of a person cover, so that the person's choices can be applied to the grants.

use super::revocation::{HELD, ended_by};
use anyhow::{Context, Result};
use engine::policy::Scope;
use rusqlite::{Transaction, params};
use wire::{Destination, Flags, Handle};

/// Maximum number of grants that one transaction examines, and perhaps revokes. Other accounts then have their turn.
const EXAMINED: usize = 64;

/// A position among a person's grants, in the order of their expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    expires: i64,
    handle: i64,
}

impl Walk {
    /// Returns the position before all grants that a verifier with a slow clock possibly still treats as unexpired.
    pub fn from_unexpired(now: u64) -> Self {
        Self { expires: ended_by(now), handle: i64::MAX }
    }
}

/// The parts of a grant that a person's choices refer to.
pub(super) struct Reach {
    pub handle: Handle,
    pub scope: Scope,
    pub to: Destination,
}

/// Returns up to [`EXAMINED`] of a person's live grants after `from`. Also returns the position at which to continue,
/// or `None` if there are no more grants.
pub(super) fn held_from(transaction: &Transaction<'_>, person: &str, from: Walk) -> Result<(Vec<Reach>, Option<Walk>)> {
    let mut statement = transaction.prepare_cached(&format!(
        "SELECT handle, address, protocol, port, prefix, flags, expires
         FROM grants INDEXED BY grants_of_person_by_expiry LEFT JOIN session_slots USING (session)
         WHERE person = ?1 AND (expires, handle) > (?2, ?3) AND {HELD} ORDER BY expires, handle LIMIT {EXAMINED}"
    ))?;
    let mut rows = statement.query(params![person, from.expires, from.handle])?;
    let (mut held, mut last) = (Vec::new(), from);
    while let Some(row) = rows.next()? {
        let (address, prefix): (String, String) = (row.get(1)?, row.get(4)?);
        let address = address.parse().context("the grants table contains a malformed address")?;
        let prefix = prefix.parse().context("the grants table contains a malformed prefix")?;
        let to = Destination { address, protocol: row.get(2)?, port: row.get(3)? };
        let application = Flags(row.get(5)?).has(Flags::PORT).then_some((to.protocol, to.port));
        last = Walk { expires: row.get(6)?, handle: row.get(0)? };
        held.push(Reach {
            handle: Handle(last.handle.cast_unsigned()),
            scope: Scope { prefix, service: application },
            to,
        });
    }
    let next = (held.len() == EXAMINED).then_some(last);
    Ok((held, next))
}
