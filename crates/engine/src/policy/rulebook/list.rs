//! One receiver's entries, packed: in a list of a thousand entries, each takes less than eight bytes. The list also
//! keeps entries that another entry overrides: they are in force again once that entry is removed.
//!
//! The list is a table of cache lines, 16 words each. A hash of the sender's number determines the line of its entries,
//! so one line is read to find out whether a sender is present. A line has slots for senders, then a slot for the
//! *strength* of each sender's entry, then an overflow word. Each sender has one of this word's 32 bits. If the bit is
//! set, a search for the sender has to continue in the next line. Seven eighths of the slots are taken.
//!
//! A strength is `(level * ranks + rank) << bits | saying`. It takes two, four or eight bytes, as few as suffice. The
//! level is the index of the entry's priority among the list's priorities. The rank is the index of the entry's
//! freshness. The saying is the index of the entry's action, terms and window. So of two entries, the entry with the
//! greater strength decides. Only for this entry, a decision reads the words behind the table:
//!
//! | words | |
//! |---|---|
//! | 1 each | five counts: ranks that strengths have room for, ranks in use, sayings, sayings that allow, levels |
//! | 1 each | sayings: the window or 0 in the low bits, the terms above; sayings that allow come first |
//! | 1 each | levels: the priority |
//! | 3 each | runs of consecutive freshness values: the rank of the first one, and its value |
//!
//! There is room for more ranks than are in use, so most changes of an entry copy the lines and change a few words of
//! the copy. The list is packed again only if there is no room left, or if the new entry is older than the freshest
//! entry, or has a priority or a saying that no other entry has.

use super::fetch::fetch;
use super::{Entry, Sender};
use crate::policy::Action;
use std::cmp::Ordering;
use std::iter::repeat_n;
use std::num::NonZeroU16;
use std::sync::Arc;

/// Number of words of a line.
const WORDS: usize = 16;
/// Index of a line's overflow word.
const MORE: usize = WORDS - 1;
const COUNTS: usize = 5;
/// Index, among the counts, of the number of ranks in use.
const IN_USE: usize = 1;
/// Number of further ranks for which a new list has room, if this room does not make the list's strengths wider.
const SPARE: usize = 64;
/// Number of lines in which [`List::with`] looks for a free slot.
const REACH: usize = 8;
/// Number of words of a run.
const RUN: usize = 3;
/// Maximum number of senders that [`List::look`] examines.
const SEEN: usize = u64::BITS as usize;

/// A packed list of entries.
#[derive(Clone)]
pub(super) struct List {
    /// The table, followed by the other words.
    lines: Arc<[Line]>,
    /// Number of lines of the table.
    homes: u32,
    width: Width,
    /// Number of low bits of a strength that hold the saying.
    bits: u8,
    /// Whether some entry has a window.
    windows: bool,
    /// Whether some entry is about everyone.
    everyone: bool,
}

/// The contents of one cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u32; WORDS]);

/// Size of a strength, in bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    Two,
    Four,
    Eight,
}

/// A sender's number as lists store it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Scattered(u32);

impl From<Sender> for Scattered {
    /// The result is never 0, because no sender has the highest number. 0 marks an empty slot.
    #[inline]
    fn from(sender: Sender) -> Self {
        Self(sender.0.wrapping_add(1).wrapping_mul(SPREAD))
    }
}

impl From<Scattered> for Sender {
    #[inline]
    fn from(scattered: Scattered) -> Self {
        Self(scattered.0.wrapping_mul(SPREAD_BACK).wrapping_sub(1))
    }
}

impl Scattered {
    pub(super) const EVERYONE: Self = Self((Sender::EVERYONE.0 + 1).wrapping_mul(SPREAD));

    /// Returns the line that the sender hashes to.
    #[inline]
    fn home(self, homes: u32) -> usize {
        ((u64::from(self.0) * u64::from(homes)) >> 32) as usize
    }

    /// Returns the sender's bit in overflow words.
    #[inline]
    fn more(self) -> u32 {
        1 << (self.0 % 32)
    }
}

impl List {
    /// Packs entries; their order doesn't matter.
    pub(super) fn pack(entries: &[Entry]) -> Self {
        let levels = Distinct::of(entries, |entry| u64::from(entry.priority));
        let sayings = Distinct::of(entries, saying);
        let ranks = Ranks::of(entries);
        let bits = usize::BITS - sayings.values.len().saturating_sub(1).leading_zeros();
        let bound = ((levels.values.len() * ranks.count) as u128) << bits;
        let widths = [Width::Two, Width::Four];
        let width = widths.into_iter().find(|width| bound <= width.strengths()).unwrap_or(Width::Eight);
        let fit = (width.strengths() >> bits) / levels.values.len().max(1) as u128;
        let room = fit.min((ranks.count + SPARE) as u128) as usize;
        let strength = |place: usize, entry: &Entry| {
            let rank = levels.places[place] as usize * room + ranks.of_entry(place, entry);
            ((rank as u64) << bits) | u64::from(sayings.places[place])
        };
        let slots = width.slots();
        let homes = (entries.len() * 8).div_ceil(slots * 7);
        let words = COUNTS + sayings.values.len() + levels.values.len() + RUN * ranks.runs.len();
        // The lines are built in place: a copy would leave a hole in the heap for each list.
        let mut made: Arc<[Line]> = repeat_n(Line([0; WORDS]), homes + words.div_ceil(WORDS)).collect();
        let lines = Arc::get_mut(&mut made).expect("INVARIANT: nobody else has it");
        let mut taken = vec![0u8; homes];
        for (place, entry) in entries.iter().enumerate() {
            let sender = Scattered::from(entry.sender);
            let mut at = sender.home(homes as u32);
            while usize::from(taken[at]) == slots {
                lines[at].0[MORE] |= sender.more();
                at = (at + 1) % homes;
            }
            lines[at].put(width, taken[at].into(), sender, strength(place, entry));
            taken[at] += 1;
        }
        let allows = sayings.values.partition_point(|saying| *saying <= u64::from(u32::MAX));
        let counts = [room, ranks.count, sayings.values.len(), allows, levels.values.len()];
        let mut words: Vec<u32> = counts.iter().map(|count| *count as u32).collect();
        words.extend(sayings.values.iter().chain(&levels.values).map(|value| *value as u32));
        words.extend(ranks.runs.iter().flat_map(|(rank, revision)| [&[*rank][..], &halves(*revision)].concat()));
        for (line, chunk) in lines[homes..].iter_mut().zip(words.chunks(WORDS)) {
            line.0[..chunk.len()].copy_from_slice(chunk);
        }
        Self {
            homes: homes as u32,
            width,
            bits: bits as u8,
            windows: sayings.values.iter().any(|saying| window_of(*saying as u32).is_some()),
            everyone: entries.iter().any(|entry| entry.sender == Sender::EVERYONE),
            lines: made,
        }
    }

    /// Returns a copy of the list with one more entry; `None` if the copy has no place for the entry, so that the list
    /// must be packed again.
    pub(super) fn with(&self, entry: &Entry) -> Option<Self> {
        if self.homes == 0 {
            return None;
        }
        let [room, used, sayings, allows, levels] = self.counts();
        let level = (0..levels).find(|level| self.word(COUNTS + sayings + level) == u32::from(entry.priority))?;
        let mut of_action = if entry.action == Action::Allow { 0..allows } else { allows..sayings };
        let said = of_action.find(|place| self.word(COUNTS + place) == saying(entry) as u32)?;
        let runs = COUNTS + sayings + levels;
        let last = used.checked_sub(1)?;
        let freshest = self.revision(runs, last);
        let (rank, begins) = match entry.revision.cmp(&freshest) {
            Ordering::Equal => (last, false),
            Ordering::Greater if used < room => (used, entry.revision - freshest > 1),
            _ => return None,
        };
        let next = runs + RUN * (self.run(runs, last) + 1);
        let homes = self.homes as usize;
        let longer = begins && next + RUN > (self.lines.len() - homes) * WORDS;
        let more = repeat_n(Line([0; WORDS]), usize::from(longer));
        let mut made: Arc<[Line]> = self.lines.iter().copied().chain(more).collect();
        let lines = Arc::get_mut(&mut made).expect("INVARIANT: nobody else has it");
        lines[homes].0[IN_USE] = rank.max(last) as u32 + 1;
        if begins {
            let run = [&[rank as u32][..], &halves(entry.revision)].concat();
            for (place, word) in (next..).zip(run) {
                lines[homes + place / WORDS].0[place % WORDS] = word;
            }
        }
        let strength = (((level * room + rank) as u64) << self.bits) | said as u64;
        let sender = Scattered::from(entry.sender);
        let mut at = sender.home(self.homes);
        for _ in 0..homes.min(REACH) {
            if let Some(slot) = lines[at].0[..self.width.slots()].iter().position(|word| *word == 0) {
                lines[at].put(self.width, slot, sender, strength);
                let windows = self.windows || entry.window.is_some();
                let everyone = self.everyone || entry.sender == Sender::EVERYONE;
                return Some(Self { lines: made, windows, everyone, ..self.clone() });
            }
            lines[at].0[MORE] |= sender.more();
            at = (at + 1) % homes;
        }
        None
    }

    /// Returns the list without one entry; `None` if the list does not contain the entry.
    pub(super) fn without(&self, entry: &Entry) -> Option<Self> {
        let sender = Scattered::from(entry.sender);
        let homes = self.homes as usize;
        let mut at = sender.home(self.homes);
        for _ in 0..homes {
            let line = &self.lines[at];
            let is_it = |slot: &usize| {
                line.0[*slot] == sender.0 && self.entry(sender, line.strength(self.width, *slot)) == *entry
            };
            if let Some(slot) = (0..self.width.slots()).find(is_it) {
                let mut made: Arc<[Line]> = Arc::from(&*self.lines);
                Arc::get_mut(&mut made).expect("INVARIANT: nobody else has it")[at].clear(self.width, slot);
                return Some(Self { lines: made, ..self.clone() });
            }
            if line.0[MORE] & sender.more() == 0 {
                return None;
            }
            at = (at + 1) % homes;
        }
        None
    }

    /// Returns the size of the list's heap allocation, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// Iterates over all entries, in no particular order.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let slots = (0..self.homes as usize).flat_map(|at| (0..self.width.slots()).map(move |slot| (at, slot)));
        slots.filter_map(|(at, slot)| {
            let line = &self.lines[at];
            (line.0[slot] != 0).then(|| self.entry(Scattered(line.0[slot]), line.strength(self.width, slot)))
        })
    }

    /// Reports whether an entry about one of `senders` exists for which `ask` returns true.
    pub(super) fn any_about(&self, senders: &[Scattered], ask: impl Fn(&Entry) -> bool) -> bool {
        let mut found = false;
        self.about(senders, self.look(senders), |sender, strength| found = found || ask(&self.entry(sender, strength)));
        found
    }

    /// Returns the strongest entry about one of `senders` whose window, if it has one, is `open`. `seen` is the result
    /// of [`Self::look`].
    #[inline]
    pub(super) fn deciding(
        &self,
        senders: &[Scattered],
        seen: u64,
        mut open: impl FnMut(NonZeroU16) -> bool,
    ) -> Option<Entry> {
        let mut deciding: Option<(u64, Scattered)> = None;
        self.about(senders, seen, |sender, strength| {
            let stronger = deciding.is_none_or(|(strongest, _)| strength > strongest);
            if stronger && (!self.windows || window_of(self.saying(strength)).is_none_or(&mut open)) {
                deciding = Some((strength, sender));
            }
        });
        deciding.map(|(strength, sender)| self.entry(sender, strength))
    }

    /// Prefetches every line that a decision about these senders reads first.
    #[inline]
    pub(super) fn fetch(&self, senders: &[Scattered]) {
        let behind = self.homes as usize;
        self.lines.get(behind..).into_iter().flatten().take(2).for_each(fetch);
        for sender in self.relevant(senders) {
            self.lines.get(sender.home(self.homes)).into_iter().for_each(fetch);
        }
    }

    /// Returns a bit for each of the first [`SEEN`] senders. The bit is set if the sender's line has an entry about the
    /// sender or an overflow bit for it. Because of the overflow bit, false positives are possible. Most lines have
    /// neither, so the method reads and compares the lines without branches, and the loads overlap. For a sender with
    /// an overflow bit, it prefetches the next line.
    #[inline]
    pub(super) fn look(&self, senders: &[Scattered]) -> u64 {
        let (mut seen, mut sent_on) = (0, 0);
        let relevant = self.relevant(senders);
        for (place, sender) in relevant.iter().take(SEEN).enumerate() {
            let Some(line) = self.lines.get(sender.home(self.homes)) else { continue };
            let sends_on = u64::from(line.0[MORE] & sender.more() != 0);
            seen |= (u64::from(line.0.contains(&sender.0)) | sends_on) << place;
            sent_on |= sends_on << place;
        }
        while let Some(sender) = relevant.get(sent_on.trailing_zeros() as usize) {
            self.lines.get(sender.home(self.homes) + 1).into_iter().for_each(fetch);
            sent_on &= sent_on - 1;
        }
        seen
    }

    /// Returns `senders`. Leaves out the `EVERYONE` at the end if no entry is about everyone.
    #[inline]
    fn relevant<'s>(&self, senders: &'s [Scattered]) -> &'s [Scattered] {
        match senders {
            [senders @ .., Scattered::EVERYONE] if !self.everyone => senders,
            _ => senders,
        }
    }

    /// Calls `each` with the sender and the strength of every entry about one of `senders`.
    #[inline]
    fn about(&self, senders: &[Scattered], mut seen: u64, mut each: impl FnMut(Scattered, u64)) {
        while let Some(sender) = senders.get(seen.trailing_zeros() as usize).filter(|_| seen != 0) {
            self.about_one(*sender, &mut each);
            seen &= seen - 1;
        }
        senders.iter().skip(SEEN).for_each(|sender| self.about_one(*sender, &mut each));
    }

    #[inline]
    fn about_one(&self, sender: Scattered, mut each: impl FnMut(Scattered, u64)) {
        let homes = self.homes as usize;
        let mut at = sender.home(self.homes);
        // Even if every line has the overflow bit, each line is read only once.
        for _ in 0..homes {
            let line = &self.lines[at];
            let mut slots = line.having(sender) & ((1 << self.width.slots()) - 1);
            while slots != 0 {
                each(sender, line.strength(self.width, slots.trailing_zeros() as usize));
                slots &= slots - 1;
            }
            if line.0[MORE] & sender.more() == 0 {
                return;
            }
            at = if at + 1 == homes { 0 } else { at + 1 };
        }
    }

    /// Returns a word behind the table.
    #[inline]
    fn word(&self, place: usize) -> u32 {
        self.lines.get(self.homes as usize + place / WORDS).map_or(0, |line| line.0[place % WORDS])
    }

    fn double(&self, place: usize) -> u64 {
        u64::from(self.word(place)) | (u64::from(self.word(place + 1)) << 32)
    }

    #[inline]
    fn counts(&self) -> [usize; COUNTS] {
        let [room, used, sayings, allows, levels, ..] = self.lines[self.homes as usize].0;
        [room as usize, used as usize, sayings as usize, allows as usize, levels as usize]
    }

    #[inline]
    fn saying_of(&self, strength: u64) -> usize {
        strength as usize & ((1 << self.bits) - 1)
    }

    #[inline]
    fn saying(&self, strength: u64) -> u32 {
        self.word(COUNTS + self.saying_of(strength))
    }

    #[inline]
    fn entry(&self, sender: Scattered, strength: u64) -> Entry {
        let [room, _, sayings, allows, levels] = self.counts();
        let rank = strength >> self.bits;
        let (level, rank) = (rank as usize / room, rank as usize % room);
        let saying = self.saying(strength);
        Entry {
            sender: sender.into(),
            action: if self.saying_of(strength) < allows { Action::Allow } else { Action::Deny },
            priority: self.word(COUNTS + sayings + level) as u16,
            revision: self.revision(COUNTS + sayings + levels, rank),
            terms: (saying >> 16) as u16,
            window: window_of(saying),
        }
    }

    #[inline]
    fn revision(&self, runs: usize, rank: usize) -> u64 {
        let run = self.run(runs, rank);
        self.double(runs + RUN * run + 1) + (rank - self.word(runs + RUN * run) as usize) as u64
    }

    /// Returns the run that contains a rank.
    #[inline]
    fn run(&self, runs: usize, rank: usize) -> usize {
        let first = |run: usize| self.word(runs + RUN * run) as usize;
        // The last line is padded with words of 0; only the first run has rank 0.
        let most = (self.lines.len() - self.homes as usize) * WORDS;
        let (mut low, mut high) = (0, (most - runs) / RUN);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if first(middle) <= rank && first(middle) != 0 { low = middle } else { high = middle }
        }
        low
    }
}

impl Line {
    /// Returns a word with one bit for each slot that equals `wanted`. Has no branches, so that the processor compares
    /// four words at a time.
    #[inline]
    fn having(&self, wanted: Scattered) -> u32 {
        let mut having = [0; WORDS];
        for (place, (having, word)) in having.iter_mut().zip(&self.0).enumerate() {
            *having = if *word == wanted.0 { 1 << place } else { 0 };
        }
        having.iter().fold(0, |all, one| all | one)
    }

    #[inline]
    fn strength(&self, width: Width, slot: usize) -> u64 {
        let word = |place: usize| self.0[place % WORDS];
        match width {
            Width::Two => u64::from(word(10 + slot / 2) >> (16 * (slot % 2)) & 0xffff),
            Width::Four => u64::from(word(7 + slot)),
            Width::Eight => u64::from(word(5 + 2 * slot)) | (u64::from(word(6 + 2 * slot)) << 32),
        }
    }

    fn put(&mut self, width: Width, slot: usize, sender: Scattered, strength: u64) {
        self.0[slot] = sender.0;
        match width {
            Width::Two => self.0[10 + slot / 2] |= (strength as u32) << (16 * (slot % 2)),
            Width::Four => self.0[7 + slot] = strength as u32,
            Width::Eight => self.0[5 + 2 * slot..7 + 2 * slot].copy_from_slice(&halves(strength)),
        }
    }

    fn clear(&mut self, width: Width, slot: usize) {
        self.0[slot] = 0;
        match width {
            Width::Two => self.0[10 + slot / 2] &= !(0xffff << (16 * (slot % 2))),
            Width::Four => self.0[7 + slot] = 0,
            Width::Eight => self.0[5 + 2 * slot..7 + 2 * slot].fill(0),
        }
    }
}

impl Width {
    /// Returns the number of entries that fit in a line with their strengths and the overflow word.
    #[inline]
    const fn slots(self) -> usize {
        match self {
            Self::Two => 10,
            Self::Four => 7,
            Self::Eight => 5,
        }
    }

    /// Returns the number of different strengths.
    const fn strengths(self) -> u128 {
        match self {
            Self::Two => 1 << 16,
            Self::Four => 1 << 32,
            Self::Eight => 1 << 64,
        }
    }
}

/// The distinct values of the entries in ascending order, and for each entry the index of its value.
struct Distinct {
    values: Vec<u64>,
    places: Vec<u32>,
}

impl Distinct {
    /// Collects the distinct values. There are usually few, and a small table of those already seen finds most of them.
    fn of(entries: &[Entry], value: impl Fn(&Entry) -> u64) -> Self {
        const SEEN: usize = 256;
        let mut seen: [(u64, u32); SEEN] = [(u64::MAX, 0); SEEN];
        let mut values: Vec<(u64, u32)> = Vec::new();
        let mut places = Vec::with_capacity(entries.len());
        for entry in entries {
            let value = value(entry);
            let (known, number) = &mut seen[(value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize];
            if *known != value {
                (*known, *number) = (value, values.len() as u32);
                values.push((value, *number));
            }
            places.push(*number);
        }
        values.sort_unstable();
        let mut renumbered = vec![0; values.len()];
        let mut distinct: Vec<u64> = Vec::with_capacity(values.len());
        for (value, number) in values {
            if distinct.last() != Some(&value) {
                distinct.push(value);
            }
            renumbered[number as usize] = distinct.len() as u32 - 1;
        }
        places.iter_mut().for_each(|place| *place = renumbered[*place as usize]);
        Self { values: distinct, places }
    }
}

/// The ranks of freshness values.
struct Ranks {
    count: usize,
    /// All freshness values, ascending; empty if they ascend in the order of the entries.
    sorted: Vec<u64>,
    /// The rank and freshness at which each run of consecutive values begins.
    runs: Vec<(u32, u64)>,
}

impl Ranks {
    fn of(entries: &[Entry]) -> Self {
        let mut ranks = Self { count: 0, sorted: Vec::new(), runs: Vec::new() };
        let mut before = None;
        let mut add = |revision: u64| {
            if before.and_then(|before: u64| before.checked_add(1)) != Some(revision) {
                ranks.runs.push((ranks.count as u32, revision));
            }
            before = Some(revision);
            ranks.count += 1;
        };
        if entries.is_sorted_by(|one, other| one.revision < other.revision) {
            entries.iter().for_each(|entry| add(entry.revision));
            return ranks;
        }
        let mut sorted: Vec<_> = entries.iter().map(|entry| entry.revision).collect();
        sorted.sort_unstable();
        sorted.dedup();
        sorted.iter().for_each(|revision| add(*revision));
        ranks.sorted = sorted;
        ranks
    }

    fn of_entry(&self, place: usize, entry: &Entry) -> usize {
        if self.sorted.is_empty() { place } else { self.sorted.partition_point(|revision| *revision < entry.revision) }
    }
}

/// Encodes an entry's action, terms and window as a number, which is greater for an entry that denies.
fn saying(entry: &Entry) -> u64 {
    let denies = u64::from(entry.action == Action::Deny);
    (denies << 32) | (u64::from(entry.terms) << 16) | u64::from(entry.window.map_or(0, NonZeroU16::get))
}

#[inline]
fn window_of(saying: u32) -> Option<NonZeroU16> {
    NonZeroU16::new(saying as u16)
}

fn halves(double: u64) -> [u32; 2] {
    [double as u32, (double >> 32) as u32]
}

/// 2³² divided by the golden ratio. Its multiples spread evenly, however the senders' numbers were assigned.
const SPREAD: u32 = 0x9e37_79b1;
/// Inverse of `SPREAD` modulo 2³².
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
