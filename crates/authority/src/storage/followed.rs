//! Grants that another member of the cluster recorded. This member renews them, and announces them to the verifiers
//! that are connected to it.

use super::resumption::{RESUMED, Resumed, resumed};
use super::revocation::HELD;
use super::{Database, holders};
use anyhow::Result;
use api::{GrantOwner, LivePair};
use rusqlite::{OptionalExtension, params};
use wire::{Epoch, Handle, Pair};

/// A live grant that another member recorded.
pub struct FollowedGrant {
    /// The verifier that the grant is for.
    pub verifier: String,
    /// The grant's owner. The class is 0, because the database does not contain it: the caller must set the class from
    /// the policy.
    pub owner: GrantOwner,
    /// The pair, if the grant is a pair.
    pub pair: Option<LivePair>,
    /// The data with which the grant is renewed; `None` if it can't be renewed.
    pub resumed: Option<Resumed>,
}

impl Database {
    /// Returns the grants with these first handles, except those that have ended at `now`. `epoch_length` is the length
    /// of an epoch, in seconds.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn followed_grants(&self, handles: &[Handle], now: u64, epoch_length: u32) -> Result<Vec<FollowedGrant>> {
        let mut find = self.connection.prepare_cached(&format!(
            "SELECT verifier, account, slot, expires, issued FROM grants LEFT JOIN session_slots USING (session)
             WHERE handle = ?1 AND expires > ?2 AND {HELD}"
        ))?;
        let mut renewable = self.connection.prepare_cached(&format!("{} AND handle = ?2", *RESUMED))?;
        let mut followed = Vec::new();
        for handle in handles {
            let values = params![handle.0.cast_signed(), now.cast_signed()];
            let found = find.query_row(values, |row| {
                let holder = holders::of(row.get(1)?, row.get(2)?).0;
                let (expires, issued): (i64, i64) = (row.get(3)?, row.get(4)?);
                Ok((row.get::<_, String>(0)?, holder, expires.cast_unsigned(), issued.cast_unsigned()))
            });
            let Some((verifier, holder, expires, issued)) = found.optional()? else { continue };
            let Some(owner) = self.grant_owner(&verifier, *handle)? else { continue };
            let Epoch(epoch) = Epoch::at(issued, epoch_length);
            let expires = u32::try_from(expires).unwrap_or(u32::MAX);
            let pair = Pair::of(*handle).map(|_| LivePair { handle: handle.0, epoch, issued, expires, holder });
            let mut rows = renewable.query(params![now.cast_signed(), handle.0.cast_signed()])?;
            let resumed = rows.next()?.map(resumed).transpose()?;
            followed.push(FollowedGrant { verifier, owner, pair, resumed });
        }
        Ok(followed)
    }
}
