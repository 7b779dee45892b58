//! Times at which a rule applies: windows of weekdays, hours and dates in a time zone. The database of time zones is
//! compiled in, so that an answer depends only on the policy and the given time.

use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};

/// Every day of the week.
const EVERY_DAY: u8 = 0x7f;
/// Minutes of a day.
pub(super) const DAY: u16 = 24 * 60;
/// Seconds of a little more than a year. Every clock that changes twice a year changes within this time.
const YEAR: u64 = 400 * 86_400;
/// Maximum number of changes of single windows that [`When::next_change`] examines. If the rule begins or ceases to
/// hold at none of them, the function returns the time of the last one, and the caller looks again from there.
const STEPS: usize = 256;

/// The times at which a rule holds: those in at least one of the windows, or all times if there are no windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct When(pub(super) Vec<Window>);

/// A time window: weekdays, hours and dates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The weekdays on which the window's hours begin; bit 0 is Monday.
    pub(super) days: u8,
    /// Spans of minutes of a day. The first minute is included, and the last is not. A span whose end is not after its
    /// beginning lasts into the next day. Empty if the window lasts the whole day.
    pub(super) hours: Vec<(u16, u16)>,
    /// Time zone of the hours and weekdays.
    pub(super) zone: TimeZone,
    /// The first second of the window, Unix time.
    pub(super) from: Option<u64>,
    /// The first second after the window, Unix time.
    pub(super) until: Option<u64>,
}

impl Default for Window {
    fn default() -> Self {
        Self { days: EVERY_DAY, hours: Vec::new(), zone: TimeZone::UTC, from: None, until: None }
    }
}

impl When {
    /// Reports whether the rule holds at the time `now`, in Unix seconds.
    pub fn covers(&self, now: u64) -> bool {
        self.0.is_empty() || self.0.iter().any(|window| window.covers(now))
    }

    /// Reports whether the rule holds at all times.
    pub fn is_always(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first time after `after` at which the answer of [`Self::covers`] changes; `None` if no window
    /// changes any more. If the answer is the same after many changes of single windows, returns the time of one of
    /// them, and the caller looks again from there.
    pub fn next_change(&self, after: u64) -> Option<u64> {
        let mut at = after;
        for _ in 0..STEPS {
            at = self.0.iter().filter_map(|window| window.next_change(at)).min()?;
            if self.covers(at) != self.covers(after) {
                break;
            }
        }
        Some(at)
    }
}

impl When {
    /// Returns the times from `now` on at which the weekly pattern changes, because a window begins or ends for good,
    /// or because a clock is changed.
    pub(super) fn turns(&self, now: u64) -> Vec<u64> {
        let ends = self.0.iter().flat_map(|window| window.from.into_iter().chain(window.until));
        let horizon = now.saturating_add(YEAR);
        let clocks = self.0.iter().filter(|window| !window.is_all_week()).flat_map(|window| {
            let changes = window.zone.following(timestamp(now)).map(|change| seconds(change.timestamp()));
            changes.take_while(|at| *at <= horizon).take(4).collect::<Vec<_>>()
        });
        ends.chain(clocks).filter(|at| *at >= now).collect()
    }
}

impl Window {
    fn covers(&self, now: u64) -> bool {
        self.from.is_none_or(|from| from <= now) && self.until.is_none_or(|until| now < until) && self.in_week(now)
    }

    fn next_change(&self, after: u64) -> Option<u64> {
        let inside = self.covers(after);
        let mut start = after;
        if let Some(from) = self.from.filter(|from| after < *from) {
            if self.covers(from) {
                return Some(from);
            }
            start = from;
        }
        if self.until.is_some_and(|until| until <= start) {
            return None;
        }
        let change = self.change_in_week(start, inside);
        match self.until {
            Some(until) if change.is_none_or(|change| until <= change) => inside.then_some(until),
            _ => change,
        }
    }

    /// Reports whether weekday and hour are inside the window.
    fn in_week(&self, now: u64) -> bool {
        if self.is_all_week() {
            return true;
        }
        let local = self.zone.to_datetime(timestamp(now));
        let minute = u16::from(local.hour().unsigned_abs()) * 60 + u16::from(local.minute().unsigned_abs());
        let today = local.weekday().to_monday_zero_offset();
        let on = |day: i8| self.days >> day.rem_euclid(7) & 1 == 1;
        if self.hours.is_empty() {
            return on(today);
        }
        self.hours.iter().any(|(begin, end)| {
            if begin < end {
                on(today) && (*begin..*end).contains(&minute)
            } else {
                on(today) && *begin <= minute || on(today - 1) && minute < *end
            }
        })
    }

    /// Returns the first time after `start` at which [`Self::in_week`] is not `inside`.
    fn change_in_week(&self, start: u64, inside: bool) -> Option<u64> {
        if self.is_all_week() {
            return None;
        }
        // A change of the clock may leave out a window once, but not for three weeks.
        [2, 22].into_iter().find_map(|days| {
            let mut instants = self.instants(start, days);
            instants.sort_unstable();
            instants.into_iter().find(|at| *at > start && self.in_week(*at) != inside)
        })
    }

    /// Returns the times at which hours begin or end or the clock changes, in `days` days from `start` on. Between two
    /// of these times, the answer of [`Self::in_week`] stays the same.
    fn instants(&self, start: u64, days: i32) -> Vec<u64> {
        let from = timestamp(start);
        let today = self.zone.to_datetime(from).date();
        let horizon = start.saturating_add(u64::from(days.unsigned_abs()) * 86_400);
        let clock_changes = self.zone.following(from).map(|change| seconds(change.timestamp()));
        let mut instants: Vec<_> = clock_changes.take_while(|change| *change <= horizon).take(8).collect();
        for day in -1..=days {
            let Ok(date) = today.checked_add(day.days()) else { continue };
            let ends = self.hours.iter().flat_map(|(begin, end)| [*begin, *end]);
            instants.extend(ends.chain([0]).flat_map(|minute| self.at(date, minute)).filter(|at| *at <= horizon));
        }
        instants
    }

    /// Returns the times at which a clock of the zone shows this minute: two if the clock is set back.
    fn at(&self, date: Date, minute: u16) -> impl Iterator<Item = u64> {
        let (date, minute) = if minute < DAY { (Ok(date), minute) } else { (date.tomorrow(), minute - DAY) };
        let local = date.ok().map(|date| date.at((minute / 60) as i8, (minute % 60) as i8, 0, 0));
        let shown = local.map(|local| self.zone.to_ambiguous_timestamp(local));
        shown.into_iter().flat_map(|shown| [shown.earlier(), shown.later()]).flatten().map(seconds)
    }

    fn is_all_week(&self) -> bool {
        self.days == EVERY_DAY && self.hours.is_empty()
    }
}

/// Returns the time zone with this name in the IANA database.
pub(super) fn zone(name: &str) -> Option<TimeZone> {
    TimeZoneDatabase::bundled().get(name).ok()
}

/// Returns every name that [`zone`] knows.
pub(super) fn zones() -> Vec<String> {
    TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect()
}

/// Parses a time with its offset from UTC (`2026-03-01T09:00:00+01:00`, `…Z`) to Unix seconds.
pub fn instant(text: &str) -> Option<u64> {
    text.parse::<Timestamp>().ok().and_then(|at| u64::try_from(at.as_second()).ok())
}

/// Parses a day, a local time, or a time with its offset. A day stands for its beginning. The `bool` says whether the
/// text is a day.
pub(super) fn date(text: &str, zone: &TimeZone) -> Option<(Timestamp, bool)> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Some((at, false));
    }
    let is_day = !text.contains(['T', 't', ' ']);
    let local = if is_day {
        text.parse::<Date>().ok()?.to_datetime(jiff::civil::Time::midnight())
    } else {
        text.parse().ok()?
    };
    Some((zone.to_timestamp(local).ok()?, is_day))
}

/// Returns the beginning of the day after the day that begins at `at`.
pub(super) fn day_after(at: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let next = zone.to_datetime(at).date().tomorrow().ok()?;
    zone.to_timestamp(next.to_datetime(jiff::civil::Time::midnight())).ok()
}

/// Formats a time, given in Unix seconds, as `2030-01-31T12:00:00Z`.
pub fn written(at: u64) -> String {
    timestamp(at).to_string()
}

/// Returns a time in Unix seconds. Times before 1970 count as 1970.
pub(super) fn seconds(at: Timestamp) -> u64 {
    u64::try_from(at.as_second()).unwrap_or(0)
}

fn timestamp(seconds: u64) -> Timestamp {
    i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
