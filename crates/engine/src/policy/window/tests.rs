use super::*;
use crate::policy::Policy;

/// Parses a `when` in the notation of the policy file.
fn when(text: &str) -> When {
    let receiver = "[[receivers]]\nname = \"a\"\naddress = \"192.0.2.1\"\nservices = \"all\"\nverifier = \"v\"\n";
    let rule = format!("{receiver}[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \"a\"\nwhen = {text}\n");
    Policy::parse(&rule, 3600).unwrap_or_else(|faults| panic!("{faults}")).rules()[0].when.clone()
}

fn at(text: &str) -> u64 {
    instant(text).unwrap()
}

#[test]
fn hours_begin_with_their_first_minute_and_end_before_their_last() {
    let office = when("{ days = \"mon-fri\", hours = \"08:00-18:00\" }");
    for (time, covered) in [
        ("2026-03-02T07:59:59Z", false),
        ("2026-03-02T08:00:00Z", true),
        ("2026-03-02T17:59:59Z", true),
        ("2026-03-02T18:00:00Z", false),
        ("2026-03-06T12:00:00Z", true),
        ("2026-03-07T12:00:00Z", false),
    ] {
        assert_eq!(office.covers(at(time)), covered, "{time}");
    }
    assert_eq!(office.next_change(at("2026-03-02T12:00:00Z")), Some(at("2026-03-02T18:00:00Z")));
    assert_eq!(office.next_change(at("2026-03-06T18:00:00Z")), Some(at("2026-03-09T08:00:00Z")));
}

#[test]
fn hours_into_the_next_day_belong_to_the_day_they_begin_on() {
    let night = when("{ days = \"fri\", hours = \"22:00-06:00\" }");
    for (time, covered) in [
        ("2026-03-06T05:00:00Z", false),
        ("2026-03-06T22:00:00Z", true),
        ("2026-03-07T05:59:59Z", true),
        ("2026-03-07T06:00:00Z", false),
        ("2026-03-07T22:30:00Z", false),
    ] {
        assert_eq!(night.covers(at(time)), covered, "{time}");
    }
    assert_eq!(night.next_change(at("2026-03-06T23:00:00Z")), Some(at("2026-03-07T06:00:00Z")));
}

#[test]
fn a_zone_keeps_its_hours_when_its_clock_changes() {
    let office = when("{ hours = \"08:00-18:00\", zone = \"Europe/Zurich\" }");
    // Winter: UTC+1. Summer, from 29 March 2026 on: UTC+2.
    assert!(office.covers(at("2026-03-28T07:00:00Z")) && !office.covers(at("2026-03-28T06:59:59Z")));
    assert!(office.covers(at("2026-03-29T06:00:00Z")) && !office.covers(at("2026-03-29T16:00:00Z")));
    assert_eq!(office.next_change(at("2026-03-28T17:00:00Z")), Some(at("2026-03-29T06:00:00Z")));
    // An hour that the clock skips, and one that the clock shows twice.
    let early = when("{ hours = \"02:10-02:50\", zone = \"Europe/Zurich\" }");
    assert_eq!(early.next_change(at("2026-03-28T02:00:00Z")), Some(at("2026-03-30T00:10:00Z")));
    let twice: Vec<_> = std::iter::successors(early.next_change(at("2026-10-24T12:00:00Z")), |t| early.next_change(*t))
        .take(4)
        .collect();
    let expected = ["2026-10-25T00:10:00Z", "2026-10-25T00:50:00Z", "2026-10-25T01:10:00Z", "2026-10-25T01:50:00Z"];
    assert_eq!(twice, expected.map(at));
}

#[test]
fn dates_are_days_of_the_zone_and_the_last_one_counts() {
    let march = when("{ from = 2026-03-01, until = \"2026-03-31\", zone = \"America/New_York\" }");
    assert!(!march.covers(at("2026-03-01T04:59:59Z")) && march.covers(at("2026-03-01T05:00:00Z")));
    assert!(march.covers(at("2026-04-01T03:59:59Z")) && !march.covers(at("2026-04-01T04:00:00Z")));
    assert_eq!(march.next_change(0), Some(at("2026-03-01T05:00:00Z")));
    assert_eq!(march.next_change(at("2026-03-05T00:00:00Z")), Some(at("2026-04-01T04:00:00Z")));
    assert_eq!(march.next_change(at("2026-04-01T04:00:00Z")), None);
    let hour = when("{ from = 2026-03-01T10:00:00Z, until = 2026-03-01T11:00:00+00:00 }");
    assert_eq!(hour.next_change(0), Some(at("2026-03-01T10:00:00Z")));
    assert!(!hour.covers(at("2026-03-01T11:00:00Z")));
}

#[test]
fn windows_that_touch_are_one() {
    let whole = when("[{ days = \"mon-fri\" }, { days = \"sat-sun\" }]");
    assert!((0..14).all(|day| whole.covers(day * 86_400)));
    let split = when("[{ hours = \"08:00-12:00\" }, { hours = [\"12:00-13:00\", \"14:00-15:00\"] }]");
    assert_eq!(split.next_change(at("2026-03-02T09:00:00Z")), Some(at("2026-03-02T13:00:00Z")));
}

#[test]
fn without_windows_nothing_changes() {
    let always = When::default();
    assert!(always.covers(0) && always.covers(u64::MAX) && always.is_always());
    assert_eq!(always.next_change(5), None);
}

#[test]
fn the_ends_of_time_are_no_trouble() {
    for text in ["{ hours = \"08:00-18:00\" }", "{ days = \"sun\", zone = \"Pacific/Apia\" }", "{ from = 2026-01-01 }"]
    {
        let window = when(text);
        for time in [0, 1, u32::MAX.into(), i64::MAX.unsigned_abs(), u64::MAX] {
            let change = window.next_change(time);
            assert!(change.is_none_or(|change| change > time), "{text} at {time}: {change:?}");
        }
    }
}

/// Checks minute by minute, for days around changes of the clock, that nothing changes between the times of
/// `next_change`.
#[test]
fn no_change_is_missed_and_none_is_made_up() {
    for (text, begin) in [
        (
            "{ days = [\"mon\", \"sat-sun\"], hours = [\"01:30-02:30\", \"23:00-01:15\"], zone = \"Europe/Zurich\" }",
            "2026-03-25T00:00:00Z",
        ),
        ("{ days = \"sun\", hours = \"00:00-24:00\", zone = \"Europe/Zurich\" }", "2026-10-20T00:00:00Z"),
        ("{ days = \"thu-fri\", zone = \"Pacific/Apia\" }", "2011-12-26T00:00:00Z"),
        ("{ hours = \"01:45-02:15\", zone = \"Australia/Lord_Howe\" }", "2026-04-01T00:00:00Z"),
    ] {
        let window = when(text);
        let begin = at(begin);
        let mut expected = window.next_change(begin);
        for time in (begin + 60..begin + 9 * 86_400).step_by(60) {
            let changed = window.covers(time) != window.covers(time - 60);
            assert_eq!(changed, expected == Some(time), "{text} at {time}, expected {expected:?}");
            if changed {
                expected = window.next_change(time);
            }
        }
    }
}
