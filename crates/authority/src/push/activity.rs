//! The history of a verifier's reports: numbers of admitted and dropped packets. The history of the last hour has steps
//! of ten seconds, and the history of the last day has steps of a minute. Memory is bounded per verifier. All times are
//! read from the authority's clock. The increase of a counter is assigned to the time at which the report with the new
//! value arrived.

use api::Report;
use std::collections::VecDeque;
use wire::DropReason;

/// Numbers of dropped packets, by drop reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    by_reason: [u64; DropReason::ALL.len()],
    /// Number of packets dropped for reasons that this version does not know.
    pub others: u64,
}

impl Drops {
    /// Returns the number of packets dropped for one reason.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.by_reason[reason as usize - 1]
    }

    /// Returns the number of packets dropped for all reasons together.
    pub fn total(&self) -> u64 {
        self.by_reason.iter().fold(self.others, |sum, packets| sum.saturating_add(*packets))
    }

    fn reported(report: &Report) -> Self {
        let mut drops = Self::default();
        for count in &report.drops {
            let place = match DropReason::from_number(count.reason) {
                Some(reason) => &mut drops.by_reason[reason as usize - 1],
                None => &mut drops.others,
            };
            *place = place.saturating_add(count.packets);
        }
        drops
    }

    fn add(&mut self, more: &Self) {
        for (sum, packets) in self.by_reason.iter_mut().zip(more.by_reason) {
            *sum = sum.saturating_add(packets);
        }
        self.others = self.others.saturating_add(more.others);
    }

    /// Returns the increase of each counter since `before`, or `None` if a counter has decreased.
    fn since(&self, before: &Self) -> Option<Self> {
        let mut rise = Self { others: self.others.checked_sub(before.others)?, ..Self::default() };
        for (index, packets) in rise.by_reason.iter_mut().enumerate() {
            *packets = self.by_reason[index].checked_sub(before.by_reason[index])?;
        }
        Some(rise)
    }
}

/// Numbers of packets admitted and dropped during a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of first packets that were admitted by a token.
    pub admitted: u64,
    /// Numbers of dropped packets.
    pub drops: Drops,
}

impl Amount {
    fn reported(report: &Report) -> Self {
        Self { admitted: report.admitted, drops: Drops::reported(report) }
    }

    fn add(&mut self, more: &Self) {
        self.admitted = self.admitted.saturating_add(more.admitted);
        self.drops.add(&more.drops);
    }

    /// Returns the increase of the counters since `before`. If a counter has decreased, the verifier has restarted, and
    /// all its counters have started again from 0.
    fn since(self, before: &Self) -> Self {
        match (self.admitted.checked_sub(before.admitted), self.drops.since(&before.drops)) {
            (Some(admitted), Some(drops)) => Self { admitted, drops },
            _ => self,
        }
    }
}

/// The length of time that the history at the console covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// A quarter of an hour, in columns of ten seconds.
    Quarter,
    /// An hour, in columns of a minute.
    Hour,
    /// A day, in columns of a quarter of an hour.
    Day,
}

impl Span {
    /// Every span, shortest first.
    #[cfg(test)]
    pub const ALL: [Self; 3] = [Self::Quarter, Self::Hour, Self::Day];

    /// Returns the period that one column covers, in seconds.
    pub const fn step(self) -> u64 {
        match self {
            Self::Quarter => FINE.step,
            Self::Hour => 60,
            Self::Day => 900,
        }
    }

    /// Returns the number of columns.
    pub const fn columns(self) -> usize {
        match self {
            Self::Quarter => 90,
            Self::Hour => 60,
            Self::Day => 96,
        }
    }
}

/// One column of the history that the console shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The start of the column, in Unix seconds.
    pub start: u64,
    /// Packets counted in the column; `None` if no report arrived.
    pub amount: Option<Amount>,
}

/// The latest report of one verifier, and the history of its counters over a day.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    latest: Option<(u64, Report)>,
    fine: Ring,
    coarse: Ring,
}

impl Activity {
    /// Records a report that arrived at `now`, in Unix seconds. The first report only sets the start values of the
    /// counters.
    pub fn note(&mut self, report: Report, now: u64) {
        let counted = Amount::reported(&report);
        let before = self.latest.as_ref().map_or(counted, |(_, before)| Amount::reported(before));
        let rise = counted.since(&before);
        self.fine.add(&rise, now, FINE);
        self.coarse.add(&rise, now, COARSE);
        self.latest = Some((now, report));
    }

    /// Returns the time at which the latest report arrived, in Unix seconds, and the report. `None` if no report has
    /// arrived.
    pub fn latest(&self) -> Option<(u64, &Report)> {
        self.latest.as_ref().map(|(time, report)| (*time, report))
    }
}

/// Returns the totals of several verifiers in the columns of a span that ends at `now`, oldest column first.
pub fn columns<'a>(of: impl IntoIterator<Item = &'a Activity>, span: Span, now: u64) -> Vec<Column> {
    let (step, count) = (span.step(), span.columns());
    let first = (now / step).saturating_sub(count as u64 - 1);
    let mut columns: Vec<_> = (first..).take(count).map(|nth| Column { start: nth * step, amount: None }).collect();
    for activity in of {
        let ring = if span == Span::Day { &activity.coarse } else { &activity.fine };
        for slot in &ring.0 {
            let column = (slot.start / step).checked_sub(first).and_then(|nth| columns.get_mut(nth as usize));
            if let Some(column) = column {
                column.amount.get_or_insert_default().add(&slot.amount);
            }
        }
    }
    columns
}

/// Resolution of a ring and the number of its slots.
#[derive(Clone, Copy)]
struct Grain {
    step: u64,
    slots: usize,
}

/// Slots of ten seconds that cover an hour.
const FINE: Grain = Grain { step: 10, slots: 361 };
/// Slots of a minute that cover a day. The first and the last slot cover only part of their minute.
const COARSE: Grain = Grain { step: 60, slots: 1441 };

#[derive(Clone, Copy, Debug)]
struct Slot {
    start: u64,
    amount: Amount,
}

/// The latest slots, oldest first; slots without a report are left out.
#[derive(Clone, Debug, Default)]
struct Ring(VecDeque<Slot>);

impl Ring {
    fn add(&mut self, amount: &Amount, now: u64, grain: Grain) {
        let start = now - now % grain.step;
        // If the clock was set back, slots that now lie in the future are meaningless.
        while self.0.back().is_some_and(|last| last.start > start) {
            self.0.pop_back();
        }
        if self.0.back().is_none_or(|last| last.start < start) {
            if self.0.len() == grain.slots {
                self.0.pop_front();
            }
            self.0.push_back(Slot { start, amount: Amount::default() });
        }
        if let Some(last) = self.0.back_mut() {
            last.amount.add(amount);
        }
    }
}

#[cfg(test)]
mod tests;
