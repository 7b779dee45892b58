//! Recent initiations. They are stored so that none is accepted twice (wire.md §9.5.6).

use crate::verifier::CLOCK_SKEW_MAX;
use std::collections::{BTreeSet, HashMap};

/// Maximum number of initiations remembered per account.
const OF_ACCOUNT: u32 = 256;

/// Tags of valid initiations. A tag is kept for as long as the clock check would accept its initiation.
#[derive(Default)]
pub(super) struct Recent {
    /// Time, tag and account of each initiation, oldest first.
    tags: BTreeSet<(u32, [u8; 16], u32)>,
    accounts: HashMap<u32, u32>,
    /// The latest time of an initiation whose tag was removed. Initiations up to this time are refused, even if the
    /// clock is set back.
    forgotten: u32,
}

impl Recent {
    /// Reports whether an initiation was seen before. Also returns true if it was possibly seen before and its tag was
    /// removed since then.
    pub fn has(&self, time: u32, tag: &[u8; 16], account: u32) -> bool {
        time <= self.forgotten || self.tags.contains(&(time, *tag, account))
    }

    /// Records an initiation. Returns `false` if there is no room for its tag: the account has reached its limit, or
    /// the table contains `most` tags.
    pub fn note(&mut self, time: u32, tag: [u8; 16], account: u32, now: u32, most: usize) -> bool {
        self.forget(now);
        let used = self.accounts.get(&account).copied().unwrap_or(0);
        if used >= OF_ACCOUNT || self.tags.len() >= most {
            return false;
        }
        self.tags.insert((time, tag, account));
        self.accounts.insert(account, used + 1);
        true
    }

    /// Forgets the tags of initiations that the clock check rejects at `now`.
    pub fn forget(&mut self, now: u32) {
        while let Some(oldest) = self.tags.first().copied() {
            if oldest.0.saturating_add(CLOCK_SKEW_MAX) >= now {
                return;
            }
            self.tags.remove(&oldest);
            self.forgotten = oldest.0;
            if let Some(used) = self.accounts.get_mut(&oldest.2) {
                *used -= 1;
                if *used == 0 {
                    self.accounts.remove(&oldest.2);
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        self.tags.len()
    }
}
