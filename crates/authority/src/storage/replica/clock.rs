//! Determines whether this host's clock is right. Leases, keys and the ends of sessions depend on the time, so a member
//! with a wrong clock must neither issue nor record anything.
//!
//! A member compares its clock with those of the other members each second. If somebody sets the clock, this comparison
//! alone would be too late: each answer before it would contain a wrong time. So the member also remembers what the
//! clock showed when it was right, and how long ago that was by a clock that nobody can set.

use shell::clock::{since_boot, unix};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum difference, in seconds, between a clock that counts as right and the median of all members' clocks. The
/// times of the other members are some seconds old if etcd answers late.
const DIFFERENCE_MAX: u64 = 30;
/// Maximum step of a clock, in seconds, after which the clock still counts as right before the next comparison.
/// Programs that synchronise clocks make smaller steps. After a larger step, the clock counts as right again when it
/// differs from the median by at most this number.
const STEP_MAX: u64 = 5;
/// Largest time between two readings that count as simultaneous. The process may have been stopped between them.
const APART: Duration = Duration::from_millis(100);

/// Both clocks of the host, read at the same time.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Unix time.
    time: Duration,
    /// Time since boot, which includes the time in which the machine was suspended.
    boot: Duration,
}

impl Reading {
    fn now() -> Self {
        loop {
            let (before, time, boot) = (since_boot(), unix(), since_boot());
            if boot.saturating_sub(before) < APART {
                return Self { time, boot };
            }
        }
    }

    /// Returns the number of seconds by which the clock was set ahead since an earlier reading.
    fn step_since(&self, earlier: Self) -> i64 {
        let expected = earlier.time + self.boot.saturating_sub(earlier.boot);
        seconds(self.time) - seconds(expected)
    }
}

#[derive(Default)]
struct Seen {
    /// The last reading at which the clock was right.
    right: Option<Reading>,
    /// Number of seconds by which the clock was behind the others at the last comparison, if it was wrong.
    behind: Option<i64>,
}

/// Remembers whether this host's clock is right. The clock of an authority that is in no cluster always counts as
/// right.
#[derive(Default)]
pub struct Clock(Mutex<Seen>);

impl Clock {
    /// Compares the clock with those of the other members, which show `others` in Unix seconds.
    pub fn compare(&self, others: &[u64]) {
        self.compare_at(Reading::now(), others);
    }

    fn compare_at(&self, now: Reading, others: &[u64]) {
        let mut seen = self.lock();
        let was_set =
            seen.behind.is_some() || seen.right.is_some_and(|right| now.step_since(right).unsigned_abs() > STEP_MAX);
        let behind = behind(now.time.as_secs(), others, was_set);
        let most = if was_set { STEP_MAX } else { DIFFERENCE_MAX };
        if behind.unsigned_abs() > most {
            seen.behind = Some(behind);
        } else {
            *seen = Seen { right: Some(now), behind: None };
        }
    }

    /// Returns the number of seconds by which the clock is behind the cluster's time, negative if it is ahead, or
    /// `None` if the clock is right.
    pub fn wrong(&self) -> Option<i64> {
        self.wrong_at(Reading::now())
    }

    fn wrong_at(&self, now: Reading) -> Option<i64> {
        let seen = self.lock();
        let step = seen.right.map_or(0, |right| now.step_since(right));
        if step.unsigned_abs() > STEP_MAX { Some(-step) } else { seen.behind }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a sentence about a clock that is behind the cluster's time by this number of seconds. A negative number
/// means that the clock is ahead.
pub fn sentence(behind: i64) -> String {
    let by = behind.unsigned_abs();
    let of = if behind < 0 { "ahead of" } else { "behind" };
    format!("the clock of this host is {by} s {of} the cluster's time: correct it (timedatectl)")
}

/// Returns the number of seconds by which a clock that shows `now` is behind the median of all members' clocks. With
/// two members, nobody knows which of the two clocks is wrong. The result is then 0, except if `was_set` states that
/// this clock was set.
fn behind(now: u64, others: &[u64], was_set: bool) -> i64 {
    let ahead = |time: &u64| time.cast_signed() - now.cast_signed();
    if let [other] = others {
        return if was_set { ahead(other) } else { 0 };
    }
    let mut all: Vec<_> = others.iter().map(ahead).chain([0]).collect();
    all.sort_unstable();
    all[all.len() / 2]
}

fn seconds(time: Duration) -> i64 {
    time.as_secs().cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(time: u64, boot: u64) -> Reading {
        Reading { time: Duration::from_secs(time), boot: Duration::from_secs(boot) }
    }

    #[test]
    fn the_clock_of_one_is_wrong_if_two_others_agree() {
        assert_eq!(behind(1000, &[1000, 5000], false), 0);
        assert_eq!(behind(1000, &[5000, 5001], false), 4000);
        assert_eq!(behind(5000, &[1000, 999], false), -4000);
        assert_eq!(behind(1000, &[], true), 0);
        assert_eq!(behind(1000, &[5000], false), 0, "nobody can tell");
        assert_eq!(behind(1000, &[5000], true), 4000, "it was right before somebody set it");
    }

    #[test]
    fn a_step_is_noticed_before_clocks_are_compared_and_ends_when_they_agree() {
        let clock = Clock::default();
        assert_eq!(clock.wrong_at(reading(1000, 10)), None, "nothing is known yet");
        clock.compare_at(reading(1000, 10), &[1000, 1001]);
        assert_eq!(clock.wrong_at(reading(1060, 70)), None);
        assert_eq!(clock.wrong_at(reading(1065, 70)), None, "clocks that are synchronised make small steps");
        assert_eq!(clock.wrong_at(reading(1360, 70)), Some(-300));
        assert_eq!(clock.wrong_at(reading(760, 70)), Some(300));
        // The others say that it is wrong.
        clock.compare_at(reading(1361, 71), &[1061, 1060]);
        assert_eq!(clock.wrong_at(reading(1362, 72)), Some(-300));
        // Somebody sets it back. It counts again once the others have the same time.
        clock.compare_at(reading(1063, 73), &[1070, 1071]);
        assert_eq!(clock.wrong_at(reading(1064, 74)), Some(7));
        clock.compare_at(reading(1071, 74), &[1070, 1071]);
        assert_eq!(clock.wrong_at(reading(1072, 75)), None);
    }

    #[test]
    fn a_clock_that_somebody_corrects_is_right_at_once_if_the_others_agree() {
        let clock = Clock::default();
        clock.compare_at(reading(1000, 10), &[1020]);
        assert_eq!(clock.wrong_at(reading(1010, 20)), None);
        assert_eq!(clock.wrong_at(reading(1030, 20)), Some(-20));
        clock.compare_at(reading(1031, 21), &[1031]);
        assert_eq!(clock.wrong_at(reading(1032, 22)), None);
    }

    #[test]
    fn a_machine_that_was_suspended_has_the_right_time() {
        let now = Reading::now();
        assert_eq!(now.step_since(now), 0);
        assert_eq!(reading(5000, 4010).step_since(reading(1000, 10)), 0, "the clock since boot went on, too");
    }

    #[test]
    fn the_sentence_says_where_the_clock_is_and_what_to_do() {
        assert!(sentence(-300).contains("300 s ahead of") && sentence(300).contains("300 s behind the cluster's"));
    }
}
