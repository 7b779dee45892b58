//! The replay table: used tokens, in buckets. The tag of a token selects its bucket.

use crate::mac::TAG_LEN;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Number of tokens for which a bucket of the replay table has room.
pub const REPLAY_ENTRIES: usize = 8;

/// Maximum difference between a sender's clock and the verifier's, in seconds (wire.md §6.4).
const CLOCK_SKEW_MAX: u32 = 30;
/// Maximum number of seconds by which the clock may be set back without a loss of entries.
const CLOCK_SET_BACK_MAX: u32 = 600;

/// A bucket of the replay table, in one cache line. A token's entry consists of the token's full time and 32 bits of
/// its tag. Another token can overwrite the entry when the clock check does not accept the entry's time any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReplayBucket {
    /// The entries of tokens.
    pub seen: [u64; REPLAY_ENTRIES],
}

/// Result of looking up a token in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayLook {
    /// The token is not in the bucket, and the bucket has room for it.
    Fresh,
    /// The token is in the bucket.
    Seen,
    /// The token is not in the bucket, and the bucket is full of tokens that are still valid.
    Full,
}

impl ReplayBucket {
    /// Returns the index of the bucket for a token with this tag. `seed` and `mask` are in the verifier's settings.
    pub fn index(tag: &[u8; TAG_LEN], seed: u64, mask: u32) -> u32 {
        let hash = (u64::from(word(tag, 0)) << 32 | u64::from(word(tag, 4))) ^ seed;
        (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 & mask
    }

    /// Looks up a token without changing the bucket.
    pub fn look(&self, tag: &[u8; TAG_LEN], time: u32, now: u32) -> ReplayLook {
        if self.seen.contains(&entry(tag, time)) {
            ReplayLook::Seen
        } else if self.seen.iter().all(|other| is_valid(*other, now)) {
            ReplayLook::Full
        } else {
            ReplayLook::Fresh
        }
    }

    /// Stores a token in the first free entry, if [`Self::look`] returns `Fresh` for it. Returns the result of that
    /// look-up.
    pub fn remember(&mut self, tag: &[u8; TAG_LEN], time: u32, now: u32) -> ReplayLook {
        let look = self.look(tag, time, now);
        if look == ReplayLook::Fresh
            && let Some(place) = self.seen.iter_mut().find(|other| !is_valid(**other, now))
        {
            *place = entry(tag, time);
        }
        look
    }
}

impl ReplayBucket {
    /// Returns the entries of those tokens that the clock check accepts at `now`, or will accept later.
    pub fn valid(&self, now: u32) -> impl Iterator<Item = u64> + '_ {
        self.seen.iter().copied().filter(move |entry| is_valid(*entry, now))
    }

    /// Copies `entry`, which comes from another table, into the bucket. Returns whether the bucket then contains the
    /// entry.
    pub fn keep(&mut self, entry: u64, now: u32) -> bool {
        if self.seen.contains(&entry) {
            return true;
        }
        match self.seen.iter_mut().find(|other| !is_valid(**other, now)) {
            Some(place) => *place = entry,
            None => return false,
        }
        true
    }

    /// Returns the time when an entry's token was made, Unix seconds.
    pub const fn time_of(entry: u64) -> u32 {
        (entry >> 32) as u32
    }

    /// Returns the first time (Unix seconds) that is too far ahead of `now` for the clock check. The verifier has
    /// accepted no token yet that was made at this time or later.
    pub const fn none_from(now: u32) -> u32 {
        now.saturating_add(CLOCK_SKEW_MAX + 1)
    }
}

fn entry(tag: &[u8; TAG_LEN], time: u32) -> u64 {
    u64::from(time) << 32 | u64::from(word(tag, 8))
}

/// Reads four bytes of the tag in the byte order in which the kernel program reads them.
fn word(tag: &[u8; TAG_LEN], at: usize) -> u32 {
    tag.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Reports whether the clock check may still accept this token. If the clock is set back by a little, entries that are
/// then in the future stay, because their time comes again.
fn is_valid(entry: u64, now: u32) -> bool {
    let time = (entry >> 32) as u32;
    now.wrapping_sub(time).wrapping_add(CLOCK_SET_BACK_MAX) <= CLOCK_SET_BACK_MAX + CLOCK_SKEW_MAX
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::collections::HashMap;
    use std::vec::Vec;

    const BUCKETS: u32 = 64;
    /// Number of tokens in 64 s: one for every sixteen entries of the table. In a table of the default size, one
    /// account may use as many.
    const LOAD: u32 = BUCKETS * REPLAY_ENTRIES as u32 / 16;
    const WINDOW: u32 = 64;
    const DAY: u32 = 86_400;

    struct Chance(u64);

    impl Chance {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
        }

        fn below(&mut self, bound: u32) -> u32 {
            ((self.next() >> 33) % u64::from(bound)) as u32
        }

        fn tag(&mut self) -> [u8; TAG_LEN] {
            let mut tag = [0; TAG_LEN];
            tag[..8].copy_from_slice(&self.next().to_ne_bytes());
            tag[8..].copy_from_slice(&(self.next() as u32).to_ne_bytes());
            tag
        }
    }

    struct Table {
        buckets: Vec<ReplayBucket>,
        /// Every token that was used, and the time from which the clock check rejects it. The table has to recognise
        /// all of these tokens.
        used: HashMap<([u8; TAG_LEN], u32), u32>,
    }

    impl Table {
        fn new() -> Self {
            Self { buckets: std::vec![ReplayBucket::default(); BUCKETS as usize], used: HashMap::new() }
        }

        fn remember(&mut self, tag: [u8; TAG_LEN], time: u32, now: u32) -> ReplayLook {
            let index = ReplayBucket::index(&tag, 0x1234_5678_9abc_def0, BUCKETS - 1);
            self.buckets[index as usize].remember(&tag, time, now)
        }
    }

    /// Sends a burst of fresh tokens, each of them twice.
    fn burst(table: &mut Table, chance: &mut Chance, tokens: u32, now: u32) {
        for _ in 0..tokens {
            let (tag, time) = (chance.tag(), now + CLOCK_SKEW_MAX - chance.below(2 * CLOCK_SKEW_MAX + 1));
            assert_eq!(table.remember(tag, time, now), ReplayLook::Fresh, "a fresh token at {now}");
            assert_eq!(table.remember(tag, time, now), ReplayLook::Seen, "its copy at {now}");
            table.used.insert((tag, time), time + CLOCK_SKEW_MAX);
        }
        table.used.retain(|_, until| *until >= now);
        let used: Vec<_> =
            table.used.keys().copied().filter(|(_, time)| time.abs_diff(now) <= CLOCK_SKEW_MAX).collect();
        for (tag, time) in used {
            assert_eq!(table.remember(tag, time, now), ReplayLook::Seen, "a copy of {time} at {now}");
        }
    }

    #[test]
    fn over_days_fresh_tokens_are_admitted_and_their_copies_are_not() {
        let (mut table, mut chance) = (Table::new(), Chance(0x5eed));
        let mut now = 1_800_000_000;
        let end = now + 9 * DAY;
        while now < end {
            burst(&mut table, &mut chance, LOAD, now);
            // Usually go on to the next window; sometimes skip an idle night.
            now += WINDOW + if chance.below(200) == 0 { chance.below(DAY) } else { 0 };
        }
    }

    /// Guards against a regression: entries had only twelve bits of their time, and a table that an attacker had filled
    /// once refused new tokens every 4096 s.
    #[test]
    fn a_table_that_was_filled_once_is_free_for_ever() {
        let (mut table, mut chance) = (Table::new(), Chance(0x5eed));
        let start = 1_800_000_000;
        for _ in 0..40 * BUCKETS * REPLAY_ENTRIES as u32 {
            table.remember(chance.tag(), start, start);
        }
        assert!(table.buckets.iter().all(|bucket| bucket.seen.iter().all(|entry| is_valid(*entry, start))));
        for now in (start + CLOCK_SKEW_MAX + 1..start + 2 * DAY).step_by(7) {
            let tag = chance.tag();
            let index = ReplayBucket::index(&tag, 0, BUCKETS - 1) as usize;
            assert_eq!(table.buckets[index].look(&tag, now, now), ReplayLook::Fresh, "{} s later", now - start);
        }
    }

    #[test]
    fn a_clock_set_back_by_minutes_keeps_what_was_used() {
        let (mut table, mut chance) = (Table::new(), Chance(0x5eed));
        let mut now = 1_800_000_000;
        for _ in 0..2000 {
            burst(&mut table, &mut chance, LOAD / 16, now);
            now += WINDOW;
            if chance.below(20) == 0 {
                now -= chance.below(CLOCK_SET_BACK_MAX - 2 * CLOCK_SKEW_MAX);
            }
        }
    }
}
