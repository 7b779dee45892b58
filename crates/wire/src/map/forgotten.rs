//! The times for which a verifier no longer knows what happened, because its clock jumped. Tokens from these times have
//! possibly been used, and grants that ended in these times have possibly been revoked (wire.md §6.4.6).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Maximum difference between a sender's clock and the verifier's, in seconds (wire.md §6.4). The verifier's tables
/// drop tokens and ended grants once this time has passed.
const CLOCK_SKEW_MAX: u32 = 30;
/// If the clock is set back by fewer seconds than this, the replay table keeps the entries that are then in the future.
const KEPT_AHEAD: u32 = 600 - 2 * CLOCK_SKEW_MAX;
/// Number of seconds after a leap ahead until the tables drop the entries that ended within the leap.
const LEAP_COUNTS_AFTER: u32 = 3600;
/// Maximum number of separate spans.
const SPANS: usize = 4;

/// A span of times from `from` to the second before `until`, Unix seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Span {
    /// The first time in the span.
    pub from: u32,
    /// The first time after the span.
    pub until: u32,
}

impl Span {
    const fn is_empty(self) -> bool {
        self.until <= self.from
    }

    fn touches(self, other: Self) -> bool {
        self.from <= other.until && other.from <= self.until
    }

    fn around(self, other: Self) -> Self {
        Self { from: self.from.min(other.from), until: self.until.max(other.until) }
    }
}

/// The times for which a verifier no longer knows what happened. The verifier rejects tokens made at these times, and
/// grants that end at these times. The verifier's tables drop a token or a revocation when its time has passed. If the
/// clock is then set back to that time, this record takes the place of the dropped entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Forgotten {
    /// The spans of forgotten times. If there are more than four separate spans, the two earliest are joined into one
    /// span, which also includes the gap between them.
    pub spans: [Span; SPANS],
    /// Time since which the clock has run without a jump; 0 if the clock never jumped.
    pub since: u32,
    /// Time from which the clock leapt ahead to `since`. 0 if the clock never leapt ahead, was set back after the leap,
    /// or has run for an hour without a jump.
    pub leapt_from: u32,
    /// The latest time that the clock had shown before it was set back, if the tables still contain the tokens of that
    /// time. Otherwise 0.
    pub reached: u32,
    /// Reserved; zero.
    pub reserved: u32,
}

impl Forgotten {
    /// Reports whether the verifier has forgotten `time`. If so, it can no longer tell whether a token made at `time`
    /// was used, or whether a grant whose end time is `time` was revoked.
    pub fn contains(&self, time: u32) -> bool {
        self.spans.iter().any(|span| span.from <= time && time < span.until)
    }

    /// Records that the clock jumped from `was` to `now`. Does nothing if the clock went ahead by at most the clock
    /// skew, because that is not a jump.
    pub fn jump(&mut self, was: u32, now: u32) {
        if (was..=was.saturating_add(CLOCK_SKEW_MAX)).contains(&now) {
            return;
        }
        self.sweep_time(was);
        self.reached = self.reached.max(was);
        // The tables have dropped tokens that the clock check refuses. They also drop entries that are far ahead of the
        // new time.
        let kept = now < was && self.reached - now < KEPT_AHEAD;
        let until = match kept {
            true => self.reached.saturating_sub(CLOCK_SKEW_MAX),
            false => self.reached.saturating_add(CLOCK_SKEW_MAX + 1),
        };
        self.forget(Span { from: self.since.saturating_sub(CLOCK_SKEW_MAX), until });
        if !kept {
            self.reached = 0;
        }
        self.since = if now < was && self.leapt_from != 0 { now.min(self.leapt_from) } else { now };
        self.leapt_from = match (now < was, self.leapt_from) {
            (true, _) => 0,
            (false, 0) => was,
            (false, before) => before,
        };
    }

    /// Adds a span of forgotten times.
    pub fn forget(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        let mut all = [Span::default(); SPANS + 1];
        let mut count = 0;
        let mut new = span;
        for old in self.spans.into_iter().filter(|old| !old.is_empty()) {
            if old.touches(new) {
                new = new.around(old);
            } else {
                all[count] = old;
                count += 1;
            }
        }
        all[count] = new;
        count += 1;
        all[..count].sort_unstable_by_key(|span| span.from);
        if count > SPANS {
            // Merge the earliest two spans: their times are the least likely to come again.
            all[1] = all[0].around(all[1]);
            all.copy_within(1.., 0);
        }
        self.spans.copy_from_slice(&all[..SPANS]);
        self.spans[count.min(SPANS)..].fill(Span::default());
    }

    /// Returns the time up to which the sweep at `now` can remove ended entries. Normally, this is `now`. After the
    /// clock has leapt ahead, it is the time before the leap, until the clock has run for an hour without a jump.
    pub fn sweep_time(&mut self, now: u32) -> u32 {
        if self.leapt_from == 0 {
            return now;
        }
        if now.saturating_sub(self.since) < LEAP_COUNTS_AFTER {
            return self.leapt_from.min(now);
        }
        self.since = self.since.min(self.leapt_from);
        self.leapt_from = 0;
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u32 = 1_800_000_000;
    const HOUR: u32 = 3600;

    #[test]
    fn a_clock_that_goes_on_forgets_nothing() {
        let mut forgotten = Forgotten::default();
        for now in NOW..NOW + 300 {
            forgotten.jump(now, now + 1);
            assert_eq!(forgotten.sweep_time(now), now);
        }
        assert_eq!(forgotten, Forgotten::default());
    }

    #[test]
    fn after_a_step_back_tokens_that_the_clock_had_refused_stay_out() {
        let mut forgotten = Forgotten::default();
        forgotten.jump(NOW, NOW - 120);
        assert!(forgotten.contains(NOW - 31) && forgotten.contains(NOW - 120) && !forgotten.contains(NOW - 30));
        forgotten.jump(NOW - 100, NOW - 100 - HOUR);
        assert!(forgotten.contains(NOW - 100 - HOUR) && forgotten.contains(NOW - 70) && forgotten.contains(NOW - 31));
    }

    #[test]
    fn a_clock_that_was_wrong_for_a_moment_keeps_nobody_out_when_it_is_right_again() {
        let mut forgotten = Forgotten::default();
        forgotten.jump(NOW, NOW + HOUR);
        assert_eq!(forgotten.sweep_time(NOW + HOUR), NOW, "what ends in the leap is kept");
        forgotten.jump(NOW + HOUR + 60, NOW + 60);
        assert!(!forgotten.contains(NOW + 60) && !forgotten.contains(NOW + 300));
        assert!(forgotten.contains(NOW), "used before the leap");
        assert!(forgotten.contains(NOW + HOUR + 45), "used while it was ahead");
        assert_eq!(forgotten.sweep_time(NOW + 60), NOW + 60);
    }

    #[test]
    fn a_leap_that_lasted_counts_as_time_that_passed() {
        let mut forgotten = Forgotten::default();
        forgotten.jump(NOW, NOW + 10 * HOUR);
        let later = NOW + 11 * HOUR;
        assert_eq!(forgotten.sweep_time(later), later);
        forgotten.jump(later, NOW + HOUR);
        assert!((NOW..later).step_by(60).all(|time| forgotten.contains(time)), "{forgotten:?}");
    }

    /// After random jumps, the spans contain every time whose entries the tables have dropped.
    #[test]
    fn whatever_the_clock_does_what_was_forgotten_is_known() {
        let mut chance = 0x5eed_u64;
        let mut below = |bound: u32| {
            chance ^= chance >> 12;
            chance ^= chance << 25;
            chance ^= chance >> 27;
            (chance.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as u32 % bound
        };
        for _ in 0..300 {
            let (mut forgotten, mut now) = (Forgotten::default(), NOW);
            // (time, whether the tables have dropped it), for tokens and for ends of grants.
            let mut marks: [(u32, bool); 64] = [(NOW, false); 64];
            let mut ends: [(u32, bool); 64] = [(NOW, false); 64];
            for step in 0..200 {
                let was = now;
                now = match below(6) {
                    0 => now + 31 + below(9 * HOUR),
                    1 => now - below(9 * HOUR),
                    2 => now - below(100),
                    _ => now + below(30),
                };
                forgotten.jump(was, now);
                for (time, gone) in &mut marks {
                    assert!(
                        !*gone || now.abs_diff(*time) > CLOCK_SKEW_MAX || forgotten.contains(*time),
                        "{forgotten:?}"
                    );
                    *gone |= now > *time + CLOCK_SKEW_MAX || *time > now + 600;
                }
                let swept = if below(2) == 0 { forgotten.sweep_time(now) } else { 0 };
                for (end, gone) in &mut ends {
                    assert!(!*gone || *end <= now || forgotten.contains(*end), "{end} at {now}: {forgotten:?}");
                    *gone |= *end + CLOCK_SKEW_MAX < swept;
                }
                marks[step % 64] = (now + 30 - below(61), false);
                ends[step % 64] = (now + below(HOUR), false);
            }
        }
    }
}
