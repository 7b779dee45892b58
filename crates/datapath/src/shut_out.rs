//! Makes room for revoked grants. If the table is full, the account with the most entries is shut out. One entry, which
//! stands for all grants of the account, then replaces the account's other entries. When there is room again, the
//! account gets its own entries back.

use crate::verifier::Verifier;
use anyhow::Result;
use wire::Holder;

/// An account gets its entries back only if one in this many table entries stays free afterwards. Otherwise the next
/// revocations would shut the account out again.
const KEPT_FREE: usize = 8;

/// A grant that was ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The grant's handle.
    pub handle: u64,
    /// The holder of the grant; 0 if the authority has not named it.
    pub holder: Holder,
    /// Time at which the grant would have expired, Unix seconds.
    pub expires: u32,
}

/// Result of [`Verifier::revoke`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// The accounts that were shut out to make room.
    pub shut_out: Vec<u32>,
    /// The handles of the grants that could not be revoked, because there was no room.
    pub left: Vec<u64>,
}

impl Verifier {
    /// Revokes grants. If the table is full, shuts out the account with the most entries. The revocations of other
    /// accounts stay.
    pub fn revoke(&self, grants: &[Revocation]) -> Placed {
        // Record the accounts before the first revocation: once the table is full, the accounts of all its entries have
        // to be known.
        for grant in grants.iter().filter(|grant| grant.holder.0 != 0) {
            self.revoked.note_account(grant.handle, grant.holder.account());
        }
        let mut result = Placed::default();
        for grant in grants {
            match self.revoke_one(grant) {
                Ok(shut_out) => result.shut_out.extend(shut_out),
                Err(error) => {
                    tracing::debug!(handle = %wire::Handle(grant.handle), "cannot store a revoked grant: {error:#}");
                    result.left.push(grant.handle);
                }
            }
        }
        result
    }

    fn revoke_one(&self, grant: &Revocation) -> Result<Vec<u32>> {
        if grant.holder.0 != 0 && self.revoked_holders.extend_account(grant.holder.account(), grant.expires)? {
            return Ok(Vec::new());
        }
        match self.revoked.set(grant.handle, grant.expires) {
            Ok(()) => Ok(Vec::new()),
            Err(error) => self.make_room(grant)?.ok_or(error),
        }
    }

    /// Shuts out the account with the most entries, among which `grant` counts. Returns `None` if no account has two
    /// entries.
    fn make_room(&self, grant: &Revocation) -> Result<Option<Vec<u32>>> {
        let own = (grant.holder.0 != 0).then(|| grant.holder.account());
        let mut accounts = self.revoked.by_account();
        if let Some(own) = own {
            accounts.entry(own).or_default().push((grant.handle, grant.expires));
        }
        // On a tie, the account of the grant that is being revoked is taken.
        let most = accounts.into_iter().max_by_key(|(account, entries)| (entries.len(), Some(*account) == own));
        let Some((account, entries)) = most.filter(|(_, entries)| entries.len() > 1) else { return Ok(None) };
        let last = entries.iter().map(|(_, expires)| *expires).max().unwrap_or(grant.expires);
        let other = self.revoked_holders.set_account(account, last)?;
        for (handle, _) in entries.iter().filter(|(handle, _)| *handle != grant.handle) {
            self.revoked.remove(*handle)?;
        }
        if Some(account) != own {
            self.revoked.set(grant.handle, grant.expires)?;
        }
        Ok(Some([account].into_iter().chain(other).collect()))
    }

    /// Reports whether any account is shut out.
    pub fn has_shut_out(&self) -> bool {
        self.revoked_holders.entries().iter().any(|(key, _)| key.whole == 1)
    }

    /// Restores the separate entries of accounts that are shut out, as far as the tables have room. Begins with the
    /// accounts that need the fewest entries. `grants` and `sessions` contain all grants that the authority has revoked
    /// and all sessions that have ended. Returns the accounts that got their entries back.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn readmit(&self, grants: &[Revocation], sessions: &[(Holder, u32)]) -> Result<Vec<u32>> {
        let entries = self.revoked_holders.entries();
        let shut_out = entries.iter().filter(|(key, _)| key.whole == 1);
        let mut accounts: Vec<_> = shut_out
            .map(|(key, _)| {
                let is_own = |holder: Holder| holder.0 != 0 && holder.account() == key.number;
                let grants: Vec<_> = grants.iter().filter(|grant| is_own(grant.holder)).collect();
                let sessions: Vec<_> = sessions.iter().copied().filter(|(holder, _)| is_own(*holder)).collect();
                (key.number, grants, sessions)
            })
            .collect();
        if accounts.is_empty() {
            return Ok(Vec::new());
        }
        accounts.sort_by_key(|(_, grants, sessions)| grants.len() + sessions.len());
        let most = |capacity: u32| capacity as usize - capacity as usize / KEPT_FREE;
        let (most_grants, most_holders) = (most(self.revoked.capacity()), most(self.revoked_holders.capacity()));
        let (mut used_grants, mut used_holders) = (self.revoked.handles().len(), entries.len());
        let mut readmitted = Vec::new();
        for (account, grants, sessions) in accounts {
            if used_grants + grants.len() > most_grants || used_holders + sessions.len() > most_holders {
                continue;
            }
            for grant in &grants {
                self.revoked.note_account(grant.handle, account);
                self.revoked.set(grant.handle, grant.expires)?;
            }
            self.revoked_holders.readmit(account, &sessions)?;
            used_grants += grants.len();
            used_holders = used_holders + sessions.len() - 1;
            readmitted.push(account);
        }
        Ok(readmitted)
    }
}
