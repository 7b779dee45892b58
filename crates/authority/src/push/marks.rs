//! The marks on the event stream of a verifier. The authority sends a mark after events that the verifier has to carry
//! out, and the verifier confirms the mark when it has carried them out. At most one mark of a stream is open, so a
//! verifier that never confirms takes no more memory than others, however much is announced to it.

use std::time::{Duration, Instant};

/// The announcements on one stream, and how many of them the verifier has confirmed. A mark that the authority has sent
/// is open until the verifier confirms it.
#[derive(Debug, Default)]
pub struct Marks {
    /// Number of the last announcement.
    announced: u64,
    /// Number of the last announcement that the verifier has confirmed.
    confirmed: u64,
    /// The mark that the verifier has to confirm.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    mark: u64,
    /// Number of the last announcement before the mark.
    covers: u64,
    since: Instant,
}

impl Marks {
    /// Notes an announcement. Returns the mark that has to follow it on the stream; `None` if a mark is still open.
    pub fn announce(&mut self) -> Option<u64> {
        self.announced += 1;
        self.next()
    }

    /// Notes that the verifier has confirmed a mark. Reports whether the mark was open.
    pub fn confirm(&mut self, mark: u64) -> bool {
        match self.open.take_if(|open| open.mark == mark) {
            Some(open) => {
                self.confirmed = open.covers;
                true
            }
            None => false,
        }
    }

    /// Opens a mark if there are unconfirmed announcements and no mark is open. The caller sends the mark on the
    /// stream.
    pub fn next(&mut self) -> Option<u64> {
        if self.open.is_some() || self.confirmed == self.announced {
            return None;
        }
        // A random number: a confirmation that arrives late does not fit a mark of another stream or process. If the
        // kernel gives none, the verifier counts as late until the next announcement.
        let mark = getrandom::u64().ok()?;
        self.open = Some(Open { mark, covers: self.announced, since: Instant::now() });
        Some(mark)
    }

    /// Returns the number of the last announcement, if the verifier has not confirmed it.
    pub fn owed(&self) -> Option<u64> {
        (self.confirmed < self.announced).then_some(self.announced)
    }

    /// Reports whether the verifier has confirmed this announcement.
    pub const fn has_confirmed(&self, number: u64) -> bool {
        self.confirmed >= number
    }

    /// Reports whether the open mark was sent at least `patience` ago.
    pub fn is_overdue(&self, patience: Duration) -> bool {
        self.open.as_ref().is_some_and(|open| open.since.elapsed() >= patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mark_is_open_however_much_is_announced() {
        let mut marks = Marks::default();
        let first = marks.announce().unwrap();
        assert!((0..1000).all(|_| marks.announce().is_none()));
        assert_eq!(marks.owed(), Some(1001));
        assert!(!marks.confirm(first ^ 1) && marks.confirm(first) && !marks.confirm(first));
        assert!(marks.has_confirmed(1) && !marks.has_confirmed(2));
        let second = marks.next().unwrap();
        assert!(second != first && marks.next().is_none());
        assert!(marks.confirm(second));
        assert_eq!((marks.owed(), marks.next()), (None, None));
        assert!(marks.has_confirmed(1001));
    }

    #[test]
    fn a_mark_is_overdue_after_a_while() {
        let mut marks = Marks::default();
        assert!(!marks.is_overdue(Duration::ZERO));
        marks.announce().unwrap();
        assert!(marks.is_overdue(Duration::ZERO) && !marks.is_overdue(Duration::from_secs(3600)));
    }
}
