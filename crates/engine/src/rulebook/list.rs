//! One receiver's entries, packed: some seven bytes each where there are a thousand, all of them kept, so that taking one
//! away brings back what it beat.
//!
//! The records come first, ordered by their sender's scattered number. A seventh of their places stay empty, so that each
//! stands where its number has it reckoned, or a few places behind: to know whether a sender is there, one line of the
//! cache is read. A record is that number and, in as few bytes as do, its *strength*, `(level * ranks + rank) * sayings +
//! saying`: the level is the place of its priority among the list's, the rank that of its freshness, the saying what it
//! says. So of two records the stronger one decides, and only that is looked up in what follows:
//!
//! | bytes | |
//! |---|---|
//! | (4 + width) * places | records |
//! | 4, 4, 4 | how many levels, ranks, sayings |
//! | 6 each | sayings: action (2), terms (2), window or 0 (2) |
//! | 2 each | levels: the priority |
//! | 12 each | runs of consecutive freshnesses: the first one's rank (4), the first one (8) |

use super::{Entry, Sender};
use crate::policy::Action;
use std::num::NonZeroU16;
use std::sync::Arc;

const COUNTS_LEN: usize = 12;
const SAYING_LEN: usize = 6;
const LEVEL_LEN: usize = 2;
const RUN_LEN: usize = 12;
/// Beyond so many places from home, a search goes by halves.
const NEAR: u32 = 32;
/// Bytes of a line of the cache.
const LINE: usize = 64;

/// The entries.
#[derive(Clone)]
pub(super) struct List {
    bytes: Arc<[u8]>,
    /// Records, empty ones and all.
    places: u32,
    /// Those that would do if none had to make room.
    homes: u32,
    /// Bytes that a strength takes. All ones stand for an empty record.
    width: u8,
    /// Whether some entry has a window.
    windows: bool,
    /// Whether some entry is about everyone.
    everyone: bool,
}

/// What an entry says: action, terms, window. Ordered so that denying is stronger.
type Saying = (u16, u16, u16);

impl List {
    /// Packs entries; their order doesn't matter.
    pub(super) fn pack(entries: &[Entry]) -> Self {
        let levels = distinct(entries.iter().map(|entry| entry.priority));
        let sayings = distinct(entries.iter().map(saying));
        let freshnesses = distinct(entries.iter().map(|entry| entry.fresh));
        let mut records: Vec<(u32, u64)> = Vec::with_capacity(entries.len());
        for (place, entry) in entries.iter().enumerate() {
            // A list that is already in order, as most are, needs no search.
            let at_place = freshnesses.get(place) == Some(&entry.fresh);
            let rank = if at_place { place } else { place_of(&freshnesses, &entry.fresh) };
            let strength = place_of(&levels, &entry.priority) * freshnesses.len() + rank;
            records.push((
                scattered(entry.sender),
                (strength * sayings.len() + place_of(&sayings, &saying(entry))) as u64,
            ));
        }
        records.sort_unstable();
        // One strength more: the empty record's.
        let strengths = (levels.len() * freshnesses.len() * sayings.len()) as u64;
        let width = (8 - strengths.leading_zeros() as usize / 8).max(1);
        let homes = (records.len() + records.len() / 6) as u32;
        let mut bytes = Vec::with_capacity((4 + width) * homes as usize + 4 * LINE);
        let mut record = |sender: u32, strength: u64| {
            bytes.extend_from_slice(&sender.to_le_bytes());
            bytes.extend_from_slice(&strength.to_le_bytes()[..width]);
        };
        let mut places = 0;
        for (sender, strength) in records {
            while places < home(sender, homes) {
                record(least_at(places, homes), u64::MAX);
                places += 1;
            }
            record(sender, strength);
            places += 1;
        }
        for count in [levels.len(), freshnesses.len(), sayings.len()] {
            bytes.extend_from_slice(&(count as u32).to_le_bytes());
        }
        for (action, terms, window) in &sayings {
            [action, terms, window].iter().for_each(|field| bytes.extend_from_slice(&field.to_le_bytes()));
        }
        levels.iter().for_each(|priority| bytes.extend_from_slice(&priority.to_le_bytes()));
        for (rank, fresh) in freshnesses.iter().enumerate() {
            if rank == 0 || *fresh - freshnesses[rank - 1] != 1 {
                bytes.extend_from_slice(&(rank as u32).to_le_bytes());
                bytes.extend_from_slice(&fresh.to_le_bytes());
            }
        }
        let everyone = entries.iter().any(|entry| entry.sender == Sender::EVERYONE);
        let windows = sayings.iter().any(|(.., window)| *window != 0);
        Self { bytes: bytes.into(), places, homes, width: width as u8, windows, everyone }
    }

    /// What it takes of memory behind the pointer.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// All entries, ordered by their sender's scattered number.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        (0..self.places).filter_map(|place| Some(self.entry(place, self.strength(place)?)))
    }

    /// Whether an entry about one of `senders` does what is asked.
    pub(super) fn any_about(&self, senders: &[Sender], ask: impl Fn(&Entry) -> bool) -> bool {
        let mut found = false;
        for sender in senders {
            self.about(*sender, |place, strength| found = found || ask(&self.entry(place, strength)));
        }
        found
    }

    /// The strongest entry about one of `senders` whose window, if it has one, is `open`.
    #[inline]
    pub(super) fn deciding(&self, senders: &[Sender], mut open: impl FnMut(NonZeroU16) -> bool) -> Option<Entry> {
        let mut deciding: Option<(u64, u32)> = None;
        for sender in senders {
            self.about(*sender, |place, strength| {
                let stronger = deciding.is_none_or(|(strongest, _)| strength > strongest);
                if stronger && (!self.windows || self.entry(place, strength).window.is_none_or(&mut open)) {
                    deciding = Some((strength, place));
                }
            });
        }
        deciding.map(|(strength, place)| self.entry(place, strength))
    }

    /// Reads where the entries of these senders should stand, and what they would be looked up in; gives something of it.
    #[inline]
    pub(super) fn touch(&self, senders: &[Sender]) -> u32 {
        let behind = self.places as usize * self.record_length();
        let read = four(&self.bytes, behind) ^ four(&self.bytes, behind + LINE);
        senders.iter().fold(read, |read, sender| read ^ self.sender(home(scattered(*sender), self.homes)))
    }

    /// Calls `each` with place and strength of every entry about a sender.
    #[inline]
    fn about(&self, sender: Sender, mut each: impl FnMut(u32, u64)) {
        if sender == Sender::EVERYONE && !self.everyone {
            return;
        }
        let wanted = scattered(sender);
        let mut place = self.first_from(wanted);
        while place < self.places && self.sender(place) == wanted {
            if let Some(strength) = self.strength(place) {
                each(place, strength);
            }
            place += 1;
        }
    }

    /// The first place whose sender is `wanted` or behind it.
    #[inline]
    fn first_from(&self, wanted: u32) -> u32 {
        let first = home(wanted, self.homes);
        let near = (first + NEAR).min(self.places);
        for place in first..near {
            if self.sender(place) >= wanted {
                return place;
            }
        }
        // Where one sender has many entries, others stand far from their homes.
        let (mut low, mut high) = (first.max(near), self.places.max(near));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.sender(middle) < wanted { low = middle + 1 } else { high = middle }
        }
        low
    }

    #[inline]
    fn record_length(&self) -> usize {
        4 + usize::from(self.width)
    }

    #[inline]
    fn sender(&self, place: u32) -> u32 {
        four(&self.bytes, place as usize * self.record_length())
    }

    /// The strength of what stands at a place, unless that is empty.
    #[inline]
    fn strength(&self, place: u32) -> Option<u64> {
        let at = place as usize * self.record_length() + 4;
        // Eight are read at once, for a copy of changing length is a call; the counts are behind the last record.
        let eight = self.bytes.get(at..at + 8).and_then(|eight| eight.first_chunk())?;
        let all_ones = u64::MAX >> (64 - 8 * self.width);
        Some(u64::from_le_bytes(*eight) & all_ones).filter(|strength| *strength != all_ones)
    }

    fn entry(&self, place: u32, strength: u64) -> Entry {
        let counts = self.places as usize * self.record_length();
        let [levels, ranks, sayings] = [0, 4, 8].map(|at| u64::from(four(&self.bytes, counts + at)));
        let (level, rank, saying) = (strength / sayings / ranks, strength / sayings % ranks, strength % sayings);
        let said = counts + COUNTS_LEN;
        let priorities = said + SAYING_LEN * sayings as usize;
        let field = |index: usize| two(&self.bytes, said + SAYING_LEN * saying as usize + 2 * index);
        Entry {
            sender: gathered(self.sender(place)),
            action: if field(0) == 0 { Action::Allow } else { Action::Deny },
            priority: two(&self.bytes, priorities + LEVEL_LEN * level as usize),
            fresh: self.fresh(priorities + LEVEL_LEN * levels as usize, rank),
            terms: field(1),
            window: NonZeroU16::new(field(2)),
        }
    }

    fn fresh(&self, runs: usize, rank: u64) -> u64 {
        let first = |run: usize| u64::from(four(&self.bytes, runs + RUN_LEN * run));
        let (mut low, mut high) = (0, (self.bytes.len() - runs) / RUN_LEN);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if first(middle) <= rank { low = middle } else { high = middle }
        }
        let at = runs + RUN_LEN * low + 4;
        let base = u64::from(four(&self.bytes, at)) | (u64::from(four(&self.bytes, at + 4)) << 32);
        base + (rank - first(low))
    }
}

fn saying(entry: &Entry) -> Saying {
    (u16::from(entry.action == Action::Deny), entry.terms, entry.window.map_or(0, NonZeroU16::get))
}

fn distinct<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    if !values.is_sorted() {
        values.sort_unstable();
    }
    values.dedup();
    values
}

fn place_of<T: Ord>(values: &[T], value: &T) -> usize {
    values.partition_point(|other| other < value)
}

#[inline]
fn two(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|two| two.first_chunk()).map_or(0, |two| u16::from_le_bytes(*two))
}

#[inline]
fn four(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.first_chunk()).map_or(0, |four| u32::from_le_bytes(*four))
}

/// Where a scattered number should stand.
#[inline]
fn home(scattered: u32, homes: u32) -> u32 {
    ((u64::from(scattered) * u64::from(homes)) >> 32) as u32
}

/// The least scattered number with this home: an empty record has it, so that the order holds throughout.
fn least_at(place: u32, homes: u32) -> u32 {
    (u64::from(place) << 32).div_ceil(u64::from(homes).max(1)) as u32
}

/// 2³² over the golden ratio: multiples of it spread evenly, whatever numbers are given out.
const SPREAD: u32 = 0x9e37_79b1;
/// `SPREAD`'s inverse modulo 2³².
const SPREAD_BACK: u32 = inverse(SPREAD);

const fn inverse(odd: u32) -> u32 {
    let mut back = odd;
    let mut round = 0;
    while round < 5 {
        back = back.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(back)));
        round += 1;
    }
    back
}

#[inline]
fn scattered(sender: Sender) -> u32 {
    sender.0.wrapping_mul(SPREAD)
}

#[inline]
fn gathered(scattered: u32) -> Sender {
    Sender(scattered.wrapping_mul(SPREAD_BACK))
}
