//! The replay table: tokens that were used, in buckets that their tags choose.

use crate::mac::TAG_LEN;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Tokens that a bucket of the replay table holds.
pub const REPLAY_ENTRIES: usize = 8;

const USED: u32 = 1 << 31;
const TIME: u32 = 0xfff;
/// The most that a sender's clock may differ, seconds (wire.md §6.4).
const CLOCK_SKEW_MAX: u32 = 30;
/// How far the clock may be set back without entries being lost, seconds.
const CLOCK_SET_BACK_MAX: u32 = 600;

/// A bucket of the replay table. A token's entry is a set bit, 19 bits of its tag, and the low 12 of its time; it is free
/// once the clock check refuses that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReplayBucket {
    /// The tokens.
    pub seen: [u32; REPLAY_ENTRIES],
}

/// What a bucket says of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayLook {
    /// It is not in the bucket, and there is room for it.
    Fresh,
    /// It is in the bucket.
    Seen,
    /// It is not in the bucket, which is full of tokens that are still valid.
    Full,
}

impl ReplayBucket {
    /// The index of the bucket for a token with this tag, by the seed and mask of the verifier's settings.
    pub fn index(tag: &[u8; TAG_LEN], seed: u64, mask: u32) -> u32 {
        let hash = (u64::from(word(tag, 0)) << 32 | u64::from(word(tag, 4))) ^ seed;
        (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 & mask
    }

    /// Looks for a token, and changes nothing.
    pub fn look(&self, tag: &[u8; TAG_LEN], time: u32, now: u32) -> ReplayLook {
        let entry = USED | word(tag, 8) & !TIME | time & TIME;
        if self.seen.contains(&entry) {
            ReplayLook::Seen
        } else if self.seen.iter().all(|other| is_live(*other, now)) {
            ReplayLook::Full
        } else {
            ReplayLook::Fresh
        }
    }
}

/// Four bytes of the tag as the kernel program reads them.
fn word(tag: &[u8; TAG_LEN], at: usize) -> u32 {
    tag.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn is_live(entry: u32, now: u32) -> bool {
    let age = now.wrapping_sub(entry).wrapping_add(CLOCK_SET_BACK_MAX) & TIME;
    entry & USED != 0 && age <= CLOCK_SET_BACK_MAX + CLOCK_SKEW_MAX
}
