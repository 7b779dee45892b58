use super::*;
use api::{DropCount, VerifierState};
use proptest::prelude::*;

const NOON: u64 = 1_772_452_800;

fn report(admitted: u64, drops: &[(u8, u64)]) -> Report {
    let drops = drops.iter().map(|&(reason, packets)| DropCount { reason, packets }).collect();
    let state = VerifierState::Protecting;
    Report { state, keys_until: None, admitted, passed: 0, drops, live: 0, flows: Vec::new() }
}

fn total(columns: &[Column]) -> (u64, u64) {
    let amounts = columns.iter().filter_map(|column| column.amount);
    amounts.fold((0, 0), |(admitted, dropped), a| (admitted + a.admitted, dropped + a.drops.total()))
}

#[test]
fn what_counters_rose_by_counts_when_it_is_told() {
    let mut activity = Activity::default();
    activity.note(report(100, &[(1, 50)]), NOON);
    assert_eq!(total(&columns([&activity], Span::Quarter, NOON)), (0, 0), "what was before the first report");
    activity.note(report(103, &[(1, 57), (8, 2)]), NOON + 12);
    let seen = columns([&activity], Span::Quarter, NOON + 12);
    let last = seen.last().unwrap();
    let amount = last.amount.unwrap();
    assert_eq!((last.start, amount.admitted), (NOON + 10, 3));
    assert_eq!((amount.drops.of(DropReason::NoToken), amount.drops.of(DropReason::BadTag)), (7, 2));
    assert_eq!(activity.latest().map(|(time, report)| (time, report.admitted)), Some((NOON + 12, 103)));
}

#[test]
fn counters_that_fell_began_anew() {
    let mut activity = Activity::default();
    activity.note(report(100, &[(1, 50), (9, 4)]), NOON);
    activity.note(report(101, &[(1, 3), (9, 5)]), NOON + 2);
    assert_eq!(total(&columns([&activity], Span::Hour, NOON + 2)), (101, 8));
}

#[test]
fn reasons_without_a_name_here_are_counted_together() {
    let mut activity = Activity::default();
    activity.note(report(0, &[]), NOON);
    activity.note(report(0, &[(200, 3), (255, 4), (0, 1)]), NOON + 2);
    let amount = columns([&activity], Span::Day, NOON + 2).last().unwrap().amount.unwrap();
    assert_eq!((amount.drops.others, amount.drops.total()), (8, 8));
}

#[test]
fn silence_is_told_from_nothing_dropped() {
    let mut activity = Activity::default();
    activity.note(report(0, &[]), NOON);
    activity.note(report(0, &[]), NOON + 300);
    let seen = columns([&activity], Span::Hour, NOON + 300);
    let reported: Vec<_> = seen.iter().filter(|column| column.amount.is_some()).map(|column| column.start).collect();
    assert_eq!((seen.len(), reported), (60, vec![NOON, NOON + 300]));
    assert_eq!(seen[0].start, NOON + 300 - 59 * 60);
}

#[test]
fn verifiers_add_up() {
    let (mut one, mut other) = (Activity::default(), Activity::default());
    for (activity, packets) in [(&mut one, 5), (&mut other, 7)] {
        activity.note(report(0, &[]), NOON);
        activity.note(report(1, &[(13, packets)]), NOON + 3);
    }
    assert_eq!(total(&columns([&one, &other], Span::Day, NOON + 3)), (2, 12));
}

#[test]
fn a_clock_that_is_set_back_leaves_nothing_ahead() {
    let mut activity = Activity::default();
    activity.note(report(0, &[]), NOON + 7200);
    activity.note(report(0, &[(1, 5)]), NOON + 7200);
    activity.note(report(0, &[(1, 6)]), NOON);
    for span in Span::ALL {
        assert_eq!(total(&columns([&activity], span, NOON)), (0, 1), "{span:?}");
    }
}

#[test]
fn memory_is_bounded_whatever_is_reported() {
    let mut activity = Activity::default();
    for nth in 0..4000 {
        activity.note(report(nth, &[(1, u64::MAX - 4000 + nth)]), NOON + 61 * nth);
    }
    assert_eq!((activity.fine.0.len(), activity.coarse.0.len()), (FINE.slots, COARSE.slots));
}

proptest! {
    /// Tests that each packet within a span is in exactly one column, and in the right one, whenever reports arrive.
    #[test]
    fn columns_hold_what_rose_in_their_time(steps in prop::collection::vec((0_u64..40, 0_u64..9, 0_u64..9), 1..60)) {
        let (mut activity, mut now, mut counted) = (Activity::default(), NOON, (0, 0));
        activity.note(report(0, &[]), now);
        let mut told = Vec::new();
        for (pause, admitted, dropped) in steps {
            now += pause;
            counted = (counted.0 + admitted, counted.1 + dropped);
            activity.note(report(counted.0, &[(2, counted.1)]), now);
            told.push((now, admitted, dropped));
        }
        for span in Span::ALL {
            let seen = columns([&activity], span, now);
            prop_assert_eq!(seen.len(), span.columns());
            for column in &seen {
                let within = told.iter().filter(|(at, ..)| (column.start..column.start + span.step()).contains(at));
                let sum = within.fold((0, 0), |sum, (_, admitted, dropped)| (sum.0 + admitted, sum.1 + dropped));
                prop_assert_eq!(column.amount.map_or((0, 0), |a| (a.admitted, a.drops.total())), sum);
            }
        }
    }
}
