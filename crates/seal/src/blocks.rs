//! Splits blocks into parts for sending, and reassembles blocks from received parts (wire.md §9.4.1, §9.4.2).

use std::collections::BTreeMap;
use std::mem;
use wire::seal::record::{BLOCK_MAX, PARTS_MAX};
use wire::seal::{Compression, Content, Index, Part, RecordHeader, Suite, Treatment};

/// Maximum number of incomplete blocks of a tunnel at a time.
const BLOCKS_MAX: usize = 2;

/// Splits a compressed block into parts of at most `room` bytes, in order. Returns `None` if the block is empty, if
/// `room` is 0, or if the block has more than [`PARTS_MAX`] parts.
pub fn parts(block: &[u8], room: usize) -> Option<impl ExactSizeIterator<Item = (Part, &[u8])>> {
    if room == 0 || block.is_empty() || block.len().div_ceil(room) > PARTS_MAX {
        return None;
    }
    let last = block.len().div_ceil(room) - 1;
    let numbered = block.chunks(room).enumerate();
    Some(numbered.map(move |(number, bytes)| {
        let part = Part::new(number, number == last);
        (part.expect("there are no more than PARTS_MAX"), bytes)
    }))
}

/// Identity of a block: the fields that all its parts share.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name {
    index: Index,
    lane: u8,
    /// Number of the record with the first part.
    first: u64,
    treatment: Treatment,
    compression: Compression,
    suite: Suite,
}

struct Block {
    name: Name,
    /// The consecutive parts received so far, from the first on.
    joined: Vec<u8>,
    next: u8,
    /// The parts received after a missing part. The `bool` says whether the part is the last one of the block.
    ahead: BTreeMap<u8, (bool, Vec<u8>)>,
    bytes: usize,
}

/// Reassembles a tunnel's blocks. A joiner holds at most two incomplete blocks, each with at most [`BLOCK_MAX`] bytes.
#[derive(Default)]
pub struct Joiner {
    /// The incomplete blocks, oldest first.
    blocks: Vec<Block>,
}

/// A complete block, still compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Compression of the block.
    pub compression: Compression,
    /// Treatment of the block's records.
    pub treatment: Treatment,
    /// The compressed bytes.
    pub bytes: Vec<u8>,
}

/// Reason why a block is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotJoined {
    /// Parts of the block are missing.
    Missing,
    /// The block is `malformed`: it is too long, has a part after its last one, or has a part number that exceeds the
    /// counter of the record. The joiner has dropped the block's parts.
    Malformed,
}

impl Joiner {
    /// Adds the body of an opened record, which is a part of a block. Returns the block if this part completes it. The
    /// caller must add each record only once.
    ///
    /// # Errors
    ///
    /// Returns `Missing` if other parts of the block have not arrived yet. Returns `Malformed` if the block is invalid,
    /// or if the record is not a part of a block.
    pub fn take(&mut self, header: &RecordHeader, body: &[u8]) -> Result<Joined, NotJoined> {
        let Content::Block { treatment, compression, part } = header.content else { return Err(NotJoined::Malformed) };
        let first = header.counter.number().checked_sub(part.number().into()).ok_or(NotJoined::Malformed)?;
        let (index, lane, suite) = (header.index, header.counter.lane(), header.suite);
        let name = Name { index, lane, first, treatment, compression, suite };
        let place = self.blocks.iter().position(|block| block.name == name).unwrap_or_else(|| {
            if self.blocks.len() >= BLOCKS_MAX {
                self.blocks.remove(0);
            }
            self.blocks.push(Block { name, joined: Vec::new(), next: 0, ahead: BTreeMap::new(), bytes: 0 });
            self.blocks.len() - 1
        });
        let outcome = self.blocks[place].take(part, body);
        if outcome != Err(NotJoined::Missing) {
            self.blocks.remove(place);
        }
        outcome
    }

    /// Discards all incomplete blocks.
    pub fn clear(&mut self) {
        self.blocks = Vec::new();
    }

    /// Reports whether the joiner holds an incomplete block.
    pub fn is_waiting(&self) -> bool {
        !self.blocks.is_empty()
    }
}

impl Block {
    fn take(&mut self, part: Part, body: &[u8]) -> Result<Joined, NotJoined> {
        self.bytes += body.len();
        let is_behind_last = self.ahead.iter().any(|(number, (last, _))| *last && *number < part.number());
        let has_behind = part.last && self.ahead.keys().any(|number| *number > part.number());
        if self.bytes > BLOCK_MAX || is_behind_last || has_behind || part.number() < self.next {
            return Err(NotJoined::Malformed);
        }
        if part.number() != self.next {
            self.ahead.insert(part.number(), (part.last, body.to_vec()));
            return Err(NotJoined::Missing);
        }
        self.joined.extend_from_slice(body);
        let mut last = part.last;
        self.next += 1;
        while let Some((is_last, body)) = self.ahead.remove(&self.next) {
            self.joined.extend_from_slice(&body);
            last = is_last;
            self.next += 1;
        }
        if !last {
            return Err(NotJoined::Missing);
        }
        let Name { compression, treatment, .. } = self.name;
        Ok(Joined { compression, treatment, bytes: mem::take(&mut self.joined) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::seal::Counter;

    fn header(first: u64, part: Part) -> RecordHeader {
        RecordHeader {
            content: Content::Block { treatment: Treatment::Encrypt, compression: Compression::Lz4, part },
            suite: Suite::Aes128Gcm,
            index: Index::new(7).expect("not 0"),
            counter: Counter::new(0, first + u64::from(part.number())).expect("in bounds"),
        }
    }

    fn part(number: usize, last: bool) -> Part {
        Part::new(number, last).expect("small")
    }

    #[test]
    fn parts_of_two_blocks_do_not_mix_and_a_third_makes_the_older_give_way() {
        let mut joiner = Joiner::default();
        for first in [0, 100, 200] {
            assert_eq!(joiner.take(&header(first, part(0, false)), &[first as u8]), Err(NotJoined::Missing));
        }
        let ends = |joiner: &mut Joiner, first| joiner.take(&header(first, part(1, true)), b"end");
        assert_eq!(ends(&mut joiner, 100).map(|block| block.bytes), Ok(b"\x64end".to_vec()));
        assert_eq!(ends(&mut joiner, 200).map(|block| block.bytes), Ok(b"\xc8end".to_vec()));
        assert_eq!(ends(&mut joiner, 0), Err(NotJoined::Missing), "its first part was given up");
        joiner.clear();
        assert!(!joiner.is_waiting());
    }

    #[test]
    fn a_part_of_another_treatment_compression_or_suite_belongs_to_another_block() {
        let mut joiner = Joiner::default();
        assert_eq!(joiner.take(&header(0, part(0, false)), b"a"), Err(NotJoined::Missing));
        let last = part(1, true);
        let mut other = header(0, last);
        other.content =
            Content::Block { treatment: Treatment::Authenticate, compression: Compression::Lz4, part: last };
        assert_eq!(joiner.take(&other, b"b"), Err(NotJoined::Missing));
        assert!(joiner.take(&header(0, last), b"b").is_ok());
    }

    #[test]
    fn a_block_that_is_too_long_or_goes_on_behind_its_end_is_malformed() {
        let mut joiner = Joiner::default();
        let long = vec![0; BLOCK_MAX / 2];
        assert_eq!(joiner.take(&header(9, part(1, false)), &long), Err(NotJoined::Missing));
        assert_eq!(joiner.take(&header(9, part(0, false)), &long), Err(NotJoined::Missing));
        assert_eq!(joiner.take(&header(9, part(2, true)), &[0; 2]), Err(NotJoined::Malformed));
        assert!(!joiner.is_waiting(), "nothing of it is kept");
        assert_eq!(joiner.take(&header(9, part(3, true)), b"x"), Err(NotJoined::Missing));
        assert_eq!(joiner.take(&header(9, part(4, false)), b"x"), Err(NotJoined::Malformed));
        assert_eq!(joiner.take(&header(9, part(3, false)), b"x"), Err(NotJoined::Missing));
        assert_eq!(joiner.take(&header(9, part(2, true)), b"x"), Err(NotJoined::Malformed));
        let mut early = header(0, part(5, true));
        early.counter = Counter::new(0, 4).expect("in bounds");
        assert_eq!(joiner.take(&early, b"x"), Err(NotJoined::Malformed), "it would begin before 0");
        early.content = Content::Control;
        assert_eq!(joiner.take(&early, b"x"), Err(NotJoined::Malformed));
    }

    #[test]
    fn what_does_not_fit_into_the_parts_is_not_cut() {
        assert!(parts(&[0; 129], 1).is_none() && parts(&[], 1).is_none() && parts(&[0], 0).is_none());
        assert_eq!(parts(&[0; 128], 1).map(|parts| parts.len()), Some(128));
    }

    proptest! {
        #[test]
        fn parts_in_any_order_give_the_block(
            block in prop::collection::vec(any::<u8>(), 1..5000), room in 40usize..2000, seed: u64, first in 0u64..1000,
        ) {
            let mut cut: Vec<_> = parts(&block, room).expect("few enough").collect();
            let count = cut.len();
            // Shuffle, determined by the seed.
            let mut state = seed | 1;
            for at in (1..count).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                cut.swap(at, (state >> 33) as usize % (at + 1));
            }
            let mut joiner = Joiner::default();
            for (number, (part, bytes)) in cut.into_iter().enumerate() {
                let outcome = joiner.take(&header(first, part), bytes);
                if number + 1 < count {
                    prop_assert_eq!(outcome, Err(NotJoined::Missing));
                } else {
                    prop_assert_eq!(outcome.map(|joined| joined.bytes), Ok(block.clone()));
                }
            }
            prop_assert!(!joiner.is_waiting());
        }
    }
}
