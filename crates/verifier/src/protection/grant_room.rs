//! Room for announced grants in the tables of inside addresses and of classes: each account has a share.

use super::Protection;
use api::GrantOwner;
use std::collections::HashMap;
use std::sync::PoisonError;

const SKEW: u64 = engine::verifier::CLOCK_SKEW_MAX as u64;

impl Protection {
    /// Reports whether an announced grant may have entries. Gateways with a pool and verifiers that set marks have
    /// them.
    pub fn has_room_for(&self, owner: &GrantOwner, now: u64) -> bool {
        if self.addresses().is_none() && self.verifier.classes.is_none() {
            return true;
        }
        let mut room = self.grant_room.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = room.take(owner, now);
        if !has_room {
            let (person, share) = (&owner.person, room.share);
            tracing::warn!(
                person,
                share,
                "more grants than the share of an account: this one gets no inside address or class"
            );
        }
        has_room
    }

    /// Forgets the grants that have ended.
    pub(super) fn tidy_grant_room(&self, now: u64) {
        self.grant_room.lock().unwrap_or_else(PoisonError::into_inner).forget_ended(now);
    }
}

/// The announced grants of each account, with their ends.
pub(super) struct GrantRoom {
    share: usize,
    of: HashMap<String, HashMap<u64, u64>>,
}

impl GrantRoom {
    /// Creates the accounting with this share of an account.
    pub(super) fn new(grants_per_account: u32) -> Self {
        Self { share: grants_per_account as usize, of: HashMap::new() }
    }

    /// Counts a grant against its account's share; returns false if the share is used up. A grant that is counted keeps
    /// its room.
    fn take(&mut self, owner: &GrantOwner, now: u64) -> bool {
        let own = self.of.entry(owner.person.clone()).or_default();
        if own.len() >= self.share && !own.contains_key(&owner.handle) {
            own.retain(|_, expires| *expires + SKEW >= now);
            if own.len() >= self.share {
                return false;
            }
        }
        own.insert(owner.handle, owner.expires);
        true
    }

    fn forget_ended(&mut self, now: u64) {
        self.of.retain(|_, own| {
            own.retain(|_, expires| *expires + SKEW >= now);
            !own.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(person: &str, handle: u64, expires: u64) -> GrantOwner {
        let [device, receiver, rule] = ["laptop", "git", "rule"].map(Into::into);
        GrantOwner {
            handle,
            person: person.into(),
            device,
            receiver,
            rule,
            issued: 0,
            expires,
            class: 0,
            sealing: None,
        }
    }

    #[test]
    fn an_account_with_many_grants_gets_its_share_of_inside_addresses_and_leaves_the_rest() {
        let mut room = GrantRoom::new(4);
        let taken = (0..100).filter(|handle| room.take(&owner("mallory", *handle, 500), 100)).count();
        assert_eq!(taken, 4);
        assert!(room.take(&owner("mallory", 2, 500), 100), "a grant that is counted keeps its room");
        assert!(room.take(&owner("alice", 1000, 500), 100), "others have their own share");
        // Once its grants have ended, the account has room again.
        assert!(room.take(&owner("mallory", 200, 900), 531));
        room.forget_ended(1000);
        assert!(room.of.is_empty());
    }
}
