//! Pauses after failures.

use std::time::Duration;

/// Pauses between attempts. Each pause is twice as long as the previous one, up to a limit.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// The pauses after failed requests to an authority: 1 s at first, and at most 30 s.
    pub const AUTHORITY: Self = Self::new(Duration::from_secs(1), Duration::from_secs(30));

    /// Creates pauses that begin with `first` and double up to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// Returns the pause to make after a failure. The next call returns a pause that is twice as long, up to
    /// [`Self::longest`].
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }

    /// Returns the longest pause.
    pub const fn longest(&self) -> Duration {
        self.longest
    }

    /// Begins again with the first pause, after a success.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_until_a_success() {
        let mut backoff = Backoff::AUTHORITY;
        let pauses: Vec<_> = (0..7).map(|_| backoff.pause().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        backoff.reset();
        assert_eq!(backoff.pause().as_secs(), 1);
    }
}
