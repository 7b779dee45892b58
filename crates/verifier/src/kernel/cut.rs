//! Ends flows, because they were revoked or because they are idle.

use super::Kernel;
use super::pairs::Holders;
use crate::{now, plan};
use api::{RevokedGrant, RevokedSession};
use datapath::shut_out::Revocation;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use wire::map::Flow;
use wire::packet::TCP;
use wire::{Handle, Holder, Pair};

/// Result of revoking grants.
pub struct Cut {
    /// Whether there was room for all revocations. If not, the verifier is closed: it admits no new flows.
    pub complete: bool,
    /// Number of flows that were removed because they were revoked or idle.
    pub flows: u32,
    /// The grants whose revocations stay in the table, if there was room for them. Grants that [`Kernel::cut`] revoked
    /// for one sweep only are not among them.
    pub lasting: Vec<RevokedGrant>,
}

/// Result of ending sessions.
pub struct EndedSessions {
    /// Whether there was room for all ended sessions. If not, the verifier is closed: it admits no new flows.
    pub complete: bool,
    /// Number of flows that were removed because their session ended, or because they were revoked or idle.
    pub flows: u32,
}

impl Kernel {
    /// Revokes grants and cuts their flows.
    pub fn revoke(&self, grants: &[RevokedGrant], now: u64) -> Cut {
        // A grant that has ended stays revoked for a while, too: its flows may still exist.
        let mut revocations = revocations(grants, now as u32);
        if self.config.ls_stateless != 0 {
            // Such a verifier doesn't know when a pair ends: it admits the pair until its secret ends.
            let secret_ends = now as u32 + 2 * self.config.epoch_length;
            let pairs = revocations.iter_mut().filter(|revoked| Pair::of(Handle(revoked.handle)).is_some());
            pairs.for_each(|revoked| revoked.expires = revoked.expires.max(secret_ends));
        }
        let placed = self.verifier.revoke(&revocations);
        for account in placed.shut_out {
            self.warn_of_account(account);
        }
        let left: HashSet<u64> = placed.left.into_iter().collect();
        if !left.is_empty() {
            self.close(left.len());
            self.remove(&left);
        }
        let flows = if grants.is_empty() { 0 } else { self.sweep().unwrap_or_default() };
        Cut { complete: left.is_empty(), flows, lasting: grants.to_vec() }
    }

    /// Revokes ended sessions, so that the verifier rejects their tokens, and cuts the flows of these sessions.
    pub fn end_sessions(&self, sessions: &[RevokedSession], now: u64) -> EndedSessions {
        let mut left = HashSet::new();
        let unannounced = self.unannounced.lock().unwrap_or_else(PoisonError::into_inner);
        let pairs: Vec<_> = sessions.iter().flat_map(|session| pairs_of(session, &unannounced)).collect();
        drop(unannounced);
        let mut complete = true;
        if !pairs.is_empty() {
            complete = self.revoke(&pairs, now).complete;
        }
        for session in sessions.iter().filter(|session| session.holder != 0) {
            // The flows of the session's grants may outlive them.
            let until = session.expires.max(now as u32);
            match self.verifier.revoked_holders.set(Holder(session.holder), until) {
                Ok(None) => {}
                Ok(Some(account)) => self.warn_of_account(account),
                Err(error) => {
                    tracing::debug!(holder = session.holder, "cannot store an ended session: {error:#}");
                    left.insert(session.holder);
                }
            }
        }
        if !left.is_empty() {
            self.close(left.len());
            self.end_flows(|flow| left.contains(&flow.holder));
            for (handle, _) in
                self.verifier.grants.entries().into_iter().filter(|(_, used)| left.contains(&used.holder))
            {
                let _ = self.verifier.grants.remove(&handle);
            }
            self.recount();
        }
        let flows = if sessions.is_empty() { 0 } else { self.sweep().unwrap_or_default() };
        EndedSessions { complete: complete && left.is_empty(), flows }
    }

    /// Readmits accounts that were shut out because there was no room for their revocations, if the tables have room
    /// for these revocations now. `config` contains all revocations of the authority.
    pub fn readmit(&self, config: &api::VerifierConfig) {
        if !self.verifier.has_shut_out() {
            return;
        }
        let grants = revocations(&config.revoked, 0);
        let sessions: Vec<_> =
            config.revoked_sessions.iter().map(|session| (Holder(session.holder), session.expires)).collect();
        match self.verifier.readmit(&grants, &sessions) {
            Ok(accounts) => {
                for account in accounts {
                    tracing::info!(
                        account,
                        "there is room for the account's revocations again, so the account is no longer shut out"
                    );
                }
            }
            Err(error) => tracing::error!("cannot readmit accounts that are shut out: {error:#}"),
        }
    }

    fn warn_of_account(&self, account: u32) {
        tracing::warn!(
            account,
            room = self.settings.sizes.revoked,
            "no room for more revoked grants or ended sessions: the account with the most of these entries is shut out \
             until there is room, or until all its entries have expired. Raise --max-revoked and restart"
        );
    }

    /// Cuts the flows of grants, some of which have possibly ended. Grants that have ended are revoked for one sweep
    /// only. This sweep first removes their flows and then their revocations, which makes room for the revocations of
    /// other grants.
    pub fn cut(&self, grants: &[RevokedGrant], now: u64) -> Cut {
        let (ended, lasting) = plan::ended(grants, |handle| self.expiry(handle), now);
        let flows = if ended.is_empty() { 0 } else { self.cut_ended(&ended) };
        let cut = self.revoke(&lasting, now);
        Cut { flows: flows + cut.flows, lasting, ..cut }
    }

    /// Cuts the flows of grants that have ended; returns the number of flows removed. Keeps other sweeps out: if
    /// another sweep has already passed a flow, it could remove the revocation that is to end this flow.
    fn cut_ended(&self, ended: &[RevokedGrant]) -> u32 {
        let sweeping = self.sweeping();
        let (mut flows, mut room, mut left) = (0, true, HashSet::new());
        let put = |grant: &RevokedGrant| self.verifier.revoked.set(grant.handle, grant.expires).is_ok();
        for grant in ended {
            room = room
                && (put(grant) || {
                    flows += self.sweep_alone(&sweeping).unwrap_or_default();
                    put(grant)
                });
            if !room {
                left.insert(grant.handle);
            }
        }
        if !left.is_empty() {
            self.remove(&left);
        }
        flows + self.sweep_alone(&sweeping).unwrap_or_default()
    }

    /// Returns the expiry of a grant (Unix seconds) according to its tokens; `None` if no token of this grant was
    /// admitted.
    pub(super) fn expiry(&self, handle: u64) -> Option<u32> {
        self.verifier.grants.get(&handle).ok().flatten().map(|used| used.expires)
    }

    /// Returns the handles of the grants that have flows. Each handle is returned once.
    pub fn handles(&self) -> Vec<u64> {
        let flows = self.verifier.flows.entries();
        let handles: HashSet<u64> =
            flows.iter().filter(|(_, flow)| flow.by_grant()).map(|(_, flow)| flow.handle).collect();
        handles.into_iter().collect()
    }

    /// Clears all keys, so that the verifier admits no new flow. With keys, a grant whose revocation found no room
    /// could open flows again.
    fn close(&self, left: usize) {
        if let Err(error) = self.clear_keys(|_| true) {
            tracing::error!("cannot clear the keys, so a revoked grant may still open flows: {error:#}");
        }
        if !self.closed.swap(true, Ordering::Relaxed) {
            let room = self.settings.sizes.revoked;
            tracing::error!(
                left,
                room,
                "the table of revoked grants and ended sessions is full: no new flows are admitted until some have \
                 expired; admitted flows continue. Raise --max-revoked and restart"
            );
        }
    }

    /// Removes the flows of grants for which the table of revoked grants has no room.
    fn remove(&self, handles: &HashSet<u64>) {
        self.end_flows(|flow| handles.contains(&flow.handle));
        for handle in handles {
            let _ = self.verifier.grants.remove(handle);
        }
        self.recount();
    }

    /// Ends the flows that grants admitted and that `ends` selects. At a gateway, flows of protocols other than TCP
    /// keep their entry for a while, so that packets that the inside sends on them do not open an outbound flow.
    fn end_flows(&self, ends: impl Fn(&Flow) -> bool) {
        for (key, flow) in self.verifier.flows.entries().into_iter().filter(|(_, flow)| flow.by_grant() && ends(flow)) {
            let _ = match self.config.max_outbound > 0 && key.protocol != TCP {
                true => self.verifier.flows.end(&key, flow, now() as u32),
                false => self.verifier.flows.remove(&key),
            };
        }
    }

    /// Recounts the flows of accounts: flows removed without the kernel program's help are still included in the
    /// counts.
    fn recount(&self) {
        if let Err(error) = self.verifier.recount_accounts() {
            tracing::error!(
                "cannot recount the flows of accounts, so some accounts may reach their limit too early: {error:#}"
            );
        }
    }

    /// Removes the flows that are idle, revoked or ended. Returns the number of removed flows, or `None` if the tables
    /// could not be swept.
    pub fn sweep(&self) -> Option<u32> {
        self.sweep_alone(&self.sweeping())
    }

    fn sweeping(&self) -> MutexGuard<'_, ()> {
        self.sweeping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sweeps the tables. Returns the number of flows removed, or `None` if the tables could not be swept. `_sweeping`
    /// shows that the caller keeps other sweeps out.
    fn sweep_alone(&self, _sweeping: &MutexGuard<'_, ()>) -> Option<u32> {
        self.sweep_proofs();
        // Before anything is removed: if the clock has just leapt ahead, it may be wrong.
        if let Err(error) = self.set_clock() {
            tracing::error!("cannot set the clock of the kernel programs, so nothing was swept: {error:#}");
            return None;
        }
        match self.verifier.sweep(now() as u32) {
            Ok(swept) => {
                self.tidy_classes(swept.now);
                self.tidy_grant_room(swept.now.into());
                if let Some(Err(error)) = self.gateway.as_ref().map(|gateway| gateway.sweep(swept.now)) {
                    tracing::error!("cannot sweep the inside addresses: {error:#}");
                }
                Some(swept.flows)
            }
            Err(error) => {
                tracing::error!("cannot sweep the tables of flows and grants: {error:#}");
                None
            }
        }
    }

    /// Reports whether all keys are cleared because there was no room for a revocation.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

/// Returns a session's pairs, which a stateless verifier has to revoke one by one, because their tokens name no holder.
fn pairs_of(session: &RevokedSession, known: &Holders) -> Vec<RevokedGrant> {
    let RevokedSession { holder, expires } = *session;
    let grant = |handle| RevokedGrant { handle, expires, holder };
    known.of(holder).into_iter().map(grant).collect()
}

/// Converts the authority's revocations. A revocation whose grant has ended lasts until `now`.
fn revocations(grants: &[RevokedGrant], now: u32) -> Vec<Revocation> {
    let revocation = |grant: &RevokedGrant| Revocation {
        handle: grant.handle,
        holder: Holder(grant.holder),
        expires: grant.expires.max(now),
    };
    grants.iter().map(revocation).collect()
}

#[cfg(test)]
mod tests;
