//! Ends flows: revocations, and the sweep of idle flows.

use super::Kernel;
use crate::{now, plan};
use api::{RevokedGrant, RevokedSession};
use datapath::shut_out::Revocation;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use wire::Holder;
use wire::map::Flow;
use wire::packet::TCP;

/// Result of revoking grants.
pub struct Cut {
    /// Whether all revocations found room. If not, the verifier is closed: it admits nothing new.
    pub complete: bool,
    /// Number of flows removed: revoked or idle.
    pub flows: u32,
    /// The grants that have not ended and stay revoked.
    pub lasting: Vec<RevokedGrant>,
}

/// Result of ending sessions.
pub struct EndedSessions {
    /// Whether all sessions found room. If not, the verifier is closed: it admits nothing new.
    pub complete: bool,
    /// Number of flows removed: of these sessions, revoked or idle.
    pub flows: u32,
}

impl Kernel {
    /// Revokes grants and cuts their flows.
    pub fn revoke(&self, grants: &[RevokedGrant], now: u64) -> Cut {
        // A grant that has ended stays revoked for a while, too: its flows may still exist.
        let placed = self.verifier.revoke(&revocations(grants, now as u32));
        for account in placed.shut_out {
            self.warn_of_account(account);
        }
        let left: HashSet<u64> = placed.left.into_iter().collect();
        if !left.is_empty() {
            self.close(left.len());
            self.remove(&left);
        }
        let flows = if grants.is_empty() { 0 } else { self.sweep() };
        Cut { complete: left.is_empty(), flows, lasting: grants.to_vec() }
    }

    /// Refuses the tokens of sessions that ended, and cuts their flows.
    pub fn end_sessions(&self, sessions: &[RevokedSession], now: u64) -> EndedSessions {
        let mut left = HashSet::new();
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
        let flows = if sessions.is_empty() { 0 } else { self.sweep() };
        EndedSessions { complete: left.is_empty(), flows }
    }

    /// Gives accounts that were shut out to make room their own revocations back, where the tables have room again.
    /// `config` has all that the authority has revoked.
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
                    tracing::info!(account, "there is room again: the account is no longer shut out");
                }
            }
            Err(error) => tracing::error!("cannot readmit accounts that are shut out: {error:#}"),
        }
    }

    fn warn_of_account(&self, account: u32) {
        tracing::warn!(
            account,
            room = self.settings.sizes.revoked,
            "no room for more revoked grants or ended sessions, so the account with the most of them is shut out until \
             there is room, or all of them have expired. Raise --max-revoked and restart"
        );
    }

    /// Cuts the flows of grants that may have ended. Revocations of ended grants last for one sweep only, which removes
    /// first the flows and then these revocations, so that they take no room from other revocations.
    pub fn cut(&self, grants: &[RevokedGrant], now: u64) -> Cut {
        let (ended, lasting) = plan::ended(grants, |handle| self.expiry(handle), now);
        let flows = if ended.is_empty() { 0 } else { self.cut_ended(&ended) };
        let cut = self.revoke(&lasting, now);
        Cut { flows: flows + cut.flows, lasting, ..cut }
    }

    /// Cuts the flows of grants that have ended; returns the number of flows removed. No other sweep may run meanwhile:
    /// it could remove a revocation after it has passed the revoked flow.
    fn cut_ended(&self, ended: &[RevokedGrant]) -> u32 {
        let sweeping = self.sweeping();
        let (mut flows, mut room, mut left) = (0, true, HashSet::new());
        let put = |grant: &RevokedGrant| self.verifier.revoked.set(grant.handle, grant.expires).is_ok();
        for grant in ended {
            room = room
                && (put(grant) || {
                    flows += self.sweep_alone(&sweeping);
                    put(grant)
                });
            if !room {
                left.insert(grant.handle);
            }
        }
        if !left.is_empty() {
            self.remove(&left);
        }
        flows + self.sweep_alone(&sweeping)
    }

    /// Returns when a grant ends, according to its tokens.
    pub(super) fn expiry(&self, handle: u64) -> Option<u32> {
        self.verifier.grants.get(&handle).ok().flatten().map(|used| used.expires)
    }

    /// Returns the grants that have flows, each once.
    pub fn handles(&self) -> Vec<u64> {
        let flows = self.verifier.flows.entries();
        let handles: HashSet<u64> =
            flows.iter().filter(|(_, flow)| flow.by_grant()).map(|(_, flow)| flow.handle).collect();
        handles.into_iter().collect()
    }

    /// Clears all keys: without room for a revocation a revoked grant could come back, so rather nothing new is
    /// admitted.
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

    /// Ends flows that grants admitted. At a gateway, others than TCP keep their entry for a while, so that what the inside
    /// sends on them opens nothing.
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

    /// Removes flows that are idle, revoked or ended; returns their number.
    pub fn sweep(&self) -> u32 {
        self.sweep_alone(&self.sweeping())
    }

    fn sweeping(&self) -> MutexGuard<'_, ()> {
        self.sweeping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sweeps; the caller holds the lock that keeps other sweeps out.
    fn sweep_alone(&self, _sweeping: &MutexGuard<'_, ()>) -> u32 {
        self.sweep_proofs();
        // Before anything is removed: if the clock has just leapt ahead, it may be wrong.
        if let Err(error) = self.set_clock() {
            tracing::error!("cannot set the clock of the kernel programs, so nothing was swept: {error:#}");
            return 0;
        }
        match self.verifier.sweep(now() as u32) {
            Ok(swept) => {
                self.tidy_classes(swept.now);
                self.tidy_grant_room(swept.now.into());
                if let Some(Err(error)) = self.gateway.as_ref().map(|gateway| gateway.sweep(swept.now)) {
                    tracing::error!("cannot sweep the inside addresses: {error:#}");
                }
                swept.flows
            }
            Err(error) => {
                tracing::error!("cannot sweep the tables of flows and grants: {error:#}");
                0
            }
        }
    }

    /// Reports whether all keys are cleared because a revocation found no room.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

/// Converts the authority's statements; none ends before `now`.
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
