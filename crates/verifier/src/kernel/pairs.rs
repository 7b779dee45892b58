//! Pairs of the published scheme (wire.md §5). The kernel program accepts a pair's tokens only while its table contains
//! the pair, so each account has a share of the table.

use super::Kernel;
use anyhow::Result;
use api::LivePair;
use std::collections::HashMap;
use std::sync::PoisonError;
use wire::map::LsGrant;
use wire::{Holder, ls};

/// The share of one account is the table's size divided by this number.
const ACCOUNTS: usize = 16;
/// The smallest share of an account.
const LEAST: usize = 4;

impl Kernel {
    /// Reports whether tokens of the published scheme are accepted.
    pub(super) fn takes_pairs(&self) -> bool {
        self.config.speaks(ls::SUITE)
    }

    /// Enters pairs into the table, so that their tokens are accepted. Leaves out pairs that were issued before the
    /// table was created, because the verifier does not know which of their nonces were used by then (wire.md §5.5.1).
    ///
    /// # Errors
    ///
    /// Fails if the time of the table's creation can't be read or written.
    pub fn note_pairs(&self, pairs: &[LivePair], now: u64) -> Result<()> {
        if !self.takes_pairs() {
            return Ok(());
        }
        if self.config.ls_stateless != 0 {
            self.unannounced.lock().unwrap_or_else(PoisonError::into_inner).note(pairs, now, self.config.epoch_length);
            return Ok(());
        }
        let since = match self.verifier.ls_since.get(&0)?.filter(|since| *since != 0) {
            Some(since) => since,
            None => {
                self.verifier.ls_since.set(&0, &now)?;
                now
            }
        };
        let mut room = self.pair_room.lock().unwrap_or_else(PoisonError::into_inner);
        room.forget_ended(now);
        let (mut left, mut beyond_share) = (0, 0);
        for pair in pairs.iter().filter(|pair| pair.issued >= since && u64::from(pair.expires) > now) {
            if !room.take(pair) {
                beyond_share += 1;
                continue;
            }
            let entry = LsGrant::new(pair.epoch, pair.expires, Holder(pair.holder));
            if self.verifier.ls_grants.insert(&pair.handle, &entry).is_err() {
                room.give_back(pair.handle);
                left += 1;
            }
        }
        let all = self.settings.sizes.pairs;
        if left > 0 {
            tracing::error!(
                left,
                room = all,
                "the table of pairs is full: tokens of the remaining pairs are dropped. Raise --max-pairs and restart"
            );
        }
        if beyond_share > 0 {
            let share = room.share;
            tracing::warn!(
                beyond_share,
                share,
                "an account has more pairs than its share of the table: tokens of its remaining pairs are dropped"
            );
        }
        Ok(())
    }
}

/// The pairs in the table, by account.
pub(super) struct Room {
    share: usize,
    pairs: HashMap<u64, Entry>,
    of_account: HashMap<u32, usize>,
}

struct Entry {
    account: u32,
    expires: u32,
}

impl Room {
    /// Creates empty accounting for a table with room for `pairs` pairs.
    pub(super) fn new(pairs: u32) -> Self {
        let share = (pairs as usize / ACCOUNTS).max(LEAST);
        Self { share, pairs: HashMap::new(), of_account: HashMap::new() }
    }

    /// Counts the pair against its account's share; returns false if the share is used up. A pair that is in the table
    /// keeps its room. Pairs without a holder share one account's room.
    fn take(&mut self, pair: &LivePair) -> bool {
        if self.pairs.contains_key(&pair.handle) {
            return true;
        }
        let account = Holder(pair.holder).account();
        let count = self.of_account.entry(account).or_default();
        if *count >= self.share {
            return false;
        }
        *count += 1;
        self.pairs.insert(pair.handle, Entry { account, expires: pair.expires });
        true
    }

    fn give_back(&mut self, handle: u64) {
        if let Some(entry) = self.pairs.remove(&handle) {
            self.uncount(entry.account);
        }
    }

    fn forget_ended(&mut self, now: u64) {
        let ended: Vec<_> = self.pairs.extract_if(|_, entry| u64::from(entry.expires) <= now).collect();
        for (_, entry) in ended {
            self.uncount(entry.account);
        }
    }

    fn uncount(&mut self, account: u32) {
        if let Some(count) = self.of_account.get_mut(&account) {
            *count -= 1;
            if *count == 0 {
                self.of_account.remove(&account);
            }
        }
    }
}

/// Number of pairs whose holders a stateless verifier knows.
const HOLDERS_MAX: usize = 1 << 18;

/// The holders of pairs at a stateless verifier. Such a verifier admits pairs without this table. It uses the table
/// only to find the pairs that end with a session.
#[derive(Default)]
pub(super) struct Holders(HashMap<u64, (u32, u64)>);

impl Holders {
    /// Notes pairs for as long as the verifier has the secret from which their keys derive.
    fn note(&mut self, pairs: &[LivePair], now: u64, epoch_length: u32) {
        self.0.retain(|_, (_, until)| *until > now);
        for pair in pairs {
            let until = (pair.epoch + 2) * u64::from(epoch_length);
            if self.0.len() < HOLDERS_MAX && pair.holder != 0 && until > now {
                self.0.insert(pair.handle, (pair.holder, until));
            }
        }
    }

    /// Returns the pairs of a session.
    pub(super) fn of(&self, holder: u32) -> Vec<u64> {
        self.0.iter().filter(|(_, (of, _))| *of == holder).map(|(handle, _)| *handle).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pairs_of_a_session_are_known_while_their_secret_is() {
        let mut holders = Holders::default();
        let [one, other] = [7, 8].map(|account| pair(account, u64::from(account), 0));
        holders.note(&[one, other], 0, 100);
        assert_eq!(holders.of(one.holder), [7]);
        holders.note(&[], 299, 100);
        assert_eq!(holders.of(other.holder), [8]);
        holders.note(&[], 300, 100);
        assert!(holders.of(other.holder).is_empty() && holders.of(0).is_empty());
    }

    fn pair(account: u32, handle: u64, expires: u32) -> LivePair {
        let Holder(holder) = Holder::new(account, 0).expect("a small account");
        LivePair { handle, epoch: 1, issued: 0, expires, holder }
    }

    #[test]
    fn an_account_that_asks_for_all_the_room_gets_its_share_and_leaves_the_rest() {
        let mut room = Room::new(1024);
        let taken = (0..2000).filter(|handle| room.take(&pair(7, *handle, 500))).count();
        assert_eq!(taken, 64);
        assert!(room.take(&pair(8, 5000, 500)));
    }

    #[test]
    fn a_pair_that_is_announced_again_is_counted_once() {
        let mut room = Room::new(64);
        for _ in 0..10 {
            assert!((0..4).all(|handle| room.take(&pair(7, handle, 500))));
        }
        assert!(!room.take(&pair(7, 4, 500)));
    }

    #[test]
    fn ended_pairs_and_those_without_a_place_give_their_room_back() {
        let mut room = Room::new(64);
        assert!((0..3).all(|handle| room.take(&pair(7, handle, 100))) && room.take(&pair(7, 3, 200)));
        room.forget_ended(100);
        assert!((10..13).all(|handle| room.take(&pair(7, handle, 200))) && !room.take(&pair(7, 13, 200)));
        room.give_back(10);
        assert!(room.take(&pair(7, 13, 200)));
        room.forget_ended(200);
        assert!(room.pairs.is_empty() && room.of_account.is_empty());
    }
}
