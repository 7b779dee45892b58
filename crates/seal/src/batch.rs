//! Records of one tunnel in one buffer, so that one system call can send many records.

use crate::keys::Keys;
use std::ops::Range;
use wire::seal::RecordHeader;
use wire::seal::record::{HEADER_LEN, OVERHEAD};

/// The most datagrams that Linux accepts in one call: `UDP_MAX_SEGMENTS`, 64 until 6.8.
const SEGMENTS_MAX: usize = 64;
/// The most bytes that Linux accepts in one call: the payload of the longest UDP datagram over IPv4.
const BYTES_MAX: usize = 65_507;

/// Records and other messages that are to be sent to one address. When the batch is cleared, it keeps its memory for
/// the next records.
#[derive(Default)]
pub struct Batch {
    /// All messages, in the first `used` bytes. The bytes behind them are from earlier messages.
    bytes: Vec<u8>,
    used: usize,
    runs: Vec<(Range<usize>, usize)>,
    /// Whether the last run is full: it ends in a shorter record, or has no room for another record of its length.
    closed: bool,
    pushed: bool,
}

/// The messages that one system call sends. Each has `segment` bytes, except the last, which can be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<'b> {
    /// The bytes of all messages, one message after the other.
    pub bytes: &'b [u8],
    /// Length in bytes of each message except the last. This is the value for the socket option `UDP_SEGMENT`.
    pub segment: usize,
}

impl Batch {
    /// Removes all messages.
    pub fn clear(&mut self) {
        self.used = 0;
        self.runs.clear();
        self.pushed = false;
    }

    /// Reports whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the total length of all messages in bytes.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Seals a record and adds it to the batch. The record's body is the concatenation of `parts`. If [`Keys::seal`]
    /// fails, adds nothing and returns `None`.
    pub fn seal(&mut self, keys: &Keys, header: &RecordHeader, parts: &[&[u8]]) -> Option<()> {
        let length = OVERHEAD + parts.iter().map(|part| part.len()).sum::<usize>();
        let record = self.room(length)?;
        if let [body] = parts {
            // The cipher reads it where it is, so it is not copied.
            keys.seal_to(header, body, record)?;
        } else {
            fill(record.get_mut(HEADER_LEN..)?, parts)?;
            keys.seal(header, record)?;
        }
        self.lay(length);
        Some(())
    }

    /// Adds a message, which is the concatenation of `parts`. The message is a record that is sealed already, or it is
    /// not a record.
    pub fn push(&mut self, parts: &[&[u8]]) {
        let length = parts.iter().map(|part| part.len()).sum();
        if self.room(length).and_then(|room| fill(room, parts)).is_some() {
            self.lay(length);
            self.pushed = true;
        }
    }

    /// Reports whether [`Self::push`] has added a message since the batch was cleared.
    pub fn has_pushed(&self) -> bool {
        self.pushed
    }

    /// Returns the bytes of the next message, if it has this length.
    fn room(&mut self, length: usize) -> Option<&mut [u8]> {
        let end = self.used + length;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes.get_mut(self.used..end)
    }

    /// Adds the next message, whose bytes are in their place, to the last run, or to a new one.
    fn lay(&mut self, len: usize) {
        let (begin, end) = (self.used, self.used + len);
        self.used = end;
        match self.runs.last_mut().filter(|_| !self.closed) {
            Some((range, segment)) if len <= *segment => range.end = end,
            _ => self.runs.push((begin..end, len.max(1))),
        }
        if let Some((range, segment)) = self.runs.last() {
            let is_ended = len < *segment || range.len() / segment == SEGMENTS_MAX;
            self.closed = is_ended || range.len() + segment > BYTES_MAX;
        }
    }

    /// Returns the number of full runs. No message can be added to a full run.
    fn full(&self) -> usize {
        self.runs.len() - usize::from(!self.closed && !self.runs.is_empty())
    }

    /// Returns the messages of the full runs. A run is full if no message can be added to it. All runs are full except
    /// possibly the last.
    pub fn full_runs(&self) -> impl Iterator<Item = Run<'_>> {
        self.runs().take(self.full())
    }

    /// Removes the messages of the full runs.
    pub fn remove_full(&mut self) {
        let full = self.full();
        self.runs.drain(..full);
        let begin = self.runs.first().map_or(self.used, |(range, _)| range.start);
        self.bytes.copy_within(begin..self.used, 0);
        self.used -= begin;
        for (range, _) in &mut self.runs {
            *range = range.start - begin..range.end - begin;
        }
    }

    /// Returns all messages, grouped into runs. The caller sends each run with one system call.
    pub fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        self.runs
            .iter()
            .map(|(range, segment)| Run { bytes: self.bytes.get(range.clone()).unwrap_or_default(), segment: *segment })
    }
}

/// Writes the parts one after the other. Returns `None` if there is no room for all.
fn fill(mut room: &mut [u8], parts: &[&[u8]]) -> Option<()> {
    for part in parts {
        let (place, rest) = room.split_at_mut_checked(part.len())?;
        place.copy_from_slice(part);
        room = rest;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pushed(lengths: &[usize]) -> Batch {
        let mut batch = Batch::default();
        for (number, length) in lengths.iter().enumerate() {
            batch.push(&[&vec![number as u8; *length]]);
        }
        batch
    }

    fn shape(batch: &Batch) -> Vec<(usize, usize)> {
        batch.runs().map(|run| (run.bytes.len(), run.segment)).collect()
    }

    #[test]
    fn records_of_one_length_leave_together_and_a_shorter_one_ends_the_run() {
        assert_eq!(shape(&pushed(&[100, 100, 60, 60, 100])), [(260, 100), (60, 60), (100, 100)]);
        assert_eq!(shape(&pushed(&[1400; 100])), [(1400 * 46, 1400), (1400 * 46, 1400), (1400 * 8, 1400)]);
        assert_eq!(shape(&pushed(&[100; 130])), [(6400, 100), (6400, 100), (200, 100)]);
        assert_eq!(shape(&pushed(&[])), []);
    }

    #[test]
    fn an_emptied_batch_begins_anew() {
        let mut batch = pushed(&[100, 60]);
        batch.clear();
        assert!(batch.is_empty() && !batch.has_pushed());
        batch.push(&[&[1; 100]]);
        batch.push(&[&[2; 100]]);
        assert_eq!(shape(&batch), [(200, 100)]);
    }

    #[test]
    fn full_runs_leave_and_the_last_one_is_filled_by_later_records() {
        let mut batch = pushed(&[1400; 50]);
        let full = |batch: &Batch| batch.full_runs().map(|run| run.bytes.len()).collect::<Vec<_>>();
        assert_eq!(full(&batch), [1400 * 46]);
        batch.remove_full();
        assert_eq!((shape(&batch), full(&batch)), (vec![(1400 * 4, 1400)], vec![]));
        batch.remove_full();
        (50..92).for_each(|number| batch.push(&[&[number; 1400]]));
        assert_eq!(full(&batch), [1400 * 46]);
        let run = batch.runs().next().expect("a run");
        let numbers: Vec<_> = run.bytes.chunks(1400).map(|record| record[0]).collect();
        assert_eq!(numbers, (46..92).collect::<Vec<u8>>());
        batch.remove_full();
        assert!(batch.is_empty() && shape(&batch).is_empty());
        assert_eq!(full(&pushed(&[100, 60, 100])), [160]);
        assert_eq!(full(&pushed(&[60, 100])), [60], "a longer record begins another run");
    }

    proptest! {
        #[test]
        fn cut_as_the_kernel_cuts_it_every_run_gives_the_same_records(lengths in prop::collection::vec(33usize..9000, 0..80)) {
            let batch = pushed(&lengths);
            let mut cut = Vec::new();
            for run in batch.runs() {
                prop_assert!(run.bytes.len() <= BYTES_MAX && run.bytes.len().div_ceil(run.segment) <= SEGMENTS_MAX);
                cut.extend(run.bytes.chunks(run.segment).map(<[u8]>::to_vec));
            }
            let records: Vec<_> = lengths.iter().enumerate().map(|(number, length)| vec![number as u8; *length]).collect();
            prop_assert_eq!(cut, records);
        }

        #[test]
        fn whenever_full_runs_leave_the_records_are_the_same_and_in_order(
            lengths in prop::collection::vec((33usize..9000, any::<bool>()), 0..80),
        ) {
            let (mut batch, mut cut) = (Batch::default(), Vec::new());
            let take = |run: Run<'_>| run.bytes.chunks(run.segment).map(<[u8]>::to_vec).collect::<Vec<_>>();
            for (number, (length, leaves)) in lengths.iter().enumerate() {
                batch.push(&[&vec![number as u8; *length]]);
                if *leaves {
                    cut.extend(batch.full_runs().flat_map(take));
                    batch.remove_full();
                    prop_assert!(batch.len() <= BYTES_MAX && batch.runs().count() <= 1);
                }
            }
            cut.extend(batch.runs().flat_map(take));
            let lengths = lengths.iter().map(|(length, _)| *length).enumerate();
            let records: Vec<_> = lengths.map(|(number, length)| vec![number as u8; length]).collect();
            prop_assert_eq!(cut, records);
        }
    }
}
