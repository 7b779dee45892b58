//! The grants that a server needs to know when it starts, and the grants that a verifier needs to know when it
//! connects.

use super::grants::{HOLDER, revoked_grant, sealing_of};
use super::leases::{Announced, LeaseTerms, RENEWABLE, announced, renewable};
use super::revocation::{HELD, ended_by};
use super::{Database, TokenHash};
use anyhow::{Context, Result};
use engine::model::Sealing;
use engine::policy::Scope;
use rusqlite::{Row, params};
use std::net::IpAddr;
use std::sync::LazyLock;
use wire::{Flags, Handle, Holder};

/// A grant that an earlier run of the server, or another member of the cluster, recorded and that this server may
/// renew.
pub struct Resumed {
    /// The session that the grant was issued to.
    pub session: TokenHash,
    /// The data from which the grant's handles are computed.
    pub renewable: LeaseTerms,
    /// The end of the grant's last lease, in Unix seconds.
    pub until: u64,
    /// The grant's first handle, under which the table `grants` contains the grant.
    pub handle: Handle,
    /// The verifier that the grant is for.
    pub verifier: String,
    /// The receiver's name.
    pub receiver: String,
    /// The rule that allowed the grant.
    pub rule: String,
    /// The source address of the request.
    pub source: IpAddr,
    /// The addresses and the service that the grant covers.
    pub scope: Scope,
    /// The grant's flags.
    pub flags: Flags,
    /// The rule's demands on a sealed tunnel.
    pub sealing: Sealing,
    /// The holder that the grant's handles contain.
    pub holder: Holder,
}

/// Selects the grants that can be renewed at `?1`, except those whose handles contain no holder. Other modules append
/// further conditions.
pub(super) static RESUMED: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT number, issued, lease, session, expires, handle, verifier, receiver, rule, source, protocol, port,
            prefix, flags, sealing, {HOLDER}
         FROM grants JOIN session_slots USING (session)
         WHERE expires > ?1 AND number IS NOT NULL AND slot IS NOT NULL AND unnamed = 0 AND {HELD}"
    )
});

/// Reads a row of [`RESUMED`].
pub(super) fn resumed(row: &Row<'_>) -> Result<Resumed> {
    let (source, prefix): (String, String) = (row.get(9)?, row.get(12)?);
    let flags = Flags(row.get(13)?);
    let service = flags.has(Flags::PORT).then_some((row.get(10)?, row.get(11)?));
    Ok(Resumed {
        renewable: renewable(row, 0)?.context("the grants table contains a number without a lease")?,
        session: row.get(3)?,
        until: row.get::<_, i64>(4)?.cast_unsigned(),
        handle: Handle(row.get::<_, i64>(5)?.cast_unsigned()),
        verifier: row.get(6)?,
        receiver: row.get(7)?,
        rule: row.get(8)?,
        source: source.parse().context("the grants table contains a malformed source")?,
        scope: Scope { prefix: prefix.parse().context("the grants table contains a malformed prefix")?, service },
        flags,
        sealing: sealing_of(row, 14)?,
        holder: Holder(row.get(15)?),
    })
}

impl Database {
    /// Returns the grants that can be renewed at `now`, except those whose handles contain no holder.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn renewable_grants(&self, now: u64) -> Result<Vec<Resumed>> {
        let mut statement = self.connection.prepare(&RESUMED)?;
        let mut rows = statement.query([now.cast_signed()])?;
        let mut grants = Vec::new();
        while let Some(row) = rows.next()? {
            grants.push(resumed(row)?);
        }
        Ok(grants)
    }

    /// Returns the grants for `verifier` that were revoked individually and have not expired at `now`.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn revoked(&self, verifier: &str, now: u64) -> Result<Vec<Announced>> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT handle, expires, {HOLDER}, {RENEWABLE} FROM grants LEFT JOIN session_slots USING (session)
             WHERE expires > ?1 AND revoked IS NOT NULL AND verifier = ?2",
        ))?;
        let rows = statement.query_map(params![ended_by(now), verifier], |row| {
            let grant = revoked_grant(row)?;
            announced(row, grant, 3)
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}
