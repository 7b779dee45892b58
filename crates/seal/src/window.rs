//! The counters received in each lane, to detect replays (wire.md §9.7.1).

use wire::ReplayWindow;
use wire::seal::Counter;
use wire::seal::record::LANES;

/// The replay window of a lane: its latest 2048 numbers.
type Window = ReplayWindow<32>;

/// The counters received in one phase and direction, for each lane separately. A lane takes no memory until a record
/// with a right tag has arrived in it.
#[derive(Default)]
pub struct Windows([Option<Box<Window>>; LANES as usize]);

impl Windows {
    /// Reports whether this counter is new. Only a record with a new counter is allowed to be opened.
    pub fn is_new(&self, counter: Counter) -> bool {
        self.lane(counter).is_none_or(|window| window.is_new(counter.number()))
    }

    /// Records that a record with this counter had a right tag. The counter must be new. Returns whether the counter is
    /// higher than all counters received before in its lane.
    pub fn note(&mut self, counter: Counter) -> bool {
        let Some(lane) = self.0.get_mut(usize::from(counter.lane())) else { return false };
        let window = lane.get_or_insert_default();
        let is_highest = window.is_highest(counter.number());
        window.note(counter.number());
        is_highest
    }

    fn lane(&self, counter: Counter) -> Option<&Window> {
        self.0.get(usize::from(counter.lane()))?.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_do_not_know_of_each_other() {
        let counter = |lane, number| Counter::new(lane, number).expect("in bounds");
        let mut windows = Windows::default();
        for lane in 0..LANES {
            assert!(windows.is_new(counter(lane, 7)));
            assert!(windows.note(counter(lane, 7)));
            assert!(!windows.is_new(counter(lane, 7)));
            assert!(!windows.note(counter(lane, 6)), "it is not the highest");
        }
        assert!(windows.note(counter(3, 3000)));
        assert!(!windows.is_new(counter(3, 3000 - 2048)) && windows.is_new(counter(3, 3000 - 2047)));
        assert!(windows.is_new(counter(4, 952)));
    }
}
