//! Room for announced grants in the tables of inside addresses and of classes. Each account has a share of this room.

use super::Kernel;
use api::GrantOwner;
use std::collections::HashMap;
use std::sync::PoisonError;

const SKEW: u64 = engine::verifier::CLOCK_SKEW_MAX as u64;

impl Kernel {
    /// Reports whether an announced grant has room in the share of its account. If so, counts the grant towards the
    /// share. The result is always true if the verifier has no pool and sets no marks, because it then has no table of
    /// announced grants.
    pub fn has_room_for(&self, owner: &GrantOwner, now: u64) -> bool {
        if self.addresses().is_none() && self.verifier.classes.is_none() {
            return true;
        }
        let mut room = self.grant_room.lock().unwrap_or_else(PoisonError::into_inner);
        match room.take(owner, now) {
            Room::Taken => true,
            Room::Full => false,
            Room::FullNow => {
                let (person, share) = (&owner.person, room.share);
                tracing::warn!(
                    person,
                    share,
                    "the person has more grants than the share of an account (`grants_per_account`): further grants \
                     get no inside address and no class until others have ended"
                );
                false
            }
        }
    }

    /// Forgets the grants that have ended.
    pub(super) fn tidy_grant_room(&self, now: u64) {
        self.grant_room.lock().unwrap_or_else(PoisonError::into_inner).forget_ended(now);
    }
}

/// The announced grants of each account, with their expiry.
pub(super) struct GrantRoom {
    share: usize,
    of: HashMap<String, Share>,
}

#[derive(Default)]
struct Share {
    grants: HashMap<u64, u64>,
    /// The time at which ended grants were last removed. A full share is searched for ended grants at most once a
    /// second.
    tidied: u64,
    /// Whether the verifier has refused a grant since the share last had room.
    full: bool,
}

/// Result of counting a grant against its account's share.
#[derive(Debug, PartialEq)]
enum Room {
    Taken,
    Full,
    /// The share is full, and this grant is the first one that is refused since the share last had room.
    FullNow,
}

impl GrantRoom {
    /// Creates empty accounting, with a share of `grants_per_account` grants for each account.
    pub(super) fn new(grants_per_account: u32) -> Self {
        Self { share: grants_per_account as usize, of: HashMap::new() }
    }

    /// Counts a grant against its account's share. A grant that is counted already keeps its room.
    fn take(&mut self, owner: &GrantOwner, now: u64) -> Room {
        let own = self.of.entry(owner.person.clone()).or_default();
        if own.grants.len() >= self.share && !own.grants.contains_key(&owner.handle) {
            if own.tidied != now {
                own.forget_ended(now);
            }
            if own.grants.len() >= self.share {
                return if std::mem::replace(&mut own.full, true) { Room::Full } else { Room::FullNow };
            }
        }
        own.full = false;
        own.grants.insert(owner.handle, owner.expires);
        Room::Taken
    }

    fn forget_ended(&mut self, now: u64) {
        self.of.retain(|_, own| {
            own.forget_ended(now);
            !own.grants.is_empty()
        });
    }
}

impl Share {
    fn forget_ended(&mut self, now: u64) {
        self.grants.retain(|_, expires| *expires + SKEW >= now);
        self.tidied = now;
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
        let mut take = |person, handle, expires, now| room.take(&owner(person, handle, expires), now);
        let outcomes: Vec<_> = (0..100).map(|handle| take("mallory", handle, 500, 100)).collect();
        assert!(outcomes[..4].iter().all(|outcome| *outcome == Room::Taken));
        assert_eq!(outcomes[4], Room::FullNow);
        assert!(outcomes[5..].iter().all(|outcome| *outcome == Room::Full), "the log tells it once");
        assert_eq!(take("mallory", 2, 500, 100), Room::Taken, "a grant that is counted keeps its room");
        assert_eq!(take("alice", 1000, 500, 100), Room::Taken, "others have their own share");
        // Once its grants have ended, the account has room again.
        assert_eq!(take("mallory", 200, 900, 531), Room::Taken);
        room.forget_ended(1000);
        assert!(room.of.is_empty());
    }
}
