//! What verifiers report, over time: how much was admitted and dropped, finely for an hour and coarsely for a day. Bounded
//! per verifier. Times are the authority's; what a counter rose by counts for the time at which it was told.

use crate::api::Report;
use std::collections::VecDeque;
use wire::DropReason;

/// Packets dropped, by drop reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    by_reason: [u64; DropReason::ALL.len()],
    /// For reasons that this program has no name for.
    pub others: u64,
}

impl Drops {
    /// For one reason.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.by_reason[reason as usize - 1]
    }

    /// For all reasons.
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

    /// By how much they rose; `None` if one fell.
    fn since(&self, before: &Self) -> Option<Self> {
        let mut rise = Self { others: self.others.checked_sub(before.others)?, ..Self::default() };
        for (index, packets) in rise.by_reason.iter_mut().enumerate() {
            *packets = self.by_reason[index].checked_sub(before.by_reason[index])?;
        }
        Some(rise)
    }
}

/// What happened within some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// First packets that a token let in.
    pub admitted: u64,
    /// Packets dropped.
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

    /// By how much counters rose. Any that fell show that they began anew.
    fn since(self, before: &Self) -> Self {
        match (self.admitted.checked_sub(before.admitted), self.drops.since(&before.drops)) {
            (Some(admitted), Some(drops)) => Self { admitted, drops },
            _ => self,
        }
    }
}

/// How far back one looks.
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
    pub const ALL: [Self; 3] = [Self::Quarter, Self::Hour, Self::Day];

    /// Seconds that a column lasts.
    pub const fn step(self) -> u64 {
        match self {
            Self::Quarter => FINE.step,
            Self::Hour => 60,
            Self::Day => 900,
        }
    }

    /// How many columns there are.
    pub const fn columns(self) -> usize {
        match self {
            Self::Quarter => 90,
            Self::Hour => 60,
            Self::Day => 96,
        }
    }
}

/// A part of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// When it begins.
    pub start: u64,
    /// What happened; `None` where nobody reported.
    pub amount: Option<Amount>,
}

/// What one verifier reported.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    latest: Option<(u64, Report)>,
    fine: Ring,
    coarse: Ring,
}

impl Activity {
    /// Takes a report. The first only says where counters stand.
    pub fn note(&mut self, report: Report, now: u64) {
        let counted = Amount::reported(&report);
        let before = self.latest.as_ref().map_or(counted, |(_, before)| Amount::reported(before));
        let rise = counted.since(&before);
        self.fine.add(&rise, now, FINE);
        self.coarse.add(&rise, now, COARSE);
        self.latest = Some((now, report));
    }

    /// The latest report, and when it came.
    pub fn latest(&self) -> Option<(u64, &Report)> {
        self.latest.as_ref().map(|(time, report)| (*time, report))
    }
}

/// What verifiers together did within a span that ends `now`, oldest first.
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

/// How finely a ring tells times apart, and how many it keeps.
#[derive(Clone, Copy)]
struct Grain {
    step: u64,
    slots: usize,
}

/// Ten seconds for an hour.
const FINE: Grain = Grain { step: 10, slots: 361 };
/// A minute for a day. The slot at either end is a part of one.
const COARSE: Grain = Grain { step: 60, slots: 1441 };

#[derive(Clone, Copy, Debug)]
struct Slot {
    start: u64,
    amount: Amount,
}

/// The latest slots, oldest first; those in which nothing was told are left out.
#[derive(Clone, Debug, Default)]
struct Ring(VecDeque<Slot>);

impl Ring {
    fn add(&mut self, amount: &Amount, now: u64, grain: Grain) {
        let start = now - now % grain.step;
        // Where the clock was set back, what lies ahead of it is no longer of any time.
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
