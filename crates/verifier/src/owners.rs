//! The owners of grants by handle, as the authority reported them. Their number is limited.

use api::GrantOwner;
use std::collections::{HashMap, HashSet};

/// Largest number of owners that are kept.
pub const OWNERS_MAX: usize = 65_536;

/// The owners of grants, by the grant's handle.
pub struct Owners {
    by_handle: HashMap<u64, GrantOwner>,
    max: usize,
}

impl Owners {
    /// Creates an empty table with room for `max` owners.
    pub fn new(max: usize) -> Self {
        Self { by_handle: HashMap::new(), max }
    }

    /// Stores an owner if there is room. Without room, the verifier has to ask the authority again when it needs the
    /// owner.
    pub fn remember(&mut self, owner: GrantOwner) {
        if self.by_handle.len() < self.max || self.by_handle.contains_key(&owner.handle) {
            self.by_handle.insert(owner.handle, owner);
        }
    }

    /// Returns the owner of the grant with this handle, if the table contains it.
    pub fn of(&self, handle: u64) -> Option<&GrantOwner> {
        self.by_handle.get(&handle)
    }

    /// Returns the number of owners in the table.
    pub fn count(&self) -> usize {
        self.by_handle.len()
    }

    /// Reports whether the table is so full that [`Self::forget`] should be called.
    pub fn is_crowded(&self) -> bool {
        self.by_handle.len() > self.max / 2
    }

    /// Forgets the owners of those grants that have ended by `now` (Unix seconds) and are not in `with_flows`.
    pub fn forget(&mut self, now: u64, with_flows: &HashSet<u64>) {
        self.by_handle.retain(|handle, owner| owner.expires > now || with_flows.contains(handle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(handle: u64, expires: u64) -> GrantOwner {
        let [person, device, receiver, rule] = ["alice", "laptop", "git", "rule"].map(Into::into);
        GrantOwner { handle, person, device, receiver, rule, issued: 0, expires, class: 0, sealing: None }
    }

    #[test]
    fn owners_of_live_flows_outlive_their_grant() {
        let mut owners = Owners::new(10);
        for handle in 0..3 {
            owners.remember(owner(handle, 100 * handle));
        }
        owners.forget(150, &HashSet::from([0]));
        assert!(owners.of(0).is_some() && owners.of(1).is_none() && owners.of(2).is_some());
    }

    #[test]
    fn there_are_never_more_than_fit() {
        let mut owners = Owners::new(2);
        for handle in 0..5 {
            owners.remember(owner(handle, 100));
        }
        owners.remember(owner(1, 200));
        assert_eq!((owners.count(), owners.of(1).map(|owner| owner.expires)), (2, Some(200)));
    }
}
